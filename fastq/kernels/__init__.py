"""Loops over valid contiguous memory, compiled on first use; they know nothing of arrays, axes or formats.

A kernel returns bits of what it saw.
"""

import math

import fastq.jit.digest  # noqa: F401  before other sources, so that an edit meanwhile saves no old code as its own

SAW_NAN = 1
SAW_INFINITE_RANGE = 2
SAW_OUT_OF_RANGE = 4


def group_of(bits: int) -> int:
    """Return the least number of codes of so many bits that fills whole bytes."""
    return 8 // math.gcd(bits, 8)
