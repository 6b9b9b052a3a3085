"""Codes of codebooks in plain NumPy: values from the table, codes by counting the thresholds below a value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastq.formats.codebooks import LEAST_SCALE, Codebook
from fastq.system.dtypes import Array


@np.errstate(over="ignore", under="ignore")
def ratios(x: Array, scale: Array) -> Array:
    """Return values in units of their scales: products with the reciprocal, of a tiny scale with that of the least."""
    one, least = x.dtype.type(1), x.dtype.type(LEAST_SCALE)
    return np.asarray(x * (one / np.maximum(scale, least)))


def encoded(values: Array, row: Codebook) -> NDArray[np.uint8]:
    """Return the codes of values in units of the scale."""
    place = np.searchsorted(np.array(row.thresholds, values.dtype), values, side="left")
    return np.array(row.order, np.uint8)[place]


def decoded(codes: Array, row: Codebook) -> NDArray[np.float64]:
    """Return the numbers of codes."""
    return np.array(row.values, np.float64)[codes.astype(np.intp)]


def outside(values: Array, row: Codebook) -> NDArray[np.bool_]:
    """Return which values lie half a step or more beyond the first or the last number."""
    first, last = (values.dtype.type(bound) for bound in row.bounds)
    return np.asarray((values < first) | (values > last))
