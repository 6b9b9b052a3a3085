"""Measure: the public functions that reduce arrays to ranges and errors."""

from __future__ import annotations

from numpy import ndarray
from numpy.typing import ArrayLike

from fastq.plan.cache import call
from fastq.results import Axis, Comparison, QuantizedArray
from fastq.results.measures import Totals
from fastq.system import lazy
from fastq.system.arguments import as_array, has_named_dimensions, is_a, is_lazy
from fastq.system.dtypes import Array


def minmax(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest and the largest element, both in one pass.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype; may have infinities.
    axis, block_size
        As in `quantize`: each channel or block has its own minimum and maximum.
    nan : {"raise", "zero"}
        What to do with NaN: "raise" refuses it, "zero" treats it as 0.0.

    Returns
    -------
    lo, hi : ndarray
        Minima and maxima in the dtype of x and the shape of the scale of `quantize`; -0.0 is returned as 0.0.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, x has NaN (unless ``nan="zero"``), or a part is empty and has no minimum.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.minmax(np.array([[3, 1], [-2, 5]], np.int32), axis=0)
    (array([ 1, -2], dtype=int32), array([3, 5], dtype=int32))
    """
    result: tuple[Array, Array] = call(
        "minmax", x, None, None, None, None, (axis, block_size, nan), (type(axis), type(block_size))
    )
    return result


def magnitudes(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest nonzero and the largest magnitude in one pass: the range that a float format must cover.

    Divided by a scale, they show whether numbers become 0 or are clipped: float8_e4m3fn has numbers from 2**-9 to 448.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32 or float64; may have infinities.
    axis, block_size
        As in `quantize`: each channel or block has its own magnitudes.
    nan : {"raise", "zero"}
        What to do with NaN: "raise" refuses it, "zero" treats it as 0.0.

    Returns
    -------
    smallest, largest : ndarray
        Magnitudes in the dtype of x and the shape of the scale of `quantize`; both are 0 if all elements are 0.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, x has NaN (unless ``nan="zero"``), or a part is empty and has no magnitude.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.magnitudes(np.array([[-3.0, 0.0], [0.5, 8.0]], np.float32), axis=0)
    (array([3. , 0.5], dtype=float32), array([3., 8.], dtype=float32))
    """
    result: tuple[Array, Array] = call(
        "magnitudes", x, None, None, None, None, (axis, block_size, nan), (type(axis), type(block_size))
    )
    return result


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Measure the errors of an approximation of an array, in one pass and without temporaries.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype.
    q : QuantizedArray or array_like
        The approximation: codes of x, or an array of floats of x's shape. If both have labels, as DataArrays of
        xarray, these decide which elements belong together: dimensions may be in another order, coordinates must agree.

    Returns
    -------
    Comparison
        Errors in float64. Sums are computed in memory order, so that threads do not change a bit.

    Raises
    ------
    TypeError, ValueError
        If shapes or labels differ, x is empty or has NaN, or a dtype is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.array([0.0, 0.5, 1.0], np.float32)
    >>> fastq.compare(x, np.array([0.0, 0.25, 1.0], np.float32)).max_abs_error
    0.25
    """
    if type(x) is not ndarray and has_named_dimensions(x):
        x, q = lazy.module("fastq.adapters.xarray.labelled").matched(x, q)
    if not is_a(q, QuantizedArray):
        result: Comparison = call("compare_values", x, q if is_lazy(x) else as_array(q, "q"), None, None, None, ())
        return result
    p, codes = q.qparams, q.codes if is_lazy(x) else as_array(q.codes, "q.codes")
    errors: Comparison = call("compare_codes", x, codes, p.scale, p.zero_point, p, (p.key,), (), q.shape)
    return errors


def totals(x: Array, q: Array) -> Totals:
    """Return the sums of the errors of values in a part of an array, for `comparison_of`."""
    sums: Totals = call("totals_of_values", x, q, None, None, None, ())
    return sums
