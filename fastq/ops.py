"""The public functions: validate, lay out, run, wrap."""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq import arguments
from fastq.comparison import Comparison
from fastq.conventions import Convention, as_convention
from fastq.kernels import SAW_INFINITE_RANGE, SAW_NAN
from fastq.layout import check_block_size, kept_axes, parameter_shape
from fastq.packing import pack, packed_shape, unpack
from fastq.qarray import Axis, QParams, QuantizedArray
from fastq.qtypes import QType, as_qtype

Array = NDArray[Any]


@functools.cache
def _execute() -> Any:
    """Return the module that needs Numba, imported by the first call of an operation."""
    return importlib.import_module("fastq.execute")


# --- quantize ---------------------------------------------------------------------------------------------------------


def quantize(
    x: ArrayLike,
    dtype: str | QType | DTypeLike | None = None,
    *,
    qparams: QParams | None = None,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    out: Array | None = None,
) -> QuantizedArray:
    """Quantize an array, with parameters computed from it or given.

    ``codes = saturate(rint(x / scale) + zero_point)``, ties to even, with the parameters of `choose_qparams`; where a
    block fits the cache it is read once.

    Parameters
    ----------
    x : array_like
        Of float32, float64 or an integer dtype, any shape and memory layout.
    dtype : str, QType or dtype
        The code format: "int8", "uint8", "int16", "uint16", "int4", "uint4", "int2" or "uint2".
    qparams : QParams, optional
        Parameters to use instead; they carry dtype, axis, block_size, symmetric and convention.
    axis : int, tuple of int or None
        The channel axis or axes, each index with parameters of its own; None: one set for the array. With a
        `block_size`, the axis along which blocks run.
    block_size : int
        Elements in a block; the last one of each row may be shorter. 0: no blocks.
    symmetric : bool
        Zero point in the middle and as many codes below it as above.
    convention : str or Convention
        Whose arithmetic to follow.
    nan : {"raise", "zero"}
        Refuse NaN, or take it for 0.0.
    out : ndarray, optional
        Where to write the codes: x's shape and the format's storage dtype; packed shape for packed formats.

    Returns
    -------
    QuantizedArray
        Codes in the memory order of x, and the parameters.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described; if x has NaN (unless ``nan="zero"``), or its range is infinite or empty.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.array([[-1.0, 0.0, 2.0], [0.1, 0.2, 0.3]], np.float32)
    >>> q = fastq.quantize(x, "int8", axis=0, symmetric=True)
    >>> q.codes
    array([[-64,   0, 127],
           [ 42,  85, 127]], dtype=int8)
    >>> q.scale
    array([0.01574803, 0.0023622 ], dtype=float32)
    """
    x = arguments.as_input(x)
    arguments.check_nan(nan)
    if qparams is not None:
        _refuse_beside_qparams(dtype, axis, block_size, symmetric, convention)
        params = _checked(qparams, x.shape, arguments.compute_dtype(x.dtype))
        codes = _codes_for(x, params.dtype, out)
        _with_parameters("quantize", x, codes, params, nan, out)
        return QuantizedArray(_packed(codes, params.dtype, out), params, x.shape)
    if dtype is None:
        raise TypeError("quantize needs dtype, the code format, or qparams")
    request = _request(x, dtype, axis, block_size, symmetric, convention)
    codes = _codes_for(x, request.dtype, out)
    params = _by_range("quantize", x, codes, request, nan)
    return QuantizedArray(_packed(codes, request.dtype, out), params, x.shape)


def choose_qparams(
    x: ArrayLike,
    dtype: str | QType | DTypeLike,
    *,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
) -> QParams:
    """Return the scale and zero point that `quantize` would take from an array.

    With lo = min(x, 0) and hi = max(x, 0) of what one parameter belongs to: asymmetric, ``scale = (hi - lo) / (qmax -
    qmin)`` and ``zero_point = clamp(rint(qmin - lo / scale))``, as ONNX's DynamicQuantizeLinear; symmetric, ``scale =
    max(-lo, hi) / h`` with h codes on either side of the middle one. A scale below the smallest normal number becomes
    1.

    Parameters
    ----------
    x, dtype, axis, block_size, symmetric, convention, nan
        As in `quantize`.

    Returns
    -------
    QParams
        Scale of dtype float64 for float64 x and integers wider than 16 bits, else float32.

    Raises
    ------
    TypeError, ValueError, AxisError
        As `quantize`.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> p = fastq.choose_qparams(np.array([-1.0, 1.55], np.float32), "uint8")
    >>> p.scale, p.zero_point
    (array(0.01, dtype=float32), array(100, dtype=uint8))
    """
    x = arguments.as_input(x)
    arguments.check_nan(nan)
    request = _request(x, dtype, axis, block_size, symmetric, convention)
    if x.size == 0:
        return _params_of_nothing(x, request)
    axes, compute = kept_axes(axis, x.ndim), arguments.compute_dtype(x.dtype)
    scale, zero_point, seen = _execute().choose(
        x, axes, request.block_size, *_scheme(request), nan, compute, request.dtype.storage
    )
    if seen:
        _refuse_nan(seen, nan, x)
        _refuse_infinite(seen, x)
    return _filled(request, scale, zero_point)


def quantize_linear(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    dtype: str | QType | DTypeLike | None = None,
    *,
    axis: Axis = 1,
    block_size: int = 0,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    out: Array | None = None,
) -> Array:
    """Quantize with raw parameters: ``saturate(rint(x / scale) + zero_point)``, the QuantizeLinear operator of ONNX.

    Parameters
    ----------
    x : array_like
        Of float32, float64 or an integer dtype.
    scale : array_like of float
        Positive and finite. One number of any shape for the whole array, else shape (C,) for a channel axis, the kept
        dimensions for a tuple of axes, or x's rank with ``ceil(D / block_size)`` on the block axis.
    zero_point : array_like of int, optional
        Codes of 0.0, the scale's shape; None for zero.
    dtype : str, QType or dtype, optional
        The code format; by default that of `zero_point`, else that of `out`, else "uint8" as in ONNX.
    axis : int, tuple of int or None
        As in `quantize`; not looked at where scale is one number.
    block_size : int
        As in `quantize`.
    convention, nan, out
        As in `quantize`.

    Returns
    -------
    ndarray
        Codes, x's shape, packed along the last axis for packed formats; `out` if given.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, or x has NaN (unless ``nan="zero"``).

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.quantize_linear(np.array([-9.0, 0.5, 1.5, 99.0], np.float32), 1.0, 0, "int8")
    array([-9,  0,  2, 99], dtype=int8)
    """
    x = arguments.as_input(x)
    arguments.check_nan(nan)
    as_convention(convention)
    qtype = _qtype_for(dtype, zero_point, out)
    scale = arguments.as_scale(scale, arguments.compute_dtype(x.dtype))
    zero = _zero_point_for(zero_point, qtype, scale)
    axes, block_size = _place(x, scale, axis, block_size)
    codes = _codes_for(x, qtype, out)
    if x.size:
        source = x
        if out is not None:
            source, scale, zero = arguments.apart(codes, x, scale, zero)
        execute = _execute()
        bounds = (qtype.qmin, qtype.qmax)
        seen = execute.apply("quantize", source, codes, scale, zero, axes, block_size, bounds, nan)
        if seen:
            _refuse_nan(seen, nan, source)
    return _packed(codes, qtype, out)


def fake_quantize(
    x: ArrayLike,
    dtype: str | QType | DTypeLike | None = None,
    *,
    qparams: QParams | None = None,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    out: Array | None = None,
) -> Array:
    """Quantize and dequantize in one pass: the values that the codes of x would stand for.

    Parameters
    ----------
    x, dtype, qparams, axis, block_size, symmetric, convention, nan
        As in `quantize`.
    out : ndarray, optional
        Where to write: x's shape and the result's dtype; may be x itself, which costs a copy of it.

    Returns
    -------
    ndarray
        Of x's dtype for floats, else of the compute type; `out` if given.

    Raises
    ------
    TypeError, ValueError, AxisError
        As `quantize`.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.fake_quantize(np.array([0.0, 0.26, 1.0], np.float32), "uint2")
    array([0.        , 0.33333334, 1.        ], dtype=float32)
    """
    x = arguments.as_input(x)
    arguments.check_nan(nan)
    compute = arguments.compute_dtype(x.dtype)
    values = np.empty_like(x, compute, subok=False) if out is None else arguments.check_out(out, x.shape, compute)
    if qparams is not None:
        _refuse_beside_qparams(dtype, axis, block_size, symmetric, convention)
        _with_parameters("fake", x, values, _checked(qparams, x.shape, compute), nan, out)
        return values
    if dtype is None:
        raise TypeError("fake_quantize needs dtype, the code format, or qparams")
    _by_range("fake", x, values, _request(x, dtype, axis, block_size, symmetric, convention), nan)
    return values


# --- dequantize -------------------------------------------------------------------------------------------------------


def dequantize_linear(
    codes: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    axis: Axis = 1,
    block_size: int = 0,
    out: Array | None = None,
) -> Array:
    """Dequantize with raw parameters: ``(codes - zero_point) * scale``, the DequantizeLinear operator of ONNX.

    Parameters
    ----------
    codes : array_like of int8, uint8, int16 or uint16
        One code an element.
    scale, zero_point, axis, block_size
        As in `quantize_linear`; the product is taken in the scale's dtype, float32 or float64.
    dtype : float32 or float64, optional
        Output dtype; that of `out`, else the scale's by default.
    out : ndarray, optional
        Where to write; the codes' shape.

    Returns
    -------
    ndarray
        Values, the codes' shape; `out` if given.

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
    codes = arguments.as_codes(codes)
    scale = arguments.as_scale(scale, arguments.scale_dtype(scale))
    zero = _zero_point_for(zero_point, _qtype_of(codes), scale)
    axes, block_size = _place(codes, scale, axis, block_size)
    return _dequantize(codes, scale, zero, axes, block_size, dtype, out)


def dequantize(q: QuantizedArray, *, dtype: DTypeLike | None = None, out: Array | None = None) -> Array:
    """Return the values of a QuantizedArray; see `QuantizedArray.dequantize`."""
    params, codes = _checked(q.qparams, q.shape, arguments.scale_dtype(q.scale)), _codes_of(q)
    axes, block_size = _axes_of(params, q.ndim)
    return _dequantize(codes, params.scale, params.zero_point, axes, block_size, dtype, out)


def _codes_of(q: QuantizedArray) -> Array:
    codes = arguments.as_codes(q.unpacked())
    if codes.shape != q.shape or _qtype_of(codes).storage != q.dtype.storage:
        raise ValueError(
            f"codes have shape {codes.shape} and dtype {codes.dtype}, "
            f"but {q.dtype} codes of shape {q.shape} have dtype {q.dtype.storage}"
        )
    return codes


def _axes_of(params: QParams, ndim: int) -> tuple[tuple[int, ...] | None, int]:
    """Return axes and block size that parameters belong to; one number belongs to the whole array."""
    return (kept_axes(params.axis, ndim), params.block_size) if params.scale.size > 1 else (None, 0)


def _qtype_of(codes: Any) -> QType:
    dtype = codes.dtype
    return as_qtype(dtype if dtype.isnative else dtype.newbyteorder("="))


def _dequantize(
    codes: Array,
    scale: Array,
    zero: Array,
    axes: tuple[int, ...] | None,
    block_size: int,
    dtype: DTypeLike | None,
    out: Array | None,
) -> Array:
    by_default = out.dtype if isinstance(out, np.ndarray) else scale.dtype
    wanted = by_default if dtype is None else np.dtype(dtype)
    if wanted not in arguments.FLOATS and wanted.newbyteorder("=") not in arguments.FLOATS:
        raise TypeError(f"{'out' if dtype is None else 'dtype'} must be float32 or float64, not {wanted}")
    values = np.empty_like(codes, wanted) if out is None else arguments.check_out(out, codes.shape, wanted)
    if codes.size:
        source = codes
        if out is not None:
            source, scale, zero = arguments.apart(values, codes, scale, zero)
        _execute().apply("dequantize", source, values, scale, zero, axes, block_size)
    return values


# --- measure ----------------------------------------------------------------------------------------------------------


def minmax(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest and the largest element, both in one pass.

    Parameters
    ----------
    x : array_like
        Of float32, float64 or an integer dtype; may hold infinities.
    axis, block_size
        What is kept, as in `quantize`: each channel or block has a minimum and a maximum of its own.
    nan : {"raise", "zero"}
        Refuse NaN, or take it for 0.0.

    Returns
    -------
    lo, hi : ndarray
        Of x's dtype, shape as the scale of `quantize`; -0.0 is returned as 0.0.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, x has NaN (unless ``nan="zero"``), or nothing to take a minimum of.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.minmax(np.array([[3, 1], [-2, 5]], np.int32), axis=0)
    (array([ 1, -2], dtype=int32), array([3, 5], dtype=int32))
    """
    x = arguments.as_input(x)
    arguments.check_nan(nan)
    block_size = check_block_size(block_size, axis)
    axes = kept_axes(axis, x.ndim)
    if x.size == 0:
        shape = _shape_of_nothing(x, axes, block_size)
        return np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    lo, hi, seen = _execute().minmax(x, axes, block_size)
    if seen:
        _refuse_nan(seen, nan, x)
    return lo, hi


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Measure how far an approximation is from an array, in one pass and without temporaries.

    Parameters
    ----------
    x : array_like
        Of float32, float64 or an integer dtype.
    q : QuantizedArray or array_like
        The approximation: codes of x, or an array of float32 or float64 and x's shape.

    Returns
    -------
    Comparison
        Errors in float64. Sums are taken in memory order, so that threads do not change a bit of them.

    Raises
    ------
    TypeError, ValueError
        If shapes differ, x is empty or has NaN, or a dtype is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.array([0.0, 0.5, 1.0], np.float32)
    >>> fastq.compare(x, np.array([0.0, 0.25, 1.0], np.float32)).max_abs_error
    0.25
    """
    x = arguments.as_input(x)
    if x.shape != (shape := q.shape if isinstance(q, QuantizedArray) else np.shape(q)):
        raise ValueError(f"x has shape {x.shape}, but q has shape {shape}")
    if not x.size:
        raise ValueError("x is empty: there is no error to measure")
    if isinstance(q, QuantizedArray):
        params = _checked(q.qparams, x.shape, arguments.scale_dtype(q.scale))
        bounds, approximation = q.dtype.code_range(q.symmetric), _codes_of(q)
        axes, block_size = _axes_of(params, x.ndim)
        sums, seen = _execute().compare(x, approximation, params.scale, params.zero_point, axes, block_size, bounds)
    else:
        approximation = _as_values(q)
        one, zero = np.ones((), arguments.compute_dtype(x.dtype)), np.zeros((), np.int8)
        sums, seen = _execute().compare(x, approximation, one, zero, None, 0, (0, 0))
    _refuse_nan(seen, "raise", x)
    return _comparison(sums, x.size, isinstance(q, QuantizedArray))


def _as_values(q: ArrayLike) -> Array:
    values = arguments.as_array(q, "q")
    if values.dtype.newbyteorder("=") not in arguments.FLOATS:
        raise TypeError(f"q must be a QuantizedArray, or an array of float32 or float64, not {values.dtype}")
    return values


def _comparison(sums: Array, size: int, has_codes: bool) -> Comparison:
    noise, signal, total, relative = (math.fsum(sums[:, k]) for k in range(4))
    nonzero, clipped = (math.fsum(sums[:, k]) for k in (6, 7))
    if signal and noise:
        sqnr = 10.0 * (math.log10(signal) - math.log10(noise))  # their quotient may overflow
    else:
        sqnr = math.nan if signal == noise else math.inf if signal else -math.inf
    return Comparison(
        mse=noise / size,
        sqnr_db=sqnr,
        max_abs_error=float(sums[:, 4].max()),
        mean_abs_error=total / size,
        max_relative_error=float(sums[:, 5].max()),
        mean_relative_error=relative / nonzero if nonzero else 0.0,
        clipped=int(clipped) if has_codes else None,
    )


# --- parts of the above -----------------------------------------------------------------------------------------------


def _refuse_beside_qparams(dtype: object, axis: Axis, block_size: int, symmetric: bool, convention: object) -> None:
    if dtype is None and axis is None and block_size == 0 and symmetric is False and convention == "onnx":
        return
    left_alone = {"dtype": None, "axis": None, "block_size": 0, "symmetric": False, "convention": "onnx"}
    given = (dtype, axis, block_size, symmetric, convention)
    names = [name for (name, default), value in zip(left_alone.items(), given, strict=True) if value != default]
    raise TypeError(f"qparams carries {', '.join(names)} already; give one or the other")


class _Request(NamedTuple):
    """Everything about parameters except their values."""

    dtype: QType
    axis: Axis
    block_size: int
    symmetric: bool
    convention: str


def _request(
    x: Array, dtype: object, axis: Axis, block_size: int, symmetric: bool, convention: str | Convention
) -> _Request:
    qtype, block_size = as_qtype(dtype), check_block_size(block_size, axis)
    axes = kept_axes(axis, x.ndim)
    axis = axes if axes is None or isinstance(axis, tuple) else axes[0]
    if not isinstance(symmetric, bool | np.bool_):
        raise TypeError(f"symmetric must be a bool, not {symmetric!r}")
    return _Request(qtype, axis, block_size, bool(symmetric), as_convention(convention).name)


def _filled(params: QParams | _Request, scale: Array, zero_point: Array) -> QParams:
    return QParams(scale, zero_point, params.dtype, params.axis, params.block_size, params.symmetric, params.convention)


def _scheme(params: _Request) -> tuple[str, tuple[int, int]]:
    return ("symmetric" if params.symmetric else "asymmetric"), params.dtype.code_range(params.symmetric)


def _by_range(does: str, x: Array, result: Array, request: _Request, nan: str) -> QParams:
    if x.size == 0:
        return _params_of_nothing(x, request)
    compute, storage = arguments.compute_dtype(x.dtype), request.dtype.storage
    (source,) = arguments.apart(result, x)
    axes = kept_axes(request.axis, x.ndim)
    scale, zero_point, seen = _execute().by_range(
        does, source, result, axes, request.block_size, *_scheme(request), nan, compute, storage
    )
    if seen:
        _refuse_nan(seen, nan, source)
        _refuse_infinite(seen, source)
    return _filled(request, scale, zero_point)


def _checked(params: QParams, shape: tuple[int, ...], compute: np.dtype[Any]) -> QParams:
    """Return parameters that belong to an array of this shape, the scale in the compute type."""
    if not isinstance(params, QParams):
        raise TypeError(f"qparams must be QParams, as choose_qparams returns them, not {type(params).__name__}")
    scale = arguments.as_scale(params.scale, compute)
    zero_point = arguments.as_zero_point(params.zero_point, params.dtype, scale.shape)
    wanted = parameter_shape(shape, kept_axes(params.axis, len(shape)), params.block_size)
    arguments.check_parameter_shape("qparams.scale", scale.shape, scale.size, wanted)
    if scale is params.scale and zero_point is params.zero_point:
        return params
    return _filled(params, scale, zero_point)


def _with_parameters(does: str, x: Array, result: Array, params: QParams, nan: str, out: Array | None) -> None:
    if x.size == 0:
        return
    axes, block_size = _axes_of(params, x.ndim)
    source, scale, zero = x, params.scale, params.zero_point
    if out is not None:
        source, scale, zero = arguments.apart(result, x, scale, zero)
    bounds = params.dtype.code_range(params.symmetric)
    seen = _execute().apply(does, source, result, scale, zero, axes, block_size, bounds, nan)
    if seen:
        _refuse_nan(seen, nan, source)


def _qtype_for(dtype: object, zero_point: Any, out: Any) -> QType:
    """Return the code format: named, else that of the zero point, else that of out, else ONNX's default."""
    if dtype is not None:
        return as_qtype(dtype)
    for array in (zero_point, out):
        given = getattr(array, "dtype", None)
        if isinstance(given, np.dtype) and (qtype := _qtype_in(given)) is not None:
            return qtype
    return as_qtype("uint8")


@functools.lru_cache(64)
def _qtype_in(dtype: np.dtype[Any]) -> QType | None:
    """Return the code format that arrays of this dtype hold, if there is one."""
    native = dtype.newbyteorder("=")
    return as_qtype(native) if native in arguments.CODES else None


def _zero_point_for(zero_point: object, qtype: QType, scale: Array) -> Array:
    if zero_point is None:
        return np.zeros(scale.shape, qtype.storage)
    return arguments.as_zero_point(zero_point, qtype, scale.shape)


def _place(x: Array, scale: Array, axis: Axis, block_size: int) -> tuple[tuple[int, ...] | None, int]:
    """Axes and block size that raw parameters belong to; one number belongs to the whole array."""
    block_size = check_block_size(block_size, axis)
    if scale.size == 1:
        return None, 0
    axes = kept_axes(axis, x.ndim)
    wanted = parameter_shape(x.shape, axes, block_size)
    arguments.check_parameter_shape("scale", scale.shape, scale.size, wanted)
    return axes, block_size


def _codes_for(x: Array, qtype: QType, out: Array | None) -> Array:
    """Where to write codes one an element; packed formats are packed from there."""
    if qtype.packed:
        if out is not None:
            arguments.check_out(out, packed_shape(x.shape, qtype), np.dtype(np.uint8))
        return np.empty_like(x, qtype.storage, subok=False)
    if out is None:
        return np.empty_like(x, qtype.storage, subok=False)
    return arguments.check_out(out, x.shape, qtype.storage)


def _packed(codes: Array, qtype: QType, out: Array | None) -> Array:
    if not qtype.packed:
        return codes
    packed = pack(codes, qtype)
    if out is None:
        return packed
    out[...] = packed
    return out


def _shape_of_nothing(x: Array, axes: tuple[int, ...] | None, block_size: int) -> tuple[int, ...]:
    shape = parameter_shape(x.shape, axes, block_size)
    if math.prod(shape):
        raise ValueError(f"x has shape {x.shape}: the range of no elements has no minimum and no maximum")
    return shape


def _params_of_nothing(x: Array, request: _Request) -> QParams:
    shape = _shape_of_nothing(x, kept_axes(request.axis, x.ndim), request.block_size)
    return _filled(request, np.empty(shape, arguments.compute_dtype(x.dtype)), np.empty(shape, request.dtype.storage))


def _refuse_nan(seen: int, nan: str, x: Array) -> None:
    if seen & SAW_NAN and nan == "raise":
        count, _ = _execute().count_not_finite(x)
        raise ValueError(f"x has {count} NaN; pass nan='zero' to take them for 0.0")


def _refuse_infinite(seen: int, x: Array) -> None:
    if seen & SAW_INFINITE_RANGE:
        _, count = _execute().count_not_finite(x)
        raise ValueError(f"x has {count} infinite values: their range has no scale; clip x, or pass qparams")


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
