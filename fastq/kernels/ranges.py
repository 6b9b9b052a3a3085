"""Turn the range of values into scale and zero point, by each convention's rule."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.formulas import ROUNDING, is_infinite
from fastq.kernels.minifloat import decode, encode, in_half, power_below, scale_in_half


@njit
def power_of_two(lo, hi, below, kind):
    """Compute scale and zero point of a block by OCP Microscaling Formats (MX) 1.0, section 6.3.

    ``2**(floor(log2(largest magnitude)) - below)`` with `below` the exponent of the largest number of the element.
    """
    zero = v.constant(0, lo)
    return power_below(v.maximum(v.maximum(-lo, hi), zero), below, kind), v.full_like(zero, lo)


NVFP4_LEAST = 2.0**-6  # the smallest normal number of float8_e4m3fn, under which torchao lets no block scale fall


@specialize
def nvfp4(lo, hi, tensor, kind, element):
    """Compute the scale of a block in units of that of the array, rounded to `kind`, and return it with the latter.

    ``clamp(largest magnitude / largest element / tensor)``, torchao's `nvfp4_quantize`.
    """
    least, most, elements = NVFP4_LEAST, kind.instance_type.row.max, element.instance_type.row.max
    compute = v.lane_type(lo)

    def rounded(lo, hi, tensor, kind, element):
        zero = v.constant(0, lo)
        largest = v.maximum(v.maximum(-lo, hi), zero)
        scale = largest / v.constant(elements, lo) / tensor
        scale = v.minimum(v.maximum(scale, v.constant(least, lo)), v.constant(most, lo))
        return v.convert(decode(encode(scale, kind), kind), compute), v.full_like(tensor, lo)

    return rounded


# Branches below on constants of the rule are pruned; a function for each would double the time to compile.


@specialize
def asymmetric(spec, lo, hi, lowest, highest, compute):
    """Compute scale and zero point of ``lo..hi`` by the rule; `compute` is the type of the values."""
    ranged, within = spec.rule.range, v.lane_type(lo)
    widened, more, in_compute = ranged.widened, ranged.divisor, ranged.span_in_compute
    half, has_offset = bool(spec.rule.half), spec.rule.zero == "offset"

    def of_range(spec, lo, hi, lowest, highest, compute):
        zero, divisor = v.constant(0, lo), highest - lowest + v.constant(more, lowest)
        lo, hi = lo + zero, hi + zero  # -0.0 becomes 0.0: which of them is the minimum depends on order and CPU
        if widened:
            lo, hi = v.minimum(lo, zero), v.maximum(hi, zero)
        if in_compute:
            scale = v.convert(v.convert(hi, compute) - v.convert(lo, compute), within) / divisor
        elif half:
            scale = in_half(spec, in_half(spec, hi - lo) / divisor)
        else:
            scale = _range_over(lo, hi, divisor)
        if not widened:  # such a range may have two infinite ends, and their difference is NaN
            scale = v.select(is_infinite(lo) | is_infinite(hi), v.constant(float("inf"), lo), scale)
        scale, usable = _usable(spec, scale, lo, hi - lo, divisor, compute)
        zero_point = zero_point_of_range(spec, lo, hi, scale, usable, lowest, highest)
        if has_offset:  # that of the widest ranges of float64 may be infinite where the scale is not
            scale = v.select(is_infinite(zero_point), v.constant(float("inf"), scale), scale)
        return scale, zero_point

    return of_range


@specialize
def symmetric(spec, lo, hi, lowest, highest, compute):
    """Compute scale and zero point of ``-m..m``, m the largest magnitude; its ends get codes `lowest` and `highest`."""
    ranged = spec.rule.range
    signed, more, zero_beside = ranged.signed, ranged.divisor, ranged.zero_when_degenerate == "zero"

    def of_range(spec, lo, hi, lowest, highest, compute):
        zero, two = v.constant(0, lo), v.constant(2, lo)
        middle = v.rint((lowest + highest) / two)
        size, steps = v.maximum(v.maximum(-lo, hi), zero), (highest - lowest + v.constant(more, lowest)) / two
        if signed:
            least, most = v.minimum(lo, zero), v.maximum(hi, zero)
            scale = v.select(most > -least, most, least) / (lowest - middle)
        else:
            scale = size / steps
        scale, usable = _usable(spec, scale, lo, size, steps, compute)
        zero_point = v.full_like(middle, lo)
        return scale, v.select(usable, zero_point, zero) if zero_beside else zero_point

    return of_range


@specialize
def _reaching(spec, scale, size, steps, compute):
    """Round a scale that has few digits up, where `size` is more than half a step beyond so many steps."""
    ranged, within = spec.rule.range, v.lane_type(scale)
    if not ranged.reaches:
        return lambda spec, scale, size, steps, compute: scale
    stored, single = FLOAT_FORMATS[ranged.half] if ranged.half else None, compute.dtype == types.float32
    exponent, digits = (1 - stored.bias, stored.mantissa) if stored else (-126, 23) if single else (-1022, 52)
    normal, unit = 2.0**exponent, 2.0 ** (exponent - digits)

    def reaching(spec, scale, size, steps, compute):
        few = v.convert(v.convert(scale, compute), within)
        short = (scale < v.constant(normal, scale)) & (few * (steps + steps + v.constant(1, steps)) < size + size)
        return v.select(short, few + v.constant(unit, scale), scale)

    return reaching


@specialize
def _usable(spec, scale, lo, size, steps, compute):
    """Round a scale where the rule says so and replace degenerate ones; return it and whether it was usable.

    The range is of a `size` that is so many `steps`.
    """
    rule, ranged, within = spec.rule, spec.rule.range, v.lane_type(scale)
    rounds, signed, instead = ranged.rounds_scale, rule.signed, ranged.degenerate
    normal = 2.0**-126 if compute.dtype == types.float32 else 2.0**-1022
    least = normal if ranged.floor is None else ranged.floor
    by_value, to_floor = instead == "value", instead == "floor"
    single = 2.0**-23 if compute.dtype == types.float32 else 2.0**-52
    stored = FLOAT_FORMATS[ranged.half] if ranged.half else None
    least = stored.positive(least) if stored and least else least
    epsilon = 2.0**-stored.mantissa if stored else single
    other = {"epsilon": epsilon, "floor": least, "value": least}.get(instead, instead)
    other = stored.positive(other) if stored else other

    def usable(spec, scale, lo, size, steps, compute):
        scale = _reaching(spec, scale_in_half(spec, scale), size, steps, compute)
        if rounds:
            scale = v.convert(v.convert(scale, compute), within)
        magnitude = v.absolute(scale) if signed else scale
        usable = (magnitude >= v.constant(least, scale)) & (magnitude > v.constant(0, scale))
        if by_value:
            has_value = (v.absolute(lo) >= v.constant(least, lo)) & (v.absolute(lo) > v.constant(0, lo))
            value = v.select(has_value, lo, v.full_like(v.constant(1, lo), lo))
            return v.select(usable, scale, value), usable
        return v.select(usable, scale, v.constant(other, scale)), usable | to_floor

    return usable


@specialize
def round_zero_point(spec, x):
    """Round a zero point by the rule, if at all."""
    return ROUNDING[spec.rule.range.rounding].to_float


@specialize
def zero_point_of_range(spec, lo, hi, scale, usable, lowest, highest):
    """Compute the zero point that belongs to a scale: a code, any float, or an offset."""
    rule, ranged = spec.rule, spec.rule.range
    lowest_code, from_highest = rule.lowest, ranged.from_highest
    rounds_quotient, beside_lowest = ranged.rounds_quotient, ranged.zero_when_degenerate == "lowest"
    beside_end = ranged.zero_when_degenerate == "end"

    def offset(spec, lo, hi, scale, usable, lowest, highest):
        return lo if lowest_code else in_half(spec, lo - in_half(spec, lowest * scale))

    def any_float(spec, lo, hi, scale, usable, lowest, highest):
        end, distance = (highest, hi / scale) if from_highest else (lowest, lo / scale)
        return v.select(usable, in_half(spec, end - in_half(spec, distance)), v.constant(0, lo))

    def code(spec, lo, hi, scale, usable, lowest, highest):
        end, distance = (highest, hi / scale) if from_highest else (lowest, lo / scale)
        distance = in_half(spec, distance)
        if rounds_quotient:
            zero_point = end - round_zero_point(spec, distance)
        else:
            zero_point = round_zero_point(spec, in_half(spec, end - distance))
        beside = lowest if beside_lowest else v.constant(0, lowest)
        if beside_end:
            beside = v.select(lo < v.constant(0, lo), v.full_like(highest, lo), v.full_like(beside, lo))
        return v.select(usable, v.minimum(v.maximum(zero_point, lowest), highest), beside)

    return offset if rule.zero == "offset" else code if ranged.rounding else any_float


@specialize
def _range_over(lo, hi, divisor):
    """Divide ``(hi - lo) / divisor``, in float64 where the difference overflows, and float64 as two quotients.

    A quotient that is larger than any number becomes the largest number.
    """
    dtype = v.lane_type(lo)
    largest, infinite = 2.0**128 - 2.0**104 if dtype == types.float32 else 1.7976931348623157e308, float("inf")
    if dtype == types.float64:

        def quotient(lo, hi, divisor):
            distance, infinity = hi - lo, v.constant(infinite, lo)
            far = v.minimum(hi / divisor - lo / divisor, v.constant(largest, lo))
            far = v.select((hi < infinity) & (lo > -infinity), far, infinity)
            return v.select(distance < infinity, distance / divisor, far)
    else:

        def quotient(lo, hi, divisor):
            distance, infinity = hi - lo, v.constant(infinite, lo)
            near = distance < infinity
            scale = distance / divisor
            if not v.any_lane(near ^ True):
                return scale
            wide = (v.convert(hi, types.float64) - v.convert(lo, types.float64)) / v.convert(divisor, types.float64)
            far = v.convert(v.minimum(wide, v.constant(largest, wide)), types.float32)
            far = v.select((hi < infinity) & (lo > -infinity), far, infinity)
            return v.select(near, scale, far)

    return quotient
