"""Calibrate: keep all data, and apply the contract to it as a whole."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import as_convention
from fastq.formats.granularity import granularity
from fastq.reference.arrays import as_input, nan_as_zero, widen
from fastq.reference.operations import fake_quantize
from fastq.reference.search import RangeParameters
from fastq.requests.quantization import compute_dtype, request_by_calibrator
from fastq.results import Axis, Histogram, QParams
from fastq.system.arguments import as_choice, as_float, as_int, shown
from fastq.system.dtypes import Array

LEAST_EXPONENT = -1022


class Calibrator:
    """Calibrate data that arrives piece by piece; arguments and errors as for `fastq.Calibrator`."""

    def __init__(
        self,
        dtype: object,
        *,
        axis: Axis = None,
        symmetric: bool = False,
        convention: str | Convention = "onnx",
        bins: int | None = None,
        nan: str = "raise",
    ) -> None:
        self.request = request = request_by_calibrator(dtype, axis, symmetric, convention, nan)
        self.dtype = request.qtype
        self.axis = request.axis
        self.symmetric = request.symmetric
        self.convention = convention
        self.nan = request.nan
        self.bins = (4096 if axis is None else 1024) if bins is None else as_int(bins, "bins")
        if self.bins not in [1 << k for k in range(4, 21)]:
            raise ValueError(f"bins must be a power of two from 16 to 2**20, not {self.bins}")
        self.compute: type[np.floating[Any]] = np.float32
        self.pieces: list[NDArray[np.float64]] = []

    def update(self, x: ArrayLike) -> None:
        """Keep an array: its channels in front, then its elements."""
        x = widen(as_input(x))
        kept = granularity(self.axis, 0, x.ndim).kept
        number = nan_as_zero(x, self.nan).astype(compute_dtype(x.dtype).type).astype(np.float64)
        if np.isinf(number).any():
            raise ValueError(f"x has {np.count_nonzero(np.isinf(number))} infinite values")
        channels = tuple(x.shape[a] for a in kept)
        if self.pieces and self.pieces[0].shape[:-1] != channels:
            raise ValueError(f"x has channels of shape {channels}, earlier arrays {self.pieces[0].shape[:-1]}")
        rest = [a for a in range(x.ndim) if a not in kept]
        length = int(np.prod([x.shape[a] for a in rest], dtype=np.int64))
        self.pieces.append(number.transpose(*kept, *rest).reshape(*channels, length))
        self.compute = np.float64 if compute_dtype(x.dtype).type is np.float64 else self.compute

    def merge(self, other: Calibrator) -> None:
        """Keep the data of another calibrator."""
        if not isinstance(other, Calibrator):
            raise TypeError(f"other must be a Calibrator, not {shown(other)}")
        for name, rule in self._rules().items():
            if rule != other._rules()[name]:
                raise ValueError(f"other has another {name}")
        self.pieces += other.pieces
        self.compute = np.float64 if other.compute is np.float64 else self.compute

    def _rules(self) -> dict[str, Any]:
        """Return what calibrators must have in common to be merged, by the names of arguments."""
        names = ("dtype", "axis", "symmetric", "bins", "nan")
        return {name: getattr(self, name) for name in names} | {"convention": as_convention(self.convention)}

    def histogram(self) -> Histogram:
        """Return the histogram of all data, channel by channel."""
        if not self.pieces:
            raise ValueError("this Calibrator has no data yet: call update")
        x = np.concatenate(self.pieces, axis=-1)
        lo, hi = np.full(x.shape[:-1], np.inf), np.full(x.shape[:-1], -np.inf)
        counts = np.zeros((*x.shape[:-1], 2 * self.bins), np.int64)
        for index in np.ndindex(lo.shape):
            elements = x[index][~np.isnan(x[index])]  # NaN remains only if it is left out
            if elements.size:
                lo[index], hi[index] = elements.min() + 0.0, elements.max() + 0.0
                for k in bins_of(elements, self.bins):
                    counts[index][self.bins + k] += 1
        return Histogram(lo, hi, counts)

    def _histogram_of_all_channels(self) -> Histogram:
        """Return the histogram, or refuse a channel without elements, which has no range."""
        histogram = self.histogram()
        if not histogram.counts.any(axis=-1).all():
            raise ValueError("this Calibrator has no elements yet of some channels: call update")
        return histogram

    def qparams(self, method: str = "minmax", **options: Any) -> QParams:
        """Return the parameters for the ranges of a method."""
        return self._parameters(*self.clipping_range(method, **options))

    def clipping_range(
        self, method: str = "minmax", *, percentile: float = 99.999, quantized_bins: int = 128, grid: int = 100
    ) -> tuple[Array, Array]:
        """Return the range of a method for the histogram of each channel."""
        method = as_choice(method, "method", ("minmax", "percentile", "mse", "entropy"))
        percentile = as_float(percentile, "percentile", 0.0, 100.0)
        quantized_bins = as_int(quantized_bins, "quantized_bins")
        grid = as_int(grid, "grid")
        if quantized_bins not in range(2, (1 << 20) + 1, 2):
            raise ValueError(f"quantized_bins must be even and from 2 to {1 << 20}, not {quantized_bins}")
        if grid not in range(1, 10_001):
            raise ValueError(f"grid must be from 1 to 10000, not {grid}")
        lo, hi, counts = self._histogram_of_all_channels()
        ends = self._least_error(lo, hi, counts, grid) if method == "mse" else [lo.copy(), hi.copy()]
        for index in np.ndindex(lo.shape) if method in ("percentile", "entropy") else ():
            edges = edges_of(float(lo[index]), float(hi[index]), self.bins)
            if method == "entropy":
                low, high = entropy_range(counts[index], edges, quantized_bins)
            else:
                low, high = percentile_range(counts[index], edges, percentile, self.symmetric)
            ends[0][index], ends[1][index] = np.clip((low, high), lo[index], hi[index])
        return ends[0].astype(self.compute), ends[1].astype(self.compute)

    @np.errstate(over="ignore", under="ignore")
    def importance(self) -> Array:
        """Return the mean square of each channel, with elements moved to the middles of their bins."""
        lo, hi, counts = self._histogram_of_all_channels()
        means = np.empty(lo.shape)
        for index in np.ndindex(lo.shape):
            low = float(lo[index])
            high = float(hi[index])
            squares = []
            exponent = exponent_of(max(-low, high, 0.0), self.bins)
            ends = [edge(k, self.bins) for k in range(self.bins + 1)]
            for k, count in enumerate(counts[index].tolist(), -self.bins):
                middle = (ends[k] + ends[k + 1]) / 2 if k >= 0 else -(ends[-1 - k] + ends[-k]) / 2
                middle = min(max(middle, math.ldexp(low, -exponent)), math.ldexp(high, -exponent))
                squares.append(float(count) * (middle * middle))
            means[index] = np.ldexp(math.fsum(squares) / int(counts[index].sum()), 2 * exponent)
        return means.astype(self.compute)

    def _parameters(self, lo: Array, hi: Array) -> QParams:
        """Return the parameters of ranges, rounded to the compute type; -0.0 becomes 0.0."""
        ends = (end.astype(self.compute) + self.compute(0) for end in (lo, hi))
        parameters = RangeParameters(self.request, np.zeros(lo.shape, bool), None)
        return parameters.kept(parameters.of(*ends))

    @np.errstate(over="ignore", under="ignore")  # values may be infinite, and their errors may underflow
    def _least_error(self, lo: Array, hi: Array, counts: NDArray[np.int64], grid: int) -> list[Array]:
        """Try one range after the other, on the middles of bins."""
        best = np.full(lo.shape, np.inf)
        ends = [lo.copy(), hi.copy()]
        middles = np.empty(counts.shape)  # of bins, within the range
        for index in np.ndindex(lo.shape):
            exponent = exponent_of(max(float(-lo[index]), float(hi[index]), 0.0), self.bins)
            edges = edges_in_widths(self.bins)
            of_bins = np.ldexp((edges[:-1] + edges[1:]) / 2, exponent)  # finite, as no edge needs to be
            middles[index] = np.clip(of_bins, lo[index], hi[index])
        middles = middles.astype(self.compute)
        # of an array that has channels in front, as counts have
        axis = None if self.axis is None else 0 if isinstance(self.axis, int) else tuple(range(lo.ndim))
        for k in range(grid, 0, -1):
            low, high = ((end * (k / grid)).astype(self.compute).astype(np.float64) for end in (lo, hi))
            values = fake_quantize(middles, qparams=replace(self._parameters(low, high), axis=axis))
            for index in np.ndindex(lo.shape):
                largest = max(float(-lo[index]), float(hi[index]), float(np.finfo(np.float64).tiny))
                error = np.where(counts[index] > 0, (middles[index].astype(np.float64) - values[index]) / largest, 0.0)
                total = np.sum(error * error * counts[index])
                if total < best[index]:
                    best[index] = total
                    ends[0][index] = low[index]
                    ends[1][index] = high[index]
        return ends


def edge(k: int, bins: int) -> float:
    """Return the magnitude at which bin k begins, in widths of the narrowest bin."""
    # contract 17.2
    b = bins.bit_length() - 1
    m = max(b // 2 + 1, b - 8)
    return float(k) if k < 1 << m else math.ldexp((1 << m) + k % (1 << m), (k >> m) - 1)


def edges_in_widths(bins: int) -> NDArray[np.float64]:
    """Return the edges on both sides of 0, in widths of the narrowest bin."""
    above = [edge(k, bins) for k in range(1, bins + 1)]
    return np.array([*(-end for end in reversed(above)), 0.0, *above])


def exponent_of(magnitude: float, bins: int) -> int:
    """Return the smallest e, from -1022 on, with magnitude < edge(bins) * 2**e."""
    # contract 17.2
    e = LEAST_EXPONENT
    end = edge(bins, bins)
    with np.errstate(over="ignore"):
        while magnitude >= np.ldexp(end, e):
            e += 1
    return e


def bins_of(x: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """Return the bin of each number, those of negative ones from -1 down."""
    # contract 17.2
    edges = [edge(k, bins) for k in range(bins + 1)]
    magnitudes = np.ldexp(np.abs(x), -exponent_of(float(np.abs(x).max()), bins))
    k = np.searchsorted(edges, magnitudes, side="right") - 1
    return np.where(x < 0, -1 - k, k)


def edges_of(lo: float, hi: float, bins: int) -> NDArray[np.float64]:
    """Return the edges of the bins of a range; the outermost may be infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(edges_in_widths(bins), exponent_of(max(-lo, hi, 0.0), bins)))


def percentile_range(
    counts: NDArray[np.int64], edges: NDArray[np.float64], percentile: float, symmetric: bool
) -> tuple[float, float]:
    """Return the narrowest range of whole bins that cuts no more elements than it may."""
    # contract 17.5
    total = int(counts.sum())
    if symmetric:
        bins = counts.size // 2
        magnitudes = counts[bins:] + counts[:bins][::-1]
        cut = (100.0 - percentile) / 100.0 * total
        k = next(k for k in range(bins) if magnitudes[k + 1 :].sum() <= cut)
        return -edges[bins + k + 1], edges[bins + k + 1]
    cut = (100.0 - percentile) / 200.0 * total
    first = max(k for k in range(counts.size) if counts[:k].sum() <= cut)
    last = max(first, next(k for k in range(counts.size) if counts[k + 1 :].sum() <= cut))
    return edges[first], edges[last + 1]


FINE_OCTAVES = 5  # that bins have below the magnitude that hardly an element is above
NEAR = 1e-9  # divergences this far above the least one count as equal, as their sums are rounded


def entropy_range(counts: NDArray[np.int64], edges: NDArray[np.float64], quantized_bins: int) -> tuple[float, float]:
    """Return the first range whose divergence is close to the least."""
    # contract 17.6
    bins = counts.size // 2
    half = quantized_bins // 2
    without_zeros = counts.copy()
    without_zeros[bins - 1 : bins + 1] = 0
    if not without_zeros.any():
        return -edges[bins + 1], edges[bins + 1]
    magnitudes = without_zeros[bins:] + without_zeros[:bins][::-1]
    hardly_any = without_zeros.sum() / 100
    usual = next(k for k in range(bins) if magnitudes[k + 1 :].sum() <= hardly_any)  # hardly an element is above
    steps = max(octave_of(usual, bins) - FINE_OCTAVES, 0)
    wide = widened(without_zeros, steps)
    used = max(k + 1 for k in range(bins) if wide[bins + k] or wide[bins - 1 - k])
    best = used
    if used > half:
        divergences = np.array([divergence(wide, k, quantized_bins) for k in range(half, used + 1)])
        best = half + int(np.argmax(divergences <= divergences.min() + NEAR))
    with np.errstate(over="ignore"):
        end = float(np.ldexp(edge(best, bins), steps) * edges[bins + 1])
    return -end, end


def widened(counts: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    """Return the counts of the same elements in bins of an e that is larger by `steps`."""
    bins = counts.size // 2
    wide = np.zeros_like(counts)
    for k in range(bins):
        to = k
        for _ in range(steps):
            to = bin_in_wider_ones(to, bins)
        wide[bins + to] += counts[bins + k]
        wide[bins - 1 - to] += counts[bins - 1 - k]
    return wide


def octave_of(k: int, bins: int) -> int:
    """Return the octave of bin k, 0 for the narrowest bins."""
    return k >> max((bins.bit_length() - 1) // 2 + 1, bins.bit_length() - 9)


def bin_in_wider_ones(k: int, bins: int) -> int:
    """Return the bin of bin k's elements in a histogram with e larger by one, whose bins are twice as wide."""
    # contract 17.3
    bins_of_octave = bins // octave_of(bins, bins)  # the octave after the last bin is the number of octaves
    return k // 2 if k < 2 * bins_of_octave else k - bins_of_octave


def divergence(counts: NDArray[np.int64], size: int, quantized_bins: int) -> float:
    """Return the divergence of the range of `size` bins on either side of 0, bin by bin.

    That is the sum of ``p log(p / q)``: p is the share of a bin, the last one with all that lies beyond, and q its
    share once the count of each of `quantized_bins` intervals is spread over its bins that are not empty, by their
    widths.
    """
    bins = counts.size // 2
    half = quantized_bins // 2
    end = edge(size, bins)
    terms = []
    total = float(counts.sum())
    inside = float(counts[bins - size : bins + size].sum())
    if not inside:
        return float("inf")
    for side in (counts[bins:], counts[bins - 1 :: -1]):
        p = side[:size].astype(np.float64)
        p[-1] += side[size:].sum()
        edges = np.array([edge(k, bins) for k in range(size + 1)])
        widths = np.diff(edges)
        interval = np.floor((edges[:-1] + widths / 2) * half / end)
        for j in range(half):
            filled = (interval == j) & (p > 0)
            if not filled.any():
                continue
            q = (side[:size][interval == j].sum() or 1e-4) * widths[filled] / widths[filled].sum()
            terms.append(np.sum(p[filled] / total * np.log((p[filled] / total) / (q / inside))))
    return math.fsum(terms)
