"""Map parameters to elements: the range of each, and one for each element."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastq.formats.granularity import Axis, Granularity, granularity
from fastq.requests.quantization import shape_of_ranges
from fastq.system.dtypes import Array


def broadcast_to_parts(params: Array, shape: tuple[int, ...], axis: Axis, block_size: int) -> Array:
    """Return `params` in a shape that broadcasts with an array of shape `shape`."""
    # contract 3.1
    if params.size == 1:
        return params.reshape(())
    if 0 in shape:  # along another axis there may be more indices than memory holds
        return np.empty(shape, params.dtype)
    kept = granularity(axis, block_size, len(shape), "the values").kept
    if block_size:
        (along,) = kept
        return params.take(np.arange(shape[along]) // block_size, along)
    return params.reshape([n if a in kept else 1 for a, n in enumerate(shape)])


def extremes(x: Array, parts: Granularity) -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range, never -0.0."""
    shape = shape_of_ranges(x.shape, parts)
    if 0 in shape:  # no ranges, which NumPy's min refuses like a range of nothing
        return np.zeros(shape, x.dtype), np.zeros(shape, x.dtype)
    lo, hi = (_reduce(ufunc, x, parts) for ufunc in (np.minimum, np.maximum))
    zero = x.dtype.type(0)
    return np.asarray(lo + zero), np.asarray(hi + zero)


def sums(x: Array, axis: Axis, block_size: int) -> Array:
    """Return the sum of each range; of whole numbers below 2**53 in any order."""
    return _reduce(np.add, x, granularity(axis, block_size, x.ndim))


def any_flag(flags: NDArray[np.bool_], parts: Granularity) -> Array:
    """Return for each range whether a flag in it is set."""
    shape = parts.parameter_shape(flags.shape)
    return np.zeros(shape, bool) if 0 in shape else _reduce(np.logical_or, flags, parts)


def _reduce(ufunc: np.ufunc, x: Array, parts: Granularity) -> Array:
    """Reduce the elements of each range: blocks along the one axis that is kept, or all axes that are not kept."""
    kept = parts.kept
    if parts.block_size:
        return ufunc.reduceat(x, np.arange(0, x.shape[kept[0]], parts.block_size), kept[0])
    return np.asarray(ufunc.reduce(x, axis=tuple(a for a in range(x.ndim) if a not in kept)))
