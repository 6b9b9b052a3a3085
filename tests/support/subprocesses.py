"""Python code in a process of its own, so that an abort or a hang there fails one test and not all of them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import fastq

SUPPORT = Path(__file__).parent  # the folder of modules that tests share

# what every piece of code can use
SETUP = """
import os, sys, threading, time, traceback
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import fastq
from fastq import reference

class Case:
    "One array, with the results of the reference."

    def __init__(self, size, seed=0):
        self.x = np.random.default_rng(seed).standard_normal(size, np.float32)
        self.expected = self.results(reference)

    def results(self, api):
        q = api.quantize(self.x, "int8")
        values = api.dequantize_linear(q.codes, q.scale, q.zero_point)
        return [q.codes, q.scale, q.zero_point, values, *api.minmax(self.x)]

    def check(self):
        for actual, expected in zip(self.results(fastq), self.expected, strict=True):
            assert actual.dtype == expected.dtype and actual.tobytes() == expected.tobytes()

def in_threads(count, work):
    "Call work in `count` threads at once; raise what one of them raises."
    ready = threading.Barrier(count)
    with ThreadPoolExecutor(count) as threads:
        for future in [threads.submit(lambda: (ready.wait(), work())) for _ in range(count)]:
            future.result()

def forked(work):
    "Call work in a forked child; the child's id."
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)

def join(*children):
    for pid in children:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == 0, f"a child ended with {code}"
"""

# somebody else's parallel function
USER = """
import numba

@numba.njit(parallel=True)
def user(x):
    total = 0.0
    for i in numba.prange(x.size):
        total += x[i]
    return total

ones = np.ones(1 << 16)
"""

# memory before a page that nothing may read
BEFORE_A_PAGE = """
import ctypes, mmap
libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE

def pages_before(pages):
    "Memory of `pages` pages and one that nothing may read, and the address where that begins."
    memory = mmap.mmap(-1, (pages + 1) * page)
    end = np.frombuffer(memory, np.uint8).ctypes.data + pages * page
    assert libc.mprotect(ctypes.c_void_p(end), page, 0) == 0
    return memory, end

def before_a_page(array):
    "A copy of an array that ends there."
    pages = -(-array.nbytes // page)
    memory, _ = pages_before(pages)
    placed = np.frombuffer(memory, array.dtype, array.size, pages * page - array.nbytes).reshape(array.shape)
    placed[...] = array
    return placed
"""

# after it, `hits` says of each kernel and driver whether it was loaded, or compiled
HITS = """
from fastq.engine.jit import compile as jit

compiled, loaded = [], []

def compile_library(*kernel, right=jit.compile_library):
    compiled.append(kernel)
    return right(*kernel)

def load_or_compile(*kernel, right=jit._load_or_compile):
    before = len(compiled)
    address = right(*kernel)
    loaded.append(int(len(compiled) == before))
    return address

jit.compile_library, jit._load_or_compile = compile_library, load_or_compile

def hits():
    return loaded
"""


def start(code, *, setup=SETUP, options=(), package=Path(fastq.__file__).parent, **environment):
    """Start Python on code, in a session of its own, with the kernels of all tests unless NUMBA_CACHE_DIR is given.

    What tests share can be imported there.
    """
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_NUM_THREADS"}
    env |= {name: str(value) for name, value in environment.items()}
    env["PYTHONPATH"] = os.pathsep.join([str(package.parent), str(SUPPORT)])
    env["PYTHONWARNINGS"] = "ignore:This process:DeprecationWarning"  # Python 3.12 on, at a fork of several threads
    return subprocess.Popen(
        [sys.executable, "-P", *options, "-c", setup + dedent(code)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process, timeout=60):
    """Output of a process that has to end with exit code 0 and without a word on stderr."""
    for _ in range(timeout // 5):  # in parts, since a machine that stands still for a minute does not hang
        try:
            output, errors = process.communicate(timeout=5)
            break
        except subprocess.TimeoutExpired:
            pass
    else:
        os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipes
        output, errors = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{output}\n{errors}")
    assert (process.returncode, errors) == (0, ""), f"exit code {process.returncode}\n{output}\n{errors}"
    return output


def run(code, timeout=60, **arguments):
    """Run Python on code; what it prints."""
    return finish(start(code, **arguments), timeout)
