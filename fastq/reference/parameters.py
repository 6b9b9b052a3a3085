"""Compute scale and zero point from a range, by the rows of the table of conventions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastq.formats.conventions.convention import UNROUNDED, Convention, HalfPrecision
from fastq.formats.floats import FLOAT_FORMATS, FloatFormat
from fastq.formats.granularity import Granularity
from fastq.reference.codes import round_to_integers
from fastq.reference.floats import in_half
from fastq.reference.granularity import extremes
from fastq.requests.quantization import compute_dtype
from fastq.system.dtypes import Array


def range_of(x: Array, parts: Granularity) -> tuple[Array, Array]:
    """Return the range of `x` in its compute type."""
    ftype = compute_dtype(x.dtype).type
    lo, hi = (extreme.astype(ftype) for extreme in extremes(x, parts))
    if np.isinf(lo).any() or np.isinf(hi).any():
        raise ValueError("x has infinite values, so its range has no scale")
    return np.asarray(lo), np.asarray(hi)


@np.errstate(over="ignore", under="ignore")
def from_range(
    lo: Array,
    hi: Array,
    convention: Convention,
    codes: tuple[float, float],
    symmetric: bool,
    precision: HalfPrecision = UNROUNDED,
) -> tuple[Array, Array]:
    """Return scale and zero point of a range, in the type that the convention computes them in.

    `precision` has the dtypes to which the scale and the result of each operation are rounded. The result is what codes
    are computed with: `kept` is what remains.
    """
    # contract 5.1, 5.2 and 5.3
    stored, half, _ = precision
    ftype = convention.computes_in(lo.dtype).type
    ptype = np.float64 if convention.parameter_type == "float64" else ftype
    lo, hi = lo.astype(ptype), hi.astype(ptype)
    # of the range itself: below it is widened
    smallest = lo
    farthest = -np.abs(lo)
    if convention.includes_zero or symmetric:
        lo, hi = np.minimum(lo, ptype(0)), np.maximum(hi, ptype(0))
    constant = lo == hi
    lo = _float32_below(lo) if convention.offset_rounding == "float32_below" else lo
    first, last = (ptype(code) for code in codes)
    middle = np.rint((first + last) / 2)
    form = FLOAT_FORMATS[stored] if stored else None
    steps = last - first + ptype(convention.divisor == "codes")
    if convention.scale_from == "inverse" and not symmetric:
        return _by_inverse(lo, hi, first, steps, convention)
    floor = in_half(np.asarray(ptype(convention.range_floor)), half)  # contract 5.20
    size, steps = (np.maximum(-lo, hi), steps / 2) if symmetric else (np.asarray(hi - lo), steps)
    size = np.maximum(size, floor)
    if symmetric and convention.symmetric_extreme != "magnitude":  # contract 5.8
        least = lo if convention.symmetric_extreme == "signed" else farthest
        extreme = np.where(hi > -least, np.maximum(hi, floor), np.minimum(least, -floor))
        scale = _over(extreme, -steps, convention, half)
    elif symmetric:
        scale = _over(size, steps, convention, half)
    else:
        scale = np.maximum(
            _asymmetric_scale(lo, hi, steps, convention, ftype, half), _over(floor, steps, convention, half)
        )
        if convention.scale_rounding == "power_of_two":
            scale = _power_that_suffices(scale, hi - lo, steps, convention)
        scale = _with_whole_inverse(scale) if convention.scale_rounding == "whole_inverse" else scale
        scale = _within_range(scale, lo.astype(ftype), hi.astype(ftype), last - first) if convention.by_range else scale
        scale = np.where(constant, ptype(0), scale) if convention.offset_rounding == "float32_below" else scale
    scale = in_half(in_half(scale, "" if convention.scale_digits == "all" else convention.scale_digits), stored)
    if convention.tiny_scale == "reaching":
        scale = _raised_to_reach_ends(scale, size, steps, form, ftype)
    scale = scale.astype(ftype).astype(ptype) if convention.scale_rounded else scale
    scale, degenerate = _without_degenerate(scale, smallest if symmetric else lo, convention, form, ftype)
    if convention.narrow_range is not None and not symmetric:
        scale = np.where(hi - lo <= ptype(convention.narrow_range), ptype(1), scale)
    single = convention.stored_type == "float32"
    if symmetric:
        zero_point = np.where(degenerate & (convention.degenerate_zero_point == "zero"), ptype(0), middle)
        return _in_single(scale) if single else scale, zero_point
    if convention.scale_sign != "positive":  # contract 5.6 and 5.14
        falls = {"negative": True, "nearer_end": -lo > hi, "farther_end": np.abs(lo) <= np.abs(hi)}[
            convention.scale_sign
        ]
        falls = ~degenerate & falls
        scale = np.where(falls, -scale, scale)
        lo, hi = np.where(falls, hi, lo), np.where(falls, lo, hi)
    if convention.scale_rounding == "whole_steps":
        scale, lo = _in_whole_steps(scale, lo)
    if convention.zero_point == "offset":
        offset = _offset((lo, hi), scale, degenerate, convention, (first, last), half)
        scale, offset = (_in_single(scale), _in_single(offset)) if single else (scale, offset)
        return np.where(np.isinf(offset), ptype(np.inf), scale), np.asarray(offset)
    rule_of_degenerate = convention.degenerate_zero_point if convention.zero_point == "integer" else "zero"
    instead = {"lowest": first, "end": np.where(lo < 0, last, ptype(0))}.get(rule_of_degenerate, ptype(0))
    zero_point = np.where(degenerate, instead, _zero_point(lo, hi, scale, convention, first, last, half))
    return _in_single(scale) if single else scale, zero_point


def _in_single(number: Array) -> Array:
    """Return numbers rounded to float32."""
    return number.astype(np.float32).astype(number.dtype)


def _float32_below(x: Array) -> Array:
    """Return the largest float32 that is not above x, none of them subnormal, in the type of x."""
    near = x.astype(np.float32)
    below = np.where(near > x, np.nextafter(near, np.float32(-np.inf)), near)
    least = np.finfo(np.float32).tiny
    return np.where(np.abs(x) < least, np.where(x < 0, -least, np.float32(0)), below).astype(x.dtype)


@np.errstate(divide="ignore", invalid="ignore")
def _power_that_suffices(scale: Array, span: Array, steps: Any, convention: Convention) -> Array:
    """Return the smallest power of two, a normal number, by which a span has at most `steps` steps when rounded.

    A scale of 0 or infinity stays.
    """
    tiny = np.finfo(scale.dtype).tiny
    mantissa, exponent = np.frexp(np.maximum(scale, tiny))
    power = np.ldexp(scale.dtype.type(1), exponent - (mantissa == 0.5))
    half = power / 2
    suffices = (half >= tiny) & (round_to_integers(span / half, convention.rounding) <= steps)
    return np.where((scale == 0) | np.isinf(scale), scale, np.where(suffices, half, power))


@np.errstate(divide="ignore", over="ignore", invalid="ignore")
def _with_whole_inverse(scale: Array) -> Array:
    """Return scales of which those below 1 are inverses of whole numbers (contract 5.25), if theirs is finite."""
    steps = np.floor(1 / scale)
    return np.where((scale < 1) & np.isfinite(steps), 1 / steps, scale)


@np.errstate(invalid="ignore")
def _offset(
    ends: tuple[Array, Array],
    scale: Array,
    degenerate: Array,
    convention: Convention,
    codes: tuple[Any, Any],
    half: str,
) -> Array:
    """Return the value of the code that a convention names."""
    lo, hi = ends
    first, last = codes
    if convention.offset_code == "lowest":
        offset = lo
    elif convention.offset_code == "zero":
        offset = in_half(lo - in_half(first * scale, half), half)
    else:
        twice = in_half(in_half(lo + hi, half) - in_half((first + last) * scale, half), half)
        offset = in_half(twice / 2, half)
    instead = {"zero": lo.dtype.type(0), "value": lo}.get(convention.degenerate_zero_point, offset)
    return np.where(degenerate, instead, offset)


def _least_scale(convention: Convention, smallest_normal: float) -> float:
    """Return the number below which a scale is degenerate."""
    if convention.scale_floor == "root":
        return math.sqrt(smallest_normal)
    return smallest_normal if convention.scale_floor is None else float(convention.scale_floor)


def _within_range(scale: Array, lo: Array, hi: Array, steps: Any) -> Array:
    """Return scales; one whose steps are longer than the range becomes the next smaller number."""
    # contract 5.13
    span = (scale.astype(np.float64) * float(steps)).astype(lo.dtype)
    return np.where(span > hi - lo, np.nextafter(scale, scale.dtype.type(0)), scale)


@np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")
def _by_inverse(lo: Array, hi: Array, first: Any, steps: Any, convention: Convention) -> tuple[Array, Array]:
    """Return scale and zero point of ranges, by the number of steps in a unit."""
    # contract 5.15
    inverse = lo.dtype.type(1) / (hi - lo) * steps
    if convention.narrow_range is not None:
        inverse = np.where(hi - lo <= lo.dtype.type(convention.narrow_range), lo.dtype.type(1), inverse)
    floor = _least_scale(convention, float(np.finfo(lo.dtype).tiny))
    if floor:
        inverse = np.minimum(inverse, lo.dtype.type(1 / floor))
    return np.asarray(1 / inverse.astype(np.float64)), np.asarray(first - lo * inverse)


@np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")
def _in_whole_steps(scale: Array, offset: Array) -> tuple[Array, Array]:
    """Return scales by which offsets are whole numbers of steps, and the offsets."""
    # contract 5.7
    steps = np.rint(offset / scale)
    scale = np.where((steps != 0) & np.isfinite(steps), offset / steps, scale)
    return scale, np.where(steps == 0, steps.dtype.type(0), offset)


@np.errstate(over="ignore", under="ignore")
def parameters_as_kept(
    scale: Array, zero_point: Array, convention: Convention, precision: HalfPrecision
) -> tuple[Array, Array]:
    """Return scale and zero point as they are kept, from those that codes are computed with."""
    # contract 2.9
    form = FLOAT_FORMATS.get(precision.stored)
    if form is None:
        return scale, zero_point
    rounded = in_half(scale, precision.stored)
    least = np.copysign(scale.dtype.type(form.positive(2.0**-1000)), scale)
    offset = convention.zero_point == "offset"
    return np.where(rounded == 0, least, rounded), in_half(zero_point, precision.stored) if offset else zero_point


def _raised_to_reach_ends(scale: Array, size: Array, steps: Any, form: FloatFormat | None, ftype: Any) -> Array:
    """Return scales; one below the normal numbers becomes the next one where codes would not reach the ends."""
    ptype = scale.dtype.type
    normal, unit = map(ptype, _ends_of_few_digits(form, ftype))
    few = scale.astype(ftype).astype(ptype)
    short = few * (2 * steps + ptype(1)) < 2 * size
    return np.where((scale < normal) & short, few + unit, scale)


def _without_degenerate(
    scale: Array, value: Array, convention: Convention, form: FloatFormat | None, ftype: Any
) -> tuple[Array, Array]:
    """Return scales with those that are too small replaced, and where the zero point is that of such a range.

    `value` is the number that a convention may take in their place.
    """
    ptype = scale.dtype.type
    operations = form if convention.operation_type == "input" else None
    smallest_normal = 2.0 ** (1 - operations.bias) if operations else float(np.finfo(ftype).tiny)
    least = _least_scale(convention, smallest_normal)
    floor = ptype(form.positive(least) if form and least else least)
    floor = max(floor, ptype(np.finfo(np.float32).smallest_subnormal)) if convention.stored_type == "float32" else floor
    size = np.abs(scale) if convention.signed_scale else scale
    degenerate = (size < floor) | (size == 0)
    if convention.degenerate == "value":
        instead = np.where((np.abs(value) < floor) | (value == 0), ptype(1), value)
    else:
        epsilon = 2.0**-form.mantissa if form else float(np.finfo(ftype).eps)
        number = {"floor": float(floor), "epsilon": epsilon}.get(str(convention.degenerate), convention.degenerate)
        instead = np.full_like(scale, form.positive(float(number)) if form else number)
    scale = np.where(degenerate, instead, scale)
    by_formula = convention.degenerate == "floor" or convention.degenerate_zero_point == "formula"
    return scale, np.zeros_like(degenerate) if by_formula else degenerate


@np.errstate(over="ignore", under="ignore")
def finite_scale(scale: Array, dtype: np.dtype[Any]) -> Array:
    """Return scales in the type that they are kept in, where none may be infinite."""
    # contract 2.7
    scale = scale.astype(dtype)
    if np.isinf(scale).any():
        raise ValueError("x has a range too wide for a finite scale")
    return scale


def _ends_of_few_digits(form: FloatFormat | None, ftype: Any) -> tuple[float, float]:
    """Return the smallest normal number of a type, and the distance between those below it."""
    if form is None:
        return float(np.finfo(ftype).tiny), float(np.finfo(ftype).smallest_subnormal)
    return 2.0 ** (1 - form.bias), 2.0 ** (1 - form.bias - form.mantissa)


def _over(size: Array, steps: Any, convention: Convention, half: str) -> Array:
    """Return the size of a range in units of a number of steps."""
    if convention.scale_quotient == "reciprocal":  # contract 5.24
        return in_half(np.asarray(size * in_half(np.asarray(1 / steps), half)), half)
    return in_half(np.asarray(size / steps), half)


def _asymmetric_scale(lo: Array, hi: Array, steps: Any, convention: Convention, compute: Any, half: str) -> Array:
    """Return the scale, by way of wider numbers where the span is infinite; at most the largest number, as of 1 bit."""
    span = np.asarray(hi - lo)
    ftype = lo.dtype.type
    if convention.span_type == "compute":
        return _over((hi.astype(compute) - lo.astype(compute)).astype(ftype), steps, convention, half)
    if half or convention.scale_quotient == "reciprocal":
        return _over(in_half(span, half), steps, convention, half)
    if ftype is np.float64:
        scale = np.asarray(hi / steps - lo / steps)
    else:
        scale = np.asarray((hi.astype(np.float64) - lo.astype(np.float64)) / np.float64(steps)).astype(ftype)
    return np.asarray(np.where(np.isinf(span), np.minimum(scale, np.nextafter(ftype(np.inf), ftype(0))), span / steps))


@np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")
def _zero_point(lo: Array, hi: Array, scale: Array, convention: Convention, first: Any, last: Any, half: str) -> Array:
    """Return the codes of 0.0: whole and clamped, unless the convention has floats for them."""
    end, code = (hi, last) if convention.zero_point_end == "highest" else (lo, first)
    distance = in_half(end / scale, half)
    point = in_half(np.asarray(code - distance), half)
    if convention.zero_point_end == "both":  # contract 5.22
        between = in_half(in_half(first * hi, half) - in_half(last * lo, half), half) / in_half(hi - lo, half)
        point = np.where(np.isfinite(in_half(between, half)), in_half(between, half), point)
    if convention.zero_point == "float":
        return np.asarray(point)
    if convention.zero_point_rounded == "quotient" and convention.zero_point_end != "both":
        zero_point = code - round_to_integers(distance, convention.zero_point_rounding)
    else:
        zero_point = round_to_integers(np.asarray(point), convention.zero_point_rounding)
    return np.asarray(np.clip(zero_point, first, last))
