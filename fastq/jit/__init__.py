"""Compile functions with Numba once, keep their machine code on disk, and call them by address."""

from fastq.jit.compile import c_function, cache_directory, kernel
from fastq.jit.compiler import OPTIONS
from fastq.jit.functions import intrinsic, njit, specialize

__all__ = ["OPTIONS", "c_function", "cache_directory", "intrinsic", "kernel", "njit", "specialize"]
