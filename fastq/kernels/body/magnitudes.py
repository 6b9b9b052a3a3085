"""Smallest magnitude but 0 and largest magnitude of contiguous floats."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastq.engine import simd as v
from fastq.engine.jit import njit
from fastq.kernels.body import BODIES, Body, Reduction
from fastq.kernels.body.min_max import loaded_lanes
from fastq.kernels.load_store import PREFETCH, load_elements, prefetch_lanes
from fastq.kernels.spec import status_of


class MagnitudeOperands(NamedTuple):
    """Pointers of a reduction of elements to smallest and largest magnitudes."""

    src: Any
    lo: Any
    hi: Any


@njit
def _infinity(x):
    return v.full_like(v.constant(float("inf"), x), x)


@njit
def _nothing(x):
    return _infinity(x), v.full_like(v.constant(0, x), x)


@njit
def _add(x, state):
    size = v.absolute(x)
    return v.minimum(v.select(size > v.constant(0, x), size, _infinity(x)), state[0]), v.maximum(size, state[1])


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
    _save(operands, p, state)


@njit
def _placed(operands, room):
    lo, hi = v.dtype_of(operands.lo), v.dtype_of(operands.hi)
    return MagnitudeOperands(operands.src, v.cast_pointer(room[0], lo), v.cast_pointer(room[1], hi))


@njit
def _rebase(operands, args, units):
    first = units.slot * args.partial_stride
    lo, hi = v.advance(operands.lo, first), v.advance(operands.hi, first)
    return MagnitudeOperands(v.advance(operands.src, -units.origin), lo, hi)


@njit
def _of_run(spec, operands, args, p, i, end):
    """Reduce src[i:end] in four registers, whose lanes are merged, and the rest element by element."""
    src, vec = operands.src, loaded_lanes(4, operands.src)
    x, nan = load_elements(src, i, v.dtype_of(src)), False
    state = _load(operands, p, x)
    if end - i >= v.count(vec):
        wide = load_elements(src, i, vec)
        states, nans = _nothing(wide), wide != wide
        while i + v.count(vec) <= end:
            prefetch_lanes(src, i + PREFETCH, vec)
            wide = load_elements(src, i, vec)
            states, nans = _add(wide, states), nans | (wide != wide)
            i += v.count(vec)
        state, nan = _merge((v.reduce_min(states[0]), v.reduce_max(states[1])), state), v.any_lane(nans)
    while i < end:
        x = load_elements(src, i, v.dtype_of(src))
        state, nan = _add(x, state), nan | (x != x)
        i += 1
    _save(operands, p, state)
    return status_of(nan, False)


_REDUCTION = Reduction(_nothing, _add, _merge, _load, _save, _finish, _placed)
BODIES[MagnitudeOperands] = Body(_rebase, _of_run, reduction=_REDUCTION)
