"""Links, pipes, devices and full disks: one line that says what is wrong, the old file or the whole new one."""

import os
import shutil
import stat
import subprocess
import sys

import hostile
import numpy as np
import pytest
from commands import run, told

from fastq.tools.files.containers import open_source

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
MAIN = "from fastq.tools.cli.command import main; main()"


@pytest.fixture
def weights(here):
    np.save("w.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    return here / "w.npy"


@needs_pipes
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_pipe_is_not_waited_for(here, suffix):
    os.mkfifo(f"in{suffix}")
    assert told("quantize", f"in{suffix}", "out.safetensors") == f"Error: in{suffix} is not a file\n"


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="this system has no such device")
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_device_is_not_read(here, suffix):
    os.symlink("/dev/zero", f"in{suffix}")
    with pytest.raises(ValueError, match="is not a file"):
        open_source(here / f"in{suffix}")


def test_a_link_is_replaced_and_what_it_leads_to_is_not(weights):
    # contract 28.7
    (weights.parent / "other").write_bytes(b"other")
    for name, target in {"link": "other", "dangling": "nothing", "loop": "loop.safetensors"}.items():
        os.symlink(target, f"{name}.safetensors")
        command = ["quantize", "w.npy", f"{name}.safetensors"]
        assert f"'{name}.safetensors' exists; --force replaces it" in " ".join(told(*command, exit_code=2).split())
        run(*command, "--force")
        assert not os.path.islink(f"{name}.safetensors")
        assert not hostile.unreadable(weights.parent / f"{name}.safetensors")
    assert (weights.parent / "other").read_bytes() == b"other"
    assert not os.path.exists("nothing")


def test_a_name_that_is_too_long(weights):
    (line,) = told("quantize", "w.npy", "x" * 300 + ".safetensors").splitlines()
    assert line.startswith("Error: xxx")
    assert os.listdir() == ["w.npy"]


@needs_pipes
def test_out_that_is_a_pipe_or_another_name_of_in(weights):
    # contract 28.7
    os.mkfifo("pipe.safetensors")
    shutil.copy("w.npy", "in.safetensors")
    os.link("in.safetensors", "same.safetensors")
    for name, out, why in (("w.npy", "pipe", "is not a file"), ("in.safetensors", "same", "is IN itself")):
        said = told("quantize", name, f"{out}.safetensors", "--force", exit_code=2)
        assert f"'{out}.safetensors' {why}" in " ".join(said.split())
    assert stat.S_ISFIFO(os.stat("pipe.safetensors").st_mode)


# disks


def limited(arguments, limit, stdout=subprocess.PIPE):
    """Run the command line where no file may be longer than a limit."""

    def limit_files():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=limit_files,
    )  # fmt: skip


@pytest.mark.slow("processes that import Numba")
@pytest.mark.skipif(sys.platform == "win32", reason="this system has no limit on the size of a file")
@pytest.mark.parametrize("out", ["out.safetensors", "out.npy"])
def test_a_disk_that_is_full(here, out):
    # contract 28.15
    np.save("w.npy", np.ones((100, 100), np.float32))
    run("quantize", "w.npy", "q.safetensors")
    (here / out).write_bytes(hostile.OLD)
    command = ["quantize", "w.npy"] if out == "out.safetensors" else ["dequantize", "q.safetensors"]
    done = limited([*command, out, "--force"], 5000)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {out}: File too large\n")
    assert (here / out).read_bytes() == hostile.OLD
    assert sorted(os.listdir()) == sorted({"w.npy", "q.safetensors", out})


@pytest.mark.slow("processes that import Numba")
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no such device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_that_is_full(weights, unbuffered, monkeypatch):
    # contract 28.15
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        done = limited(["quantize", "w.npy", "q.safetensors"], 1 << 30, full)
    assert (done.returncode, done.stderr) == (1, "Error: standard output: No space left on device\n")
    assert not hostile.unreadable(weights.parent / "q.safetensors")
