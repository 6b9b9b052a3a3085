"""The numeric arguments of kernels: one record, passed by its address. A kernel reads only its own fields."""

from __future__ import annotations

import numpy as np

# Memory is (outer, length, inner), C order. Along `length` run blocks of `block` rows, the last one of each outer index
# perhaps shorter. Outer index o, block b, column i use parameter
# ((o // cycle * kept_outer + o % kept_outer) * blocks + b) * inner + i.
# `Layout` of fastq/plan/layout.py has an example.
_LAYOUT = [(name, np.int64) for name in ("outer", "length", "inner", "block", "blocks", "cycle", "kept_outer")]

_CODES = [
    ("lowest", np.float64),  # first and last code in use
    ("highest", np.float64),
    ("tensor", np.float64),  # scale of the whole array, which scales of blocks are in units of
]

_LOOPS = [
    ("streaming", np.int64),  # how results go past the cache, 0 if they do not
    ("outgrows_cache", np.int64),  # whether what is read and written does: then only wide rows are visited together
    ("merged", np.int64),  # rows, or short runs, that are visited as one
    ("partials", np.int64),  # partial results of threads that are merged
    ("partial_stride", np.int64),  # numbers from one partial result to the next
]

_COMPARE = [
    ("chunk", np.int64),  # elements whose errors are summed together
]

_HISTOGRAM = [
    ("bins", np.int64),  # of a histogram on either side of 0
    ("bin_bits", np.int64),  # of a mantissa, which tell the bins of an octave apart
    ("counts", np.int64),  # of a part in a partial result; also of bits
    ("interleaved", np.int64),  # histograms of a part, in which neighbouring elements are counted
]

_BITROUND = [
    ("dropped", np.int64),  # bits of the significand
]

_BINARIZE = [
    ("threshold", np.float64),  # what values are compared with
]

_PACKING = [
    ("nan_code", np.int64),  # the integer that NaN becomes
    ("first_gap", np.int64),  # integers that become NaN, which may be the same
    ("second_gap", np.int64),
]

_RANGE_SEARCH = [
    ("candidates", np.int64),  # ranges that are tried, times the lanes that each has
    ("factors", np.int64),  # the address of their factors of the whole range, numbers of the compute type for each lane
    ("factor_stride", np.int64),  # how many of these are in a row
    ("weights", np.int64),  # the address of the weights of elements, float32
    ("period", np.int64),  # elements after which weights repeat, 0 if there is one for all
    ("stages", np.int64),  # searches, each around the best range of the one before, with another row of factors
    ("is_around", np.int64),  # whether errors are those around that range
]

_GGUF = [
    ("row_blocks", np.int64),  # blocks of a row
    ("alike_rows", np.int64),  # rows that share a row of the importance of columns
]

_FIELDS = [
    *_LAYOUT,
    *_CODES,
    *_LOOPS,
    *_COMPARE,
    *_HISTOGRAM,
    *_BITROUND,
    *_BINARIZE,
    *_PACKING,
    *_RANGE_SEARCH,
    *_GGUF,
]
KERNEL_ARGS = np.dtype(_FIELDS)
ARG_NAMES = tuple(name for name, _ in _FIELDS)

IN_TILE = {"streaming": 0}  # of a kernel whose launch is cut into tiles: its runs are short
IN_SQUARES = IN_TILE | {"chunk": 1 << 62}  # where it adds errors: to the same sums all that it gets at once
