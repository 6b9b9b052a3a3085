"""Files: kill -9 while one is written, every byte changed, disks that are full or read-only, cold caches."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf_lies
import gguf_models
import hostile
import numpy as np
from click.testing import CliRunner
from programs import can_mount, follow, row, skipped
from safetensors.numpy import save_file
from subprocesses import HITS, SETUP, finish, start

from fastq.cli.app import cli
from fastq.io.gguf.container import open_gguf

# Quantizing over an old file is killed at random moments: in a forked child, which has all imported, so that most are
# in the middle of writing. What it leaves has to be gone after the next run.
KILLS = """
import signal
from pathlib import Path
import click.testing
from fastq.cli.app import cli

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


def contents(scale, progress):
    """Every lie of the catalogue, and files with each bit of their headers changed and cut off at each length."""
    rows, every = [], max(1, int(1 / scale))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "right.npy", np.arange(64, dtype=np.float32).reshape(8, 8))
        save_file({"w": np.arange(64, dtype=np.float32).reshape(8, 8)}, folder / "right.safetensors", {"a": "b"})
        quantized = folder / "quantized.safetensors"
        options = ["--dtype", "int4", "--asymmetric", "--block-size", "4"]
        arguments = ["quantize", str(folder / "right.safetensors"), str(quantized), *options]
        assert CliRunner().invoke(cli, arguments).exit_code == 0
        for command, path, out in (
            ("quantize", folder / "right.npy", "out.safetensors"),
            ("quantize", folder / "right.safetensors", "out.safetensors"),
            ("dequantize", quantized, "out.safetensors"),
            ("dequantize", quantized, "out.npy"),
        ):
            content = path.read_bytes()
            header = 128 if path.suffix == ".npy" else 8 + int.from_bytes(content[:8], "little")
            pieces = [*hostile.damaged(content, header)][::every]
            what = f"damaged {path.suffix} files, {command} to {Path(out).suffix}"
            advance, wrong = progress(what, len(pieces)), []
            for piece in pieces:
                why, _ = hostile.attempt(command, hostile.write(folder, f"in{path.suffix}", piece), folder / out)
                wrong += [why] if why else []
                advance(1)
            (folder / out).unlink()
            (folder / f"in{path.suffix}").unlink()
            rows.append(row("files", what, len(pieces), wrong))
        for what, suffix, files in (
            ("lies of .npy files", ".npy", hostile.npy_files()),
            ("lies of .safetensors files", ".safetensors", hostile.safetensors_files()),
            ("lies of records", ".safetensors", hostile.record_files(quantized)),
        ):
            command, wrong, count = "dequantize" if "records" in what else "quantize", [], 0
            for each, piece in files:
                source = hostile.write(folder, f"in{suffix}", piece)
                why, worked = hostile.attempt(command, source, folder / "out.safetensors")
                wrong += [f"{each}: {why or 'taken for right'}"] if why or (worked and command == "quantize") else []
                count += 1
            rows.append(row("files", what, count, wrong))
    return rows


def gguf_contents(scale, progress):
    """Every lie of the catalogue of GGUF files, each bit of a header changed, and a file cut off at each length."""
    options = ["--type", "Q8_0"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = gguf_models.write(folder / "right.gguf", gguf_models.MODELS["narrow"]).read_bytes()
        header = len(content) - sum(spec.nbytes for spec in open_gguf(folder / "right.gguf").tensors.values())
        pieces = [*hostile.damaged(content, header)][:: max(1, int(1 / scale))]
        lies = [content for _, content in gguf_lies.lies()]
        rows = []
        for what, files in (("damaged .gguf files", pieces), ("lies of .gguf files", lies)):
            advance, wrong = progress(what, len(files)), []
            for piece in files:
                why, worked = hostile.attempt(
                    "gguf", hostile.write(folder, "in.gguf", piece), folder / "out.gguf", options
                )
                wrong += [why or "taken for right"] if why or (worked and files is lies) else []
                advance(1)
            rows.append(row("files", what, len(files), wrong))
    return rows


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
    quantize += "from fastq_command import main; main()"
    cases = {
        "machine code, a disk of 64 KB": ("size=64k", "", check, 0, ""),
        "machine code, a full disk": ("size=64k", "cat /dev/zero > zeros 2> /dev/null;", check, 0, ""),
        "machine code, a read-only disk": ("size=64k", "mount -o remount,ro .;", check, 0, ""),
        "OUT, a disk of 64 KB": ("size=64k", "", quantize, 1, "Error: out.safetensors: No space left on device\n"),
        "OUT, a full disk": (
            "size=64k", "cat /dev/zero > zeros 2> /dev/null;", quantize, 1,
            "Error: out.safetensors: No space left on device\n",
        ),
        "OUT, a disk without room for names": (
            "size=1m,nr_inodes=1", "", quantize, 1, "Error: out.safetensors: No space left on device\n",
        ),
        "OUT, a read-only disk": (
            "size=64k", "mount -o remount,ro .;", quantize, 1, "Error: out.safetensors: Read-only file system\n",
        ),
    }  # fmt: skip
    advance, wrong = progress("full and read-only disks", len(cases)), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "in.npy", np.ones((400, 400), np.float32))
        (folder / "disk").mkdir(0o700)
        for what, (options, before, code, expected, error) in cases.items():
            disk = shlex.quote(str(folder / "disk"))
            list_files = "ls -A | grep -v zeros"
            script = f"mount -t tmpfs -o {options},mode=700 none {disk} && cd {disk} && {before}"
            script += f' "$@"; code=$?; {list_files}; exit $code'
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            if code is check:
                environment["NUMBA_CACHE_DIR"] = f"{folder / 'disk'}"
            command = [
                "unshare",
                "-m",
                "sh",
                "-c",
                script,
                "sh",
                sys.executable,
                "-P",
                "-c",
                code,
                str(folder / "in.npy"),
            ]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            left = [] if code is check else done.stdout.split()
            if (done.returncode, done.stderr, left) != (expected, error, []):
                wrong.append(f"{what}: exit code {done.returncode}, {done.stderr!r}, left {left}")
            advance(1)
    return [row("files", "full and read-only disks", len(cases), wrong)]


def files(scale, progress):
    """All but the cache."""
    return [each for work in (kills, contents, gguf_contents, disks) for each in work(scale, progress)]
