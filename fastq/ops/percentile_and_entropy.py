"""Take a range to quantize from a histogram: the bins at its ends, of a percentile or of the least divergence."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Counts = NDArray[np.int64]


# --- percentile -------------------------------------------------------------------------------------------------------


def lowest_bin(counts: Counts, cut: float) -> tuple[int, int]:
    """Return the last bin below which there are no more than `cut` elements, and how many there are."""
    below = _before(counts)[:-1]
    k = int(np.searchsorted(below, cut, side="right")) - 1
    return k, int(below[k])


def highest_bin(counts: Counts, cut: float) -> tuple[int, int]:
    """Return the first bin above which there are no more than `cut` elements, and how many there are."""
    k, above = lowest_bin(counts[::-1], cut)
    return counts.size - 1 - k, above


# --- entropy ----------------------------------------------------------------------------------------------------------

NEAR = 1e-9  # above the least divergence, which is rounded
NONE = 1e-4  # elements of an interval that has none, to which those beyond a range are clipped


def entropy(counts: Counts, units: NDArray[np.float64], quantized_bins: int) -> int:
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
    own = np.zeros(ends.size)
    inside = np.zeros(ends.size)
    for side in sides:
        own += _divergences(side, widths, ends, bounds, outermost)
        inside += _before(side)[ends]
    total = float(counts.sum())
    with np.errstate(divide="ignore"):
        divergences = np.where(inside > 0, own / total + np.log(inside / total), np.inf)
    return int(ends[np.argmax(divergences <= divergences.min() + NEAR)])


def _divergences(counts: Counts, widths: Array, ends: Array, bounds: Array, outermost: Array) -> NDArray[np.float64]:
    """Return the sums of P * log(P / Q) of one side for all ranges, where Q sums to as many elements as are inside."""
    before = _before(counts)
    beyond = before[-1] - before[ends]
    last = ends - 1
    ranges = np.arange(ends.size)
    mass = np.diff(before[bounds], axis=1).astype(np.float64)
    used = np.diff(_before(np.where(counts, widths, 0.0))[bounds], axis=1)
    used[ranges, outermost] += np.where((beyond > 0) & (counts[last] == 0), widths[last], 0.0)
    elements = mass.copy()
    elements[ranges, outermost] += beyond
    terms = _before(_x_log_x_over(counts, widths))[ends]
    terms += _x_log_x_over(counts[last] + beyond, widths[last]) - _x_log_x_over(counts[last], widths[last])
    density = np.where(mass > 0, mass, NONE) / np.where(used > 0, used, 1.0)
    spread = np.where(elements > 0, elements * np.log(density), 0.0)
    return np.asarray(terms - spread.sum(axis=1))


def _before(values: Array) -> Array:
    """Return the sums of the values before each, and of all."""
    return np.concatenate((np.zeros(1, values.dtype), np.cumsum(values)))


def _x_log_x_over(x: Array, widths: Array) -> NDArray[np.float64]:
    """Return x * log(x / width), 0 for 0."""
    return np.where(x > 0, x * np.log(np.where(x > 0, x, 1) / widths), 0.0)
