"""Machine code: where it is found before any is compiled. Nothing here needs Numba."""

from fastq.engine.code.folder import code_folder, refusal, stored_code
from fastq.engine.code.shipped import found_functions, level, use_native

__all__ = [
    "code_folder",
    "found_functions",
    "level",
    "refusal",
    "stored_code",
    "use_native",
]
