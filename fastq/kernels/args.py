"""The arguments of kernels: numeric arguments, one record passed by its address; operands; sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fastq.system.cpu import REGISTER_BITS

# how results go past the cache: from registers; by way of the stack, where runs share lines with their neighbours; from
# registers those rows of columns that share none
STRAIGHT = 1
STAGED = 2
WHOLE_ROWS = 3
PIECE_BYTES = 1 << 13  # of results that are staged at a time: a quarter of the smallest L1 cache

# Most elements of a short run, which fill no register, except for `compare`: decision D27
LONGEST = 15
RUNS_TOGETHER = 64  # whose elements are visited as a row: whole lines of any type
BATCHED_REGISTERS = 16  # of a run at most whose parameters are prepared with those of others: decision D26
BLOCK_SIZES = (16, 32, 64, 128)  # elements in a block of the loop over blocks
COLUMN_REGISTERS = 4  # registers side by side: rows are read 256 bytes at a time, which keeps the prefetchers going
COLUMN_BYTES = COLUMN_REGISTERS * REGISTER_BITS // 8
# Elements at most of rows that are taken as one where many have the same parameters, which kernels repeat: see
# `rows_as_one` in fastq/plan/policy.py, and decision D38
MOST_ROW = 512
GGUF_GROUP = 16  # blocks whose parameters are computed side by side, one a lane

# sums of one chunk of errors: of error**2, x**2, |error|, |error| / |x|; largest |error| and |error| / |x|; how many x
# are 0, how many codes were clamped; each of them lane by lane, so that short runs need not add up lanes
TOTALS = 8
SUM_LANES = 8
AT_A_TIME = 8  # elements, which sums take as one Vec or two
MOST_ERROR = 2.0**53  # of a candidate of a search for ranges
# Bins are at least as wide as the smallest normal number of float64: 1 / width is a number too.
LEAST_EXPONENT = -1022
# Number of histograms in which neighbours are counted, so that no addition waits for one to the same bin: counting is
# unrolled for all of them.
PARTIALS = 4

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
    ("size", np.int64),  # codes in all, where rows are repacked; bits that are dropped where floats are rounded
    ("partials", np.int64),  # partial minima and maxima to merge, and how many numbers one lies after another
    ("partial_stride", np.int64),
    # where ranges are searched for: how many are tried, times the lanes that each has; the address of their shares of
    # the whole range, numbers of the type to compute in, one for each lane, and how many of them are in a row; the
    # address of the weights of elements, float32, and after how many elements they repeat, 0 if there is one for all;
    # the number of searches, each around the best range of the one before, with another row of shares; whether errors
    # are those around that range
    *((name, np.int64) for name in ("candidates", "table", "table_stride", "weights", "period", "stages", "is_around")),
]
KERNEL_ARGS = np.dtype(_FIELDS)
ARG_NAMES = tuple(name for name, _ in _FIELDS)

# Words of int64 that random numbers of elements are drawn by: the key; the place of the first element in the array that
# they belong to, in C order; and of each axis of the traversal, the fastest first, how many elements it has and how
# many places these are apart. The last axis has no end.
NOISE_KEY, NOISE_FIRST, NOISE_AXES = range(3)
NOISE_BITS = 15  # of a random number: with the 16 bits of a step and a sign they fill an int32
ENDLESS = 1 << 62
DRAWN_TOGETHER = 4096  # elements: their numbers, of two bytes, stay in the first cache

IN_TILE = {"streaming": 0}  # of a kernel whose launch is cut into tiles: its runs are short
IN_SQUARES = IN_TILE | {"chunk": 1 << 62}  # where it adds errors: to the same sums all that it gets at once


# --- operands: what each pointer of a kernel is to, first as dtypes and storage formats, then as Numba types ----------

HOMES: dict[type, str] = {}  # modules of `fastq.kernels.body`, by the operands for which they have the work
_Operands = TypeVar("_Operands", bound=type)


def with_body(module: str) -> Callable[[_Operands], _Operands]:
    """Name the module of the work on operands, which is imported when a kernel of them is compiled."""

    def named(operands: _Operands) -> _Operands:
        HOMES[operands] = module
        return operands

    return named


@with_body("convert")
class ElementOperands(NamedTuple):
    """Pointers of a conversion of elements, or the types that they point to."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


@with_body("convert")
class NoisyOperands(NamedTuple):
    """Pointers of a conversion of elements that rounds at random by `noise`: see `NOISE_KEY`; in loops the numbers."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any
    noise: Any


@with_body("requantize")
class RequantizeOperands(NamedTuple):
    """Pointers of a requantization of accumulators, with two words of 64 bits for the parameters of each channel."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


class ChannelOperands(NamedTuple):
    """Pointers to the source of those words: multipliers, a zero point and biases."""

    multiplier: Any
    zero_point: Any
    bias: Any
    first: Any
    second: Any


class RangeOperands(NamedTuple):
    """Pointers of a conversion of ranges to scales and zero points."""

    lo: Any
    hi: Any
    scale: Any
    zero_point: Any


@with_body("repack")
class CopyOperands(NamedTuple):
    """Pointers of a conversion that has no parameters, or has them among the elements."""

    src: Any
    dst: Any


@with_body("cast")
class CastOperands(NamedTuple):
    """Pointers of a cast of floats to integers, in units of one scale from one zero point on."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


@with_body("unpack")
class UnpackOperands(NamedTuple):
    """Pointers of a conversion of integers to floats by one scale and one offset."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


@with_body("bitround")
class BitRoundOperands(NamedTuple):
    """Pointers of a rounding of floats, whose elements are their bits; `table` has the dropped bits of each binade."""

    src: Any
    dst: Any
    table: Any


@with_body("bit_pairs")
class BitPairOperands(NamedTuple):
    """Pointers of a count of the bits of floats, `src`, and of their neighbours, added to `counts`."""

    src: Any
    approximation: Any
    counts: Any


class WeightedOperands(NamedTuple):
    """Pointers of a conversion to blocks that the importance of columns has a part in."""

    src: Any
    dst: Any
    weights: Any


@with_body("compare")
class ErrorOperands(NamedTuple):
    """Pointers of a comparison, `approximation` being codes or values; sums of errors are added to `errors`."""

    src: Any
    approximation: Any
    scale: Any
    zero_point: Any
    errors: Any


@with_body("min_max")
class MinMaxOperands(NamedTuple):
    """Pointers of a reduction of elements to minima and maxima."""

    src: Any
    lo: Any
    hi: Any


@with_body("min_max")
class PartialOperands(NamedTuple):
    """Pointers to partial minima and maxima, which are merged in place."""

    lo: Any
    hi: Any


@with_body("range_search")
class SearchOperands(NamedTuple):
    """Pointers of a search for ranges, which are written in place of minima and maxima; of scales the type counts."""

    src: Any
    lo: Any
    hi: Any
    scale: Any


@with_body("range_search")
class CandidateOperands(NamedTuple):
    """Pointers of a sum of the errors of all candidates of a search, which are added to `errors`.

    `scale` has the shares of the ranges that were found, where the candidates are those around.
    """

    src: Any
    lo: Any
    hi: Any
    scale: Any
    errors: Any


@with_body("histogram")
class HistogramOperands(NamedTuple):
    """Pointers of a histogram of elements: minima and maxima of float64, and counts, which are added to."""

    src: Any
    lo: Any
    hi: Any
    counts: Any
