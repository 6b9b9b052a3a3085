"""Each rule of the contract once, for a scalar and a Vec alike."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.core.registry import cpu_target

from fastq.kernels.simd import (
    Vec,
    absolute,
    any_lane,
    bounded_to_integer,
    by_type,
    constant,
    convert,
    copysign,
    floor,
    fma,
    full_like,
    inline,
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

    `base` is the code that lies no steps from the zero point. `factor` is the reciprocal of the scale, or the range of
    all codes. `below` and `above` are bounds of values where those are clamped, else of steps.
    """

    scale: Any
    zero_point: Any
    base: Any
    factor: Any
    below: Any
    above: Any


@by_type
def compute_type(action, like):
    """Type of the arithmetic: that of the rule, else that of the scale `like`, a pointer or lanes."""
    dtype = getattr(types, action.rule.compute) if action.rule.compute else lane_type(like)
    return lambda action, like: dtype


@inline
def span(action, scale, zero_point, lowest, highest):
    """Everything about a scale and zero point that `steps` needs, in the type of the arithmetic."""
    dtype = compute_type(action, scale)
    step, zero = convert(scale, dtype), convert(zero_point, dtype)
    lowest, highest = convert(lowest, dtype), convert(highest, dtype)
    base = base_code(action, zero, lowest)
    below, above = bounds(action, step, lowest - base, highest - base)
    return Span(step, zero, base, factor(action, scale, step, highest - lowest), below, above)


@by_type
def base_code(action, zero_point, lowest):
    """The code that steps are counted from."""
    if action.rule.zero == "code":
        return lambda action, zero_point, lowest: zero_point
    if action.rule.lowest:
        return lambda action, zero_point, lowest: full_like(lowest, zero_point)
    return lambda action, zero_point, lowest: full_like(constant(0, lowest), zero_point)


@by_type
def bounds(action, scale, lowest, highest):
    """Values whose codes are the lowest and the highest, or the steps of these codes where steps are clamped."""
    if action.rule.clamps_values:
        return lambda action, scale, lowest, highest: (lowest * scale, highest * scale)
    return lambda action, scale, lowest, highest: (lowest, highest)


@by_type
def factor(action, stored, scale, count):
    """The reciprocal of a scale, or the range of `count` steps; `stored` is the scale before it was converted."""
    if action.rule.quotient == "range":
        return lambda action, stored, scale, count: convert(
            convert(stored, types.float64) * convert(count, types.float64), compute_type(action, stored)
        )
    if action.rule.quotient == "reciprocal_of_double":
        return lambda action, stored, scale, count: convert(
            constant(1, convert(stored, types.float64)) / convert(stored, types.float64), compute_type(action, stored)
        )
    return lambda action, stored, scale, count: constant(1, scale) / scale


@by_type
def distance(action, x, s):
    """`x` from the zero point, where that is a value."""
    if action.rule.zero == "offset":
        return lambda action, x, s: x - s.zero_point
    return lambda action, x, s: x


@by_type
def ratio(action, x, s):
    """`x`, a distance, in steps: not rounded to whole ones."""
    if action.rule.quotient == "divide":
        return lambda action, x, s: x / s.scale
    if action.rule.quotient == "range":
        return lambda action, x, s: x / s.factor * s.above
    return lambda action, x, s: x * s.factor


@by_type
def unrounded(action, x, s):
    """`x` in steps from `base`, with the zero point where that is inside the rounding."""
    if action.rule.fused and "reciprocal" in action.rule.quotient and lane_type(x) == types.float32:
        return lambda action, x, s: fma(x, s.factor, s.zero_point)
    if action.rule.zero == "inside":
        return lambda action, x, s: ratio(action, x, s) + s.zero_point
    return lambda action, x, s: ratio(action, distance(action, x, s), s)


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
def suits_span(action, scale):
    """Whether `steps_in_span` equals `code_value` for this scale.

    Codes have at most 16 bits, so with a float32 scale in 2**-100 .. 2**100 no product below overflows, and every
    remainder that can decide a tie is exact (its unit is 2**-48 scales). Where steps are clamped the formula is that
    of `code_value` for any scale.
    """
    if not action.rule.clamps_values:
        return lambda action, scale: not is_infinite(scale)
    dtype = getattr(types, action.rule.compute or str(scale))
    smallest, largest = (2.0**-100, 2.0**100) if dtype == types.float32 else (2.0**-900, 2.0**900)
    return lambda action, scale: smallest < scale < largest


@by_type
def steps_in_span(action, x, s):
    """``code - base`` as int32 for a scale that `suits_span`: `code_value` with fewer instructions, bit for bit.

    Where values are clamped instead of codes, a value at a bound is divided to within 2**-24 of a whole number of
    codes, which is what it rounds to. So the code is in range, NaN's too: `maximum` gives its second operand for it.
    """

    def clamped_values(action, x, s):
        return whole_int32(action, quotient(minimum(maximum(distance(action, x, s), s.below), s.above), s))

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


# --- codes to values --------------------------------------------------------------------------------------------------


@by_type
def origin(action, s):
    """The code that the steps of a code are counted from: a float where the zero point is inside the rounding."""
    if action.rule.zero == "inside":
        return lambda action, s: s.zero_point
    return lambda action, s: s.base


@by_type
def from_origin(action, steps, s):
    """Steps from `base` as steps from `origin`."""
    if action.rule.zero == "inside":
        return lambda action, steps, s: steps - s.zero_point
    return lambda action, steps, s: steps


@by_type
def value_of_steps(action, steps, s):
    """The value that a code so many steps from its `origin` stands for."""
    if action.rule.middle:
        return lambda action, steps, s: scaled(action, steps + constant(0.5, steps), s)
    return lambda action, steps, s: scaled(action, steps, s)


@by_type
def scaled(action, steps, s):
    """Steps as a value."""
    if action.rule.zero != "offset":
        return lambda action, steps, s: steps * s.scale
    if action.rule.quotient == "range":
        return lambda action, steps, s: steps / s.above * s.factor + s.zero_point
    return lambda action, steps, s: steps * s.scale + s.zero_point


@inline
def dequantize_value(action, code, s):
    """The value of a code; the difference of two 16 bit codes is exact in float32."""
    return value_of_steps(action, code - origin(action, s), s)


# --- a range to parameters --------------------------------------------------------------------------------------------


@inline
def asymmetric(action, lo, hi, lowest, highest, compute):
    """Scale and zero point of ``lo..hi`` by the action's rule; `compute` is the type of the values."""
    lo, hi = widened(action, lo, hi)
    step = seen_infinite(action, lo, hi, step_of_range(action, lo, hi, divisor(action, highest - lowest), compute))
    scale, usable = _usable(action, rounded_scale(action, step, compute), lo, compute)
    return scale, zero_of_range(action, lo, hi, scale, usable, lowest, highest)


@inline
def symmetric(action, lo, hi, lowest, highest, compute):
    """Scale and zero point of ``-m..m``, m the largest magnitude; `lowest` and `highest` are the codes of its ends."""
    zero, two = constant(0, lo), constant(2, lo)
    middle = rint((lowest + highest) / two)
    step = symmetric_step(action, minimum(lo, zero), maximum(hi, zero), lowest, highest, middle)
    scale, usable = _usable(action, rounded_scale(action, step, compute), lo, compute)
    return scale, middle_of_range(action, full_like(middle, lo), usable)


@by_type
def middle_of_range(action, middle, usable):
    """The zero point of a symmetric scheme."""
    if action.rule.range.zero_when_degenerate == "zero":
        return lambda action, middle, usable: select(usable, middle, constant(0, middle))
    return lambda action, middle, usable: middle


@by_type
def step_of_range(action, lo, hi, steps, compute):
    """``(hi - lo) / steps``, the difference in the type of the values where the rule says so."""
    if action.rule.range.span_in_compute:
        return lambda action, lo, hi, steps, compute: (
            convert(convert(hi, compute) - convert(lo, compute), lane_type_of(lo)) / steps
        )
    return lambda action, lo, hi, steps, compute: _step(lo, hi, steps)


@by_type
def lane_type_of(x):
    """Lane type of lanes or a scalar."""
    dtype = lane_type(x)
    return lambda x: dtype


@by_type
def rounded_scale(action, scale, compute):
    """The scale, rounded to the type of the values where the zero point is taken by that."""
    if action.rule.range.rounds_scale:
        return lambda action, scale, compute: convert(convert(scale, compute), lane_type_of(scale))
    return lambda action, scale, compute: scale


@by_type
def symmetric_step(action, lo, hi, lowest, highest, middle):
    """``m`` by half the steps; signed, the value of largest magnitude by the steps from the middle down."""
    if action.rule.range.signed:
        return lambda action, lo, hi, lowest, highest, middle: select(hi > -lo, hi, lo) / (lowest - middle)
    return lambda action, lo, hi, lowest, highest, middle: (
        maximum(maximum(-lo, hi), constant(0, lo)) / (divisor(action, highest - lowest) / constant(2, lo))
    )


@by_type
def widened(action, lo, hi):
    """The range, with 0 in it where the rule says so."""
    if action.rule.range.widened:
        return lambda action, lo, hi: (minimum(lo, constant(0, lo)), maximum(hi, constant(0, lo)))
    return lambda action, lo, hi: (lo, hi)


@by_type
def divisor(action, steps):
    """What the range is divided by: the number of steps, or of codes."""
    if action.rule.range.divisor:
        return lambda action, steps: steps + constant(1, steps)
    return lambda action, steps: steps


@by_type
def zero_of_range(action, lo, hi, scale, usable, lowest, highest):
    """The zero point that belongs to a scale: a code, any float, or an offset."""
    rule = action.rule

    def code(action, lo, hi, scale, usable, lowest, highest):
        zero_point = minimum(maximum(zero_of_end(action, lo, hi, scale, lowest, highest), lowest), highest)
        return select(usable, zero_point, zero_of_nothing(action, lowest))

    def any_float(action, lo, hi, scale, usable, lowest, highest):
        return select(usable, zero_of_end(action, lo, hi, scale, lowest, highest), constant(0, lo))

    def offset(action, lo, hi, scale, usable, lowest, highest):
        return lo if rule.lowest else lo - lowest * scale

    return offset if rule.zero == "offset" else code if rule.range.rounding else any_float


@by_type
def zero_of_end(action, lo, hi, scale, lowest, highest):
    """The code of 0.0 that gives an end of the range the code of that end."""
    if action.rule.range.from_highest:
        return lambda action, lo, hi, scale, lowest, highest: from_end(action, highest, hi / scale)
    return lambda action, lo, hi, scale, lowest, highest: from_end(action, lowest, lo / scale)


@by_type
def from_end(action, code, steps):
    """A code less the steps that it lies from 0.0, the difference rounded or the steps."""
    if action.rule.range.rounds_quotient:
        return lambda action, code, steps: code - rounded_zero(action, steps)
    return lambda action, code, steps: rounded_zero(action, code - steps)


@by_type
def zero_of_nothing(action, lowest):
    """Zero point beside a scale that stands for a degenerate one."""
    if action.rule.range.zero_when_degenerate == "lowest":
        return lambda action, lowest: lowest
    return lambda action, lowest: constant(0, lowest)


@inline
def _usable(action, scale, lo, compute):
    """The scale, another where it is degenerate, and whether the zero point may be taken by it."""
    limit, size = smallest_scale(action, scale, compute), magnitude(action, scale)
    usable = (size >= limit) & (size > constant(0, scale))
    return select(usable, scale, instead(action, scale, lo, compute)), has_zero_point(action, usable)


@by_type
def smallest_scale(action, like, compute):
    """The smallest scale that is not degenerate, in the lane type of `like`."""
    normal = 2.0**-126 if compute.dtype == types.float32 else 2.0**-1022
    least = normal if action.rule.range.floor is None else action.rule.range.floor
    return lambda action, like, compute: constant(least, like)


@by_type
def instead(action, like, lo, compute):
    """What a degenerate scale becomes."""
    replacement = action.rule.range.degenerate

    def value(action, like, lo, compute):
        usable = absolute(lo) >= smallest_scale(action, like, compute)
        return select(usable, lo, full_like(constant(1, like), lo))

    if replacement == "value":
        return value
    if replacement == "floor":
        return lambda action, like, lo, compute: smallest_scale(action, like, compute)
    return lambda action, like, lo, compute: constant(replacement, like)


@by_type
def has_zero_point(action, usable):
    """Whether the zero point is taken by the scale: always where it became the floor."""
    if action.rule.range.degenerate == "floor":
        return lambda action, usable: usable | True
    return lambda action, usable: usable


@by_type
def magnitude(action, scale):
    """A scale without its sign, where it may have one."""
    if action.rule.signed:
        return lambda action, scale: absolute(scale)
    return lambda action, scale: scale


@by_type
def seen_infinite(action, lo, hi, scale):
    """The scale, infinite where an end of the range is; a range without 0 may have two such ends and no difference."""
    if action.rule.range.widened:
        return lambda action, lo, hi, scale: scale
    return lambda action, lo, hi, scale: select(is_infinite(lo) | is_infinite(hi), constant(float("inf"), scale), scale)


@inline
def is_infinite(scale):
    """Mask of the scales that a range with an infinite end gives."""
    return absolute(scale) == constant(float("inf"), scale)


def lane_type(kind: Any) -> Any:
    """Lane type of lanes, a pointer or a scalar."""
    return types.unliteral(getattr(kind, "dtype", kind))


@by_type
def _step(lo, hi, steps):
    """``(hi - lo) / steps``, also where the difference overflows: then in float64, for float64 as two quotients."""
    dtype = lo.dtype if isinstance(lo, Vec) else lo
    if dtype == types.float64:

        def step(lo, hi, steps):
            distance = hi - lo
            return select(distance < constant(float("inf"), lo), distance / steps, hi / steps - lo / steps)
    else:

        def step(lo, hi, steps):
            distance = hi - lo
            near = distance < constant(float("inf"), lo)
            scale = distance / steps
            if not any_lane(near ^ True):
                return scale
            wide = (convert(hi, types.float64) - convert(lo, types.float64)) / convert(steps, types.float64)
            return select(near, scale, convert(wide, types.float32))

    return step
