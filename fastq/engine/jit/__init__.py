"""Compile functions: Python runs them on types and records the instructions, as ``jax.jit`` does.

Their machine code is made once by LLVM, kept on disk, and called by its address (`kernel`). Functions of others that
Numba compiles can call them, too (`numba_intrinsic`).
"""

from fastq.engine.jit.compile import Listing, functions_in_memory, kernel, listing
from fastq.engine.jit.constants import Constants
from fastq.engine.jit.functions import instruction, traced
from fastq.engine.jit.numba_calls import numba_intrinsic
from fastq.engine.jit.options import TARGET
from fastq.engine.jit.scalars import UntraceableError

__all__ = [
    "TARGET",
    "Constants",
    "Listing",
    "UntraceableError",
    "functions_in_memory",
    "instruction",
    "kernel",
    "listing",
    "numba_intrinsic",
    "traced",
]
