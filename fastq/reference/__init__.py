"""The public functions in plain NumPy, written from the contract alone: what the fast ones have to equal, bit for bit.

Arguments, results and errors are those of the functions of the same names in `fastq`. Nothing here knows the kernels or
the layout. Parameters are spread out to one an element, so the memory needed is several times the input. Float formats
are in `reference_floats`, the formats with scales of their own in `reference_blocks`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.formats.conventions import Convention, as_convention, part_of
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.reference import blocks as blocks
from fastq.reference import floats as floats
from fastq.reference import gguf as gguf
from fastq.results import Axis, Comparison, QParams, QuantizedArray

Array = NDArray[Any]
BitOrder = Literal["little", "big"]

__all__ = [
    "choose_qparams",
    "compare",
    "dequantize",
    "dequantize_linear",
    "fake_quantize",
    "gguf",
    "minmax",
    "pack",
    "quantize",
    "quantize_linear",
    "unpack",
]

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")


# The public functions


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
) -> QuantizedArray:
    """Return the codes of `x`, with parameters computed from its range or given.

    Returns
    -------
    QuantizedArray
        ``codes = clamp(rint(x / scale) + zero_point)``, for float formats the nearest code of ``x / scale``, ties to
        even; arguments and errors as for `fastq.quantize`.
    """
    x = _widened(_input(x, "x"))
    p = _resolve(x, dtype, qparams, axis, block_size, symmetric, convention, nan, bits)
    _check_out(out, _codes_shape(x.shape, p.dtype), _codes_dtype(p.dtype))
    return QuantizedArray(_stored(_codes(_prepared(x, nan, p.dtype), p, saturate), p.dtype, out), p, x.shape)


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
) -> QParams:
    """Return the scale and the zero point that the range of `x` asks for.

    Returns
    -------
    QParams
        Its scale has the compute type of `x`; arguments and errors as for `fastq.choose_qparams`.
    """
    x, qtype, row = _widened(_input(x, "x")), _format(dtype, bits), as_convention(convention)
    axis, block_size = _granularity(qtype, axis, block_size)
    axis = _normalised(axis, block_size, x.ndim)
    _check_symmetric(qtype, symmetric)
    always = bool(symmetric or qtype.element or qtype.block_size)
    row.check(qtype, always)
    lo, hi = _range(_nan_as_zero(x, _checked_nan(nan, qtype)), axis, block_size)
    where = (qtype, axis, int(block_size), always, convention)
    if qtype.block_size:
        spoiled = _any(np.isnan(x) & (nan == "keep"), axis, block_size)
        scale, tensor_scale = blocks.chosen_scale(np.maximum(-lo, hi), spoiled, qtype)
        return QParams(scale, np.zeros(scale.shape, qtype.storage), *where, tensor_scale=tensor_scale)
    under = row.under(always, part_of(axis, block_size))
    scale, zero_point = _parameters(lo, hi, under, row.parameter_range(qtype, always), always)
    scale = scale.astype(row.scale_dtype(lo.dtype))
    zero_point = zero_point.astype(row.zero_point_dtype(qtype, lo.dtype))
    return QParams(scale, zero_point, *where, computed=None if scale.dtype == lo.dtype else lo.dtype)


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
    x = _widened(_input(x, "x"))
    _check_is_out(out)
    qtype = _code_format(dtype, zero_point, out)
    as_convention(convention).check_format(qtype)
    p = _given_qparams(scale, zero_point, qtype, axis, block_size, convention, x.shape, _compute_type(x.dtype))
    _check_out(out, _codes_shape(x.shape, qtype), _codes_dtype(qtype))
    return _stored(_codes(_prepared(x, nan, qtype), p, saturate), qtype, out)


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
    codes = _array(codes, "codes")
    if codes.dtype.name not in QTYPES:
        raise TypeError(f"codes must be of the dtype of a code format, not {codes.dtype}")
    qtype, given = as_qtype(codes.dtype), np.dtype(np.float32) if _is_python(scale) else _scale(scale).dtype
    dtype, row = _output_dtype(dtype, out, given), as_convention(convention)
    row.check_format(qtype)
    ftype = _compute_type(dtype if row.stored_type == "float64" else given)
    p = _given_qparams(scale, zero_point, qtype, axis, block_size, convention, codes.shape, ftype)
    _check_out(out, codes.shape, dtype)
    return _delivered(_values(codes.astype(qtype.storage, copy=False), p), dtype, out)


def dequantize(q: QuantizedArray, *, dtype: DTypeLike | None = None, out: Array | None = None) -> Array:
    """Return the values that a QuantizedArray stands for.

    Returns
    -------
    ndarray
        ``(codes - zero_point) * scale``; arguments and errors as for `fastq.QuantizedArray.dequantize`.
    """
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray, not {type(q).__name__}")
    dtype = _output_dtype(dtype, out, q.qparams.compute)
    _check_out(out, q.shape, dtype)
    return _delivered(_values(_unpacked(q), _checked(q.qparams, q.shape, q.qparams.compute.type)), dtype, out)


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
) -> Array:
    """Return what is left of `x` after quantizing and dequantizing it.

    Returns
    -------
    ndarray
        Of the dtype of `x` for floats, else of its compute type; arguments and errors as for `fastq.fake_quantize`.
    """
    x = _input(x, "x")
    wanted = np.dtype(x.dtype if x.dtype.name in FLOATS else _compute_type(x.dtype))
    x = _widened(x)
    p = _resolve(x, dtype, qparams, axis, block_size, symmetric, convention, nan, bits)
    _check_out(out, x.shape, wanted)
    return _delivered(_values(_codes(_prepared(x, nan, p.dtype), p, saturate), p), wanted, out)


def minmax(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range.

    Returns
    -------
    lo, hi : ndarray
        In the dtype of `x`; arguments and errors as for `fastq.minmax`.
    """
    x = _input(x, "x")
    number = _nan_as_zero(_widened(x), _checked_nan(nan))
    lo, hi = _extremes(number, _normalised(axis, block_size, x.ndim), block_size)
    return lo.astype(x.dtype), hi.astype(x.dtype)


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Return how far an approximation, quantized or not, is from `x`.

    Returns
    -------
    Comparison
        Errors ``x - q`` in float64; arguments and errors as for `fastq.compare`.
    """
    x = _widened(_input(x, "x"))
    approximation = dequantize(q) if isinstance(q, QuantizedArray) else _widened(_input(q, "q"))
    if x.shape != approximation.shape:
        raise ValueError(f"x has shape {x.shape} and q has shape {approximation.shape}")
    if x.size == 0:
        raise ValueError("x has no elements to compare")
    _check_no_nan(x, "x has {} NaN")
    clipped = _clipped(x, q.qparams) if isinstance(q, QuantizedArray) else None
    return _measures(x.astype(np.float64), approximation.astype(np.float64), clipped)


def pack(codes: ArrayLike, dtype: object, *, axis: int = -1, bitorder: BitOrder = "little") -> NDArray[np.uint8]:
    """Return `codes` of fewer than 8 bits without gaps between them, the first in the low bits.

    Returns
    -------
    ndarray of uint8
        ``ceil(D * bits / 8)`` long on `axis`; arguments and errors as for `fastq.pack`.
    """
    qtype = _packed_format(dtype, bitorder)
    codes = np.atleast_1d(_float_codes(codes, qtype) if qtype.element else _integers(codes, "codes"))
    if not (qtype.element or _within(codes, qtype).all()):
        raise ValueError(f"codes must lie in {qtype.qmin} .. {qtype.qmax} for {qtype}")
    return _pack(codes, qtype, _normalised_index(axis, codes.ndim), bitorder)


def unpack(
    packed: ArrayLike, dtype: object, *, shape: tuple[int, ...], axis: int = -1, bitorder: BitOrder = "little"
) -> Array:
    """Return the codes in `packed`, one an element.

    Returns
    -------
    ndarray of int8, uint8 or a float format
        Of shape `shape`; arguments and errors as for `fastq.unpack`.
    """
    qtype, packed = _packed_format(dtype, bitorder), _array(packed, "packed")
    if packed.dtype != np.uint8:
        raise TypeError(f"packed must be uint8, not {packed.dtype}")
    shape = tuple(shape)
    where = _normalised_index(axis, max(len(shape), 1))
    if min(shape, default=0) < 0 or packed.shape != _packed_shape(shape, qtype, where):
        raise ValueError(f"packed has shape {packed.shape}, which does not hold {qtype} codes of shape {shape}")
    return _unpack(packed, qtype, shape, where, bitorder)


# Arguments


def _array(a: ArrayLike, name: str) -> Array:
    if isinstance(a, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; pass {name}.filled(...)")
    return np.asarray(a)


def _input(x: ArrayLike, name: str) -> Array:
    """Return `x` as an array of one of the input dtypes, in native byte order."""
    x = _array(x, name)
    if x.dtype.kind not in "iu" and x.dtype.name not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32, float64 or integers, not {x.dtype}")
    return x.astype(x.dtype.newbyteorder("="), copy=False)


@np.errstate(invalid="ignore")  # signalling NaN
def _widened(x: Array) -> Array:
    """Return 16-bit floats as float32, which holds them all; other dtypes as they are."""
    return x.astype(np.float32) if x.dtype.name in HALVES else x


def _integers(a: ArrayLike, name: str) -> Array:
    a = _array(a, name)
    if a.dtype.kind not in "iu" and (a.dtype.name not in QTYPES or QTYPES[a.dtype.name].element):
        raise TypeError(f"{name} must be integers, not {a.dtype}")
    # The 4-bit and 2-bit dtypes of ml_dtypes refuse to be compared with Python integers beyond int8.
    return a.astype(np.int16) if a.dtype.kind == "V" else a


def _float_codes(a: ArrayLike, qtype: QType) -> Array:
    a = _array(a, "codes")
    if a.dtype != qtype.storage:
        raise TypeError(f"codes must be {qtype.storage} for {qtype}, not {a.dtype}")
    return a


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_granularity(axis: Axis, block_size: int) -> None:
    for a in axis if isinstance(axis, tuple) else () if axis is None else (axis,):
        if not _is_integer(a):
            raise TypeError(f"axis must be None, an integer or a tuple of integers, not {axis!r}")
    if not _is_integer(block_size):
        raise TypeError(f"block_size must be an integer, not {block_size!r}")
    if block_size < 0:
        raise ValueError(f"block_size must not be negative, not {block_size}")
    if block_size and not _is_integer(axis):
        raise TypeError(f"block_size needs an integer axis, not {axis!r}")


def _normalised_index(axis: int, ndim: int) -> int:
    if not _is_integer(axis):
        raise TypeError(f"axis must be an integer, not {axis!r}")
    if not -ndim <= axis < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    return int(axis) % ndim


def _normalised(axis: Axis, block_size: int, ndim: int) -> Axis:
    _check_granularity(axis, block_size)
    if axis is None:
        return None
    if not isinstance(axis, tuple):
        return _normalised_index(axis, ndim)
    kept = sorted(_normalised_index(a, ndim) for a in axis)
    if len(set(kept)) < len(kept):
        raise ValueError(f"axis has duplicates: {axis}")
    return tuple(kept)


def _granularity(qtype: QType, axis: Axis, block_size: int) -> tuple[Axis, int]:
    """Return axis and block size, by default those that the format prescribes."""
    if not qtype.block_size:
        return axis, block_size
    if block_size not in (0, qtype.block_size):
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    return (-1 if axis is None else axis), qtype.block_size


def _check_symmetric(qtype: QType, symmetric: bool) -> None:
    if symmetric and qtype.bits == 1:
        raise ValueError(f"symmetric codes need at least 2 bits, and {qtype} has 1")


def _compute_type(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    wide = dtype.itemsize > 2 if dtype.kind in "iu" else dtype.name == "float64"
    return np.float64 if wide else np.float32


def _checked_nan(nan: str, qtype: QType | None = None) -> str:
    """Return `nan` if it is a policy, and one that the format allows."""
    if nan not in ("raise", "zero", "keep") or (nan == "keep" and qtype is None):
        raise ValueError(f"nan must be 'raise', 'zero' or, for codes that have a NaN, 'keep', not {nan!r}")
    if nan == "keep" and qtype is not None and not (qtype.block_size or _nan_code(qtype) is not None):
        raise ValueError(f"nan='keep' needs a format with a NaN, and {qtype} has none")
    return nan


def _nan_code(qtype: QType) -> int | None:
    return qtype.float_format.nan if qtype.float_format else None


def _nan_as_zero(x: Array, nan: str) -> Array:
    if nan == "raise":
        _check_no_nan(x, "x has {} NaN; pass nan='zero' to take them as 0")
    return np.where(np.isnan(x), x.dtype.type(0), x)


def _prepared(x: Array, nan: str, qtype: QType) -> Array:
    """Return `x` as its codes are taken from; a block with a NaN to keep has a scale that makes it zeros."""
    number = _nan_as_zero(x, _checked_nan(nan, qtype))
    return x if nan == "keep" and not qtype.block_size else number


def _check_saturate(saturate: bool) -> None:
    if not isinstance(saturate, bool | np.bool_):
        raise TypeError(f"saturate must be a bool, not {saturate!r}")


def _check_no_nan(x: Array, message: str) -> None:
    count = np.count_nonzero(np.isnan(x))
    if count:
        raise ValueError(message.format(count))


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
) -> QParams:
    """Return the parameters to quantize `x` with: those given, or those of its range."""
    if (dtype is None) == (qparams is None):
        raise TypeError("exactly one of dtype and qparams is needed")
    if qparams is None:
        return choose_qparams(
            x, dtype, axis=axis, block_size=block_size, symmetric=symmetric, convention=convention, nan=nan, bits=bits
        )
    if not isinstance(qparams, QParams):
        raise TypeError(f"qparams must be a QParams, not {type(qparams).__name__}")
    if nan == "keep" and as_qtype(qparams.dtype).block_size:
        raise ValueError(f"nan='keep' marks the scales of blocks, but the scales of {qparams.dtype} are given")
    _check_defaults(
        axis=axis is None,
        block_size=block_size == 0,
        symmetric=not symmetric,
        convention=convention == "onnx",
        bits=bits is None,
    )
    return _checked(qparams, x.shape, _compute_type(x.dtype))


def _check_defaults(**is_default: bool) -> None:
    for name, default in is_default.items():
        if not default:
            raise TypeError(f"{name} can't be given together with qparams, which has its own")


def _format(dtype: object, bits: int | None) -> QType:
    qtype = as_qtype(dtype)
    return qtype if bits is None else qtype.with_bits(bits)


def _code_format(dtype: object, zero_point: ArrayLike | None, out: Array | None) -> QType:
    """Return the format to quantize to: `dtype`, else that of the zero point, else that of `out`, else uint8."""
    if dtype is not None:
        return as_qtype(dtype)
    given = [a.dtype for a in (zero_point, out) if isinstance(a, (np.ndarray, np.generic))]
    return next((QTYPES[d.name] for d in given if d.name in QTYPES), QTYPES["uint8"])


def _given_qparams(
    scale: ArrayLike,
    zero_point: ArrayLike | None,
    qtype: QType,
    axis: Axis,
    block_size: int,
    convention: str | Convention,
    shape: tuple[int, ...],
    ftype: type[np.floating[Any]],
) -> QParams:
    """Return parameters given one by one, checked against an array of shape `shape`."""
    if qtype.block_size:
        raise TypeError(f"dtype must be a format without scales of its own, not {qtype}; see quantize")
    scale = _scale(scale)
    zero_point = np.zeros(scale.shape, qtype.storage) if zero_point is None else _array(zero_point, "zero_point")
    _check_granularity(axis, block_size)
    if scale.size == 1:
        axis, block_size = None, 0
    return _checked(QParams(scale, zero_point, qtype, axis, block_size, False, convention), shape, ftype)


def _is_python(numbers: ArrayLike) -> bool:
    """Return whether these are numbers without a NumPy dtype; np.float64 is a subclass of float."""
    return isinstance(numbers, (int, float, list, tuple)) and not isinstance(numbers, np.generic)


def _scale(scale: ArrayLike) -> Array:
    """Return `scale` as an array of floats; Python integers are welcome, arrays of integers are not."""
    values = _array(scale, "scale")
    if _is_python(scale) and values.dtype.kind in "iu":
        values = values.astype(np.float64)
    if values.dtype.name not in FLOATS:
        raise TypeError(f"scale must be float16, bfloat16, float32 or float64, not {values.dtype}")
    return values


def _checked(p: QParams, shape: tuple[int, ...], ftype: type[np.floating[Any]]) -> QParams:
    """Return `p` with a scale of type `ftype`, if it fits an array of shape `shape`; own scales stay as they are."""
    _check_granularity(p.axis, p.block_size)
    qtype, row = as_qtype(p.dtype), as_convention(p.convention)
    _check_symmetric(qtype, p.symmetric)
    scale = _own_scale(p, qtype) if qtype.block_size else _usable_scale(p.scale, row, ftype)
    if p.tensor_scale is not None and not (qtype.block_size and not blocks.is_microscaling(qtype)):
        raise ValueError(f"tensor_scale must be None for {qtype}")
    if scale.size != 1:
        axis = _normalised(p.axis, p.block_size, len(shape))
        _check_shape(scale, "scale", _param_shape(shape, axis, p.block_size))
    if qtype.element:
        zero_point = _zeros(p.zero_point, qtype)
    else:
        zero_point = (_integers if row.zero_point == "integer" else _array)(p.zero_point, "zero_point")
    # ONNX's own test vectors have a zero point of shape (1,) beside a scale of shape ().
    zero_point = zero_point.reshape(scale.shape) if zero_point.size == scale.size == 1 else zero_point
    _check_shape(zero_point, "zero_point", scale.shape)
    if row.zero_point == "integer" and not (qtype.element or _within(zero_point, qtype).all()):
        raise ValueError(f"zero_point must lie in {qtype.qmin} .. {qtype.qmax} for {qtype}")
    with np.errstate(over="ignore", under="ignore"):
        zero_point = zero_point.astype(row.zero_point_dtype(qtype, scale.dtype))
    if not (qtype.element or np.isfinite(zero_point).all()):
        raise ValueError("zero_point must be finite")
    computed = None if qtype.block_size or scale.dtype == ftype else np.dtype(ftype)
    return replace(p, scale=scale, zero_point=zero_point, dtype=qtype, computed=computed)


def _usable_scale(given: ArrayLike, row: Convention, ftype: type[np.floating[Any]]) -> Array:
    given = _scale(given)
    with np.errstate(over="ignore", under="ignore"):
        scale = given.astype(row.scale_dtype(np.dtype(ftype)))
    size = np.abs(scale) if row.signed_scale else scale
    bad = given[~((size > 0) & (size < np.inf))]
    if bad.size:
        raise ValueError(f"scale has {bad.size} values that are not positive and finite, the first is {bad[0]}")
    return scale


def _own_scale(p: QParams, qtype: QType) -> Array:
    """Return the scales of a format that prescribes their dtype; a NaN among them marks a block."""
    if p.block_size != qtype.block_size:
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {p.block_size}")
    scale = _array(p.scale, "scale")
    if scale.dtype != blocks.scale_dtype(qtype):
        raise TypeError(f"scale must be {blocks.scale_dtype(qtype)} for {qtype}, not {scale.dtype}")
    if (blocks.steps(p) <= 0).any():
        raise ValueError(f"scale must be positive for {qtype}")
    if p.tensor_scale is not None:
        _check_tensor_scale(_array(p.tensor_scale, "tensor_scale"))
    return scale


def _check_tensor_scale(scale: Array) -> None:
    least, most = blocks.NVFP4_TENSOR_SCALES
    if scale.dtype != np.float32:
        raise TypeError(f"tensor_scale must be float32, not {scale.dtype}")
    _check_shape(scale, "tensor_scale", ())
    if not least <= scale <= most:
        raise ValueError(f"tensor_scale must be from {least} to {most}, not {scale}")


def _zeros(zero_point: ArrayLike, qtype: QType) -> Array:
    """Return the zero points of a float format, which are all zero."""
    given = _array(zero_point, "zero_point")
    if given.dtype.kind not in "iu" and given.dtype != qtype.storage:
        raise TypeError(f"zero_point must be {qtype.storage} or integers for {qtype}, not {given.dtype}")
    if np.count_nonzero(given.astype(np.float32)):
        raise ValueError(f"zero_point must be zero for {qtype}")
    return np.zeros(given.shape, qtype.storage)


def _check_shape(a: Array, name: str, shape: tuple[int, ...]) -> None:
    if a.shape != shape:
        raise ValueError(f"{name} has shape {a.shape}, but {shape} is needed")


def _within(codes: Array, qtype: QType) -> NDArray[np.bool_]:
    return (codes >= qtype.qmin) & (codes <= qtype.qmax)


def _packed_format(dtype: object, bitorder: BitOrder) -> QType:
    qtype = as_qtype(dtype)
    if not qtype.packed:
        raise TypeError(f"dtype must be a format of fewer than 8 bits, not {qtype}")
    if bitorder not in ("little", "big"):
        raise ValueError(f"bitorder must be 'little' or 'big', not {bitorder!r}")
    if bitorder == "big" and qtype.bits > 1:
        raise ValueError(f"bitorder='big' is for formats of 1 bit, not {qtype}")
    return qtype


# Output


def _check_is_out(out: object) -> None:
    if out is not None and (not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray)):
        raise TypeError(f"out must be an ndarray, not {type(out).__name__}")


def _check_out(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    _check_is_out(out)
    if out is None:
        return
    if out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}, but {dtype} is needed")
    _check_shape(out, "out", shape)
    if not out.flags.writeable:
        raise ValueError("out is read-only")


def _output_dtype(dtype: DTypeLike | None, out: Array | None, default: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of dequantized values: `dtype`, else that of `out`, else `default`."""
    _check_is_out(out)
    if dtype is None:
        dtype = default if out is None else out.dtype
    wanted = FLOAT_FORMATS["bfloat16"].dtype if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)
    if wanted.name not in FLOATS:
        raise TypeError(f"the dtype of the output must be float16, bfloat16, float32 or float64, not {wanted}")
    return wanted.newbyteorder("=")


def _delivered(values: Array, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Return `values` in `out`, or as an array of their own in their own memory order; an array even where 0-d."""
    out = np.empty_like(values, dtype) if out is None else out
    if dtype.name in HALVES:
        values = floats.cast(values, dtype.newbyteorder("="), FLOAT_FORMATS[dtype.name])
    with np.errstate(over="ignore", under="ignore"):
        out[...] = values
    return out


def _stored(codes: Array, qtype: QType, out: Array | None) -> Array:
    """Return `codes` as the format keeps them: packed along the last axis if they have fewer than 8 bits."""
    packed = _pack(np.atleast_1d(codes), qtype, -1) if qtype.packed else codes
    return _delivered(packed, packed.dtype, out)


def _codes_shape(shape: tuple[int, ...], qtype: QType) -> tuple[int, ...]:
    return _packed_shape(shape, qtype, -1) if qtype.packed else shape


def _codes_dtype(qtype: QType) -> np.dtype[Any]:
    return np.dtype(np.uint8) if qtype.packed else qtype.storage


# Granularity


def _kept(axis: Axis) -> tuple[int, ...]:
    return () if axis is None else axis if isinstance(axis, tuple) else (axis,)


def _param_shape(shape: tuple[int, ...], axis: Axis, block_size: int) -> tuple[int, ...]:
    """Return the shape of the parameters of an array of shape `shape`; `axis` is normalised."""
    if block_size:
        return tuple(-(-n // block_size) if a == axis else n for a, n in enumerate(shape))
    return tuple(shape[a] for a in _kept(axis))


def _spread(params: Array, shape: tuple[int, ...], axis: Axis, block_size: int) -> Array:
    """Return `params` in a shape that broadcasts with an array of shape `shape`."""
    if params.size == 1:
        return params.reshape(())
    axis = _normalised(axis, block_size, len(shape))
    if block_size:
        (along,) = _kept(axis)
        return params.take(np.arange(shape[along]) // block_size, along)
    return params.reshape([n if a in _kept(axis) else 1 for a, n in enumerate(shape)])


def _extremes(x: Array, axis: Axis, block_size: int) -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range, never -0.0; `axis` is normalised."""
    shape = _param_shape(x.shape, axis, block_size)
    if 0 in shape:  # no ranges, which NumPy's min refuses like a range of nothing
        return np.zeros(shape, x.dtype), np.zeros(shape, x.dtype)
    lo, hi = (_reduced(ufunc, x, axis, block_size) for ufunc in (np.minimum, np.maximum))
    zero = x.dtype.type(0)
    return np.asarray(lo + zero), np.asarray(hi + zero)


def _any(flags: NDArray[np.bool_], axis: Axis, block_size: int) -> Array:
    shape = _param_shape(flags.shape, axis, block_size)
    return np.zeros(shape, bool) if 0 in shape else _reduced(np.logical_or, flags, axis, block_size)


def _reduced(ufunc: np.ufunc, x: Array, axis: Axis, block_size: int) -> Array:
    kept = _kept(axis)
    if block_size:
        return ufunc.reduceat(x, np.arange(0, x.shape[kept[0]], block_size), kept[0])
    return np.asarray(ufunc.reduce(x, axis=tuple(a for a in range(x.ndim) if a not in kept)))


# Arithmetic: parameters


def _range(x: Array, axis: Axis, block_size: int) -> tuple[Array, Array]:
    """Return the range of `x` in its compute type."""
    ftype = _compute_type(x.dtype)
    lo, hi = (extreme.astype(ftype) for extreme in _extremes(x, axis, block_size))
    if np.isinf(lo).any() or np.isinf(hi).any():
        raise ValueError("x has infinite values, so its range has no scale")
    return np.asarray(lo), np.asarray(hi)


@np.errstate(over="ignore", under="ignore")
def _parameters(
    lo: Array, hi: Array, row: Convention, codes: tuple[float, float], symmetric: bool
) -> tuple[Array, Array]:
    """Return scale and zero point of a range, in the type that the convention computes them in."""
    ftype = lo.dtype.type
    ptype = np.float64 if row.parameter_type == "float64" else ftype
    lo, hi = lo.astype(ptype), hi.astype(ptype)
    if row.includes_zero or symmetric:
        lo, hi = np.minimum(lo, ptype(0)), np.maximum(hi, ptype(0))
    first, last = (ptype(code) for code in codes)
    steps = last - first + ptype(row.divisor == "codes")
    if symmetric:
        scale = _symmetric_scale(lo, hi, row, first, last, steps)
    elif row.span_type == "compute":
        scale = (hi.astype(ftype) - lo.astype(ftype)).astype(ptype) / steps
    else:
        scale = _asymmetric_scale(lo, hi, steps)
    scale = scale.astype(ftype).astype(ptype) if row.scale_rounded else scale
    floor = ptype(np.finfo(ftype).tiny if row.scale_floor is None else row.scale_floor)
    size = np.abs(scale) if row.signed_scale else scale
    degenerate = (size < floor) | (size == 0)
    if row.degenerate == "value":
        instead = np.where(np.abs(lo) < floor, ptype(1), lo)
    else:
        instead = np.full_like(lo, floor if row.degenerate == "floor" else row.degenerate)
    scale = np.where(degenerate, instead, scale)
    if row.degenerate == "floor":
        degenerate = np.zeros_like(degenerate)
    if symmetric:
        middle = np.rint((first + last) / 2)
        return scale, np.where(degenerate & (row.degenerate_zero_point == "zero"), ptype(0), middle)
    if row.zero_point == "offset":
        return scale, np.asarray(lo if row.offset_code == "lowest" else lo - first * scale)
    beside = first if row.degenerate_zero_point == "lowest" and row.zero_point == "integer" else ptype(0)
    return scale, np.where(degenerate, beside, _zero_point(lo, hi, scale, row, first, last))


def _asymmetric_scale(lo: Array, hi: Array, steps: Any) -> Array:
    span = np.asarray(hi - lo)
    return np.where(np.isinf(span), _scale_of_overflowing_span(lo, hi, steps), span / steps)


def _scale_of_overflowing_span(lo: Array, hi: Array, steps: Any) -> Array:
    """Return the scale by way of wider numbers; where even that is too large, in formats of 1 bit, the largest."""
    ftype = lo.dtype.type
    if ftype is np.float64:
        scale = np.asarray(hi / steps - lo / steps)
    else:
        scale = np.asarray((hi.astype(np.float64) - lo.astype(np.float64)) / np.float64(steps)).astype(ftype)
    return np.asarray(np.minimum(scale, np.nextafter(ftype(np.inf), ftype(0))))


def _symmetric_scale(lo: Array, hi: Array, row: Convention, first: Any, last: Any, steps: Any) -> Array:
    if row.symmetric_extreme == "signed":
        return np.asarray(np.where(hi > -lo, hi, lo) / (first - np.rint((first + last) / 2)))
    return np.asarray(np.maximum(-lo, hi) / (steps / 2))


def _zero_point(lo: Array, hi: Array, scale: Array, row: Convention, first: Any, last: Any) -> Array:
    """Return the codes of 0.0: whole and clamped, unless the convention has floats for them."""
    end, code = (lo, first) if row.zero_point_end == "lowest" else (hi, last)
    if row.zero_point == "float":
        return np.asarray(code - end / scale)
    if row.zero_point_rounded == "quotient":
        zero_point = code - _rounded(end / scale, row.zero_point_rounding)
    else:
        zero_point = _rounded(code - end / scale, row.zero_point_rounding)
    return np.asarray(np.clip(zero_point, first, last))


# Arithmetic: codes and values, in the compute type


def _rounded(x: Array, how: str) -> Array:
    """Return `x` rounded to whole numbers."""
    if how == "half_away":
        towards_zero = np.trunc(x)
        return np.asarray(
            towards_zero + np.where(np.abs(x - towards_zero) >= 0.5, np.copysign(1, x), 0).astype(x.dtype)
        )
    return np.asarray({"half_even": np.rint, "floor": np.floor, "trunc": np.trunc}[how](x))


def _fused(x: Array, factor: Array, term: Array) -> Array:
    """Return ``x * factor + term`` of float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there: a second rounding then finds no tie that the exact
    sum does not have (Boldo and Melquiond 2008).
    """
    product, addend = x.astype(np.float64) * factor, term.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = np.asarray(total).view(np.int64) % 2 == 0
    towards = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.asarray(np.where(np.isfinite(total) & (error != 0) & even, towards, total)).astype(np.float32)


def _rules(p: QParams) -> tuple[Convention, np.dtype[Any], tuple[float, float]]:
    """Return the convention of some parameters, the compute type, and the first and the last code."""
    row = as_convention(p.convention)
    under = row.under(p.symmetric, part_of(p.axis, p.block_size))
    return under, p.compute, row.code_range(p.dtype, p.symmetric)


@np.errstate(all="ignore")
def _positions(x: Array, p: QParams) -> Array:
    """Return `x` in units of codes, before it is clamped; rounded and with the zero point for integer codes."""
    if p.dtype.element or p.dtype.block_size:
        return _positions_by_format(x, p)
    row, ftype, (first, last) = _rules(p)
    stored, zero_point = (_spread(a, x.shape, p.axis, p.block_size) for a in (p.scale, p.zero_point))
    x, scale, zero_point, steps = (
        x.astype(ftype),
        stored.astype(ftype),
        zero_point.astype(ftype),
        ftype.type(last - first),
    )
    if row.zero_point == "offset":
        x = x - zero_point
        zero_point = ftype.type(first if row.offset_code == "lowest" else 0)
    if row.quotient == "divide":
        ratio = x / scale
    elif row.quotient == "reciprocal":
        ratio = x * (ftype.type(1) / scale)
    elif row.quotient == "reciprocal_of_double":
        ratio = x * (1.0 / stored.astype(np.float64)).astype(ftype)
    else:
        part = x / (stored.astype(np.float64) * float(steps)).astype(ftype)
        ratio = part * steps
    if row.fused and "reciprocal" in row.quotient and row.zero_point_inside and ftype == np.float32:
        factor = (
            ftype.type(1) / scale if row.quotient == "reciprocal" else (1.0 / stored.astype(np.float64)).astype(ftype)
        )
        return _rounded(_fused(x, factor, zero_point), row.rounding)
    if row.zero_point_inside and row.zero_point != "offset":
        return _rounded(ratio + zero_point, row.rounding)
    return np.asarray(_rounded(ratio, row.rounding).astype(ftype) + zero_point)


@np.errstate(over="ignore", under="ignore", invalid="ignore")  # signalling NaN
def _positions_by_format(x: Array, p: QParams) -> Array:
    """Return the same for float codes and for formats with scales of their own, whose arithmetic no convention has."""
    ftype, own = _compute_type(x.dtype), p.dtype.block_size > 0
    scale = _spread(blocks.steps(p) if own else p.scale, x.shape, p.axis, p.block_size)
    ratios = blocks.ratios(x.astype(ftype), scale, p) if own else x.astype(ftype) / scale
    if not p.dtype.element:
        return np.asarray(np.rint(ratios))
    # ONNX adds the zero point of floats of fewer than 8 bits, so that -0.0 becomes 0.0, and only theirs.
    return np.asarray(ratios + ftype(0) if p.dtype.packed and not own else ratios)


def _codes(x: Array, p: QParams, saturate: bool) -> Array:
    _check_saturate(saturate)
    form, positions, codes = p.dtype.float_format, _positions(x, p), np.empty_like(x, p.dtype.storage)
    if form is not None:
        codes[...] = floats.encoded(positions, form, saturate or p.dtype.block_size > 0).view(p.dtype.storage)
        return codes
    first, last = _rules(p)[2]
    codes[...] = np.clip(np.where(np.isnan(positions), first, positions), first, last)  # NaN of 0 * inf: the lowest
    return codes


@np.errstate(over="ignore", under="ignore")
def _values(codes: Array, p: QParams) -> Array:
    if p.dtype.element or p.dtype.block_size:
        return _values_by_format(codes, p)
    row, ftype, (first, last) = _rules(p)
    stored, zero_point = (_spread(a, codes.shape, p.axis, p.block_size) for a in (p.scale, p.zero_point))
    scale, zero_point, half = stored.astype(ftype), zero_point.astype(ftype), ftype.type(row.decode == "middle") / 2
    if row.zero_point != "offset":
        return np.asarray((codes.astype(ftype) - zero_point + half) * scale)
    steps = codes.astype(ftype) - ftype.type(first if row.offset_code == "lowest" else 0) + half
    if row.quotient != "range":
        return np.asarray(steps * scale + zero_point)
    count = ftype.type(last - first)
    return np.asarray(steps / count * (stored.astype(np.float64) * float(count)).astype(ftype) + zero_point)


def _values_by_format(codes: Array, p: QParams) -> Array:
    """Return the values of float codes and of codes with scales of the format's own."""
    steps = blocks.value_steps(p) if p.dtype.block_size else p.scale
    ftype, row = steps.dtype, p.dtype.float_format
    scale = _spread(steps, codes.shape, p.axis, p.block_size)
    return np.asarray((codes.astype(ftype) if row is None else floats.decoded(codes, row).astype(ftype)) * scale)


# Error measures


def _clipped(x: Array, p: QParams) -> int:
    positions, form = _positions(x, _checked(p, x.shape, p.compute.type)), p.dtype.float_format
    if form is not None:
        return int(np.count_nonzero(floats.magnitudes(positions, form) > form.largest))
    first, last = _rules(p)[2]
    return int(np.count_nonzero((positions < first) | (positions > last)))


@np.errstate(all="ignore")
def _measures(x: NDArray[np.float64], approximation: NDArray[np.float64], clipped: int | None) -> Comparison:
    error = np.abs(x - approximation)
    relative = error[x != 0] / np.abs(x[x != 0])
    return Comparison(
        mse=float(np.mean(error**2)),
        sqnr_db=float(10 * np.log10(np.sum(x**2) / np.sum(error**2))),
        max_abs_error=float(np.max(error)),
        mean_abs_error=float(np.mean(error)),
        max_relative_error=float(np.max(relative)) if relative.size else 0.0,
        mean_relative_error=float(np.mean(relative)) if relative.size else 0.0,
        clipped=clipped,
    )


# Codes of fewer than 8 bits


def _packed_shape(shape: tuple[int, ...], qtype: QType, axis: int) -> tuple[int, ...]:
    packed = list(shape or (1,))
    packed[axis] = math.ceil(packed[axis] * qtype.bits / 8)
    return tuple(packed)


def _pack(codes: Array, qtype: QType, axis: int, bitorder: BitOrder = "little") -> NDArray[np.uint8]:
    numbers = np.moveaxis(codes.view(np.uint8) if qtype.element else codes.astype(np.uint8), axis, -1)
    bits = numbers[..., np.newaxis] >> np.arange(qtype.bits, dtype=np.uint8) & np.uint8(1)
    packed = np.packbits(bits.reshape(*numbers.shape[:-1], numbers.shape[-1] * qtype.bits), axis=-1, bitorder=bitorder)
    return np.asarray(np.moveaxis(packed, -1, axis), order="C")


def _unpack(packed: NDArray[np.uint8], qtype: QType, shape: tuple[int, ...], axis: int, bitorder: BitOrder) -> Array:
    length = shape[axis] if shape else 1
    last = np.moveaxis(packed, axis, -1)
    bits = np.unpackbits(last, axis=-1, count=length * qtype.bits, bitorder=bitorder)
    weights = 1 << np.arange(qtype.bits)
    if qtype.signed and not qtype.element:
        weights[-1] *= -1
    numbers = bits.reshape(*last.shape[:-1], length, qtype.bits) @ weights
    codes = numbers.astype(np.uint8).view(qtype.storage)
    return np.asarray(np.moveaxis(codes, -1, axis).reshape(shape), order="C")


def _unpacked(q: QuantizedArray) -> Array:
    return unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
