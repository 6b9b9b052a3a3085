"""The public functions in plain NumPy, written from the contract only: the fast ones must equal them bit for bit.

Arguments, results and errors are those of the functions of the same names in `fastq`. Nothing here depends on the
kernels or the layout. Parameters are expanded to one per element, so the memory needed is several times the input.
"""

from fastq.reference import gguf, operations
from fastq.reference.calibration import Calibrator
from fastq.reference.operations import *  # noqa: F403 (its `__all__` has the public functions)

__all__ = ["Calibrator", "gguf", *operations.__all__]
