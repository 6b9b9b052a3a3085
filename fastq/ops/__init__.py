"""The operations: for each a public function, and below it what resolves its calls to a launch plan."""

import sys

from fastq.system.imports import undisturbed

# modules with functions that compiled code can call, or is told what to call in place of
_WITH_FUNCTIONS = ("bitround", "compare", "dequantize", "minmax", "nest_scale", "packing", "quantize", "requantize")


def init() -> None:
    """Register with Numba, which calls this entry point before it compiles anything.

    Nothing happens before fastq's functions are imported, so that other users of Numba need not wait. Functions that
    are imported later are registered when they are looked up, see `fastq.__getattr__`.
    """
    if any(f"fastq.ops.{name}" in sys.modules for name in _WITH_FUNCTIONS):
        with undisturbed():
            from fastq.ops.numba_overloads import register_public_functions
        register_public_functions()
