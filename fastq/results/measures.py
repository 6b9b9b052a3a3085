"""What is measured of arrays: Histogram of one, Comparison of two."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FAR = 6.0  # times the median of the largest magnitudes of channels from which one is an outlier


class Histogram(NamedTuple):
    """How often the elements of each part of an array lie in which bin, and their range.

    Attributes
    ----------
    lo, hi : ndarray of float64
        Minima and maxima, inf and -inf of no elements.
    counts : ndarray of int64
        Shape ``(*lo.shape, 2 * bins)``: of the bins from -bins to bins - 1, where bin k is that of
        ``floor(x / 2**e)``. The exponent e is the least one at which the largest magnitude of the part is below
        ``bins * 2**e``, and -1022 at least.
    """

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Comparison:
    """How far an approximation is from an array; errors are ``x - approximation`` in float64.

    An error that is NaN makes every measure NaN that it belongs to.

    Attributes
    ----------
    mse : float
        Mean of the squared errors, in squared units of x.
    sqnr_db : float
        Signal to quantization noise ratio, ``10 log10(sum x**2 / sum error**2)``, in decibels; inf without errors, of
        zeros too.
    max_abs_error, mean_abs_error : float
        Of the absolute errors, in units of x.
    max_relative_error, mean_relative_error : float
        Of ``|error| / |x|`` over the elements that are not zero.
    clipped : int or None
        How many elements lie outside what the codes can hold; None for a plain array, which has no codes.

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
        """Return the measures by their names, as numbers of Python: a row of a table, or JSON where all are finite.

        Returns
        -------
        dict
            In the order of the attributes.

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


def _short(value: float | None) -> str:
    """Return a number with the digits that a measure of errors deserves."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def outliers_of(largest: NDArray[Any]) -> NDArray[np.intp]:
    """Return the indices of magnitudes that are six times the median of all, or more; none where that is 0."""
    middle = np.median(largest) if largest.size else 0.0
    return np.flatnonzero(largest >= FAR * middle) if middle else np.empty(0, np.intp)
