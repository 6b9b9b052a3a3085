"""Find outlier channels of an array, along each of its axes."""

from __future__ import annotations

import numpy as np

from fastq.results.measures import outliers_of
from fastq.system.dtypes import Array

SHOWN_CHANNELS = 3  # most channels of an axis that a text names


def largest_of_channels(x: Array, axis: int) -> Array:
    """Return the largest magnitude of each channel of an axis, by NumPy, which compiles nothing."""
    apart = tuple(k for k in range(x.ndim) if k != axis)
    lo = np.asarray(x.min(axis=apart), np.float64)
    hi = np.asarray(x.max(axis=apart), np.float64)
    return np.maximum(-lo, hi)


def outliers_by_axis(x: Array) -> dict[int, Array]:
    """Return the indices of outlier channels by axis, without the axes that have none; an axis of two has none."""
    outliers = {axis: outliers_of(largest_of_channels(x, axis)) for axis, length in enumerate(x.shape) if length > 2}
    return {axis: channels for axis, channels in outliers.items() if channels.size}


def outlier_text(axis: int, channels: Array) -> str:
    """Return an axis and its outlier channels as text."""
    more = channels.size - SHOWN_CHANNELS
    first = ", ".join(map(str, channels[:SHOWN_CHANNELS].tolist()))
    return f"axis {axis}: {first}" + (f" and {more:,} more" if more > 0 else "")
