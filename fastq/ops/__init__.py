"""The public functions: a docstring, and a call into dispatch."""

import sys

from fastq.system import lazy


def init() -> None:
    """Register with Numba, which calls this entry point before it compiles anything.

    Nothing happens before fastq's functions are imported, so that other users of Numba need not wait. Functions that
    are imported later are registered when they are looked up, see `fastq.__getattr__`.
    """
    if "fastq.ops.quantize" in sys.modules:
        lazy.module("fastq.ops.compiled")
