"""The operations: for each a public function, and below it what resolves its calls to a launch plan."""

import sys

from fastq.system.imports import undisturbed


def init() -> None:
    """Register with Numba, which calls this entry point before it compiles anything.

    Nothing happens before fastq's functions are imported, so that other users of Numba need not wait. Functions that
    are imported later are registered when they are looked up, see `fastq.__getattr__`.
    """
    if "fastq.ops.quantize" in sys.modules:
        with undisturbed():
            from fastq.ops.numba_overloads import register_public_functions
        register_public_functions()
