"""The limit of the machine: roofline.c compiled for this CPU, as one more system beside the peers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import works
from works import Array, Results, Runner

SOURCE = Path(__file__).with_name("roofline.c")
LOOPS = {
    ("quantize_linear", "store"): 0,
    ("quantize_linear", "store, prefetch"): 1,
    ("quantize_linear", "stream"): 2,
    ("dequantize_linear", "store"): 3,
    ("dequantize_linear", "stream"): 4,
    ("dequantize_linear", "stream, prefetch"): 5,
    ("fake_quantize", "store"): 6,
    ("fake_quantize", "stream"): 7,
    ("fake_quantize", "stream, prefetch"): 8,
    ("minmax", "read"): 9,
    ("minmax", "read, prefetch"): 10,
}
THREADS = 2


@cache
def library() -> ctypes.CDLL:
    """Compile and load; a compiler or CPU that cannot is an OSError with the compiler's words."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "roofline.so"
        compiler = os.environ.get("CC", "gcc")
        command = [compiler, "-O3", "-march=native", "-pthread", "-shared", "-fPIC", "-o", str(target), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"roofline.c needs a C compiler and AVX-512: {done.stderr.strip().splitlines()[:1]}")
        return ctypes.CDLL(str(target))


def runner(work: str, variant: str, size: str) -> Runner:
    which, run = LOOPS[work, variant], library().roofline_run
    source = (works.flat_codes if work == "dequantize_linear" else works.flat)(size, aligned=True)
    out = works.like(source, np.int8 if work == "quantize_linear" else np.float32, aligned=True)
    bounds = np.zeros(2, np.float32)
    arguments = (
        which,
        ctypes.c_void_p(source.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_size_t(source.size),
        ctypes.c_float(works.SCALE),
        works.ZERO_POINT,
        THREADS,
        ctypes.c_void_p(bounds.ctypes.data),
    )

    def call() -> None:
        if run(*arguments):
            raise OSError("roofline_run refused its arguments")

    return Runner(call, lambda: _results(work, out, bounds), keep=(source, out, bounds))


def _results(work: str, out: Array, bounds: Array) -> Results:
    if work == "minmax":
        return {"lo": bounds[0], "hi": bounds[1]}
    return {"codes" if work == "quantize_linear" else "values": out}


BUILDERS: dict[tuple[str, str], Callable[[str], Runner]] = {key: partial(runner, *key) for key in LOOPS}
