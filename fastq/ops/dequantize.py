"""Dequantize: the public functions that turn codes into values."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import ArrayLike, DTypeLike

from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import check_stored_codes
from fastq.plan.by_parameters import bind_call, numbers_of
from fastq.plan.cache import BoundCall, Call, Operation, run_operation
from fastq.plan.result import result_of
from fastq.plan.spec import spec_of
from fastq.requests import quantization
from fastq.requests.parameters import qparams_for_plan, rules_of
from fastq.requests.quantization import ValuesOptions
from fastq.results import Axis, QuantizedArray
from fastq.system.arguments import shown
from fastq.system.arrays_of_callers import dtype_of
from fastq.system.dtypes import Array


def dequantize_linear(
    codes: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    axis: Axis = None,
    block_size: int = 0,
    out: Array | None = None,
    convention: str | Convention = "onnx",
) -> Array:
    """Dequantize with raw parameters: ``(codes - zero_point) * scale``, the DequantizeLinear operator of ONNX.

    Parameters
    ----------
    codes : array_like of int8, uint8, int16, uint16, int32, uint32 or a dtype of ml_dtypes
        One code per element; int32 is for biases and sums of products, without a zero point, and like uint32 for
        conventions that have such codes.
    scale, zero_point
        As in `quantize_linear`, except that a scale may be 0; the product is computed in float64 for float64 scales,
        else in float32.
    dtype : float16, bfloat16, float32 or float64, optional
        Output dtype; by default that of `out`, else that of the scale, or float32 if values cannot have that dtype.
    axis, block_size
        As in `quantize_linear`.
    out : ndarray, optional
        Array to write to, in the shape of the codes.
    convention : str or Convention
        As in `quantize_linear`; if it keeps scales in float64, the product is computed in the output dtype.

    Returns
    -------
    ndarray
        Values in the shape of the codes; `out` if given.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.dequantize_linear(np.array([0, 128, 255], np.uint8), 0.5, np.uint8(128))
    array([-64. ,   0. ,  63.5], dtype=float32)
    """
    options = (axis, block_size, dtype, convention)
    types = (type(axis), type(block_size))
    result: Array = run_operation(DEQUANTIZE_LINEAR, codes, out, scale, zero_point, options=options, types=types)
    return result


def dequantize(q: QuantizedArray, *, dtype: DTypeLike | None = None, out: Array | None = None) -> Array:
    """Dequantize: return the values that codes stand for, ``(code - zero_point) * scale``.

    Parameters
    ----------
    q : QuantizedArray
        Codes and parameters; for codes with raw parameters see `dequantize_linear`, for blocks of GGUF
        `fastq.gguf.dequantize`.
    dtype : float16, bfloat16, float32 or float64, optional
        Output dtype; by default that of `out`, else the compute type of the parameters.
    out : ndarray, optional
        Array to write to, of shape ``q.shape``.

    Returns
    -------
    ndarray
        Values of shape ``q.shape``; `out` if given.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or the parts of q do not fit each other.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> q = fastq.quantize(np.array([-1.0, 0.0, 0.5, 1.55], np.float32), "int8")
    >>> fastq.dequantize(q)
    array([-1.  ,  0.  ,  0.5 ,  1.55], dtype=float32)
    """
    if not isinstance(q, QuantizedArray):
        raise TypeError(
            f"q must be a QuantizedArray, not {shown(q)}: for codes and raw parameters see fastq.dequantize_linear, "
            "for blocks of GGUF fastq.gguf.dequantize"
        )
    p = q.qparams
    result: Array = run_operation(
        DEQUANTIZE, q.codes, out, p.scale, p.zero_point, options=(dtype, p.key), qparams=p, shape=q.shape
    )
    return result


def _resolve_dequantize_linear(arguments: Call, codes: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.dequantize_linear`."""
    scale_dtype = dtype_of(scale, "scale")
    dtype_of_result = quantization.dtype_of_values(
        arguments.options.dtype, out, quantization.dtype_by_scale(scale_dtype)
    )
    request = quantization.request_to_decode_by_numbers(codes.dtype, scale_dtype, dtype_of_result, arguments.options)
    rules = request.rules
    parameters = rules.ready(scale, zero_point)
    request = request.with_granularity("codes", codes.shape, parameters.scale.shape, parameters.scale.size)
    parameters = parameters.in_shape(request.granularity.parameter_shape(codes.shape))
    spec = spec_of("dequantize", request, values=dtype_of_result)
    result = result_of(codes.shape, dtype_of_result, out, like=codes)
    if request.qtype.packed:  # in a QuantizedArray such codes share bytes; here each has a byte, as int4 of ml_dtypes
        spec = spec.in_bytes
    return bind_call(spec, request, arguments, rules, parameters, result)


DEQUANTIZE_LINEAR = Operation(
    name="DEQUANTIZE_LINEAR",
    function="dequantize_linear",
    resolve=_resolve_dequantize_linear,
    options=ValuesOptions,
    operands=("codes", "out", "scale", "zero_point"),
    labels="elements",
)


class DequantizeOptions(NamedTuple):
    """Options of `fastq.dequantize`; `key` is the part of the QParams on which a plan may depend."""

    dtype: object = None
    key: Any = None


def _resolve_dequantize(arguments: Call, codes: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `QuantizedArray.dequantize`."""
    shape = arguments.shape
    compute = arguments.qparams.compute_dtype
    rules = rules_of(arguments.qparams, compute)
    params = qparams_for_plan(arguments.qparams, shape, compute, rules)
    request = quantization.request_to_decode_by_qparams(params, len(shape), compute, rules.convention)
    check_stored_codes(codes, params.dtype, shape)
    dtype_of_result = quantization.dtype_of_values(arguments.options.dtype, out, compute)
    result = result_of(shape, dtype_of_result, out, like=None if params.dtype.packed else codes)
    spec = spec_of("dequantize", request, values=dtype_of_result)
    return bind_call(spec, request, arguments, rules, numbers_of(params), result)


DEQUANTIZE = Operation(
    name="DEQUANTIZE",
    function="dequantize",
    resolve=_resolve_dequantize,
    options=DequantizeOptions,
    operands=("codes", "out", "scale", "zero_point"),
    labels="elements",
)
