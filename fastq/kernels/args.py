"""The numeric arguments of a kernel: one record, which the driver passes by its address."""

from __future__ import annotations

import numpy as np

# how results go past the cache: from registers; by way of the stack, where runs share lines with their neighbours; from
# registers those rows of columns that share none
STRAIGHT, STAGED, WHOLE_ROWS = 1, 2, 3

# Memory is (outer, length, inner), C order. Along `length` run blocks of `block` rows, the last one of each outer index
# perhaps shorter. Outer index o, block b, column i use parameter
# ((o // cycle * kept + o % kept) * blocks + b) * inner + i.
_FIELDS = [
    *((name, np.int64) for name in ("outer", "length", "inner", "block", "blocks", "cycle", "kept")),
    ("lowest", np.float64),  # first and last code in use
    ("highest", np.float64),
    ("tensor", np.float64),  # scale of the whole array, which scales of blocks are in units of
    ("streaming", np.int64),  # how results go past the cache, 0 if they do not
    ("outgrows_cache", np.int64),  # whether what is read and written does: then only wide rows are visited together
    ("repeat", np.int64),  # rows, or short runs, that are taken as one
    ("chunk", np.int64),  # elements whose errors are summed together
    ("size", np.int64),  # codes in all, where rows are repacked
    ("partials", np.int64),  # partial minima and maxima to merge, and how many numbers one lies after another
    ("partial_stride", np.int64),
    ("grid", np.int64),  # parts that a range is divided into where one is searched for, and how many are tried
    ("candidates", np.int64),
]
KERNEL_ARGS, ARG_NAMES = np.dtype(_FIELDS), tuple(name for name, _ in _FIELDS)

IN_TILE = {"streaming": 0}  # of a kernel whose launch is cut into tiles: its runs are short
IN_SQUARES = IN_TILE | {"chunk": 1 << 62}  # where it adds errors: to the same sums all that it gets at once
