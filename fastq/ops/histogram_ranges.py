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
from fastq.ops import percentile_and_entropy
from fastq.ops.histogram import (
    edge_units,
    edges_of,
    exponents,
    mantissa_bits,
    units_of_both_sides,
    widen,
)
from fastq.ops.quantize import FAKE_QUANTIZE_WITH_QPARAMS, QPARAMS_OF_RANGES
from fastq.plan.cache import call
from fastq.requests.options import QuantizeOptions, RangeOptions
from fastq.requests.quantization import by_calibrator
from fastq.results import Axis, Histogram, QParams

Array = NDArray[Any]


class Scheme(NamedTuple):
    """The scheme of the parameters, as in `fastq.choose_qparams`; `symmetric` is true for float formats."""

    dtype: QType
    axis: Axis
    symmetric: bool
    convention: str | Convention

    def of_ranges(self, lo: Array, hi: Array) -> QParams:
        """Return the parameters of ranges, each of which belongs to a part."""
        axis = None if self.axis is None else 0 if isinstance(self.axis, int) else tuple(range(lo.ndim))
        symmetric = self.symmetric and not self.dtype.element
        options = RangeOptions(axis, symmetric=symmetric, dtype=self.dtype, convention=self.convention)
        types = type(axis), int, bool, bool, type(None)
        params: QParams = call(QPARAMS_OF_RANGES, lo, hi, options=options, types=types)
        return replace(params, axis=self.axis)

    def values_of(self, x: Array, lo: Array, hi: Array) -> Array:
        """Fake quantize each row of x, along its last axis, by a range of its own."""
        params = self.of_ranges(lo, hi)
        if self.axis is not None:
            params = replace(params, axis=0 if isinstance(self.axis, int) else tuple(range(lo.ndim)))
        options = QuantizeOptions(key=params.key)
        values: Array = call(
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


def scheme_of(dtype: object, axis: Axis, symmetric: bool, convention: str | Convention, nan: str) -> tuple[Scheme, str]:
    """Validate what a calibrator is for; return it, and what becomes of NaN."""
    request = by_calibrator(dtype, axis, symmetric, convention, nan)
    scheme = Scheme(dtype=request.qtype, axis=request.axis, symmetric=request.symmetric, convention=convention)
    return scheme, request.nan


Ends = tuple[Array, Array]
Part = tuple[int, ...]


class Options(NamedTuple):
    """Options of the methods."""

    percentile: float
    quantized_bins: int
    grid: int


@in_standard_mode
def ranges(
    histogram: Histogram, scheme: Scheme, compute: np.dtype[Any], method: str, options: Options
) -> tuple[Ends, list[Part]]:
    """Return the ranges that a method takes from histograms, in the compute type, and those that bins can't tell."""
    (lo, hi), doubtful = _METHODS[method](histogram, scheme, compute, options)
    return (in_compute_type(lo, compute), in_compute_type(hi, compute)), doubtful


@in_standard_mode
def in_compute_type(ends: Array, compute: np.dtype[Any]) -> Array:
    """Return the ends of ranges in the compute type."""
    return ends.astype(compute)


def _minmax(histogram: Histogram, *_: object) -> tuple[Ends, list[Part]]:
    return (histogram.lo, histogram.hi), []


def _mse(histogram: Histogram, scheme: Scheme, compute: np.dtype[Any], options: Options) -> tuple[Ends, list[Part]]:
    """Return the ranges, shrunk to a number of `grid` parts, with the least squared error; among equals the largest.

    Errors are computed for the middles of bins, in units of the largest magnitude so that no square overflows.
    """
    middles = np.ldexp(_middles(histogram), exponents(histogram)[..., None]).astype(compute)
    largest = np.maximum(np.maximum(-histogram.lo, histogram.hi), np.finfo(np.float64).tiny)[..., None]
    least = np.full(histogram.lo.shape, np.inf)
    lo = histogram.lo
    hi = histogram.hi
    for part in range(options.grid, 0, -1):
        ratio = part / options.grid
        ends = (histogram.lo * ratio).astype(compute), (histogram.hi * ratio).astype(compute)
        values = scheme.values_of(middles, *ends)
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
    for part in np.ndindex(means.shape):
        occupied = np.flatnonzero(histogram.counts[part])
        counts = histogram.counts[part][occupied]
        means[part] = math.fsum(counts * np.square(middles[part][occupied])) / int(counts.sum())
    return np.asarray(np.ldexp(means, 2 * exponents(histogram)), compute)


class Range(NamedTuple):
    """A range of one histogram: its ends, and how wide the bins are in which they lie."""

    ends: tuple[float, float]
    widths: tuple[float, float]
    kept: tuple[int, int] = (0, 0)  # elements that might have been cut on either side
    is_lost: bool = False  # whether most elements are in fewer bins than it needs


def _for_each_part(
    of_part: Callable[[NDArray[np.int64], Array, Any, Scheme, Options], Range],
) -> Callable[..., tuple[Ends, list[Part]]]:
    """Make a method of one that takes a range from a single histogram; none goes beyond minimum and maximum."""

    def ends(histogram: Histogram, scheme: Scheme, _: object, options: Options) -> tuple[Ends, list[Part]]:
        lo = histogram.lo.copy()
        hi = histogram.hi.copy()
        widths = exponents(histogram)
        bins = histogram.counts.shape[-1] // 2
        doubtful = []
        for part in np.ndindex(lo.shape):
            counts = histogram.counts[part]
            extremes = histogram.lo[part], histogram.hi[part]
            part_range = of_part(counts, edges_of(bins, widths[part]), extremes[0], scheme, options)
            lo[part], hi[part] = np.clip(part_range.ends, *extremes)
            if _is_doubtful(part_range, (lo[part], hi[part]), extremes, int(counts.sum())):
                doubtful.append(part)
        return (lo, hi), doubtful

    return ends


FEW = 100  # one of so many elements hardly counts
FEW_ELEMENTS = 8  # that any bin may have
WIDE = 16  # a bin that is wider than this part of a range is too wide for it
NARROW = 4096  # one that is narrower than this part is narrow enough, however many elements it has


def _is_doubtful(part_range: Range, ends: tuple[Any, Any], extremes: tuple[Any, Any], total: int) -> bool:
    """Whether bins can't tell a range: contract C17.9."""
    extent = ends[1] - ends[0]
    for end, extreme, width, kept in zip(ends, extremes, part_range.widths, part_range.kept, strict=True):
        is_coarse = end != extreme and width > extent / WIDE
        if is_coarse or (kept > FEW_ELEMENTS + total / FEW and width > extent / NARROW):
            return True
    return part_range.is_lost


def _magnitudes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return counts of magnitudes."""
    bins = counts.size // 2
    return np.asarray(counts[bins:] + counts[bins - 1 :: -1])


def _percentile(counts: NDArray[np.int64], edges: Array, _: Any, scheme: Scheme, options: Options) -> Range:
    """Return the range with at least a percentage of the elements."""
    total = int(counts.sum())
    bins = counts.size // 2
    if scheme.symmetric:
        cut = (100.0 - options.percentile) / 100.0 * total
        k, above = percentile_and_entropy.highest_bin(_magnitudes(counts), cut)
        end = float(edges[bins + k + 1])
        width = end - float(edges[bins + k])
        kept = int(cut) - above
        return Range(ends=(-end, end), widths=(width, width), kept=(kept, kept))
    cut = (100.0 - options.percentile) / 200.0 * total
    lowest, below = percentile_and_entropy.lowest_bin(counts, cut)
    highest, above = percentile_and_entropy.highest_bin(counts, cut)
    highest = max(lowest, highest)
    ends = float(edges[lowest]), float(edges[highest + 1])
    widths = float(edges[lowest + 1]) - ends[0], ends[1] - float(edges[highest])
    return Range(ends=ends, widths=widths, kept=(int(cut) - below, int(cut) - above))


FINE_OCTAVES = 5  # below the magnitude that hardly an element is above


def _entropy(counts: NDArray[np.int64], edges: Array, minimum: Any, _: Scheme, options: Options) -> Range:
    """Return the range of least divergence of the elements that are not 0."""
    bins = counts.size // 2
    units = edge_units(bins)
    half = options.quantized_bins // 2
    others = counts.copy()
    others[bins - 1 : bins + 1] = 0
    total = int(others.sum())
    steps = 0
    if total:
        reference, _above = percentile_and_entropy.highest_bin(_magnitudes(others), total / FEW)
        steps = max((reference >> mantissa_bits(bins)) - FINE_OCTAVES, 0)
    wide = widen(others if total else counts, steps)
    used = int(np.flatnonzero(_magnitudes(wide))[-1]) + 1
    is_whole = not total or used <= half
    size = used if is_whole else percentile_and_entropy.entropy(wide, units, options.quantized_bins)
    end = float(np.ldexp(units[size], steps) * edges[bins + 1])
    lost = int(counts[bins - 1 : bins + 1].sum()) if minimum > 0.0 else int(counts[bins - 1])  # that are not 0
    is_lost = (size == half and not is_whole) or lost * 4 > int(counts.sum())
    return Range(ends=(-end, end), widths=(0.0, 0.0), is_lost=is_lost)


_METHODS: dict[str, Callable[..., tuple[Ends, list[Part]]]] = {
    "minmax": _minmax,
    "percentile": _for_each_part(_percentile),
    "mse": _mse,
    "entropy": _for_each_part(_entropy),
}
METHODS = tuple(_METHODS)
