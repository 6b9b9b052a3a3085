"""Define the public functions: what is asked for, then plain NumPy; options are given by name."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.formats.qtypes import check_stored_codes, stored_as
from fastq.reference import arrays, blocks
from fastq.reference.arrays import as_input, check_no_nan, check_place, deliver, nan_as_zero, pack_if_narrow, widen
from fastq.reference.bitround import count_pairs_of_bits, round_to_kept_bits
from fastq.reference.codes import decode, encode
from fastq.reference.compare import clipped_count, measures
from fastq.reference.granularity import any_flag, extremes
from fastq.reference.packing import pack_bits, pack_codes, unpack_codes
from fastq.reference.parameters import range_of
from fastq.reference.requantization import requantize_sums
from fastq.reference.search import RangeParameters, least_error
from fastq.requests import bitrounding, packing, requantization
from fastq.requests import quantization as requests
from fastq.requests.importance import as_importance
from fastq.requests.nested_scales import as_scales
from fastq.requests.parameters import check_qparams
from fastq.requests.stochastic_rounding import Noise, noise_of
from fastq.results import BitInformation, Comparison, QParams, QuantizedArray
from fastq.results.parameters import parameters_without_numbers
from fastq.system.arguments import native
from fastq.system.arrays_of_callers import as_array, dtype_of, is_out
from fastq.system.dtypes import Array

__all__ = [
    "binarize",
    "bit_information",
    "bitround",
    "choose_qparams",
    "compare",
    "dequantize",
    "dequantize_linear",
    "fake_quantize",
    "minmax",
    "nest_scale",
    "pack",
    "quantize",
    "quantize_linear",
    "requantize",
    "unpack",
]

# the parameters that codes are computed with, and those that are kept and give values
ParametersOfCodesAndValues = tuple[QParams, QParams]
# what is asked for, and what computes the parameters once all other arguments were checked
Resolved = tuple[requests.Request, Callable[[], ParametersOfCodesAndValues]]


def quantize(
    x: ArrayLike,
    dtype: object = None,
    *,
    qparams: QParams | None = None,
    out: Array | None = None,
    importance: ArrayLike | None = None,
    rng: Any = None,
    **options: Any,
) -> QuantizedArray:
    """Return the codes of `x`, with parameters computed from its range or given.

    ``codes = clamp(rint(x / scale) + zero_point)``, for float formats the nearest code of ``x / scale``, ties to even.
    """
    x = as_input(x)
    noise = noise_of(options.get("rounding"), rng)
    request, parameters = _resolve(x, qparams, requests.RangeOptions(dtype=dtype, **options), importance)
    check_place(out, *stored_as(x.shape, request.qtype))
    p, kept = parameters()
    return QuantizedArray(pack_if_narrow(_encode(x, p, request, noise), p.dtype, out), kept, x.shape)


def choose_qparams(x: ArrayLike, dtype: object, *, importance: ArrayLike | None = None, **options: Any) -> QParams:
    """Return the scale and the zero point that the range of `x` asks for; the scale has the compute type of `x`."""
    return _request_by_range(as_input(x), requests.RangeOptions(dtype=dtype, **options), importance)[1]()[1]


def quantize_linear(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    dtype: object = None,
    *,
    out: Array | None = None,
    rng: Any = None,
    **options: Any,
) -> Array:
    """Return the codes of `x` as ONNX's QuantizeLinear does: ``clamp(rint(x / scale) + zero_point)``."""
    # contract 7.2
    x = as_input(x)
    noise = noise_of(options.get("rounding"), rng)
    known = dtype_of(zero_point, "zero_point"), out.dtype if is_out(out) else None
    asked = requests.request_by_numbers(x.dtype, requests.LinearOptions(dtype=dtype, **options), *known)
    request, p = _by_numbers("x", x.shape, asked, scale, zero_point)
    check_place(out, *stored_as(x.shape, request.qtype))
    return pack_if_narrow(_encode(x, p, request, noise), request.qtype, out)


def requantize(
    acc: ArrayLike,
    multiplier: ArrayLike,
    zero_point: ArrayLike,
    dtype: object,
    *,
    bias: ArrayLike | None = None,
    clamp: object = None,
    out: Array | None = None,
    **options: Any,
) -> Array:
    """Return the codes of int32 accumulators: ``clamp(round((acc + bias) * multiplier) + zero_point)``."""
    # contract 13.1
    acc = as_array(acc, "acc")
    bias = None if bias is None else as_array(bias, "bias")
    clamp = None if clamp is None else requantization.as_clamp(clamp)
    named_options = requantization.RequantizeOptions(
        dtype=dtype, clamp=clamp, key=bias if bias is None else (bias.dtype,), **options
    )
    numbers = [array.shape for array in (as_array(multiplier, "multiplier"), bias) if array is not None]
    asked = requantization.requantize_request(acc.dtype, acc.shape, named_options, *numbers)
    check_place(out, acc.shape, asked.qtype.storage)
    factors, zero, biases = asked.ready(multiplier, zero_point, bias)
    if acc.size and not (factors.astype(np.float64) < asked.convention.below).all():
        asked.refuse(factors)
    return deliver(requantize_sums(acc, asked, factors, int(zero), biases), asked.qtype.storage, out)


def dequantize_linear(
    codes: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    out: Array | None = None,
    **options: Any,
) -> Array:
    """Return the values of unpacked `codes`, as ONNX's DequantizeLinear: ``(codes - zero_point) * scale``."""
    # contract 1.5
    codes = as_array(codes, "codes")
    dtype_of_scale = dtype_of(scale, "scale")
    asked = requests.ValuesOptions(**options)
    dtype_of_result = requests.dtype_of_values(asked.dtype, out, requests.dtype_by_scale(dtype_of_scale))
    request = requests.request_to_decode_by_numbers(codes.dtype, dtype_of_scale, dtype_of_result, asked)
    request, p = _by_numbers("codes", codes.shape, request, scale, zero_point)
    check_place(out, codes.shape, dtype_of_result)
    values = decode(codes.astype(request.qtype.storage, copy=False), p, dtype_of_result)
    return deliver(values, dtype_of_result, out)


def dequantize(q: QuantizedArray, *, dtype: DTypeLike | None = None, out: Array | None = None) -> Array:
    """Return the values that a QuantizedArray stands for: ``(codes - zero_point) * scale``."""
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray, not {type(q).__name__}")
    p = check_qparams(q.qparams, q.shape, q.qparams.compute_dtype)
    dtype_of_result = requests.dtype_of_values(dtype, out, q.qparams.compute_dtype)
    check_place(out, q.shape, dtype_of_result)
    return deliver(decode(_unpack(q), p, dtype_of_result), dtype_of_result, out)


def fake_quantize(
    x: ArrayLike,
    dtype: object = None,
    *,
    qparams: QParams | None = None,
    out: Array | None = None,
    importance: ArrayLike | None = None,
    rng: Any = None,
    **options: Any,
) -> Array:
    """Return `x` quantized and dequantized."""
    # contract 7.4
    x = as_input(x)
    noise = noise_of(options.get("rounding"), rng)
    request, parameters = _resolve(x, qparams, requests.RangeOptions(dtype=dtype, **options), importance)
    check_place(out, x.shape, requests.dtype_of_fakes(x.dtype))
    p, kept = parameters()
    values = requests.dtype_of_fakes(x.dtype)
    return deliver(decode(_encode(x, p, request, noise), kept, values), values, out)


def minmax(x: ArrayLike, **options: Any) -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range, in the dtype of `x`."""
    # contract 1.6
    x = as_input(x)
    asked = requests.MinMaxOptions(**options)
    parts = requests.granularity_of_minmax(x.dtype, x.shape, asked)
    lo, hi = extremes(nan_as_zero(widen(x), asked.nan), parts)
    return lo.astype(x.dtype), hi.astype(x.dtype)


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Return how far an approximation, quantized or not, is from `x`: errors ``x - q`` in float64."""
    x = widen(as_input(x))
    if isinstance(q, QuantizedArray):
        requests.check_comparable(x.shape, q.shape)
        values = dequantize(q)
    else:
        values = as_array(q, "q")
        requests.check_approximation(values.dtype)
        values = widen(values.astype(native(values.dtype), copy=False))
        requests.check_comparable(x.shape, values.shape)
    check_no_nan(x, "x has {} NaN, whose errors cannot be measured; leave them out of both arrays, as x[~np.isnan(x)]")
    return measures(x, values, clipped_count(x, q.qparams) if isinstance(q, QuantizedArray) else None)


def pack(codes: ArrayLike, dtype: object, **options: Any) -> NDArray[np.uint8]:
    """Return `codes` of fewer than 8 bits without gaps between them, the first in the low bits."""
    codes = as_array(codes, "codes")
    asked = packing.pack_request(codes.dtype, codes.shape, packing.PackOptions(dtype=dtype, **options))
    if not asked.qtype.element and codes.size:  # small integers of ml_dtypes compare with none that they have not
        codes = codes.astype(np.int16) if codes.dtype.kind == "V" else codes
        packing.check_codes(codes.min(), codes.max(), asked.qtype)
    return pack_codes(codes.reshape(asked.shape), asked.qtype, asked.axis, asked.bitorder)


def binarize(x: ArrayLike, *, out: Array | None = None, **options: Any) -> Array:
    """Return in one bit of each element of `x` whether it is above a threshold, packed along an axis."""
    x = as_input(x)
    named_options = packing.BinarizeOptions(**options)
    asked = packing.binarize_request(x.dtype, x.shape, named_options)
    values = nan_as_zero(widen(x), named_options.nan).reshape(asked.shape)
    check_place(out, asked.packed, asked.dtype)
    threshold = int(asked.threshold) if x.dtype.kind in "iu" else asked.threshold  # compared without rounding
    is_one = values >= threshold if asked.inclusive else values > threshold
    return deliver(pack_bits(is_one, asked.axis, asked.bitorder, asked.dtype), asked.dtype, out)


def bit_information(x: ArrayLike, **options: Any) -> BitInformation:
    """Return the counts of bits of neighbours in `x`."""
    x = as_array(x, "x")
    axis = bitrounding.axis_of_bit_pairs(x.dtype, x.ndim, bitrounding.BitPairOptions(**options))
    return count_pairs_of_bits(np.asarray(x, native(x.dtype)), axis)


def bitround(x: ArrayLike, *, out: Array | None = None, **options: Any) -> Array:
    """Return `x` rounded to fewer bits of the significand; where no element is finite, none are kept."""
    x = as_array(x, "x")
    asked = bitrounding.bitround_request(x.dtype, bitrounding.BitRoundOptions(**options))
    check_place(out, x.shape, asked.dtype)
    result = round_to_kept_bits(x.astype(asked.dtype, copy=False), asked)
    out = np.empty_like(x, asked.dtype) if out is None else out
    out[...] = result
    return out


def unpack(packed: ArrayLike, dtype: object, *, shape: tuple[int, ...], **options: Any) -> Array:
    """Return the codes in `packed`, one per element."""
    packed = as_array(packed, "packed")
    asked = packing.unpack_request(packed.dtype, packed.shape, shape, packing.PackOptions(dtype=dtype, **options))
    return unpack_codes(packed, asked.qtype, asked.shape, asked.axis, asked.bitorder)


def nest_scale(
    scale: NDArray[np.float32], *, block_size: int = 256, offset: float | None = None
) -> tuple[QuantizedArray, float, NDArray[Any]]:
    """Return the codes of scales less their mean, that mean, and the scales that these stand for."""
    # contract 10.7
    scale, block_size, offset = as_scales(scale, block_size, offset)
    if offset is None:
        offset = float(sum(Fraction(float(number)) for number in scale.flat)) / scale.size
    mean = np.float32(offset)
    with np.errstate(over="ignore"):
        rest = scale.reshape(-1) - mean
    if not np.isfinite(rest).all():
        raise ValueError(f"scale minus the offset {mean} must be finite in float32")
    q = quantize(rest, "dynamic8", axis=0, block_size=block_size)
    with np.errstate(over="ignore"):
        return q, float(mean), (dequantize(q) + mean).reshape(scale.shape)


def _resolve(
    x: Array, qparams: QParams | None, options: requests.RangeOptions, importance: ArrayLike | None
) -> Resolved:
    """Return the request, and a function that returns the parameters that codes are computed with and those kept."""
    if qparams is None:
        return _request_by_range(x, options, importance)
    requests.check_beside_qparams(*(getattr(options, name) for name in requests.CARRIED), importance)
    given = check_qparams(requests.as_qparams(qparams), x.shape, requests.compute_dtype(x.dtype))
    quantize_options = requests.QuantizeOptions(options.saturate, options.nan, rounding=options.rounding)

    def given_twice() -> ParametersOfCodesAndValues:
        return given, given  # which were rounded when they were made

    return requests.request_by_qparams(x.dtype, x.ndim, given, quantize_options), given_twice


def _request_by_range(x: Array, options: requests.RangeOptions, importance: ArrayLike | None) -> Resolved:
    """Return the same for parameters that are computed from ranges: values are checked last."""
    request = requests.request_by_range(x.dtype, x.ndim, options, weighed=importance is not None)
    qtype = request.qtype
    parts = request.granularity
    weights = None if importance is None else as_importance(importance, x.shape, request)

    def parameters() -> ParametersOfCodesAndValues:
        values = widen(x)
        number = nan_as_zero(values, request.nan)
        lo, hi = (end.astype(request.coding.compute) for end in range_of(number, parts))
        spoiled = any_flag(np.isnan(values) & (request.nan == "keep"), parts)
        tensor_scale = (
            blocks.tensor_scale(np.maximum(-lo, hi), qtype, request.coding.convention)
            if qtype.has_tensor_scale
            else None
        )
        asked = RangeParameters(request, spoiled, tensor_scale)
        method = request.search
        ends = (lo, hi) if method is None else least_error(number, lo, hi, asked, method, weights)
        p = asked.of(*ends)
        return p, asked.kept(p)

    return request, parameters


def _by_numbers(
    name: str, shape: tuple[int, ...], request: requests.Request, scale: ArrayLike, zero_point: ArrayLike | None
) -> tuple[requests.Request, QParams]:
    """Return the request placed where raw parameters belong, and these as QParams."""
    numbers = request.rules.ready(scale, zero_point)
    request = request.with_granularity(name, shape, numbers.scale.shape, numbers.scale.size)
    numbers = numbers.in_shape(request.granularity.parameter_shape(shape))
    params = parameters_without_numbers(
        numbers.scale.dtype,
        numbers.zero_point.dtype,
        request.qtype,
        axis=request.axis,
        block_size=request.granularity.block_size,
        symmetric=False,
        convention=request.convention,
        computed=None if numbers.scale.dtype == request.coding.compute else request.coding.compute,
    )
    return request, params.with_values(numbers.scale, numbers.zero_point)


def _encode(x: Array, p: QParams, request: requests.Request, noise: Noise | None) -> Array:
    """Return the codes of x, one in an element, by the parameters and what the request says of NaN and saturation."""
    return encode(arrays.ready_to_encode(widen(x), request.nan, p.dtype), p, request.saturate, request.half, noise)


def _unpack(q: QuantizedArray) -> Array:
    """Return the codes of a QuantizedArray, one in an element."""
    check_stored_codes(q.codes, q.dtype, q.shape)
    return unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
