"""Loops over valid contiguous memory, compiled on first use; they know nothing of arrays, axes or conventions.

A kernel returns status bits, see `fastq.kernels.status`.
"""

import fastq.jit.digest  # noqa: F401  before other sources, so that an edit meanwhile saves no old code as its own
