"""Files: kill -9 while one is written, every byte changed, disks that are full or read-only, cold caches."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import commands
import gguf_lies
import gguf_models
import hostile
import numpy as np
from programs import can_mount, follow, row, skipped
from safetensors.numpy import save_file
from subprocesses import HITS, SETUP, finish, start

from fastq.tools.gguf_files.gguf_file import open_gguf

# Quantizing over an old file is killed at random moments: in a forked child, which has all imported, so that most are
# in the middle of writing. What it leaves has to be gone after the next run.
KILLS = """
import signal
from pathlib import Path
import click.testing
from fastq.tools.cli.app import cli

os.chdir(os.environ["FOLDER"])
command = ["quantize", "in.safetensors", "out.safetensors", "--force"]
quantize = lambda: click.testing.CliRunner().invoke(cli, command)
assert quantize().exit_code == 0
new, times = Path("out.safetensors").read_bytes(), []
for _ in range(3):
    start = time.perf_counter()
    quantize()
    times.append(time.perf_counter() - start)
longest, olds, news, strays = 1.5 * min(times), 0, 0, 0
names = ["in.safetensors", "out.safetensors"]
old = b"the old file"
"""


def kills(scale, progress):
    """200 runs of `fastq quantize` that kill -9 ends at random moments."""
    count = max(10, int(200 * scale))
    code = f"""
    for k in range({count}):
        Path("out.safetensors").write_bytes(old)
        pid = os.fork()
        if not pid:
            quantize()
            os._exit(0)
        time.sleep(rng.random() * longest)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        left = Path("out.safetensors").read_bytes()
        olds, news = olds + (left == old), news + (left == new)
        if left not in (old, new):
            failed(f"{{len(left)}} bytes, neither the old file nor the new one")
        strays += len(os.listdir()) > 2
        if k % 4 == 3:  # of several, all are removed
            if quantize().exit_code or sorted(os.listdir()) != names:
                failed(sorted(os.listdir()))
        step()
    print(olds, news, strays)
    """
    what = "kill -9 of fastq quantize"
    with tempfile.TemporaryDirectory() as folder:
        arrays = {f"t{k}": np.full((256, 256), k + 1, np.float32) for k in range(12)}
        save_file(arrays, Path(folder) / "in.safetensors")
        wrong, printed = follow(code, progress(what, count), setup=SETUP + KILLS, FOLDER=folder, NUMBA_NUM_THREADS=2)
    if printed and scale >= 0.1 and 0 in (counts := [int(n) for n in printed[0].split()]):
        wrong.append(f"no kill hit every phase: old, new and temporary files were left by {counts}")
    what += " (the old file stayed, the new one was there, a temporary one was left: {})".format(
        ", ".join(printed[0].split()) if printed else "?"
    )
    return [row("files", what, count, wrong)]


def _attempted(what, files, attempt, progress, are_lies=False):
    """Attempt each of some contents, which have names; a row. Lies have to be refused."""
    advance, wrong = progress(what, len(files)), []
    for name, content in files:
        why, worked = attempt(content)
        wrong += [f"{name}: {why or 'taken for right'}"] if why or (worked and are_lies) else []
        advance(1)
    return row("files", what, len(files), wrong)


def _damaged(content, header, scale):
    return list(enumerate(hostile.damaged(content, header)))[:: max(1, int(1 / scale))]


def contents(scale, progress):
    """Every lie of the catalogue, and files with each bit of their headers changed and cut off at each length."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "right.npy", np.arange(64, dtype=np.float32).reshape(8, 8))
        save_file({"w": np.arange(64, dtype=np.float32).reshape(8, 8)}, folder / "right.safetensors", {"a": "b"})
        quantized = folder / "quantized.safetensors"
        scheme = "--dtype", "int4", "--asymmetric", "--block-size", "4"
        commands.run("quantize", folder / "right.safetensors", quantized, *scheme)

        def attempt(command, suffix, out="out.safetensors"):
            return partial(hostile.attempt, command, source=folder / f"in{suffix}", out=folder / out)

        for command, path, out in (
            ("quantize", folder / "right.npy", "out.safetensors"),
            ("quantize", folder / "right.safetensors", "out.safetensors"),
            ("dequantize", quantized, "out.safetensors"),
            ("dequantize", quantized, "out.npy"),
        ):
            content = path.read_bytes()
            header = 128 if path.suffix == ".npy" else 8 + int.from_bytes(content[:8], "little")
            what = f"damaged {path.suffix} files, {command} to {Path(out).suffix}"
            pieces = _damaged(content, header, scale)
            rows.append(_attempted(what, pieces, attempt(command, path.suffix, out), progress))
        for what, suffix, files in (
            ("lies of .npy files", ".npy", hostile.npy_files()),
            ("lies of .safetensors files", ".safetensors", hostile.safetensors_files()),
            ("lies of records", ".safetensors", hostile.record_files(quantized)),
        ):
            command = "dequantize" if "records" in what else "quantize"
            rows.append(_attempted(what, [*files], attempt(command, suffix), progress, command == "quantize"))
    return rows


def gguf_contents(scale, progress):
    """Every lie of the catalogue of GGUF files, each bit of a header changed, and a file cut off at each length."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = gguf_models.write(folder / "right.gguf", gguf_models.MODELS["narrow"]).read_bytes()
        header = len(content) - sum(spec.nbytes for spec in open_gguf(folder / "right.gguf").tensors.values())
        files = {"source": folder / "in.gguf", "out": folder / "out.gguf"}
        attempt = partial(hostile.attempt, "gguf", **files, options=["--type", "Q8_0"])
        pieces = _damaged(content, header, scale)
        return [
            _attempted("damaged .gguf files", pieces, attempt, progress),
            _attempted("lies of .gguf files", [*gguf_lies.lies()], attempt, progress, are_lies=True),
        ]


def cold(scale, progress):
    """32 processes that find an empty cache at once."""
    count = max(2, int(32 * scale))
    code = """
    from pathlib import Path
    Path(os.environ["READY"]).touch()
    while not Path(os.environ["GO"]).exists():
        time.sleep(0.01)
    Case(1000).check()
    """
    what, wrong = "processes at once with an empty cache", []
    advance = progress(what, count)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ready = [folder / f"ready{k}" for k in range(count)]
        processes = [start(code, NUMBA_CACHE_DIR=folder / "cache", GO=folder / "go", READY=path) for path in ready]
        while not all(path.exists() for path in ready) and all(each.poll() is None for each in processes):
            time.sleep(0.05)
        (folder / "go").touch()
        for process in processes:
            try:
                finish(process, timeout=600)
            except AssertionError as error:
                wrong.append(str(error))
            advance(1)
        left = [path.name for path in (folder / "cache").rglob("*") if path.is_file() and path.suffix != ".code"]
        wrong += [f"left behind: {left}"] if left else []
    return [row("cache", what, count, wrong)]


def disks(scale, progress):
    """Small disks that are full or read-only, for machine code and for OUT; needs the right to mount."""
    if not can_mount():
        return skipped("files", "full and read-only disks", "this user may not mount")
    check = SETUP + HITS + "\nCase(1000).check()\n"
    quantize = "import sys; sys.argv[1:] = ['quantize', sys.argv[1], 'out.safetensors', '--force']\n"
    quantize += "from fastq.tools.cli.command import main; main()"
    full, read_only = "cat /dev/zero > zeros 2> /dev/null;", "mount -o remount,ro .;"
    no_space, not_here = "No space left on device", "Read-only file system"
    cases = {
        "machine code, a disk of 64 KB": ("size=64k", "", ""),
        "machine code, a full disk": ("size=64k", full, ""),
        "machine code, a read-only disk": ("size=64k", read_only, ""),
        "OUT, a disk of 64 KB": ("size=64k", "", no_space),
        "OUT, a full disk": ("size=64k", full, no_space),
        "OUT, a disk without room for names": ("size=1m,nr_inodes=1", "", no_space),
        "OUT, a read-only disk": ("size=64k", read_only, not_here),
    }
    advance, wrong = progress("full and read-only disks", len(cases)), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "in.npy", np.ones((400, 400), np.float32))
        (folder / "disk").mkdir(0o700)
        for what, (options, before, why) in cases.items():
            disk = shlex.quote(str(folder / "disk"))
            script = f"mount -t tmpfs -o {options},mode=700 none {disk} && cd {disk} && {before}"
            script += ' "$@"; code=$?; ls -A | grep -v zeros; exit $code'
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            if not why:
                environment["NUMBA_CACHE_DIR"] = f"{folder / 'disk'}"
            python = [sys.executable, "-P", "-c", quantize if why else check, str(folder / "in.npy")]
            command = ["unshare", "-m", "sh", "-c", script, "sh", *python]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            left, error = done.stdout.split() if why else [], f"Error: out.safetensors: {why}\n" if why else ""
            if (done.returncode, done.stderr, left) != (bool(why), error, []):
                wrong.append(f"{what}: exit code {done.returncode}, {done.stderr!r}, left {left}")
            advance(1)
    return [row("files", "full and read-only disks", len(cases), wrong)]


def files(scale, progress):
    """All but the cache."""
    return [each for work in (kills, contents, gguf_contents, disks) for each in work(scale, progress)]
