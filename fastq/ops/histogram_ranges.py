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
from fastq.ops import percentile_and_entropy
from fastq.ops.histogram import edges_of, exponents
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


class Options(NamedTuple):
    """Options of the methods."""

    percentile: float
    quantized_bins: int
    grid: int


@in_standard_mode
def ranges(histogram: Histogram, scheme: Scheme, compute: np.dtype[Any], method: str, options: Options) -> Ends:
    """Return the ranges that a method takes from histograms, in the compute type."""
    lo, hi = _METHODS[method](histogram, scheme, compute, options)
    return in_compute_type(lo, compute), in_compute_type(hi, compute)


@in_standard_mode
def in_compute_type(ends: Array, compute: np.dtype[Any]) -> Array:
    """Return the ends of ranges in the compute type."""
    return ends.astype(compute)


def _minmax(histogram: Histogram, *_: object) -> Ends:
    return histogram.lo, histogram.hi


@np.errstate(over="ignore", under="ignore")  # values may be infinite
def _mse(histogram: Histogram, scheme: Scheme, compute: np.dtype[Any], options: Options) -> Ends:
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
    return lo, hi


def _middles(histogram: Histogram) -> Array:
    """Return the middle of each bin, in units of the width of a bin.

    The outermost bins reach beyond the data: there the middle is at most the maximum, or at least the minimum.
    """
    bins = histogram.counts.shape[-1] // 2
    middles = np.arange(-bins, bins) + 0.5
    exponents_of_widths = exponents(histogram)
    lo = np.ldexp(histogram.lo, -exponents_of_widths)[..., None]
    hi = np.ldexp(histogram.hi, -exponents_of_widths)[..., None]
    return np.asarray(np.clip(middles, lo, hi))


@in_standard_mode
@np.errstate(over="ignore", under="ignore")
def mean_squares(histogram: Histogram, compute: np.dtype[Any]) -> Array:
    """Return the mean of the squares of the middles of bins, each counted for its elements; a sum is rounded once."""
    middles = _middles(histogram)
    means = np.empty(histogram.lo.shape)
    for part in np.ndindex(means.shape):
        occupied = np.flatnonzero(histogram.counts[part])
        counts = histogram.counts[part][occupied]
        means[part] = math.fsum(counts * np.square(middles[part][occupied])) / int(counts.sum())
    return np.asarray(np.ldexp(means, 2 * exponents(histogram)), compute)


def _for_each_part(of_part: Callable[..., list[float]]) -> Callable[..., Ends]:
    """Make a method of one that takes a range from a single histogram, its counts and edges; none goes beyond it."""

    def ends(histogram: Histogram, scheme: Scheme, _: object, options: Options) -> Ends:
        lo = histogram.lo.copy()
        hi = histogram.hi.copy()
        widths = exponents(histogram)
        for part in np.ndindex(lo.shape):
            counts = histogram.counts[part]
            low, high = of_part(counts, edges_of(counts.size // 2, widths[part]), scheme, options)
            lo[part], hi[part] = np.clip((low, high), lo[part], hi[part])
        return lo, hi

    return ends


def _magnitudes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return counts of magnitudes; the bins below 0 have the upper edge where the others have the lower one."""
    bins = counts.size // 2
    return np.asarray(counts[bins:] + counts[bins - 1 :: -1])


def _percentile(counts: NDArray[np.int64], edges: Array, scheme: Scheme, options: Options) -> list[float]:
    if scheme.symmetric:
        above = edges[counts.size // 2 :]
        return percentile_and_entropy.percentile(_magnitudes(counts), above, options.percentile, True)
    return percentile_and_entropy.percentile(counts, edges, options.percentile, False)


def _entropy(counts: NDArray[np.int64], edges: Array, _: Scheme, options: Options) -> list[float]:
    """Return the range of least divergence; bins beyond the largest magnitude do not count."""
    bins = counts.size // 2
    used = int(np.flatnonzero(_magnitudes(counts))[-1]) + 1
    first, last = bins - used, bins + used
    return percentile_and_entropy.entropy(counts[first:last], edges[first : last + 1], options.quantized_bins)


_METHODS: dict[str, Callable[..., Ends]] = {
    "minmax": _minmax,
    "percentile": _for_each_part(_percentile),
    "mse": _mse,
    "entropy": _for_each_part(_entropy),
}
METHODS = tuple(_METHODS)
