"""Resolve reductions to minima and maxima."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.planner import plan_minmax
from fastq.dispatch.refusal import refuse_nan
from fastq.dispatch.strides import Memory, StridedOperands, arrange, without_repeats
from fastq.engine.runtime.driver import bind, run
from fastq.formats.granularity import Granularity
from fastq.requests.values import ranges_of
from fastq.system.arguments import native

Array = NDArray[Any]
MinMax = tuple[Array, Array, int]  # minima, maxima and status


def minmax(call: Call, x: Array) -> BoundCall:
    """Resolve `fastq.minmax`."""
    where, dtype, nan = ranges_of(x.dtype, x.shape, call.options), native(x.dtype), call.options.nan
    if x.size == 0:
        new = functools.partial(np.empty, where.parameter_shape(x.shape), dtype)
        return lambda *operands: (new(), new())
    reduce = Extremes(x, where, nan)
    as_they_are, arranged = reduce.dtype == dtype and reduce.arrangement.order is None, reduce.arrangement.from_kernel

    def launch(x: Array, *_: object) -> tuple[Array, Array]:
        lo, hi, status = reduce(x)
        if status:
            refuse_nan(status, x, nan=nan)
        if as_they_are:
            return lo, hi
        return arranged(lo.astype(dtype, copy=False)), arranged(hi.astype(dtype, copy=False))

    return launch


class Extremes:
    """Reduce arrays of the same dtype, shape and strides to the minimum and maximum of each part.

    These are in the order and dtype of kernels.
    """

    def __init__(self, x: Array, granularity: Granularity, nan: str) -> None:
        x = x if granularity.block_size else without_repeats(x, granularity.kept)
        self.arrangement = arrange(x, None, granularity, reads=True)
        self.plan = plan_minmax(self.arrangement.view_of_input(x), nan, native(x.dtype))
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

    def __init__(self, x: Array, granularity: Granularity) -> None:
        arrangement = arrange(x, None, granularity, reads=True)
        memory = StridedOperands(Memory(arrangement.turned(x).strides, x.dtype))
        view = arrangement.view_of_input(x)._replace(memory=memory)
        self.plan = plan_minmax(view, "keep", np.dtype(np.uint8), copies_isnan=True)

    def __call__(self, x: Array) -> NDArray[np.bool_]:
        """Return which parts have a NaN."""
        lo, hi = self.plan.begin()
        run(self.plan.plan, x, None, None, None, None, lo, hi)
        return np.asarray(self.plan.end(hi) > 0)
