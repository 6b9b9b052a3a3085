"""Sums of the errors of quantized values, which add up over rows and over tensors."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

import fastq
from fastq.results import Comparison, QuantizedArray
from fastq.results.measures import Totals
from fastq.system.dtypes import Array

PIECE = 1 << 20  # elements squared together; bounds the temporaries
LEAST = 1e-200  # sums of squares of float64 below this may lack some that are too small; those of float32 have 2e-90


class Errors(NamedTuple):
    """Sums of squared errors and of the squares of values, and the largest error, of some rows or of all."""

    noise: float
    signal: float
    largest: float
    exponent: int = 0  # the sums are those of numbers divided by this power of two, whose squares float64 holds

    def with_more(self, other: Errors) -> Errors:
        """Return the sums of both."""
        exponent = max((each.exponent for each in (self, other) if each.noise or each.signal), default=0)
        noise, signal = (
            sum(math.ldexp(each[k], 2 * (each.exponent - exponent)) for each in (self, other)) for k in (0, 1)
        )
        return Errors(noise, signal, max(self.largest, other.largest), exponent)

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio in decibels; inf without errors, NaN if float64 does not hold the sums."""
        if not self.noise:
            return math.nan if self.largest > 0 else math.inf
        if math.isfinite(self.largest) and (math.isinf(self.noise) or math.isinf(self.signal)):
            return math.nan
        ratio = self.signal / self.noise
        return 10 * math.log10(ratio) if ratio else -math.inf


MOST_DB = 3080.0  # above it signal / noise is no number of float64
NO_ERRORS = Errors(0.0, 0.0, 0.0)


def errors_of(values: Array, approximation: Array | QuantizedArray) -> Errors:
    """Measure the errors of converted values."""
    return sums_of(fastq.compare(values, approximation), values, approximation)


def sums_of(measured: Comparison, values: Array, approximation: Array | QuantizedArray) -> Errors:
    """Return the sums of the errors of values."""
    noise = measured.mse * values.size
    is_known = noise and math.isfinite(noise) and measured.sqnr_db < MOST_DB
    signal = noise * 10 ** (measured.sqnr_db / 10) if is_known else signal_of(values)
    return _within_float64(Errors(noise, signal, measured.max_abs_error), values, approximation)


def sums_of_part(measured: Totals, values: Array, approximation: Array) -> Errors:
    """Return the sums of the errors of a part of an array."""
    return _within_float64(Errors(measured.noise, measured.signal, measured.largest), values, approximation)


def _within_float64(sums: Errors, values: Array, approximation: Array | QuantizedArray) -> Errors:
    """Return sums, computed anew from smaller or larger numbers if squares are too large or too small for float64."""
    is_held = LEAST <= sums.noise < math.inf and LEAST <= sums.signal < math.inf
    if is_held or values.dtype != np.float64 or not 0 < sums.largest < math.inf:
        return sums
    exponent = exponent_for_squares(values) or math.frexp(sums.largest)[1]
    decoded = fastq.dequantize(approximation) if isinstance(approximation, QuantizedArray) else approximation
    ours, theirs = (np.ldexp(np.ravel(each).astype(np.float64, copy=False), -exponent) for each in (values, decoded))
    return Errors(signal_of(ours - theirs), signal_of(ours), sums.largest, exponent)


def exponent_for_squares(values: Array) -> int:
    """Return the power of two by which to divide values so that float64 holds the sum of their squares; 0 for most."""
    if values.dtype != np.float64 or LEAST <= signal_of(values) < math.inf:
        return 0
    largest = float(np.maximum(-values.min(initial=0.0), values.max(initial=0.0)))
    return math.frexp(largest)[1] if math.isfinite(largest) else 0


def signal_of(values: Array) -> float:
    """Return the sum of the squares of values."""
    rows = values.reshape(1, -1) if values.ndim < 2 else values
    step = max(PIECE * len(rows) // max(values.size, 1), 1)
    with np.errstate(over="ignore"):  # of float64
        return float(sum(np.square(rows[k : k + step], dtype=np.float64).sum() for k in range(0, len(rows), step)))
