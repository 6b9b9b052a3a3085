"""Resolve calls in other people's compiled code: types stand for arguments, samples for arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numba import TypingError, from_dtype, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import models, overload, register_model, typeof_impl

from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import QType
from fastq.kernels import embedded
from fastq.kernels.build import element_type
from fastq.kernels.embedded import EmbeddedConversion, EmbeddedRequantization
from fastq.kernels.requantization import RequantizeSpec
from fastq.kernels.spec import KernelSpec
from fastq.plan.spec import OpSpec, spec_of
from fastq.requests import requantization
from fastq.requests.quantization import (
    LinearOptions,
    RangeOptions,
    Request,
    ValuesOptions,
    as_real,
    dtype_by_scale,
    request_by_numbers,
    request_by_range,
    request_to_decode_by_numbers,
)
from fastq.requests.requantization import RequantizeOptions

Embedded = TypeVar("Embedded", EmbeddedConversion, EmbeddedRequantization)
# what to do instead of calling a function that compiled code lacks
WITH_PARAMETERS = (
    ", which has no QuantizedArray and no QParams: call fastq.choose_qparams before, and there fastq.quantize_linear or"
    " fastq.dequantize_linear with its scale and zero_point"
)
BEFORE = ": call it before or after, or there in a block of numba.objmode"
_RESULTS = (np.dtype(np.float32), np.dtype(np.float64))  # of values; Numba has no arrays of other floats


@functools.cache  # once in a process
def register_public_functions() -> None:
    """Register the functions that users' compiled code can call, and those whose error names these."""
    # modules of functions that have the names of functions here
    from fastq.ops import bitround, compare, dequantize, minmax, nest_scale, packing, quantize, requantize

    overloads = {
        quantize.quantize_linear: overload_quantize_linear,
        dequantize.dequantize_linear: overload_dequantize_linear,
        quantize.fake_quantize: overload_fake_quantize,
        requantize.requantize: overload_requantize,
        quantize.choose_qparams: _refusal_of("choose_qparams", WITH_PARAMETERS),
        quantize.quantize: _refusal_of("quantize", WITH_PARAMETERS),
        dequantize.dequantize: _refusal_of("dequantize", WITH_PARAMETERS),
        bitround.bit_information: _refusal_of("bit_information", BEFORE),
        bitround.bitround: _refusal_of("bitround", BEFORE),
        compare.compare: _refusal_of("compare", BEFORE),
        minmax.minmax: _refusal_of("minmax", BEFORE),
        nest_scale.nest_scale: _refusal_of("nest_scale", BEFORE),
        packing.binarize: _refusal_of("binarize", BEFORE),
        packing.pack: _refusal_of("pack", BEFORE),
        packing.unpack: _refusal_of("unpack", BEFORE),
    }
    for function, choose in overloads.items():
        overload(function, prefer_literal=True, strict=False)(choose)
    for option_class in (QType, Convention):  # constant options
        typeof_impl.register(option_class)(lambda value, context: Constant(value))
    register_model(Constant)(models.OpaqueModel)
    if global_compiler_lock.is_locked():  # a compilation that has begun finds the function, too, when it looks it up
        cpu_target.typing_context.refresh()  # half a second, which any other compilation begins with
        cpu_target.target_context.refresh()


class Constant(types.Opaque):  # type: ignore[misc]
    """Type of a global QType or Convention, which is nothing at run time."""

    def __init__(self, value: QType | Convention) -> None:
        self.value = value
        super().__init__(name=f"Constant({value!r})")


# --- the functions ----------------------------------------------------------------------------------------------------

# Numba calls each of these with the types of arguments; it returns what Numba compiles for them. The parameters of both
# are those of the public function, with its defaults: compiled code has no keyword-only ones.


def overload_quantize_linear(
    x: Any,
    scale: Any,
    zero_point: Any = None,
    dtype: Any = None,
    axis: Any = None,
    block_size: Any = 0,
    convention: Any = "onnx",
    nan: Any = "raise",
    saturate: Any = True,
    out: Any = None,
    rounding: Any = None,
    rng: Any = None,
) -> Callable[..., Any]:
    """Return the implementation of `fastq.quantize_linear`."""
    conversion = resolve_quantize_linear(
        x,
        scale,
        zero_point,
        out,
        dtype=dtype,
        axis=axis,
        block_size=block_size,
        convention=convention,
        nan=nan,
        saturate=saturate,
        rounding=rounding,
        rng=rng,
    )
    convert = embedded.converter_by_numbers(conversion, x, out)
    scale_of, zero_point_of = _number_readers(scale, zero_point)

    def implementation(
        x: Any,
        scale: Any,
        zero_point: Any = None,
        dtype: Any = None,
        axis: Any = None,
        block_size: Any = 0,
        convention: Any = "onnx",
        nan: Any = "raise",
        saturate: Any = True,
        out: Any = None,
        rounding: Any = None,
        rng: Any = None,
    ) -> Any:
        return convert(x, out, scale_of(scale), zero_point_of(zero_point))

    return implementation


def overload_dequantize_linear(
    codes: Any,
    scale: Any,
    zero_point: Any = None,
    dtype: Any = None,
    axis: Any = None,
    block_size: Any = 0,
    out: Any = None,
    convention: Any = "onnx",
) -> Callable[..., Any]:
    """Return the implementation of `fastq.dequantize_linear`."""
    conversion = resolve_dequantize_linear(
        codes, scale, zero_point, out, dtype=dtype, axis=axis, block_size=block_size, convention=convention
    )
    convert = embedded.converter_by_numbers(conversion, codes, out)
    scale_of, zero_point_of = _number_readers(scale, zero_point)

    def implementation(
        codes: Any,
        scale: Any,
        zero_point: Any = None,
        dtype: Any = None,
        axis: Any = None,
        block_size: Any = 0,
        out: Any = None,
        convention: Any = "onnx",
    ) -> Any:
        return convert(codes, out, scale_of(scale), zero_point_of(zero_point))

    return implementation


def overload_fake_quantize(
    x: Any,
    dtype: Any = None,
    qparams: Any = None,
    axis: Any = None,
    block_size: Any = 0,
    symmetric: Any = False,
    convention: Any = "onnx",
    nan: Any = "raise",
    saturate: Any = True,
    out: Any = None,
    bits: Any = None,
    range: Any = "minmax",
    importance: Any = None,
    rounding: Any = None,
    rng: Any = None,
) -> Callable[..., Any]:
    """Return the implementation of `fastq.fake_quantize`."""
    conversion = resolve_fake_quantize(
        x,
        out,
        importance,
        dtype=dtype,
        qparams=qparams,
        axis=axis,
        block_size=block_size,
        symmetric=symmetric,
        convention=convention,
        nan=nan,
        saturate=saturate,
        bits=bits,
        range=range,
        rounding=rounding,
        rng=rng,
    )
    convert = embedded.converter_by_range(conversion, x, out)

    def implementation(
        x: Any,
        dtype: Any = None,
        qparams: Any = None,
        axis: Any = None,
        block_size: Any = 0,
        symmetric: Any = False,
        convention: Any = "onnx",
        nan: Any = "raise",
        saturate: Any = True,
        out: Any = None,
        bits: Any = None,
        range: Any = "minmax",
        importance: Any = None,
        rounding: Any = None,
        rng: Any = None,
    ) -> Any:
        return convert(x, out)

    return implementation


def overload_requantize(
    acc: Any,
    multiplier: Any,
    zero_point: Any,
    dtype: Any,
    axis: Any = None,
    bias: Any = None,
    clamp: Any = None,
    convention: Any = "tflite",
    out: Any = None,
) -> Callable[..., Any]:
    """Return the implementation of `fastq.requantize`."""
    conversion = resolve_requantize(
        acc, multiplier, zero_point, bias, out, dtype=dtype, axis=axis, clamp=clamp, convention=convention
    )
    convert = embedded.requantizer(conversion, acc, out)
    names = "multiplier, zero_point and bias"
    multiplier_of = embedded.number_reader(multiplier, names)
    zero_point_of = embedded.number_reader(zero_point, names)
    bias_of = embedded.number_reader(bias, names)

    def implementation(
        acc: Any,
        multiplier: Any,
        zero_point: Any,
        dtype: Any,
        axis: Any = None,
        bias: Any = None,
        clamp: Any = None,
        convention: Any = "tflite",
        out: Any = None,
    ) -> Any:
        return convert(acc, out, multiplier_of(multiplier), zero_point_of(zero_point), bias_of(bias))

    return implementation


def _number_readers(*parameters: Any) -> list[Callable[..., Any]]:
    """Return a function for each of scale and zero point, which compiled code calls to read its number, by its type."""
    return [embedded.number_reader(parameter, "scale and zero_point") for parameter in parameters]


def _refusal_of(name: str, way: str) -> Callable[..., Any]:
    """Return the overload of a public function that compiled code lacks; `way` says what to do instead."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise TypingError(f"fastq.{name} can't be called in compiled code{way}")

    return refuse


# --- what they compute ------------------------------------------------------------------------------------------------


def resolve_quantize_linear(x: Any, scale: Any, zero_point: Any, out: Any, **options: Any) -> EmbeddedConversion:
    """Return the conversion of `fastq.quantize_linear`."""
    request = _or_typing_error(
        request_by_numbers,
        _dtype(x, "x"),
        _constants(LinearOptions, options),
        _number_dtype(zero_point, "zero_point"),
        _dtype(out, "out"),
    )
    _refuse_noise(request, options)
    qtype = request.qtype
    if qtype.packed:
        raise TypingError(
            f"dtype must be int8, uint8, int16, uint16 or a float of 8 or 16 bits in compiled code, not {qtype}: one "
            f"code per element; quantize to int8 or uint8 within compiled code, or to {qtype} from Python"
        )
    result = types.Integer.from_bitwidth(qtype.bits, signed=False) if qtype.element else from_dtype(qtype.storage)
    return _conversion_by_parameters("quantize", request, scale, zero_point, x, "x", out, result)


def resolve_dequantize_linear(
    codes: Any, scale: Any, zero_point: Any, out: Any, **types_of_options: Any
) -> EmbeddedConversion:
    """Return the conversion of `fastq.dequantize_linear`."""
    options = _constants(ValuesOptions, types_of_options)
    scale_dtype = _number_dtype(scale, "scale")
    values_dtype = _dtype(out, "out") if options.dtype is None else options.dtype
    if values_dtype is None:
        values_dtype = dtype_by_scale(scale_dtype)
    else:
        values_dtype = _or_typing_error(as_real, values_dtype, "out" if options.dtype is None else "dtype")
    request = _or_typing_error(request_to_decode_by_numbers, _dtype(codes, "codes"), scale_dtype, values_dtype, options)
    result = _values_type(values_dtype)
    return _conversion_by_parameters("dequantize", request, scale, zero_point, codes, "codes", out, result)


def resolve_fake_quantize(x: Any, out: Any, importance: Any, **options: Any) -> EmbeddedConversion:
    """Return the conversion of `fastq.fake_quantize`."""
    if not _is_none(importance):
        raise TypingError("importance must be None in compiled code, where no range is searched for")
    dtype = _dtype(x, "x")
    request = _or_typing_error(request_by_range, dtype, getattr(x, "ndim", 0), _constants(RangeOptions, options))
    _refuse_noise(request, options)
    if request.qtype.block_size:
        raise TypingError(f"dtype must be a format without scales of its own in compiled code, not {request.qtype}")
    if request.granularity.axes is not None:
        raise TypingError("axis must be None in compiled code: parameters are those of all of x; call it for each part")
    if request.search is not None:
        raise TypingError("range must be 'minmax' in compiled code: search before it, and pass scale and zero point")
    spec = spec_of("fake", request, by_range=True)
    values_dtype = dtype if dtype in _RESULTS else request.coding.compute
    conversion = EmbeddedConversion(
        spec=_kernel_spec(spec),
        scale=from_dtype(spec.range_scheme.scale_dtype),
        code_range=spec.code_range,
        zero_points=None,
        result=from_dtype(values_dtype),
        argument="x",
        qtype=str(request.qtype),
    )
    return _check_out(conversion, x, out)


def resolve_requantize(
    acc: Any, multiplier: Any, zero_point: Any, bias: Any, out: Any, **types_of_options: Any
) -> EmbeddedRequantization:
    """Return the conversion of `fastq.requantize`."""
    bias_dtype = _dtype(bias, "bias")
    key = None if bias_dtype is None else (bias_dtype,)  # of which a request reads the dtype alone
    options = _constants(RequantizeOptions, types_of_options | {"key": key})
    if options.axis is not None:
        raise TypingError("axis must be None in compiled code: call it for each channel")
    request = _or_typing_error(requantization.requantize_request, _dtype(acc, "acc"), (), options)
    _or_typing_error(requantization.check_multiplier, _dtype(multiplier, "multiplier"))
    if (kind := _dtype(zero_point, "zero_point")) is None or kind.kind not in "iu":
        raise TypingError(f"zero_point must be of an integer dtype, not {kind}")
    bias_name = request.bias.name if request.bias else ""
    spec = RequantizeSpec(request.convention.arithmetic, bias_name, request.convention.below, streams=False)
    conversion = EmbeddedRequantization(
        spec=spec,
        code_range=request.codes,
        zero_points=(int(request.qtype.qmin), int(request.qtype.qmax)),
        result=from_dtype(request.qtype.storage),
        argument="acc",
        qtype=str(request.qtype),
    )
    return _check_out(conversion, acc, out)


# --- dtypes and constants ---------------------------------------------------------------------------------------------


def _or_typing_error(check: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, or raise its error as one of typing, which Numba shows with the caller's line."""
    try:
        return check(*arguments)
    except (TypeError, ValueError, ModuleNotFoundError) as error:
        raise TypingError(str(error)) from None


def _dtype(numba_type: Any, name: str) -> Any:
    """Return the dtype of an array or a number that a type stands for, None for none."""
    numba_type = types.unliteral(numba_type) if isinstance(numba_type, types.Type) else numba_type
    if _is_none(numba_type):
        return None
    element = numba_type.dtype if isinstance(numba_type, types.Array) else numba_type
    if not isinstance(element, types.Number | types.Boolean):
        raise TypingError(f"{name} must be an array or a number in compiled code, not {numba_type}")
    if element == types.float16:
        raise TypingError(f"{name} must be float32, float64 or integers in compiled code: Numba lacks float16 on CPUs")
    return np.dtype(str(element))


def _is_none(numba_type: object) -> bool:
    """Return whether an argument is None: given so, left out, or the default of a parameter here."""
    return (
        numba_type is None
        or isinstance(numba_type, types.NoneType)
        or (isinstance(numba_type, types.Omitted) and numba_type.value is None)
    )


def _number_dtype(numba_type: Any, name: str) -> Any:
    """Return the dtype of a scale or zero point; None of a double and an int64, in Numba numbers of Python."""
    dtype = _dtype(numba_type, name)
    return None if not isinstance(numba_type, types.Array) and dtype in (np.float64, np.int64) else dtype


def _constants(options: type[Any], types_of_options: Mapping[str, Any]) -> Any:
    """Return the options that Numba's types of arguments stand for: they must be known while compiling."""
    return options(*(_constant(types_of_options[name], name) for name in options._fields))


def _constant(option: Any, name: str) -> Any:
    """Return the value that Numba's type of an option stands for; a value that is no type is a default, as it is."""
    if _is_none(option):
        return None
    match option:
        case types.Omitted() | Constant():
            return option.value
        case types.Literal():
            return option.literal_value
        case types.NumberClass() | types.DType():
            return _or_typing_error(np.dtype, str(option.dtype))
        case types.BaseTuple():
            return tuple(_constant(each, name) for each in option.types)
        case types.Type():
            raise TypingError(f"{name} must be a constant in compiled code: a literal or a global, not {option}")
    return option


def _refuse_noise(request: Request, options: Mapping[str, Any]) -> None:
    """Raise an error for stochastic rounding: a random number belongs to the place of an element in an array.

    Compiled code does not know that place.
    """
    if request.stochastic or not _is_none(options["rng"]):
        raise TypingError("rounding and rng must be None in compiled code: call from Python to round at random")


# --- conversions ------------------------------------------------------------------------------------------------------


def _conversion_by_parameters(
    op: str, request: Request, scale: Any, zero_point: Any, x: Any, argument: str, out: Any, result: types.Type
) -> EmbeddedConversion:
    """Return the conversion of an array of the type `x`, called `argument`, by one scale and one zero point."""
    rules = request.rules
    qtype = request.qtype
    scale_dtype = _or_typing_error(rules.ready_scale_dtype, _number_dtype(scale, "scale"))
    zero_point_dtype = _or_typing_error(rules.ready_zero_point_dtype, _dtype(zero_point, "zero_point"))
    zero_points: tuple[Any, Any] | None = None
    if qtype.element or zero_point_dtype.kind != "f":
        zero_points = (qtype.qmin, qtype.qmax) if qtype.has_zero_point else (0, 0)
    spec = spec_of(op, request.with_granularity(argument, (), (), 1))
    conversion = EmbeddedConversion(
        spec=_kernel_spec(spec),
        scale=from_dtype(scale_dtype),
        code_range=spec.code_range,
        zero_points=zero_points,
        result=result,
        argument=argument,
        qtype=str(qtype),
    )
    return _check_out(conversion, x, out)


def _kernel_spec(spec: OpSpec) -> KernelSpec:
    """Return what the embedded kernel computes; integer codes lie in memory as their dtype says."""
    code_format = spec.arithmetic.code_format
    element = element_type(code_format) if code_format is not None and code_format.element else None
    return KernelSpec(spec.op, spec.nan, spec.range_scheme.name, rule=spec.arithmetic.rule, code=element)


def _values_type(dtype: np.dtype[Any]) -> types.Type:
    """Return Numba's type of values of a dtype, or raise an error."""
    if dtype not in _RESULTS:
        raise TypingError(f"dtype must be float32 or float64 in compiled code, not {dtype}")
    return from_dtype(dtype)


def _check_out(conversion: Embedded, x: Any, out: Any) -> Embedded:
    """Return a conversion, or raise an error where its result can't be written to the type of `out`."""
    if _is_none(out):
        return conversion
    if not isinstance(x, types.Array):
        raise TypingError(f"out must be None where {conversion.argument} is a number, whose result is a number")
    if not isinstance(out, types.Array) or out.ndim != x.ndim or out.dtype != conversion.result or not out.mutable:
        raise TypingError(
            f"out must be an array of {conversion.result} with {x.ndim} dimensions that can be written to, not {out}"
        )
    return conversion
