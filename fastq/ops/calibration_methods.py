"""Take ranges from histograms, by a method, and parameters from ranges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import QType
from fastq.ops.histogram import (
    edge_units,
    edges_of,
    exponents,
    mantissa_bits,
    units_of_both_sides,
    widen,
)
from fastq.ops.quantize import FAKE_QUANTIZE_WITH_QPARAMS, QPARAMS_OF_RANGES
from fastq.plan.cache import run_operation
from fastq.requests.quantization import QuantizeOptions, RangeOptions, request_by_calibrator
from fastq.results import Axis, Histogram, QParams

Array = NDArray[Any]


class CalibrationTarget(NamedTuple):
    """What parameters are computed for, as in `fastq.choose_qparams`; `symmetric` is true for float formats."""

    dtype: QType
    axis: Axis
    symmetric: bool
    convention: str | Convention

    def of_ranges(self, lo: Array, hi: Array) -> QParams:
        """Return the parameters of ranges, each of which belongs to a channel, or the one of the array."""
        # ranges have no axes but those of channels: one is axis 0 there, whichever it is of the caller's arrays
        axis = None if self.axis is None else 0 if isinstance(self.axis, int) else tuple(range(lo.ndim))
        # a float format or a table is symmetric in any case, so nothing is asked for it: then plans are shared
        symmetric = self.symmetric and not self.dtype.element
        options = RangeOptions(axis, symmetric=symmetric, dtype=self.dtype, convention=self.convention)
        # of the first five options, the numbers: axis, and block_size, symmetric, saturate and bits by their defaults
        types = type(axis), int, bool, bool, type(None)
        params: QParams = run_operation(QPARAMS_OF_RANGES, lo, hi, options=options, types=types)
        return replace(params, axis=self.axis)

    def values_of(self, x: Array, lo: Array, hi: Array) -> Array:
        """Fake quantize each row of x by a range of its own: x has one axis more than lo and hi, the last one."""
        params = self.of_ranges(lo, hi)
        if self.axis is not None:
            params = replace(params, axis=0 if isinstance(self.axis, int) else tuple(range(lo.ndim)))
        options = QuantizeOptions(key=params.key)
        values: Array = run_operation(
            FAKE_QUANTIZE_WITH_QPARAMS,
            x,
            None,
            params.scale,
            params.zero_point,
            options=options,
            types=(bool,),
            qparams=params,
        )
        return values


def target_of(
    dtype: object, axis: Axis, symmetric: bool, convention: str | Convention, nan: str
) -> tuple[CalibrationTarget, str]:
    """Validate what a calibrator is for; return it, and what becomes of NaN."""
    request = request_by_calibrator(dtype, axis, symmetric, convention, nan)
    target = CalibrationTarget(
        dtype=request.qtype, axis=request.axis, symmetric=request.symmetric, convention=convention
    )
    return target, request.nan


Ends = tuple[Array, Array]
PartIndex = tuple[int, ...]


class Options(NamedTuple):
    """Options of the methods."""

    percentile: float
    quantized_bins: int
    grid: int


@in_standard_mode
def ranges(
    histogram: Histogram, target: CalibrationTarget, compute: np.dtype[Any], method: str, options: Options
) -> tuple[Ends, list[PartIndex]]:
    """Return the ranges that a method takes from histograms, in the compute type, and which of them bins can't tell.

    The latter are the indices of channels, of which a caller is warned.
    """
    (lo, hi), doubtful = _METHODS[method](histogram, target, compute, options)
    return (in_compute_type(lo, compute), in_compute_type(hi, compute)), doubtful


@in_standard_mode
def in_compute_type(ends: Array, compute: np.dtype[Any]) -> Array:
    """Return the ends of ranges in the compute type."""
    return ends.astype(compute)


def _minmax(histogram: Histogram, *_: object) -> tuple[Ends, list[PartIndex]]:
    """Return the whole ranges, which are exact, so that none is doubtful."""
    return (histogram.lo, histogram.hi), []


def _mse(
    histogram: Histogram, target: CalibrationTarget, compute: np.dtype[Any], options: Options
) -> tuple[Ends, list[PartIndex]]:
    """Return the ranges, shrunk to a number of `grid` parts, with the least squared error; among equals the largest.

    Errors are computed for the middles of bins, in units of the largest magnitude so that no square overflows.
    """
    middles = np.ldexp(_middles(histogram), exponents(histogram)[..., None]).astype(compute)
    largest = np.maximum(np.maximum(-histogram.lo, histogram.hi), np.finfo(np.float64).tiny)[..., None]
    least = np.full(histogram.lo.shape, np.inf)
    lo = histogram.lo
    hi = histogram.hi
    for numerator in range(options.grid, 0, -1):
        ratio = numerator / options.grid
        ends = (histogram.lo * ratio).astype(compute), (histogram.hi * ratio).astype(compute)
        values = target.values_of(middles, *ends)
        error = np.where(histogram.counts, (middles.astype(np.float64) - values) / largest, 0.0)
        total = (error * error * histogram.counts).sum(axis=-1)
        better = total < least
        least = np.where(better, total, least)
        lo, hi = np.where(better, ends[0], lo), np.where(better, ends[1], hi)
    return (lo, hi), []


def _middles(histogram: Histogram) -> Array:
    """Return the middles of bins in units of the narrowest one, within minimum and maximum."""
    edges = units_of_both_sides(histogram.counts.shape[-1] // 2)
    exponents_of_widths = exponents(histogram)
    lo = np.ldexp(histogram.lo, -exponents_of_widths)[..., None]
    hi = np.ldexp(histogram.hi, -exponents_of_widths)[..., None]
    return np.asarray(np.clip((edges[:-1] + edges[1:]) / 2, lo, hi))


@in_standard_mode
def mean_squares(histogram: Histogram, compute: np.dtype[Any]) -> Array:
    """Return the mean of the squares of the middles of bins, each counted for its elements; a sum is rounded once."""
    middles = _middles(histogram)
    means = np.empty(histogram.lo.shape)
    for index in np.ndindex(means.shape):
        occupied = np.flatnonzero(histogram.counts[index])
        counts = histogram.counts[index][occupied]
        means[index] = math.fsum(counts * np.square(middles[index][occupied])) / int(counts.sum())
    return np.asarray(np.ldexp(means, 2 * exponents(histogram)), compute)


class Range(NamedTuple):
    """A range of one histogram: its ends, and how wide the bins are in which they lie."""

    ends: tuple[float, float]
    widths: tuple[float, float]
    elements_not_cut: tuple[int, int] = (0, 0)  # on either side, of those that were to be cut, had bins been narrower
    is_lost: bool = False  # whether most elements are in fewer bins than it needs


def _for_each_part(
    of_part: Callable[[NDArray[np.int64], Array, Any, CalibrationTarget, Options], Range],
) -> Callable[..., tuple[Ends, list[PartIndex]]]:
    """Make a method of a function that takes a range from a single histogram; no range goes beyond its elements.

    The function gets the counts and the edges of all bins, the minimum, and what the method gets.
    """

    def ends(
        histogram: Histogram, target: CalibrationTarget, _: object, options: Options
    ) -> tuple[Ends, list[PartIndex]]:
        widths = exponents(histogram)
        bins = histogram.counts.shape[-1] // 2
        edges = {width: edges_of(bins, width) for width in np.unique(widths)}
        ranges_of_parts = {
            index: of_part(histogram.counts[index], edges[widths[index]], histogram.lo[index], target, options)
            for index in np.ndindex(histogram.lo.shape)
        }
        both_ends = np.array([part_range.ends for part_range in ranges_of_parts.values()])
        both_ends = both_ends.reshape(*histogram.lo.shape, 2)
        lo, hi = (np.asarray(np.clip(both_ends[..., side], histogram.lo, histogram.hi)) for side in (0, 1))
        totals = histogram.counts.sum(axis=-1)
        doubtful = []
        for index, part_range in ranges_of_parts.items():
            extremes = histogram.lo[index], histogram.hi[index]
            if _is_doubtful(part_range, (lo[index], hi[index]), extremes, int(totals[index])):
                doubtful.append(index)
        return (lo, hi), doubtful

    return ends


FEW = 100  # one of so many elements hardly counts
FEW_ELEMENTS = 8  # that any bin may have
WIDE = 16  # a bin that is wider than this part of a range is too wide for it
NARROW = 4096  # one that is narrower than this part is narrow enough, however many elements it has


def _is_doubtful(part_range: Range, ends: tuple[Any, Any], extremes: tuple[Any, Any], total: int) -> bool:
    """Whether bins can't tell a range: contract C17.9."""
    extent = ends[1] - ends[0]
    sides = zip(ends, extremes, part_range.widths, part_range.elements_not_cut, strict=True)
    for end, extreme, width, elements_not_cut in sides:
        is_coarse = end != extreme and width > extent / WIDE
        if is_coarse or (elements_not_cut > FEW_ELEMENTS + total / FEW and width > extent / NARROW):
            return True
    return part_range.is_lost


def _magnitudes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return counts of magnitudes, from 0 on, given counts of all bins, from the most negative one on."""
    bins = counts.size // 2
    return np.asarray(counts[bins:] + counts[bins - 1 :: -1])


def _percentile(counts: NDArray[np.int64], edges: Array, _: Any, target: CalibrationTarget, options: Options) -> Range:
    """Return the range with at least a percentage of the elements: `most` elements may be cut off.

    In the symmetric scheme they may be on either side, so magnitudes are counted; else half of them are on each.
    """
    bins = counts.size // 2
    counts_before = sums_before(_magnitudes(counts) if target.symmetric else counts)
    total = int(counts_before[-1])
    if target.symmetric:
        most_cut = int((100.0 - options.percentile) / 100.0 * total)
        k = highest_bin(counts_before, most_cut)
        end = float(edges[bins + k + 1])
        width = end - float(edges[bins + k])
        not_cut = most_cut - (total - int(counts_before[k + 1]))
        return Range(ends=(-end, end), widths=(width, width), elements_not_cut=(not_cut, not_cut))
    most_cut = int((100.0 - options.percentile) / 200.0 * total)
    lowest = lowest_bin(counts_before, most_cut)
    highest = highest_bin(counts_before, most_cut)
    above = total - int(counts_before[highest + 1])
    highest = max(lowest, highest)
    ends = float(edges[lowest]), float(edges[highest + 1])
    widths = float(edges[lowest + 1]) - ends[0], ends[1] - float(edges[highest])
    return Range(ends=ends, widths=widths, elements_not_cut=(most_cut - int(counts_before[lowest]), most_cut - above))


FINE_OCTAVES = 5  # below the magnitude that hardly an element is above


def _entropy(counts: NDArray[np.int64], edges: Array, minimum: Any, _: CalibrationTarget, options: Options) -> Range:
    """Return the range of least divergence of the elements that are not 0, as many bins on either side of it.

    The two bins next to 0 are left out. Bins that are narrower than those `FINE_OCTAVES` below the magnitude that
    hardly an element is above are widened first. `minimum` tells whether the bin from 0 on may have zeros, which are
    not lost with it.
    """
    bins = counts.size // 2
    units = edge_units(bins)
    half = options.quantized_bins // 2
    counts_beside_0 = counts.copy()
    counts_beside_0[bins - 1 : bins + 1] = 0
    total = int(counts_beside_0.sum())
    steps = 0
    if total:
        counts_before = sums_before(_magnitudes(counts_beside_0))
        reference = highest_bin(counts_before, total // FEW)
        steps = max((reference >> mantissa_bits(bins)) - FINE_OCTAVES, 0)
    wide = widen(counts_beside_0 if total else counts, steps)
    bins_in_use = int(np.flatnonzero(_magnitudes(wide))[-1]) + 1
    is_whole = not total or bins_in_use <= half
    size = bins_in_use if is_whole else least_divergent(wide, units, options.quantized_bins)
    end = float(np.ldexp(units[size], steps) * edges[bins + 1])
    lost = int(counts[bins - 1 : bins + 1].sum()) if minimum > 0.0 else int(counts[bins - 1])  # that are not 0
    is_lost = (size == half and not is_whole) or lost * 4 > int(counts.sum())
    return Range(ends=(-end, end), widths=(0.0, 0.0), is_lost=is_lost)


_METHODS: dict[str, Callable[..., tuple[Ends, list[PartIndex]]]] = {
    "minmax": _minmax,
    "percentile": _for_each_part(_percentile),
    "mse": _mse,
    "entropy": _for_each_part(_entropy),
}
METHODS = tuple(_METHODS)


# --- the bins at the ends of a range ----------------------------------------------------------------------------------


def sums_before(values: Array) -> Array:
    """Return the sums of the values before each, and of all: of 3, 1 and 4 they are 0, 3, 4 and 8."""
    sums = np.zeros(values.size + 1, values.dtype)
    np.cumsum(values, out=sums[1:])
    return sums


def lowest_bin(before: NDArray[np.int64], most: int) -> int:
    """Return the last bin below which there are no more than `most` elements, given how many are before each bin."""
    return int(np.searchsorted(before[:-1], most, side="right")) - 1


def highest_bin(before: NDArray[np.int64], most: int) -> int:
    """Return the first bin above which there are no more than `most` elements, given how many are before each bin."""
    return int(np.searchsorted(before[1:], before[-1] - most))


NEAR = 1e-9  # above the least divergence, which is rounded
NONE = 1e-4  # elements of an interval that has none, to which those beyond a range are clipped


def least_divergent(counts: NDArray[np.int64], units: NDArray[np.float64], quantized_bins: int) -> int:
    """Return how many bins on either side of 0 have the range whose codes tell most of the distribution.

    That is the one of the least Kullback-Leibler divergence, as in TensorRT's calibration, for bins of any widths:
    contract C17.6. `units` are the edges from 0 on. More bins are in use than intervals on a side.
    """
    half = quantized_bins // 2
    bins = counts.size // 2
    sides = counts[bins:], counts[bins - 1 :: -1]
    used = int(np.flatnonzero(sides[0] + sides[1])[-1]) + 1
    ends = np.arange(half, used + 1)
    widths = np.diff(units)
    # the first bin of each interval of each range, and which one the outermost bin is in
    middles = (units[:-1] + widths / 2) * half
    bounds = np.searchsorted(middles, np.arange(half + 1) * units[ends, None])
    outermost = (bounds[:, 1:] < ends[:, None]).sum(axis=1)
    sums_of_logs = np.zeros(ends.size)
    inside = np.zeros(ends.size)
    for side in sides:
        sums_of_logs += _divergences(side, widths, ends, bounds, outermost)
        inside += sums_before(side)[ends]
    total = float(counts.sum())
    with np.errstate(divide="ignore"):
        divergences = np.where(inside > 0, sums_of_logs / total + np.log(inside / total), np.inf)
    return int(ends[np.argmax(divergences <= divergences.min() + NEAR)])


def _divergences(
    counts: NDArray[np.int64], widths: Array, ends: Array, bounds: Array, outermost: Array
) -> NDArray[np.float64]:
    """Return the sums of P * log(P / Q) of one side for all ranges, where Q sums to as many elements as are inside.

    P of a bin are its elements, and in the outermost bin of a range those beyond the range, too. Q spreads the elements
    of an interval over the width of its bins that are in use, so ``Q = density * width``, and ::

        sum of P * log(P / Q)  =  sum over bins of P * log(P / width)  -  sum over intervals of P * log(density)

    The first sum is a running one over all bins, read where a range ends, with another term for its outermost bin.

    Parameters
    ----------
    counts, widths : ndarray
        The bins of this side, from 0 on.
    ends : ndarray
        How many bins each range has.
    bounds : ndarray
        The first bin of each interval, and the end of the last one, a row for each range.
    outermost : ndarray
        The interval of the outermost bin of each range.
    """
    ranges = np.arange(ends.size)
    last = ends - 1
    elements_before = sums_before(counts)
    beyond = elements_before[-1] - elements_before[ends]
    inside = np.diff(elements_before[bounds], axis=1).astype(np.float64)
    p_of_intervals = inside.copy()
    p_of_intervals[ranges, outermost] += beyond
    used_widths = np.diff(sums_before(np.where(counts, widths, 0.0))[bounds], axis=1)
    used_widths[ranges, outermost] += np.where((beyond > 0) & (counts[last] == 0), widths[last], 0.0)
    density = np.where(inside > 0, inside, NONE) / np.where(used_widths > 0, used_widths, 1.0)
    of_bins = sums_before(_x_log_x_over(counts, widths))[ends]
    of_bins += _x_log_x_over(counts[last] + beyond, widths[last]) - _x_log_x_over(counts[last], widths[last])
    of_intervals = np.where(p_of_intervals > 0, p_of_intervals * np.log(density), 0.0)
    return np.asarray(of_bins - of_intervals.sum(axis=1))


def _x_log_x_over(x: Array, widths: Array) -> NDArray[np.float64]:
    """Return x * log(x / width), 0 for 0."""
    return np.where(x > 0, x * np.log(np.where(x > 0, x, 1) / widths), 0.0)
