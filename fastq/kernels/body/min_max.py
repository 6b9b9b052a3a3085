"""Minimum and maximum of contiguous elements."""

from __future__ import annotations

from numba import types

from fastq.engine.jit import njit, specialize
from fastq.engine.simd import (
    REGISTER_BITS,
    Vec,
    any_lane,
    count,
    dtype_of,
    either_nan,
    full_like,
    is_float,
    lanes_from,
    lower,
    maximum,
    minimum,
    misalignment,
    reduce_max,
    reduce_min,
    select,
    upper,
)
from fastq.kernels.load_store import PREFETCH, load_elements, prefetch_lanes
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.spec import first_min_max


@specialize
def loaded_lanes(registers, src):
    """Vec type of elements of src that fill so many registers, a literal, once they are loaded."""
    if not isinstance(registers, types.IntegerLiteral):
        return None
    width = 32 if isinstance(src.dtype, Minifloat) else src.dtype.bitwidth
    vec = Vec(src.dtype, registers.literal_value * REGISTER_BITS // width)
    return lambda registers, src: vec


@specialize
def few_lanes(src):
    """Vec type of as many elements of src as a register holds of float32, or of elements that are wider."""
    vec = Vec(src.dtype, REGISTER_BITS // max(src.dtype.bitwidth, 32))
    return lambda src: vec


@specialize
def nan_in_halves(x):
    """Mask, half as long, of the lanes that may be NaN: one comparison looks at two registers."""
    if is_float(x):
        return lambda x: either_nan(lower(x), upper(x))
    return lambda x: False


@njit
def min_max(src, i, end):
    """Reduce src[i:end], some elements, to its minimum and maximum, NaN passed over, and whether there was one."""
    wide, narrow, few = loaded_lanes(4, src), loaded_lanes(1, src), few_lanes(src)
    # four registers are enough independent chains to hide the latency of a minimum
    if end - i >= count(wide):
        return _min_max(src, i, end, wide)
    if end - i >= count(narrow):
        return _min_max(src, i, end, narrow)
    if end - i >= count(few):
        return _min_max(src, i, end, few)
    x = load_elements(src, i, dtype_of(src))
    (lo, hi), nan = first_min_max(x), x != x
    i += 1
    while i < end:
        x = load_elements(src, i, dtype_of(src))
        lo, hi, nan = minimum(x, lo), maximum(x, hi), nan | (x != x)
        i += 1
    return lo, hi, nan


@njit
def _min_max(src, i, end, vec):
    n = count(vec)
    last = end - n
    x = load_elements(src, i, vec)
    (los, his), nans = first_min_max(x), nan_in_halves(x)
    i = min(i + n - misalignment(src, i, vec), last)
    while True:
        prefetch_lanes(src, i + PREFETCH, vec)
        x = load_elements(src, i, vec)
        los, his = minimum(x, los), maximum(x, his)
        nans = nans | nan_in_halves(x)
        if i == last:
            return reduce_min(los), reduce_max(his), any_lane(nans)
        i = min(i + n, last)


@njit
def min_max_of_run(src, i, end, vec):
    """Reduce src[i:end] as `min_max` does; what does not fill a register is read as the end of one that begins before.

    Where there is NaN, minimum and maximum are meaningless.
    """
    skipped = count(vec) - (end - i)
    if skipped <= 0:
        return min_max(src, i, end)
    x = load_elements(src, end - count(vec), vec)
    x = select(lanes_from(skipped, x), x, full_like(load_elements(src, i, dtype_of(src)), x))
    return reduce_min(x), reduce_max(x), any_lane(x != x)
