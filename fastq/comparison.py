"""Error measures of an approximation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """How far an approximation is from an array; errors are ``x - approximation`` in float64.

    Attributes
    ----------
    mse : float
        Mean of the squared errors, in squared units of x.
    sqnr_db : float
        Signal to quantization noise ratio, ``10 log10(sum x**2 / sum error**2)``, in decibels; inf without errors.
    max_abs_error, mean_abs_error : float
        Of the absolute errors, in units of x.
    max_relative_error, mean_relative_error : float
        Of ``|error| / |x|`` over the elements that are not zero.
    clipped : int or None
        How many elements lie outside what the codes can hold; None for a plain array, which has no codes.
    """

    mse: float
    sqnr_db: float
    max_abs_error: float
    mean_abs_error: float
    max_relative_error: float
    mean_relative_error: float
    clipped: int | None
