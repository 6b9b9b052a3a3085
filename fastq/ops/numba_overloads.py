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
from fastq.kernels.embedded import Conversion, Requantization
from fastq.kernels.requantization import RequantizeSpec
from fastq.kernels.spec import KernelSpec
from fastq.plan.spec import OpSpec, spec_of
from fastq.requests import requantization
from fastq.requests.options import LinearOptions, RangeOptions, RequantizeOptions, ValuesOptions
from fastq.requests.quantization import Request, as_real, by_numbers, by_range, codes_by_numbers, dtype_by_scale

Made = TypeVar("Made", Conversion, Requantization)
_RESULTS = (np.dtype(np.float32), np.dtype(np.float64))  # of values; Numba has no arrays of other floats


@functools.cache  # once in a process
def register_public_functions() -> None:
    """Register the functions that users' compiled code can call, and those whose error names these."""
    from fastq.ops import dequantize, quantize, requantize  # whose functions have the names of functions here

    overloads = {
        quantize.quantize_linear: overload_quantize_linear,
        dequantize.dequantize_linear: overload_dequantize_linear,
        quantize.fake_quantize: overload_fake_quantize,
        requantize.requantize: overload_requantize,
        quantize.choose_qparams: _refusal_of("choose_qparams"),
        quantize.quantize: _refusal_of("quantize"),
        dequantize.dequantize: _refusal_of("dequantize"),
    }
    for function, choose in overloads.items():
        overload(function, prefer_literal=True, strict=False)(choose)
    for kind in (QType, Convention):  # constant options
        typeof_impl.register(kind)(lambda value, context: Constant(value))
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
    conversion = quantize_linear(
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
    scale_of, zero_point_of = _numbers_of(scale, zero_point)

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
    conversion = dequantize_linear(
        codes, scale, zero_point, out, dtype=dtype, axis=axis, block_size=block_size, convention=convention
    )
    convert = embedded.converter_by_numbers(conversion, codes, out)
    scale_of, zero_point_of = _numbers_of(scale, zero_point)

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
    conversion = fake_quantize(
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
    conversion = requantize(
        acc, multiplier, zero_point, bias, out, dtype=dtype, axis=axis, clamp=clamp, convention=convention
    )
    convert = embedded.requantizer(conversion, acc, out)
    names = "multiplier, zero_point and bias"
    multiplier_of = embedded.number_of(multiplier, names)
    zero_point_of = embedded.number_of(zero_point, names)
    bias_of = embedded.number_of(bias, names)

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


def _numbers_of(*parameters: Any) -> list[Callable[..., Any]]:
    """Return what takes scale and zero point, of these types."""
    return [embedded.number_of(parameter, "scale and zero_point") for parameter in parameters]


def _refusal_of(name: str) -> Callable[..., Any]:
    """Return the overload of a public function that compiled code lacks."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise TypingError(
            f"fastq.{name} can't be called in compiled code, which has no QuantizedArray and no QParams: call"
            " fastq.choose_qparams before, and there fastq.quantize_linear or fastq.dequantize_linear with its scale"
            " and zero_point"
        )

    return refuse


# --- what they compute ------------------------------------------------------------------------------------------------


def quantize_linear(x: Any, scale: Any, zero_point: Any, out: Any, **options: Any) -> Conversion:
    """Return the conversion of `fastq.quantize_linear`."""
    named = _number_dtype(zero_point, "zero_point"), _dtype(out, "out")
    request = _resolve(by_numbers, _dtype(x, "x"), _constants(LinearOptions, options), *named)
    _refuse_noise(request, options)
    qtype = request.qtype
    if qtype.packed:
        raise TypingError(
            f"dtype must be int8, uint8, int16, uint16 or a float of 8 or 16 bits in compiled code, not {qtype}: one "
            f"code per element; quantize to int8 or uint8 within compiled code, or to {qtype} from Python"
        )
    result = types.Integer.from_bitwidth(qtype.bits, signed=False) if qtype.element else from_dtype(qtype.storage)
    return _with_parameters("quantize", request, scale, zero_point, (x, "x"), out, result)


def dequantize_linear(codes: Any, scale: Any, zero_point: Any, out: Any, **given: Any) -> Conversion:
    """Return the conversion of `fastq.dequantize_linear`."""
    options = _constants(ValuesOptions, given)
    scale_dtype = _number_dtype(scale, "scale")
    wanted = _dtype(out, "out") if options.dtype is None else options.dtype
    if wanted is None:
        wanted = dtype_by_scale(scale_dtype)
    else:
        wanted = _resolve(as_real, wanted, "out" if options.dtype is None else "dtype")
    request = _resolve(codes_by_numbers, _dtype(codes, "codes"), scale_dtype, wanted, options)
    return _with_parameters("dequantize", request, scale, zero_point, (codes, "codes"), out, _values_type(wanted))


def fake_quantize(x: Any, out: Any, importance: Any, **options: Any) -> Conversion:
    """Return the conversion of `fastq.fake_quantize`."""
    if not _is_none(importance):
        raise TypingError("importance must be None in compiled code, where no range is searched for")
    kind = _dtype(x, "x")
    request = _resolve(by_range, kind, getattr(x, "ndim", 0), _constants(RangeOptions, options))
    _refuse_noise(request, options)
    if request.qtype.block_size:
        raise TypingError(f"dtype must be a format without scales of its own in compiled code, not {request.qtype}")
    if request.granularity.axes is not None:
        raise TypingError("axis must be None in compiled code: parameters are those of all of x; call it for each part")
    if request.search is not None:
        raise TypingError("range must be 'minmax' in compiled code: search before it, and pass scale and zero point")
    spec = spec_of("fake", request, True)
    values = kind if kind in _RESULTS else request.coding.compute
    scale = from_dtype(spec.range_scheme.scale_dtype)
    qtype = str(request.qtype)
    conversion = Conversion(_kernel_spec(spec), scale, spec.code_range, None, from_dtype(values), "x", qtype)
    return _check_out(conversion, x, out)


def requantize(acc: Any, multiplier: Any, zero_point: Any, bias: Any, out: Any, **given: Any) -> Requantization:
    """Return the conversion of `fastq.requantize`."""
    bias_dtype = _dtype(bias, "bias")
    key = None if bias_dtype is None else (bias_dtype,)
    options = _constants(RequantizeOptions, given | {"key": key})
    if options.axis is not None:
        raise TypingError("axis must be None in compiled code: call it for each channel")
    asked = _resolve(requantization.requantize, _dtype(acc, "acc"), (), options)
    _resolve(requantization.check_multiplier, _dtype(multiplier, "multiplier"))
    if (kind := _dtype(zero_point, "zero_point")) is None or kind.kind not in "iu":
        raise TypingError(f"zero_point must be of an integer dtype, not {kind}")
    spec = RequantizeSpec(asked.row.arithmetic, asked.bias.name if asked.bias else "", asked.row.below, streams=False)
    codes = (int(asked.qtype.qmin), int(asked.qtype.qmax))
    result = from_dtype(asked.qtype.storage)
    conversion = Requantization(spec, asked.codes, codes, result, "acc", str(asked.qtype))
    return _check_out(conversion, acc, out)


# --- dtypes and constants ---------------------------------------------------------------------------------------------


def _resolve(resolve: Callable[..., Any], *arguments: Any) -> Any:
    """Resolve, what is refused as an error of typing."""
    try:
        return resolve(*arguments)
    except (TypeError, ValueError, ModuleNotFoundError) as error:
        raise TypingError(str(error)) from None


def _dtype(kind: Any, name: str) -> Any:
    """Return the dtype of an array or a number that a type stands for, None for none."""
    kind = types.unliteral(kind) if isinstance(kind, types.Type) else kind
    if _is_none(kind):
        return None
    element = kind.dtype if isinstance(kind, types.Array) else kind
    if not isinstance(element, types.Number | types.Boolean):
        raise TypingError(f"{name} must be an array or a number in compiled code, not {kind}")
    if element == types.float16:
        raise TypingError(f"{name} must be float32, float64 or integers in compiled code: Numba lacks float16 on CPUs")
    return np.dtype(str(element))


def _is_none(kind: object) -> bool:
    return kind is None or isinstance(kind, types.NoneType) or (isinstance(kind, types.Omitted) and kind.value is None)


def _number_dtype(kind: Any, name: str) -> Any:
    """Return the dtype of a scale or zero point; None of a double and an int64, in Numba numbers of Python."""
    dtype = _dtype(kind, name)
    return None if not isinstance(kind, types.Array) and dtype in (np.float64, np.int64) else dtype


def _constants(options: type[Any], given: Mapping[str, Any]) -> Any:
    """Return options, which are known while compiling."""
    return options(*(_value(given[name], name) for name in options._fields))


def _value(option: Any, name: str) -> Any:
    if _is_none(option):
        return None
    match option:
        case types.Omitted() | Constant():
            return option.value
        case types.Literal():
            return option.literal_value
        case types.NumberClass() | types.DType():
            return _resolve(np.dtype, str(option.dtype))
        case types.BaseTuple():
            return tuple(_value(each, name) for each in option.types)
        case types.Type():
            raise TypingError(f"{name} must be a constant in compiled code: a literal or a global, not {option}")
    return option


def _refuse_noise(request: Request, options: Mapping[str, Any]) -> None:
    """Raise an error where random numbers are asked for: elements are rounded at random by their place in an array."""
    if request.stochastic or not _is_none(options["rng"]):
        raise TypingError("rounding and rng must be None in compiled code: call from Python to round at random")


# --- conversions ------------------------------------------------------------------------------------------------------


def _with_parameters(
    op: str, request: Request, scale: Any, zero_point: Any, array: tuple[Any, str], out: Any, result: types.Type
) -> Conversion:
    """Return the conversion of an array by given parameters, which are one number each."""
    rules, qtype, (x, name), zero_point = request.rules, request.qtype, array, _dtype(zero_point, "zero_point")
    dtype = _resolve(rules.ready_scale_dtype, _number_dtype(scale, "scale"))
    is_float = _resolve(rules.ready_zero_point_dtype, zero_point).kind == "f" and not qtype.element
    codes = None if is_float else (qtype.qmin, qtype.qmax) if qtype.has_zero_point else (0, 0)
    spec = spec_of(op, request.with_granularity(name, (), (), 1))
    conversion = Conversion(_kernel_spec(spec), from_dtype(dtype), spec.code_range, codes, result, name, str(qtype))
    return _check_out(conversion, x, out)


def _kernel_spec(spec: OpSpec) -> KernelSpec:
    rule, code, _ = spec.arithmetic
    element = element_type(code) if code is not None and code.element else None
    return KernelSpec(spec.op, spec.nan, spec.range_scheme.name, rule=rule, code=element)


def _values_type(dtype: np.dtype[Any]) -> types.Type:
    if dtype not in _RESULTS:
        raise TypingError(f"dtype must be float32 or float64 in compiled code, not {dtype}")
    return from_dtype(dtype)


def _check_out(conversion: Made, x: Any, out: Any) -> Made:
    if _is_none(out):
        return conversion
    if not isinstance(x, types.Array):
        raise TypingError(f"out must be None where {conversion.argument} is a number, whose result is a number")
    if not isinstance(out, types.Array) or out.ndim != x.ndim or out.dtype != conversion.result or not out.mutable:
        raise TypingError(
            f"out must be an array of {conversion.result} with {x.ndim} dimensions that can be written to, not {out}"
        )
    return conversion
