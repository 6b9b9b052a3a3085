"""Sum the errors of an approximation in float64, in an order that does not depend on threads."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.jit import njit, specialize
from fastq.kernels.apply import float_ratio
from fastq.kernels.formulas import compute_type, dequantize_value, prepare_scale, unclamped_code
from fastq.kernels.load_store import PREFETCH, load_elements, prefetch_lanes
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.parameters import load_scale, load_zero_point
from fastq.kernels.spec import compute_lanes, status_of
from fastq.simd import (
    absolute,
    advance,
    any_lane,
    constant,
    convert,
    count,
    dtype_of,
    full,
    is_float,
    is_nan,
    lanes_like,
    maximum,
    reduce_max,
    reduce_sum,
    select,
)

# numbers of one chunk: sums of error**2, x**2, |error|, |error| / |x|; largest |error| and |error| / |x|; how many x
# are not 0, how many codes were clamped
SUMS = 8


@specialize
def _parameters_at(spec, operands, args, parameters, k, kind):
    """Return scale and zero point for lanes k onwards, from a pair for all lanes or the index of that of lane 0."""
    if isinstance(parameters, types.BaseTuple):
        return lambda spec, operands, args, parameters, k, kind: parameters
    return lambda spec, operands, args, parameters, k, kind: (
        load_scale(spec, operands, parameters + k, kind),
        load_zero_point(spec, operands, args, parameters + k, kind),
    )


def _float_code(where):
    """Return the format of float codes, None of integer codes and of floats that are values."""
    return where.dtype.row if isinstance(where.dtype, Minifloat) and where.dtype.row.bits <= 8 else None


@specialize
def approximated(spec, code, s, where):
    """Dequantize codes; values are returned as they are."""
    if is_float(code) and _float_code(where) is None:
        return lambda spec, code, s, where: code
    return lambda spec, code, s, where: dequantize_value(spec, convert(code, compute_type(spec, s.scale)), s)


@specialize
def clamped(spec, x, s, args, where):
    """Mask of the values whose codes were clamped."""
    row = _float_code(where)

    def integer(spec, x, s, args, where):
        code, dtype = unclamped_code(spec, x, s), compute_type(spec, s.scale)
        return (code < convert(args.lowest, dtype)) | (code > convert(args.highest, dtype))

    def above(spec, x, s, args, where):
        return absolute(float_ratio(spec, x, s)) > constant(bound, x)

    def from_tie(spec, x, s, args, where):
        return absolute(float_ratio(spec, x, s)) >= constant(bound, x)

    if row is None:
        return integer
    bound = row.max + 2.0 ** (row.emax - row.mantissa - 1)  # half way to the number that would be next
    return from_tie if row.largest % 2 else above


@specialize
def perhaps_clamped(spec, x, s, args, where):
    """Mask of the values that may have been clamped, found without a division; NaN among them.

    All others are inside the range of codes by a quarter of a step, which covers the rounding of quotients below 2**16.
    A zero point inside the rounding adds its own, and a reciprocal must not overflow where the products here do not.
    """
    rule, row = spec.rule, _float_code(where)
    inside, offset, multiplies = rule.zero == "inside", rule.zero == "offset", rule.quotient != "divide"

    def integer(spec, x, s, args, where):
        margin, dtype = constant(0.25, s.scale), compute_type(spec, s.scale)
        low, high = convert(args.lowest, dtype) - s.base, convert(args.highest, dtype) - s.base
        if inside:
            margin = margin + absolute(s.zero_point) * constant(2.0**-21, s.zero_point)
            low, high = low - s.zero_point, high - s.zero_point
        if offset:
            x = x - s.zero_point
        within = (x > (low + margin) * s.scale) & (x < (high - margin) * s.scale)
        if multiplies:
            within = within & (absolute(s.factor) < constant(float("inf"), s.factor))
        return within ^ True

    def float_(spec, x, s, args, where):
        return (absolute(x) < constant(most, x) * s.scale) ^ True

    def in_units_of_tensor(spec, x, s, args, where):
        return (absolute(x) < constant(most, x) * s.scale * s.zero_point) ^ True

    if row is None:
        by_range = rule.quotient == "range"  # a division either way
        return (lambda spec, x, s, args, where: clamped(spec, x, s, args, where)) if by_range else integer
    most = row.max
    return in_units_of_tensor if spec.scale_kind == "tensor" else float_


class Total(NamedTuple):
    """Sums of errors so far, lane by lane, as in `SUMS` but for `zeros`, which counts the values that are 0."""

    error2: Any
    x2: Any
    error: Any
    relative: Any
    largest: Any
    largest_relative: Any
    zeros: Any
    clipped: Any


@njit
def _add(spec, total, x, code, scale, zero_point, args, where):
    s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
    wide, compute = convert(x, types.float64), convert(x, compute_type(spec, s.scale))
    error = absolute(wide - convert(approximated(spec, code, s, where), types.float64))
    magnitude, zeros, clipped = absolute(wide), total.zeros, total.clipped
    zero = magnitude == constant(0, wide)
    relative = select(zero, constant(0, wide), error / magnitude)
    # few are, mostly, and a test of all lanes takes less time than to count them
    if any_lane(zero):
        zeros = zeros + convert(zero, types.float64)
    if any_lane(perhaps_clamped(spec, compute, s, args, where)):
        clipped = clipped + convert(clamped(spec, compute, s, args, where), types.float64)
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


@njit
def _add_sums(sums, first, total, size):
    """Add the sums of so many elements to those of a chunk."""
    sums[first] += reduce_sum(total.error2)
    sums[first + 1] += reduce_sum(total.x2)
    sums[first + 2] += reduce_sum(total.error)
    sums[first + 3] += reduce_sum(total.relative)
    sums[first + 4] = maximum(reduce_max(total.largest), sums[first + 4])
    sums[first + 5] = maximum(reduce_max(total.largest_relative), sums[first + 5])
    sums[first + 6] += size - reduce_sum(total.zeros)
    sums[first + 7] += reduce_sum(total.clipped)


@njit
def add_errors(spec, operands, args, parameters, i, end):
    """Add the errors of elements i..end to the sums of their chunk.

    `parameters` is the scale and zero point of all of them, or the index of the parameter of the first one.
    """
    src, approximation, size = advance(operands.src, i), advance(operands.approximation, i), end - i
    vec = lanes_like(compute_lanes(spec, operands.scale, 1), src)
    n, first, k = count(vec), i // args.chunk * SUMS, 0
    found = False
    if size >= n:
        zero = full(0.0, lanes_like(vec, operands.errors))
        total = Total(zero, zero, zero, zero, zero, zero, zero, zero)
        nans = is_nan(zero)
        while k <= size - n:
            prefetch_lanes(src, k + PREFETCH, vec)
            prefetch_lanes(approximation, k + PREFETCH, lanes_like(vec, approximation))
            x, code = load_elements(src, k, vec), load_elements(approximation, k, lanes_like(vec, approximation))
            nans = nans | nan(x)
            scale, zero_point = _parameters_at(spec, operands, args, parameters, k, vec)
            total = _add(spec, total, x, code, scale, zero_point, args, approximation)
            k += n
        found = any_lane(nans)
        _add_sums(operands.errors, first, total, k)
    done = k
    total = Total(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    while k < size:
        x, code = load_elements(src, k, dtype_of(src)), load_elements(approximation, k, dtype_of(approximation))
        found |= x != x
        scale, zero_point = _parameters_at(spec, operands, args, parameters, k, dtype_of(operands.scale))
        total = _add(spec, total, x, code, scale, zero_point, args, approximation)
        k += 1
    _add_sums(operands.errors, first, total, size - done)
    return status_of(found, False)


@specialize
def nan(x):
    """Mask of NaN lanes; integers have none."""
    if is_float(x):
        return lambda x: is_nan(x)
    return lambda x: x != x
