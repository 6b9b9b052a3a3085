"""Round: the public functions that keep as many bits of floats as they have information."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from fastq.dispatch.cache import call
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
    """Round floats to fewer bits of their significands, the rest of which are zeros, so that compressors work.

    What is returned are floats as any others: nothing decodes them. NaN stays NaN with all its bits, infinities stay.

    Parameters
    ----------
    x : array_like
        Of float16, float32 or float64, any shape and memory layout.
    keepbits : int, optional
        How many bits of the mantissa are kept, those after the leading one, which is not stored: each element is the
        nearest float that has only these. 0 to 10, 23 or 52. One of this, `digits` and `max_error` is to be given.
    digits : int, optional
        How many significant decimal digits are kept: 1 to 3, 7 or 15. Each element keeps as many bits as Granular
        BitRound of netCDF-C gives it.
    max_error : float, optional
        How far finite elements may be off. What is kept are the fewest bits for which that is so of any number up to
        the largest finite magnitude M of x, ``2**(floor(log2(M)) - keepbits - 1) <= max_error``, and for which M stays
        finite.
    convention : {"numcodecs", "netcdf"}
        Where a tie goes: to the float whose last kept bit is 0, as in numcodecs, xbitinfo and BitInformation.jl, or
        away from zero, as in netCDF-C.
    out : ndarray, optional
        Where to write: of x's dtype and shape. ``out=x`` rounds in place.

    Returns
    -------
    ndarray
        Of x's dtype and shape, in its memory order, or `out`. What is rounded up beyond the largest finite number is
        infinite, as IEEE 754 has it.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or not one of `keepbits`, `digits` and `max_error` is given.

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
    """Count the bits of neighbouring floats, to find how much information each bit has: which ones to keep.

    The mutual information of each bit and the same bit of the next element, as Kloewer et al. (2021) define it and
    xbitinfo computes it. Bits are counted in one pass; those of a dask array chunk by chunk, at once, with the pairs
    across chunks.

    Parameters
    ----------
    x : array_like
        Of float16, float32 or float64, any shape and memory layout. Pairs with NaN are left out.
    axis : int
        Along which elements are neighbours.

    Returns
    -------
    BitInformation
        Its ``keepbits(0.99)`` are the bits for `bitround`; a sum of two is that of all pairs of both.

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
