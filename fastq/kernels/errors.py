"""Sums of the errors of an approximation, in float64, in an order that does not depend on threads."""

from __future__ import annotations

from numba import types

from fastq.kernels.actions import float_ratio, saw, step_at, zero_at
from fastq.kernels.formulas import compute_type, dequantize_value, span, unclamped_code
from fastq.kernels.memory import fetch
from fastq.kernels.minifloats import Minifloat
from fastq.kernels.simd import (
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
    lanes,
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


@by_type
def decoded(action, code, s, dst):
    """The approximation that a code stands for; floats are the approximation itself, but for those that are codes."""
    if is_float(code) and not (isinstance(dst.dtype, Minifloat) and dst.dtype.row.bits <= 8):
        return lambda action, code, s, dst: code
    return lambda action, code, s, dst: dequantize_value(action, convert(code, compute_type(action, s.scale)), s)


@by_type
def beyond(action, x, s, plan, dst):
    """Mask of the values whose codes were clamped."""
    form = dst.dtype

    def integer(action, x, s, plan, dst):
        code, dtype = unclamped_code(action, x, s), compute_type(action, s.scale)
        return (code < convert(plan.lowest, dtype)) | (code > convert(plan.highest, dtype))

    def above(action, x, s, plan, dst):
        return absolute(float_ratio(action, x, s)) > constant(bound, x)

    def from_tie(action, x, s, plan, dst):
        return absolute(float_ratio(action, x, s)) >= constant(bound, x)

    if not isinstance(form, Minifloat) or form.row.bits > 8:
        return integer
    bound = form.row.max + 2.0 ** (form.row.emax - form.row.mantissa - 1)  # half way to the number that would be next
    return from_tie if form.row.largest % 2 else above


@inline
def _measures(action, x, code, scale, zero_point, plan, dst):
    s = span(action, scale, zero_point, plan.lowest, plan.highest)
    wide, compute = convert(x, types.float64), convert(x, compute_type(action, scale))
    error = absolute(wide - convert(decoded(action, code, s, dst), types.float64))
    magnitude = absolute(wide)
    nonzero = magnitude > constant(0, wide)
    relative = select(nonzero, error / magnitude, constant(0, wide))
    clipped = beyond(action, compute, s, plan, dst)
    return error, magnitude, relative, convert(nonzero, types.float64), convert(clipped, types.float64)


@inline
def _add(action, total, x, code, scale, zero_point, plan, dst):
    e2, x2, abs_, rel, most, most_rel, some, clip = total
    error, magnitude, relative, nonzero, clipped = _measures(action, x, code, scale, zero_point, plan, dst)
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
            x, code = fetch(src, k, vec), fetch(dst, k, lanes_like(vec, dst))
            nans = nans | nan(x)
            steps, zeros = step_of(action, scale, k, vec), zero_of(action, zero_point, k, vec, plan, scale)
            total = _add(action, total, x, code, steps, zeros, plan, dst)
            k += n
        seen = any_lane(nans)
        _put(sums, first, total)
    total = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    while k < size:
        one = dtype_of(src)
        x = fetch(src, k, one)
        seen |= x != x
        step, zero = step_of(action, scale, k, one), zero_of(action, zero_point, k, one, plan, scale)
        total = _add(action, total, x, fetch(dst, k, dtype_of(dst)), step, zero, plan, dst)
        k += 1
    _put(sums, first, total)
    return saw(seen, False)


@by_type
def nan(x):
    """Mask of NaN lanes; integers have none."""
    if is_float(x):
        return lambda x: is_nan(x)
    return lambda x: x != x
