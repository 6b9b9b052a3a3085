"""Quantize: the public functions that turn values into codes."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, DTypeLike

from fastq.dispatch.cache import call
from fastq.formats.conventions import Convention
from fastq.formats.qtypes import QType
from fastq.formats.range_methods import MSERange
from fastq.requests.noise import noise_of
from fastq.requests.values import as_qparams, check_beside_qparams
from fastq.results import Axis, QParams, QuantizedArray
from fastq.system.dtypes import Array


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
    range: str | MSERange = "minmax",
    importance: ArrayLike | None = None,
    rounding: str | None = None,
    rng: Any = None,
) -> QuantizedArray:
    """Quantize an array, with parameters computed from it or given.

    ``codes = saturate(rint(x / scale) + zero_point)``, ties to even, or as the convention has it, with the parameters
    of `choose_qparams`; where a block fits the cache it is read once.

    Parameters
    ----------
    x : array_like
        Of float16, bfloat16, float32, float64 or an integer dtype, any shape and memory layout.
    dtype : str, QType or dtype
        The code format: "int8", "uint4", "float8_e4m3fn", "nf4", "mxfp4" or another of ``fastq.formats.qtypes.QTYPES``.
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
    range : {"minmax", "mse", "mse-llm-compressor"} or MSERange
        All of what each parameter belongs to, from minimum to maximum; or of several smaller and larger ranges the one
        that has the least error of the round trip: see `MSERange`. "mse-llm-compressor" tries other ones.
    importance : array_like, optional
        What the squared error of an element counts where the range is searched for, as the mean of squares of the
        activations that a column meets: a weight, finite and not negative, for each element of the axis along which
        blocks run, else of the last axis whose elements share parameters; or an array of x's shape. Of what a
        parameter belongs to only the ratios of weights count.
    rounding : {None, "stochastic"}
        To the nearest code, as the convention has it; or to either neighbour at random, to the upper one with the
        probability of the distance from the lower one, so that means stay what they are. Which one depends on `rng`
        and the element's index in the array alone: not on threads, memory layout, chunks or CPU. Parameters are the
        same. Not for codes of tables, such as "nf4".
    rng : None, int, SeedSequence, BitGenerator or Generator
        The seed of "stochastic", as ``numpy.random.default_rng`` takes it: an int gives the same codes at each call, a
        generator others, for which it is advanced; None draws a seed from the system.

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
    >>> fastq.quantize_linear(np.full(8, 0.25), 1.0, 0, "int8", rounding="stochastic", rng=1)  # 2 of 8, on average
    array([0, 0, 0, 1, 1, 1, 0, 0], dtype=int8)
    """
    noise = None if rounding is None and rng is None else noise_of(rounding, rng)
    if qparams is None:
        options = axis, block_size, symmetric, saturate, bits, dtype, convention, nan, range, rounding
        types = type(axis), type(block_size), type(symmetric), type(saturate), type(bits)
        result: QuantizedArray = call("quantize", x, out, importance, None, None, options, types, None, noise)
        return result
    check_beside_qparams(dtype, axis, block_size, symmetric, convention, bits, range, importance)
    p = as_qparams(qparams)
    given = saturate, nan, p.key, rounding
    codes: QuantizedArray = call(
        "quantize_with_qparams", x, out, p.scale, p.zero_point, p, given, (type(saturate),), None, noise
    )
    return codes


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
    range: str | MSERange = "minmax",
    importance: ArrayLike | None = None,
) -> QParams:
    """Return the scale and zero point that `quantize` would take from an array.

    With lo = min(x, 0) and hi = max(x, 0) of what one parameter belongs to: asymmetric, ``scale = (hi - lo) / (qmax -
    qmin)`` and ``zero_point = clamp(rint(qmin - lo / scale))``, as ONNX's DynamicQuantizeLinear; symmetric, ``scale =
    max(-lo, hi) / h`` with h codes on either side of the middle one; 1 where all is zero. Other conventions: see
    `Convention`.

    Parameters
    ----------
    x, dtype, axis, block_size, symmetric, convention, nan, bits, range, importance
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
    options = axis, block_size, symmetric, True, bits, dtype, convention, nan, range
    types = type(axis), type(block_size), type(symmetric), bool, type(bits)
    result: QParams = call("choose_qparams", x, None, importance, None, None, options, types)
    return result


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
    rounding: str | None = None,
    rng: Any = None,
) -> Array:
    """Quantize with raw parameters: ``saturate(rint(x / scale) + zero_point)``, the QuantizeLinear operator of ONNX.

    Parameters
    ----------
    x : array_like
        Of float16, bfloat16, float32, float64 or an integer dtype.
    scale : array_like of float
        Positive and finite; powers of two in float8_e8m0fnu and int32 are taken too. One number of any shape for the
        whole array, else shape (C,) for a channel axis, the kept dimensions for a tuple of axes, or x's rank: with
        ``ceil(D / block_size)`` on the block axis, or with 1 on the axes that have none, whatever `axis` is then.
    zero_point : array_like of int, optional
        Codes of 0.0, the scale's shape or one number; None for zero.
    dtype : str, QType or dtype, optional
        The code format; by default that of `zero_point`, else that of `out`, else "uint8" as in ONNX.
    axis : int, tuple of int or None
        As in `quantize`; not looked at where scale is one number.
    block_size : int
        As in `quantize`.
    convention, nan, saturate, out, rounding, rng
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
    noise = None if rounding is None and rng is None else noise_of(rounding, rng)
    options = axis, block_size, saturate, dtype, convention, nan, rounding
    types = type(axis), type(block_size), type(saturate)
    result: Array = call("quantize_linear", x, out, scale, zero_point, None, options, types, None, noise)
    return result


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
    range: str | MSERange = "minmax",
    importance: ArrayLike | None = None,
    rounding: str | None = None,
    rng: Any = None,
) -> Array:
    """Quantize and dequantize in one pass: the values that the codes of x would stand for.

    Parameters
    ----------
    x, dtype, qparams, axis, block_size, symmetric, convention, nan, saturate
        As in `quantize`.
    out : ndarray, optional
        Where to write: x's shape and the result's dtype; may be x itself, which costs a copy of it.
    bits, range, importance, rounding, rng
        As in `quantize`.

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
    noise = None if rounding is None and rng is None else noise_of(rounding, rng)
    if qparams is None:
        options = axis, block_size, symmetric, saturate, bits, dtype, convention, nan, range, rounding
        types = type(axis), type(block_size), type(symmetric), type(saturate), type(bits)
        result: Array = call("fake_quantize", x, out, importance, None, None, options, types, None, noise)
        return result
    check_beside_qparams(dtype, axis, block_size, symmetric, convention, bits, range, importance)
    p = as_qparams(qparams)
    given = saturate, nan, p.key, rounding
    values: Array = call(
        "fake_quantize_with_qparams", x, out, p.scale, p.zero_point, p, given, (type(saturate),), None, noise
    )
    return values
