"""Memory order: arrays as kernels take them, and tiles of what is not contiguous."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.granularity import make_layout
from fastq.dispatch.spec import Call

Array = NDArray[Any]

# elements that a tile of strided input holds: 1 MiB of float32, half the L2 cache of a current core
TILE = 1 << 18


def is_plain(x: Array) -> bool:
    """Whether kernels can work on an array in C order as it is."""
    flags = x.flags
    return flags.c_contiguous and flags.aligned and x.dtype.isnative


def _order(x: Array) -> tuple[int, ...] | None:
    """Axes from the slowest to the fastest in memory, if x is contiguous in that order."""
    if not x.flags.aligned or not x.dtype.isnative:
        return None
    order = tuple(sorted(range(x.ndim), key=lambda axis: -x.strides[axis]))
    return order if x.transpose(order).flags.c_contiguous else None


def _common_order(x: Array, out: Array | None) -> tuple[int, ...] | None:
    order = _order(x)
    if order is None or out is None:
        return order
    direct = out.flags.aligned and out.dtype.isnative and out.transpose(order).flags.c_contiguous
    return order if direct else None


class View:
    """Arrays as kernels take them, and the way back for parameters.

    `x` and `out` are transposed so that the layout fits; `direct` says that both are contiguous then, so that kernels
    can work on them in place. Parameters are C-contiguous in the order of the transposed axes.
    """

    def __init__(self, x: Array, out: Array | None, axes: tuple[int, ...] | None, block_size: int) -> None:
        self.axes, self.block_size = axes, block_size
        if is_plain(x) and (out is None or is_plain(out)):  # the short way, for small arrays
            layout = make_layout(x.shape, axes, block_size)
            if layout is not None:
                self.x, self.out, self.transposed_axes, self.layout = x, out, axes, layout
                self.natural = self.direct = True
                return
        order = _common_order(x, out)
        self.direct = order is not None
        if not self._arrange(x, out, order or tuple(range(x.ndim))):
            self.direct = False
            self._arrange(x, out, tuple(sorted(range(x.ndim), key=lambda axis: axis not in (axes or ()))))

    def _arrange(self, x: Array, out: Array | None, order: tuple[int, ...]) -> bool:
        self.natural = order == tuple(range(x.ndim))
        self.order = order
        axes = self.axes
        if not self.natural:
            x = x.transpose(order)
            out = None if out is None else out.transpose(order)
            axes = None if axes is None else tuple(sorted(order.index(axis) for axis in axes))
        self.x, self.out, self.transposed_axes = x, out, axes
        layout = make_layout(x.shape, axes, self.block_size)
        if layout is None:
            return False
        self.layout = layout
        return True

    def seen_by(self, call: Call) -> Call:
        """Return the call with its axes as they are here."""
        return call if self.transposed_axes == call.axes else _transposed(call, self.transposed_axes)

    def _parameter_order(self) -> tuple[int, ...]:
        if self.axes is None:
            return ()
        if self.block_size:
            return self.order
        return tuple(self.axes.index(axis) for axis in self.order if axis in self.axes)

    def to_kernel(self, parameters: Array) -> Array:
        """Parameters of the caller's shape as kernels take them."""
        if self.natural or parameters.ndim < 2 or parameters.size == 1:
            return np.ascontiguousarray(parameters)
        return np.ascontiguousarray(parameters.transpose(self._parameter_order()))

    def from_kernel(self, parameters: Array) -> Array:
        """Parameters of kernels in the caller's shape, as a view."""
        parameters = parameters.reshape(self.layout.shape)
        if self.natural or parameters.ndim < 2 or parameters.size == 1:
            return parameters
        return parameters.transpose(np.argsort(self._parameter_order()))


@functools.lru_cache(1024)
def _transposed(call: Call, axes: tuple[int, ...] | None) -> Call:
    return replace(call, axes=axes)


def tiles(shape: tuple[int, ...]) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    """Yield indices of parts of an array that follow each other in C order, and where each starts and ends."""
    axis, inner = len(shape), 1
    while axis and inner * shape[axis - 1] <= TILE:
        axis -= 1
        inner *= shape[axis]
    if not axis:
        yield (), 0, math.prod(shape)
        return
    rows, start = max(1, TILE // inner), 0
    for index in np.ndindex(shape[: axis - 1]):
        for row in range(0, shape[axis - 1], rows):
            part = min(rows, shape[axis - 1] - row) * inner
            yield (*index, slice(row, row + rows)), start, start + part
            start += part


def native(*arrays: Array) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes of arrays in the byte order of the machine."""
    dtypes = tuple(array.dtype for array in arrays)
    return dtypes if all(dtype.isnative for dtype in dtypes) else tuple(dtype.newbyteorder("=") for dtype in dtypes)
