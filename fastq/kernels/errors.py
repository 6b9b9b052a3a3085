"""Sums of the errors of an approximation, in float64, in an order that does not depend on threads."""

from __future__ import annotations

from numba import types

from fastq.kernels.actions import saw
from fastq.kernels.formulas import compute_type, dequantize_value, span, unclamped_code
from fastq.kernels.simd import (
    absolute,
    any_lane,
    by_type,
    constant,
    convert,
    count,
    full,
    inline,
    is_float,
    is_nan,
    lanes,
    lanes_like,
    load,
    maximum,
    reduce_max,
    reduce_sum,
    select,
)

# of one chunk: sums of error**2, x**2, |error|, |error| / |x|; largest |error| and |error| / |x|; how many x are not 0,
# how many codes were clamped
SUMS = 8


@by_type
def parameter(where, k, vec):
    """Scales or zero points for lanes k onwards: one for all of them, or where `where` is a pointer, each its own."""
    if isinstance(where, types.CPointer):
        return lambda where, k, vec: load(where, k, lanes_like(vec, where))
    return lambda where, k, vec: where


@by_type
def decoded(action, code, s):
    """The approximation that a code stands for; floats are the approximation itself."""
    if is_float(code):
        return lambda action, code, s: code
    return lambda action, code, s: dequantize_value(action, convert(code, compute_type(action, s.scale)), s)


@inline
def _measures(action, x, code, scale, zero_point, plan):
    s = span(action, scale, zero_point, plan.lowest, plan.highest)
    wide, compute = convert(x, types.float64), convert(x, compute_type(action, scale))
    error = absolute(wide - convert(decoded(action, code, s), types.float64))
    magnitude = absolute(wide)
    nonzero = magnitude > constant(0, wide)
    relative = select(nonzero, error / magnitude, constant(0, wide))
    whole, dtype = unclamped_code(action, compute, s), compute_type(action, scale)
    clipped = (whole < convert(plan.lowest, dtype)) | (whole > convert(plan.highest, dtype))
    return error, magnitude, relative, convert(nonzero, types.float64), convert(clipped, types.float64)


@inline
def _add(action, total, x, code, scale, zero_point, plan):
    e2, x2, abs_, rel, most, most_rel, some, clip = total
    error, magnitude, relative, nonzero, clipped = _measures(action, x, code, scale, zero_point, plan)
    return (
        e2 + error * error,
        x2 + magnitude * magnitude,
        abs_ + error,
        rel + relative,
        maximum(error, most),
        maximum(relative, most_rel),
        some + nonzero,
        clip + clipped,
    )


@inline
def _put(sums, first, total):
    e2, x2, abs_, rel, most, most_rel, some, clip = total
    sums[first] += reduce_sum(e2)
    sums[first + 1] += reduce_sum(x2)
    sums[first + 2] += reduce_sum(abs_)
    sums[first + 3] += reduce_sum(rel)
    sums[first + 4] = maximum(reduce_max(most), sums[first + 4])
    sums[first + 5] = maximum(reduce_max(most_rel), sums[first + 5])
    sums[first + 6] += reduce_sum(some)
    sums[first + 7] += reduce_sum(clip)


@inline
def add_errors(action, src, dst, scale, zero_point, sums, plan, chunk, size):
    """Add the errors of dst[:size], codes or values, as an approximation of src[:size] to the sums of a chunk."""
    vec = lanes(src, sums)
    n, first, k = count(vec), chunk * SUMS, 0
    seen = False
    if size >= n:
        zero = full(0.0, lanes_like(vec, sums))
        total = (zero, zero, zero, zero, zero, zero, zero, zero)
        nans = is_nan(zero)
        while k <= size - n:
            x, code = load(src, k, vec), load(dst, k, lanes_like(vec, dst))
            nans = nans | nan(x)
            total = _add(action, total, x, code, parameter(scale, k, vec), parameter(zero_point, k, vec), plan)
            k += n
        seen = any_lane(nans)
        _put(sums, first, total)
    total = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    while k < size:
        seen |= src[k] != src[k]
        total = _add(action, total, src[k], dst[k], one(scale, k), one(zero_point, k), plan)
        k += 1
    _put(sums, first, total)
    return saw(seen, False)


@by_type
def nan(x):
    """Mask of NaN lanes; integers have none."""
    if is_float(x):
        return lambda x: is_nan(x)
    return lambda x: x != x


@by_type
def one(where, k):
    """Scale or zero point of element k."""
    if isinstance(where, types.CPointer):
        return lambda where, k: where[k]
    return lambda where, k: where
