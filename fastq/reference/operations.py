"""Define the public functions: what is asked for, then plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.formats.conventions import Convention
from fastq.formats.range_methods import MSERange
from fastq.reference import blocks
from fastq.reference.arguments import as_input, check_no_nan, compute_type, nan_as_zero, ready_to_encode, widened
from fastq.reference.codes import decode, encode
from fastq.reference.errors import clipped_count, measures
from fastq.reference.granularity import any_flag, extremes
from fastq.reference.output import check_place, delivered, stored
from fastq.reference.packing import BitOrder, pack_codes, pack_signs, unpack_codes
from fastq.reference.parameters import range_of
from fastq.reference.search import RangeParameters, least_error
from fastq.requests import packing
from fastq.requests.arrays import MinMaxOptions, check_approximation, dtype_of_fakes, dtype_of_values
from fastq.requests.packing import BinarizeOptions, PackOptions
from fastq.requests.parameters import checked_qparams
from fastq.requests.values import (
    CARRIED,
    LinearOptions,
    QuantizeOptions,
    RangeOptions,
    Request,
    ValuesOptions,
    as_qparams,
    by_numbers,
    by_qparams,
    by_range,
    check_beside_qparams,
    check_comparable,
    codes_by_numbers,
    ranges_of,
)
from fastq.results import Axis, Comparison, QParams, QuantizedArray
from fastq.results.storage import check_stored_codes, stored_as
from fastq.system.arguments import as_array, dtype_of, is_a, is_out, native

Array = NDArray[Any]


def quantize(
    x: ArrayLike,
    dtype: object = None,
    *,
    qparams: QParams | None = None,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    saturate: bool = True,
    out: Array | None = None,
    bits: int | None = None,
    range: str | MSERange = "minmax",
) -> QuantizedArray:
    """Return the codes of `x`, with parameters computed from its range or given.

    Returns
    -------
    QuantizedArray
        ``codes = clamp(rint(x / scale) + zero_point)``, for float formats the nearest code of ``x / scale``, ties to
        even; arguments and errors as for `fastq.quantize`.
    """
    x = as_input(x)
    options = RangeOptions(axis, block_size, symmetric, saturate, bits, dtype, convention, nan, range)
    request, parameters = _resolve(x, qparams, options)
    check_place(out, *stored_as(x.shape, request.qtype))
    p = parameters()
    return QuantizedArray(stored(_encoded(x, p, request), p.dtype, out), p, x.shape)


def choose_qparams(
    x: ArrayLike,
    dtype: object,
    *,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    bits: int | None = None,
    range: str | MSERange = "minmax",
) -> QParams:
    """Return the scale and the zero point that the range of `x` asks for.

    Returns
    -------
    QParams
        Its scale has the compute type of `x`; arguments and errors as for `fastq.choose_qparams`.
    """
    options = RangeOptions(axis, block_size, symmetric, True, bits, dtype, convention, nan, range)
    return _of_range(as_input(x), options)[1]()


def quantize_linear(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    dtype: object = None,
    *,
    axis: Axis = 1,
    block_size: int = 0,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    saturate: bool = True,
    out: Array | None = None,
) -> Array:
    """Return the codes of `x` as ONNX's QuantizeLinear does.

    Returns
    -------
    ndarray
        ``clamp(rint(x / scale) + zero_point)``, for float formats the nearest code of ``x / scale``, ties to even;
        arguments and errors as for `fastq.quantize_linear`.
    """
    x, options = as_input(x), LinearOptions(axis, block_size, saturate, dtype, convention, nan)
    named = dtype_of(zero_point, "zero_point"), out.dtype if is_out(out) else None
    request, p = _by_numbers("x", x.shape, by_numbers(x.dtype, options, *named), scale, zero_point)
    check_place(out, *stored_as(x.shape, request.qtype))
    return stored(_encoded(x, p, request), request.qtype, out)


def dequantize_linear(
    codes: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    axis: Axis = 1,
    block_size: int = 0,
    out: Array | None = None,
    convention: str | Convention = "onnx",
) -> Array:
    """Return the values of `codes`, one code an element, as ONNX's DequantizeLinear does.

    Returns
    -------
    ndarray
        ``(codes - zero_point) * scale``; arguments and errors as for `fastq.dequantize_linear`.
    """
    codes, given = as_array(codes, "codes"), dtype_of(scale, "scale") or np.dtype(np.float32)
    wanted = dtype_of_values(dtype, out, given)
    asked = codes_by_numbers(codes.dtype, given, wanted, ValuesOptions(axis, block_size, dtype, convention))
    request, p = _by_numbers("codes", codes.shape, asked, scale, zero_point)
    check_place(out, codes.shape, wanted)
    return delivered(decode(codes.astype(request.qtype.storage, copy=False), p), wanted, out)


def dequantize(q: QuantizedArray, *, dtype: DTypeLike | None = None, out: Array | None = None) -> Array:
    """Return the values that a QuantizedArray stands for.

    Returns
    -------
    ndarray
        ``(codes - zero_point) * scale``; arguments and errors as for `fastq.QuantizedArray.dequantize`.
    """
    if not is_a(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray, not {type(q).__name__}")
    p = checked_qparams(q.qparams, q.shape, q.qparams.compute_dtype)
    wanted = dtype_of_values(dtype, out, q.qparams.compute_dtype)
    check_place(out, q.shape, wanted)
    return delivered(decode(_unpacked(q), p), wanted, out)


def fake_quantize(
    x: ArrayLike,
    dtype: object = None,
    *,
    qparams: QParams | None = None,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    saturate: bool = True,
    out: Array | None = None,
    bits: int | None = None,
    range: str | MSERange = "minmax",
) -> Array:
    """Return what is left of `x` after quantizing and dequantizing it.

    Returns
    -------
    ndarray
        Of the dtype of `x` for floats, else of its compute type; arguments and errors as for `fastq.fake_quantize`.
    """
    x = as_input(x)
    options = RangeOptions(axis, block_size, symmetric, saturate, bits, dtype, convention, nan, range)
    request, parameters = _resolve(x, qparams, options)
    check_place(out, x.shape, dtype_of_fakes(x.dtype))
    p = parameters()
    return delivered(decode(_encoded(x, p, request), p), dtype_of_fakes(x.dtype), out)


def minmax(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range.

    Returns
    -------
    lo, hi : ndarray
        In the dtype of `x`; arguments and errors as for `fastq.minmax`.
    """
    x = as_input(x)
    where = ranges_of(x.dtype, x.shape, MinMaxOptions(axis, block_size, nan))
    lo, hi = extremes(nan_as_zero(widened(x), nan), where)
    return lo.astype(x.dtype), hi.astype(x.dtype)


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Return how far an approximation, quantized or not, is from `x`.

    Returns
    -------
    Comparison
        Errors ``x - q`` in float64; arguments and errors as for `fastq.compare`.
    """
    x = widened(as_input(x))
    if is_a(q, QuantizedArray):
        check_comparable(x.shape, q.shape)
        values = dequantize(q)
    else:
        values = as_array(q, "q")
        check_approximation(values.dtype)
        values = widened(values.astype(native(values.dtype), copy=False))
        check_comparable(x.shape, values.shape)
    check_no_nan(x, "x has {} NaN, of which there is no error to measure; replace them first")
    return measures(x, values, clipped_count(x, q.qparams) if is_a(q, QuantizedArray) else None)


def pack(codes: ArrayLike, dtype: object, *, axis: int = -1, bitorder: BitOrder = "little") -> NDArray[np.uint8]:
    """Return `codes` of fewer than 8 bits without gaps between them, the first in the low bits.

    Returns
    -------
    ndarray of uint8
        ``ceil(D * bits / 8)`` long on `axis`; arguments and errors as for `fastq.pack`.
    """
    codes = as_array(codes, "codes")
    asked = packing.pack(codes.dtype, codes.shape, PackOptions(axis, dtype, bitorder))
    if not asked.qtype.element and codes.size:  # small integers of ml_dtypes compare with none that they have not
        codes = codes.astype(np.int16) if codes.dtype.kind == "V" else codes
        packing.check_codes(codes.min(), codes.max(), asked.qtype)
    return pack_codes(codes.reshape(asked.shape), asked.qtype, asked.axis, bitorder)


def binarize(
    x: ArrayLike,
    *,
    axis: int = -1,
    dtype: DTypeLike = "uint8",
    bitorder: BitOrder = "big",
    nan: str = "raise",
    out: Array | None = None,
) -> Array:
    """Return in one bit of each element of `x` whether it is positive, packed along an axis.

    Returns
    -------
    ndarray of uint8 or int8
        ``np.packbits(x > 0)``; arguments and errors as for `fastq.binarize`.
    """
    x = as_input(x)
    asked = packing.binarize(x.dtype, x.shape, BinarizeOptions(axis, dtype, bitorder, nan))
    packed = pack_signs(nan_as_zero(widened(x), nan).reshape(asked.shape), asked.axis, bitorder, asked.dtype)
    check_place(out, packed.shape, asked.dtype)
    return delivered(packed, asked.dtype, out)


def unpack(
    packed: ArrayLike, dtype: object, *, shape: tuple[int, ...], axis: int = -1, bitorder: BitOrder = "little"
) -> Array:
    """Return the codes in `packed`, one an element.

    Returns
    -------
    ndarray of int8, uint8 or a float format
        Of shape `shape`; arguments and errors as for `fastq.unpack`.
    """
    packed = as_array(packed, "packed")
    asked = packing.unpack(packed.dtype, packed.shape, shape, PackOptions(axis, dtype, bitorder))
    return unpack_codes(packed, asked.qtype, asked.shape, asked.axis, bitorder)


def _resolve(x: Array, qparams: QParams | None, options: RangeOptions) -> tuple[Request, Callable[[], QParams]]:
    """Return how `x` is to be quantized, and what gives the parameters, of its range or given."""
    if qparams is None:
        return _of_range(x, options)
    check_beside_qparams(*(getattr(options, name) for name in CARRIED))
    given = checked_qparams(as_qparams(qparams), x.shape, np.dtype(compute_type(x.dtype)))
    return by_qparams(x.dtype, x.ndim, given, QuantizeOptions(options.saturate, options.nan)), lambda: given


def _of_range(x: Array, options: RangeOptions) -> tuple[Request, Callable[[], QParams]]:
    """Return what parameters are asked for, and what computes them: values are checked last."""
    request = by_range(x.dtype, x.ndim, options)
    qtype, where = request.qtype, request.granularity

    def parameters() -> QParams:
        values = widened(x)
        number = nan_as_zero(values, request.nan)
        lo, hi = range_of(number, where)
        spoiled = any_flag(np.isnan(values) & (request.nan == "keep"), where)
        tensor_scale = blocks.tensor_scale(np.maximum(-lo, hi), qtype) if qtype.has_tensor_scale else None
        asked, method = RangeParameters(request, spoiled, tensor_scale), request.search
        return asked.of(lo, hi) if method is None else asked.of(*least_error(number, lo, hi, asked, method))

    return request, parameters


def _by_numbers(
    name: str, shape: tuple[int, ...], request: Request, scale: ArrayLike, zero_point: ArrayLike | None
) -> tuple[Request, QParams]:
    """Return the request placed where raw parameters belong, and these as QParams."""
    rules = request.rules
    given = rules.ready(scale, zero_point)
    request = request.placed(name, shape, given.scale.shape, given.scale.size)
    where = request.qtype, request.axis, request.granularity.block_size, False, request.convention
    computed = None if given.scale.dtype == request.compute else request.compute
    return request, QParams(given.scale, given.zero_point, *where, computed=computed)


def _encoded(x: Array, p: QParams, request: Request) -> Array:
    """Return the codes of `x`, one an element."""
    return encode(ready_to_encode(widened(x), request.nan, p.dtype), p, request.saturate, request.half)


def _unpacked(q: QuantizedArray) -> Array:
    check_stored_codes(q.codes, q.dtype, q.shape)
    return unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
