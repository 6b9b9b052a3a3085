"""Functions of tests as C functions, by the compiler of kernels; none is kept on disk."""

import ctypes

import numpy as np
from numba import types

from fastq.engine.code.loading import in_memory
from fastq.engine.jit import traced
from fastq.engine.jit.library import compile_library
from fastq.engine.jit.options import compiling


class CFunction:
    """A function that returns nothing, compiled for these types of arguments.

    Attributes
    ----------
    llvm : str
        LLVM IR after optimization.
    """

    def __init__(self, function, *arguments):
        body = traced(function)

        def entry(*words):
            body(*words)
            return 0

        with compiling():
            library = compile_library(entry, types.int64, arguments)
            self.llvm = library.llvm()
            address = in_memory(library.machine_code())
        kinds = [np.ctypeslib.as_ctypes_type(np.dtype(str(kind))) for kind in arguments]
        self._call = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(address)

    def __call__(self, *arguments):
        """Call it, with numbers and addresses."""
        self._call(*arguments)
