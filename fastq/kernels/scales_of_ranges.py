"""Turn ranges of values into scales, zero points and offsets, by each convention's rule.

Functions that look at the bits of a float take a scalar as a Vec of one lane.
"""

from __future__ import annotations

from typing import Any

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.formulas import computes_in, is_infinite, round_as
from fastq.kernels.minifloat import (
    FIELDS_OF_FLOATS,
    LEAST_POWER,
    decode,
    encode,
    in_half,
    offset_as_stored,
    scale_as_stored,
    scale_in_half,
)


@traced
def range_parameters(spec, lo, hi, args, scale):
    """Compute scale and zero point, or offset, of the range lo..hi by the scheme, in the dtype of `scale`.

    `scale` is the pointer to where scales are stored, of which only the type counts. A range for which there is no
    finite scale gets an infinite one, which callers report.
    """
    compute = computes_in(spec, scale)
    stored = scale.dtype
    lo, hi = v.convert(lo, compute), v.convert(hi, compute)
    if spec.range_scheme == "microscaling":
        return power_of_two(spec, lo, hi, stored)
    if spec.range_scheme == "nvfp4":
        return nvfp4(spec, lo, hi, args.tensor, stored)
    within = types.float64 if spec.rule.range.in_float64 else compute
    codes = spec.rule.range.codes
    lowest, highest = (args.lowest, args.highest) if codes is None else codes
    ends = v.convert(lo, within), v.convert(hi, within), v.convert(lowest, within), v.convert(highest, within)
    formula = symmetric if spec.range_scheme == "symmetric" else asymmetric
    scales, zero_points = formula(spec, *ends, compute)
    if spec.rule.range.stored_in_float32:
        scales, zero_points = in_single(spec, scales, zero_points)
    if spec.rule.range.scale_from_inverse:
        double = v.convert(scales, types.float64)
        scales = v.constant(1, double) / double
    if spec.rule.stored_half:
        scales = _finite_when_stored(spec, scales, zero_points)
    return v.convert(scales, stored), v.convert(zero_points, stored)


@traced
def in_single(spec, scales, zero_points):
    """Round scales and offsets to float32; where either overflows, the scale is infinite."""
    within = v.lane_type(scales)
    scales = v.convert(v.convert(scales, types.float32), within)
    if spec.rule.zero != "offset":
        return scales, zero_points
    offsets = v.convert(v.convert(zero_points, types.float32), within)
    return v.select(is_infinite(offsets), v.constant(float("inf"), scales), scales), offsets


@traced
def _finite_when_stored(spec, scales, zero_points):
    """Make the scales infinite that will be, or whose offsets will be, in the type that they are stored in.

    They are rounded to it only after codes were computed, when a refusal would come too late.
    """
    infinity = v.constant(float("inf"), scales)
    scales = v.select(is_infinite(scale_as_stored(spec, scales)), infinity, scales)
    if spec.rule.zero != "offset":
        return scales
    return v.select(is_infinite(offset_as_stored(spec, zero_points)), infinity, scales)


@traced
def power_of_two(spec, lo, hi, form):
    """Compute scale and zero point of a block whose scale is a power of two, stored in a format of exponents alone.

    Its exponent is that of the largest magnitude, less that of the largest number of the element, or of their quotient.
    """
    range_rule = spec.rule.range
    zero = v.constant(0, lo)
    largest = v.maximum(v.maximum(-lo, hi), zero)
    digits = {"even_float4": FLOAT_FORMATS["float4_e2m1fn"].mantissa, "even": _digits(spec)}.get(range_rule.exponent, 0)
    below = spec.code.format.emax if spec.code is not None else 0
    if range_rule.exponent == "ceil_of_quotient":
        largest = _over(spec, largest, v.constant(_largest_element(spec), lo))
        below = 0
    power = power_of_exponent(largest, range_rule.exponent.split("_")[0], digits, below, form)
    if range_rule.scale_of_zeros != 2.0**-127:  # which is the least exponent, and so that of zeros already
        # of mxint8 the bias is 6 more than 127, since its codes count 64ths: numbers are 2**-6 of the scale
        of_zeros = v.constant(range_rule.scale_of_zeros * 2.0 ** (127 - form.bias), power)
        power = v.select(largest == zero, of_zeros, power)
    return power, v.full_like(zero, lo)


@traced
def power_of_exponent(x, rounding, digits, below, form):
    """Return ``2**(e - below)``, e the exponent of a magnitude x, with an exponent that `form` has.

    The exponent is rounded up with "ceil", and with "even" if x rounded half up to so many binary digits after the
    first is the next power of two, else down. `below` is the exponent of the largest number of an element, or 0.
    Infinity stays infinity.
    """
    if not isinstance(x, v.Vec):
        return v.first(power_of_exponent(v.full(x, v.Vec(v.lane_type(x), 1)), rounding, digits, below, form))
    integer, mantissa, bias = FIELDS_OF_FLOATS[x.dtype]
    word = v.bitcast(x, integer)
    shift = v.constant(mantissa, v.bitcast(x, integer))
    # what is added to the bits, so that a rounding up carries into the exponent
    carry = {"floor": 0, "even": 1 << (mantissa - digits - 1), "ceil": (1 << mantissa) - 1}[rounding]
    if carry and not below and integer == types.int32:  # the least powers are subnormal numbers
        least_normal = v.constant(1 << mantissa, word)
        word = word + v.select(word < least_normal, v.constant(carry >> 1, word), v.constant(carry, word))
    elif carry:
        word = word + v.constant(carry, word)
    exponent = ((word >> shift) - v.constant(below, word)) << shift
    least = LEAST_POWER if x.dtype == types.float32 else (bias - 127) << mantissa
    bounded = v.minimum(v.maximum(exponent, v.constant(least, word)), v.constant((bias + 127) << mantissa, word))
    power = v.bitcast(bounded, x.dtype) * v.constant(2.0 ** (127 - form.bias), x)
    return v.select(x == v.constant(float("inf"), x), x, power)


MXINT8_DIGITS = 6  # codes of mxint8 count 64ths


def _digits(spec: Any) -> int:
    """Return the binary digits that elements have after the first one."""
    return MXINT8_DIGITS if spec.code is None else spec.code.format.mantissa


def _largest_element(spec: Any) -> float:
    """Return the largest number of an element; of mxint8 that of code 127, in 64ths."""
    return 127 / (1 << MXINT8_DIGITS) if spec.code is None else spec.code.format.max


@traced
def nvfp4(spec, lo, hi, tensor, form):
    """Return the scale of a block in units of the scale of the array, rounded to `form`, and the scale of the array.

    ``clamp(largest magnitude / largest element / tensor)``.
    """
    range_rule = spec.rule.range
    largest = v.maximum(v.maximum(-lo, hi), v.constant(0, lo))
    scale = _over(spec, largest, v.constant(_largest_element(spec), lo)) / tensor
    scale = v.minimum(v.maximum(scale, v.constant(range_rule.block_scale_floor, lo)), v.constant(form.format.max, lo))
    scale = v.convert(decode(encode(scale, form), form), v.lane_type(lo))
    if range_rule.tensor_scale_is_one:  # else the range of the array was looked at, and infinity found there
        scale = v.select(is_infinite(largest), largest, scale)
    return scale, v.full_like(tensor, lo)


@traced
def asymmetric(spec, lo, hi, lowest, highest, compute):
    """Compute scale and zero point, or offset, of ``lo..hi`` by the rule.

    `lowest` and `highest` are the codes of its ends, and `compute` is the type of the values.
    """
    range_rule = spec.rule.range
    within = v.lane_type(lo)
    zero = v.constant(0, lo)
    divisor = highest - lowest + v.constant(range_rule.added_to_divisor, lowest)
    lo, hi = lo + zero, hi + zero  # -0.0 becomes 0.0: which of them is the minimum depends on order and CPU
    if range_rule.includes_zero:
        lo, hi = v.minimum(lo, zero), v.maximum(hi, zero)
    is_constant = lo == hi
    if range_rule.starts_at_float32_below:
        lo = float32_below(lo)
    if range_rule.scale_from_inverse:
        inverse = _inverse(spec, lo, hi, divisor, compute)
        return inverse, lowest - lo * inverse
    if range_rule.span_in_compute:
        scale = v.convert(v.convert(hi, compute) - v.convert(lo, compute), within)
        scale = _over(spec, scale, divisor)
    elif spec.rule.operation_half or range_rule.scale_by_reciprocal:
        scale = _over(spec, in_half(spec, hi - lo), divisor)
    else:
        scale = (_range_over_double if within == types.float64 else _range_over)(lo, hi, divisor)
    size = hi - lo
    if range_rule.range_floor:  # quotients by the same number keep their order
        floor = in_half(spec, v.constant(range_rule.range_floor, lo))
        size = v.maximum(size, floor)
        scale = v.maximum(scale, _over(spec, floor, divisor))
    infinity = v.constant(float("inf"), scale)
    if not range_rule.includes_zero:  # such a range may have two infinite ends, and their difference is NaN
        scale = v.select(is_infinite(lo) | is_infinite(hi), infinity, scale)
    if range_rule.scale_is_power_of_two:
        scale = power_that_suffices(spec, scale, hi - lo, divisor, compute)
    elif range_rule.scale_has_whole_inverse:
        scale = with_whole_inverse(scale)
    if spec.rule.by_range:
        scale = within_range(scale, v.convert(lo, compute), v.convert(hi, compute), highest - lowest)
    if range_rule.starts_at_float32_below:
        scale = v.select(is_constant, zero, scale)
    scale, usable = _usable(spec, scale, lo, size, divisor, compute)
    scale = _of_narrow(spec, scale, hi - lo)
    if range_rule.scale_sign != "positive":
        scale, lo, hi = with_sign(range_rule.scale_sign, scale, lo, hi, usable)
    if range_rule.offset_in_whole_steps:
        scale, lo = in_whole_steps(scale, lo)
    zero_point = zero_point_of_range(spec, lo, hi, scale, usable, lowest, highest)
    if spec.rule.zero == "offset":  # that of the widest ranges of float64 may be infinite where the scale is not
        scale = v.select(is_infinite(zero_point), infinity, scale)
    return scale, zero_point


@traced
def within_range(scale, lo, hi, steps):
    """Return the scale, or the next smaller number if so many steps are longer than the range."""
    if not isinstance(scale, v.Vec):
        lanes = [v.full(each, v.Vec(v.lane_type(each), 1)) for each in (scale, lo, hi, steps)]
        return v.first(within_range(*lanes))
    span = v.convert(v.convert(scale, types.float64) * v.convert(steps, types.float64), lo.dtype)
    word = v.bitcast(scale, types.int32 if scale.dtype == types.float32 else types.int64)
    before = v.bitcast(word - v.constant(1, word), scale.dtype)
    return v.select(span > hi - lo, before, scale)


@traced
def with_sign(sign, scale, lo, hi, usable):
    """Give usable scales the sign that the rule asks for, and exchange the ends of the ranges of negative ones.

    With a negative scale the lowest code stands for the upper end. "farther_end" gives that code to the end that is
    farther from 0, "nearer_end" to the one that is nearer.
    """
    if sign == "farther_end":
        is_negative = usable & ((v.absolute(lo) > v.absolute(hi)) ^ True)
    else:
        is_negative = usable if sign == "negative" else usable & (-lo > hi)
    return v.select(is_negative, -scale, scale), v.select(is_negative, hi, lo), v.select(is_negative, lo, hi)


@traced
def power_that_suffices(spec, scale, span, steps, compute):
    """Return the smallest power of two, a normal number, by which a span has at most `steps` steps when rounded."""
    power = power_above(scale)
    half = power * v.constant(0.5, power)
    is_normal = half >= v.constant(_ends_of_few_digits(spec, compute)[0], half)
    suffices = is_normal & (round_as(spec.rule.rounding, span / half) <= steps)
    return v.select(suffices, half, power)


@traced
def with_whole_inverse(scale):
    """Return the inverse of a whole number that is not below a scale below 1; 0 and numbers without inverse stay."""
    one = v.constant(1, scale)
    steps = v.floor(one / scale)
    changes = (scale < one) & (steps < v.constant(float("inf"), steps))
    return v.select(changes, one / steps, scale)


@traced
def power_above(x):
    """Return the smallest power of two that is a normal number and not below x; 0 and infinity stay."""
    if not isinstance(x, v.Vec):
        return v.first(power_above(v.full(x, v.Vec(v.lane_type(x), 1))))
    integer, mantissa = (types.int32, 23) if x.dtype == types.float32 else (types.int64, 52)
    word = v.bitcast(x, integer)
    rest = v.constant((1 << mantissa) - 1, word)
    return v.bitcast((word + rest) & ~rest, x.dtype)


SMALLEST_NORMAL = 2.0**-126


@traced
def float32_below(x):
    """Return the largest float32 that is not above x, in the type of x; subnormal ones are left out."""
    if not isinstance(x, v.Vec):
        return v.first(float32_below(v.full(x, v.Vec(v.lane_type(x), 1))))
    near = v.convert(x, types.float32)
    word = v.bitcast(near, types.int32)
    one = v.constant(1, word)
    before = v.convert(v.bitcast(v.select(near > v.constant(0, near), word - one, word + one), types.float32), x.dtype)
    near = v.convert(near, x.dtype)
    below = v.select(near > x, before, near)
    zero = v.constant(0, x)
    least = v.constant(SMALLEST_NORMAL, x)
    return v.select(v.absolute(x) < least, v.select(x < zero, -least, v.full_like(zero, x)), below)


@traced
def _inverse(spec, lo, hi, divisor, compute):
    """Return how many steps a unit has; 0 where that of a range is infinite."""
    size = hi - lo
    zero = v.constant(0, lo)
    infinite = is_infinite(lo) | is_infinite(hi)  # two of them differ by NaN
    inverse = _of_narrow(spec, v.select(infinite, zero, v.constant(1, size) / size * divisor), size)
    least = _least(spec, compute)
    return v.minimum(inverse, v.constant(1 / least, inverse)) if least else inverse


@traced
def _of_narrow(spec, scale, size):
    """Return scales, 1 where a range is too narrow."""
    narrow = spec.rule.range.narrow_range
    return scale if narrow is None else v.select(size <= v.constant(narrow, size), v.constant(1, scale), scale)


@traced
def in_whole_steps(scale, offset):
    """Change scales so that offsets are whole numbers of steps; offsets of less than half a step become 0."""
    zero = v.constant(0, scale)
    steps = v.rint(offset / scale)
    whole = (steps != zero) & (is_infinite(steps) ^ True)
    return v.select(whole, offset / steps, scale), v.select(steps == zero, zero, offset)


@traced
def symmetric(spec, lo, hi, lowest, highest, compute):
    """Compute scale and zero point of ``-m..m``, m the largest magnitude; its ends get codes `lowest` and `highest`."""
    range_rule = spec.rule.range
    zero = v.constant(0, lo)
    two = v.constant(2, lo)
    middle = v.rint((lowest + highest) / two)
    size = v.maximum(v.maximum(-lo, hi), in_half(spec, v.constant(range_rule.range_floor, lo)))
    steps = (highest - lowest + v.constant(range_rule.added_to_divisor, lowest)) / two
    if range_rule.symmetric_extreme:
        least = v.minimum(lo, zero) if range_rule.symmetric_extreme == "signed" else -v.absolute(lo)
        most = v.maximum(hi, zero)
        floor = in_half(spec, v.constant(range_rule.range_floor, lo))
        scale = _over(spec, v.select(most > -least, v.maximum(most, floor), v.minimum(least, -floor)), -steps)
    else:
        scale = _over(spec, size, steps)
    scale, usable = _usable(spec, scale, lo, size, steps, compute)
    zero_point = v.full_like(middle, lo)
    return scale, v.select(usable, zero_point, zero) if range_rule.degenerate_zero_point == "zero" else zero_point


@traced
def _over(spec, size, steps):
    """Divide the size of a range by a number of steps, or multiply it by the rounded reciprocal."""
    if spec.rule.range.scale_by_reciprocal:
        return in_half(spec, size * in_half(spec, v.constant(1, steps) / steps))
    return in_half(spec, size / steps)


def _ends_of_few_digits(spec, compute):
    """Return the smallest normal number of the type that scales are rounded to, and the distance of those below it."""
    stored = FLOAT_FORMATS[spec.rule.range.scale_half] if spec.rule.range.scale_half else None
    if stored:
        return 2.0 ** (1 - stored.bias), 2.0 ** (1 - stored.bias - stored.mantissa)
    return (2.0**-126, 2.0**-149) if compute == types.float32 else (2.0**-1022, 2.0**-1074)


def _least(spec, compute):
    """Return the smallest scale that is usable: as the type has it that scales are rounded to, above 0."""
    range_rule = spec.rule.range
    least = 2.0**-126 if compute == types.float32 else 2.0**-1022
    least = {None: least, "root": least**0.5}.get(range_rule.scale_floor, range_rule.scale_floor)
    if range_rule.stored_in_float32:
        return max(least, 2.0**-149)
    return FLOAT_FORMATS[range_rule.scale_half].positive(least) if range_rule.scale_half and least else least


@traced
def _usable(spec, scale, lo, size, steps, compute):
    """Round a scale where the rule says so and replace degenerate ones; return it and whether it was usable.

    The range has a `size` of `steps` steps.
    """
    range_rule = spec.rule.range
    scale = scale_in_half(spec, scale)
    if range_rule.tiny_scale_reaches and not range_rule.scale_rounded:
        return _usable_of_few_digits(spec, scale, lo, size, steps, compute)
    return _replace_degenerate(spec, _raised_to_reach_ends(spec, scale, size, steps, compute), lo, compute)


@traced
def _usable_of_few_digits(spec, scale, lo, size, steps, compute):
    """Do what `_usable` does, but at once where all scales are normal numbers, as they mostly are: decision D9."""
    normal = _is_normal(spec, scale, compute)
    if not v.any_lane(normal ^ True):
        return scale, normal
    return _replace_degenerate(spec, _raised_to_reach_ends(spec, scale, size, steps, compute), lo, compute)


@traced
def _is_normal(spec, scale, compute):
    """Whether a scale is usable and has all digits."""
    return scale >= v.constant(max(_ends_of_few_digits(spec, compute)[0], _least(spec, compute)), scale)


@traced
def _raised_to_reach_ends(spec, scale, size, steps, compute):
    """Round a scale with few digits up if `size` is more than half a step beyond `steps` steps."""
    if not spec.rule.range.tiny_scale_reaches:
        return scale
    normal, unit = _ends_of_few_digits(spec, compute)
    rounded = v.convert(v.convert(scale, compute), v.lane_type(scale))
    short = scale < v.constant(normal, scale)
    short = short & (rounded * (steps + steps + v.constant(1, steps)) < size + size)
    return v.select(short, rounded + v.constant(unit, scale), scale)


@traced
def _replace_degenerate(spec, scale, lo, compute):
    """Round a scale to the type of values where the rule says so, and replace degenerate ones: 0, or below the floor.

    Return it, and whether the zero point follows from it by the formula: also of a replaced one, if the rule says so.
    """
    range_rule = spec.rule.range
    within = v.lane_type(scale)
    least = _least(spec, compute)
    stored = FLOAT_FORMATS[range_rule.scale_half] if range_rule.scale_half else None
    mantissa = stored.mantissa if stored else 23 if compute == types.float32 else 52
    epsilon = 2.0**-mantissa
    replacement = {"epsilon": epsilon, "floor": least, "value": least}.get(range_rule.degenerate, range_rule.degenerate)
    if range_rule.scale_rounded:
        scale = v.convert(v.convert(scale, compute), within)
    magnitude = v.absolute(scale) if spec.rule.signed else scale
    usable = (magnitude >= v.constant(least, scale)) & (magnitude > v.constant(0, scale))
    by_formula = range_rule.degenerate == "floor" or range_rule.degenerate_zero_point == "formula"
    if range_rule.degenerate == "value":
        has_value = (v.absolute(lo) >= v.constant(least, lo)) & (v.absolute(lo) > v.constant(0, lo))
        return v.select(usable, scale, v.select(has_value, lo, v.full_like(v.constant(1, lo), lo))), usable | by_formula
    replacement = v.constant(stored.positive(replacement) if stored else replacement, scale)
    return v.select(usable, scale, replacement), usable | by_formula


@traced
def zero_point_of_range(spec, lo, hi, scale, usable, lowest, highest):
    """Compute the zero point that belongs to a scale: a code, any float, or an offset."""
    range_rule = spec.rule.range
    zero = v.constant(0, lo)
    if spec.rule.zero == "offset":
        return _offset(spec, lo, hi, scale, usable, lowest, highest)
    end, distance = (highest, hi / scale) if range_rule.zero_point_end == "highest" else (lowest, lo / scale)
    distance = in_half(spec, distance)
    zero_point = in_half(spec, end - distance)
    if range_rule.zero_point_end == "both":
        zero_point = _zero_point_between(spec, lo, hi, lowest, highest, zero_point)
    if not range_rule.zero_point_rounding:
        return v.select(usable, zero_point, zero)
    if range_rule.zero_point_rounds_quotient and range_rule.zero_point_end != "both":
        zero_point = end - round_as(range_rule.zero_point_rounding, distance)
    else:
        zero_point = round_as(range_rule.zero_point_rounding, zero_point)
    of_degenerate = lowest if range_rule.degenerate_zero_point == "lowest" else v.constant(0, lowest)
    if range_rule.degenerate_zero_point == "end":
        of_degenerate = v.select(lo < zero, v.full_like(highest, lo), v.full_like(of_degenerate, lo))
    return v.select(usable, v.minimum(v.maximum(zero_point, lowest), highest), of_degenerate)


@traced
def _zero_point_between(spec, lo, hi, lowest, highest, other):
    """Compute the zero point from both ends of the range; where products overflow or it has no size, it is `other`."""
    above, below = in_half(spec, lowest * hi), in_half(spec, highest * lo)
    point = in_half(spec, in_half(spec, above - below) / in_half(spec, hi - lo))
    return v.select(is_infinite(point) | v.is_nan(point), other, point)


@traced
def _offset(spec, lo, hi, scale, usable, lowest, highest):
    """Compute an offset from the ends of a range, by the rule.

    It is the value of the lowest code ("lowest"), or of code 0, from the lower ends ("zero") or from the middles of the
    range and of the codes ("middle"). Where the scale is not `usable`, as of a range of one value, it is 0.0 or that
    value, as the rule says.
    """
    if spec.rule.offset == "lowest":
        offset = lo
    elif spec.rule.offset == "zero":
        offset = in_half(spec, lo - in_half(spec, lowest * scale))
    else:
        twice = in_half(spec, in_half(spec, lo + hi) - in_half(spec, (lowest + highest) * scale))
        offset = in_half(spec, twice * v.constant(0.5, twice))
    if spec.rule.range.degenerate_zero_point not in ("zero", "value"):
        return offset
    is_zero = spec.rule.range.degenerate_zero_point == "zero"
    return v.select(usable, offset, v.full_like(v.constant(0, lo), lo) if is_zero else lo)


@traced
def _range_over_double(lo, hi, divisor):
    """Divide as `_range_over`, where no type is wider: a difference that overflows as that of two quotients.

    A quotient that is larger than any number becomes the largest number.
    """
    distance = hi - lo
    infinity = v.constant(float("inf"), lo)
    far = v.minimum(hi / divisor - lo / divisor, v.constant(1.7976931348623157e308, lo))
    far = v.select((hi < infinity) & (lo > -infinity), far, infinity)
    return v.select(distance < infinity, distance / divisor, far)


@traced
def _range_over(lo, hi, divisor):
    """Divide ``(hi - lo) / divisor``, in float64 where the difference overflows.

    A quotient that is larger than any number becomes the largest number.
    """
    distance = hi - lo
    infinity = v.constant(float("inf"), lo)
    near = distance < infinity
    scale = distance / divisor
    if not v.any_lane(near ^ True):
        return scale
    wide = (v.convert(hi, types.float64) - v.convert(lo, types.float64)) / v.convert(divisor, types.float64)
    far = v.convert(v.minimum(wide, v.constant(2.0**128 - 2.0**104, wide)), types.float32)
    return v.select(near, scale, v.select((hi < infinity) & (lo > -infinity), far, infinity))
