"""Map axis and block size to parameters: their shape, the range of each, and one for each element."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.qtypes import QType
from fastq.results import Axis
from fastq.system.arguments import as_axis, as_block_size, within_array

Array = NDArray[Any]


def normalized(axis: Axis, ndim: int, array: str) -> Axis:
    """Return axis with its indices counted from the front, those of a tuple in order; AxisError if there is none."""
    axis = as_axis(axis)
    if axis is None:
        return None
    return within_array(axis, ndim, array) if isinstance(axis, tuple) else within_array((axis,), ndim, array)[0]


def prescribed(qtype: QType, axis: Axis, block_size: int) -> tuple[Axis, int]:
    """Return axis and block size, by default those that the format prescribes."""
    axis = as_axis(axis)
    block_size = as_block_size(block_size, -1 if qtype.block_size and axis is None else axis)
    if not qtype.block_size:
        return axis, block_size
    if block_size not in (0, qtype.block_size):
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    axis = -1 if axis is None else axis
    return axis, as_block_size(qtype.block_size, axis)


def _kept(axis: Axis) -> tuple[int, ...]:
    return () if axis is None else axis if isinstance(axis, tuple) else (axis,)


def parameter_shape(shape: tuple[int, ...], axis: Axis, block_size: int) -> tuple[int, ...]:
    """Return the shape of the parameters of an array of shape `shape`; `axis` is normalised."""
    if block_size:
        return tuple(-(-n // block_size) if a == axis else n for a, n in enumerate(shape))
    return tuple(shape[a] for a in _kept(axis))


def spread(params: Array, shape: tuple[int, ...], axis: Axis, block_size: int) -> Array:
    """Return `params` in a shape that broadcasts with an array of shape `shape`."""
    if params.size == 1:
        return params.reshape(())
    if 0 in shape:  # of another axis there may be more indices than memory holds
        return np.empty(shape, params.dtype)
    axis = normalized(axis, len(shape), "the values")
    if block_size:
        (along,) = _kept(axis)
        return params.take(np.arange(shape[along]) // block_size, along)
    return params.reshape([n if a in _kept(axis) else 1 for a, n in enumerate(shape)])


def extremes(x: Array, axis: Axis, block_size: int) -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range, never -0.0; `axis` is normalised."""
    shape = parameter_shape(x.shape, axis, block_size)
    if 0 in shape:  # no ranges, which NumPy's min refuses like a range of nothing
        return np.zeros(shape, x.dtype), np.zeros(shape, x.dtype)
    if x.size == 0:
        raise ValueError(f"x has shape {x.shape}: the range of no elements has no minimum and no maximum")
    lo, hi = (_reduced(ufunc, x, axis, block_size) for ufunc in (np.minimum, np.maximum))
    zero = x.dtype.type(0)
    return np.asarray(lo + zero), np.asarray(hi + zero)


def sums(x: Array, axis: Axis, block_size: int) -> Array:
    """Return the sum of each range; of whole numbers below 2**53 in any order."""
    return _reduced(np.add, x, axis, block_size)


def any_flag(flags: NDArray[np.bool_], axis: Axis, block_size: int) -> Array:
    """Return for each range whether a flag in it is set."""
    shape = parameter_shape(flags.shape, axis, block_size)
    return np.zeros(shape, bool) if 0 in shape else _reduced(np.logical_or, flags, axis, block_size)


def _reduced(ufunc: np.ufunc, x: Array, axis: Axis, block_size: int) -> Array:
    kept = _kept(axis)
    if block_size:
        return ufunc.reduceat(x, np.arange(0, x.shape[kept[0]], block_size), kept[0])
    return np.asarray(ufunc.reduce(x, axis=tuple(a for a in range(x.ndim) if a not in kept)))
