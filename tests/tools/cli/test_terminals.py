"""The command line in terminals: lines that fit, colour where it is wanted, Ctrl-C in the middle of a long command."""

import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

from fastq.engine.code import notices
from fastq.tools.checkpoints.journal import JOURNAL

pytest.importorskip("termios", reason="no terminals of POSIX")
import fcntl
import pty
import termios

FASTQ = "import sys; sys.argv[0] = 'fastq'; from fastq.tools.cli.command import main; main()"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COMMANDS = ["bench", "binarize", "bitround", "check", "compare", "completion", "conventions", "convert", "demo"]
COMMANDS += ["dequantize", "gguf", "info", "inspect", "pack", "quantize", "suggest", "warmup"]


class Terminal:
    """A command in a terminal with a number of columns, which is its controlling one, so that Ctrl-C is a key."""

    def __init__(self, *arguments, columns=80, **environment):
        environment = {**os.environ, "TERM": "xterm-256color", **environment}
        environment.pop("COLUMNS", None)
        self.main, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        command = [sys.executable, "-c", FASTQ, *map(str, arguments)]

        def begin():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell ignores in what it starts in the background

        options = {"env": environment, "start_new_session": True, "preexec_fn": begin}
        self.process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, **options)
        os.close(end)
        self.text = ""

    def read(self):
        """Read on; False at the end."""
        try:
            piece = os.read(self.main, 1 << 16)
        except OSError:  # as Linux tells of the end
            piece = b""
        self.text += piece.decode(errors="replace")
        return bool(piece)

    def press_until_it_ends(self, key, seconds=5.0, times=8):
        """Press a key again where nothing follows: Python drops an interrupt that meets a callback of its collector."""
        for _ in range(times):
            os.write(self.main, key)
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                if select.select([self.main], [], [], left)[0] and not self.read():
                    return
        self.process.kill()

    def finish(self):
        """Read all, and return the exit code."""
        while self.read():
            pass
        os.close(self.main)
        return self.process.wait(60)

    @property
    def lines(self):
        """What is seen in the end: a line that was written over counts as it is last."""
        return [ESCAPE.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in self.text.split("\n")]


pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.slow("a process for each command")
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_fits_the_terminal(columns):
    for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
        terminal = Terminal(*arguments, columns=columns)
        assert terminal.finish() == 0, terminal.text
        assert max(map(len, terminal.lines)) <= columns, arguments
        if len(arguments) == 1:
            assert re.findall(r"^  ([a-z]+)  ", "\n".join(terminal.lines), re.MULTILINE) == COMMANDS
            assert "..." not in terminal.text.partition("Commands:")[2]


@pytest.mark.slow("a process each", quick=lambda plain: "TERM" in plain)
@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_none_is_wanted(plain):
    np.save("w.npy", np.ones((512, 512), np.float32))
    terminal = Terminal("inspect", "w.npy", columns=200, **plain)
    assert terminal.finish() == 0
    colours = re.findall(r"\x1b\[[0-9;]*m", terminal.text)
    assert not [code for code in colours if re.search(r"3[0-8]|4[0-8]|9[0-7]", code)], colours
    if "TERM" in plain:
        assert "\x1b" not in terminal.text
    assert re.search(r"w +512 x 512 +F32 +1,048,576", "\n".join(terminal.lines))


@pytest.mark.slow("compiles in an empty cache")
def test_a_bar_says_that_something_is_compiled(tmp_path):
    """A command in an empty cache; Python says it in a line, once, and only to a terminal."""
    np.save("w.npy", np.ones((4, 64), np.float32))
    cold = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    terminal = Terminal("quantize", "w.npy", "q.safetensors", columns=120, **cold)
    assert terminal.finish() == 0, terminal.text
    assert "compiling, once: 1" in terminal.text
    assert "compiling" not in "\n".join(terminal.lines)
    again = Terminal("quantize", "w.npy", "q.safetensors", "--force", columns=120, **cold)
    assert again.finish() == 0, again.text
    assert "compiling" not in again.text


def test_a_bar_counts_the_tasks_of_dask():
    """Those of the ranges, then those that write."""
    xarray = pytest.importorskip("xarray", reason="no xarray")
    pytest.importorskip("netCDF4", reason="no netCDF4")
    data = {"t": (("y", "x"), np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32))}
    xarray.Dataset(data).to_netcdf("a.nc", encoding={"t": {"chunksizes": (10, 50)}})
    terminal = Terminal("pack", "a.nc", "b.nc")
    assert terminal.finish() == 0, terminal.text
    (shown,) = [line for line in terminal.lines if line.startswith("tasks")]
    done, total = re.search(r"(\d+)/(\d+)", shown).groups()
    assert done == total != "0"


@pytest.mark.slow("compiles in an empty cache")
def test_a_command_in_a_pipe_says_once_that_it_compiles(tmp_path):
    np.save("w.npy", np.ones((4, 64), np.float32))
    command = [sys.executable, "-c", FASTQ, "quantize", "w.npy", "q.safetensors", "--json", "--force"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for said in (1, 0):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert [line.partition(";")[0] for line in done.stderr.splitlines()] == [
            "fastq: compiling kernels, once for this machine"
        ] * said
        assert json.loads(done.stdout)["tensors"][0]["name"] == "w"


NO_FOLDER = "from fastq.engine.code import folder\nfolder.wanted_folder = lambda: None\n"


@pytest.mark.slow("compiles in an empty cache")
@pytest.mark.parametrize(
    ("folder", "said"), [("", "once for this machine; "), (NO_FOLDER, "in each process; no folder")]
)
def test_python_says_once_that_it_compiles(tmp_path, folder, said):
    code = (
        f"{folder}import fastq, numpy as np\nx = np.ones((4, 64), np.float32)\nfastq.minmax(x), fastq.minmax(x, axis=0)"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    piped = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (piped.returncode, piped.stderr) == (0, "")
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "other")
    main, end = pty.openpty()
    assert subprocess.run([sys.executable, "-c", code], env=environment, stderr=end).returncode == 0
    os.close(end)
    assert os.read(main, 1 << 16).decode().count(f"fastq: compiling kernels, {said}") == 1
    os.close(main)


SHOWN = """
import sys
from fastq.tools.cli.progress import with_progress
for _ in with_progress([1, 2], "things"):
    print("a line", flush=True)
"""


@pytest.mark.parametrize("shares", [True, False])
def test_lines_that_come_while_a_bar_is_shown_are_not_lost(shares):
    """They go above the bar, or to the file of standard output, not to the terminal of the bar."""
    main, end = pty.openpty()
    options = {} if shares else {"stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", SHOWN], stderr=end, text=True, **({"stdout": end} | options))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    os.close(end)
    shown = os.read(main, 1 << 16).decode()
    os.close(main)
    assert ("things" in shown, shown.count("a line")) == (True, 2 * shares)
    assert shares or output == "a line\na line\n"


def test_the_pictures_of_a_page_have_a_bar():
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    np.save("w.npy", x)
    np.save("v.npy", x + np.float32(0.1))
    terminal = Terminal("compare", "w.npy", "v.npy", "--report", "page.html")
    assert terminal.finish() == 0, terminal.text
    assert "pictures of page.html" in terminal.text
    assert "1/1" in terminal.text


@pytest.mark.parametrize("kind", ["closed", "none", "another"])
def test_what_cannot_be_told_ends_no_call(monkeypatch, kind):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", {"closed": closed, "none": None, "another": object()}[kind])
    notices.tell_user.__wrapped__(also_in_pipes=True)


LONG = {
    "quantize": ["quantize", "big.npy", "out.safetensors", "--range", "mse", "--axis", "none"],
    "compare": ["compare", "big.npy", "big.npy", "--report", "out.html"],
    "check": ["check", "--cases", "100000"],
}


@pytest.mark.slow("starts processes, and waits for them to compile", quick=lambda name: name == "check")
@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_ends_a_command_with_one_line(name, tmp_path):
    np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float32, (1 << 14, 1 << 14)).flush()  # a sparse file
    terminal = Terminal(*LONG[name])
    while "━" not in terminal.text and terminal.read():  # the bar: it has begun
        pass
    time.sleep(0.2)
    terminal.press_until_it_ends(b"\x03")
    assert terminal.finish() == 128 + signal.SIGINT, terminal.text
    assert "Traceback" not in terminal.text
    assert [line for line in terminal.lines if line.strip()][-1].removeprefix("^C") == "Interrupted"
    assert sorted(os.listdir()) == ["big.npy"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_conversion_that_is_interrupted_says_how_it_goes_on(tmp_path, monkeypatch, capsys, begun):
    from fastq.tools.cli.app import cli
    from fastq.tools.cli.commands import convert

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    save_file({"a.weight": np.ones((4, 128), np.float32)}, "model/model.safetensors")

    def interrupted(conversion, out, **options):
        if begun:
            out.mkdir()
            (out / JOURNAL).write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "convert", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli(["convert", "model", "out", "--scheme", "W4A16"])
    assert ended.value.code == 130
    more = "; finished shards stay, and the same command continues from there" if begun else ""
    assert capsys.readouterr().err == f"Interrupted{more}\n"


ALL_OF = """
import sys
from fastq.tools.cli.app import main
for arguments in (["inspect"], ["compare", "odd.safetensors"], ["suggest"]):
    sys.argv[1:] = [*arguments, "odd.safetensors"]
    try:
        main(None)
    except SystemExit as end:
        assert not end.code
    print("done", flush=True)
"""


@pytest.mark.slow("a process each", quick=lambda encoding: encoding == "ascii")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_an_encoding_lacks_are_replaced(encoding):
    # contract 28.11
    save_file({"\u0394": np.ones((4, 4), np.float32)}, "odd.safetensors")
    command, environment = [sys.executable, "-c", ALL_OF], {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment)
    way = b"fastq quantize --like FILE takes them; suggest --json > FILE writes them"
    said = [line for line in done.stderr.splitlines() if b"compiling" not in line]
    assert (done.returncode, said) == (0, [way])
    *shown, rest = done.stdout.split(b"done\n")
    assert [b" ? " in each for each in shown] == [True] * 3
    assert rest == b""
