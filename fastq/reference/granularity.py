"""Map axis and block size to parameters: their shape, the range of each, and one for each element."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.qtypes import QType
from fastq.reference.arguments import is_integer
from fastq.results import Axis

Array = NDArray[Any]


def check_granularity(axis: Axis, block_size: int) -> None:
    """Raise TypeError or ValueError unless axis and block size are integers that go together."""
    for a in axis if isinstance(axis, tuple) else () if axis is None else (axis,):
        if not is_integer(a):
            raise TypeError(f"axis must be None, an integer or a tuple of integers, not {axis!r}")
    if not is_integer(block_size):
        raise TypeError(f"block_size must be an integer, not {block_size!r}")
    if block_size < 0:
        raise ValueError(f"block_size must not be negative, not {block_size}")
    if block_size and not is_integer(axis):
        raise TypeError(f"block_size needs an integer axis, not {axis!r}")


def normalized_index(axis: int, ndim: int) -> int:
    """Return an axis counted from the front; AxisError if the array has no such axis."""
    if not is_integer(axis):
        raise TypeError(f"axis must be an integer, not {axis!r}")
    if not -ndim <= axis < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    return int(axis) % ndim


def normalized(axis: Axis, block_size: int, ndim: int) -> Axis:
    """Return axis with its indices counted from the front, those of a tuple in order."""
    check_granularity(axis, block_size)
    if axis is None:
        return None
    if not isinstance(axis, tuple):
        return normalized_index(axis, ndim)
    kept = sorted(normalized_index(a, ndim) for a in axis)
    if len(set(kept)) < len(kept):
        raise ValueError(f"axis has duplicates: {axis}")
    return tuple(kept)


def prescribed(qtype: QType, axis: Axis, block_size: int) -> tuple[Axis, int]:
    """Return axis and block size, by default those that the format prescribes."""
    if not qtype.block_size:
        return axis, block_size
    if block_size not in (0, qtype.block_size):
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    return (-1 if axis is None else axis), qtype.block_size


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
    axis = normalized(axis, block_size, len(shape))
    if block_size:
        (along,) = _kept(axis)
        return params.take(np.arange(shape[along]) // block_size, along)
    return params.reshape([n if a in _kept(axis) else 1 for a, n in enumerate(shape)])


def extremes(x: Array, axis: Axis, block_size: int) -> tuple[Array, Array]:
    """Return the smallest and the largest element of each range, never -0.0; `axis` is normalised."""
    shape = parameter_shape(x.shape, axis, block_size)
    if 0 in shape:  # no ranges, which NumPy's min refuses like a range of nothing
        return np.zeros(shape, x.dtype), np.zeros(shape, x.dtype)
    if not x.size:
        raise ValueError(f"x has shape {x.shape}: the range of no elements has no minimum and no maximum")
    lo, hi = (_reduced(ufunc, x, axis, block_size) for ufunc in (np.minimum, np.maximum))
    zero = x.dtype.type(0)
    return np.asarray(lo + zero), np.asarray(hi + zero)


def any_flag(flags: NDArray[np.bool_], axis: Axis, block_size: int) -> Array:
    """Return for each range whether a flag in it is set."""
    shape = parameter_shape(flags.shape, axis, block_size)
    return np.zeros(shape, bool) if 0 in shape else _reduced(np.logical_or, flags, axis, block_size)


def _reduced(ufunc: np.ufunc, x: Array, axis: Axis, block_size: int) -> Array:
    kept = _kept(axis)
    if block_size:
        return ufunc.reduceat(x, np.arange(0, x.shape[kept[0]], block_size), kept[0])
    return np.asarray(ufunc.reduce(x, axis=tuple(a for a in range(x.ndim) if a not in kept)))
