"""Ctrl-C at any moment of a command: one line and exit code 130."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from commands import invoke

from fastq.tools.cli.commands.bench import benchmark_package

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

INTERRUPTED = (128 + signal.SIGINT, "Interrupted\n")


HELPERS = """
import atexit, os, signal, sys

def interrupt(*_, number=signal.SIGINT, **options):
    os.kill(os.getpid(), number)

def after(home, name):
    "Interrupt what a function does, when it is done."
    function = getattr(home, name)
    setattr(home, name, lambda *arguments, **options: (function(*arguments, **options), interrupt())[0])
"""
MAIN = "from fastq.tools.cli.command import main; main()"
# forks a process for each line, which has everything imported that a command imports and goes on below the loop
FORKS = f"""{HELPERS}
import json
import fastq.tools.cli.app, fastq.tools.tensors.quantize_file
import numba, rich.progress, safetensors.numpy

for line in sys.stdin:
    code, folder, errors, arguments = json.loads(line)
    if not os.fork():
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    os._exit(0)
os.chdir(folder)
for number, path in enumerate((os.devnull, os.devnull, errors)):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
signal.alarm(300)
sys.argv[1:] = arguments
exec(code)
{MAIN}
"""


def python(code, *arguments, **options):
    """Start Python on code, which Ctrl-C reaches also where a shell has this process in the background."""
    begin = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": begin}
    return subprocess.Popen([sys.executable, "-P", "-c", code, *arguments], **options)


def command(*arguments, before=""):
    """Start a command, after code."""
    return python(f"{HELPERS}\n{before}\n{MAIN}", *arguments)


@pytest.fixture(scope="module")
def forks():
    with python(FORKS, stdin=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def forked(forks, tmp_path, tmp_path_factory):
    """What runs a command, after code, where its modules are imported: exit code, and what is on standard error."""
    errors = tmp_path_factory.mktemp("errors") / "errors.txt"

    def run(*arguments, before=""):
        print(json.dumps([before, str(tmp_path), str(errors), arguments]), file=forks.stdin, flush=True)
        return int(forks.stdout.readline()), without_compiling(errors.read_text())

    return run


def ended(process):
    """Exit code of a process, and what it wrote to standard error."""
    _, errors = process.communicate(timeout=300)
    return process.returncode, without_compiling(errors)


def without_compiling(errors):
    """Standard error without the line that kernels are compiled, which depends on what the disk has."""
    return "".join(line for line in errors.splitlines(True) if not line.startswith("fastq: compiling kernels"))


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("w.npy", np.arange(4096, dtype=np.float32).reshape(64, 64))


QUANTIZE = "quantize", "w.npy", "w.safetensors", "--force"
PLACES = {
    "arguments are read": "import click; after(click.Context, 'scope')",
    "an argument is checked": "import fastq.tools.cli.app as app; app.quantize.params[0].callback = interrupt",
    "the command begins": "import fastq.tools.cli.app as app; app.quantize.callback = interrupt",
    "a file is written": "from fastq.tools.files import containers; after(containers.SafetensorsWriter, 'append')",
    "a file is made durable": "after(os, 'fsync')",
    "a file is there": "after(os, 'replace')",
    "a table is printed": "from fastq.tools.cli.commands import quantize; after(quantize, 'show_table')",
    "the command ends": "import fastq.tools.cli.app as app; after(app.Commands, 'invoke')",
    "its exit code is known": "import click; click.Context.exit = interrupt",
    "threads end": "import threading; threading._register_atexit(interrupt)",
    "the interpreter ends": "from fastq.tools.cli.commands import quantize\n"
    "quantize.check_out = lambda *_, **o: atexit.register(interrupt)",
}


@pytest.mark.parametrize("place", PLACES)
def test_one_line(forked, place):
    # contract 28.14
    assert forked(*QUANTIZE, before=PLACES[place]) == INTERRUPTED
    assert set(os.listdir()) <= {"w.npy", "w.safetensors"}


IMPORTED = """
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            interrupt()

sys.meta_path.insert(0, Press())
"""


@pytest.mark.slow("a process each", quick=lambda name: name in ("fastq.tools.cli.app", "numba"))
@pytest.mark.parametrize("name", ["fastq.tools.cli.app", "click", "numpy", "rich.progress", "numba", "llvmlite"])
def test_one_line_while_modules_are_imported(name):
    """Before that Python imports the package, and Ctrl-C ends the process as any program of Python."""
    # a setting, so that Numba is asked for code that is on disk
    before = IMPORTED.format(name=name) + "import os; os.environ['NUMBA_OPT'] = '3'"
    assert ended(command(*QUANTIZE, before=before)) == INTERRUPTED


def test_one_line_of_a_command_that_is_one_itself(forked):
    name = f"{benchmark_package()}.command"
    before = IMPORTED.format(name=name) + "import click; click.Command.invoke = interrupt"
    assert forked("bench", "--list", before=before) == INTERRUPTED
    before = f"import fastq.tools.cli.app, {name}; {name}.run.callback = interrupt"
    assert forked("bench", before=before) == INTERRUPTED


def test_a_command_that_is_in_the_background_of_a_shell_is_not_interrupted(forked):
    before = "signal.signal(signal.SIGINT, signal.SIG_IGN); import atexit; atexit.register(interrupt)"
    assert forked(*QUANTIZE, before=before) == (0, "")


@pytest.mark.parametrize("arguments", [["info"], ["quantize"], ["quantize", "w.npy", "w.npy"], ["--nonsense"]])
def test_exit_codes_are_those_of_the_command(forked, arguments):
    expected = invoke(*arguments)
    assert forked(*arguments) == (expected.exit_code, expected.stderr.replace("cli", "-c"))


def test_an_error_that_nobody_handles_is_told(forked):
    code, errors = forked("info", before="import fastq.tools.cli.commands.info as info; info.print_facts = None")
    assert (code, errors.splitlines()[-1]) == (1, "TypeError: 'NoneType' object is not callable")


DESTRUCTOR = """
import time
import fastq.tools.cli.commands.info as info

class Closed:
    def __del__(self):
        {what}

def closed(facts):
    Closed()
    for _ in range({steps}):
        time.sleep(0.01)

info.print_facts = closed
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_destructor_is_not_lost(forked, number):
    before = DESTRUCTOR.format(what=f"interrupt(number={number:d})", steps=2000)
    line = "Interrupted\n" if number == signal.SIGINT else ""
    assert forked("info", before=before) == (128 + number, line)


WAITING = """
import threading
import fastq.tools.cli.commands.info as info

def waiting(facts):
    threading.Thread(target=threading.Event().wait).start()
    interrupt()

info.print_facts = waiting
"""


def test_a_thread_that_waits_does_not_keep_an_interrupted_command(forked):
    assert forked("info", before=WAITING) == INTERRUPTED


CLEANED = """
rmdir = os.rmdir

def once(*path, **options):
    os.rmdir = rmdir
    rmdir(*path, **options)
    interrupt()

os.rmdir = once
"""


def test_what_was_replaced_is_removed_whenever_ctrl_c_comes(forked):
    xarray = pytest.importorskip("xarray", reason="no xarray")
    pytest.importorskip("zarr", reason="no zarr")
    xarray.Dataset({"t": ("x", np.arange(9, dtype=np.float32))}).to_zarr("a.zarr", consolidated=False)
    assert forked("pack", "a.zarr", "b.zarr")[0] == 0
    assert forked("pack", "a.zarr", "b.zarr", "--force", before=CLEANED) == INTERRUPTED
    assert sorted(os.listdir()) == ["a.zarr", "b.zarr", "w.npy"]


def test_other_errors_in_destructors_are_told(forked):
    code, errors = forked("info", before=DESTRUCTOR.format(what="raise ValueError('lost')", steps=0))
    assert (code, errors.splitlines()[-1]) == (0, "ValueError: lost")


# said when signals are handled, a millisecond or two after the interpreter has begun with the script
BEGUN = "register = atexit.register; atexit.register = lambda function: (os.write(1, b'begun'), register(function))"


@pytest.mark.slow("a process for each moment")
@pytest.mark.parametrize("count", [4, 200])
def test_one_line_at_random_moments(count):
    # contract 28.14
    moments, begin = random.Random(count), time.monotonic()
    assert ended(command(*QUANTIZE)) == (0, "")
    seconds, interrupted = time.monotonic() - begin, 0
    for part in range(count):
        process = command(*QUANTIZE, before=BEGUN)
        assert process.stdout.read(5) == "begun"
        time.sleep((part + moments.random()) / count * seconds)
        process.send_signal(signal.SIGINT)
        found = ended(process)
        assert found in (INTERRUPTED, (0, ""))  # which it was before
        interrupted += found == INTERRUPTED
        assert set(os.listdir()) <= {"w.npy", "w.safetensors"}
    assert interrupted > count // 4
