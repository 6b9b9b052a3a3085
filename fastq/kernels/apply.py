"""The operation of a kernel on values in the type to compute in, under any scales or under one prepared scale."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import formulas
from fastq.kernels.bitpack import Bits
from fastq.kernels.load_store import encode_as
from fastq.kernels.minifloat import decode, encode, encode_at_random, in_half


@traced
def to_compute(spec, x, scale):
    """Convert input lanes to the type to compute in, NaN to 0.0 where the spec says so."""
    if v.is_float(x) and spec.nan == "zero":
        x = v.select(v.is_nan(x), v.constant(0, x), x)
    return v.convert(x, formulas.computes_in(spec, scale))


@traced
def apply_op_prepared(spec, x, s, dst, numbers=None):
    """Apply the operation under one prepared scale that does not need a division; the result as `dst` stores it.

    With numbers of `draw` values are rounded at random by these.
    """
    if spec.op == "dequantize":
        return encode_as(formulas.dequantize_value(spec, x, formulas.of_values(spec, s)), dst)
    if spec.code is not None:
        return _by_float_code(spec, float_ratio_prepared(spec, x, s), s, dst, numbers)
    rule = spec.rule
    # the scale was taken from the range of these very values, so no code is out of range
    fits = spec.range_scheme == "symmetric" and rule.clamps_values and rule.range.values_fit and not rule.draws
    steps = formulas.scaled_round_in_range(spec, x, s) if fits else formulas.scaled_round(spec, x, s, numbers)
    if spec.op == "quantize":
        return encode_as(steps + formulas.base_code(s), dst)
    steps = v.convert(steps, formulas.computes_in(spec, s.scale))
    return encode_as(formulas.value_of_steps(spec, steps, formulas.of_values(spec, s)), dst)


@traced
def apply_op(spec, x, scale, zero_point, args, dst, numbers=None):
    """Apply the operation as `apply_op_prepared`, for lanes of any scales: by a division, with codes clamped.

    It serves scales that differ from lane to lane, and those for which the prepared formula is not exact.
    """
    lowest, highest = args.lowest, args.highest
    if spec.code is None and spec.op != "dequantize":
        x, usable = without_nan_scale(spec, x, scale)
        x = formulas.code_value(
            spec, x, formulas.prepare_scale(spec, usable, zero_point, lowest, highest), lowest, highest, numbers
        )
        if spec.op == "quantize":
            return v.bounded_to_integer(x, dst.dtype.code_type if isinstance(dst.dtype, Bits) else dst.dtype)
    # by the scale as it is, so that a scale of NaN gives values of NaN
    s = formulas.prepare_scale(spec, scale, zero_point, lowest, highest)
    if spec.code is None or spec.op == "dequantize":
        return encode_as(formulas.dequantize_value(spec, x, formulas.of_values(spec, s)), dst)
    return _by_float_code(spec, float_ratio(spec, x, s), s, dst, numbers)


@traced
def _by_float_code(spec, ratio, s, dst, numbers):
    """Return the float code that a ratio is rounded to, or its value, as `dst` stores it."""
    form = spec.code if spec.op == "fake" else dst.dtype
    nearest = numbers is None
    code = encode(ratio, form, spec.rule.ties) if nearest else encode_at_random(ratio, form, numbers)
    if spec.op == "quantize":
        return code
    value = v.convert(decode(code, form), formulas.computes_in(spec, s.scale))
    return encode_as(formulas.dequantize_value(spec, value, formulas.of_values(spec, s)), dst)


@traced
def without_nan_scale(spec, x, scale):
    """Replace values and scales by 0 and 1 where the scale marks a block that had NaN, or is 0."""
    if not spec.scale_kind:
        return x, scale
    marked = v.is_nan(scale)
    if spec.rule.allows_zero:
        marked = marked | (scale == v.constant(0, scale))
    return v.select(marked, v.constant(0, x), x), v.select(marked, v.constant(1, scale), scale)


@traced
def float_ratio(spec, x, s):
    """Divide x by the scale, to be rounded to a float code."""
    if formulas.is_by_table(spec):
        return float_ratio_prepared(spec, x, s)
    if not spec.scale_kind:
        return formulas.float_quotient(spec, x, s.scale)
    x, scale = without_nan_scale(spec, x, s.scale)
    return _with_zero(spec, x / scale) if spec.scale_kind == "power" else formulas.nvfp4_units(spec, x, scale, s.tensor)


@traced
def float_ratio_prepared(spec, x, s):
    """Divide as `float_ratio` by one prepared scale that does not need a division."""
    if formulas.is_by_table(spec):
        return x * s.factor
    if spec.scale_kind == "power":
        return _with_zero(spec, x * s.factor)  # exact
    if spec.scale_kind:
        return formulas.nvfp4_units(spec, x, s.scale, s.tensor)
    return formulas.float_quotient_prepared(spec, x, s)


@traced
def _with_zero(spec, ratio):
    """Add the zero point 0 where the rule has it inside: -0.0 becomes 0.0."""
    return in_half(spec, ratio) + v.constant(0, ratio) if spec.rule.zero == "inside" else ratio
