"""Machine code: where it is found before any is compiled. Nothing here needs Numba."""

from fastq.engine.code.shipped import code, level, shipped_functions, use_native
from fastq.engine.code.stored import code_folder, refusals, stored_code

__all__ = ["code", "code_folder", "level", "refusals", "shipped_functions", "stored_code", "use_native"]
