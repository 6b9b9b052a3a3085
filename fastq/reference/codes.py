"""Quantize values to codes and dequantize codes to values, in the compute type."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastq.formats.conventions.convention import UNROUNDED, Convention, HalfPrecision
from fastq.reference import blocks, floats
from fastq.reference.floats import in_half
from fastq.reference.granularity import broadcast_to_parts
from fastq.reference.stochastic_rounding import numbers, round_by_bits
from fastq.requests.quantization import compute_dtype
from fastq.requests.stochastic_rounding import Noise
from fastq.results import QParams
from fastq.results.parameters import coding_of_parameters
from fastq.system.dtypes import Array


def rules_of(p: QParams) -> tuple[Convention, np.dtype[Any], tuple[float, float]]:
    """Return the convention of some parameters, the compute type, and the first and the last code."""
    coding = coding_of_parameters(p)
    return coding.convention, p.compute_dtype, coding.codes


@np.errstate(all="ignore")
def positions(x: Array, p: QParams, precision: HalfPrecision = UNROUNDED, bits: Array | None = None) -> Array:
    """Return `x` in units of codes, before it is clamped; rounded and with the zero point for integer codes.

    `precision` is the dtype to which each result is rounded; `bits` are random bits for rounding.
    """
    # contract 7.1 and 8.3
    half = precision.operations
    if p.dtype.element or p.dtype.block_size:
        return _positions_by_format(x, p, half, bits)
    convention, ftype, (first, last) = rules_of(p)
    stored, zero_point = (broadcast_to_parts(a, x.shape, p.axis, p.block_size) for a in (p.scale, p.zero_point))
    x, scale, zero_point = (number.astype(ftype) for number in (x, stored, zero_point))
    inside = convention.zero_point_inside
    parts = convention.parts_of_steps(p.dtype)
    wide = convention.quotient == "divide_in_float64"
    if convention.quotient == "steps_in_unit":
        inverse = _steps_in_unit(stored, ftype)
        steps = round_to_integers(x * inverse - zero_point * inverse, convention.rounding, bits, parts)
        return np.asarray(steps.astype(ftype) + ftype.type(first))
    if convention.zero_point == "offset":
        x = x.astype(np.float64) - zero_point if wide else in_half(x - zero_point, half)
        inside = False
        zero_point = ftype.type(first if convention.offset_code == "lowest" else 0)
    if wide:
        ratio = (x.astype(np.float64) / scale.astype(np.float64)).astype(ftype)
    elif convention.quotient == "divide":
        ratio = x / scale
    elif convention.by_range:
        steps = ftype.type(last - first)
        span = (stored.astype(np.float64) * float(steps)).astype(ftype)
        ratio = np.where(
            span == 0, ftype.type(0), x / span * steps if convention.quotient == "range" else x * steps / span
        )
    else:
        if convention.quotient == "reciprocal":
            inverse = ftype.type(1) / scale
        else:
            inverse = (1.0 / stored.astype(np.float64)).astype(ftype)
        factor = in_half(inverse, half)
        if convention.fused and convention.zero_point_inside and ftype == np.float32:
            total = in_half(_fused_multiply_add(x, factor, zero_point), half)
            return round_to_integers(total, convention.rounding, bits, parts)
        ratio = x * factor
    ratio = in_half(ratio, half)
    if inside:
        return round_to_integers(in_half(ratio + zero_point, half), convention.rounding, bits, parts)
    return np.asarray(round_to_integers(ratio, convention.rounding, bits, parts).astype(ftype) + zero_point)


@np.errstate(over="ignore", under="ignore", invalid="ignore")  # signalling NaN
def _positions_by_format(x: Array, p: QParams, half: str, bits: Array | None) -> Array:
    """Return the steps for float codes and for formats with their own scales."""
    ftype = compute_dtype(x.dtype).type
    has_own_scales = p.dtype.block_size > 0
    scale = blocks.steps(p) if has_own_scales else p.scale.astype(ftype)
    scale = broadcast_to_parts(scale, x.shape, p.axis, p.block_size)
    if p.dtype.codebook:
        return floats.in_scales(x.astype(ftype), scale)
    ratios = (
        blocks.ratios(x.astype(ftype), scale, p, rules_of(p)[0], half)
        if has_own_scales
        else in_half(x.astype(ftype) / scale, half)
    )
    if not p.dtype.element:
        return round_to_integers(ratios, "half_even", bits)
    # ONNX adds the zero point of floats of fewer than 8 bits, so that -0.0 becomes 0.0, and only theirs.
    adds_zero = not has_own_scales and (p.dtype.packed or rules_of(p)[0].zero_point_inside)
    return np.asarray(ratios + ftype(0) if adds_zero else ratios)


def encode(
    x: Array, p: QParams, saturate: bool, precision: HalfPrecision = UNROUNDED, noise: Noise | None = None
) -> Array:
    """Quantize `x` to unpacked codes, in the storage dtype of the format."""
    # contract 2.2 and 7.1
    bits = None if noise is None else numbers(noise, x.shape)
    form = p.dtype.float_format
    quotients = positions(x, p, precision, bits)
    codes = np.empty_like(x, p.dtype.storage)
    if form is not None:
        ties = rules_of(p)[0].float_ties
        saturate = saturate or p.dtype.block_size > 0
        codes[...] = floats.encode(quotients, form, saturate, bits, ties).view(p.dtype.storage)
        return codes
    first, last = rules_of(p)[2]
    codes[...] = np.clip(np.where(np.isnan(quotients), first, quotients), first, last)  # NaN of 0 * inf: the lowest
    return codes


@np.errstate(all="ignore")  # rows may keep scales that are infinite in F, or of which a unit has 0 steps there
def decode(codes: Array, p: QParams, values: np.dtype[Any] | None = None) -> Array:
    """Dequantize unpacked codes, in the compute type; `values` is the dtype that they are to be rounded to."""
    # contract 7.3 and 7.7
    if p.dtype.element or p.dtype.block_size:
        return _values_by_format(codes, p)
    convention, ftype, (first, last) = rules_of(p)
    stored, zero_point = (broadcast_to_parts(a, codes.shape, p.axis, p.block_size) for a in (p.scale, p.zero_point))
    half = "" if values is None else convention.half_of_values(values)
    scale = in_half(stored.astype(ftype), half)
    zero_point = zero_point.astype(ftype)
    if convention.zero_point == "offset" or convention.zero_point_inside:
        zero_point = in_half(zero_point, half)
    has_offset = convention.zero_point == "offset"
    base = ftype.type(first if convention.offset_code == "lowest" else 0) if has_offset else zero_point
    steps = in_half(codes.astype(ftype) - base, half)
    steps = in_half(steps + ftype.type(0.5), half) if convention.decode == "middle" else steps
    if not has_offset:
        return np.asarray(steps * scale)
    if convention.quotient == "steps_in_unit":
        return np.asarray(steps / _steps_in_unit(stored, ftype) + zero_point)
    if not convention.by_range:
        return np.asarray(in_half(steps * scale, half) + zero_point)
    count = ftype.type(last - first)
    span = (stored.astype(np.float64) * float(count)).astype(ftype)
    return np.asarray(steps / count * span + zero_point)


def _steps_in_unit(scale: Array, ftype: np.dtype[Any]) -> Array:
    """Return how many steps of a scale a unit has."""
    # contract 2.17
    inverse = 1.0 / scale.astype(np.float64)
    return np.where(inverse > 1, np.rint(inverse), inverse).astype(ftype)


def _values_by_format(codes: Array, p: QParams) -> Array:
    """Return the values of float codes and of codes in formats with their own scales."""
    steps = blocks.value_steps(p) if p.dtype.block_size else p.scale.astype(p.compute_dtype)
    ftype = steps.dtype
    row = p.dtype.float_format
    scale = broadcast_to_parts(steps, codes.shape, p.axis, p.block_size)
    return np.asarray((codes if row is None else floats.decode(codes, row)).astype(ftype) * scale)


def round_to_integers(x: Array, rounding: str, bits: Array | None = None, parts: float = 0.0) -> Array:
    """Return `x` rounded to whole numbers, at random by `bits` if it is given, else to `parts` of them before."""
    if bits is not None:
        return round_by_bits(x, bits)
    if parts:
        x = np.rint(x * x.dtype.type(parts)) * x.dtype.type(1 / parts)
    if rounding == "half_away":
        whole = np.trunc(x)
        return np.asarray(whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1, x), 0).astype(x.dtype))
    if rounding == "half_up":
        return np.asarray(np.floor(x + x.dtype.type(0.5)))
    return np.asarray({"half_even": np.rint, "floor": np.floor, "trunc": np.trunc}[rounding](x))


def _fused_multiply_add(x: Array, factor: Array, term: Array) -> Array:
    """Return ``x * factor + term`` of float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there: a second rounding then finds no tie that the exact
    sum does not have (Boldo and Melquiond 2008).
    """
    product = x.astype(np.float64) * factor
    addend = term.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = np.asarray(total).view(np.int64) % 2 == 0
    towards = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.asarray(np.where(np.isfinite(total) & (error != 0) & even, towards, total)).astype(np.float32)
