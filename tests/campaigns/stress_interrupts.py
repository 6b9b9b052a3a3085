"""Ctrl-C at random moments of processes that have just begun: first calls, which import and compile, and commands."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import stress_calls
from programs import row

FIRST_CALL = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import fastq

x = np.arange(-500, 500, dtype=np.float32)

def call():
    q = fastq.quantize(x, "int8")
    assert np.abs(q.dequantize() - x).max() <= q.scale / 2

try:
    os.write(1, b"begun")
    call()
    os.write(1, b" called")
    time.sleep(60)
    os.write(1, b" not interrupted")
except KeyboardInterrupt:
    call()
    os.write(1, b" right")
"""
# it says that it has begun when signals are handled, a millisecond or two after the interpreter has begun with it
COMMAND = """
import atexit, os
from fastq.tools.cli.command import main

register = atexit.register
atexit.register = lambda function: (os.write(1, b"begun"), register(function))
main()
"""
QUANTIZE = "quantize", "w.npy", "w.safetensors", "--force"
INTERRUPTED = 128 + signal.SIGINT, "Interrupted\n"


def _interrupted(code, arguments, folder, seconds, **environment):
    """Interrupt a process a number of seconds after it says that it has begun; exit code, output and errors."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which shells ignore in the background
    )
    process.stdout.read(5)
    if seconds is not None:
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors


def _first_call(folder, seconds, empty):
    """Interrupt a first call; what is wrong then, or whether it was the call."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {"NUMBA_CACHE_DIR": cache} if empty else {}
        found = _interrupted(FIRST_CALL, (), folder, seconds, **environment)
    return found[1] == " right", "" if found in ((0, " right", ""), (0, " called right", "")) else f"{seconds}: {found}"


def _command(folder, seconds, _):
    """Interrupt a command; what is wrong then, or whether it was it before its end."""
    code, output, errors = _interrupted(COMMAND, QUANTIZE, folder, seconds)
    left = sorted(os.listdir(folder))
    fits = (code, errors) in (INTERRUPTED, (0, "")) and set(left) <= {"w.npy", "w.safetensors"}
    return code != 0, "" if fits else f"{seconds}: {code} {output} {errors} {left}"


def _at_random_moments(what, attempt, count, progress, empty=False, whole=0.0):
    """Interrupt processes at moments of up to the time that one takes, which is interrupted at `whole`; a row."""
    advance, moments, wrong, interrupted = progress(what, count), random.Random(0), [], 0

    def attempted(moment):
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "w.npy", np.arange(1 << 12, dtype=np.float32).reshape(64, 64))
            begin = time.monotonic()
            result = attempt(folder, moment, empty)
            advance(1)
            return *result, time.monotonic() - begin

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        seconds = max(found[-1] for found in threads.map(attempted, [whole] * 4))
        for early, why, _ in threads.map(attempted, [moments.random() * seconds for _ in range(count - 4)]):
            interrupted += early
            wrong += [why] if why else []
    return row("interrupts", f"{what}, {interrupted:,} of them before its end", count, wrong)


def processes(scale, progress):
    """2,000 interrupts of first calls and of commands, each in a process of its own."""
    return [
        _at_random_moments(what, attempt, max(10, int(count * scale)), progress, **options)
        for what, attempt, count, options in (
            ("interrupts of a first call", _first_call, 1000, {}),
            ("interrupts of a first call that compiles", _first_call, 200, {"empty": True}),
            ("interrupts of fastq quantize", _command, 800, {"whole": None}),
        )
    ]


def interrupts(scale, progress):
    """4,000 interrupts in the middle of calls, of first calls and of commands."""
    return stress_calls.interrupts(scale, progress) + processes(scale, progress)
