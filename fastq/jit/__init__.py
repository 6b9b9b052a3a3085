"""Compile functions with Numba once, keep their machine code on disk, and call them by address."""

from collections.abc import Callable
from typing import Any

from numba.core.extending import register_jitable

from fastq.jit.compile import OPTIONS, c_function, cache_directory, kernel
from fastq.jit.compiler import INLINED

__all__ = ["OPTIONS", "c_function", "cache_directory", "kernel", "njit"]


def njit(function: Callable[..., Any]) -> Any:
    """Make a function that compiled code calls and LLVM inlines."""
    return register_jitable(error_model="numpy", **INLINED)(function)
