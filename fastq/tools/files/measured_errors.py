"""Sums of the errors of quantized values, which add up over rows and over tensors."""

from __future__ import annotations

from typing import NamedTuple

from fastq.ops.compare import totals
from fastq.results import QuantizedArray
from fastq.results.measures import Totals
from fastq.results.squares import SumOfSquares, add_up, decibels
from fastq.system.dtypes import Array


class Errors(NamedTuple):
    """Sums of squared errors and of the squares of values, and the largest error, of some rows or of all."""

    noise: float  # sum of squared errors
    signal: float  # sum of squared values
    largest: float  # largest error
    # the sums are in units of 4**exponent, since float64 does not hold all squares
    noise_exponent: int = 0
    signal_exponent: int = 0

    def with_more(self, other: Errors) -> Errors:
        """Return the sums of both."""
        parts = (self, other)
        noise = add_up([SumOfSquares(part.noise, part.noise_exponent) for part in parts])
        signal = add_up([SumOfSquares(part.signal, part.signal_exponent) for part in parts])
        return Errors(
            noise=noise.number,
            signal=signal.number,
            largest=max(self.largest, other.largest),
            noise_exponent=noise.exponent,
            signal_exponent=signal.exponent,
        )

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio in decibels; inf without errors, NaN if values and errors are infinite."""
        return decibels(self.signal, self.noise, self.signal_exponent - self.noise_exponent)


NO_ERRORS = Errors(0.0, 0.0, 0.0)


def errors_of(values: Array, approximation: Array | QuantizedArray) -> Errors:
    """Measure the errors of converted values, as sums that more rows can be added to."""
    return errors_in(totals(values, approximation))


def errors_in(measured: Totals) -> Errors:
    """Return the errors among what was measured: `Totals` has other measures of values and codes, too."""
    return Errors(
        noise=measured.noise,
        signal=measured.signal,
        largest=measured.largest,
        noise_exponent=measured.noise_exponent,
        signal_exponent=measured.signal_exponent,
    )
