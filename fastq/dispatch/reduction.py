"""Resolve reductions to minima and maxima."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import Plan
from fastq.dispatch.granularity import kept_axes, parameter_shape
from fastq.dispatch.launch import run_tiles
from fastq.dispatch.planner import MinMaxReduction, plan_minmax
from fastq.dispatch.refusal import refuse_nan
from fastq.dispatch.strides import Arrangement, arrange
from fastq.results import Axis
from fastq.runtime.driver import bind, run
from fastq.system.arguments import as_axis, as_block_size, native

Array = NDArray[Any]
MinMax = tuple[Array, Array, int]  # minima, maxima and status


def minmax(x: Array, _o: None, _s: None, _z: None, _q: None, axis: Axis, block_size: int, nan: str, *_: None) -> Plan:
    """Resolve `fastq.minmax`."""
    validation.as_input(x)
    validation.check_nan(nan)
    axis = as_axis(axis)
    block_size = as_block_size(block_size, axis)
    axes, dtype = kept_axes(axis, x.ndim), native(x.dtype)
    if x.size == 0:
        shape = shape_of_nothing(x, axes, block_size)
        return lambda *operands: (np.empty(shape, x.dtype), np.empty(shape, x.dtype))
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
    """Reduce arrays alike to the minimum and maximum of each part, in the order and dtype of kernels."""

    def __init__(self, x: Array, axes: tuple[int, ...] | None, block_size: int, nan: str) -> None:
        self.arrangement = arrange(x, None, axes, block_size)
        self.plan = _plan(x, self.arrangement, block_size, nan, self.arrangement.direct)
        self.launch = bind(self.plan.plan) if self.arrangement.direct else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of minima and maxima."""
        return self.plan.dtype

    def __call__(self, x: Array) -> MinMax:
        """Return minima and maxima of the parts, and the status."""
        lo, hi = self.plan.begin()
        if self.launch is not None:
            status = self.launch(x, None, None, None, None, lo, hi)
        else:
            status = _reduce_tiles(self.plan, self.arrangement.view(x), lo, hi, native(x.dtype))
        return self.plan.end(lo), self.plan.end(hi), status


class NanParts:
    """Find the parts of arrays alike that have a NaN: the maximum of marks, 1 where an element is NaN."""

    def __init__(self, x: Array, axes: tuple[int, ...] | None, block_size: int) -> None:
        self.arrangement, self.mark = arrange(x, None, axes, block_size), np.dtype(np.uint8)
        self.plan = _plan(x.view(), self.arrangement, block_size, "keep", False, self.mark)

    def __call__(self, x: Array) -> NDArray[np.bool_]:
        """Return which parts have a NaN."""
        lo, hi = self.plan.begin()
        _reduce_tiles(self.plan, self.arrangement.view(x), lo, hi, self.mark, _mark_nan)
        return np.asarray(self.plan.end(hi) > 0)


def _plan(
    x: Array, arrangement: Arrangement, block_size: int, nan: str, direct: bool, dtype: np.dtype[Any] | None = None
) -> MinMaxReduction:
    shape = arrangement.view(x).shape
    return plan_minmax(shape, arrangement.axes, block_size, nan, dtype or native(x.dtype), direct)


def _reduce_tiles(
    plan: MinMaxReduction, x: Array, lo: Array, hi: Array, dtype: np.dtype[Any], load: Any = np.copyto
) -> int:
    status = run_tiles(plan.reduce, x, None, (None, None, None, lo, hi), dtype, load)
    if plan.merge_partials:
        run(plan.merge_partials, None, None, None, None, None, lo, hi)
    return status


def _mark_nan(marks: Array, x: Array) -> None:
    np.isnan(x, out=marks.view(np.bool_))


def shape_of_nothing(x: Array, axes: tuple[int, ...] | None, block_size: int) -> tuple[int, ...]:
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
