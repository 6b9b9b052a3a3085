"""Each rule of the contract that turns values into codes and back, once for a scalar and a Vec alike.

`s` is a `PreparedScale` throughout. Steps are distances from its `base` in units of the scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, njit, specialize
from fastq.formats.codebooks import Codebook
from fastq.kernels.codebooks import codebook_factor
from fastq.kernels.minifloat import in_half

# without the instruction, LLVM calls a C function per lane: 50 times slower than the division it would replace
HAS_FMA = TARGET.has("fma") or TARGET.is_arm


# --- rounding ---------------------------------------------------------------------------------------------------------


@specialize
def shift_half_away(x):
    """Add the largest number below 0.5, with the sign of `x`; the whole part is then what C's round() gives.

    With 0.5 itself 0.49999997 would become 1. Ties still do, since the sum is rounded to even.
    """
    half = 0.5 - 2.0**-25 if v.lane_type(x) == types.float32 else 0.5 - 2.0**-54
    return lambda x: x + v.copysign(v.constant(half, x), x)


class Rounding(NamedTuple):
    """How ties are broken: functions ``f(spec, x)`` to a whole float, and to int32 where `x` is in its range."""

    to_float: Any
    to_int32: Any


ROUNDING = {  # by the name that a convention gives it
    "half_even": Rounding(lambda spec, x: v.rint(x), lambda spec, x: v.round_to_int32(x)),
    "half_away": Rounding(
        lambda spec, x: v.trunc(shift_half_away(x)),
        lambda spec, x: v.bounded_to_integer(shift_half_away(x), types.int32),
    ),
    "floor": Rounding(lambda spec, x: v.floor(x), lambda spec, x: v.bounded_to_integer(v.floor(x), types.int32)),
    "ceil": Rounding(lambda spec, x: v.ceil(x), lambda spec, x: v.bounded_to_integer(v.ceil(x), types.int32)),
    "trunc": Rounding(lambda spec, x: v.trunc(x), lambda spec, x: v.bounded_to_integer(x, types.int32)),
    "": Rounding(lambda spec, x: x, None),  # zero points that stay as they are
}


@specialize
def round_by_rule(spec, x):
    """Round `x` to a whole float by the rule."""
    return ROUNDING[spec.rule.rounding].to_float


@specialize
def round_to_int32_by_rule(spec, x):
    """Round `x`, which is in range, to int32 by the rule."""
    return ROUNDING[spec.rule.rounding].to_int32


# --- values to codes --------------------------------------------------------------------------------------------------


class PreparedScale(NamedTuple):
    """Scale and zero point with what is computed from them once for many values: see `prepare_scale`.

    Attributes
    ----------
    scale, zero_point
        In the type of the arithmetic.
    base
        The code from which steps are counted; in memory as int32, see `base_code`.
    factor
        Reciprocal of the scale, or the range that all codes span.
    below, above
        Bounds of values where those are clamped, else of steps.
    """

    scale: Any
    zero_point: Any
    base: Any
    factor: Any
    below: Any
    above: Any


def computes_in(spec, like):
    """Return the type of the arithmetic: the one that the rule names, else that of the scale `like`."""
    return getattr(types, spec.rule.compute) if spec.rule.compute else v.lane_type(like)


@specialize
def compute_type(spec, like):
    """Return the type of the arithmetic in compiled code: see `computes_in`."""
    return computes_in(spec, like)


def is_by_table(spec: Any) -> bool:
    """Return whether codes are those of a codebook."""
    return spec.code is not None and isinstance(spec.code.row, Codebook)


@specialize
def prepare_scale(spec, scale, zero_point, lowest, highest):
    """Compute what `scaled_round` needs of a scale and zero point, in the type of the arithmetic."""
    rule, dtype = spec.rule, computes_in(spec, scale)
    from_zero_point, from_lowest, values = rule.zero == "code", rule.lowest, rule.clamps_values
    by_range, by_double = rule.quotient == "range", rule.quotient == "reciprocal_of_double"
    multiplies = rule.quotient == "reciprocal"  # else it is what a division is corrected with
    by_table = is_by_table(spec)

    def prepared(spec, scale, zero_point, lowest, highest):
        given, scale, zero_point = scale, v.convert(scale, dtype), v.convert(zero_point, dtype)
        lowest, highest = v.convert(lowest, dtype), v.convert(highest, dtype)
        origin = lowest if from_lowest else v.constant(0, lowest)
        base = zero_point if from_zero_point else v.full_like(origin, zero_point)
        below, above = lowest - base, highest - base
        if values:
            below, above = below * scale, above * scale
        if by_range:
            double = v.convert(given, types.float64)
            factor = v.convert(double * v.convert(highest - lowest, types.float64), dtype)
        elif by_double:
            double = v.convert(given, types.float64)
            factor = in_half(spec, v.convert(v.constant(1, double) / double, dtype))
        elif by_table:
            factor = codebook_factor(scale)
        else:
            factor = v.constant(1, scale) / scale
            if multiplies:
                factor = in_half(spec, factor)
        return PreparedScale(scale, zero_point, base, factor, below, above)

    return prepared


@specialize
def steps_from_base(spec, x, s):
    """Convert `x` to steps, not yet rounded, with the zero point added where the rule adds it before rounding."""
    rule = spec.rule
    offset, inside, fused = rule.zero == "offset", rule.zero == "inside", rule.fused and v.lane_type(x) == types.float32
    divides, by_range = rule.quotient == "divide", rule.quotient == "range"
    fused = fused and not divides

    def steps(spec, x, s):
        if fused:
            return in_half(spec, v.fma(x, s.factor, s.zero_point))
        if offset:
            x = in_half(spec, x - s.zero_point)
        if divides:
            ratio = x / s.scale
        elif by_range:
            ratio = x / s.factor * s.above
        else:
            ratio = x * s.factor
        ratio = in_half(spec, ratio)
        return in_half(spec, ratio + s.zero_point) if inside else ratio

    return steps


@specialize
def base_code(s):
    """Return `base` as int32, which it may already be."""
    if v.is_float(s.types[s.fields.index("base")]):
        return lambda s: v.round_to_int32(s.base)
    return lambda s: s.base


@njit
def unclamped_code(spec, x, s):
    """Round `x` to a code by the rule, in the range of codes or not, as a float."""
    return round_by_rule(spec, steps_from_base(spec, x, s)) + s.base


@njit
def code_value(spec, x, s, lowest, highest):
    """Clamp `unclamped_code` to `lowest..highest`, floats.

    Infinities and whatever lies far out of range saturate; NaN gives `lowest`.
    """
    dtype = compute_type(spec, s.scale)
    return v.minimum(v.maximum(unclamped_code(spec, x, s), v.convert(lowest, dtype)), v.convert(highest, dtype))


@njit
def is_infinite(scale):
    """Mask of the scales that a range with an infinite end gives."""
    return v.absolute(scale) == v.constant(float("inf"), scale)


@specialize
def needs_division(spec, scale):
    """Mask of the scales for which `scaled_round` may differ from `code_value`; none where tables have results.

    Codes have at most 16 bits, so with a float32 scale in 2**-100 .. 2**100 no product below overflows, and every
    remainder that can decide a tie is exact: its unit is 2**-49 scales, and 2**-149 is the smallest float32. Ties of
    float codes are as small as 2**-18 scales and units 2**-66 scales, so 2**-80 is the least there. Where steps are
    clamped the formula is that of `code_value` for any scale that is not infinite.
    """
    if spec.op == "dequantize" or is_by_table(spec):
        return False
    if spec.code is None and not spec.rule.clamps_values:
        return lambda spec, scale: is_infinite(scale)
    dtype = computes_in(spec, scale)
    single = 2.0**-100 if spec.code is None else 2.0**-80
    smallest, largest = (single, 2.0**100) if dtype == types.float32 else (2.0**-900, 2.0**900)

    def outside(spec, scale):
        return (scale > v.constant(smallest, scale)) & (scale < v.constant(largest, scale)) ^ True

    return outside


@njit
def scaled_round(spec, x, s):
    """Round to ``code - base`` as int32: `code_value` bit for bit in less time, where not `needs_division`."""
    return round_to_int32_by_rule(spec, _steps_in_range(spec, x, s))


@njit
def scaled_round_to_float(spec, x, s):
    """Round as `scaled_round` to a float, in one instruction less; what rounds to 0 keeps its sign."""
    return round_by_rule(spec, _steps_in_range(spec, x, s))


@specialize
def _steps_in_range(spec, x, s):
    """Convert `x` to steps that round to those of codes.

    Where values are clamped instead of codes, a value at a bound is divided to within 2**-24 of a whole number of
    codes, which is what it rounds to. So the code is in range, NaN's too: `maximum` gives its second operand for it.
    """
    offset = spec.rule.zero == "offset"

    def clamped_values(spec, x, s):
        distance = x - s.zero_point if offset else x
        return quotient(v.minimum(v.maximum(distance, s.below), s.above), s)

    def clamped_steps(spec, x, s):
        return v.minimum(v.maximum(steps_from_base(spec, x, s), s.below), s.above)

    return clamped_values if spec.rule.clamps_values else clamped_steps


@njit
def scaled_round_in_range(spec, x, s):
    """Round as `scaled_round` values of the symmetric range that the scale was taken from: nothing needs a clamp."""
    return round_to_int32_by_rule(spec, quotient(x, s))


@specialize
def quotient(x, s):
    """Divide ``x / s.scale``, correctly rounded.

    With r the rounded reciprocal and q = x * r, ``fma(fma(-q, scale, x), r, q)`` is that quotient wherever nothing
    overflows or underflows (Markstein 1990; Brisebarre, Muller and Raina 2004). tests/kernels/test_quotient.py proves
    it for float32 by trying every pair of significands whose quotient is near enough to a rounding boundary to be in
    doubt. 7.0 against 4.4 Gelem/s for the division, one core, in cache.
    """
    if HAS_FMA and isinstance(x, v.Vec) and x.dtype == types.float32:

        def corrected(x, s):
            first = x * s.factor
            return v.fma(v.fma(-first, s.scale, x), s.factor, first)

        return corrected
    return lambda x, s: x / s.scale


# --- values to float codes --------------------------------------------------------------------------------------------


@specialize
def float_quotient(spec, x, scale):
    """Divide ``x / scale``, to be rounded to a float code.

    ONNX adds 0 in formats without NaN, other rules in any: -0.0 becomes 0.0.
    """
    if _adds_zero(spec):
        return lambda spec, x, scale: in_half(spec, x / scale) + v.constant(0, x)
    return lambda spec, x, scale: in_half(spec, x / scale)


def _adds_zero(spec) -> bool:
    return spec.code.row.nan is None or spec.rule.zero == "inside"


@specialize
def float_quotient_prepared(spec, x, s):
    """Divide as `float_quotient` where not `needs_division`, with x clamped so that nothing overflows.

    Where -0.0 becomes 0.0 the sign depends on how tiny quotients are rounded, which only a division gets right.
    """
    form = spec.code
    if _adds_zero(spec) or spec.rule.half or not (HAS_FMA and isinstance(x, v.Vec) and x.dtype == types.float32):
        return lambda spec, x, s: float_quotient(spec, x, s.scale)
    bound = form.row.max if form.saturate else 4 * form.row.max

    def bounded(spec, x, s):
        limit = v.constant(bound, x) * s.scale
        near = quotient(v.maximum(-limit, v.minimum(limit, x)), s)  # of NaN itself, in this order
        return _signed_like(near, x)

    return bounded


@njit
def _signed_like(near, x):
    """Give a quotient the sign of x, which its correction takes from -0.0 and perhaps NaN."""
    word, sign = v.bitcast(x, types.int32), v.constant(-(1 << 31), v.bitcast(x, types.int32))
    return v.bitcast((v.bitcast(near, types.int32) & ~sign) | (word & sign), types.float32)


@njit
def nvfp4_units(x, scale, tensor):
    """Divide values by the scales of their block and of the array, ``x * (1 / tensor / scale)`` as torchao."""
    return x * nvfp4_factor(scale, tensor)


@njit
def nvfp4_factor(scale, tensor):
    """Return what `nvfp4_units` multiplies values by."""
    return v.constant(1, tensor) / tensor / scale


# --- codes to values --------------------------------------------------------------------------------------------------


@specialize
def value_of_steps(spec, steps, s):
    """Compute the value at a distance of `steps` from `base`."""
    rule = spec.rule
    inside, offset, middle, by_range = (
        rule.zero == "inside",
        rule.zero == "offset",
        rule.middle,
        rule.quotient == "range",
    )

    def value(spec, steps, s):
        if inside:
            steps = steps - s.zero_point
        if middle:
            steps = steps + v.constant(0.5, steps)
        if by_range:
            return steps / s.above * s.factor + s.zero_point
        return steps * s.scale + s.zero_point if offset else steps * s.scale

    return value


@njit
def _scaled(code, scale):
    """Multiply; of two NaN the result is the code's, where CPUs take the operand that the compiler put first."""
    return v.select(v.is_nan(code), code, code * scale)


@specialize
def dequantize_value(spec, code, s):
    """Compute the value of a code; the difference of two 16 bit codes is exact in float32.

    Codes of formats that prescribe their scales are decoded in float32.
    """
    single = types.float32
    if spec.scale_kind == "tensor":
        return lambda spec, code, s: (
            v.convert(code, single) * (v.convert(s.scale, single) * v.convert(s.zero_point, single))
        )
    if spec.scale_kind == "power":
        return lambda spec, code, s: _scaled(v.convert(code, single), v.convert(s.scale, single))
    return lambda spec, code, s: value_of_steps(spec, code - s.base, s)
