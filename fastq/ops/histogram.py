"""Resolve histograms, and merge them: whatever the parts of an array and their order, the sum is the same.

Their bins are those of floats of few bits, as wide as the number in them is large: contract C17.2.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import ALL_STATUS, LaunchPlan, bind, plan_launch
from fastq.engine.runtime.tiling import Demands
from fastq.formats.granularity import Axis, granularity
from fastq.kernels.pointers import HistogramOperands
from fastq.kernels.sizes import LEAST_EXPONENT, PARTIALS
from fastq.plan import policy, slots
from fastq.plan.arrange import StridedOperands, View, memory_of, memory_order
from fastq.plan.cache import BoundCall, Call, Operation
from fastq.plan.kernel_call import kernel_args, load_or_compile_kernel, tile
from fastq.plan.layout import NEVER, Layout
from fastq.plan.nan_and_infinity import refuse_infinite_values, refuse_nan
from fastq.plan.policy import RUNS, enough_for_all
from fastq.plan.reduction import identities
from fastq.requests.quantization import check_input
from fastq.results import Histogram
from fastq.system import tuning
from fastq.system.arguments import native

Array = NDArray[Any]

# bins on either side of 0: what a calibrator may have, and has by default
LEAST_BINS = 1 << 4
MOST_BINS = 1 << 20
DEFAULT_BINS = 1 << 12
DEFAULT_BINS_OF_CHANNELS = 1 << 10
MOST_OCTAVE_BITS = 8  # 255 octaves: the squares of bins in units of the narrowest one are finite


class HistogramOptions(NamedTuple):
    """Options of the histograms of a calibrator."""

    axis: Axis
    bins: int
    nan: str


def _resolve_histogram(arguments: Call, x: Array) -> BoundCall:
    """Resolve the histogram of each part of an array."""
    axis, bins, nan = arguments.options
    check_input(x.dtype)
    channels = granularity(axis, 0, x.ndim)
    shape = channels.parameter_shape(x.shape)
    if x.size == 0:
        return lambda *operands: empty(shape, bins)
    # the axes of channels first, so that the elements of each part follow each other
    order = (*channels.kept, *(a for a in memory_order(x) if a not in channels.kept))
    channels_first = x.transpose(order)
    parts = math.prod(shape)
    layout = Layout(
        outer=1,
        length=x.size,
        inner=1,
        block=x.size // parts,
        blocks=parts,
        cycle=NEVER,
        kept_outer=1,
        parameter_shape=(parts,),
        parameters=parts,
    )
    view = View(channels_first.shape, layout, StridedOperands(memory_of(channels_first)))
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
    function="Calibrator.update",
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
    """Plan the histograms of the parts of an array, which follow each other.

    Threads have parts of their own if these are enough, and else a histogram of each part, as far as there is room.
    Where there is room still, a part has several, to which neighbouring elements go in turn, so that no addition waits
    for one to the same bin.
    """
    size = math.prod(view.shape)
    parts = view.layout.blocks
    length = view.layout.block
    width = 2 * bins
    threads = policy.threads_for(size)
    has_own_parts = enough_for_all(parts, threads)
    accumulator = np.dtype(np.int32 if size < 1 << 31 else np.int64)
    nbytes = parts * width * accumulator.itemsize
    tuned = tuning.current()
    threads = threads if has_own_parts else max(1, min(threads, tuned.partial_histograms // nbytes))
    partials = 1 if has_own_parts else threads
    interleaved = PARTIALS if partials * nbytes * PARTIALS <= tuned.partial_histograms else 1
    kernel = load_or_compile_kernel(
        RUNS, HistogramOperands(dtype, np.dtype(np.float64), np.dtype(np.float64), accumulator), "histogram", nan=nan
    )
    args = kernel_args(
        view.layout,
        bins=bins,
        bin_bits=mantissa_bits(bins),
        counts=width * interleaved,
        interleaved=interleaved,
        partial_stride=parts if partials > 1 else 0,
    )
    chunk_multiple = length if has_own_parts else 1
    plan = plan_launch(
        kernel, slots.COUNT_IN_BINS, args, size, threads, chunk_multiple=chunk_multiple, status_mask=ALL_STATUS
    )
    plan = tile(plan, view, (dtype,), demands=Demands(chunk_multiple=chunk_multiple))
    return HistogramReduction(
        plan=plan, partials=partials, parts=parts, interleaved=interleaved, width=width, dtype=accumulator
    )


def empty(shape: tuple[int, ...], bins: int) -> Histogram:
    """Return histograms of nothing."""
    return Histogram(np.full(shape, np.inf), np.full(shape, -np.inf), np.zeros((*shape, 2 * bins), np.int64))


# --- bins -------------------------------------------------------------------------------------------------------------


def mantissa_bits(bins: int) -> int:
    """Return how many bits of a mantissa tell the bins of an octave apart.

    They are a little more than half of the bits of a bin's number, the others of which count octaves, or as many as
    leave `MOST_OCTAVE_BITS` for these: 4096 bins are 32 octaves of 2**7.
    """
    bits = bins.bit_length() - 1
    return max(bits // 2 + 1, bits - MOST_OCTAVE_BITS)


def _reach(bins: int) -> int:
    """Return the exponent of the upper end of all bins, in units of the narrowest one.

    Each octave but the first ends at twice the end of the one before: 32 octaves of 2**7 bins end at ``2**(7 + 31)``.
    """
    bits = mantissa_bits(bins)
    return bits + (bins >> bits) - 1


@functools.cache
def edge_units(bins: int) -> NDArray[np.float64]:
    """Return the edges of the bins from 0 on, in units of the narrowest one; nobody may write to them."""
    bits = mantissa_bits(bins)
    octave, mantissa = np.divmod(np.arange(bins + 1), 1 << bits)
    units = np.where(octave, np.ldexp((1 << bits) + mantissa, np.maximum(octave - 1, 0)), mantissa)
    units.setflags(write=False)
    return units


@functools.cache
def units_of_both_sides(bins: int) -> NDArray[np.float64]:
    """Return the edges of all bins, in units of the narrowest one; nobody may write to them."""
    above = edge_units(bins)
    units = np.concatenate((-above[:0:-1], above))
    units.setflags(write=False)
    return units


@in_standard_mode
def exponents(histogram: Histogram) -> NDArray[np.int64]:
    """Return the exponent of the width of the narrowest bins of each part."""
    magnitude = np.maximum(np.maximum(-histogram.lo, histogram.hi), 0.0)
    least = np.frexp(magnitude)[1].astype(np.int64) - _reach(histogram.counts.shape[-1] // 2)
    return np.where(magnitude > 0, np.maximum(least, LEAST_EXPONENT), LEAST_EXPONENT)


@in_standard_mode
def edges_of(bins: int, exponents: Any) -> NDArray[np.float64]:
    """Return the edges of the bins of histograms with these exponents; the outermost may be infinite."""
    return np.asarray(np.ldexp(units_of_both_sides(bins), exponents))


@in_standard_mode
def merge(a: Histogram, b: Histogram) -> Histogram:
    """Return the histograms of the elements of both."""
    both = Histogram(np.asarray(np.minimum(a.lo, b.lo)), np.asarray(np.maximum(a.hi, b.hi)), a.counts)
    exponents_of_both = exponents(both)
    return both._replace(counts=_merge_bins(a, exponents_of_both) + _merge_bins(b, exponents_of_both))


@in_standard_mode
def bins_of(numbers: Array, exponents: NDArray[np.int64], bins: int) -> NDArray[np.int64]:
    """Return the bin of each number, from -bins on, in a histogram of its own exponent."""
    quotients = np.ldexp(np.abs(numbers), -exponents)
    k = np.searchsorted(edge_units(bins), quotients, side="right") - 1
    return np.where(numbers < 0, -1 - k, k)


def widen(counts: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    """Return the counts, along the last axis, of bins of which the narrowest are 2**steps times as wide.

    With 4 bins on a side, whose edges are 0, 1, 2, 3 and 4, one step leads to edges 0, 2, 4, 6 and 8: the counts 3, 1,
    4 and 2 become 4, 6, 0 and 0. Of more octaves those further out have bins as wide as the new ones. Their counts stay
    what they are, and move to the places of as many octaves further in.
    """
    bins = counts.shape[-1] // 2
    first_of_joined, place = _bins_to_join(bins, steps)
    octave = 1 << mantissa_bits(bins)  # bins of an octave
    moved = steps * octave
    joined = octave + moved  # bins that are too narrow
    sums = np.zeros_like(counts)
    sides = slice(bins, None), slice(bins - 1, None, -1)
    for side in sides:
        old, new = counts[..., side], sums[..., side]
        new[..., octave : max(bins - moved, octave)] = old[..., joined:]
        new[..., place] = np.add.reduceat(old[..., :joined], first_of_joined, axis=-1)
    return sums


@functools.lru_cache(maxsize=256)
def _bins_to_join(bins: int, steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which bins are the first of those that become one, and which one they become, from 0 on.

    Of 4 bins and one step, bins 0 and 1 become bin 0, and bins 2 and 3 become bin 1: ``[0, 2], [0, 1]``.
    """
    bits = mantissa_bits(bins)
    octave, mantissa = np.divmod(np.arange(min((steps + 1) << bits, bins)), 1 << bits)
    # a bin begins at `number` bins of the width of its octave, which is 2**(octave - 1), and that of octave 0 is 1, too
    number = np.where(octave, (1 << bits) + mantissa, mantissa)
    narrower = steps + 1 - np.maximum(octave, 1)  # octaves by which these are narrower than the new ones, of 2**steps
    joined_bin = number >> np.clip(narrower, 0, 62)
    firsts_of_joined = np.flatnonzero(np.diff(joined_bin, prepend=-1))
    return firsts_of_joined, joined_bin[firsts_of_joined]


def _merge_bins(histogram: Histogram, target_exponents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the counts of bins that are merged to those with these exponents; of no elements they are zeros at any."""
    steps = np.where(histogram.lo <= histogram.hi, target_exponents - exponents(histogram), 0)
    if not steps.any():
        return histogram.counts
    counts = histogram.counts.copy()
    for step in np.unique(steps[steps > 0]):
        has_step = steps == step
        counts[has_step] = widen(counts[has_step], int(step))
    return counts
