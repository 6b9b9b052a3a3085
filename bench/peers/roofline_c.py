"""The limit that a C program with intrinsics reaches: roofline.c compiled for this CPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from .. import data
from ..calls import SCALE, ZERO_POINT
from ..cases import Case
from . import Runner, own_threads
from .roofline import Kernel, moved

SOURCE = Path(__file__).with_name("roofline.c")
# bytes; it starts its threads at each call, 30 us
PARALLEL_FROM = 1 << 21
# operations and variants of the loops of roofline.c, in its order
LOOPS = (
    *(("quantize_linear", variant) for variant in ("store", "store, prefetch", "stream")),
    *(("dequantize_linear", variant) for variant in ("store", "stream", "stream, prefetch")),
    *(("fake_quantize", variant) for variant in ("store", "stream", "stream, prefetch")),
    *(("minmax", variant) for variant in ("read", "read, prefetch")),
)


@cache
def library() -> ctypes.CDLL:
    """Compile and load; OSError if there is no C compiler or the CPU has no AVX-512, with the compiler's words."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "roofline.so"
        compiler = os.environ.get("CC", "gcc")
        command = [compiler, "-O3", "-march=native", "-pthread", "-shared", "-fPIC", "-o", str(target), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"roofline.c needs a C compiler and AVX-512: {done.stderr.strip().splitlines()[:1]}")
        return ctypes.CDLL(str(target))


def move(reads: int, writes: int, streaming: bool) -> Kernel:
    """Bind the C function as a kernel of roofline.py is called."""
    run = library().roofline_move
    run.restype = ctypes.c_int64
    counts = [ctypes.c_size_t(reads), ctypes.c_size_t(writes), int(streaming)]

    def kernel(source: int, target: int, steps: int, threads: int) -> int:
        found: int = run(ctypes.c_void_p(source), ctypes.c_void_p(target), *counts, ctypes.c_size_t(steps), threads)
        return found

    return kernel


def computed(which: int, case: Case) -> Runner:
    o, run, operation = data.operands(case), library().roofline_run, case.work.operation
    made = "codes" if operation == "quantize_linear" else "values"
    source, out, bounds = o.first, data.out(case, made), np.zeros(2, np.float32)
    arguments = (
        which,
        ctypes.c_void_p(source.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_size_t(source.size),
        ctypes.c_float(SCALE),
        ZERO_POINT,
        own_threads(),
        ctypes.c_void_p(bounds.ctypes.data),
    )

    def call() -> None:
        if run(*arguments):
            raise OSError("roofline_run refused its arguments")

    results = {"lo": bounds[:1], "hi": bounds[1:]} if operation == "minmax" else {made: out}
    return Runner(call, lambda: results, keep=(source, out, bounds))


def of_case(case: Case, variant: str) -> Runner:
    if variant.startswith("move"):
        return moved(move, PARALLEL_FROM, variant == "move, stream", case)
    return computed(LOOPS.index((case.work.operation, variant)), case)
