"""Measure the errors of an approximation in float64."""

from __future__ import annotations

from math import inf

import numpy as np

from fastq.reference import floats
from fastq.reference.codes import positions, rules_of
from fastq.requests.parameters import check_qparams
from fastq.results import Comparison, QParams
from fastq.system.dtypes import Array


def clipped_count(x: Array, p: QParams) -> int:
    """Count the elements that lie outside the range of the codes, in the compute type of the parameters."""
    # contract 16.5
    with np.errstate(over="ignore", under="ignore"):
        x = x.astype(p.compute_dtype)
    quotients = positions(x, check_qparams(p, x.shape, p.compute_dtype))
    form = p.dtype.float_format
    first, last = rules_of(p)[2]
    outside = (quotients < first) | (quotients > last) if form is None else floats.outside(quotients, form)
    return int(np.count_nonzero(outside))


@np.errstate(all="ignore")
def measures(x: Array, approximation: Array, clipped: int | None) -> Comparison:
    """Return the measures of the errors ``x - approximation``, which are computed in float64."""
    # contract 16.1, 16.2, 16.3 and 16.4
    x = x.astype(np.float64)
    error = np.abs(x - approximation.astype(np.float64))
    noise, exponent_of_noise = _sum_of_squares(error)
    signal, exponent_of_signal = _sum_of_squares(x)
    steps = exponent_of_signal - exponent_of_noise
    relative = error[x != 0] / np.abs(x[x != 0])
    return Comparison(
        mse=float(np.ldexp(noise / error.size, 2 * exponent_of_noise)),
        sqnr_db=float(10 * (np.log10(signal) - np.log10(noise)) + steps * 20 * np.log10(2)) if noise else inf,
        max_abs_error=float(np.max(error)),
        mean_abs_error=float(np.mean(error)),
        max_relative_error=float(np.max(relative)) if relative.size else 0.0,
        mean_relative_error=float(np.mean(relative)) if relative.size else 0.0,
        clipped=clipped,
    )


def _sum_of_squares(x: Array) -> tuple[np.float64, int]:
    """Return a number and an exponent: the sum of squares is ``number * 4**exponent``."""
    # contract 16.3
    largest = np.max(np.abs(x))
    exponent = int(np.frexp(largest)[1]) if np.isfinite(largest) else 0
    return np.sum(np.ldexp(x, -exponent) ** 2), exponent
