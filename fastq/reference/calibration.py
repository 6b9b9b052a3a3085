"""Calibrate: keep all data, and apply the contract to it as a whole."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.conventions import Convention, as_convention
from fastq.formats.granularity import granularity
from fastq.reference.arrays import as_input, nan_as_zero, widen
from fastq.reference.operations import fake_quantize
from fastq.reference.search import RangeParameters
from fastq.requests.quantization import by_calibrator, compute_dtype
from fastq.results import Axis, Histogram, QParams
from fastq.system.arguments import as_choice, as_float, as_int, equal, is_a, shown
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
        self.request = request = by_calibrator(dtype, axis, symmetric, convention, nan)
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
        if not is_a(other, Calibrator):
            raise TypeError(f"other must be a Calibrator, not {shown(other)}")
        for name, rule in self._rules().items():
            if not equal(rule, other._rules()[name]):
                raise ValueError(f"other has another {name}")
        self.pieces += other.pieces
        self.compute = np.float64 if other.compute is np.float64 else self.compute

    def _rules(self) -> dict[str, Any]:
        names = ("dtype", "axis", "symmetric", "bins", "nan")
        return {name: getattr(self, name) for name in names} | {"convention": as_convention(self.convention)}

    def histogram(self) -> Histogram:
        """Return the histogram of all data, channel by channel."""
        if not self.pieces:
            raise ValueError("this Calibrator has no data yet: call update")
        x = np.concatenate(self.pieces, axis=-1)
        lo, hi = np.full(x.shape[:-1], np.inf), np.full(x.shape[:-1], -np.inf)
        counts = np.zeros((*x.shape[:-1], 2 * self.bins), np.int64)
        for part in np.ndindex(lo.shape):
            elements = x[part][~np.isnan(x[part])]  # NaN remains only if it is left out
            if elements.size:
                lo[part], hi[part] = elements.min() + 0.0, elements.max() + 0.0
                counts[part] = np.bincount(bins_of(elements, self.bins) + self.bins, minlength=2 * self.bins)
        return Histogram(lo, hi, counts)

    def _histogram_of_all_channels(self) -> Histogram:
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
        for part in np.ndindex(lo.shape) if method in ("percentile", "entropy") else ():
            edges = edges_of(float(lo[part]), float(hi[part]), self.bins)
            if method == "entropy":
                low, high = entropy_range(*_without_empty_ends(counts[part], edges), quantized_bins)
            else:
                low, high = percentile_range(counts[part], edges, percentile, self.symmetric)
            ends[0][part], ends[1][part] = np.clip((low, high), lo[part], hi[part])
        return ends[0].astype(self.compute), ends[1].astype(self.compute)

    @np.errstate(over="ignore", under="ignore")
    def importance(self) -> Array:
        """Return the mean square of each channel, with elements moved to the middles of their bins."""
        lo, hi, counts = self._histogram_of_all_channels()
        means = np.empty(lo.shape)
        for part in np.ndindex(lo.shape):
            low = float(lo[part])
            high = float(hi[part])
            squares = []
            exponent = exponent_of(max(-low, high, 0.0), self.bins)
            for k, count in enumerate(counts[part].tolist(), -self.bins):
                middle = min(max(k + 0.5, math.ldexp(low, -exponent)), math.ldexp(high, -exponent))
                squares.append(float(count) * (middle * middle))
            means[part] = np.ldexp(math.fsum(squares) / int(counts[part].sum()), 2 * exponent)
        return means.astype(self.compute)

    def _parameters(self, lo: Array, hi: Array) -> QParams:
        ends = (end.astype(self.compute) + self.compute(0) for end in (lo, hi))
        return RangeParameters(self.request, np.zeros(lo.shape, bool), None).of(*ends)

    @np.errstate(over="ignore", under="ignore")  # values may be infinite, and their errors may underflow
    def _least_error(self, lo: Array, hi: Array, counts: NDArray[np.int64], grid: int) -> list[Array]:
        """Try one range after the other, on the middles of bins."""
        best = np.full(lo.shape, np.inf)
        ends = [lo.copy(), hi.copy()]
        middles = np.empty(counts.shape)
        for part in np.ndindex(lo.shape):
            exponent = exponent_of(max(float(-lo[part]), float(hi[part]), 0.0), self.bins)
            of_bins = np.ldexp(np.arange(-self.bins, self.bins) + 0.5, exponent)  # finite, as no edge needs to be
            middles[part] = np.clip(of_bins, lo[part], hi[part])
        middles = middles.astype(self.compute)
        axis = None if self.axis is None else 0 if isinstance(self.axis, int) else tuple(range(lo.ndim))
        for k in range(grid, 0, -1):
            low, high = ((end * (k / grid)).astype(self.compute).astype(np.float64) for end in (lo, hi))
            values = fake_quantize(middles, qparams=replace(self._parameters(low, high), axis=axis))
            for part in np.ndindex(lo.shape):
                largest = max(float(-lo[part]), float(hi[part]), float(np.finfo(np.float64).tiny))
                error = np.where(counts[part] > 0, (middles[part].astype(np.float64) - values[part]) / largest, 0.0)
                total = np.sum(error * error * counts[part])
                if total < best[part]:
                    best[part] = total
                    ends[0][part] = low[part]
                    ends[1][part] = high[part]
        return ends


def exponent_of(magnitude: float, bins: int) -> int:
    """Return the smallest e, from -1022 on, with magnitude < bins * 2**e."""
    # contract 17.2
    e = LEAST_EXPONENT
    with np.errstate(over="ignore"):
        while magnitude >= np.ldexp(float(bins), e):
            e += 1
    return e


def bins_of(x: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """Return the bin of each number: floor(x / 2**e), negative even if the quotient underflows."""
    # contract 17.2
    quotient = np.floor(np.ldexp(x, -exponent_of(float(np.abs(x).max()), bins)))
    return np.where(x < 0, np.minimum(quotient, -1), quotient).astype(np.int64)


def edges_of(lo: float, hi: float, bins: int) -> NDArray[np.float64]:
    """Return the edges of the bins of a range; the outermost may be infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(np.arange(-bins, bins + 1.0), exponent_of(max(-lo, hi, 0.0), bins)))


def _without_empty_ends(
    counts: NDArray[np.int64], edges: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a histogram without the empty bins at both ends."""
    bins = counts.size // 2
    k = 0
    while not counts[k] and not counts[-1 - k] and k < bins - 1:
        k += 1
    return counts[k : 2 * bins - k], edges[k : 2 * bins + 1 - k]


def percentile_range(
    counts: NDArray[np.int64], edges: NDArray[np.float64], percentile: float, symmetric: bool
) -> tuple[float, float]:
    """Return the range with a share of the elements, as in onnxruntime's `HistogramCollector`."""
    # contract 17.5
    if symmetric:
        bins = counts.size // 2
        magnitudes = counts[bins:] + counts[:bins][::-1]
        end = edges[bins:][np.searchsorted(np.cumsum(magnitudes / magnitudes.sum()), percentile / 100.0)]
        return -end, end
    shares = np.cumsum(counts / counts.sum())
    cut = (100.0 - percentile) / 200.0
    return edges[np.searchsorted(shares, cut)], edges[np.searchsorted(shares, 1.0 - cut)]


def entropy_range(counts: NDArray[np.int64], edges: NDArray[np.float64], quantized_bins: int) -> tuple[float, float]:
    """Return the range of least divergence, step by step as in onnxruntime's `get_entropy_threshold`."""
    # contract 17.6
    middle = counts.size // 2
    half = quantized_bins // 2
    ranges = [(edges[0], edges[-1])]
    divergences = [np.inf]
    for i in range(half, middle + 1):
        start, stop = middle - i, min(middle + i + 1, counts.size)
        p = counts[start:stop].copy()
        merged = p.size // quantized_bins
        sums = [p[k * merged : (k + 1) * merged].sum() for k in range(quantized_bins)]
        sums[-1] += p[quantized_bins * merged :].sum()
        p[0] += counts[:start].sum()
        p[-1] += counts[stop:].sum()
        q = np.zeros(p.size, np.int64)
        for k in range(quantized_bins):
            present = np.count_nonzero(p[k * merged : (k + 1) * merged])
            if present:
                q[k * merged : (k + 1) * merged] = sums[k] / present
        ranges.append((edges[start], edges[stop]))
        divergences.append(_divergence(_smooth(p), _smooth(q)) if p.any() and q.any() else np.inf)
    return ranges[int(np.argmin(divergences[1:])) + 1] if middle >= half else ranges[0]


def _smooth(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    zeros = (counts == 0).astype(np.float32)
    others = (counts != 0).astype(np.float32)
    smooth = counts.astype(np.float32)
    smooth += 0.0001 * zeros + (-0.0001 * float(zeros.sum()) / float(others.sum())) * others
    return smooth


def _divergence(p: NDArray[np.float32], q: NDArray[np.float32]) -> float:
    p, q = 1.0 * p / np.sum(p, axis=0, keepdims=True), 1.0 * q / np.sum(q, axis=0, keepdims=True)
    return float(np.sum(p * np.log(p / q), axis=0))
