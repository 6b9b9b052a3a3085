"""Minimum and maximum of contiguous elements."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.kernels.body import BODIES, Body, Reduction
from fastq.kernels.load_store import PREFETCH, load_elements, prefetch_lanes
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.parameters import store_min_max
from fastq.kernels.spec import first_min_max, min_max_identities, status_of


@specialize
def loaded_lanes(registers, src):
    """Vec type of elements of src that fill so many registers, a literal, once they are loaded."""
    if not isinstance(registers, types.IntegerLiteral):
        return None
    width = 32 if isinstance(src.dtype, Minifloat) else src.dtype.bitwidth
    return v.Vec(src.dtype, registers.literal_value * v.REGISTER_BITS // width)


@specialize
def few_lanes(src):
    """Vec type of as many elements of src as a register holds of float32, or of elements that are wider."""
    return v.Vec(src.dtype, v.REGISTER_BITS // max(src.dtype.bitwidth, 32))


@specialize
def nan_in_halves(x):
    """Mask, half as long, of the lanes that may be NaN: one comparison looks at two registers."""
    if v.is_float(x):
        return lambda x: v.either_nan(v.lower(x), v.upper(x))
    return False


@njit
def min_max(src, i, end):
    """Reduce src[i:end], one element or more, to its minimum and maximum but for NaN, and whether there was one."""
    wide, narrow, few = loaded_lanes(4, src), loaded_lanes(1, src), few_lanes(src)
    # four registers are enough independent chains to hide the latency of a minimum
    if end - i >= v.count(wide):
        return _min_max(src, i, end, wide)
    if end - i >= v.count(narrow):
        return _min_max(src, i, end, narrow)
    if end - i >= v.count(few):
        return _min_max(src, i, end, few)
    x = load_elements(src, i, v.dtype_of(src))
    (lo, hi), nan = first_min_max(x), x != x
    i += 1
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
    (los, his), nans = first_min_max(x), nan_in_halves(x)
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


# --- as a body --------------------------------------------------------------------------------------------------------


class MinMaxOperands(NamedTuple):
    """Pointers of a reduction of elements to minima and maxima."""

    src: Any
    lo: Any
    hi: Any


class PartialOperands(NamedTuple):
    """Pointers to partial minima and maxima, which are merged in place."""

    lo: Any
    hi: Any


@njit
def _of_run(spec, operands, args, p, i, end):
    lo, hi, nan = min_max(operands.src, i, end)
    store_min_max(operands, p, v.minimum(lo, operands.lo[p]), v.maximum(hi, operands.hi[p]), nan)
    return status_of(nan, False)


@njit
def _add(x, state):
    return v.minimum(x, state[0]), v.maximum(x, state[1])


@njit
def _merge(state, other):
    return v.minimum(state[0], other[0]), v.maximum(state[1], other[1])


@njit
def _load(operands, p, kind):
    lo, hi = v.lanes_like(kind, operands.lo), v.lanes_like(kind, operands.hi)
    return v.load(operands.lo, p, lo), v.load(operands.hi, p, hi)


@njit
def _save(operands, p, state):
    v.store(operands.lo, p, state[0])
    v.store(operands.hi, p, state[1])


@njit
def _finish(operands, p, state, nans):
    store_min_max(operands, p, state[0], state[1], nans)


@njit
def _placed(operands, room):
    lo, hi = v.dtype_of(operands.lo), v.dtype_of(operands.hi)
    return MinMaxOperands(operands.src, v.cast_pointer(room[0], lo), v.cast_pointer(room[1], hi))


@njit
def _rebase(operands, args, units):
    first = units.slot * args.partial_stride
    lo, hi = v.advance(operands.lo, first), v.advance(operands.hi, first)
    return MinMaxOperands(v.advance(operands.src, -units.origin), lo, hi)


_REDUCTION = Reduction(min_max_identities, _add, _merge, _load, _save, _finish, _placed)
BODIES[MinMaxOperands] = Body(_rebase, _of_run, reduction=_REDUCTION)
BODIES[PartialOperands] = Body(_rebase, reduction=_REDUCTION)
