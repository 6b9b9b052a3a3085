"""The public functions in plain NumPy, written from the contract alone: what the fast ones have to equal, bit for bit.

Arguments, results and errors are those of the functions of the same names in `fastq`. Nothing here knows the kernels or
the layout. Parameters are spread out to one an element, so the memory needed is several times the input.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.compare import Comparison
from fastq.conventions import Convention, as_convention, part_of
from fastq.qarray import Axis, QParams, QuantizedArray
from fastq.qtypes import QTYPES, QType, as_qtype

Array = NDArray[Any]

__all__ = [
    "choose_qparams",
    "compare",
    "dequantize",
    "dequantize_linear",
    "fake_quantize",
    "minmax",
    "pack",
    "quantize",
    "quantize_linear",
    "unpack",
]

FLOATS = ("float32", "float64")


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
    out: Array | None = None,
    bits: int | None = None,
) -> QuantizedArray:
    """Return the codes of `x`, with parameters computed from its range or given.

    Returns
    -------
    QuantizedArray
        ``codes = clamp(rint(x / scale) + zero_point)``; arguments and errors as for `fastq.quantize`.
    """
    x = _input(x, "x")
    p = _resolve(x, dtype, qparams, axis, block_size, symmetric, convention, nan, bits)
    _check_out(out, _codes_shape(x.shape, p.dtype), _codes_dtype(p.dtype))
    return QuantizedArray(_stored(_codes(_without_nan(x, nan), p), p.dtype, out), p, x.shape)


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
    x, qtype, row = _input(x, "x"), _format(dtype, bits), as_convention(convention)
    row.check(qtype, symmetric)
    axis = _normalised(axis, block_size, x.ndim)
    lo, hi = _range(_without_nan(x, nan), axis, block_size)
    under = row.under(symmetric, part_of(axis, block_size))
    scale, zero_point = _parameters(lo, hi, under, row.parameter_range(qtype, symmetric), symmetric)
    scale = scale.astype(row.scale_dtype(lo.dtype))
    zero_point = zero_point.astype(row.zero_point_dtype(qtype, lo.dtype))
    computed = None if scale.dtype == lo.dtype else lo.dtype
    return QParams(scale, zero_point, qtype, axis, int(block_size), bool(symmetric), convention, computed)


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
    out: Array | None = None,
) -> Array:
    """Return the codes of `x` as ONNX's QuantizeLinear does.

    Returns
    -------
    ndarray
        ``clamp(rint(x / scale) + zero_point)``; arguments and errors as for `fastq.quantize_linear`.
    """
    x = _input(x, "x")
    _check_is_out(out)
    qtype = _code_format(dtype, zero_point, out)
    as_convention(convention).check_format(qtype)
    p = _given_qparams(scale, zero_point, qtype, axis, block_size, convention, x.shape, _compute_type(x.dtype))
    _check_out(out, _codes_shape(x.shape, qtype), _codes_dtype(qtype))
    return _stored(_codes(_without_nan(x, nan), p), qtype, out)


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
    if codes.dtype.name not in QTYPES or codes.dtype.kind not in "iu":
        raise TypeError(f"codes must be int8, uint8, int16 or uint16, not {codes.dtype}")
    ftype = np.float32 if _is_python(scale) else _scale(scale).dtype.type
    dtype, qtype, row = _output_dtype(dtype, out, np.dtype(ftype)), as_qtype(codes.dtype), as_convention(convention)
    row.check_format(qtype)
    ftype = dtype.type if row.stored_type == "float64" else ftype
    p = _given_qparams(scale, zero_point, qtype, axis, block_size, convention, codes.shape, ftype)
    _check_out(out, codes.shape, dtype)
    return _delivered(_values(codes, p), dtype, out)


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
    out: Array | None = None,
    bits: int | None = None,
) -> Array:
    """Return what is left of `x` after quantizing and dequantizing it.

    Returns
    -------
    ndarray
        In the compute type of `x`; arguments and errors as for `fastq.fake_quantize`.
    """
    x = _input(x, "x")
    p = _resolve(x, dtype, qparams, axis, block_size, symmetric, convention, nan, bits)
    _check_out(out, x.shape, p.compute)
    return _delivered(_values(_codes(_without_nan(x, nan), p), p), p.compute, out)


def minmax(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range.

    Returns
    -------
    lo, hi : ndarray
        In the dtype of `x`; arguments and errors as for `fastq.minmax`.
    """
    x = _input(x, "x")
    return _extremes(_without_nan(x, nan), _normalised(axis, block_size, x.ndim), block_size)


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Return how far an approximation, quantized or not, is from `x`.

    Returns
    -------
    Comparison
        Errors ``x - q`` in float64; arguments and errors as for `fastq.compare`.
    """
    x = _input(x, "x")
    approximation = dequantize(q) if isinstance(q, QuantizedArray) else _input(q, "q")
    if x.shape != approximation.shape:
        raise ValueError(f"x has shape {x.shape} and q has shape {approximation.shape}")
    if x.size == 0:
        raise ValueError("x has no elements to compare")
    _check_no_nan(x, "x has {} NaN")
    clipped = _clipped(x, q.qparams) if isinstance(q, QuantizedArray) else None
    return _measures(x.astype(np.float64), approximation.astype(np.float64), clipped)


def pack(codes: ArrayLike, dtype: object, *, axis: int = -1) -> NDArray[np.uint8]:
    """Return `codes` of fewer than 8 bits with several in a byte, the first in the low bits.

    Returns
    -------
    ndarray of uint8
        ``ceil(D * bits / 8)`` long on `axis`; arguments and errors as for `fastq.pack`.
    """
    qtype = _packed_format(dtype)
    codes = np.atleast_1d(_integers(codes, "codes"))
    if not _within(codes, qtype).all():
        raise ValueError(f"codes must lie in {qtype.qmin} .. {qtype.qmax} for {qtype}")
    return _pack(codes, qtype, _normalised_index(axis, codes.ndim))


def unpack(packed: ArrayLike, dtype: object, *, shape: tuple[int, ...], axis: int = -1) -> Array:
    """Return the codes in `packed`, one an element.

    Returns
    -------
    ndarray of int8 or uint8
        Of shape `shape`; arguments and errors as for `fastq.unpack`.
    """
    qtype, packed = _packed_format(dtype), _array(packed, "packed")
    if packed.dtype != np.uint8:
        raise TypeError(f"packed must be uint8, not {packed.dtype}")
    shape = tuple(shape)
    where = _normalised_index(axis, max(len(shape), 1))
    if min(shape, default=0) < 0 or packed.shape != _packed_shape(shape, qtype, where):
        raise ValueError(f"packed has shape {packed.shape}, which does not hold {qtype} codes of shape {shape}")
    return _unpack(packed, qtype, shape, where)


# Arguments


def _array(a: ArrayLike, name: str) -> Array:
    if isinstance(a, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; pass {name}.filled(...)")
    return np.asarray(a)


def _input(x: ArrayLike, name: str) -> Array:
    """Return `x` as an array of one of the input dtypes, in native byte order."""
    x = _array(x, name)
    if x.dtype.kind not in "iu" and x.dtype.name not in FLOATS:
        raise TypeError(f"{name} must be float32, float64 or integers, not {x.dtype}")
    return x.astype(x.dtype.newbyteorder("="), copy=False)


def _integers(a: ArrayLike, name: str) -> Array:
    a = _array(a, name)
    if a.dtype.kind not in "iu" and a.dtype.name not in QTYPES:
        raise TypeError(f"{name} must be integers, not {a.dtype}")
    # The 4-bit and 2-bit dtypes of ml_dtypes refuse to be compared with Python integers beyond int8.
    return a.astype(np.int16) if a.dtype.kind == "V" else a


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


def _compute_type(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float64 if dtype.itemsize > (4 if dtype.kind == "f" else 2) else np.float32


def _without_nan(x: Array, nan: str) -> Array:
    if nan not in ("raise", "zero"):
        raise ValueError(f"nan must be 'raise' or 'zero', not {nan!r}")
    if nan == "raise":
        _check_no_nan(x, "x has {} NaN; pass nan='zero' to take them as 0")
    return np.where(np.isnan(x), x.dtype.type(0), x)


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
        raise TypeError(f"scale must be float32 or float64, not {values.dtype}")
    return values


def _checked(p: QParams, shape: tuple[int, ...], ftype: type[np.floating[Any]]) -> QParams:
    """Return `p` with a scale of type `ftype`, if it fits an array of shape `shape`."""
    _check_granularity(p.axis, p.block_size)
    given, qtype, row = _scale(p.scale), as_qtype(p.dtype), as_convention(p.convention)
    zero_point = (_integers if row.zero_point == "integer" else _array)(p.zero_point, "zero_point")
    with np.errstate(over="ignore", under="ignore"):
        scale = given.astype(row.scale_dtype(np.dtype(ftype)))
    if scale.size != 1:
        axis = _normalised(p.axis, p.block_size, len(shape))
        _check_shape(scale, "scale", _param_shape(shape, axis, p.block_size))
    # ONNX's own test vectors have a zero point of shape (1,) beside a scale of shape ().
    zero_point = zero_point.reshape(scale.shape) if zero_point.size == scale.size == 1 else zero_point
    _check_shape(zero_point, "zero_point", scale.shape)
    size = np.abs(scale) if row.signed_scale else scale
    bad = given[~((size > 0) & (size < np.inf))]
    if bad.size:
        raise ValueError(f"scale has {bad.size} values that are not positive and finite, the first is {bad[0]}")
    if row.zero_point == "integer" and not _within(zero_point, qtype).all():
        raise ValueError(f"zero_point must lie in {qtype.qmin} .. {qtype.qmax} for {qtype}")
    with np.errstate(over="ignore", under="ignore"):
        zero_point = zero_point.astype(row.zero_point_dtype(qtype, scale.dtype))
    if not np.isfinite(zero_point).all():
        raise ValueError("zero_point must be finite")
    computed = None if scale.dtype == ftype else np.dtype(ftype)
    return replace(p, scale=scale, zero_point=zero_point, dtype=qtype, computed=computed)


def _check_shape(a: Array, name: str, shape: tuple[int, ...]) -> None:
    if a.shape != shape:
        raise ValueError(f"{name} has shape {a.shape}, but {shape} is needed")


def _within(codes: Array, qtype: QType) -> NDArray[np.bool_]:
    return (codes >= qtype.qmin) & (codes <= qtype.qmax)


def _packed_format(dtype: object) -> QType:
    qtype = as_qtype(dtype)
    if not qtype.packed:
        raise TypeError(f"dtype must be a format of fewer than 8 bits, not {qtype}")
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
    wanted = np.dtype(dtype)
    if wanted.name not in FLOATS:
        raise TypeError(f"the dtype of the output must be float32 or float64, not {wanted}")
    return wanted.newbyteorder("=")


def _delivered(values: Array, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Return `values` in `out`, or as an array of their own in their own memory order; an array even where 0-d."""
    out = np.empty_like(values, dtype) if out is None else out
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
def _parameters(lo: Array, hi: Array, row: Convention, codes: tuple[int, int], symmetric: bool) -> tuple[Array, Array]:
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
    if lo.dtype == np.float64:
        return np.asarray(hi / steps - lo / steps)
    return np.asarray((hi.astype(np.float64) - lo.astype(np.float64)) / np.float64(steps)).astype(np.float32)


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


def _rules(p: QParams) -> tuple[Convention, np.dtype[Any], tuple[int, int]]:
    """Return the convention of some parameters, the compute type, and the first and the last code."""
    row = as_convention(p.convention)
    under = row.under(p.symmetric, part_of(p.axis, p.block_size))
    return under, p.compute, row.code_range(p.dtype, p.symmetric)


@np.errstate(all="ignore")
def _positions(x: Array, p: QParams) -> Array:
    """Return the codes of `x` as floats, before they are clamped."""
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


def _codes(x: Array, p: QParams) -> Array:
    first, last = _rules(p)[2]
    positions = _positions(x, p)
    codes = np.empty_like(x, p.dtype.storage)
    codes[...] = np.clip(np.where(np.isnan(positions), first, positions), first, last)  # NaN of 0 * inf: the lowest
    return codes


@np.errstate(over="ignore", under="ignore")
def _values(codes: Array, p: QParams) -> Array:
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


# Error measures


def _clipped(x: Array, p: QParams) -> int:
    positions = _positions(x, _checked(p, x.shape, p.compute.type))
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


def _shifts(qtype: QType) -> NDArray[np.uint8]:
    """Return where the codes of a byte start, first code first."""
    return np.arange(0, 8, qtype.bits, dtype=np.uint8)


def _mask(qtype: QType) -> np.uint8:
    return np.uint8((1 << qtype.bits) - 1)


def _pack(codes: Array, qtype: QType, axis: int) -> NDArray[np.uint8]:
    shifts = _shifts(qtype)
    fields = np.moveaxis(codes, axis, -1).astype(np.uint8) & _mask(qtype)
    padding = -fields.shape[-1] % shifts.size
    fields = np.pad(fields, [(0, 0)] * (fields.ndim - 1) + [(0, padding)])
    groups = fields.reshape(*fields.shape[:-1], fields.shape[-1] // shifts.size, shifts.size)
    return np.asarray(np.moveaxis(np.bitwise_or.reduce(groups << shifts, axis=-1), -1, axis), order="C")


def _unpack(packed: NDArray[np.uint8], qtype: QType, shape: tuple[int, ...], axis: int) -> Array:
    length = shape[axis] if shape else 1
    last = np.moveaxis(packed, axis, -1)
    groups = (last[..., np.newaxis] >> _shifts(qtype)) & _mask(qtype)
    fields = groups.reshape(*last.shape[:-1], last.shape[-1] * groups.shape[-1])[..., :length]
    return np.asarray(np.moveaxis(_sign_extended(fields, qtype), -1, axis).reshape(shape), order="C")


def _sign_extended(fields: NDArray[np.uint8], qtype: QType) -> Array:
    if not qtype.signed:
        return fields
    sign = np.int8(1 << (qtype.bits - 1))
    return (fields.astype(np.int8) ^ sign) - sign


def _unpacked(q: QuantizedArray) -> Array:
    return unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
