"""Define the public functions: check the arguments, then compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.formats.conventions import Convention, as_convention, granularity_of
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.formats.range_methods import MSERange, as_range_method
from fastq.reference import blocks
from fastq.reference.arguments import (
    FLOATS,
    BitOrder,
    as_float_codes,
    as_floats,
    as_input,
    as_integers,
    check_defaults,
    check_nan,
    check_no_nan,
    check_saturates,
    check_symmetric,
    code_format,
    compute_type,
    linear_format,
    nan_as_zero,
    packed_format,
    ready_to_encode,
    widened,
    within,
)
from fastq.reference.codes import decode, encode
from fastq.reference.errors import clipped_count, measures
from fastq.reference.given import as_scale, checked_qparams, raw_qparams
from fastq.reference.granularity import any_flag, extremes, normalized, prescribed
from fastq.reference.output import check_is_out, check_out, codes_dtype, codes_shape, delivered, output_dtype, stored
from fastq.reference.packing import pack_codes, pack_signs, packed_shape, unpack_codes
from fastq.reference.parameters import range_of
from fastq.reference.search import RangeParameters, least_error
from fastq.results import Axis, Comparison, QParams, QuantizedArray
from fastq.results.storage import check_stored_codes
from fastq.system.arguments import (
    as_array,
    as_axis,
    as_block_size,
    as_bool,
    as_choice,
    as_dtype,
    as_int,
    as_shape,
    equal,
    is_a,
    is_python,
    shown,
    within_array,
)

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
    x = as_input(x, "x")
    qtype, parameters = _resolve(x, dtype, qparams, axis, block_size, symmetric, convention, nan, bits, range, saturate)
    check_out(out, codes_shape(x.shape, qtype), codes_dtype(qtype))
    p = parameters()
    return QuantizedArray(stored(_encoded(x, p, nan, saturate), p.dtype, out), p, x.shape)


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
    return _of_range(as_input(x, "x"), dtype, axis, block_size, symmetric, convention, nan, bits, range)[1]()


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
    x = as_input(x, "x")
    check_is_out(out)
    qtype = linear_format(dtype, zero_point, out)
    as_convention(convention).check_format(qtype)
    p = raw_qparams(scale, zero_point, qtype, axis, block_size, convention, x.shape, compute_type(x.dtype))
    check_out(out, codes_shape(x.shape, qtype), codes_dtype(qtype))
    return stored(_encoded(x, p, nan, saturate), qtype, out)


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
    codes = as_array(codes, "codes")
    if codes.dtype.name not in QTYPES:
        raise TypeError(f"codes must be of the dtype of a code format, not {codes.dtype}")
    qtype, given = as_qtype(codes.dtype), np.dtype(np.float32) if is_python(scale) else as_scale(scale).dtype
    dtype, row = output_dtype(dtype, out, given), as_convention(convention)
    row.check_format(qtype)
    ftype = compute_type(dtype if row.stored_type == "float64" else given)
    p = raw_qparams(scale, zero_point, qtype, axis, block_size, convention, codes.shape, ftype)
    check_out(out, codes.shape, dtype)
    return delivered(decode(codes.astype(qtype.storage, copy=False), p), dtype, out)


def dequantize(q: QuantizedArray, *, dtype: DTypeLike | None = None, out: Array | None = None) -> Array:
    """Return the values that a QuantizedArray stands for.

    Returns
    -------
    ndarray
        ``(codes - zero_point) * scale``; arguments and errors as for `fastq.QuantizedArray.dequantize`.
    """
    if not is_a(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray, not {type(q).__name__}")
    p = checked_qparams(q.qparams, q.shape, q.qparams.compute_dtype.type)
    dtype = output_dtype(dtype, out, q.qparams.compute_dtype)
    check_out(out, q.shape, dtype)
    return delivered(decode(_unpacked(q), p), dtype, out)


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
    x = as_input(x, "x")
    wanted = np.dtype(x.dtype if x.dtype.name in FLOATS else compute_type(x.dtype))
    _, parameters = _resolve(x, dtype, qparams, axis, block_size, symmetric, convention, nan, bits, range, saturate)
    check_out(out, x.shape, wanted)
    p = parameters()
    return delivered(decode(_encoded(x, p, nan, saturate), p), wanted, out)


def minmax(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range.

    Returns
    -------
    lo, hi : ndarray
        In the dtype of `x`; arguments and errors as for `fastq.minmax`.
    """
    x = as_input(x, "x")
    mode, axis = check_nan(nan), as_axis(axis)
    block_size = as_block_size(block_size, axis)
    axis = normalized(axis, x.ndim, "x")
    lo, hi = extremes(nan_as_zero(widened(x), mode), axis, block_size)
    return lo.astype(x.dtype), hi.astype(x.dtype)


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Return how far an approximation, quantized or not, is from `x`.

    Returns
    -------
    Comparison
        Errors ``x - q`` in float64; arguments and errors as for `fastq.compare`.
    """
    x = widened(as_input(x, "x"))
    if is_a(q, QuantizedArray):
        _check_comparable(x, q.shape)
        values = dequantize(q)
    else:
        values = widened(as_floats(q, "q"))
        _check_comparable(x, values.shape)
    check_no_nan(x, "x has {} NaN, of which there is no error to measure; replace them first")
    return measures(x, values, clipped_count(x, q.qparams) if is_a(q, QuantizedArray) else None)


def pack(codes: ArrayLike, dtype: object, *, axis: int = -1, bitorder: BitOrder = "little") -> NDArray[np.uint8]:
    """Return `codes` of fewer than 8 bits without gaps between them, the first in the low bits.

    Returns
    -------
    ndarray of uint8
        ``ceil(D * bits / 8)`` long on `axis`; arguments and errors as for `fastq.pack`.
    """
    qtype = packed_format(dtype, bitorder)
    codes = np.atleast_1d(as_float_codes(codes, qtype) if qtype.element else as_integers(codes, "codes"))
    if not (qtype.element or within(codes, qtype).all()):
        raise ValueError(f"codes must lie in {qtype.qmin} .. {qtype.qmax} for {qtype}")
    return pack_codes(codes, qtype, within_array((as_int(axis, "axis"),), codes.ndim, "codes")[0], bitorder)


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
    x = np.atleast_1d(nan_as_zero(widened(as_input(x, "x")), check_nan(nan)))
    (where,) = within_array((as_int(axis, "axis"),), x.ndim, "x")
    stored = as_dtype(dtype, "dtype", "uint8 or int8")
    if stored not in (np.uint8, np.int8):
        raise TypeError(f"dtype must be uint8 or int8, not {stored}")
    as_choice(bitorder, "bitorder", ("little", "big"))
    packed = pack_signs(x, where, bitorder, stored)
    check_out(out, packed.shape, stored)
    return delivered(packed, stored, out)


def unpack(
    packed: ArrayLike, dtype: object, *, shape: tuple[int, ...], axis: int = -1, bitorder: BitOrder = "little"
) -> Array:
    """Return the codes in `packed`, one an element.

    Returns
    -------
    ndarray of int8, uint8 or a float format
        Of shape `shape`; arguments and errors as for `fastq.unpack`.
    """
    qtype, packed = packed_format(dtype, bitorder), as_array(packed, "packed")
    if packed.dtype != np.uint8:
        raise TypeError(f"packed must be uint8, not {packed.dtype}")
    shape = as_shape(shape)
    (where,) = within_array((as_int(axis, "axis"),), max(len(shape), 1), "the codes")
    if packed.shape != packed_shape(shape, qtype, where):
        raise ValueError(
            f"packed has shape {packed.shape}, not that of {qtype} codes of shape {shape} along axis {axis}"
        )
    return unpack_codes(packed, qtype, shape, where, bitorder)


def _resolve(
    x: Array,
    dtype: object,
    qparams: QParams | None,
    axis: Axis,
    block_size: int,
    symmetric: bool,
    convention: str | Convention,
    nan: str,
    bits: int | None,
    range: str | MSERange,
    saturate: bool,
) -> tuple[QType, Callable[[], QParams]]:
    """Check how `x` is to be quantized; return the code format and what gives the parameters, of its range or given."""
    if (dtype is None) == (qparams is None):
        raise TypeError("exactly one of dtype and qparams is needed")
    if qparams is None:
        check_saturates(saturate, range)
        return _of_range(x, dtype, axis, block_size, symmetric, convention, nan, bits, range)
    if not is_a(qparams, QParams):
        raise TypeError(f"qparams must be a QParams, not {shown(qparams)}")
    if equal(nan, "keep") and qparams.dtype.block_size:
        raise ValueError(f"nan='keep' marks the scales of blocks, but the scales of {qparams.dtype} are given")
    check_defaults(axis=axis, block_size=block_size, symmetric=symmetric, convention=convention, bits=bits, range=range)
    given = checked_qparams(qparams, x.shape, compute_type(x.dtype))
    return given.dtype, lambda: given


def _of_range(
    x: Array,
    dtype: object,
    axis: Axis,
    block_size: int,
    symmetric: bool,
    convention: str | Convention,
    nan: str,
    bits: int | None,
    range: str | MSERange,
) -> tuple[QType, Callable[[], QParams]]:
    """Check the options of parameters; return the code format, and what computes them: values are checked last."""
    qtype, row = code_format(dtype, bits), as_convention(convention)
    axis, block_size = prescribed(qtype, axis, block_size)
    axis = normalized(axis, x.ndim, "x")
    symmetric = as_bool(symmetric, "symmetric")
    check_symmetric(qtype, symmetric)
    always = bool(symmetric or qtype.element or qtype.block_size)
    row.check(qtype, always, granularity_of(axis, block_size))
    mode, method = check_nan(nan, qtype), as_range_method(range)

    def parameters() -> QParams:
        values = widened(x)
        number = nan_as_zero(values, mode)
        lo, hi = range_of(number, axis, block_size)
        spoiled = any_flag(np.isnan(values) & (mode == "keep"), axis, block_size)
        tensor_scale = blocks.tensor_scale(np.maximum(-lo, hi), qtype) if qtype.has_tensor_scale else None
        where, precision = (qtype, axis, block_size, always, convention), row.rounded_to(x.dtype)
        asked = RangeParameters(*where, spoiled, tensor_scale, precision)
        return asked.of(lo, hi) if method is None else asked.of(*least_error(number, lo, hi, asked, method))

    return qtype, parameters


def _check_comparable(x: Array, shape: tuple[int, ...]) -> None:
    if x.shape != shape:
        raise ValueError(f"x has shape {x.shape} and q has shape {shape}")
    if x.size == 0:
        raise ValueError("x has no elements to compare")


def _encoded(x: Array, p: QParams, nan: str, saturate: bool) -> Array:
    """Return the codes of `x`, one an element."""
    precision = as_convention(p.convention).rounded_to(x.dtype)
    return encode(ready_to_encode(widened(x), nan, p.dtype), p, saturate, precision)


def _unpacked(q: QuantizedArray) -> Array:
    check_stored_codes(q.codes, q.dtype, q.shape)
    return unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
