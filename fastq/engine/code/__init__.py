"""Machine code: where it is found before any is compiled. Nothing here needs Numba."""

from fastq.engine.code.shipped import found_functions, level, shipped_or_compiled, use_native
from fastq.engine.code.stored import code_folder, refusals, stored_code

__all__ = [
    "code_folder",
    "found_functions",
    "level",
    "refusals",
    "shipped_or_compiled",
    "stored_code",
    "use_native",
]
