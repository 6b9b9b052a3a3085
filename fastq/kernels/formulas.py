"""Each rule of the contract once, for a scalar and a Vec alike."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.core.registry import cpu_target

from fastq.kernels.minifloat import decode, encode, power_below
from fastq.simd.vec import (
    Vec,
    absolute,
    any_lane,
    bitcast,
    bounded_to_integer,
    by_type,
    constant,
    convert,
    copysign,
    floor,
    fma,
    full_like,
    inline,
    is_float,
    is_nan,
    maximum,
    minimum,
    nearest,
    rint,
    select,
    trunc,
)

_TRIPLE, _CPU, _FEATURES = cpu_target.target_context.codegen().magic_tuple()

# without the instruction, LLVM calls a C function per lane: 50 times slower than the division it would replace
HAS_FMA = "+fma" in _FEATURES or "aarch64" in _TRIPLE


# --- rounding ---------------------------------------------------------------------------------------------------------


@by_type
def to_half_away(x):
    """`x` moved away from zero by the number before a half: its whole part is then that of C's round().

    A whole half would carry 0.49999997 to 1; with this sum, rounded to even, ties still reach the next number.
    """
    half = 0.5 - 2.0**-25 if lane_type(x) == types.float32 else 0.5 - 2.0**-54
    return lambda x: x + copysign(constant(half, x), x)


def _to_whole(rounding: str) -> Any:
    return {
        "half_even": lambda action, x: rint(x),
        "half_away": lambda action, x: trunc(to_half_away(x)),
        "floor": lambda action, x: floor(x),
        "trunc": lambda action, x: trunc(x),
        "": lambda action, x: x,
    }[rounding]


@by_type
def whole(action, x):
    """`x` rounded to a whole float by the action's rule."""
    return _to_whole(action.rule.rounding)


@by_type
def rounded_zero(action, x):
    """A zero point rounded as the action's rule says, if at all."""
    return _to_whole(action.rule.range.rounding)


@by_type
def whole_int32(action, x):
    """`x`, which is in range, rounded to int32 by the action's rule."""
    return {
        "half_even": lambda action, x: nearest(x),
        "half_away": lambda action, x: bounded_to_integer(to_half_away(x), types.int32),
        "floor": lambda action, x: bounded_to_integer(floor(x), types.int32),
        "trunc": lambda action, x: bounded_to_integer(x, types.int32),
    }[action.rule.rounding]


# --- values to codes --------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Scale and zero point of many values, or of as many lanes, made ready for them: see `span`.

    `base` is the code that lies no steps from the zero point, of many spans in memory as int32 (see `base_code`).
    `factor` is the reciprocal of the scale, or the range of all codes. `below` and `above` are bounds of values where
    those are clamped, else of steps.
    """

    scale: Any
    zero_point: Any
    base: Any
    factor: Any
    below: Any
    above: Any


def computes_in(action: Any, like: Any) -> Any:
    """Return the type of the arithmetic: that of the rule, else that of the scale `like`, a pointer or lanes."""
    return getattr(types, action.rule.compute) if action.rule.compute else lane_type(like)


@by_type
def compute_type(action, like):
    """Type of the arithmetic."""
    dtype = computes_in(action, like)
    return lambda action, like: dtype


@by_type
def span(action, scale, zero_point, lowest, highest):
    """Everything about a scale and zero point that `steps_in_span` needs, in the type of the arithmetic."""
    rule, dtype = action.rule, getattr(types, action.rule.compute or str(lane_type(scale)))
    from_zero_point, from_lowest, values = rule.zero == "code", rule.lowest, rule.clamps_values
    by_range, by_double = rule.quotient == "range", rule.quotient == "reciprocal_of_double"

    def prepared(action, scale, zero_point, lowest, highest):
        step, zero = convert(scale, dtype), convert(zero_point, dtype)
        lowest, highest = convert(lowest, dtype), convert(highest, dtype)
        base = zero if from_zero_point else full_like(lowest if from_lowest else constant(0, lowest), zero)
        below, above = lowest - base, highest - base
        if values:
            below, above = below * step, above * step
        if by_range:
            double = convert(scale, types.float64)
            factor = convert(double * convert(highest - lowest, types.float64), dtype)
        elif by_double:
            double = convert(scale, types.float64)
            factor = convert(constant(1, double) / double, dtype)
        else:
            factor = constant(1, step) / step
        return Span(step, zero, base, factor, below, above)

    return prepared


@by_type
def unrounded(action, x, s):
    """`x` in steps from `base`, with the zero point where that is inside the rounding."""
    rule = action.rule
    offset, inside, fused = rule.zero == "offset", rule.zero == "inside", rule.fused and lane_type(x) == types.float32
    divides, by_range = rule.quotient == "divide", rule.quotient == "range"
    fused = fused and not divides

    def steps(action, x, s):
        if fused:
            return fma(x, s.factor, s.zero_point)
        if offset:
            x = x - s.zero_point
        if divides:
            ratio = x / s.scale
        elif by_range:
            ratio = x / s.factor * s.above
        else:
            ratio = x * s.factor
        return ratio + s.zero_point if inside else ratio

    return steps


@by_type
def base_code(s):
    """`base` as int32, which it may already be."""
    if is_float(s.types[s.fields.index("base")]):
        return lambda s: nearest(s.base)
    return lambda s: s.base


@inline
def unclamped_code(action, x, s):
    """The whole number nearest to `x` by the rule, whether there is such a code or not, as a float."""
    return whole(action, unrounded(action, x, s)) + s.base


@inline
def code_value(action, x, s, lowest, highest):
    """`unclamped_code` in `lowest..highest`, floats.

    Infinities and whatever lies far out of range saturate; NaN gives `lowest`.
    """
    dtype = compute_type(action, s.scale)
    return minimum(maximum(unclamped_code(action, x, s), convert(lowest, dtype)), convert(highest, dtype))


@by_type
def unsuited_to_span(action, scale):
    """Mask of the scales for which `steps_in_span` may differ from `code_value`.

    Codes have at most 16 bits, so with a float32 scale in 2**-100 .. 2**100 no product below overflows, and every
    remainder that can decide a tie is exact (its unit is 2**-48 scales). Where steps are clamped the formula is that
    of `code_value` for any scale that is not infinite.
    """
    if not action.rule.clamps_values:
        return lambda action, scale: is_infinite(scale)
    dtype = getattr(types, action.rule.compute) if action.rule.compute else lane_type(scale)
    smallest, largest = (2.0**-100, 2.0**100) if dtype == types.float32 else (2.0**-900, 2.0**900)

    def outside(action, scale):
        return (scale > constant(smallest, scale)) & (scale < constant(largest, scale)) ^ True

    return outside


@by_type
def steps_in_span(action, x, s):
    """``code - base`` as int32, `code_value` bit for bit with fewer instructions, for a scale not `unsuited_to_span`.

    Where values are clamped instead of codes, a value at a bound is divided to within 2**-24 of a whole number of
    codes, which is what it rounds to. So the code is in range, NaN's too: `maximum` gives its second operand for it.
    """
    offset = action.rule.zero == "offset"

    def clamped_values(action, x, s):
        distance = x - s.zero_point if offset else x
        return whole_int32(action, quotient(minimum(maximum(distance, s.below), s.above), s))

    def clamped_steps(action, x, s):
        return whole_int32(action, minimum(maximum(unrounded(action, x, s), s.below), s.above))

    return clamped_values if action.rule.clamps_values else clamped_steps


@inline
def steps_in_range(action, x, s):
    """`steps_in_span` for values of the symmetric range that the scale was taken from: there is nothing to clamp."""
    return whole_int32(action, quotient(x, s))


@by_type
def quotient(x, s):
    """The correctly rounded ``x / s.scale``.

    With r the rounded reciprocal and q = x * r, ``fma(fma(-q, scale, x), r, q)`` is that quotient wherever nothing
    overflows or underflows (Markstein 1990; Brisebarre, Muller and Raina 2004). tests/test_quotient.py proves it for
    float32 by trying every pair of significands whose quotient is near enough to a rounding boundary to be in doubt.
    7.0 against 4.4 Gelem/s for the division, one core, in cache.
    """
    if HAS_FMA and isinstance(x, Vec) and x.dtype == types.float32:

        def corrected(x, s):
            first = x * s.factor
            return fma(fma(-first, s.scale, x), s.factor, first)

        return corrected
    return lambda x, s: x / s.scale


# --- values to float codes --------------------------------------------------------------------------------------------


@by_type
def float_quotient(x, scale, code):
    """``x / scale``, what a float code is the nearest of; ONNX adds the zero point, so -0.0 becomes 0.0, to some."""
    if code.instance_type.row.nan is None:
        return lambda x, scale, code: x / scale + constant(0, x)
    return lambda x, scale, code: x / scale


@by_type
def float_quotient_in_span(x, s, code):
    """`float_quotient` for a scale not `unsuited_to_span`, with x bounded so that nothing overflows.

    Where -0.0 becomes 0.0 the sign depends on how tiny quotients are rounded, which only a division gets right.
    """
    form = code.instance_type
    if form.row.nan is None or not (HAS_FMA and isinstance(x, Vec) and x.dtype == types.float32):
        return lambda x, s, code: float_quotient(x, s.scale, code)
    bound = form.row.max if form.saturate else 4 * form.row.max

    def bounded(x, s, code):
        limit = constant(bound, x) * s.scale
        near = quotient(maximum(-limit, minimum(limit, x)), s)  # of NaN itself, in this order
        return _signed_like(near, x)

    return bounded


@inline
def _signed_like(near, x):
    """The quotient with the sign of x, which its correction takes from -0.0 and perhaps NaN."""
    word, sign = bitcast(x, types.int32), constant(-(1 << 31), bitcast(x, types.int32))
    return bitcast((bitcast(near, types.int32) & ~sign) | (word & sign), types.float32)


# --- codes to values --------------------------------------------------------------------------------------------------


@by_type
def value_of_steps(action, steps, s):
    """The value that lies so many steps from `base`."""
    rule = action.rule
    inside, middle, offset, by_range = (
        rule.zero == "inside",
        rule.middle,
        rule.zero == "offset",
        rule.quotient == "range",
    )

    def value(action, steps, s):
        if inside:
            steps = steps - s.zero_point
        if middle:
            steps = steps + constant(0.5, steps)
        if by_range:
            return steps / s.above * s.factor + s.zero_point
        return steps * s.scale + s.zero_point if offset else steps * s.scale

    return value


@inline
def _scaled(code, scale):
    """Their product; of two NaN the code's, where the CPU takes the one that the compiler put first."""
    return select(is_nan(code), code, code * scale)


@by_type
def dequantize_value(action, code, s):
    """The value of a code; the difference of two 16 bit codes is exact in float32.

    Codes with scales of their format's own are decoded in float32.
    """
    single = types.float32
    if action.own == "tensor":
        return lambda action, code, s: (
            convert(code, single) * (convert(s.scale, single) * convert(s.zero_point, single))
        )
    if action.own == "power":
        return lambda action, code, s: _scaled(convert(code, single), convert(s.scale, single))
    return lambda action, code, s: value_of_steps(action, code - s.base, s)


# --- a range to parameters --------------------------------------------------------------------------------------------


@inline
def power_of_two(lo, hi, below, kind):
    """Scale and zero point of a block by OCP Microscaling Formats (MX) 1.0, section 6.3.

    ``2**(floor(log2(largest magnitude)) - below)`` with `below` the exponent of the largest number of the element.
    """
    zero = constant(0, lo)
    return power_below(maximum(maximum(-lo, hi), zero), below, kind), full_like(zero, lo)


NVFP4_LEAST = 2.0**-6  # the smallest normal number of float8_e4m3fn, under which torchao lets no block scale fall


@by_type
def nvfp4(lo, hi, tensor, kind, element):
    """Scale of a block in units of the array's scale, rounded to a float of `kind`, and what is in the zero's place.

    ``clamp(largest magnitude / largest element / tensor)``, torchao's `nvfp4_quantize`.
    """
    least, most, elements = NVFP4_LEAST, kind.instance_type.row.max, element.instance_type.row.max
    compute = lane_type(lo)

    def rounded(lo, hi, tensor, kind, element):
        zero = constant(0, lo)
        largest = maximum(maximum(-lo, hi), zero)
        scale = largest / constant(elements, lo) / tensor
        scale = minimum(maximum(scale, constant(least, lo)), constant(most, lo))
        return convert(decode(encode(scale, kind), kind), compute), full_like(tensor, lo)

    return rounded


@inline
def nvfp4_units(x, scale, tensor):
    """Values in units of elements, ``x * (1 / tensor / scale)`` as torchao."""
    return x * (constant(1, tensor) / tensor / scale)


# Of the branches below on constants of the rule one is compiled; a function each would double the time to compile.


@by_type
def asymmetric(action, lo, hi, lowest, highest, compute):
    """Scale and zero point of ``lo..hi`` by the action's rule; `compute` is the type of the values."""
    ranged, within = action.rule.range, lane_type(lo)
    widened, more, in_compute = ranged.widened, ranged.divisor, ranged.span_in_compute

    def of_range(action, lo, hi, lowest, highest, compute):
        zero, steps = constant(0, lo), highest - lowest + constant(more, lowest)
        if widened:
            lo, hi = minimum(lo, zero), maximum(hi, zero)
        else:  # -0.0 becomes 0.0: which of them is the minimum depends on the order
            lo, hi = lo + zero, hi + zero
        if in_compute:
            step = convert(convert(hi, compute) - convert(lo, compute), within) / steps
        else:
            step = _step(lo, hi, steps)
        if not widened:  # such a range may have two infinite ends, and their difference is NaN
            step = select(is_infinite(lo) | is_infinite(hi), constant(float("inf"), lo), step)
        scale, usable = _usable(action, step, lo, compute)
        return scale, zero_of_range(action, lo, hi, scale, usable, lowest, highest)

    return of_range


@by_type
def symmetric(action, lo, hi, lowest, highest, compute):
    """Scale and zero point of ``-m..m``, m the largest magnitude; `lowest` and `highest` are the codes of its ends."""
    ranged = action.rule.range
    signed, more, zero_beside = ranged.signed, ranged.divisor, ranged.zero_when_degenerate == "zero"

    def of_range(action, lo, hi, lowest, highest, compute):
        zero, two = constant(0, lo), constant(2, lo)
        middle = rint((lowest + highest) / two)
        if signed:
            lo, hi = minimum(lo, zero), maximum(hi, zero)
            step = select(hi > -lo, hi, lo) / (lowest - middle)
        else:
            step = maximum(maximum(-lo, hi), zero) / ((highest - lowest + constant(more, lowest)) / two)
        scale, usable = _usable(action, step, lo, compute)
        zero_point = full_like(middle, lo)
        return scale, select(usable, zero_point, zero) if zero_beside else zero_point

    return of_range


@by_type
def _usable(action, scale, lo, compute):
    """The scale, rounded where the rule says so, another where it is degenerate, and whether it is not."""
    rule, ranged, within = action.rule, action.rule.range, lane_type(scale)
    rounds, signed, instead = ranged.rounds_scale, rule.signed, ranged.degenerate
    normal = 2.0**-126 if compute.dtype == types.float32 else 2.0**-1022
    least = normal if ranged.floor is None else ranged.floor
    by_value, to_floor = instead == "value", instead == "floor"
    other = least if isinstance(instead, str) else instead

    def usable(action, scale, lo, compute):
        if rounds:
            scale = convert(convert(scale, compute), within)
        size = absolute(scale) if signed else scale
        usable = (size >= constant(least, scale)) & (size > constant(0, scale))
        if by_value:
            value = select(absolute(lo) >= constant(least, lo), lo, full_like(constant(1, lo), lo))
            return select(usable, scale, value), usable
        return select(usable, scale, constant(other, scale)), usable | to_floor

    return usable


@by_type
def zero_of_range(action, lo, hi, scale, usable, lowest, highest):
    """The zero point that belongs to a scale: a code, any float, or an offset."""
    rule, ranged = action.rule, action.rule.range
    lowest_code, from_highest = rule.lowest, ranged.from_highest
    rounds_quotient, beside_lowest = ranged.rounds_quotient, ranged.zero_when_degenerate == "lowest"

    def offset(action, lo, hi, scale, usable, lowest, highest):
        return lo if lowest_code else lo - lowest * scale

    def any_float(action, lo, hi, scale, usable, lowest, highest):
        zero_point = highest - hi / scale if from_highest else lowest - lo / scale
        return select(usable, zero_point, constant(0, lo))

    def code(action, lo, hi, scale, usable, lowest, highest):
        end, steps = (highest, hi / scale) if from_highest else (lowest, lo / scale)
        zero_point = end - rounded_zero(action, steps) if rounds_quotient else rounded_zero(action, end - steps)
        beside = lowest if beside_lowest else constant(0, lowest)
        return select(usable, minimum(maximum(zero_point, lowest), highest), beside)

    return offset if rule.zero == "offset" else code if ranged.rounding else any_float


@inline
def is_infinite(scale):
    """Mask of the scales that a range with an infinite end gives."""
    return absolute(scale) == constant(float("inf"), scale)


def lane_type(kind: Any) -> Any:
    """Lane type of lanes, a pointer or a scalar."""
    return types.unliteral(getattr(kind, "dtype", kind))


@by_type
def _step(lo, hi, steps):
    """``(hi - lo) / steps``, also where the difference overflows: then in float64, for float64 as two quotients.

    A single step may be larger than any number; it is the largest then.
    """
    dtype = lo.dtype if isinstance(lo, Vec) else lo
    largest, infinite = 2.0**128 - 2.0**104 if dtype == types.float32 else 1.7976931348623157e308, float("inf")
    if dtype == types.float64:

        def step(lo, hi, steps):
            distance, infinity = hi - lo, constant(infinite, lo)
            far = minimum(hi / steps - lo / steps, constant(largest, lo))
            far = select((hi < infinity) & (lo > -infinity), far, infinity)
            return select(distance < infinity, distance / steps, far)
    else:

        def step(lo, hi, steps):
            distance, infinity = hi - lo, constant(infinite, lo)
            near = distance < infinity
            scale = distance / steps
            if not any_lane(near ^ True):
                return scale
            wide = (convert(hi, types.float64) - convert(lo, types.float64)) / convert(steps, types.float64)
            far = convert(minimum(wide, constant(largest, wide)), types.float32)
            far = select((hi < infinity) & (lo > -infinity), far, infinity)
            return select(near, scale, far)

    return step
