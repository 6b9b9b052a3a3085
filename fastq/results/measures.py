"""Measures of arrays: Histogram of one array, Comparison of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.results.squares import SumOfSquares, add_up, decibels, total_of
from fastq.system.imports import late

FAR = 6.0  # a channel is an outlier from this multiple of the median of all largest magnitudes


class Histogram(NamedTuple):
    """The histogram of the elements of each part of an array, and their range."""

    # minima and maxima; inf and -inf for a part without elements
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    # counts of the bins from -bins to bins - 1, in shape ``(*lo.shape, 2 * bins)``, whose edges follow from the largest
    # magnitude of the part: `edges_of` in fastq/ops/histogram.py
    counts: NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Comparison:
    """The errors of an approximation of an array; errors are ``x - approximation`` in float64.

    An error of NaN makes every measure NaN in which it counts.

    Attributes
    ----------
    mse : float
        Mean of the squared errors, in squared units of x.
    sqnr_db : float
        Signal to quantization noise ratio, ``10 log10(sum x**2 / sum error**2)``, in decibels; inf if there are no
        errors, also for zeros; NaN if x and errors are infinite. float64 need not hold the squares.
    max_abs_error, mean_abs_error : float
        Largest and mean absolute error, in units of x.
    max_relative_error, mean_relative_error : float
        Largest and mean ``|error| / |x|`` over the elements that are not zero.
    clipped : int or None
        Number of elements outside the range of the codes; None for a plain array, which has no codes.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.array([0.0, 0.3, 1.0], np.float32)
    >>> error = fastq.compare(x, fastq.quantize(x, "uint2"))
    >>> round(error.max_abs_error, 4), error.clipped
    (0.0333, 0)
    """

    mse: float
    sqnr_db: float
    max_abs_error: float
    mean_abs_error: float
    max_relative_error: float
    mean_relative_error: float
    clipped: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the measures by name as Python numbers: a row of a table, or JSON if all are finite.

        Returns
        -------
        dict
            Measures in the order of the attributes.

        Examples
        --------
        >>> import numpy as np, fastq
        >>> fastq.compare(np.array([1.0, 2.0]), np.array([1.0, 1.5])).to_dict()["max_relative_error"]
        0.25
        """
        return asdict(self)

    def __repr__(self) -> str:
        measures = ", ".join(f"{name}={_short(value)}" for name, value in self.to_dict().items())
        return f"Comparison({measures})"

    def _repr_html_(self) -> str:
        numbers = {name: _short(value) for name, value in self.to_dict().items()}
        return _card_of_numbers()("Comparison", numbers)


@late
def _card_of_numbers() -> Callable[..., str]:
    """Import what makes a card of HTML, which notebooks alone need."""
    from fastq.results.card import card_of_numbers

    return card_of_numbers


def missing_values_error(count: int) -> ValueError:
    """Return the error, to be raised, for NaN in the array whose errors are measured."""
    advice = "leave them out of both arrays, as x[~np.isnan(x)]"
    return ValueError(f"x has {count} NaN, whose errors cannot be measured; {advice}")


class Totals(NamedTuple):
    """Sums over elements and largest errors, from which a `Comparison` is made; sums of parts can be added."""

    size: int
    noise: float  # sums of squared errors, squares, absolute errors and relative errors
    signal: float
    absolute: float
    relative: float
    largest: float
    largest_relative: float
    zeros: int  # elements without a relative error
    clipped: int | None
    missing: int = 0  # NaN among the elements, which are then not in the sums
    # the sums of squares are in units of 4**exponent
    noise_exponent: int = 0
    signal_exponent: int = 0

    @classmethod
    def of_nothing(cls, has_codes: bool, missing: int = 0) -> Totals:
        """Return the totals of zero elements, or of a part that has NaN."""
        return cls(
            size=0,
            noise=0.0,
            signal=0.0,
            absolute=0.0,
            relative=0.0,
            largest=0.0,
            largest_relative=0.0,
            zeros=0,
            clipped=0 if has_codes else None,
            missing=missing,
        )

    @property
    def squares(self) -> tuple[SumOfSquares, SumOfSquares]:
        """The sums of squared errors and of squares."""
        return SumOfSquares(self.noise, self.noise_exponent), SumOfSquares(self.signal, self.signal_exponent)


def measures_of(totals: Totals) -> Comparison:
    """Return the measures of the elements in these totals."""
    size = totals.size
    mse = totals.noise / size
    if totals.noise_exponent:
        mse = SumOfSquares(mse, totals.noise_exponent).value
    sqnr_db = decibels(totals.signal, totals.noise, totals.signal_exponent - totals.noise_exponent)
    relative_errors = size - totals.zeros
    mean_relative = totals.relative / relative_errors if relative_errors else 0.0
    mean_absolute = totals.absolute / size
    # by position: keywords take 0.6 us, a twentieth of a small call
    return Comparison(
        mse, sqnr_db, totals.largest, mean_absolute, totals.largest_relative, mean_relative, totals.clipped
    )


def comparison_of(parts: Sequence[Totals]) -> Comparison:
    """Return the measures of all parts of an array, in any order; raise ValueError for NaN, and without elements."""
    columns: dict[str, list[Any]] = {name: [getattr(part, name) for part in parts] for name in Totals._fields}
    if missing := sum(columns["missing"]):
        raise missing_values_error(missing)
    if not sum(columns["size"]):
        raise ValueError("x is empty: there is no error to measure")
    totals: dict[str, Any] = {name: total_of(columns[name]) for name in ("absolute", "relative")}
    noise, signal = map(add_up, zip(*(part.squares for part in parts), strict=True))
    totals |= {"noise": noise.number, "noise_exponent": noise.exponent}
    totals |= {"signal": signal.number, "signal_exponent": signal.exponent}
    totals |= {name: None if None in columns[name] else sum(columns[name]) for name in ("size", "zeros", "clipped")}
    totals |= {name: _greatest(columns[name]) for name in ("largest", "largest_relative")}
    return measures_of(Totals(**totals))


def _greatest(numbers: list[float]) -> float:
    """Return the largest number, NaN if one is: `max` would return one of them only if it came first."""
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def _short(value: float | None) -> str:
    """Return a number with the significant digits of a measure of errors."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@np.errstate(all="ignore")
def outliers_of(largest: NDArray[Any]) -> NDArray[np.intp]:
    """Return the indices of magnitudes of at least six times the median; no indices if the median is 0."""
    middle = np.median(largest) if largest.size else 0.0
    return np.flatnonzero(largest >= FAR * middle) if middle else np.empty(0, np.intp)
