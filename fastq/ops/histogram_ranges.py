"""Take ranges from histograms, by a method, and parameters from ranges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.formats.conventions import Convention
from fastq.formats.qtypes import QType
from fastq.ops import thresholds
from fastq.ops.histogram import (
    edge_units,
    edges_of,
    exponents,
    mantissa_bits,
    units_of_both_sides,
    widened,
)
from fastq.ops.quantize import FAKE_QUANTIZE_WITH_QPARAMS, QPARAMS_OF_RANGES
from fastq.plan.cache import call
from fastq.requests.options import QuantizeOptions, RangeOptions
from fastq.requests.values import calibrated
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
        """Fake quantize x, whose leading axes are those of the ranges, each row of the last axis by its own range."""
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
    request = calibrated(dtype, axis, symmetric, convention, nan)
    return Scheme(request.qtype, request.axis, request.symmetric, convention), request.nan


Ends = tuple[Array, Array]
Part = tuple[int, ...]


class Options(NamedTuple):
    """Options of the methods."""

    percentile: float
    quantized_bins: int
    grid: int


@in_standard_mode
def ranges(
    seen: Histogram, scheme: Scheme, compute: np.dtype[Any], method: str, options: Options
) -> tuple[Ends, list[Part]]:
    """Return the ranges that a method takes from histograms, in the compute type, and those that bins can't tell."""
    (lo, hi), doubtful = _METHODS[method](seen, scheme, compute, options)
    return (rounded(lo, compute), rounded(hi, compute)), doubtful


@in_standard_mode
def rounded(ends: Array, compute: np.dtype[Any]) -> Array:
    """Return the ends of ranges in the compute type."""
    return ends.astype(compute)


def _minmax(seen: Histogram, *_: object) -> tuple[Ends, list[Part]]:
    return (seen.lo, seen.hi), []


def _mse(seen: Histogram, scheme: Scheme, compute: np.dtype[Any], options: Options) -> tuple[Ends, list[Part]]:
    """Return the ranges, shrunk to a number of `grid` parts, with the least squared error; among equals the largest.

    Errors are computed for the middles of bins, in units of the largest magnitude so that no square overflows.
    """
    middles = np.ldexp(_middles(seen), exponents(seen)[..., None]).astype(compute)
    largest = np.maximum(np.maximum(-seen.lo, seen.hi), np.finfo(np.float64).tiny)[..., None]
    least = np.full(seen.lo.shape, np.inf)
    lo = seen.lo
    hi = seen.hi
    for part in range(options.grid, 0, -1):
        ratio = part / options.grid
        ends = (seen.lo * ratio).astype(compute), (seen.hi * ratio).astype(compute)
        values = scheme.values_of(middles, *ends)
        error = np.where(seen.counts, (middles.astype(np.float64) - values) / largest, 0.0)
        total = (error * error * seen.counts).sum(axis=-1)
        better = total < least
        least = np.where(better, total, least)
        lo, hi = np.where(better, ends[0], lo), np.where(better, ends[1], hi)
    return (lo, hi), []


def _middles(seen: Histogram) -> Array:
    """Return the middles of bins in units of the narrowest one, within minimum and maximum."""
    edges = units_of_both_sides(seen.counts.shape[-1] // 2)
    lo, hi = (np.ldexp(end, -exponents(seen))[..., None] for end in (seen.lo, seen.hi))
    return np.asarray(np.clip((edges[:-1] + edges[1:]) / 2, lo, hi))


@in_standard_mode
def mean_squares(seen: Histogram, compute: np.dtype[Any]) -> Array:
    """Return the mean of the squares of the middles of bins, each counted for its elements; a sum is rounded once."""
    middles = _middles(seen)
    means = np.empty(seen.lo.shape)
    for part in np.ndindex(means.shape):
        there = np.flatnonzero(seen.counts[part])
        counts = seen.counts[part][there]
        means[part] = math.fsum(counts * np.square(middles[part][there])) / int(counts.sum())
    return np.asarray(np.ldexp(means, 2 * exponents(seen)), compute)


class Range(NamedTuple):
    """A range of one histogram: its ends, and how wide the bins are in which they lie."""

    ends: tuple[float, float]
    widths: tuple[float, float]
    kept: tuple[int, int] = (0, 0)  # elements that might have been cut on either side
    is_lost: bool = False  # whether most elements are in fewer bins than it needs


def _each(
    of_part: Callable[[NDArray[np.int64], Array, Any, Scheme, Options], Range],
) -> Callable[..., tuple[Ends, list[Part]]]:
    """Make a method of one that takes a range from a single histogram; none goes beyond minimum and maximum."""

    def ends(seen: Histogram, scheme: Scheme, _: object, options: Options) -> tuple[Ends, list[Part]]:
        lo = seen.lo.copy()
        hi = seen.hi.copy()
        widths = exponents(seen)
        bins = seen.counts.shape[-1] // 2
        doubtful = []
        for part in np.ndindex(lo.shape):
            counts = seen.counts[part]
            extremes = seen.lo[part], seen.hi[part]
            found = of_part(counts, edges_of(bins, widths[part]), extremes[0], scheme, options)
            lo[part], hi[part] = np.clip(found.ends, *extremes)
            if _is_doubtful(found, (lo[part], hi[part]), extremes, int(counts.sum())):
                doubtful.append(part)
        return (lo, hi), doubtful

    return ends


FEW = 100  # one of so many elements hardly counts
FEW_ELEMENTS = 8  # that any bin may have
WIDE = 16  # a bin that is wider than this part of a range is too wide for it
NARROW = 4096  # one that is narrower than this part is narrow enough, however many elements it has


def _is_doubtful(found: Range, ends: tuple[Any, Any], extremes: tuple[Any, Any], total: int) -> bool:
    """Whether bins can't tell a range: contract C17.9."""
    extent = ends[1] - ends[0]
    for end, extreme, width, kept in zip(ends, extremes, found.widths, found.kept, strict=True):
        is_coarse = end != extreme and width > extent / WIDE
        if is_coarse or (kept > FEW_ELEMENTS + total / FEW and width > extent / NARROW):
            return True
    return found.is_lost


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
        k, above = thresholds.highest_bin(_magnitudes(counts), cut)
        end = float(edges[bins + k + 1])
        width = end - float(edges[bins + k])
        kept = int(cut) - above
        return Range((-end, end), (width, width), (kept, kept))
    cut = (100.0 - options.percentile) / 200.0 * total
    lowest, below = thresholds.lowest_bin(counts, cut)
    highest, above = thresholds.highest_bin(counts, cut)
    highest = max(lowest, highest)
    ends = float(edges[lowest]), float(edges[highest + 1])
    widths = float(edges[lowest + 1]) - ends[0], ends[1] - float(edges[highest])
    return Range(ends, widths, (int(cut) - below, int(cut) - above))


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
        reference, _above = thresholds.highest_bin(_magnitudes(others), total / FEW)
        steps = max((reference >> mantissa_bits(bins)) - FINE_OCTAVES, 0)
    wide = widened(others if total else counts, steps)
    used = int(np.flatnonzero(_magnitudes(wide))[-1]) + 1
    is_whole = not total or used <= half
    size = used if is_whole else thresholds.entropy(wide, units, options.quantized_bins)
    end = float(np.ldexp(units[size], steps) * edges[bins + 1])
    lost = int(counts[bins - 1 : bins + 1].sum()) if minimum > 0.0 else int(counts[bins - 1])  # that are not 0
    is_lost = (size == half and not is_whole) or lost * 4 > int(counts.sum())
    return Range((-end, end), (0.0, 0.0), is_lost=is_lost)


_METHODS: dict[str, Callable[..., tuple[Ends, list[Part]]]] = {
    "minmax": _minmax,
    "percentile": _each(_percentile),
    "mse": _mse,
    "entropy": _each(_entropy),
}
METHODS = tuple(_METHODS)
