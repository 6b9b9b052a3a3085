"""The operation of a kernel on values in the type to compute in, under any scales or under one prepared scale."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import specialize
from fastq.kernels.bitpack import Bits
from fastq.kernels.formulas import (
    base_code,
    code_value,
    compute_type,
    dequantize_value,
    float_quotient,
    float_quotient_prepared,
    is_by_table,
    nvfp4_units,
    prepare_scale,
    scaled_round,
    scaled_round_in_range,
    value_of_steps,
)
from fastq.kernels.load_store import encode_as
from fastq.kernels.minifloat import decode, encode


@specialize
def to_compute(spec, x, scale):
    """Convert input lanes to the type to compute in, NaN to 0.0 where the spec says so."""
    if v.is_float(x) and spec.nan == "zero":
        return lambda spec, x, scale: v.convert(v.select(v.is_nan(x), v.constant(0, x), x), compute_type(spec, scale))
    return lambda spec, x, scale: v.convert(x, compute_type(spec, scale))


@specialize
def apply_op_prepared(spec, x, s, dst):
    """Apply the operation under one prepared scale that does not need a division; the result as `dst` stores it."""
    fits = spec.range_scheme == "symmetric" and spec.rule.clamps_values and spec.rule.range.fits
    to_steps = scaled_round_in_range if fits else scaled_round
    code = spec.code

    def quantize(spec, x, s, dst):
        return encode_as(to_steps(spec, x, s) + base_code(s), dst)

    def quantize_to_float(spec, x, s, dst):
        return encode_as(float_ratio_prepared(spec, x, s), dst)

    def fake(spec, x, s, dst):
        steps = v.convert(to_steps(spec, x, s), compute_type(spec, s.scale))
        return encode_as(value_of_steps(spec, steps, s), dst)

    def fake_by_float(spec, x, s, dst):
        rounded = decode(encode(float_ratio_prepared(spec, x, s), code), code)
        return encode_as(dequantize_value(spec, v.convert(rounded, compute_type(spec, s.scale)), s), dst)

    def dequantize(spec, x, s, dst):
        return encode_as(dequantize_value(spec, x, s), dst)

    if code is not None:
        return {"quantize": quantize_to_float, "fake": fake_by_float, "dequantize": dequantize}[spec.op]
    return {"quantize": quantize, "fake": fake, "dequantize": dequantize}[spec.op]


@specialize
def apply_op(spec, x, scale, zero_point, args, dst):
    """Apply the operation under any scales and zero points; the result as `dst` stores it."""
    code, integer = spec.code, dst.dtype.code_type if isinstance(dst.dtype, Bits) else dst.dtype

    def quantize(spec, x, scale, zero_point, args, dst):
        x, scale = without_nan_scale(spec, x, scale)
        s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
        return v.bounded_to_integer(code_value(spec, x, s, args.lowest, args.highest), integer)

    def quantize_to_float(spec, x, scale, zero_point, args, dst):
        s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
        return encode_as(float_ratio(spec, x, s), dst)

    def fake(spec, x, scale, zero_point, args, dst):
        x, usable = without_nan_scale(spec, x, scale)
        s = prepare_scale(spec, usable, zero_point, args.lowest, args.highest)
        value = code_value(spec, x, s, args.lowest, args.highest)
        s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
        return encode_as(dequantize_value(spec, value, s), dst)

    def fake_by_float(spec, x, scale, zero_point, args, dst):
        s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
        rounded = decode(encode(float_ratio(spec, x, s), code), code)
        return encode_as(dequantize_value(spec, v.convert(rounded, compute_type(spec, scale)), s), dst)

    def dequantize(spec, x, scale, zero_point, args, dst):
        s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
        return encode_as(dequantize_value(spec, x, s), dst)

    if code is not None:
        return {"quantize": quantize_to_float, "fake": fake_by_float, "dequantize": dequantize}[spec.op]
    return {"quantize": quantize, "fake": fake, "dequantize": dequantize}[spec.op]


@specialize
def without_nan_scale(spec, x, scale):
    """Replace values and scales by 0 and 1 where the scale marks a block that had NaN."""
    if not spec.scale_kind:
        return lambda spec, x, scale: (x, scale)

    def without(spec, x, scale):
        marked = v.is_nan(scale)
        return v.select(marked, v.constant(0, x), x), v.select(marked, v.constant(1, scale), scale)

    return without


@specialize
def float_ratio(spec, x, s):
    """Divide x by the scale, to be rounded to a float code."""
    if is_by_table(spec):
        return lambda spec, x, s: float_ratio_prepared(spec, x, s)

    def divided(spec, x, s):
        return float_quotient(spec, x, s.scale)

    def by_power(spec, x, s):
        x, scale = without_nan_scale(spec, x, s.scale)
        return x / scale

    def in_units_of_tensor(spec, x, s):
        x, scale = without_nan_scale(spec, x, s.scale)
        return nvfp4_units(x, scale, s.zero_point)

    return {"": divided, "power": by_power, "tensor": in_units_of_tensor}[spec.scale_kind]


@specialize
def float_ratio_prepared(spec, x, s):
    """Divide as `float_ratio` by one prepared scale that does not need a division."""

    def divided(spec, x, s):
        return float_quotient_prepared(spec, x, s)

    def multiplied(spec, x, s):
        return x * s.factor  # exact where scales are powers of two; of a codebook it is the rule

    def in_units_of_tensor(spec, x, s):
        return nvfp4_units(x, s.scale, s.zero_point)

    if is_by_table(spec):
        return multiplied
    return {"": divided, "power": multiplied, "tensor": in_units_of_tensor}[spec.scale_kind]
