"""Resolve histograms, and merge them: whatever the parts of an array and their order, the sum is the same."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import ALL_STATUS, LaunchPlan, bind, plan_launch
from fastq.engine.runtime.tiling import Demands
from fastq.formats.granularity import granularity
from fastq.kernels.pointers import HistogramOperands
from fastq.kernels.sizes import LEAST_EXPONENT, PARTIALS
from fastq.plan import policy, slots
from fastq.plan.arrange import View
from fastq.plan.cache import Call
from fastq.plan.kernel_call import kernel_address, kernel_args, tile
from fastq.plan.layout import NEVER, Layout
from fastq.plan.memory import StridedOperands, memory_of, memory_order
from fastq.plan.nan_and_infinity import refuse_infinite_values, refuse_nan
from fastq.plan.operation import BoundCall, Operation
from fastq.plan.policy import RUNS, enough_for_all
from fastq.plan.reduction import identities
from fastq.requests.options import HistogramOptions
from fastq.requests.quantization import check_input
from fastq.results import Histogram
from fastq.system import tuning
from fastq.system.arguments import native

Array = NDArray[Any]


def _resolve_histogram(arguments: Call, x: Array) -> BoundCall:
    """Resolve the histogram of each part of an array."""
    axis, bins, nan = arguments.options
    check_input(x.dtype)
    channels = granularity(axis, 0, x.ndim)
    shape = channels.parameter_shape(x.shape)
    if x.size == 0:
        return lambda *operands: empty(shape, bins)
    order = (*channels.kept, *(a for a in memory_order(x) if a not in channels.kept))
    turned = x.transpose(order)
    parts = math.prod(shape)
    layout = Layout(
        outer=1,
        length=x.size,
        inner=1,
        block=x.size // parts,
        blocks=parts,
        cycle=NEVER,
        kept=1,
        shape=(parts,),
        parameters=parts,
    )
    view = View(turned.shape, layout, StridedOperands(memory_of(turned)))
    plan = plan_histogram(view, bins, nan, native(x.dtype))
    launch_plan = bind(plan.plan)

    def launch(x: Array, *_: object) -> Histogram:
        counts, lo, hi = plan.begin()
        status = launch_plan(x, None, None, None, counts, lo, hi)
        refuse_nan(status, x, nan=nan)
        refuse_infinite_values(status, x)
        counts = counts.sum(axis=2, dtype=counts.dtype) if plan.interleaved > 1 else counts[:, :, 0]
        result = Histogram(lo[0], hi[0], counts[0])
        for k in range(1, plan.partials):
            result = merge(result, Histogram(lo[k], hi[k], counts[k]))
        return Histogram(result.lo.reshape(shape), result.hi.reshape(shape), result.counts.reshape(*shape, -1))

    return launch


HISTOGRAM = Operation(
    name="HISTOGRAM",
    function="Calibrator.observe",
    resolve=_resolve_histogram,
    options=HistogramOptions,
    operands=("x",),
)


class HistogramReduction(NamedTuple):
    """A reduction to histograms: partial results of threads, each of them of neighbouring elements, side by side."""

    plan: LaunchPlan  # the launch
    partials: int  # number of partial results, which are those of threads
    parts: int  # number of histograms in a partial result
    interleaved: int  # histograms of a part, in which neighbouring elements are counted
    width: int  # number of bins
    dtype: np.dtype[Any]  # of counts

    def begin(self) -> tuple[Array, Array, Array]:
        """Return counts, minima and maxima of nothing."""
        counts = np.zeros((self.partials, self.parts, self.interleaved, self.width), self.dtype)
        return counts, *identities(np.dtype(np.float64), self.partials * self.parts, (self.partials, self.parts))


def plan_histogram(view: View, bins: int, nan: str, dtype: np.dtype[Any]) -> HistogramReduction:
    """Plan the histograms of the parts of an array, which follow each other."""
    size = math.prod(view.shape)
    parts = view.layout.blocks
    length = view.layout.block
    width = 2 * bins
    threads = policy.threads_for(size)
    alone = enough_for_all(parts, threads)
    accumulator = np.dtype(np.int32 if size < 1 << 31 else np.int64)
    nbytes = parts * width * accumulator.itemsize
    tuned = tuning.current()
    threads = threads if alone else max(1, min(threads, tuned.partial_histograms // nbytes))
    partials = 1 if alone else threads
    interleaved = PARTIALS if partials * nbytes * PARTIALS <= tuned.partial_histograms else 1
    kernel = kernel_address(
        RUNS, HistogramOperands(dtype, np.dtype(np.float64), np.dtype(np.float64), accumulator), "histogram", nan=nan
    )
    stride = parts if partials > 1 else 0
    args = kernel_args(
        view.layout, bins=bins, counts=width * interleaved, interleaved=interleaved, partial_stride=stride
    )
    chunk_multiple = length if alone else 1
    plan = plan_launch(
        kernel, slots.HISTOGRAM, args, size, threads, chunk_multiple=chunk_multiple, status_mask=ALL_STATUS
    )
    plan = tile(plan, view, (dtype,), demands=Demands(chunk_multiple=chunk_multiple))
    return HistogramReduction(
        plan=plan, partials=partials, parts=parts, interleaved=interleaved, width=width, dtype=accumulator
    )


def empty(shape: tuple[int, ...], bins: int) -> Histogram:
    """Return histograms of nothing."""
    return Histogram(np.full(shape, np.inf), np.full(shape, -np.inf), np.zeros((*shape, 2 * bins), np.int64))


@in_standard_mode
def exponents(part: Histogram) -> NDArray[np.int64]:
    """Return the exponent of the width of the bins of each part."""
    bins = part.counts.shape[-1] // 2
    magnitude = np.maximum(np.maximum(-part.lo, part.hi), 0.0)
    least = np.frexp(magnitude)[1].astype(np.int64) - (bins.bit_length() - 1)
    return np.where(magnitude > 0, np.maximum(least, LEAST_EXPONENT), LEAST_EXPONENT)


@in_standard_mode
def edges_of(bins: int, exponents: Any) -> NDArray[np.float64]:
    """Return the edges of the bins of histograms with these exponents; the outermost may be infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(np.arange(-bins, bins + 1.0), exponents))


@in_standard_mode
def merge(a: Histogram, b: Histogram) -> Histogram:
    """Return the histograms of the elements of both."""
    both = Histogram(np.asarray(np.minimum(a.lo, b.lo)), np.asarray(np.maximum(a.hi, b.hi)), a.counts)
    exponents_of_both = exponents(both)
    return both._replace(counts=_merge_bins(a, exponents_of_both) + _merge_bins(b, exponents_of_both))


def _merge_bins(part: Histogram, target_exponents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the counts of bins that are merged to those with these exponents; of no elements they are zeros at any."""
    steps = np.where(part.lo <= part.hi, target_exponents - exponents(part), 0)
    if not steps.any():
        return part.counts
    counts = part.counts.copy()
    bins = part.counts.shape[-1] // 2
    for step in np.unique(steps[steps > 0]):
        these = steps == step
        wide = 1 << min(int(step), bins.bit_length() - 1)
        sums = counts[these].reshape(-1, 2 * bins // wide, wide).sum(axis=-1)
        counts[these] = 0
        side = bins - bins // wide
        counts.reshape(-1, 2 * bins)[these.reshape(-1), side : 2 * bins - side] = sums
    return counts
