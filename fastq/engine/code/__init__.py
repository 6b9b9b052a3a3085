"""Machine code: where it is found before any is compiled. Nothing here needs Numba."""

from fastq.engine.code.shipped import code, shipped_functions
from fastq.engine.code.stored import code_folder, refusals, stored_code

__all__ = ["code", "code_folder", "refusals", "shipped_functions", "stored_code"]
