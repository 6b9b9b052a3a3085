"""Compile functions with Numba once, keep their machine code on disk, and call them by address."""

from fastq.engine.jit.compile import Listing, functions_in_memory, kernel, listing
from fastq.engine.jit.constants import Constants
from fastq.engine.jit.functions import intrinsic, njit, overload, traced
from fastq.engine.jit.options import OPTIONS, TARGET
from fastq.engine.jit.scalars import UntraceableError

__all__ = [
    "OPTIONS",
    "TARGET",
    "Constants",
    "Listing",
    "UntraceableError",
    "functions_in_memory",
    "intrinsic",
    "kernel",
    "listing",
    "njit",
    "overload",
    "traced",
]
