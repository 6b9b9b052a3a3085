"""Plan reductions to minima and maxima."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.driver import ALL_STATUS, LaunchPlan, bind, plan_launch, run
from fastq.engine.runtime.tiling import Demands
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.granularity import Granularity
from fastq.kernels.pointers import MinMaxOperands, PartialOperands
from fastq.kernels.sizes import MOST_ROW
from fastq.kernels.status import HAS_NAN
from fastq.plan import policy, slots
from fastq.plan.arrange import Memory, StridedOperands, View, arrange
from fastq.plan.kernel_call import kernel_args, load_or_compile_kernel, tile
from fastq.plan.layout import NO_LAYOUT
from fastq.system.arguments import native

Array = NDArray[Any]
MinMax = tuple[Array, Array, int]  # minima, maxima and status


class Extremes:
    """Reduce arrays of one form in memory to the minimum and maximum of parts, in the order and dtype of kernels."""

    def __init__(self, x: Array, granularity: Granularity, nan: str) -> None:
        x = x if granularity.block_size else _without_repeats(x, granularity.kept)
        self.view = arrange(x, None, granularity, only_reads=True)
        self.plan = plan_minmax(self.view, nan, native(x.dtype))
        self.launch = bind(self.plan.plan)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of minima and maxima."""
        return self.plan.dtype

    def __call__(self, x: Array) -> MinMax:
        """Return minima and maxima of the parts, and the status."""
        nothing, lo, hi = self.plan.begin()
        status = self.launch(x, None, None, None, nothing, lo, hi)
        return self.plan.end(lo), self.plan.end(hi), status


def _without_repeats(x: Array, kept: tuple[int, ...]) -> Array:
    """Return an array, which begins where x does, without what x repeats along axes that are not kept."""
    if 0 not in x.strides:
        return x
    repeats = [stride == 0 and axis not in kept for axis, stride in enumerate(x.strides)]
    return x[tuple(slice(1) if is_repeated else slice(None) for is_repeated in repeats)]


class NanParts:
    """Find the parts with a NaN, of arrays of the same dtype, shape and strides: the maximum of 1 for NaN, else 0."""

    def __init__(self, x: Array, granularity: Granularity) -> None:
        view = arrange(x, None, granularity, only_reads=True)
        # x goes through tiles also where it is contiguous: copying it to them is what turns it into ones and zeros
        view = view._replace(memory=StridedOperands(Memory(view.in_view_order(x).strides, x.dtype)))
        self.plan = plan_minmax(view, "keep", np.dtype(np.uint8), copies_isnan=True)

    def __call__(self, x: Array) -> NDArray[np.bool_]:
        """Return which parts have a NaN."""
        nothing, lo, hi = self.plan.begin()
        run(self.plan.plan, x, None, None, None, nothing, lo, hi)
        return np.asarray(self.plan.end(hi) > 0)


# --- the plan ---------------------------------------------------------------------------------------------------------


class PairReduction(NamedTuple):
    """A reduction to two numbers of each part: partial results of threads, which are then merged."""

    plan: LaunchPlan  # all launches
    dtype: np.dtype[Any]  # in which minima and maxima are held
    # minima and maxima of no elements, if they are few: copying them is faster than making them
    identities: tuple[Array, Array] | None
    size: int  # the number of minima, and of maxima, in the partial results
    shape: tuple[int, ...]  # parts of the array that have a minimum and a maximum

    def begin(self) -> tuple[None, Array, Array]:
        """Return the operands after zero points: nothing, then minima and maxima of no elements."""
        if self.identities is None:
            return None, *identities(self.dtype, self.size, self.shape)
        lo, hi = self.identities
        return None, lo.copy(), hi.copy()

    def end(self, extremes: Array) -> Array:
        """Return minima or maxima, one for each part: the first partial results, into which all others were merged."""
        if extremes.shape == self.shape:
            return extremes
        return extremes[: math.prod(self.shape)].reshape(self.shape)


def identities(dtype: np.dtype[Any], count: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the identities of minima and maxima, as many as needed, in a shape if it has room for them."""
    shape = shape if math.prod(shape) == count else (count,)
    lo, hi = np.empty(shape, dtype), np.empty(shape, dtype)
    most, least = _ends(dtype)
    lo.fill(most)
    hi.fill(least)
    return lo, hi


@functools.cache
def _ends(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the largest and the least number of a type, kept since NumPy takes a microsecond to look up either."""
    return (np.inf, -np.inf) if dtype.kind == "f" else (np.iinfo(dtype).max, np.iinfo(dtype).min)


def accumulator_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of minima and maxima in kernels: float32 for bfloat16 and float16, else that of the array."""
    return np.dtype(np.float32) if dtype.name in FLOAT_FORMATS else dtype


def plan_minmax(view: View, nan: str, dtype: np.dtype[Any], copies_isnan: bool = False) -> PairReduction:
    """Plan the minima and maxima of the parts of an array, or of 1 where it is NaN and 0 elsewhere.

    `dtype` is what kernels read: that of the array, or of these ones and zeros. `nan` says whether NaN is reported.
    """
    layout = view.layout
    size = math.prod(view.shape)
    accumulator = accumulator_of(dtype)
    loop = policy.loop_of(layout, "minmax", dtype, accumulator)
    divided = policy.divided_reduction(
        layout,
        size,
        policy.threads_to_reduce(size),
        merged=loop.merged,
        is_strided=view.memory.x is not None,
    )
    kernel = load_or_compile_kernel(
        "traversal.columns.column_ranges" if divided.has_columns else loop.function,
        MinMaxOperands(dtype, accumulator, accumulator),
        "minmax",
        together=loop.together,
    )
    args = kernel_args(
        layout,
        outgrows_cache=policy.outgrows_cache(size, dtype),
        merged=loop.merged,
        partial_stride=layout.parameters if divided.partials > 1 else 0,
    )
    units = layout.inner if divided.has_columns else size
    reduce = plan_launch(
        kernel,
        slots.REDUCE_TO_MINMAX,
        args,
        units,
        divided.threads,
        size=size // units,
        chunk_multiple=divided.chunk_multiple,
        chunk=divided.chunk,
        status_mask=ALL_STATUS if nan == "raise" else ~HAS_NAN,
    )
    demands = Demands(chunk_multiple=divided.chunk_multiple)
    plan = tile(reduce, view, (dtype,), copies_isnan=copies_isnan, demands=demands)
    count = divided.partials * layout.parameters
    if divided.partials > 1:
        plan = plan.then(_plan_merge(accumulator, divided.partials, layout.parameters))
    few = identities(accumulator, count, layout.parameter_shape) if count <= MOST_ROW else None
    return PairReduction(plan=plan, dtype=accumulator, identities=few, size=count, shape=layout.parameter_shape)


def _plan_merge(accumulator: np.dtype[Any], partials: int, count: int) -> LaunchPlan:
    """Plan to merge the partial results of threads, each of `count` minima and as many maxima, into the first one."""
    kernel = load_or_compile_kernel(
        "traversal.partials.merge_partials", PartialOperands(accumulator, accumulator), "minmax"
    )
    args = kernel_args(NO_LAYOUT, partials=partials, partial_stride=count)
    return plan_launch(kernel, slots.MERGE_MINMAX, args, count, 1)
