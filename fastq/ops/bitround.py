"""Round: the public functions that keep the bits of floats with information."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from fastq.plan.cache import call
from fastq.results import BitInformation


def bitround(
    x: ArrayLike,
    *,
    keepbits: int | None = None,
    digits: int | None = None,
    max_error: float | None = None,
    convention: str = "numcodecs",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Round floats to fewer bits and set the other bits of their significands to 0, so that compressors work.

    The results are ordinary floats, which need no decoding. NaN keeps all its bits, and infinities stay.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, float32 or float64, of any shape and memory layout.
    keepbits : int, optional
        Number of mantissa bits to keep, from 0 to 10, 23 or 52; the leading bit, which is not stored, does not count.
        Each element becomes the nearest float with only these bits. Give one of `keepbits`, `digits` and `max_error`.
    digits : int, optional
        Number of significant decimal digits to keep: 1 to 3, 7 or 15. Each element keeps the number of bits that
        Granular BitRound of netCDF-C gives it.
    max_error : float, optional
        Largest absolute error of finite elements. The fewest bits are kept that guarantee it for every number up to the
        largest finite magnitude M of x, ``2**(floor(log2(M)) - keepbits - 1) <= max_error``, and for which M stays
        finite.
    convention : {"numcodecs", "netcdf"}
        How ties are rounded: "numcodecs" takes the float whose last kept bit is 0, like numcodecs, xbitinfo and
        BitInformation.jl; "netcdf" rounds away from zero, like netCDF-C.
    out : ndarray, optional
        Array to write to, with the dtype and shape of x. ``out=x`` rounds in place.

    Returns
    -------
    ndarray
        Floats with the dtype, shape and memory order of x, or `out`. Numbers that are rounded up beyond the largest
        finite number become infinite, as in IEEE 754.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or not exactly one of `keepbits`, `digits` and `max_error` is given.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.array([3.14159265, 1000.2, np.nan], np.float32)
    >>> fastq.bitround(x, keepbits=7)
    array([   3.140625, 1000.      ,        nan], dtype=float32)
    >>> fastq.bitround(x, digits=3, out=x)
    array([   3.140625, 1000.      ,        nan], dtype=float32)
    """
    options, types = (keepbits, digits, max_error, convention), (type(keepbits), type(digits), type(max_error))
    result: NDArray[Any] = call("bitround", x, out, None, None, None, options, types)
    return result


def bit_information(x: ArrayLike, *, axis: int = -1) -> BitInformation:
    """Count the bits of neighbouring floats to find how much information each bit has.

    The information is the mutual information of each bit and the same bit of the next element, as defined by Kloewer et
    al. (2021) and computed by xbitinfo. Bits are counted in one pass. A dask array is computed at once, chunk by chunk,
    including the pairs across chunks.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, float32 or float64, of any shape and memory layout. Pairs with NaN are left out.
    axis : int
        The axis along which elements are neighbours.

    Returns
    -------
    BitInformation
        Counts of the bits. Pass its ``keepbits(0.99)`` to `bitround`; the sum of two results has the pairs of both.

    Raises
    ------
    TypeError, AxisError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.sin(np.linspace(0, 9, 10_000)).astype(np.float32)
    >>> found = fastq.bit_information(x)
    >>> found
    <BitInformation: 9,999 pairs of float32, keepbits(0.99) = 8>
    >>> fastq.bitround(x, keepbits=found.keepbits(0.99)).dtype
    dtype('float32')
    """
    result: BitInformation = call("bit_information", x, None, None, None, None, (axis,), (type(axis),))
    return result
