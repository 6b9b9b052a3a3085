"""Sums of the errors of an approximation, in float64, in an order that does not depend on threads."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.kernels.formulas import compute_type, dequantize_value, span, unclamped_code
from fastq.kernels.load_store import fetch, prefetch_lanes
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.spec import compute_lanes, float_ratio, saw, step_at, zero_at
from fastq.runtime.plan import AHEAD
from fastq.simd.vec import (
    absolute,
    any_lane,
    by_type,
    constant,
    convert,
    count,
    dtype_of,
    full,
    inline,
    is_float,
    is_nan,
    lanes_like,
    maximum,
    reduce_max,
    reduce_sum,
    select,
)

# of one chunk: sums of error**2, x**2, |error|, |error| / |x|; largest |error| and |error| / |x|; how many x are not 0,
# how many codes were clamped
SUMS = 8


@by_type
def step_of(action, where, k, kind):
    """Scales for lanes k onwards: one for all of them, or where `where` is a pointer, each its own."""
    if isinstance(where, types.CPointer):
        return lambda action, where, k, kind: step_at(action, where, k, lanes_like(kind, where))
    return lambda action, where, k, kind: where


@by_type
def zero_of(action, where, k, kind, plan, scale):
    """Zero points for lanes k onwards, as `step_of`."""
    if isinstance(where, types.CPointer):
        return lambda action, where, k, kind, plan, scale: zero_at(
            action, where, k, lanes_like(kind, where), plan, scale
        )
    return lambda action, where, k, kind, plan, scale: where


def _float_code(dst: Any) -> Any:
    """Return the format of codes that are floats; None of other codes, and of floats that are the values themselves."""
    return dst.dtype.row if isinstance(dst.dtype, Minifloat) and dst.dtype.row.bits <= 8 else None


@by_type
def decoded(action, code, s, dst):
    """The approximation that a code stands for; floats are the approximation itself, but for those that are codes."""
    if is_float(code) and _float_code(dst) is None:
        return lambda action, code, s, dst: code
    return lambda action, code, s, dst: dequantize_value(action, convert(code, compute_type(action, s.scale)), s)


@by_type
def beyond(action, x, s, plan, dst):
    """Mask of the values whose codes were clamped."""
    row = _float_code(dst)

    def integer(action, x, s, plan, dst):
        code, dtype = unclamped_code(action, x, s), compute_type(action, s.scale)
        return (code < convert(plan.lowest, dtype)) | (code > convert(plan.highest, dtype))

    def above(action, x, s, plan, dst):
        return absolute(float_ratio(action, x, s)) > constant(bound, x)

    def from_tie(action, x, s, plan, dst):
        return absolute(float_ratio(action, x, s)) >= constant(bound, x)

    if row is None:
        return integer
    bound = row.max + 2.0 ** (row.emax - row.mantissa - 1)  # half way to the number that would be next
    return from_tie if row.largest % 2 else above


@by_type
def perhaps_beyond(action, x, s, plan, dst):
    """Mask of the values near the ends of the codes or beyond them, found without a division; NaN among them.

    All others are within the ends by a quarter of a step, which covers the roundings of quotients below 2**16. A zero
    point inside the rounding adds its own, and a reciprocal must not overflow where the products here do not.
    """
    rule, row = action.rule, _float_code(dst)
    inside, offset, multiplies = rule.zero == "inside", rule.zero == "offset", rule.quotient != "divide"

    def integer(action, x, s, plan, dst):
        margin, dtype = constant(0.25, s.scale), compute_type(action, s.scale)
        low, high = convert(plan.lowest, dtype) - s.base, convert(plan.highest, dtype) - s.base
        if inside:
            margin = margin + absolute(s.zero_point) * constant(2.0**-21, s.zero_point)
            low, high = low - s.zero_point, high - s.zero_point
        if offset:
            x = x - s.zero_point
        within = (x > (low + margin) * s.scale) & (x < (high - margin) * s.scale)
        if multiplies:
            within = within & (absolute(s.factor) < constant(float("inf"), s.factor))
        return within ^ True

    def float_(action, x, s, plan, dst):
        return (absolute(x) < constant(most, x) * s.scale) ^ True

    def in_units_of_tensor(action, x, s, plan, dst):
        return (absolute(x) < constant(most, x) * s.scale * s.zero_point) ^ True

    if row is None:
        by_range = rule.quotient == "range"  # a division either way
        return (lambda action, x, s, plan, dst: beyond(action, x, s, plan, dst)) if by_range else integer
    most = row.max
    return in_units_of_tensor if action.own == "tensor" else float_


class Total(NamedTuple):
    """Sums of errors so far, lane by lane: `SUMS`, with how many values are 0 where it has how many are not."""

    error2: Any
    x2: Any
    error: Any
    relative: Any
    largest: Any
    largest_relative: Any
    zeros: Any
    clipped: Any


@inline
def _add(action, total, x, code, scale, zero_point, plan, dst):
    s = span(action, scale, zero_point, plan.lowest, plan.highest)
    wide, compute = convert(x, types.float64), convert(x, compute_type(action, s.scale))
    error = absolute(wide - convert(decoded(action, code, s, dst), types.float64))
    magnitude, zeros, clipped = absolute(wide), total.zeros, total.clipped
    zero = magnitude == constant(0, wide)
    relative = select(zero, constant(0, wide), error / magnitude)
    # few are, mostly, and a test of all lanes takes less time than to count them
    if any_lane(zero):
        zeros = zeros + convert(zero, types.float64)
    if any_lane(perhaps_beyond(action, compute, s, plan, dst)):
        clipped = clipped + convert(beyond(action, compute, s, plan, dst), types.float64)
    return Total(
        total.error2 + error * error,
        total.x2 + magnitude * magnitude,
        total.error + error,
        total.relative + relative,
        maximum(error, total.largest),
        maximum(relative, total.largest_relative),
        zeros,
        clipped,
    )


@inline
def _put(sums, first, total, size):
    """Add what was found in so many elements to the sums of a chunk."""
    sums[first] += reduce_sum(total.error2)
    sums[first + 1] += reduce_sum(total.x2)
    sums[first + 2] += reduce_sum(total.error)
    sums[first + 3] += reduce_sum(total.relative)
    sums[first + 4] = maximum(reduce_max(total.largest), sums[first + 4])
    sums[first + 5] = maximum(reduce_max(total.largest_relative), sums[first + 5])
    sums[first + 6] += size - reduce_sum(total.zeros)
    sums[first + 7] += reduce_sum(total.clipped)


@inline
def add_errors(action, src, dst, scale, zero_point, sums, plan, chunk, size):
    """Add the errors of dst[:size], codes or values, as an approximation of src[:size] to the sums of a chunk."""
    vec = lanes_like(compute_lanes(action, scale, 1), src)
    n, first, k = count(vec), chunk * SUMS, 0
    seen = False
    if size >= n:
        zero = full(0.0, lanes_like(vec, sums))
        total = Total(zero, zero, zero, zero, zero, zero, zero, zero)
        nans = is_nan(zero)
        while k <= size - n:
            prefetch_lanes(src, k + AHEAD, vec)
            prefetch_lanes(dst, k + AHEAD, lanes_like(vec, dst))
            x, code = fetch(src, k, vec), fetch(dst, k, lanes_like(vec, dst))
            nans = nans | nan(x)
            steps, zeros = step_of(action, scale, k, vec), zero_of(action, zero_point, k, vec, plan, scale)
            total = _add(action, total, x, code, steps, zeros, plan, dst)
            k += n
        seen = any_lane(nans)
        _put(sums, first, total, k)
    done = k
    total = Total(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    while k < size:
        one = dtype_of(src)
        x = fetch(src, k, one)
        seen |= x != x
        step, zero = step_of(action, scale, k, one), zero_of(action, zero_point, k, one, plan, scale)
        total = _add(action, total, x, fetch(dst, k, dtype_of(dst)), step, zero, plan, dst)
        k += 1
    _put(sums, first, total, size - done)
    return saw(seen, False)


@by_type
def nan(x):
    """Mask of NaN lanes; integers have none."""
    if is_float(x):
        return lambda x: is_nan(x)
    return lambda x: x != x
