"""ggml's C, through the shared libraries of llama-cpp-python, the rows shared out to a pool of threads.

The functions work on one row and have no threads of their own; ctypes lets go of the interpreter lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from fastq.formats.gguf import BLOCK_FORMATS

from ..calls import Operands, empty
from ..cases import SEARCHED
from ..verify import EXACT
from . import Runner, own_threads
from .gguf_py import NEAREST, STEPS, exactness, same_blocks

# with intrinsics where there are any, else the portable one
NAMES = {"quantize": ("quantize_row_{}", "quantize_row_{}_ref"), "dequantize": ("dequantize_row_{}",)}
C_ARGUMENTS = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]


@cache
def function(kind: str, qtype: str) -> Any:
    """Find a row function in one of the libraries."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    libraries = [ctypes.CDLL(str(path)) for path in sorted(folder.glob("*ggml*"))]
    for name in NAMES[kind]:
        for library in libraries:
            symbol = name.format(qtype.lower().replace("_k", "_K"))
            if hasattr(library, symbol):
                found = getattr(library, symbol)
                found.argtypes, found.restype = C_ARGUMENTS, None
                return found
    raise OSError(f"no {kind} function for {qtype} in {folder}")


def chunk(qtype: str) -> Callable[[int, int, int], None]:
    """What quantizes models: for codebooks the row functions search less."""
    path = Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"
    quantize_chunk = ctypes.CDLL(str(path)).ggml_quantize_chunk
    quantize_chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    number = BLOCK_FORMATS[qtype].number
    return lambda x, out, count: quantize_chunk(number, x, out, 0, 1, count, None)


@cache
def threads_beside() -> ThreadPoolExecutor:
    """The threads in addition to the calling one."""
    return ThreadPoolExecutor(max(1, own_threads() - 1))


def spread(run: Any, source: np.ndarray, out: np.ndarray, blocks: int) -> Callable[[], None]:
    """Call with a share of the blocks in each thread."""
    threads = own_threads()
    pool = threads_beside()
    bounds = [blocks * k // threads for k in range(threads + 1)]
    strides = [array.nbytes // blocks for array in (source, out)]
    starts = [array.ctypes.data for array in (source, out)]
    values = next(array.size for array in (source, out) if array.dtype == np.float32) // blocks
    shares = [
        (*(start + first * stride for start, stride in zip(starts, strides, strict=True)), (last - first) * values)
        for first, last in pairwise(bounds)
    ]

    def call() -> None:
        others = [pool.submit(run, *share) for share in shares[1:]]
        run(*shares[0])
        for other in others:
            other.result()

    return call


def prepared(o: Operands, qtype: str = "") -> Runner:
    """Prepare the work into memory that is there, by a format of GGUF."""
    qtype = qtype or o.code
    form, rows = BLOCK_FORMATS[qtype], o.shape[:-1]
    if o.made == "values":
        out = empty(o.shape, np.float32, aligned=True)
        run, within = function("dequantize", qtype), exactness(qtype)
    else:
        out = empty((*rows, o.shape[-1] // form.size * form.nbytes), np.uint8, aligned=True)
        run, within = chunk(qtype) if qtype in SEARCHED else function("quantize", qtype), EXACT
    call = spread(run, o.first, out, prod(o.shape) // form.size)
    return Runner(call, lambda: {o.made: out}, within, keep=(o.first, out))


def quantize(o: Operands) -> Runner:
    from gguf import GGMLQuantizationType, quants

    qtype = NEAREST[o.code]
    made = prepared(o, qtype)
    values = partial(quants.dequantize, qtype=GGMLQuantizationType[qtype])
    return made._replace(results=lambda: {"values": values(made.results()["codes"])}, within=STEPS)


def dequantize(o: Operands) -> Runner:
    return prepared(replace(o, first=same_blocks(o)), NEAREST[o.code])


dequantize_linear = dequantize
