"""Compile kernels of a dtype, or of formats, for AArch64 on any machine: a script that prints their origins, as JSON.

It makes calls as usual, but what they compile is never run: they return what was in memory.
"""

# ruff: noqa: E402 (the CPU and the target are set before what reads them is imported)
import functools
import itertools
import json
import os
import sys

os.environ |= {"NUMBA_CPU_NAME": "neoverse-n1", "NUMBA_CPU_FEATURES": "+neon,+fp-armv8", "NUMBA_NUM_THREADS": "4"}

from llvmlite import binding

TRIPLE = "aarch64-unknown-linux-gnu"
binding.initialize_all_targets()
binding.initialize_all_asmprinters()
binding.get_process_triple = lambda: TRIPLE
binding.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(TRIPLE))

import numpy as np

from fastq.engine import jit
from fastq.engine.jit.compile import _name
from fastq.engine.jit.library import compile_library
from fastq.engine.jit.options import compiling
from fastq.engine.runtime import boundary, threadpool

listings = []
places = itertools.count(1)


@functools.cache
def compiled(function, result, *arguments):
    with compiling():
        library = compile_library(getattr(function, "function", function), result, arguments)
    listings.append((_name(function, arguments), library.llvm(), library.assembly()))
    return next(places)


jit.kernel = compiled
boundary.python_function = lambda import_function: lambda *operands: 0  # the status of a launch
threadpool.pool_for = lambda threads: np.zeros(1, np.int64)

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import QTYPES

OPERATIONS = fastq.minmax, functools.partial(fastq.quantize, dtype="int8")
SHAPES_AND_OPTIONS = (
    ((64, 512), {}),
    ((2048, 2048), {"axis": 1}),  # in parts, which are merged
    ((64, 512), {"axis": 1, "block_size": 32}),
    ((64, 512), {"axis": 1, "block_size": 3}),
    ((4, 30, 5), {"axis": 1}),
)


def kernels(dtype, shapes):
    """Yield name, LLVM IR, assembly, and whether it is of minima and maxima alone, for each kernel of some shapes."""
    for operation, (shape, options) in itertools.product(OPERATIONS, SHAPES_AND_OPTIONS[:shapes]):
        listings.clear()
        operation(np.zeros(shape, dtype), **options)
        yield from ((*each, operation is fastq.minmax) for each in listings)


def written():
    """Write blocks of each format of GGUF, weighed and not."""
    x, importance = np.zeros((2, 512), np.float32), np.ones(512, np.float32)
    for (name, row), given in itertools.product(BLOCK_FORMATS.items(), (None, importance)):
        if given is not None or not row.needs_importance:
            fastq.gguf.quantize(x, name, importance=given)


def decoded():
    """Decode blocks of each format of GGUF."""
    for name, row in BLOCK_FORMATS.items():
        fastq.gguf.dequantize(np.zeros((2, 2 * row.nbytes), np.uint8), name)


def quantized():
    """Quantize to each format, and back."""
    x = np.ones((4, 512), np.float32)
    for name in QTYPES:
        fastq.quantize(x, name)
        fastq.dequantize(reference.quantize(x, name))  # what is computed here has no valid scales


def names(calls):
    """Return the names of the kernels that calls need."""
    calls()
    return [name for name, *_ in listings]


if __name__ == "__main__":
    kind, *shapes = sys.argv[1:]
    print(json.dumps(list(kernels(kind, int(*shapes))) if shapes else names(globals()[kind])))
