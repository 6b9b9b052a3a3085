"""Conversions of model directories that end early, and go on when they are repeated: stopped, out of disk, changed."""

import json
import mmap
import os
import re
import shutil
import subprocess
import sys

import pytest
from commands import invoke, refused, run, told
from model_folders import INDEX, contents

from fastq.tools.checkpoints.converting import convert
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.journal import JOURNAL
from fastq.tools.checkpoints.quantization import Quantization
from fastq.tools.checkpoints.rules import Rules
from fastq.tools.layouts.schemes import as_scheme

OPTIONS = ("--scheme", "W4A16", "--group-size", "32")


class Stop(Exception):
    pass


@pytest.fixture
def interrupted(model, tmp_path):
    """What converts until some tensors are done, and returns the folder."""

    def convert_until(after):
        done = 0

        def progress(nbytes, count):
            nonlocal done
            done += count
            if done == after:
                raise Stop

        scheme = as_scheme("W4A16").with_options(32, None)
        with pytest.raises(Stop):
            convert(Quantization(ModelFolder.open(model), Rules(scheme)), tmp_path / "out", progress=progress)
        return tmp_path / "out"

    return convert_until


@pytest.mark.parametrize("after", [1, 5, 6, 10])
def test_an_interrupted_conversion_goes_on(model, quantized, interrupted, after):
    out = interrupted(after)
    finished = {path.name: path.stat().st_ino for path in out.glob("*.safetensors")}
    assert len(finished) == (after > 5)
    assert not (out / INDEX).exists()
    result = invoke("convert", model, out, *OPTIONS)
    assert (result.exit_code, result.stdout) == (0, quantized[1])
    assert (f"{out}: 1 of 2 shards are finished already: continuing\n" in result.stderr) == (after > 5)
    assert contents(out) == contents(quantized[0])
    assert all((out / name).stat().st_ino == inode for name, inode in finished.items())


def test_a_finished_shard_that_was_damaged_is_written_again(model, quantized, interrupted):
    out = interrupted(6)
    (shard,) = out.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    run("convert", model, out, *OPTIONS)
    assert contents(out) == contents(quantized[0])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "job": "x", "shards": {"a": 1}}', "\0"])
def test_a_damaged_journal_is_no_journal(model, interrupted, text):
    out = interrupted(6)
    (out / JOURNAL).write_text(text)
    assert "is not empty; --force" in refused("convert", model, out, *OPTIONS)


def test_other_options_do_not_go_on_with_it(model, interrupted):
    line = refused("convert", model, interrupted(6), "--scheme", "W4A16", "--group-size", "64")
    assert "unfinished conversion of something else; --force" in line


def test_a_file_that_is_put_next_to_it_is_not_removed_unasked(model, quantized, interrupted):
    out = interrupted(6)
    mine = out / "mine.safetensors"
    mine.write_bytes(b"mine")
    line = refused("convert", model, out, *OPTIONS)
    assert "mine.safetensors is not part of the result; --force removes it" in line
    assert mine.read_bytes() == b"mine"
    run("convert", model, out, *OPTIONS, "--force")
    assert contents(out) == contents(quantized[0])


def test_advice_after_a_failure_can_be_followed(model, interrupted):
    """A failure in the first shard leaves a journal alone: other options begin there as in an empty folder."""
    out = interrupted(1)
    assert [path.name for path in out.iterdir()] == [JOURNAL]
    run("convert", model, out, "--scheme", "W8A8")
    assert not (out / JOURNAL).exists()


def test_force_replaces(model, quantized, interrupted):
    out = interrupted(6)
    (out / "config.json").write_text("old")
    run("convert", model, out, *OPTIONS, "--force")
    assert contents(out) == contents(quantized[0])


def test_disk_full(model, tmp_path, monkeypatch):
    def full(self, name, data, offset=0):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastq.tools.files.safetensors_files.SafetensorsWriter.write_raw", full)
    line = refused("convert", model, tmp_path / "out", "--scheme", "W8A8")
    assert "No space left on device; finished shards stay" in line
    assert [path.name for path in (tmp_path / "out").iterdir()] == [JOURNAL]


def is_half_of_nothing(out, expected):
    """Whether what a full disk left is finished shards, other whole files and the journal, and no index."""
    left = contents(out) if out.exists() else {}
    left.pop(JOURNAL, None)
    return INDEX not in left and all(expected.get(name) == data for name, data in left.items())


@pytest.fixture
def small_disk(tmp_path):
    """A folder that is a file system of its own, and what changes its size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "none", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small file system is refused: {mounted.stderr.strip()}")

    def resize(nbytes):
        subprocess.run(["mount", "-o", f"remount,size={nbytes}", folder], check=True)

    yield folder, resize
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow("mounts a file system")
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("mount") is None, reason="mounts a tmpfs, which Linux has")
def test_a_disk_that_is_full(model, quantized, small_disk):
    (folder, resize), expected, begun = small_disk, contents(quantized[0]), 0
    whole = sum(-(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE for data in expected.values())
    for size in range(mmap.PAGESIZE, whole, 2 * mmap.PAGESIZE):
        out = folder / f"{size}"
        resize(size)
        line = refused("convert", model, out, *OPTIONS)
        assert "No space left on device; finished shards stay, and the same command continues from there" in line
        assert is_half_of_nothing(out, expected), size
        begun += len(list(out.glob("*.safetensors")))
        resize(2 * whole)
        run("convert", model, out, *OPTIONS)
        assert contents(out) == expected
        shutil.rmtree(out)
    assert begun > 2


@pytest.mark.slow("starts processes")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of files are of POSIX")
def test_files_that_may_not_grow(model, quantized, tmp_path):
    """As under a quota: a file may have a number of bytes, and no more."""
    import resource

    code, out, expected = "from fastq.tools.cli.command import main; main()", tmp_path / "out", contents(quantized[0])
    command = [sys.executable, "-c", code, "convert", str(model), str(out), *OPTIONS]
    largest = max(map(len, expected.values()))
    for limit in (100, largest // 2, largest - 1):
        done = subprocess.run(
            command,
            preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1, done.stderr
        more = "; finished shards stay" if limit > 100 else "\n"  # which is less than the journal takes
        assert f"File too large{more}" in done.stderr
        assert (out / JOURNAL).exists() == (limit > 100)
        assert is_half_of_nothing(out, expected), limit
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert contents(out) == expected


def test_a_conversion_begun_by_another_version_starts_anew(model, quantized, interrupted):
    out = interrupted(6)
    journal = json.loads((out / JOURNAL).read_text())
    shards = {path.name: path.stat().st_ino for path in out.glob("*.safetensors")}
    (out / JOURNAL).write_text(json.dumps(journal | {"program": "0.0.1"}))
    said = told("convert", model, out, *OPTIONS, exit_code=0)
    assert re.search(r"out was begun by fastq 0\.0\.1, this is .*: starting again\n", said)
    assert contents(out) == contents(quantized[0])
    assert all((out / name).stat().st_ino != inode for name, inode in shards.items())
