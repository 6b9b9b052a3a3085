"""Convert arrays and scalars under one scale, in functions that other people's compiled code calls.

Numba compiles the closures here, which allocate arrays, compare shapes and raise errors. What computes is traced:
loops and formulas are those of kernels, emitted into the caller. Checks here are of run-time values; types were checked
before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import register_jitable

from fastq.engine import simd as v
from fastq.engine.jit import Constants, numba_intrinsic, traced
from fastq.engine.runtime.instructions import enter_quietly, leave_quietly
from fastq.formats.qtypes import WANTED_SCALES
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.body.convert import convert_run
from fastq.kernels.body.min_max import min_max
from fastq.kernels.body.requantize import visit_run
from fastq.kernels.build import kernel_spec_of
from fastq.kernels.formulas import is_infinite
from fastq.kernels.load_store import prefetch_ahead
from fastq.kernels.nan import count_nan_as_zero, nan_mask
from fastq.kernels.pointers import ElementOperands, RequantizeOperands
from fastq.kernels.requantization import RequantizeSpec, first_word, requantize_lanes, second_word
from fastq.kernels.scales_of_ranges import range_parameters
from fastq.kernels.spec import KernelSpec


@dataclass(eq=False, repr=False)
class EmbeddedConversion(Constants):
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
class EmbeddedRequantization(Constants):
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


# --- what Numba compiles ----------------------------------------------------------------------------------------------

# what traced functions return: nothing is refused, or which of the three messages of a conversion says what is
ACCEPTED, FIRST, SECOND, THIRD = range(4)
# Around what converts arrays, as around kernels: NumPy looks at the flags of the CPU after a ufunc. Around a number it
# would cost more than the number, and keep LLVM from taking several at once.
QUIETLY = enter_quietly, leave_quietly
Messages = tuple[str, str, str]


def converter_by_numbers(conversion: EmbeddedConversion, x: types.Type, out: types.Type) -> Any:
    """Return what converts ``(x, out, scale, zero_point)`` in code of Numba, for these types of x and out."""
    scales = WANTED_SCALES[conversion.spec.rule.signed, conversion.spec.op == "dequantize"]
    if conversion.zero_points is None:
        zero_points = f"zero_point must be finite in {conversion.scale}"
    else:
        zero_points = _wanted_codes(conversion)
    messages = f"scale must be {scales} in {conversion.scale}", zero_points, _nan_refusal(conversion)
    return _converter(conversion, x, out, _convert_array, _convert_scalar, messages)


def converter_by_range(conversion: EmbeddedConversion, x: types.Type, out: types.Type) -> Any:
    """Return what converts ``(x, out)`` by the range of x in code of Numba, for these types of x and out."""
    name = conversion.argument
    messages = (
        "the range of no elements has no minimum and no maximum",
        f"{name} has infinite values: their range has no scale; clip {name}",
        _nan_refusal(conversion),
    )
    return _converter(conversion, x, out, _convert_array_by_range, _convert_scalar_by_range, messages)


def requantizer(conversion: EmbeddedRequantization, acc: types.Type, out: types.Type) -> Any:
    """Return what requantizes ``(acc, out, multiplier, zero_point, bias)`` in code of Numba, for these types."""
    if conversion.spec.bias == "float32":
        biases = "bias must be finite in float32"
    else:
        biases = f"bias must be from {-(2**31)} to {2**31 - 1}"
    multipliers = f"multiplier must be from 0 on and less than {conversion.spec.below}"
    messages = multipliers, _wanted_codes(conversion), biases
    return _converter(conversion, acc, out, _requantize_array, _requantize_scalar, messages)


def _nan_refusal(conversion: EmbeddedConversion) -> str:
    """Return the message for NaN in compiled code; `fastq.plan.nan_and_infinity` has that of calls from Python."""
    return f"{conversion.argument} has NaN; pass nan='zero' to treat them as 0.0"


def _wanted_codes(conversion: EmbeddedConversion | EmbeddedRequantization) -> str:
    """Return the message for a zero point that is no code."""
    first, last = conversion.zero_points or (0, 0)
    return f"zero_point must be from {first} to {last} for {conversion.qtype}"


def number_reader(numba_type: Any, names: str) -> Any:
    """Return what reads a parameter of a type in code of Numba: a number, None, or the only element of an array."""
    if not isinstance(numba_type, types.Array):
        return _as_it_is
    message = f"{names} must be one number each in compiled code"

    @register_jitable
    def only_element(parameter):
        if parameter.size != 1:
            raise ValueError(message)
        return parameter.item()

    return only_element


def _converter(conversion, x, out, of_array, of_scalar, messages: Messages) -> Any:
    """Return what converts in code of Numba, by a traced function for arrays and one for scalars."""
    refuse = _refuser(messages)
    if not isinstance(x, types.Array):
        return _scalar_converter(conversion, of_scalar, refuse)
    to_new = _converter_to_new(conversion, x, of_array, refuse)
    return _converter_to_out(conversion, x, out, of_array, refuse, to_new) if isinstance(out, types.Array) else to_new


def _scalar_converter(conversion, of_scalar, refuse) -> Any:
    """Return what converts a number."""
    convert = numba_intrinsic(of_scalar, conversion, result=types.Tuple([types.int64, conversion.result]))

    @register_jitable
    def convert_scalar(x, out, *numbers):
        status, result = convert(x, *numbers)
        refuse(status)
        return result

    return convert_scalar


def _converter_to_new(conversion, x, of_array, refuse) -> Any:
    """Return what converts an array to a new one in C order."""
    fill = numba_intrinsic(of_array, conversion, result=types.int64, around=QUIETLY)
    contiguous = _as_it_is if x.layout == "C" else _copy
    element = conversion.result

    @register_jitable
    def convert_to_new(x, out, *numbers):
        result = np.empty(x.shape, element)
        refuse(fill(contiguous(x), result, x.size, *numbers))
        return result

    return convert_to_new


def _converter_to_out(conversion, x, out, of_array, refuse, to_new) -> Any:
    """Return what converts an array to one that is given: straight, where both lie apart and out is contiguous."""
    fill = numba_intrinsic(of_array, conversion, result=types.int64, around=QUIETLY)
    contiguous = _as_it_is if x.layout == "C" else _copy
    is_apart = _are_apart if out.layout == x.layout == "C" else _always if out.layout == "C" else _never
    move = _move_flat if out.layout == "C" else _move_rows

    @register_jitable
    def convert_to_out(x, out, *numbers):
        if x.shape != out.shape:
            raise ValueError("out has another shape than the result")
        if is_apart(x, out):
            refuse(fill(contiguous(x), out, x.size, *numbers))
        else:
            move(to_new(x, None, *numbers), out)
        return out

    return convert_to_out


def _refuser(messages: Messages) -> Any:
    """Return what raises the error that a status stands for."""
    first, second, third = messages

    @register_jitable
    def refuse(status):
        if status == FIRST:
            raise ValueError(first)
        if status == SECOND:
            raise ValueError(second)
        if status == THIRD:
            raise ValueError(third)

    return refuse


@register_jitable
def _as_it_is(item):
    return item


@register_jitable
def _copy(x):
    return x.copy()


# Moving a new array to one that is given: Numba takes 3 s to compile ``out[...] = new``, and 0.1 s for each of these.


@register_jitable
def _move_flat(new, out):
    """Write a new array to a contiguous one of the same shape."""
    source = new.ravel()
    target = out.ravel()
    for k in range(source.size):
        target[k] = source[k]


@register_jitable
def _move_rows(new, out):
    """Write a new array to one with any strides, row by row of the last axis."""
    for index in np.ndindex(out.shape[:-1]):
        source = new[index]
        target = out[index]
        for k in range(source.size):
            target[k] = source[k]


@register_jitable
def _are_apart(x, out):
    """Whether contiguous arrays share no memory."""
    first = x.ctypes.data
    second = out.ctypes.data
    return first >= second + out.nbytes or second >= first + x.nbytes


# what may stand for `_are_apart` where it need not be asked


@register_jitable
def _always(x, out):
    return True


@register_jitable
def _never(x, out):
    return False


# --- what computes: traced functions, of scalars and of pointers to elements ------------------------------------------


@traced
def bounds_of(conversion):
    """Return the first and the last code in use."""
    lowest, highest = conversion.code_range
    return CodeBounds(float(lowest), float(highest), streaming=False)


@traced
def _status(first_is_right, second_is_right, third_is_right):
    """Return which of three checks fails first, by the status that `_refuser` has an error for, or `ACCEPTED`."""
    third = v.select(third_is_right, ACCEPTED, THIRD)
    return v.select(first_is_right, v.select(second_is_right, third, SECOND), FIRST)


@traced
def _convert_array(conversion, x, out, count, scale, zero_point):
    """Convert x to out, arrays in C order, by the parameters that a caller gives; return the status."""
    scale, scale_is_right = _checked_scale(conversion, scale)
    zero_point, zero_point_is_right = _checked_zero_point(conversion, zero_point)
    status = _status(scale_is_right, zero_point_is_right, third_is_right=True)
    if status != ACCEPTED:
        return status
    nan = _convert_elements(conversion, x, out, count, scale, zero_point)
    return _status(first_is_right=True, second_is_right=True, third_is_right=nan ^ True)


@traced
def _convert_array_by_range(conversion, x, out, count):
    """Convert x to out, arrays in C order, by the range of x; return the status."""
    if count == 0:
        return FIRST
    scale, zero_point, status = _parameters_of_range(conversion, *min_max(_elements(x), 0, count))
    if status == ACCEPTED:
        _convert_elements(conversion, x, out, count, scale, zero_point)
    return status


@traced
def _convert_scalar(conversion, x, scale, zero_point):
    """Return the status, and the number that x becomes by the parameters that a caller gives, whatever the status."""
    scale, scale_is_right = _checked_scale(conversion, scale)
    zero_point, zero_point_is_right = _checked_zero_point(conversion, zero_point)
    nan = nan_mask(conversion.spec, x)
    status = _status(scale_is_right, zero_point_is_right, nan ^ True)
    return status, _convert_number(conversion, x, scale, zero_point)


@traced
def _convert_scalar_by_range(conversion, x):
    """Return the status, and the number that x becomes by the range from x to x, whatever the status."""
    scale, zero_point, status = _parameters_of_range(conversion, x, x, x != x)
    return status, _convert_number(conversion, x, scale, zero_point)


@traced
def _checked_scale(conversion, scale):
    """Return a scale in the type of scales, and whether it is finite there and, unless the rule knows signs, positive.

    Codes may be decoded with 0, too. A scale with a sign is checked by its magnitude.
    """
    value = v.convert(scale, conversion.scale)
    size = v.absolute(value) if conversion.spec.rule.signed else value
    zero = v.constant(0, value)
    is_large_enough = size >= zero if conversion.spec.op == "dequantize" else size > zero
    return value, is_large_enough & (size < v.constant(float("inf"), size))


@traced
def _checked_zero_point(conversion, zero_point):
    """Return a zero point in the type of scales, and whether it is a code, or finite where it is a float."""
    if zero_point is None:
        return v.convert(0, conversion.scale), True
    value = v.convert(zero_point, conversion.scale)
    if conversion.zero_points is None:
        return value, v.absolute(value) < v.constant(float("inf"), value)
    return value, _is_within(zero_point, *conversion.zero_points)


@traced
def _is_within(number, first, last):
    """Whether an integer is from the first one on to the last one."""
    # nothing unsigned is below 0
    if isinstance(number, types.Integer) and not number.signed and v.literal(first) <= 0:
        return number <= last
    return (number >= first) & (number <= last)


@traced
def _parameters_of_range(conversion, lo, hi, nan):
    """Return scale and zero point of a range, and the status: NaN is refused first, then a range without a scale."""
    spec = kernel_spec_of(conversion)
    lo, hi = count_nan_as_zero(spec, lo, hi, nan)
    scale, zero_point = range_parameters(spec, lo, hi, bounds_of(conversion), v.pointer(0, conversion.scale))
    has_scale = is_infinite(scale) ^ True
    status = v.select(has_scale, ACCEPTED, SECOND)
    if conversion.spec.nan == "raise":
        status = v.select(nan, THIRD, status)
    return scale, zero_point, status


@traced
def _convert_number(conversion, x, scale, zero_point):
    """Convert a scalar by the formula for any scale: to prepare one pays for many values only."""
    spec = kernel_spec_of(conversion)
    value = to_compute(spec, x, v.pointer(0, conversion.scale))
    return apply_op(spec, value, scale, zero_point, bounds_of(conversion), v.pointer(0, conversion.element))


@traced
def _elements(pointer):
    """Return a pointer of Numba as one to elements of kernels."""
    return v.cast_pointer(pointer, pointer.dtype)


@traced
def _convert_elements(conversion, x, out, count, scale, zero_point):
    """Convert elements; return whether there was a NaN to report."""
    like = v.pointer(0, conversion.scale)  # parameters are passed beside it: its type says what they are
    operands = ElementOperands(_elements(x), v.cast_pointer(out, conversion.element), like, like)
    return convert_run(
        kernel_spec_of(conversion), operands, bounds_of(conversion), scale, zero_point, 0, count, prefetch_ahead()
    )


# --- requantization ---------------------------------------------------------------------------------------------------

# a number is requantized as a Vec of one lane: arithmetic of scalars would not wrap
_Sums = v.Vec(types.int32, 1)
_Words = v.Vec(types.int64, 1)


@traced
def _requantize_array(conversion, acc, out, count, multiplier, zero_point, bias):
    """Requantize accumulators, an array in C order, to out; return the status."""
    first, second, status = _words_of(conversion, multiplier, zero_point, bias)
    if status != ACCEPTED:
        return status
    first_words = v.scratch(1, types.int64)
    second_words = v.scratch(1, types.int64)
    first_words[0] = first
    second_words[0] = second
    operands = RequantizeOperands(_elements(acc), v.cast_pointer(out, conversion.result), first_words, second_words)
    visit_run(kernel_spec_of(conversion), operands, 0, conversion.code_range, 0, count, streaming=False)
    return status


@traced
def _requantize_scalar(conversion, acc, multiplier, zero_point, bias):
    """Return the status, and the code of one accumulator, whatever the status."""
    first, second, status = _words_of(conversion, multiplier, zero_point, bias)
    lowest, highest = conversion.code_range
    sums = v.full(acc, _Sums)
    codes = requantize_lanes(
        kernel_spec_of(conversion), sums, v.full(first, _Words), v.full(second, _Words), lowest, highest
    )
    return status, v.convert(v.first(codes), conversion.result)


@traced
def _words_of(conversion, multiplier, zero_point, bias):
    """Return the two words of parameters, and the status of what is refused."""
    spec = conversion.spec
    factor = v.convert(multiplier, types.float64)
    factor_is_right = (factor >= v.constant(0, factor)) & (factor < v.constant(spec.below, factor))
    term, term_is_right = (None, True) if bias is None else _checked_bias(spec, bias)
    status = _status(factor_is_right, _is_within(zero_point, *conversion.zero_points), term_is_right)
    return first_word(spec, factor), second_word(spec, term, zero_point), status


@traced
def _checked_bias(spec, bias):
    """Return a bias in the type in which it is added, and whether it has that type's range."""
    if spec.bias == "int32":
        return v.convert(bias, types.int32), _is_within(bias, -(2**31), 2**31 - 1)
    value = v.convert(bias, types.float32)
    return value, v.absolute(value) < v.constant(float("inf"), value)
