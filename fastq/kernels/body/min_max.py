"""Minimum and maximum of contiguous elements."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.kernels.load_store import PREFETCH, load_elements, prefetch_lanes
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.spec import min_max_identities


@specialize
def loaded_lanes(registers, src):
    """Vec type of elements of src that fill so many registers, a literal, once they are loaded."""
    if not isinstance(registers, types.IntegerLiteral):
        return None
    width = 32 if isinstance(src.dtype, Minifloat) else src.dtype.bitwidth
    vec = v.Vec(src.dtype, registers.literal_value * v.REGISTER_BITS // width)
    return lambda registers, src: vec


@specialize
def few_lanes(src):
    """Vec type of as many elements of src as a register holds of float32, or of elements that are wider."""
    vec = v.Vec(src.dtype, v.REGISTER_BITS // max(src.dtype.bitwidth, 32))
    return lambda src: vec


@specialize
def nan_in_halves(x):
    """Mask, half as long, of the lanes that may be NaN: one comparison looks at two registers."""
    if v.is_float(x):
        return lambda x: v.either_nan(v.lower(x), v.upper(x))
    return lambda x: False


@njit
def min_max(src, i, end):
    """Reduce src[i:end] to its minimum and maximum, NaN passed over, and whether there was one."""
    wide, narrow, few = loaded_lanes(4, src), loaded_lanes(1, src), few_lanes(src)
    # four registers are enough independent chains to hide the latency of a minimum
    if end - i >= v.count(wide):
        return _min_max(src, i, end, wide)
    if end - i >= v.count(narrow):
        return _min_max(src, i, end, narrow)
    if end - i >= v.count(few):
        return _min_max(src, i, end, few)
    lo, hi = min_max_identities(load_elements(src, i, v.dtype_of(src)))
    nan = False
    while i < end:
        x = load_elements(src, i, v.dtype_of(src))
        lo, hi, nan = v.minimum(x, lo), v.maximum(x, hi), nan | (x != x)
        i += 1
    return lo, hi, nan


@njit
def _min_max(src, i, end, vec):
    n = v.count(vec)
    last = end - n
    x = load_elements(src, i, vec)
    los, his = min_max_identities(x)
    los, his, nans = v.minimum(x, los), v.maximum(x, his), nan_in_halves(x)
    i = min(i + n - v.misalignment(src, i, vec), last)
    while True:
        prefetch_lanes(src, i + PREFETCH, vec)
        x = load_elements(src, i, vec)
        los, his = v.minimum(x, los), v.maximum(x, his)
        nans = nans | nan_in_halves(x)
        if i == last:
            return v.reduce_min(los), v.reduce_max(his), v.any_lane(nans)
        i = min(i + n, last)


@njit
def min_max_of_run(src, i, end, vec):
    """Reduce src[i:end] as `min_max` does; what does not fill a register is read as the end of one that begins before.

    Where there is NaN, minimum and maximum are meaningless.
    """
    skipped = v.count(vec) - (end - i)
    if skipped <= 0:
        return min_max(src, i, end)
    x = load_elements(src, end - v.count(vec), vec)
    x = v.select(v.lanes_from(skipped, x), x, v.full_like(load_elements(src, i, v.dtype_of(src)), x))
    return v.reduce_min(x), v.reduce_max(x), v.any_lane(x != x)
