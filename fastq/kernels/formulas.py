"""Each rule of the contract that turns values into codes and back, once for a scalar and a Vec alike.

`s` is a `PreparedScale` throughout. Steps are distances from its `base` in units of the scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, traced
from fastq.formats.codebooks import Codebook
from fastq.kernels.codebooks import codebook_factor
from fastq.kernels.minifloat import in_half, offset_as_stored, scale_as_stored, value_in_half
from fastq.kernels.stochastic_rounding import round_at_random

# without the instruction, LLVM calls a C function per lane: 50 times slower than the division it would replace
HAS_FMA = TARGET.has("fma") or TARGET.is_arm


# --- rounding ---------------------------------------------------------------------------------------------------------


@traced
def shift_half_away(x):
    """Add the largest number below 0.5, with the sign of `x`; the whole part is then what C's round() gives.

    With 0.5 itself 0.49999997 would become 1. Ties still do, since the sum is rounded to even.
    """
    half = 0.5 - (2.0**-25 if v.lane_type(x) == types.float32 else 2.0**-54)
    return x + v.copysign(v.constant(half, x), x)


@traced
def round_as(rounding, x):
    """Round `x` to a whole float by the rule of this name; "": zero points that stay as they are."""
    if rounding == "half_away":
        return v.trunc(shift_half_away(x))
    if rounding == "half_up":
        return v.floor(x + v.constant(0.5, x))
    return getattr(v, "rint" if rounding == "half_even" else rounding)(x) if rounding else x


@traced
def round_by_rule(spec, x):
    """Round `x` to a whole float by the rule."""
    return round_as(spec.rule.rounding, round_to_parts(spec, x))


@traced
def round_to_parts(spec, x):
    """Round `x` to parts of a step, where codes are cut from integers of more bits."""
    parts = spec.rule.finer
    return v.rint(x * v.constant(parts, x)) * v.constant(1 / parts, x) if parts else x


@traced
def round_to_int32_by_rule(spec, x, numbers=None):
    """Round `x`, which is in range, to int32 by the rule, one at random by the numbers of `draw`."""
    rounding = spec.rule.rounding
    if spec.rule.draws:
        return round_at_random(x, numbers)
    x = round_to_parts(spec, x)
    if rounding == "half_even" and not spec.rule.beyond_int32:
        return v.round_to_int32(x)
    if rounding == "half_away":
        x = shift_half_away(x)
    elif rounding != "trunc":
        x = round_as(rounding, x)
    if spec.rule.beyond_int32:
        return v.convert(v.bounded_to_integer(x, types.uint32), types.int32)  # the same bits
    return v.bounded_to_integer(x, types.int32)


# --- values to codes --------------------------------------------------------------------------------------------------


class PreparedScale(NamedTuple):
    """Scale and zero point with numbers computed from them once for many values: see `prepare_scale`."""

    scale: Any  # in the type of the arithmetic
    zero_point: Any
    base: Any  # the code from which steps are counted; in memory as int32, see `base_code`
    factor: Any  # reciprocal of the scale, or the range that all codes span, or the number of steps in a unit
    below: Any  # bounds of values where those are clamped, else of steps
    above: Any


class PreparedBlockScale(NamedTuple):
    """The same for the scale of a block in units of that of the array, `tensor`: there are no zero points."""

    scale: Any
    tensor: Any
    base: Any
    factor: Any
    below: Any
    above: Any


def computes_in(spec, like):
    """Return the type of the arithmetic: the one that the rule names, else that of the scale `like`."""
    return getattr(types, spec.rule.compute) if spec.rule.compute else v.lane_type(like)


compute_type = traced(computes_in)


def _casts(spec) -> bool:
    """Return whether codes are floats of 16 bits, to which values are cast: their quotients are those of a division."""
    return spec.code is not None and spec.code.format.bits == 16


def is_by_table(spec: Any) -> bool:
    """Return whether codes are those of a codebook."""
    return spec.code is not None and isinstance(spec.code.format, Codebook)


@traced
def prepare_scale(spec, scale, zero_point, lowest, highest):
    """Compute what `scaled_round` needs of a scale and zero point, in the type of the arithmetic.

    Where scales are in units of one for the array, that comes instead of a zero point; see `load_parameters`.
    """
    rule = spec.rule
    dtype = computes_in(spec, scale)
    unrounded = scale  # in its own type
    scale = v.convert(scale, dtype)
    zero_point = v.convert(zero_point, dtype)
    lowest, highest = v.convert(lowest, dtype), v.convert(highest, dtype)
    origin = lowest if rule.offset == "lowest" else v.constant(0, lowest)
    base = zero_point if rule.zero == "code" else v.full_like(origin, zero_point)
    below, above = lowest - base, highest - base
    if rule.clamps_values:
        below, above = below * scale, above * scale
    if rule.by_range:
        span = v.convert(highest - lowest, types.float64)
        factor = v.convert(v.convert(unrounded, types.float64) * span, dtype)
    elif rule.quotient in ("reciprocal_of_double", "steps_in_unit"):
        double = v.convert(unrounded, types.float64)
        inverse = v.constant(1, double) / double
        if rule.quotient == "steps_in_unit":
            inverse = v.select(inverse > v.constant(1, inverse), v.rint(inverse), inverse)
        factor = in_half(spec, v.convert(inverse, dtype))
    elif is_by_table(spec):
        factor = codebook_factor(scale)
    else:  # what a division is corrected with, or what takes its place
        factor = v.constant(1, scale) / scale
        factor = in_half(spec, factor) if rule.quotient == "reciprocal" else factor
    if spec.scale_kind == "tensor":
        return PreparedBlockScale(scale, zero_point, base, factor, below, above)
    return PreparedScale(scale, zero_point, base, factor, below, above)


@traced
def steps_from_base(spec, x, s):
    """Convert `x` to steps, not yet rounded, with the zero point added where the rule adds it before rounding."""
    rule = spec.rule
    if rule.fused and rule.quotient != "divide" and v.lane_type(x) == types.float32:
        return in_half(spec, v.fma(x, s.factor, s.zero_point))
    if rule.quotient == "steps_in_unit":
        return x * s.factor - s.zero_point * s.factor
    wide = rule.quotient == "divide_in_float64"
    if rule.zero == "offset" and not wide:
        x = in_half(spec, x - s.zero_point)
    if wide:
        ratio = _quotient_in_float64(spec, x, s)
    elif rule.quotient == "divide":
        ratio = x / s.scale
    elif rule.by_range:
        # `above` is how many steps the range of all codes has, since steps are counted from the first code
        nothing = v.constant(0, s.factor)  # the width of a constant: all values get the first code, later ones too
        steps = x / s.factor * s.above if rule.quotient == "range" else x * s.above / s.factor
        ratio = v.select(s.factor == nothing, nothing, steps)
    else:
        ratio = x * s.factor
    ratio = in_half(spec, ratio)
    return in_half(spec, ratio + s.zero_point) if rule.zero == "inside" else ratio


@traced
def _quotient_in_float64(spec, x, s):
    """Divide x, or its distance from an offset, by the scale in float64, and round to the type of x."""
    distance = v.convert(x, types.float64)
    if spec.rule.zero == "offset":
        distance = distance - v.convert(s.zero_point, types.float64)
    return v.convert(distance / v.convert(s.scale, types.float64), v.lane_type(x))


@traced
def base_code(s):
    """Return `base` as int32, which it may already be."""
    return v.round_to_int32(s.base) if v.is_float(s.base) else s.base


@traced
def unclamped_code(spec, x, s):
    """Round `x` to a code by the rule, in the range of codes or not, as a float."""
    return round_by_rule(spec, steps_from_base(spec, x, s)) + s.base


@traced
def code_value(spec, x, s, lowest, highest, numbers=None):
    """Clamp `unclamped_code` to `lowest..highest`, floats.

    Infinities and whatever lies far out of range saturate; NaN gives `lowest`. With numbers of `draw` steps are
    clamped, and then rounded at random by these.
    """
    dtype = compute_type(spec, s.scale)
    if numbers is not None:
        lowest, highest = v.convert(lowest, dtype) - s.base, v.convert(highest, dtype) - s.base
        in_range = _between(steps_from_base(spec, x, s), lowest, highest)
        return v.convert(round_to_int32_by_rule(spec, in_range, numbers), dtype) + s.base
    return v.minimum(v.maximum(unclamped_code(spec, x, s), v.convert(lowest, dtype)), v.convert(highest, dtype))


@traced
def is_infinite(scale):
    """Mask of the scales that a range with an infinite end gives."""
    return v.absolute(scale) == v.constant(float("inf"), scale)


@traced
def needs_division(spec, scale):
    """Mask of the scales for which `scaled_round` may differ from `code_value`; none where tables have results.

    Codes have at most 16 bits, so with a float32 scale in 2**-100 .. 2**100 no product below overflows, and every
    remainder that can decide a tie is exact: its unit is 2**-49 scales, and 2**-149 is the smallest float32. Ties of
    float codes are as small as 2**-18 scales and units 2**-66 scales, so 2**-80 is the least there. Where steps are
    clamped the formula is that of `code_value` for any scale that is not infinite.
    """
    if spec.op == "dequantize" or is_by_table(spec) or _casts(spec):
        return False
    if spec.code is None and not spec.rule.corrects:
        return is_infinite(scale)
    smallest = 2.0**-900
    largest = 2.0**900
    if computes_in(spec, scale) == types.float32:
        smallest = 2.0**-100 if spec.code is None else 2.0**-80
        largest = 2.0**100
    return (scale > v.constant(smallest, scale)) & (scale < v.constant(largest, scale)) ^ True


@traced
def scaled_round(spec, x, s, numbers=None):
    """Round to ``code - base`` as int32: `code_value` bit for bit in less time, where not `needs_division`."""
    return round_to_int32_by_rule(spec, _steps_in_range(spec, x, s), numbers)


@traced
def scaled_round_to_float(spec, x, s):
    """Round as `scaled_round` to a float, in one instruction less; what rounds to 0 keeps its sign."""
    return round_by_rule(spec, _steps_in_range(spec, x, s))


@traced
def _steps_in_range(spec, x, s):
    """Convert `x` to steps that round to those of codes.

    Where values are clamped instead of codes, a value at a bound is divided to within 2**-24 of a whole number of
    codes, which is what it rounds to. So the code is in range, NaN's too: `maximum` gives its second operand for it.
    At random, too, a code of 8 bits is: within 2**-16 of a whole number is half a part of a step, which is rounded to
    even. One of 16 bits would be the next one now and then: its steps are clamped.
    """
    if not (spec.rule.corrects and (spec.rule.clamps_values or _is_corrected(x))):
        return _between(steps_from_base(spec, x, s), s.below, s.above)
    distance = x - s.zero_point if spec.rule.zero == "offset" else x
    if spec.rule.clamps_values:
        return quotient(_between(distance, s.below, s.above), s)
    one = v.constant(1, distance)
    near = _between(distance * s.factor, s.below - one, s.above + one)  # finite, or it could not be corrected
    return _between(_corrected_quotient(near, distance, s), s.below, s.above)


@traced
def _between(x, lowest, highest):
    """Clamp lanes; NaN gives the lowest."""
    return v.minimum(v.maximum(x, lowest), highest)


@traced
def scaled_round_in_range(spec, x, s):
    """Round as `scaled_round` values of the symmetric range that the scale was taken from: nothing needs a clamp."""
    return round_to_int32_by_rule(spec, quotient(x, s))


@traced
def quotient(x, s):
    """Divide ``x / s.scale``, correctly rounded.

    With r the rounded reciprocal and q = x * r, ``fma(fma(-q, scale, x), r, q)`` is that quotient wherever nothing
    overflows or underflows (Markstein 1990; Brisebarre, Muller and Raina 2004). tests/kernels/test_quotient.py proves
    it for float32 by trying every pair of significands whose quotient is near enough to a rounding boundary to be in
    doubt. A division takes 1.6 times as long: decision D2.
    """
    if not _is_corrected(x):
        return x / s.scale
    return _corrected_quotient(x * s.factor, x, s)


@traced
def _corrected_quotient(near, x, s):
    """Return the quotient of x by the scale from an approximation."""
    return v.fma(v.fma(-near, s.scale, x), s.factor, near)


def _is_corrected(x) -> bool:
    """Return whether quotients of this type are those of `quotient`, which are corrected products."""
    return HAS_FMA and isinstance(x, v.Vec) and x.dtype == types.float32


# --- values to float codes --------------------------------------------------------------------------------------------


@traced
def float_quotient(spec, x, scale):
    """Divide ``x / scale``, to be rounded to a float code.

    ONNX adds 0 in formats without NaN, other rules in any: -0.0 becomes 0.0.
    """
    ratio = in_half(spec, x / scale)
    return ratio + v.constant(0, x) if _adds_zero(spec) else ratio


def _adds_zero(spec) -> bool:
    """Return whether quotients get the zero point 0 added, so that -0.0 becomes 0.0; see `float_quotient`."""
    return spec.code.format.nan is None or spec.rule.zero == "inside"


@traced
def float_quotient_prepared(spec, x, s):
    """Divide as `float_quotient` where not `needs_division`, with x clamped so that nothing overflows.

    Where -0.0 becomes 0.0 the sign depends on how tiny quotients are rounded, which only a division gets right.
    """
    form = spec.code
    if _casts(spec) or _adds_zero(spec) or spec.rule.operation_half or not _is_corrected(x):
        return float_quotient(spec, x, s.scale)
    # four times the largest number is rounded to infinity or NaN, like all beyond it
    limit = v.constant(form.format.max if form.saturate else 4 * form.format.max, x) * s.scale
    return _signed_like(quotient(v.maximum(-limit, v.minimum(limit, x)), s), x)  # of NaN itself, in this order


@traced
def _signed_like(near, x):
    """Give a quotient the sign of x, which its correction takes from -0.0 and perhaps NaN."""
    word = v.bitcast(x, types.int32)
    sign = v.constant(-(1 << 31), v.bitcast(x, types.int32))
    return v.bitcast((v.bitcast(near, types.int32) & ~sign) | (word & sign), types.float32)


@traced
def nvfp4_units(spec, x, scale, tensor):
    """Divide values by the scales of their block and of the array, by the rule."""
    return nvfp4_ratio(spec, x, nvfp4_factor(spec, scale, tensor))


@traced
def nvfp4_factor(spec, scale, tensor):
    """Return what `nvfp4_ratio` divides or multiplies values by: computed once for all values of a block."""
    return scale * tensor if spec.rule.divides_blocks else v.constant(1, tensor) / tensor / scale


@traced
def nvfp4_ratio(spec, x, factor):
    """Return values in units of codes, by what `nvfp4_factor` returns."""
    return x / factor if spec.rule.divides_blocks else x * factor


# --- codes to values --------------------------------------------------------------------------------------------------


@traced
def of_values(spec, s):
    """Return a prepared scale with the numbers that values come from: the rule may round them once codes are known."""
    if spec.scale_kind:
        return s
    if spec.rule.stored_half:
        s = s._replace(scale=scale_as_stored(spec, s.scale))
        s = s._replace(zero_point=offset_as_stored(spec, s.zero_point)) if spec.rule.zero == "offset" else s
    s = s._replace(scale=value_in_half(spec, s.scale))
    return s if spec.rule.zero == "code" else s._replace(zero_point=value_in_half(spec, s.zero_point))


@traced
def value_of_steps(spec, steps, s):
    """Compute the value at a distance of `steps` from `base`."""
    rule = spec.rule
    if rule.zero == "inside":
        steps = steps - s.zero_point
    steps = value_in_half(spec, steps)
    if rule.middle:
        steps = value_in_half(spec, steps + v.constant(0.5, steps))
    if rule.by_range:
        return steps / s.above * s.factor + s.zero_point  # `above` as in `steps_from_base`
    if rule.divides_steps:
        return steps / s.factor + s.zero_point
    return value_in_half(spec, steps * s.scale) + s.zero_point if rule.zero == "offset" else steps * s.scale


@traced
def _product(code, scale):
    """Multiply; of two NaN the result is the code's, where CPUs take the operand that the compiler put first."""
    return v.select(v.is_nan(code), code, code * scale)


@traced
def dequantize_value(spec, code, s):
    """Compute the value of a code; the difference of two 16 bit codes is exact in float32.

    Codes of formats that prescribe their scales are decoded in float32.
    """
    if not spec.scale_kind:
        return value_of_steps(spec, code - s.base, s)
    code = v.convert(code, types.float32)
    scale = v.convert(s.scale, types.float32)
    if spec.scale_kind == "tensor":
        return code * (scale * v.convert(s.tensor, types.float32))
    return _product(code, scale)
