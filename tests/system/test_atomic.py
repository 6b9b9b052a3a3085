"""Whole files: errors that are told, temporary files of processes that were killed, locks."""

import os

import pytest

from fastq.system import atomic

ABANDONED = ".fastq-0123456789abcdef.part"


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
    # contract 28.6
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
    # contract 28.6
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
