"""Resolve reductions to minima and maxima."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.granularity import kept_axes, parameter_shape
from fastq.dispatch.planner import plan_minmax
from fastq.dispatch.refusal import refuse_nan
from fastq.dispatch.strides import Memory, arrange, memory_of, without_repeats
from fastq.engine.runtime.driver import bind, run
from fastq.system.arguments import as_axis, as_block_size, native

Array = NDArray[Any]
MinMax = tuple[Array, Array, int]  # minima, maxima and status


def minmax(call: Call) -> BoundCall:
    """Resolve `fastq.minmax`."""
    x, (axis, block_size, nan) = call.x, call.options
    validation.as_input(x)
    validation.check_nan(nan)
    axis = as_axis(axis)
    block_size = as_block_size(block_size, axis)
    axes, dtype = kept_axes(axis, x.ndim), native(x.dtype)
    if x.size == 0:
        shape = parameter_shape_of_empty(x, axes, block_size)
        return lambda *operands: (np.empty(shape, dtype), np.empty(shape, dtype))
    reduce = Extremes(x, axes, block_size, nan)
    as_they_are, arranged = reduce.dtype == dtype and reduce.arrangement.order is None, reduce.arrangement.from_kernel

    def launch(x: Array, *_: object) -> tuple[Array, Array]:
        lo, hi, status = reduce(x)
        if status:
            refuse_nan(status, nan, x)
        if as_they_are:
            return lo, hi
        return arranged(lo.astype(dtype, copy=False)), arranged(hi.astype(dtype, copy=False))

    return launch


class Extremes:
    """Reduce arrays of the same dtype, shape and strides to the minimum and maximum of each part.

    These are in the order and dtype of kernels.
    """

    def __init__(self, x: Array, axes: tuple[int, ...] | None, block_size: int, nan: str) -> None:
        x = x if block_size else without_repeats(x, axes or ())
        self.arrangement = arrange(x, None, axes, block_size, reads=True)
        view = self.arrangement.view(x)
        dtype = native(x.dtype)
        self.plan = plan_minmax(view.shape, self.arrangement.axes, block_size, nan, dtype, memory_of(view))
        self.launch = bind(self.plan.plan)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of minima and maxima."""
        return self.plan.dtype

    def __call__(self, x: Array) -> MinMax:
        """Return minima and maxima of the parts, and the status."""
        lo, hi = self.plan.begin()
        status = self.launch(x, None, None, None, None, lo, hi)
        return self.plan.end(lo), self.plan.end(hi), status


class NanParts:
    """Find the parts with a NaN, of arrays of the same dtype, shape and strides: the maximum of 1 for NaN, else 0."""

    def __init__(self, x: Array, axes: tuple[int, ...] | None, block_size: int) -> None:
        arrangement, mark = arrange(x, None, axes, block_size, reads=True), np.dtype(np.uint8)
        view = arrangement.view(x)
        memory = Memory(view.strides, x.dtype)
        self.plan = plan_minmax(view.shape, arrangement.axes, block_size, "keep", mark, memory, copies_isnan=True)

    def __call__(self, x: Array) -> NDArray[np.bool_]:
        """Return which parts have a NaN."""
        lo, hi = self.plan.begin()
        run(self.plan.plan, x, None, None, None, None, lo, hi)
        return np.asarray(self.plan.end(hi) > 0)


def parameter_shape_of_empty(x: Array, axes: tuple[int, ...] | None, block_size: int) -> tuple[int, ...]:
    """Return the shape of the parameters of an array without elements.

    Raises
    ------
    ValueError
        If there are parameters, for whose range there are no elements.
    """
    shape = parameter_shape(x.shape, axes, block_size)
    if math.prod(shape):
        raise ValueError(f"x has shape {x.shape}: the range of no elements has no minimum and no maximum")
    return shape
