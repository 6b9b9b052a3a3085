"""Smallest magnitude but 0 and largest magnitude of contiguous floats."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.kernels.args import MagnitudeOperands
from fastq.kernels.body import BODIES, Body, Reduction, load_state, save_state
from fastq.kernels.body.min_max import FOUR_CHAINS, loaded_lanes, merge_extremes, merge_short_runs
from fastq.kernels.load_store import load_elements, prefetch_ahead, prefetch_lanes
from fastq.kernels.spec import status_of


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


@njit
def _of_run(spec, operands, args, p, i, end):
    """Reduce src[i:end] in several registers, whose lanes are merged, and the rest element by element."""
    src, vec = operands.src, loaded_lanes(FOUR_CHAINS, operands.src)
    x, nan = load_elements(src, i, v.dtype_of(src)), False
    state = load_state(operands, p, x)
    if end - i >= v.count(vec):
        wide = load_elements(src, i, vec)
        states, nans = _nothing(wide), wide != wide
        while i + v.count(vec) <= end:
            prefetch_lanes(src, i + prefetch_ahead(), vec)
            wide = load_elements(src, i, vec)
            states, nans = _add(wide, states), nans | (wide != wide)
            i += v.count(vec)
        state, nan = merge_extremes((v.reduce_min(states[0]), v.reduce_max(states[1])), state), v.any_lane(nans)
    while i < end:
        x = load_elements(src, i, v.dtype_of(src))
        state, nan = _add(x, state), nan | (x != x)
        i += 1
    save_state(operands, p, state)
    return status_of(nan, False)


_REDUCTION = Reduction(_nothing, _add, merge_extremes)
BODIES[MagnitudeOperands] = Body(_of_run, batch=merge_short_runs, reduction=_REDUCTION)
