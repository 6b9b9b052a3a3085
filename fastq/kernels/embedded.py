"""Convert arrays and scalars under one scale, in functions that other people's compiled code calls.

Loops and formulas are those of kernels. Checks here are of run-time values; types were checked before.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import Constants, njit, traced
from fastq.engine.simd.vector import named_type
from fastq.formats.qtypes import WANTED_SCALES
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.body.convert import convert_run
from fastq.kernels.body.min_max import min_max
from fastq.kernels.body.requantize import visit_run
from fastq.kernels.build import spec_of
from fastq.kernels.formulas import is_infinite
from fastq.kernels.load_store import prefetch_ahead
from fastq.kernels.nan import count_nan_as_zero, nan_mask
from fastq.kernels.pointers import ElementOperands, RequantizeOperands
from fastq.kernels.requantization import RequantizeSpec, first_word, requantize_lanes, second_word
from fastq.kernels.scales_of_ranges import range_parameters
from fastq.kernels.spec import KernelSpec


@dataclass(eq=False, repr=False)
class Conversion(Constants):
    """Type of an argument that says what becomes of an array or scalar."""

    spec: KernelSpec  # what is computed
    scale: types.Float  # type of scales
    code_range: tuple[float, float]  # the first and the last code in use
    zero_points: tuple[int, int] | None  # the first and last one that may be given; None where it is a float
    result: types.Type  # element type of results
    argument: str  # what the caller names the array
    qtype: str  # the name of the code format

    @property
    def element(self) -> types.Type:
        """Type of the elements that are stored: float codes, which are bits to compiled code, or results."""
        return self.spec.code if self.spec.op == "quantize" and self.spec.code is not None else self.result


@dataclass(eq=False, repr=False)
class Requantization(Constants):
    """Type of an argument that says what becomes of an array of accumulators, or of one."""

    spec: RequantizeSpec  # what is computed
    code_range: tuple[int, int]  # the first and the last code in use
    zero_points: tuple[int, int]  # the first and last one that may be given
    result: types.Type  # element type of results
    argument: str  # what the caller names the array
    qtype: str  # the name of the code format


class CodeBounds(NamedTuple):
    """The fields of `Args` that loops and formulas read for a single run."""

    lowest: Any
    highest: Any
    streaming: Any


@v.instruction(lambda kind: kind.instance_type(kind))
def conversion_of(context, builder, sig, kind):
    """Return a Conversion or a Requantization, which is nothing at run time."""
    return context.get_constant_null(sig.return_type)


@traced
def bounds_of(conversion):
    """Return the first and the last code in use."""
    lowest, highest = conversion.code_range
    return CodeBounds(float(lowest), float(highest), False)


@functools.cache
def _check(message: str) -> Any:
    """Make what raises a ValueError with a message unless something holds."""

    @njit
    def check(holds):
        if not holds:
            raise ValueError(message)

    return check


@traced
def check_nan(conversion, found):
    """Raise the error for NaN in compiled code; `fastq.plan.nan_and_infinity` has that of calls from Python."""
    _check(f"{conversion.argument} has NaN; pass nan='zero' to treat them as 0.0")(found ^ True)


@v.instruction(lambda array, element: types.CPointer(named_type(element))(array, element))
def data_of(context, builder, sig, array, element):
    """Return a pointer to the first element of an array, whose elements are those of a type of the same width."""
    data = context.make_array(sig.args[0])(context, builder, array).data
    return builder.bitcast(data, context.get_value_type(sig.return_type))


# --- given parameters -------------------------------------------------------------------------------------------------


@traced
def convert_with(conversion, x, scale, zero_point, out):
    """Convert x under a scale and zero point as the caller gives them."""
    given = checked_scale(conversion, scale), checked_zero_point(conversion, zero_point)
    return convert_any(conversion, x, given, out)


@traced
def checked_scale(conversion, scale):
    """Return a scale in the type of scales; it is finite there, and positive unless codes are decoded with it."""
    dtype = conversion.scale
    signed = conversion.spec.rule.signed
    may_be_zero = conversion.spec.op == "dequantize"
    value = v.convert(only_element(scale), dtype)
    size = v.absolute(value) if signed else value
    zero = v.constant(0, value)
    check = _check(f"scale must be {WANTED_SCALES[signed, may_be_zero]} in {dtype}")
    check((size >= zero if may_be_zero else size > zero) & (size < v.constant(float("inf"), size)))
    return value


@traced
def checked_zero_point(conversion, zero_point):
    """Return a zero point in the type of scales; it is a code, or finite where the convention has floats."""
    dtype = conversion.scale
    if zero_point is None:
        return v.convert(0, dtype)
    value = only_element(zero_point)
    if conversion.zero_points is None:
        value = v.convert(value, dtype)
        _check(f"zero_point must be finite in {dtype}")(v.absolute(value) < v.constant(float("inf"), value))
        return value
    return v.convert(_checked_code(conversion, value), dtype)


@traced
def _checked_code(conversion, value):
    """Return a zero point that is a code."""
    first, last = conversion.zero_points
    check = _check(f"zero_point must be from {first} to {last} for {conversion.qtype}")
    check((value >= first) & (value <= last))
    return value


@traced
def only_element(parameter, names="scale and zero_point"):
    """Return a parameter, which may be the one element of an array."""
    if not isinstance(parameter, types.Array):
        return parameter
    _check(f"{names} must be one number each in compiled code")(parameter.size == 1)
    return v.load(data_of(parameter, parameter.dtype), 0, parameter.dtype)


# --- parameters from the range ----------------------------------------------------------------------------------------


@traced
def convert_by_range(conversion, x, out):
    """Convert x under the scale and zero point of the range of all of it."""
    return convert_any(conversion, x, None, out)


@traced
def parameters_of_range(conversion, lo, hi, nan):
    """Return scale and zero point of a range; refuse ranges without them."""
    if conversion.spec.nan == "raise":
        check_nan(conversion, nan)
    spec = spec_of(conversion)
    name = conversion.argument
    lo, hi = count_nan_as_zero(spec, lo, hi, nan)
    scale, zero_point = range_parameters(spec, lo, hi, bounds_of(conversion), v.pointer(0, conversion.scale))
    _check(f"{name} has infinite values: their range has no scale; clip {name}")(is_infinite(scale) ^ True)
    return scale, zero_point


# --- requantization ---------------------------------------------------------------------------------------------------

_NUMBERS = "multiplier, zero_point and bias"


@traced
def requantize_with(conversion, acc, multiplier, zero_point, bias, out):
    """Requantize acc by numbers as the caller gives them."""
    spec = conversion.spec
    factor = v.convert(only_element(multiplier, _NUMBERS), types.float64)
    fits = (factor >= v.constant(0, factor)) & (factor < v.constant(spec.below, factor))
    _check(f"multiplier must be from 0 on and less than {spec.below}")(fits)
    zero_point = _checked_code(conversion, only_element(zero_point, _NUMBERS))
    term = None if bias is None else _checked_bias(spec, only_element(bias, _NUMBERS))
    words = first_word(spec, factor), second_word(spec, term, zero_point)
    return convert_any(conversion, acc, words, out)


@traced
def _checked_bias(spec, bias):
    """Return a bias in the type in which it is added."""
    if spec.bias == "int32":
        limit = 2**31
        _check(f"bias must be from {-limit} to {limit - 1}")((bias >= -limit) & (bias < limit))
        return v.convert(bias, types.int32)
    value = v.convert(bias, types.float32)
    _check("bias must be finite in float32")(v.absolute(value) < v.constant(float("inf"), value))
    return value


@traced
def _requantize_scalar(conversion, x, words):
    (lowest, highest), (first, second) = conversion.code_range, [v.full(word, _Words) for word in words]
    codes = requantize_lanes(spec_of(conversion), v.full(x, _Sums), first, second, lowest, highest)
    return v.convert(v.first(codes), conversion.result)


_Sums = v.Vec(types.int32, 1)
_Words = v.Vec(types.int64, 1)


@traced
def _requantize_contiguous(conversion, x, words, out):
    first = v.scratch(1, types.int64)
    second = v.scratch(1, types.int64)
    first[0], second[0] = words
    operands = RequantizeOperands(data_of(x, x.dtype), data_of(out, conversion.result), first, second)
    lowest, highest = conversion.code_range
    visit_run(spec_of(conversion), operands, 0, (lowest, highest), 0, x.size, False)


# --- scalars and arrays -----------------------------------------------------------------------------------------------


@traced
def convert_any(conversion, x, given, out):
    """Convert a scalar to a scalar, or an array to a new one in C order or to out; `given` are scale and zero point."""
    if not isinstance(x, types.Array):
        return _convert_scalar(conversion, x, given)
    return _convert_to_new(conversion, x, given) if out is None else _convert_to_out(conversion, x, given, out)


@traced
def _convert_scalar(conversion, x, given):
    if isinstance(conversion, Requantization):
        return _requantize_scalar(conversion, x, given)
    spec = spec_of(conversion)
    like = v.pointer(0, conversion.scale)
    check_nan(conversion, nan_mask(spec, x))
    scale, zero_point = parameters_of_range(conversion, x, x, x != x) if given is None else given
    value = to_compute(spec, x, like)
    return apply_op(spec, value, scale, zero_point, bounds_of(conversion), v.pointer(0, conversion.element))


@njit
def _convert_to_new(conversion, x, given):
    result = np.empty(x.shape, conversion.result)
    _fill(conversion, x, given, result)
    return result


@njit
def _convert_to_out(conversion, x, given, out):
    if x.shape != out.shape:
        raise ValueError("out has another shape than the result")
    if _is_apart(x, out):
        _fill(conversion, x, given, out)
    else:
        out[...] = _convert_to_new(conversion, x, given)
    return out


@traced
def _is_apart(x, out):
    """Whether a contiguous out shares no memory with x, which is copied where it is not contiguous."""
    if out.layout != "C" or x.layout != "C":
        return out.layout == "C"
    first = v.address_of(data_of(x, types.uint8))
    second = v.address_of(data_of(out, types.uint8))
    return (first >= second + out.nbytes) | (second >= first + x.nbytes)


@traced
def _fill(conversion, x, given, out):
    """Write what x becomes to out, which is contiguous."""
    (_fill_from_contiguous if x.layout == "C" else _fill_from_copy)(conversion, x, given, out)


@njit
def _fill_from_copy(conversion, x, given, out):
    _fill_from_contiguous(conversion, x.copy(), given, out)


@traced
def _fill_from_contiguous(conversion, x, given, out):
    """Write what x becomes to out, both contiguous. Callers hold both: a pointer keeps no array alive."""
    requantizes = isinstance(conversion, Requantization)
    (_requantize_contiguous if requantizes else _convert_contiguous)(conversion, x, given, out)


@traced
def _convert_contiguous(conversion, x, given, out):
    like = v.pointer(0, conversion.scale)
    operands = ElementOperands(data_of(x, x.dtype), data_of(out, conversion.element), like, like)
    scale, zero_point = _of_range(conversion, operands.src, x.size) if given is None else given
    bounds = bounds_of(conversion)
    found = convert_run(spec_of(conversion), operands, bounds, scale, zero_point, 0, x.size, prefetch_ahead())
    check_nan(conversion, found)


@traced
def _of_range(conversion, src, size):
    _check("the range of no elements has no minimum and no maximum")(size > 0)
    return parameters_of_range(conversion, *min_max(src, 0, size))
