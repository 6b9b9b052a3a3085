"""Loops over valid contiguous memory, compiled on first use; they know nothing of arrays, axes or formats.

A kernel returns bits of what it saw.
"""

SAW_NAN = 1
SAW_INFINITE_RANGE = 2
SAW_OUT_OF_RANGE = 4
