"""Long pieces of Python code in processes of their own, which say how far they are and what went wrong."""

import os
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

from subprocesses import SETUP, start

# what a program can use in addition to SETUP: `step` says that so much was done, `failed` that something was wrong
REPORTS = """
import faulthandler, random
faulthandler.enable()

def step(count=1):
    os.write(1, f"+{count}\\n".encode())  # at once, whichever threads do so

def failed(why):
    os.write(1, f"!{why}\\n".encode())

def attempted(check):
    "Call a check; what it raises is a failure."
    try:
        check()
    except Exception as error:
        failed("".join(traceback.format_exception(error)[-2:]).replace(chr(10), " "))

rng = random.Random(int(os.environ.get("SEED", 0)))
"""

# what compiles one function after the other; a module without sources is not kept on disk
COMPILE_MORE = """
import itertools
from fastq.system import imports

def compile_more(goes_on=lambda: True):
    jit = imports.module("fastq.engine.jit")  # which has Numba: for imports of others than fastq no fork waits
    from numba import int64, types
    for k in itertools.takewhile(lambda k: goes_on(), itertools.count()):
        names = {"__name__": "nowhere"}
        exec(f"def add{k}(p, n):\\n    return p[0] + n + {k}", names)
        jit.kernel(names[f"add{k}"], int64, types.CPointer(int64), int64)
"""


def follow(code, advance=lambda count: None, *, setup=SETUP, timeout=3600, **environment):
    """Run a program; the list of errors, and of other lines that it printed."""
    process = start(code, setup=setup + REPORTS, **environment)
    watchdog = threading.Timer(timeout, os.killpg, [process.pid, signal.SIGABRT])  # faulthandler prints where it hangs
    watchdog.start()
    wrong, printed = [], []
    with process, ThreadPoolExecutor(1) as reader:
        errors = reader.submit(process.stderr.read)
        for line in process.stdout:
            if line.startswith("+"):
                advance(int(line[1:]))
            elif line.startswith("!"):
                wrong.append(line[1:].strip())
            else:
                printed.append(line.strip())
    watchdog.cancel()
    if process.returncode or errors.result():
        wrong.append(f"exit code {process.returncode}: {errors.result()}")
    return wrong, printed


def row(kind, what, times, wrong):
    """One line of the table."""
    for each in wrong[:20]:
        print(f"{kind}, {what}: {each}", flush=True)
    return {"kind": kind, "what": what, "times": times, "failures": len(wrong)}


def skipped(kind, what, why):
    """Say what was not run and why; no line of the table."""
    print(f"{kind}, {what}: not run, {why}", flush=True)
    return []


def can_mount():
    """Whether this user may mount a small disk in a namespace of its own."""
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True, check=False).returncode == 0
