"""Files that lie, links, pipes and full disks: one line that says what is wrong, the old file or the whole new one."""

import os
import shutil
import stat
import subprocess
import sys

import hostile
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from fastq.cli.app import cli
from fastq.io.containers import LONGEST_HEADER, Header, open_source, spec_of
from fastq.system import atomic

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
ABANDONED = ".fastq-0123456789abcdef.part"
MAIN = "from fastq_command import main; main()"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def weights(here):
    np.save("w.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    return here / "w.npy"


@pytest.fixture
def attempt(here):
    """Run a command on contents; assert that it did what it should, return whether it worked."""

    def attempt(name, suffix, content, command="quantize", out="out.safetensors"):
        why, worked = hostile.attempt(command, hostile.write(here, f"in{suffix}", content), here / out)
        assert not why, name
        return worked

    return attempt


# contents


def test_every_lie_of_a_npy_file(attempt, here):
    for name, content in hostile.npy_files():
        assert not attempt(name, ".npy", content), name
    assert attempt("the truth", ".npy", hostile.npy(hostile.npy_header()))
    assert attempt("the truth and more", ".npy", hostile.npy(hostile.npy_header(), bytes(99)))
    assert not (here / "executed").exists()


@pytest.mark.parametrize("command", ["quantize", "dequantize"])
def test_every_lie_of_a_safetensors_file(attempt, command):
    for name, content in hostile.safetensors_files():
        assert not attempt(name, ".safetensors", content, command), name


def test_odd_names(attempt):
    for name, content in hostile.odd_names():
        assert attempt(name, ".safetensors", content), name


@pytest.mark.parametrize(
    ("scheme", "out"),
    [
        ([], "out.npy"),
        (["--dtype", "int4", "--asymmetric", "--block-size", "8"], "out.safetensors"),
        (["--dtype", "nvfp4"], "out.safetensors"),
    ],
    ids=["int8", "int4", "nvfp4"],
)
def test_every_lie_of_a_record(attempt, here, scheme, out):
    save_file({"w": np.arange(128, dtype=np.float32).reshape(4, 32)}, "w.safetensors")
    assert CliRunner().invoke(cli, ["quantize", "w.safetensors", "q.safetensors", *scheme]).exit_code == 0
    assert attempt("right", ".safetensors", (here / "q.safetensors").read_bytes(), "dequantize", out)
    for name, content in hostile.record_files(here / "q.safetensors"):
        attempt(name, ".safetensors", content, "dequantize", out)


def test_a_name_that_no_tensor_can_have(here):
    np.save("__metadata__.npy", np.ones((4, 4), np.float32))
    result = CliRunner().invoke(cli, ["quantize", "__metadata__.npy", "out.safetensors"])
    assert (result.exit_code, sorted(os.listdir())) == (1, ["__metadata__.npy"])
    assert result.output == ("Error: __metadata__.npy: a .safetensors file can't hold a tensor named '__metadata__'\n")


def test_a_header_that_nobody_would_read():
    with pytest.raises(ValueError, match=r"^a \.safetensors file can't hold a header of 100,000,\d\d\d bytes$"):
        Header([spec_of("x", "F32", (1,))], {"text": "x" * LONGEST_HEADER})


# paths


@needs_pipes
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_pipe_is_not_waited_for(here, suffix):
    os.mkfifo(f"in{suffix}")
    result = CliRunner().invoke(cli, ["quantize", f"in{suffix}", "out.safetensors"])
    assert (result.exit_code, result.output) == (1, f"Error: in{suffix}: in{suffix} is not a file\n")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="this system has no such device")
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_device_is_not_read(here, suffix):
    os.symlink("/dev/zero", f"in{suffix}")
    with pytest.raises(ValueError, match="is not a file"):
        open_source(here / f"in{suffix}")


def test_a_link_is_replaced_and_what_it_leads_to_is_not(weights):
    (weights.parent / "other").write_bytes(b"other")
    for name, target in {"link": "other", "dangling": "nothing", "loop": "loop.safetensors"}.items():
        os.symlink(target, f"{name}.safetensors")
        arguments = ["quantize", "w.npy", f"{name}.safetensors"]
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 2
        assert f"'{name}.safetensors' exists; --force replaces it" in " ".join(result.output.split())
        assert CliRunner().invoke(cli, [*arguments, "--force"]).exit_code == 0
        assert not os.path.islink(f"{name}.safetensors")
        assert not hostile.unreadable(weights.parent / f"{name}.safetensors")
    assert (weights.parent / "other").read_bytes() == b"other"
    assert not os.path.exists("nothing")


def test_a_name_that_is_too_long(weights):
    result = CliRunner().invoke(cli, ["quantize", "w.npy", "x" * 300 + ".safetensors"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: xxx")
    assert result.output.count("\n") == 1
    assert os.listdir() == ["w.npy"]


@needs_pipes
def test_out_that_is_a_pipe_or_another_name_of_in(weights):
    os.mkfifo("pipe.safetensors")
    shutil.copy("w.npy", "in.safetensors")
    os.link("in.safetensors", "same.safetensors")
    for name, out, why in (("w.npy", "pipe", "is not a file"), ("in.safetensors", "same", "is IN itself")):
        result = CliRunner().invoke(cli, ["quantize", name, f"{out}.safetensors", "--force"])
        assert result.exit_code == 2
        assert f"'{out}.safetensors' {why}" in " ".join(result.output.split())
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
    np.save("w.npy", np.ones((100, 100), np.float32))
    assert CliRunner().invoke(cli, ["quantize", "w.npy", "q.safetensors"]).exit_code == 0
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
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        done = limited(["quantize", "w.npy", "q.safetensors"], 1 << 30, full)
    assert (done.returncode, done.stderr) == (1, "Error: standard output: No space left on device\n")
    assert not hostile.unreadable(weights.parent / "q.safetensors")


def test_a_temporary_file_that_cannot_be_removed(here, monkeypatch):
    """A read-only disk refuses that too; what is told is the first error, and of the file that the caller knows."""

    def refuse(path, *arguments, **keywords):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr("fastq.system.atomic.os.open", refuse)
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(OSError, match="Read-only") as caught, atomic.replacing(here / "out"):
        pass
    assert caught.value.filename == str(here / "out")


# temporary files of processes that were killed

needs_locks = pytest.mark.skipif(not atomic.LOCKS, reason="without locks nothing is known to be abandoned")


def replace(folder):
    with atomic.replacing(folder / "out") as file:
        file.write(b"new")


@needs_locks
def test_an_abandoned_file_is_removed(here):
    (here / ABANDONED).write_bytes(b"half")
    replace(here)
    assert os.listdir() == ["out"]


@needs_locks
def test_an_abandoned_file_is_removed_before_the_disk_is_needed(here):
    (here / ABANDONED).write_bytes(b"half")
    with pytest.raises(OSError, match="full"), atomic.replacing(here / "out"):
        raise OSError("full")
    assert os.listdir() == []


@needs_locks
def test_a_file_that_is_being_written_is_not_removed(here):
    with atomic.replacing(here / "first") as file:
        file.write(b"first")
        (name,) = os.listdir()
        for _ in range(3):
            replace(here)
        assert sorted(os.listdir()) == sorted([name, "out"])
    assert sorted(os.listdir()) == ["first", "out"]
    assert (here / "first").read_bytes() == b"first"


@needs_locks
def test_a_file_is_locked_until_it_has_its_name(here, monkeypatch):
    """Closed and not yet renamed: another process that looks for abandoned files then finds it locked."""
    rename = os.replace

    def late(temporary, path):
        atomic._remove_abandoned(here)
        rename(temporary, path)

    monkeypatch.setattr("fastq.system.atomic.os.replace", late)
    replace(here)
    assert os.listdir() == ["out"]


@needs_locks
def test_a_file_that_was_taken_for_abandoned_is_made_again(here, monkeypatch):
    """Another process may look between the moment when it is made and the moment when it is locked."""
    lock, calls = atomic.fcntl.flock, []

    def late(file, mode):
        calls.append(mode)
        if len(calls) == 1:
            atomic._remove_abandoned(here)
            assert os.listdir() == []
        lock(file, mode)

    monkeypatch.setattr("fastq.system.atomic.fcntl.flock", late)
    replace(here)
    assert os.listdir() == ["out"]
    assert len(calls) == 3


@needs_locks
def test_what_is_not_ours_stays(here, monkeypatch):
    kept = [".fastq-0123456789abcdef.part.x", ".fastq-0123456789ABCDEF.part", "x.part", ".fastq-.part", "target"]
    for name in kept:
        (here / name).write_bytes(b"kept")
    os.mkfifo(".fastq-0000000000000000.part")
    os.mkdir(".fastq-0000000000000001.part")
    os.symlink("target", ".fastq-0000000000000002.part")
    before = sorted(os.listdir())
    replace(here)
    assert sorted(os.listdir()) == sorted([*before, "out"])
    (here / ABANDONED).write_bytes(b"half")
    monkeypatch.setattr("fastq.system.atomic.os.geteuid", lambda: os.getuid() + 1)
    replace(here)
    assert (here / ABANDONED).read_bytes() == b"half"  # another user's


@needs_locks
def test_a_file_system_without_locks(here, monkeypatch):
    def refuse(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fastq.system.atomic.fcntl.flock", refuse)
    (here / ABANDONED).write_bytes(b"half")
    replace(here)
    assert sorted(os.listdir()) == sorted([ABANDONED, "out"])
