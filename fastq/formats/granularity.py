"""Granularity: the elements of an array that share a scale and a zero point."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from fastq.system.arguments import as_axis, as_block_size, shown

Axis = int | tuple[int, ...] | None
Shape = tuple[int, ...]
_MOST_CHOICES = 1000  # of axes that a message looks at


class Granularity(NamedTuple):
    """The elements of an array that share parameters.

    Examples
    --------
    >>> Granularity().parameter_shape((8, 100)), Granularity((0,)).parameter_shape((8, 100))
    ((), (8,))
    >>> Granularity((1,), 32).parameter_shape((8, 100))
    (8, 4)
    """

    # the axes with their own parameters, sorted and not negative; None: one set for the array. With a `block_size`, the
    # one axis along which blocks run
    axes: tuple[int, ...] | None = None
    # elements in a block; the last one of each row may be shorter. 0: no blocks
    block_size: int = 0

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes with their own parameters; empty for the whole array."""
        return self.axes or ()

    def parameter_axes(self, ndim: int) -> tuple[int, ...]:
        """Return the axes of an array that its parameters have, too."""
        return tuple(range(ndim)) if self.block_size else self.axes or ()

    def parameter_shape(self, shape: Shape) -> Shape:
        """Return the shape of scale and zero point, for an array of a shape."""
        axes = self.axes or ()
        if not self.block_size:
            return tuple(map(shape.__getitem__, axes))
        axis = axes[0]
        return (*shape[:axis], -(-shape[axis] // self.block_size), *shape[axis + 1 :])

    def in_order(self, order: tuple[int, ...]) -> Granularity:
        """Return the granularity of a transposed array."""
        return self if self.axes is None else self._replace(axes=tuple(sorted(map(order.index, self.axes))))


ARRAY = Granularity()


def axes_from_front(axes: tuple[int, ...], ndim: int, array: str) -> tuple[int, ...]:
    """Return axes, which may count from the end, counted from the front and in order: of 3 axes (-1, 0) are (0, 2).

    `array` is what messages call the array.
    """
    for axis in axes:
        if not -ndim <= axis < ndim:
            raise np.exceptions.AxisError(axis, ndim, f"axis of {array}")
    from_front = sorted(axis % ndim for axis in axes)
    if len(set(from_front)) < len(from_front):
        raise ValueError(f"axis must name each axis once, not {shown(axes)} of {ndim}")
    return tuple(from_front)


def as_granularity(axis: Any, block_size: Any, ndim: int) -> Granularity:
    """Return the granularity for a caller's axis and block size, for x of `ndim` axes."""
    axis = as_axis(axis)
    return granularity(axis, as_block_size(block_size, axis), ndim)


@functools.lru_cache(1024)
def granularity(axis: Axis, block_size: int, ndim: int, array: str = "x") -> Granularity:
    """Return the granularity of an axis and a block size that fit each other."""
    if axis is None:
        return ARRAY
    return Granularity(axes_from_front(axis if isinstance(axis, tuple) else (axis,), ndim, array), block_size)


def axes_that_fit(parameters: Shape, shape: Shape, array: str, block_size: int = 0) -> str:
    """Return the end of an error message: which axes of an array have the lengths, or the blocks, of its parameters."""
    if any(map(math.isnan, shape)):  # to dask
        return f"name it with axis; {array} has chunks of unknown sizes: call {array}.compute_chunk_sizes() first"
    if block_size:
        ways = [Granularity((axis,), block_size) for axis in range(len(shape))]
        spelled = [f"axis={way.kept[0]}" for way in ways if way.parameter_shape(shape) == parameters]
        if not spelled:
            return f"no axis of {array}, of shape {shape}, has such blocks"
        return f"pass {' or '.join(spelled)}, along which {array}, of shape {shape}, has such blocks"
    if math.comb(len(shape), len(parameters)) > _MOST_CHOICES:
        return f"name the axes of {array}, of shape {shape}, that have such lengths"
    choices = itertools.combinations(range(len(shape)), len(parameters))
    fitting = [axes for axes in choices if _have(axes, shape, parameters)]
    spelled = [f"axis={axes[0] if len(axes) == 1 else axes}" for axes in fitting]
    if not spelled:
        return f"no axes of {array}, of shape {shape}, have such lengths"
    lengths = " and ".join(map(str, parameters))
    return f"pass {' or '.join(spelled)}, of length {lengths} in {array}, of shape {shape}"


def _have(axes: tuple[int, ...], shape: Shape, lengths: Shape) -> bool:
    """Return whether these axes of an array have these lengths."""
    return all(shape[axis] == length for axis, length in zip(axes, lengths, strict=True))


def kind_of(axis: object, block_size: int) -> str:
    """Return "array", "channels" or "blocks", the condition of variants for this granularity."""
    return "blocks" if block_size else "array" if axis is None else "channels"
