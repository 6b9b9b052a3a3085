"""Measure: the public functions that reduce arrays to ranges and errors."""

from __future__ import annotations

from numpy.typing import ArrayLike

from fastq.dispatch.cache import call
from fastq.results import Axis, Comparison, QuantizedArray
from fastq.system.arguments import as_array, is_a, is_lazy
from fastq.system.dtypes import Array


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
    result: tuple[Array, Array] = call(
        "minmax", x, None, None, None, None, (axis, block_size, nan), (type(axis), type(block_size))
    )
    return result


def magnitudes(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest magnitude but 0 and the largest one: what a float format has to hold, in one pass.

    Divided by a scale, they say what becomes 0 and what is clipped: float8_e4m3fn holds numbers from 2**-9 to 448.

    Parameters
    ----------
    x : array_like
        Of float16, bfloat16, float32 or float64; may hold infinities.
    axis, block_size
        What is kept, as in `quantize`: each channel or block has magnitudes of its own.
    nan : {"raise", "zero"}
        Refuse NaN, or take it for 0.0.

    Returns
    -------
    smallest, largest : ndarray
        Of x's dtype, shape as the scale of `quantize`; both 0 where all elements are.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, x has NaN (unless ``nan="zero"``), or nothing to take a magnitude of.

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
    if not is_a(q, QuantizedArray):
        result: Comparison = call("compare_values", x, q if is_lazy(x) else as_array(q, "q"), None, None, None, ())
        return result
    p, codes = q.qparams, q.codes if is_lazy(x) else as_array(q.codes, "q.codes")
    errors: Comparison = call("compare_codes", x, codes, p.scale, p.zero_point, p, (p.key,), (), q.shape)
    return errors
