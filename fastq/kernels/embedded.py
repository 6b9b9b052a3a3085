"""Convert arrays and scalars under one scale, in functions that other people's compiled code calls.

Loops and formulas are those of kernels. Checks here are of what only run time tells; types were checked before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core.extending import models, register_model

from fastq.engine import simd as v
from fastq.engine.jit import intrinsic, njit, specialize
from fastq.engine.simd.vector import named_type
from fastq.formats.qtypes import WANTED_SCALES
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.body.convert import ElementOperands, convert_run
from fastq.kernels.body.min_max import min_max
from fastq.kernels.build import spec_of
from fastq.kernels.formulas import is_infinite
from fastq.kernels.load_store import PREFETCH
from fastq.kernels.parameters import count_nan_as_zero, range_parameters
from fastq.kernels.spec import KernelSpec, nan_mask


class Conversion(types.Opaque):
    """Type of an argument that is nothing at run time and says what becomes of an array or scalar.

    Parameters
    ----------
    spec : KernelSpec
        What is computed.
    scale : types.Float
        Type of scales.
    code_range : tuple of float
        The first and the last code in use.
    zero_points : tuple of int or None
        The first and the last zero point that may be given; None where it is a float.
    result : types.Type
        Element type of results.
    argument : str
        What the caller names the array.
    qtype : str
        The name of the code format.
    """

    def __init__(
        self,
        spec: KernelSpec,
        scale: types.Float,
        code_range: tuple[float, float],
        zero_points: tuple[int, int] | None,
        result: types.Type,
        argument: str,
        qtype: str,
    ) -> None:
        self.spec, self.scale, self.code_range, self.zero_points = spec, scale, code_range, zero_points
        self.result, self.argument, self.qtype = result, argument, qtype
        parts = spec, scale, code_range, zero_points, result, argument, qtype
        super().__init__(name=f"Conversion({', '.join(map(str, parts))})")

    @property
    def element(self) -> types.Type:
        """Type of the elements that are stored: float codes, which are bits to compiled code, or results."""
        return self.spec.code if self.spec.op == "quantize" and self.spec.code is not None else self.result


register_model(Conversion)(models.OpaqueModel)


class CodeBounds(NamedTuple):
    """What loops and formulas read of `Args` where there is one run."""

    lowest: Any
    highest: Any
    streaming: Any


@intrinsic
def conversion_of(typingctx, kind):
    """Return a Conversion, which is nothing at run time."""
    conversion = kind.instance_type
    return conversion(kind), lambda context, builder, sig, args: context.get_constant_null(conversion)


@specialize
def bounds_of(conversion):
    """Return the first and the last code in use."""
    lowest, highest = map(float, conversion.code_range)
    return lambda conversion: CodeBounds(lowest, highest, False)


@intrinsic
def data_of(typingctx, array, element):
    """Return a pointer to the first element of an array, whose elements are those of a type of the same width."""
    result = types.CPointer(named_type(element))

    def emit(context, builder, sig, args):
        data = context.make_array(array)(context, builder, args[0]).data
        return builder.bitcast(data, context.get_value_type(result))

    return result(array, element), emit


# --- given parameters -------------------------------------------------------------------------------------------------


@njit
def convert_with(conversion, x, scale, zero_point, out):
    """Convert x under a scale and zero point as the caller gives them."""
    given = checked_scale(conversion, scale), checked_zero_point(conversion, zero_point)
    return convert_any(conversion, x, given, out)


@specialize
def checked_scale(conversion, scale):
    """Return a scale in the type of scales; it is finite there, and positive unless it is to be multiplied with."""
    dtype, signed, infinity = conversion.scale, conversion.spec.rule.signed, float("inf")
    zero = conversion.spec.op == "dequantize"
    refusal = f"scale must be {WANTED_SCALES[signed, zero]} in {dtype}"

    def checked(conversion, scale):
        value = v.convert(only_element(scale), dtype)
        size = v.absolute(value) if signed else value
        if not (size > 0 or (zero and size == 0)) or not size < infinity:
            raise ValueError(refusal)
        return value

    return checked


@specialize
def checked_zero_point(conversion, zero_point):
    """Return a zero point in the type of scales; it is a code, or finite where the convention has floats."""
    dtype, infinity = conversion.scale, float("inf")
    if isinstance(zero_point, types.NoneType):
        return lambda conversion, zero_point: v.convert(0, dtype)
    if conversion.zero_points is None:
        not_finite = f"zero_point must be finite in {dtype}"

        def number(conversion, zero_point):
            value = v.convert(only_element(zero_point), dtype)
            if not v.absolute(value) < infinity:
                raise ValueError(not_finite)
            return value

        return number
    first, last = conversion.zero_points
    no_code = f"zero_point must be from {first} to {last} for {conversion.qtype}"

    def code(conversion, zero_point):
        value = only_element(zero_point)
        if value < first or value > last:
            raise ValueError(no_code)
        return v.convert(value, dtype)

    return code


@specialize
def only_element(parameter):
    """Return a parameter, which may be the one element of an array."""
    if not isinstance(parameter, types.Array):
        return lambda parameter: parameter
    dtype = parameter.dtype

    def element(parameter):
        if parameter.size != 1:
            raise ValueError("scale and zero_point must be one number each in compiled code")
        return v.load(data_of(parameter, dtype), 0, dtype)

    return element


# --- parameters from the range ----------------------------------------------------------------------------------------


@njit
def convert_by_range(conversion, x, out):
    """Convert x under the scale and zero point of the range of all of it."""
    return convert_any(conversion, x, None, out)


@specialize
def parameters_of_range(conversion, lo, hi, nan):
    """Return scale and zero point of a range; refuse what has none."""
    scale_type, refuses_nan, name = conversion.scale, conversion.spec.nan == "raise", conversion.argument
    infinite = f"{name} has infinite values: their range has no scale; clip {name}"

    def of_range(conversion, lo, hi, nan):
        if refuses_nan and nan:
            raise_for_nan(conversion)
        spec = spec_of(conversion)
        lo, hi = count_nan_as_zero(spec, lo, hi, nan)
        scale, zero_point = range_parameters(spec, lo, hi, bounds_of(conversion), v.pointer(0, scale_type))
        if is_infinite(scale):
            raise ValueError(infinite)
        return scale, zero_point

    return of_range


@specialize
def raise_for_nan(conversion):
    """Raise the error for NaN in compiled code; `fastq.dispatch.refusal` has that of calls from Python."""
    message = f"{conversion.argument} has NaN; pass nan='zero' to take them for 0.0"

    def refuse(conversion):
        raise ValueError(message)

    return refuse


# --- scalars and arrays -----------------------------------------------------------------------------------------------


@specialize
def convert_any(conversion, x, given, out):
    """Convert a scalar to a scalar, or an array to a new one in C order or to out; `given` are scale and zero point."""
    if not isinstance(x, types.Array):
        return _convert_scalar(conversion, x, given)
    return _convert_to_new(conversion) if isinstance(out, types.NoneType) else _convert_to_out(out)


def _convert_scalar(conversion, x, given):
    kind, element, scale_type, by_range = types.unliteral(x), conversion.element, conversion.scale, given == types.none

    def converted(conversion, x, given, out):
        spec, x, like = spec_of(conversion), v.convert(x, kind), v.pointer(0, scale_type)
        if nan_mask(spec, x):
            raise_for_nan(conversion)
        scale, zero_point = parameters_of_range(conversion, x, x, x != x) if by_range else given
        value = to_compute(spec, x, like)
        return apply_op(spec, value, scale, zero_point, bounds_of(conversion), v.pointer(0, element))

    return converted


def _convert_to_new(conversion):
    dtype = conversion.result

    def converted(conversion, x, given, out):
        result = np.empty(x.shape, dtype)
        _fill(conversion, _contiguous(x), given, result)
        return result

    return converted


def _convert_to_out(out):
    direct = out.layout == "C"

    def converted(conversion, x, given, out):
        if x.shape != out.shape:
            raise ValueError("out has another shape than the result")
        if direct and not _overlap(x, out):
            _fill(conversion, _contiguous(x), given, out)
        else:
            out[...] = convert_any(conversion, x, given, None)
        return out

    return converted


@specialize
def _contiguous(x):
    return (lambda x: x) if x.layout == "C" else (lambda x: x.copy())


@specialize
def _overlap(x, out):
    """Whether a contiguous out shares memory with x; one that is not contiguous is copied."""
    if x.layout != "C":
        return False
    byte = types.uint8

    def share(x, out):
        first, second = v.address_of(data_of(x, byte)), v.address_of(data_of(out, byte))
        return first < second + out.nbytes and second < first + x.nbytes

    return share


@specialize
def _fill(conversion, x, given, out):
    """Write what x becomes to out, both contiguous. Callers hold both: a pointer keeps no array alive."""
    source, element, scale_type, by_range = x.dtype, conversion.element, conversion.scale, given == types.none

    def fill(conversion, x, given, out):
        spec, bounds, like = spec_of(conversion), bounds_of(conversion), v.pointer(0, scale_type)
        operands = ElementOperands(data_of(x, source), data_of(out, element), like, like)
        if by_range:
            if x.size == 0:
                raise ValueError("the range of no elements has no minimum and no maximum")
            lo, hi, nan = min_max(operands.src, 0, x.size)
            scale, zero_point = parameters_of_range(conversion, lo, hi, nan)
        else:
            scale, zero_point = given
        if convert_run(spec, operands, bounds, scale, zero_point, 0, x.size, PREFETCH):
            raise_for_nan(conversion)

    return fill
