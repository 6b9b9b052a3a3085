"""Sums of squared errors, added over parts of a tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.results import Comparison


def sqnr(signal: float, noise: float) -> float:
    """Return the ratio of two sums in decibels; inf without noise."""
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def noise_and_signal(measured: Comparison, values: NDArray[Any]) -> tuple[float, float]:
    """Return the sums of the squared errors and of the squares of values that were measured."""
    noise = measured.mse * values.size
    if not noise:
        return 0.0, float(np.square(values, dtype=np.float64).sum())
    return noise, noise * 10 ** (measured.sqnr_db / 10)
