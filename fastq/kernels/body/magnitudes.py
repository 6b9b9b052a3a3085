"""Smallest magnitude but 0 and largest magnitude of contiguous floats."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.kernels.body import BODIES, Body, Reduction
from fastq.kernels.body.min_max import (
    FOUR_CHAINS,
    load_extremes,
    loaded_lanes,
    merge_extremes,
    merge_short_runs,
    rebased_extremes,
    save_extremes,
)
from fastq.kernels.load_store import PREFETCH, load_elements, prefetch_lanes
from fastq.kernels.spec import status_of


class MagnitudeOperands(NamedTuple):
    """Pointers of a reduction of elements to smallest and largest magnitudes."""

    src: Any
    lo: Any
    hi: Any


@traced
def _infinity(x):
    return v.full_like(v.constant(float("inf"), x), x)


@traced
def _nothing(x):
    return _infinity(x), v.full_like(v.constant(0, x), x)


@traced
def _add(x, state):
    size = v.absolute(x)
    return v.minimum(v.select(size > v.constant(0, x), size, _infinity(x)), state[0]), v.maximum(size, state[1])


@traced
def _finish(operands, p, state, nans):
    save_extremes(operands, p, state)


@traced
def _rebase(operands, args, units):
    return MagnitudeOperands(*rebased_extremes(operands, args, units))


@njit
def _of_run(spec, operands, args, p, i, end):
    """Reduce src[i:end] in several registers, whose lanes are merged, and the rest element by element."""
    src, vec = operands.src, loaded_lanes(FOUR_CHAINS, operands.src)
    x, nan = load_elements(src, i, v.dtype_of(src)), False
    state = load_extremes(operands, p, x)
    if end - i >= v.count(vec):
        wide = load_elements(src, i, vec)
        states, nans = _nothing(wide), wide != wide
        while i + v.count(vec) <= end:
            prefetch_lanes(src, i + PREFETCH, vec)
            wide = load_elements(src, i, vec)
            states, nans = _add(wide, states), nans | (wide != wide)
            i += v.count(vec)
        state, nan = merge_extremes((v.reduce_min(states[0]), v.reduce_max(states[1])), state), v.any_lane(nans)
    while i < end:
        x = load_elements(src, i, v.dtype_of(src))
        state, nan = _add(x, state), nan | (x != x)
        i += 1
    save_extremes(operands, p, state)
    return status_of(nan, False)


_REDUCTION = Reduction(_nothing, _add, merge_extremes, load_extremes, save_extremes, _finish)
BODIES[MagnitudeOperands] = Body(_rebase, _of_run, batch=merge_short_runs, reduction=_REDUCTION)
