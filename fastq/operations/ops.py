"""The public functions: validate, lay out, run, wrap."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.comparison import Comparison
from fastq.dispatch import known, validation
from fastq.dispatch.calls import call_of
from fastq.dispatch.granularity import check_block_size, kept_axes, parameter_shape
from fastq.dispatch.spec import Call, Parameters, Ranging, in_bits
from fastq.formats.conventions import Convention, as_convention, part_of
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.kernels.status import HAS_INFINITE_RANGE, HAS_NAN
from fastq.operations.packing import pack, packed_shape, unpack
from fastq.results import Axis, QParams, QuantizedArray
from fastq.runtime import result_pool
from fastq.system import lazy

Array = NDArray[Any]


# the module that needs Numba, imported by the first call of an operation
_execute = functools.partial(lazy.module, "fastq.dispatch.execute")


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
    saturate: bool = True,
    out: Array | None = None,
    bits: int | None = None,
) -> QuantizedArray:
    """Quantize an array, with parameters computed from it or given.

    ``codes = saturate(rint(x / scale) + zero_point)``, ties to even, or as the convention has it, with the parameters
    of `choose_qparams`; where a block fits the cache it is read once.

    Parameters
    ----------
    x : array_like
        Of float16, bfloat16, float32, float64 or an integer dtype, any shape and memory layout.
    dtype : str, QType or dtype
        The code format: "int8", "uint4", "float8_e4m3fn", "mxfp4" or another of ``fastq.formats.qtypes.QTYPES``.
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
        Whose arithmetic to follow: a name of ``fastq.CONVENTIONS``, or a `Convention` of your own.
    nan : {"raise", "zero", "keep"}
        Refuse NaN, take it for 0.0, or keep it, in formats whose codes or scales have a NaN.
    saturate : bool
        Whether what is too large for a float format with a NaN becomes its largest number, or infinity or NaN.
    out : ndarray, optional
        Where to write the codes: x's shape and the format's storage dtype; packed shape for packed formats.
    bits : int, optional
        Use codes of so many bits, 2 or more, in the storage of `dtype`, one an element.

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
    if qparams is not None:
        _refuse_beside_qparams(dtype, axis, block_size, symmetric, convention, bits)
        what = _with_qparams(qparams, x, out, "quantize", nan, saturate)
        key = known.facts(*what)
        if (again := known.again(key, *what[:4])) is not None:
            return QuantizedArray(again, qparams, x.shape)  # type: ignore[union-attr]
        x = validation.as_input(x)
        params = _checked(qparams, x.shape, validation.compute_dtype(x.dtype))
        validation.check_nan(nan, params.dtype, given=True)
        codes = _codes_for(x, params.dtype, out)
        _with_parameters("quantize", x, codes, params, nan, saturate, out, key if params is qparams else b"", what)
        return QuantizedArray(codes, params, x.shape)
    what = (x, out, None, None, "quantize", dtype, axis, block_size, symmetric, convention, nan, saturate, bits)
    key = known.facts(*what)
    if (found := _ranged_again(key, x, out)) is not None:
        return QuantizedArray(*found, x.shape)  # type: ignore[union-attr]
    if dtype is None:
        raise TypeError("quantize needs dtype, the code format, or qparams")
    x = validation.as_input(x)
    request = _request(x, dtype, axis, block_size, symmetric, convention, bits)
    validation.check_nan(nan, request.dtype)
    codes = _codes_for(x, request.dtype, out)
    return QuantizedArray(codes, _by_range("quantize", x, codes, request, nan, saturate, key, what), x.shape)


def choose_qparams(
    x: ArrayLike,
    dtype: str | QType | DTypeLike,
    *,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    bits: int | None = None,
) -> QParams:
    """Return the scale and zero point that `quantize` would take from an array.

    With lo = min(x, 0) and hi = max(x, 0) of what one parameter belongs to: asymmetric, ``scale = (hi - lo) / (qmax -
    qmin)`` and ``zero_point = clamp(rint(qmin - lo / scale))``, as ONNX's DynamicQuantizeLinear; symmetric, ``scale =
    max(-lo, hi) / h`` with h codes on either side of the middle one. A scale below the smallest normal number becomes
    1. Other conventions: see `Convention`.

    Parameters
    ----------
    x, dtype, axis, block_size, symmetric, convention, nan, bits
        As in `quantize`.

    Returns
    -------
    QParams
        Scale of dtype float64 for float64 x, integers wider than 16 bits and conventions that keep it so, else float32.

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
    x = validation.as_input(x)
    request = _request(x, dtype, axis, block_size, symmetric, convention, bits)
    validation.check_nan(nan, request.dtype)
    call = request.call("quantize", nan, True)
    if x.size == 0:
        return _params_of_nothing(x, request, call.ranging)
    tensor_scale = _tensor_scale(x, request, nan)
    scale, zero_point, seen = _execute().choose(call, x, _as_factor(tensor_scale))
    if seen:
        _refuse_nan(seen, nan, x)
        _refuse_infinite(seen, x)
    return _chosen(request, scale, zero_point, tensor_scale)


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
    saturate: bool = True,
    out: Array | None = None,
) -> Array:
    """Quantize with raw parameters: ``saturate(rint(x / scale) + zero_point)``, the QuantizeLinear operator of ONNX.

    Parameters
    ----------
    x : array_like
        Of float16, bfloat16, float32, float64 or an integer dtype.
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
    convention, nan, saturate, out
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
    what = (x, out, scale, zero_point, "quantize_linear", dtype, axis, block_size, convention, nan, saturate)
    key = known.facts(*what)
    if (again := known.again(key, x, out, scale, zero_point)) is not None:
        return again
    x = validation.as_input(x)
    row, compute = as_convention(convention), validation.compute_dtype(x.dtype)
    qtype = _qtype_for(dtype, zero_point, out)
    if qtype.block_size:
        raise TypeError(f"dtype must be a format without scales of its own, not {qtype}; see quantize")
    scale = validation.as_scale(scale, row.scale_dtype(compute), row.signed_scale)
    zero = _zero_point_for(zero_point, qtype, scale, row)
    axes, block_size = _place(x, scale, axis, block_size)
    codes = _codes_for(x, qtype, out)
    nan, saturate = validation.check_nan(nan, qtype), validation.check_saturate(saturate)
    call = _linear_call(row, qtype, compute, axes, block_size, nan, saturate)
    _apply(call, x, codes, Parameters(scale, zero), out, nan)
    known.remember_given(key, what, call, x, codes, Parameters(scale, zero), qtype, row.signed_scale)
    return codes


@functools.lru_cache(1024)
def _linear_call(
    row: Convention,
    qtype: QType,
    compute: np.dtype[Any],
    axes: tuple[int, ...] | None,
    block_size: int,
    nan: str,
    saturate: bool,
) -> Call:
    """Return a call with raw parameters, if the convention has the format."""
    row.check_format(qtype)
    part = part_of(axes, block_size)
    return call_of("quantize", row, qtype, False, part, compute, axes, block_size, nan, saturate)


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
    saturate: bool = True,
    out: Array | None = None,
    bits: int | None = None,
) -> Array:
    """Quantize and dequantize in one pass: the values that the codes of x would stand for.

    Parameters
    ----------
    x, dtype, qparams, axis, block_size, symmetric, convention, nan, saturate, bits
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
    if qparams is not None:
        _refuse_beside_qparams(dtype, axis, block_size, symmetric, convention, bits)
        what = _with_qparams(qparams, x, out, "fake_quantize", nan, saturate)
        key = known.facts(*what)
        if (again := known.again(key, *what[:4])) is not None:
            return again
        x, values, compute = _values_for(x, out)
        params = _checked(qparams, x.shape, compute)
        validation.check_nan(nan, params.dtype, given=True)
        _with_parameters("fake", x, values, params, nan, saturate, out, key, what)
        return values
    what = (x, out, None, None, "fake_quantize", dtype, axis, block_size, symmetric, convention, nan, saturate, bits)
    key = known.facts(*what)
    if (found := _ranged_again(key, x, out)) is not None:
        return found[0]
    x, values, _ = _values_for(x, out)
    if dtype is None:
        raise TypeError("fake_quantize needs dtype, the code format, or qparams")
    request = _request(x, dtype, axis, block_size, symmetric, convention, bits)
    validation.check_nan(nan, request.dtype)
    _by_range("fake", x, values, request, nan, saturate, key, what)
    return values


def _values_for(x: ArrayLike, out: Array | None) -> tuple[Array, Array, np.dtype[Any]]:
    """Return x as an array, where to write values of its dtype, and its compute type."""
    x = validation.as_input(x)
    compute = validation.compute_dtype(x.dtype)
    wanted = x.dtype.newbyteorder("=") if validation.is_real(x.dtype) else compute
    return x, result_pool.empty_like(x, wanted) if out is None else validation.check_out(out, x.shape, wanted), compute


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
    convention: str | Convention = "onnx",
) -> Array:
    """Dequantize with raw parameters: ``(codes - zero_point) * scale``, the DequantizeLinear operator of ONNX.

    Parameters
    ----------
    codes : array_like of int8, uint8, int16, uint16 or a dtype of ml_dtypes
        One code an element.
    scale, zero_point, axis, block_size
        As in `quantize_linear`; the product is taken in the scale's dtype, float32 or float64.
    dtype : float16, bfloat16, float32 or float64, optional
        Output dtype; that of `out`, else the scale's by default.
    out : ndarray, optional
        Where to write; the codes' shape.
    convention : str or Convention
        As in `quantize_linear`; one that keeps scales in float64 has the product taken in the output dtype.

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
    what = (codes, out, scale, zero_point, "dequantize_linear", dtype, axis, block_size, convention)
    key = known.facts(*what)
    if (again := known.again(key, codes, out, scale, zero_point)) is not None:
        return again
    (stored, qtype), row = validation.as_codes(codes), as_convention(convention)
    row.check_format(qtype)
    given, compute = getattr(scale, "dtype", None), validation.scale_dtype(scale)
    by_default = given.newbyteorder("=") if isinstance(given, np.dtype) and validation.is_real(given) else compute
    scale = validation.as_scale(scale, row.scale_dtype(compute), row.signed_scale)
    zero = _zero_point_for(zero_point, qtype, scale, row)
    axes, block_size = _place(stored, scale, axis, block_size)
    wanted = _output_dtype(by_default, dtype, out)
    product = validation.compute_dtype(wanted) if row.stored_type == "float64" else scale.dtype
    part = part_of(axes, block_size)
    call = call_of("dequantize", row, qtype, False, part, product, axes, block_size)
    call, parameters = call.apart if qtype.packed else call, Parameters(scale, zero)
    values = _dequantize(call, stored, stored.shape, parameters, wanted, out)
    if stored is codes:
        known.remember_given(key, what, call, stored, values, parameters, qtype, row.signed_scale)
    return values


def dequantize(q: QuantizedArray, *, dtype: DTypeLike | None = None, out: Array | None = None) -> Array:
    """Return the values of a QuantizedArray; see `QuantizedArray.dequantize`."""
    what = _with_qparams(q.qparams, q.codes, out, "dequantize", dtype, q.shape)
    key = known.facts(*what)
    if (again := known.again(key, *what[:4])) is not None:
        return again
    params, codes = _checked(q.qparams, q.shape, q.qparams.compute), _codes_of(q)
    wanted = _output_dtype(params.compute, dtype, out)
    call, given = _call_with("dequantize", params, q.ndim), _parameters(params)
    values = _dequantize(call, codes, q.shape, given, wanted, out)
    signed = as_convention(params.convention).signed_scale
    known.remember_given(key, what, call, codes, values, given, params.dtype, signed)
    return values


def _codes_of(q: QuantizedArray) -> Array:
    """Return the codes of a QuantizedArray as they are stored, of the shape and dtype that its format asks for."""
    wanted = packed_shape(q.shape, q.dtype) if q.dtype.packed else q.shape
    storage = np.dtype(np.uint8) if q.dtype.packed else q.dtype.storage
    codes = validation.as_array(q.codes, "codes")
    if codes.shape != wanted or codes.dtype.newbyteorder("=") != storage:
        raise ValueError(
            f"codes have shape {codes.shape} and dtype {codes.dtype}, "
            f"but {q.dtype} codes of shape {q.shape} have shape {wanted} and dtype {storage}"
        )
    return codes


def _call_with(does: str, params: QParams, ndim: int, nan: str = "raise", saturate: bool = True) -> Call:
    """Return a call with given parameters; one number belongs to the whole array."""
    row, block_size = as_convention(params.convention), check_block_size(params.block_size, params.axis)
    part, symmetric = part_of(params.axis, block_size), bool(params.symmetric)
    axes, block_size = (kept_axes(params.axis, ndim), block_size) if params.scale.size > 1 else (None, 0)
    saturate = validation.check_saturate(saturate)
    return call_of(does, row, params.dtype, symmetric, part, params.compute, axes, block_size, nan, saturate)


def _parameters(params: QParams) -> Parameters:
    return Parameters(params.scale, params.zero_point, _as_factor(params.tensor_scale))


def _output_dtype(default: np.dtype[Any], dtype: DTypeLike | None, out: Array | None) -> np.dtype[Any]:
    if dtype is not None:
        return validation.as_real(dtype, "dtype")
    return validation.as_real(out.dtype, "out") if isinstance(out, np.ndarray) else default


def _dequantize(
    call: Call, codes: Array, shape: tuple[int, ...], given: Parameters, wanted: np.dtype[Any], out: Array | None
) -> Array:
    if out is not None:
        values = validation.check_out(out, shape, wanted)
    else:
        values = result_pool.empty_like(codes, wanted) if codes.shape == shape else result_pool.empty(shape, wanted)
    _apply(call, codes, values, given, out, "keep")
    return values


# --- measure ----------------------------------------------------------------------------------------------------------


def minmax(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest and the largest element, both in one pass.

    Parameters
    ----------
    x : array_like
        Of float16, bfloat16, float32, float64 or an integer dtype; may hold infinities.
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
    what = (x, None, None, None, "minmax", axis, block_size, nan)
    key = known.facts(*what)
    if (found := known.find(key)) is not None:
        lo, hi = found.given.begin()
        if not found.run(x, None, None, None, None, lo, hi):
            return found.given.end(lo), found.given.end(hi)
    x = validation.as_input(x)
    validation.check_nan(nan)
    block_size = check_block_size(block_size, axis)
    axes = kept_axes(axis, x.ndim)
    if x.size == 0:
        shape = _shape_of_nothing(x, axes, block_size)
        return np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    lo, hi, seen = _execute().minmax(x, axes, block_size, nan)
    _refuse_nan(seen, nan, x)
    known.remember_extents(key, what, x, axes, block_size, nan)
    return lo, hi


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Measure how far an approximation is from an array, in one pass and without temporaries.

    Parameters
    ----------
    x : array_like
        Of float16, bfloat16, float32, float64 or an integer dtype.
    q : QuantizedArray or array_like
        The approximation: codes of x, or an array of floats of x's shape.

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
    key, what = b"", ()
    if isinstance(q, QuantizedArray):
        what = _with_qparams(q.qparams, x, q.codes, "compare", q.shape)
        key = known.facts(*what)
        if (found := known.find(key)) is not None:
            sums = _execute().sums_of(size := math.prod(q.shape))
            if not found.run(*what[:4], sums):
                return _comparison(sums, size, True)
    x = validation.as_input(x)
    if x.shape != (shape := q.shape if isinstance(q, QuantizedArray) else np.shape(q)):
        raise ValueError(f"x has shape {x.shape}, but q has shape {shape}")
    if not x.size:
        raise ValueError("x is empty: there is no error to measure")
    if isinstance(q, QuantizedArray):
        params = _checked(q.qparams, x.shape, q.qparams.compute)
        call, approximation, given = _call_with("compare", params, x.ndim), _codes_of(q), _parameters(params)
    else:
        call, approximation = _VALUES, _as_values(q)
        given = Parameters(np.ones((), validation.compute_dtype(x.dtype)), np.zeros((), np.int8))
    sums, seen = _execute().compare(call, x, in_bits(approximation), given.in_bits)
    _refuse_nan(seen, "raise", x)
    if isinstance(q, QuantizedArray):
        signed = as_convention(params.convention).signed_scale
        known.remember_given(key, what, call, x, approximation, given, params.dtype, signed)
    return _comparison(sums, x.size, isinstance(q, QuantizedArray))


_VALUES = Call("compare")  # the approximation is an array of values


def _as_values(q: ArrayLike) -> Array:
    values = validation.as_array(q, "q")
    if not validation.is_real(values.dtype):
        raise TypeError(f"q must be a QuantizedArray, or a float array, not {values.dtype}")
    return values


def _comparison(sums: Array, size: int, has_codes: bool) -> Comparison:
    columns = sums.T.tolist()
    noise, signal, total, relative, nonzero, clipped = (math.fsum(columns[k]) for k in (0, 1, 2, 3, 6, 7))
    if signal and noise:
        sqnr = 10.0 * (math.log10(signal) - math.log10(noise))  # their quotient may overflow
    else:
        sqnr = math.nan if signal == noise else math.inf if signal else -math.inf
    return Comparison(
        mse=noise / size,
        sqnr_db=sqnr,
        max_abs_error=max(columns[4]),
        mean_abs_error=total / size,
        max_relative_error=max(columns[5]),
        mean_relative_error=relative / nonzero if nonzero else 0.0,
        clipped=int(clipped) if has_codes else None,
    )


# --- parts of the above -----------------------------------------------------------------------------------------------


def _refuse_beside_qparams(
    dtype: object, axis: Axis, block_size: int, symmetric: bool, convention: object, bits: object
) -> None:
    given = (dtype, axis, block_size, symmetric, convention, bits)
    if given == (None, None, 0, False, "onnx", None):
        return
    left_alone = {"dtype": None, "axis": None, "block_size": 0, "symmetric": False, "convention": "onnx", "bits": None}
    names = [name for (name, default), value in zip(left_alone.items(), given, strict=True) if value != default]
    raise TypeError(f"qparams carries {', '.join(names)} already; give one or the other")


class _Request(NamedTuple):
    """Everything about parameters except their values."""

    dtype: QType
    axis: Axis
    axes: tuple[int, ...] | None
    block_size: int
    symmetric: bool
    convention: str | Convention
    row: Convention
    compute: np.dtype[Any]

    def call(self, does: str, nan: str, saturate: object) -> Call:
        """Return a call that takes parameters from ranges."""
        qtype, _, axes, block_size, symmetric, _, row, compute = self
        part, saturate = part_of(axes, block_size), validation.check_saturate(saturate)
        return call_of(does, row, qtype, symmetric, part, compute, axes, block_size, nan, saturate, True)


def _request(
    x: Array,
    dtype: object,
    axis: Axis,
    block_size: int,
    symmetric: bool,
    convention: str | Convention,
    bits: int | None,
) -> _Request:
    qtype = as_qtype(dtype)
    if bits is not None:
        qtype = qtype.with_bits(bits)
    axis, block_size = _granularity(qtype, axis, block_size)
    axes = kept_axes(axis, x.ndim)
    axis = axes if axes is None or isinstance(axis, tuple) else axes[0]
    if not isinstance(symmetric, bool | np.bool_):
        raise TypeError(f"symmetric must be a bool, not {symmetric!r}")
    if symmetric and qtype.bits == 1:
        raise ValueError(f"symmetric codes need at least 2 bits, and {qtype} has 1")
    always = bool(symmetric or qtype.element or qtype.block_size)
    row = as_convention(convention)
    row.check(qtype, always)
    return _Request(qtype, axis, axes, block_size, always, convention, row, validation.compute_dtype(x.dtype))


def _granularity(qtype: QType, axis: Axis, block_size: int) -> tuple[Axis, int]:
    """Return axis and block size, by default those that the format prescribes."""
    if not qtype.block_size:
        return axis, check_block_size(block_size, axis)
    if block_size not in (0, qtype.block_size):
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    axis = -1 if axis is None else axis
    return axis, check_block_size(qtype.block_size, axis)


def _filled(params: QParams | _Request, scale: Array, zero_point: Array, compute: np.dtype[Any]) -> QParams:
    what = (params.dtype, params.axis, params.block_size, params.symmetric, params.convention)
    return QParams(scale, zero_point, *what, computed=None if scale.dtype == compute else compute)


def _as_factor(tensor_scale: Array | None) -> float:
    """Return the scale of the whole array as a number, 0 where there is none."""
    return 0.0 if tensor_scale is None else float(tensor_scale)


# within these a scale of a block times that of the array, and the reciprocal of both, is a normal number
_TENSOR_SCALES = 2.0**-120, 2.0**119


def _tensor_scale(x: Array, request: _Request, nan: str) -> NDArray[np.float32] | None:
    """Return the scale of the whole array that makes its largest block scale the largest there is."""
    qtype, compute = request.dtype, request.compute
    if not qtype.has_tensor_scale:
        return None
    lo, hi, seen = _execute().minmax(x, None, 0, nan)
    _refuse_nan(seen, nan, x)
    largest = np.maximum(np.maximum(-lo.astype(compute), hi.astype(compute)), compute.type(0))
    if largest == np.inf:
        _refuse_infinite(HAS_INFINITE_RANGE, x)
    form = qtype.float_format
    assert form is not None
    least, most = _TENSOR_SCALES
    scale = largest / compute.type(FLOAT_FORMATS[qtype.scale_element].max * form.max)
    return np.array(1 if scale < least else min(scale, most), np.float32)


def _by_range(
    does: str,
    x: Array,
    result: Array,
    request: _Request,
    nan: str,
    saturate: bool,
    key: bytes,
    what: tuple[object, ...],
) -> QParams:
    call = request.call(does, nan, saturate)
    if x.size == 0:
        return _params_of_nothing(x, request, call.ranging)
    (source,) = validation.apart(result, x)
    tensor_scale = _tensor_scale(source, request, nan)
    scale, zero_point, seen = _execute().by_range(call, source, result, _as_factor(tensor_scale))
    if seen:
        _refuse_nan(seen, nan, source)
        _refuse_infinite(seen, source)
    params = _chosen(request, scale, zero_point, tensor_scale)
    if tensor_scale is None:
        known.remember_ranged(key, what, call, x, result, params)
    return params


def _ranged_again(key: bytes, x: Any, out: Array | None) -> tuple[Array, QParams] | None:
    """Do what was done before, with parameters from ranges; None if it was not, or something is wrong this time."""
    if (found := known.find(key)) is None:
        return None
    ranged, new_scale, new_zero_point, params = found.given
    result, scale, zero_point = found.new() if out is None else out, new_scale(), new_zero_point()
    if found.run(x, result, scale, zero_point, None, *ranged.begin()):
        return None
    return result, params.with_values(scale, zero_point)


def _chosen(request: _Request, scale: Array, zero_point: Array, tensor_scale: NDArray[np.float32] | None) -> QParams:
    """Return parameters as kernels wrote them, in the dtypes of the format."""
    qtype = request.dtype
    if qtype.scale_element:
        scale = scale.view(FLOAT_FORMATS[qtype.scale_element].dtype)
    zero_point = zero_point.view(qtype.storage) if qtype.element else zero_point
    params = _filled(request, scale, zero_point, request.compute)
    return replace(params, tensor_scale=tensor_scale, computed=None) if qtype.scale_element else params


def _checked(params: QParams, shape: tuple[int, ...], compute: np.dtype[Any]) -> QParams:
    """Return parameters that belong to an array of this shape, the scale in the compute type."""
    row = as_convention(params.convention)
    if params.dtype.scale_element:
        scale = validation.as_own_scale(params)
    else:
        scale = validation.as_scale(params.scale, row.scale_dtype(compute), row.signed_scale)
    if params.tensor_scale is not None:
        validation.check_tensor_scale(params, _TENSOR_SCALES)
    wanted = parameter_shape(shape, kept_axes(params.axis, len(shape)), params.block_size)
    validation.check_parameter_shape("qparams.scale", scale.shape, scale.size, wanted)
    zero_point = _zero_point_for(params.zero_point, params.dtype, scale, row)
    if scale is params.scale and zero_point is params.zero_point and compute == params.compute:
        return params
    computed = None if params.dtype.scale_element or scale.dtype == compute else compute
    return replace(params, scale=scale, zero_point=zero_point, computed=computed)


def _with_parameters(
    does: str,
    x: Array,
    result: Array,
    params: QParams,
    nan: str,
    saturate: bool,
    out: Array | None,
    key: bytes,
    what: tuple[object, ...],
) -> None:
    call, given = _call_with(does, params, x.ndim, nan, saturate), _parameters(params)
    _apply(call, x, result, given, out, nan)
    signed = as_convention(params.convention).signed_scale
    known.remember_given(key, what, call, x, result, given, params.dtype, signed)


def _apply(call: Call, x: Array, result: Array, given: Parameters, out: Array | None, nan: str) -> None:
    """Fill the result of x, which may be what the caller gave for it."""
    if not x.size:
        return
    scale, zero = given.scale, given.zero
    if out is not None:
        x, scale, zero = validation.apart(result, x, scale, zero)
    seen = _execute().apply(call, x, result, Parameters(in_bits(scale), in_bits(zero), given.tensor))
    if seen:
        _refuse_nan(seen, nan, x)


def _with_qparams(params: object, x: object, out: object, *options: object) -> tuple[Any, ...]:
    """Return the arguments of a call with QParams as `known.facts` takes them."""
    if not isinstance(params, QParams):
        raise TypeError(f"qparams must be QParams, as choose_qparams returns them, not {type(params).__name__}")
    place = params.dtype, params.axis, params.block_size, params.symmetric, params.convention
    return x, out, params.scale, params.zero_point, *options, *place, params.tensor_scale, params.computed


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
    return QTYPES.get(dtype.newbyteorder("=").name)


def _zero_point_for(zero_point: object, qtype: QType, scale: Array, row: Convention) -> Array:
    if zero_point is None:
        return np.zeros(scale.shape, row.zero_point_dtype(qtype, scale.dtype))
    if row.zero_point == "integer":
        return validation.as_zero_point(zero_point, qtype, scale.shape)
    return validation.as_float_zero_point(zero_point, scale.dtype, scale.shape)


def _place(x: Array, scale: Array, axis: Axis, block_size: int) -> tuple[tuple[int, ...] | None, int]:
    """Axes and block size that raw parameters belong to; one number belongs to the whole array."""
    block_size = check_block_size(block_size, axis)
    if scale.size == 1:
        return None, 0
    axes = kept_axes(axis, x.ndim)
    wanted = parameter_shape(x.shape, axes, block_size)
    validation.check_parameter_shape("scale", scale.shape, scale.size, wanted)
    return axes, block_size


def _codes_for(x: Array, qtype: QType, out: Array | None) -> Array:
    """Where to write codes."""
    if qtype.packed:
        shape, storage = packed_shape(x.shape, qtype), np.dtype(np.uint8)
        return result_pool.empty(shape, storage) if out is None else validation.check_out(out, shape, storage)
    if out is None:
        return result_pool.empty_like(x, qtype.storage)
    return validation.check_out(out, x.shape, qtype.storage)


def _shape_of_nothing(x: Array, axes: tuple[int, ...] | None, block_size: int) -> tuple[int, ...]:
    shape = parameter_shape(x.shape, axes, block_size)
    if math.prod(shape):
        raise ValueError(f"x has shape {x.shape}: the range of no elements has no minimum and no maximum")
    return shape


def _params_of_nothing(x: Array, request: _Request, ranging: Ranging) -> QParams:
    shape = _shape_of_nothing(x, request.axes, request.block_size)
    scale, zero_point = np.empty(shape, ranging.steps), np.empty(shape, ranging.zeros)
    tensor_scale = np.ones((), np.float32) if request.dtype.has_tensor_scale else None
    return _chosen(request, scale, zero_point, tensor_scale)


def _refuse_nan(seen: int, nan: str, x: Array) -> None:
    if seen & HAS_NAN and nan == "raise":
        count, _ = _execute().count_not_finite(x)
        raise ValueError(f"x has {count} NaN; pass nan='zero' to take them for 0.0")


def _refuse_infinite(seen: int, x: Array) -> None:
    if seen & HAS_INFINITE_RANGE:
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
