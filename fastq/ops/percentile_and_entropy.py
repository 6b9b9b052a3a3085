"""Take a range to quantize from a histogram, by the published algorithms: percentile and entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def percentile(counts: NDArray[np.int64], edges: NDArray[np.float64], share: float, symmetric: bool) -> list[float]:
    """Return the ends of a range that holds a percentage of the elements.

    The arithmetic is that of onnxruntime's HistogramCollector: an end is the lower edge of the bin in which the share
    is reached. Symmetric, counts are of magnitudes.
    """
    shares = np.cumsum(counts / counts.sum())
    if symmetric:
        end = float(edges[np.searchsorted(shares, share / 100.0)])
        return [-end, end]
    cut = (100.0 - share) / 200.0
    return [float(edges[np.searchsorted(shares, end)]) for end in (cut, 1.0 - cut)]


# --- entropy ----------------------------------------------------------------------------------------------------------

_EPS = 0.0001  # replaces zeros, so that divergences are finite
# The first pass computes divergences in float64, onnxruntime compares them in float32. In 60 histograms of six
# distributions they differed by at most 2.7e-6.
_NEAR = 2e-5
# Up to this share of zeros a series with this number of terms replaces logarithms; its error is below 1e-7.
_FEW_ZEROS = 0.2
_TERMS = 8


def entropy(counts: NDArray[np.int64], edges: NDArray[np.float64], quantized_bins: int) -> list[float]:
    """Return the ends of the range whose codes tell most of the distribution: the least Kullback-Leibler divergence.

    The range and its divergence are those of onnxruntime's `HistogramCollector.get_entropy_threshold`. That takes a
    second for 2,048 bins; here sums are looked up in cumulative sums, and only ranges with a divergence near the least
    one are computed in its way.
    """
    middle = counts.size // 2
    half = quantized_bins // 2
    if middle < half:
        return [float(edges[0]), float(edges[-1])]
    near = _divergences(counts, quantized_bins)
    candidates = np.nonzero(near <= near.min() + _NEAR)[0]
    exact = [_divergence(counts, middle - half - k, quantized_bins) for k in candidates.tolist()]
    start = middle - half - int(candidates[int(np.argmin(exact))])
    return [float(edges[start]), float(edges[_stop(start, counts.size)])]


def _stop(start: Any, size: int) -> Any:
    """Return where the range ends that begins with a bin: it has one bin more above 0 than below, if there is one."""
    return np.minimum(2 * (size // 2) - start + 1, size)


def _divergence(counts: NDArray[np.int64], start: int, quantized_bins: int) -> float:
    """Return the divergence of one range, in the arithmetic of onnxruntime."""
    stop = int(_stop(start, counts.size))
    within = counts[start:stop]
    p = within.copy()
    p[0] += counts[:start].sum()
    p[-1] += counts[stop:].sum()
    merged = p.size // quantized_bins
    whole = merged * quantized_bins
    sums = within[:whole].reshape(quantized_bins, merged).sum(axis=1)
    sums[-1] += within[whole:].sum()
    present = (p[:whole] != 0).reshape(quantized_bins, merged).sum(axis=1)
    q = np.zeros_like(p)
    q[:whole] = np.repeat((sums / np.maximum(present, 1) * (present != 0)).astype(np.int64), merged)
    if not p.any() or not q.any():
        return np.inf
    return float(_relative_entropy(_smooth(p), _smooth(q)))


def _smooth(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    zeros = (counts == 0).astype(np.float32)
    others = (counts != 0).astype(np.float32)
    count = float(zeros.sum())
    less = _EPS * count / (counts.size - count)
    smooth = counts.astype(np.float32)
    smooth += _EPS * zeros + (-less) * others
    return smooth


def _relative_entropy(p: NDArray[np.float32], q: NDArray[np.float32]) -> np.float32:
    p, q = 1.0 * p / np.sum(p, keepdims=True), 1.0 * q / np.sum(q, keepdims=True)
    terms = p * np.log(p / q)
    return np.float32(np.sum(terms))


def _divergences(counts: NDArray[np.int64], quantized_bins: int) -> NDArray[np.float64]:
    """Return the divergences of all ranges, the narrowest first, in float64."""
    size = counts.size
    total = float(counts.sum())
    start = np.arange(size // 2 - quantized_bins // 2, -1, -1)
    stop = _stop(start, size)
    sums = _before(counts)
    present = _before(counts != 0)
    below, above = sums[start], sums[-1] - sums[stop]
    first, last = counts[start] + below, counts[stop - 1] + above
    new_first = (first != 0) & (counts[start] == 0)
    new_last = (last != 0) & (counts[stop - 1] == 0)
    length = stop - start
    merged = length // quantized_bins
    is_whole = length == merged * quantized_bins
    bounds = start[:, None] + merged[:, None] * np.arange(quantized_bins + 1)
    mass = np.diff(sums[bounds])
    filled = np.diff(present[bounds])
    rest = sums[stop] - sums[bounds[:, -1]]
    filled[:, 0] += new_first
    filled[:, -1] += new_last & is_whole
    codes = mass.copy()
    codes[:, -1] += rest
    codes = np.floor(codes / np.maximum(filled, 1)) * (filled != 0)
    nonempty = present[stop] - present[start] + new_first + new_last
    less_p = _EPS * (length - nonempty) / np.maximum(nonempty, 1)
    coded = merged * np.count_nonzero(codes, axis=1)
    less_q = _EPS * (length - coded) / np.maximum(coded, 1)
    logs = np.log(np.where(codes > 0, codes - less_q[:, None], _EPS))
    mass[:, 0] += below
    mass[:, -1] += np.where(is_whole, above, 0)
    smooth = mass - less_p[:, None] * filled + _EPS * (merged[:, None] - filled)
    cross = (smooth * logs).sum(axis=1) + (total - smooth.sum(axis=1)) * np.log(_EPS)
    own = _own_entropy(counts, start, stop, first, last, less_p) + (length - nonempty) * _EPS * np.log(_EPS)
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = (own - cross) / total - np.log(total) + np.log(merged * codes.sum(axis=1))
    return np.where((coded > 0) & (less_p < 1) & (less_q < 1), divergence, np.inf)


def _before(values: Array) -> Array:
    return np.concatenate(([0], np.cumsum(values)))


def _x_log_x(x: Array, less: Array) -> Array:
    """Return f(x - less), where f(x) = x log x, of counts; 0 of no elements."""
    is_positive = x > 0
    rest = np.where(is_positive, x - less, 1.0)
    return np.where(is_positive & (rest > 0), rest * np.log(np.where(rest > 0, rest, 1.0)), 0.0)


def _own_entropy(counts: Array, start: Array, stop: Array, first: Array, last: Array, less: Array) -> Array:
    """Return the sum of f(p - less) over the nonempty bins of each range, with all elements beyond at its ends.

    The bins between are summed by the Taylor series of f, whose terms are sums over bins.
    """
    is_positive = counts > 0
    x = np.where(is_positive, counts, 1).astype(np.float64)
    log = np.where(is_positive, np.log(x), 0.0)
    between = [_before(term)[stop - 1] - _before(term)[start + 1] for term in (x * log, (log + 1.0) * is_positive)]
    result: Array = between[0] - less * between[1]
    for power in range(2, _TERMS + 2):
        term = _before(np.where(is_positive, x ** (1.0 - power), 0.0))
        result += less**power / (power * (power - 1)) * (term[stop - 1] - term[start + 1])
    for k in np.nonzero(less > _FEW_ZEROS)[0]:
        result[k] = _x_log_x(counts[start[k] + 1 : stop[k] - 1], less[k]).sum()
    return result + _x_log_x(first, less) + _x_log_x(last, less)
