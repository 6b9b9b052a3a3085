"""Resolve histograms, and merge them: whatever the parts of an array and their order, the sum is the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.planner import plan_histogram
from fastq.dispatch.refusal import refuse_infinite_values, refuse_nan
from fastq.dispatch.strides import NEVER, Layout, StridedOperands, View, memory_of, memory_order
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import bind
from fastq.formats.granularity import granularity
from fastq.kernels.body.histogram import LEAST_EXPONENT
from fastq.requests.values import check_input
from fastq.results import Histogram
from fastq.system.arguments import native

Array = NDArray[Any]


def histogram(call: Call, x: Array) -> BoundCall:
    """Resolve the histogram of each part of an array."""
    axis, bins, nan = call.options
    check_input(x.dtype)
    where = granularity(axis, 0, x.ndim)
    shape = where.parameter_shape(x.shape)
    if x.size == 0:
        return lambda *operands: empty(shape, bins)
    order = (*where.kept, *(a for a in memory_order(x) if a not in where.kept))
    turned, parts = x.transpose(order), math.prod(shape)
    layout = Layout(1, x.size, 1, x.size // parts, parts, NEVER, 1, (parts,))
    view = View(turned.shape, layout, StridedOperands(memory_of(turned)))
    plan = plan_histogram(view, bins, nan, native(x.dtype))
    launch_plan = bind(plan.plan)

    def launch(x: Array, *_: object) -> Histogram:
        counts, lo, hi = plan.begin()
        status = launch_plan(x, None, None, None, counts, lo, hi)
        refuse_nan(status, x, nan=nan)
        refuse_infinite_values(status, x)
        counts = counts.sum(axis=2, dtype=counts.dtype) if plan.partials > 1 else counts[:, :, 0]
        result = Histogram(lo[0], hi[0], counts[0])
        for slot in range(1, plan.slots):
            result = merged(result, Histogram(lo[slot], hi[slot], counts[slot]))
        return Histogram(result.lo.reshape(shape), result.hi.reshape(shape), result.counts.reshape(*shape, -1))

    return launch


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


def edges_of(bins: int, exponents: Any) -> NDArray[np.float64]:
    """Return the edges of the bins of histograms with these exponents; the outermost may be infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(np.arange(-bins, bins + 1.0), exponents))


@in_standard_mode
def merged(a: Histogram, b: Histogram) -> Histogram:
    """Return the histograms of the elements of both."""
    both = Histogram(np.asarray(np.minimum(a.lo, b.lo)), np.asarray(np.maximum(a.hi, b.hi)), a.counts)
    wanted = exponents(both)
    return both._replace(counts=_merged_bins(a, wanted) + _merged_bins(b, wanted))


def _merged_bins(part: Histogram, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the counts of bins that are merged to those with these exponents; of no elements they are zeros at any."""
    steps = np.where(part.lo <= part.hi, wanted - exponents(part), 0)
    if not steps.any():
        return part.counts
    counts, bins = part.counts.copy(), part.counts.shape[-1] // 2
    for step in np.unique(steps[steps > 0]):
        these = steps == step
        wide = 1 << min(int(step), bins.bit_length() - 1)
        sums = counts[these].reshape(-1, 2 * bins // wide, wide).sum(axis=-1)
        counts[these] = 0
        side = bins - bins // wide
        counts.reshape(-1, 2 * bins)[these.reshape(-1), side : 2 * bins - side] = sums
    return counts
