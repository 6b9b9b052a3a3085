"""Machine code: where it is found before any is compiled. Nothing here needs Numba."""

from fastq.engine.code.shipped import level, shipped_functions, shipped_or_compiled, use_native
from fastq.engine.code.stored import code_folder, refusals, stored_code

__all__ = [
    "code_folder",
    "level",
    "refusals",
    "shipped_functions",
    "shipped_or_compiled",
    "stored_code",
    "use_native",
]
