"""Take a range to quantize from a histogram, by the published algorithms: percentile."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def percentile(counts: NDArray[np.int64], edges: NDArray[np.float64], share: float, symmetric: bool) -> list[float]:
    """Return the ends of a range that holds so many percent of the elements.

    The arithmetic is that of onnxruntime's HistogramCollector: an end is the lower edge of the bin in which the share
    is reached. Symmetric, counts are of magnitudes.
    """
    shares = np.cumsum(counts / counts.sum())
    if symmetric:
        end = float(edges[np.searchsorted(shares, share / 100.0)])
        return [-end, end]
    cut = (100.0 - share) / 200.0
    return [float(edges[np.searchsorted(shares, end)]) for end in (cut, 1.0 - cut)]
