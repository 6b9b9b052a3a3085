"""Sums of the errors of quantized values, which add up over rows and over tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

import fastq
from fastq.results import Comparison, QuantizedArray
from fastq.results.measures import Totals
from fastq.system.dtypes import Array

PIECE = 1 << 20  # elements squared together; bounds the temporaries


class Errors(NamedTuple):
    """Sums of squared errors and of the squares of values, and the largest error, of some rows or of all."""

    noise: float
    signal: float
    largest: float

    def with_more(self, other: Errors) -> Errors:
        """Return the sums of both."""
        return Errors(self.noise + other.noise, self.signal + other.signal, max(self.largest, other.largest))

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio in decibels; inf without noise."""
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


NO_ERRORS = Errors(0.0, 0.0, 0.0)


def errors_of(values: Array, approximation: Array | QuantizedArray) -> Errors:
    """Measure the errors of converted values."""
    return sums_of(fastq.compare(values, approximation), values)


def sums_of(measured: Comparison, values: Array) -> Errors:
    """Return the sums of the errors of values."""
    noise = measured.mse * values.size
    signal = noise * 10 ** (measured.sqnr_db / 10) if noise else signal_of(values)
    return Errors(noise, signal, measured.max_abs_error)


def errors_in(parts: Sequence[Totals]) -> Errors:
    """Return the sums of all parts."""
    return reduce(Errors.with_more, (Errors(part.noise, part.signal, part.largest) for part in parts), NO_ERRORS)


def signal_of(values: Array) -> float:
    """Return the sum of the squares of values."""
    rows = values.reshape(1, -1) if values.ndim < 2 else values
    step = max(PIECE * len(rows) // max(values.size, 1), 1)
    return float(sum(np.square(rows[k : k + step], dtype=np.float64).sum() for k in range(0, len(rows), step)))
