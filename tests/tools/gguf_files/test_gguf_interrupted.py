"""Conversions of GGUF files that end early, by errors, Ctrl-C and kill -9: the old file or the whole new one."""

import os
import signal
from pathlib import Path

import gguf_models
import hostile
import pytest
from commands import invoke
from subprocesses import SETUP, run

from fastq.tools.gguf_files import convert_gguf


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError("64 GiB"), KeyboardInterrupt()])
def test_failure_in_the_middle(here, monkeypatch, error):
    gguf_models.write(here / "in.gguf", gguf_models.MODELS["narrow"])
    done = []

    def fail(*arguments, **options):
        done.append(arguments)
        if len(done) == 3:
            raise error
        return original(*arguments, **options)

    original = convert_gguf._encode
    monkeypatch.setattr(convert_gguf, "_encode", fail)
    Path("out.gguf").write_bytes(hostile.OLD)
    result = invoke("gguf", "in.gguf", "out.gguf", "--type", "Q8_0", "--force")
    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    assert (result.exit_code, len(result.output.strip().splitlines())) == (code, 1)
    assert Path("out.gguf").read_bytes() == hostile.OLD
    assert sorted(os.listdir()) == ["in.gguf", "out.gguf"]


# a child with everything imported is killed after each of its writes: the header, each tensor, the padding, the end
KILLED = """
import signal
from pathlib import Path
from commands import invoke
from fastq.tools.gguf_files import convert_gguf
from fastq.system import atomic

os.chdir(os.environ["FOLDER"])
command = ["gguf", "in.gguf", "out.gguf", "--type", "Q8_0", "--force"]
assert invoke(*command).exit_code == 0
new, old = Path("out.gguf").read_bytes(), b"the old file"


def killed_at(number):
    "Run the command in a child that ends at a call of os.replace, write, fsync or _sync_folder, counted together."
    Path("out.gguf").write_bytes(old)
    if not (pid := os.fork()):
        calls = iter(range(number))

        def counted(function):
            def call(*arguments):
                if next(calls, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments)
            return call

        os.replace, os.fsync, atomic._sync_folder = map(counted, (os.replace, os.fsync, atomic._sync_folder))
        convert_gguf._convert_rows = counted(convert_gguf._convert_rows)
        invoke(*command)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


codes, left = [], []
for number in range(99):
    codes.append(killed_at(number))
    left.append(Path("out.gguf").read_bytes())
    strays = len(os.listdir()) - 2
    assert strays <= 1, os.listdir()
    if not codes[-1]:
        break
assert left[-1] == new and codes.count(-signal.SIGKILL) == len(codes) - 1, codes
assert sorted(os.listdir()) == ["in.gguf", "out.gguf"]
print(len(codes), left.count(old), left.count(new))
"""


@pytest.mark.slow("processes that are killed")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_kill_leaves_the_old_file_or_the_whole_new_one(here):
    gguf_models.write(here / "in.gguf", gguf_models.MODELS["narrow"])
    moments, olds, news = map(int, run(KILLED, setup=SETUP, FOLDER=here).split())
    assert signal.SIGKILL == 9
    assert moments == 8 + 4 + 1  # each of 8 tensors, the disk, the name, the folder and its disk; one is not killed
    assert (olds, news) == (8 + 2, 3)
