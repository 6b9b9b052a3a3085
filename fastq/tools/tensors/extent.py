"""Statistics of the numbers of a tensor: their range, NaN, infinities, and outlier channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastq.results.measures import outliers_of
from fastq.system.dtypes import Array

PIECE = 1 << 20  # elements looked at together; bounds the temporaries


@dataclass(frozen=True)
class Extent:
    """Statistics of the numbers of a tensor."""

    lo: float | None  # the smallest and the largest finite number; None without finite numbers
    hi: float | None
    nan: int  # number of NaN and of infinities
    infinite: int
    # outlier channels by axis, of two or more axes: indices whose largest magnitude is at least six times the median
    outliers: dict[int, tuple[int, ...]]

    def with_more(self, other: Extent) -> Extent:
        """Return the statistics of both parts."""
        lows, highs = ([end for end in ends if end is not None] for ends in ((self.lo, other.lo), (self.hi, other.hi)))
        counts = self.nan + other.nan, self.infinite + other.infinite
        return Extent(min(lows, default=None), max(highs, default=None), *counts, {})


NOTHING = Extent(None, None, 0, 0, {})


def extent_of(values: Array) -> Extent:
    """Return the statistics of an array, computed piece by piece."""
    shape = (values.shape[0], math.prod(values.shape[1:])) if values.ndim > 1 else (1, values.size)
    # arrays in Fortran order are not copied: the order within a row does not matter here
    by_columns = values.flags.f_contiguous and values.ndim > 1
    rows = values.T.reshape(shape[::-1]).T if by_columns else values.reshape(shape)
    height, width = max(PIECE // max(shape[1], 1), 1), max(min(PIECE, shape[1]), 1)
    found = np.zeros((4, shape[0]))
    found[:2] = [[np.inf], [-np.inf]]
    largest_of_columns = np.full(shape[1] if values.ndim > 1 else 0, -1.0)  # -1 without finite numbers
    for top in range(0, shape[0], height):
        band = found[:, top : top + height]
        for left in range(0, shape[1], width):
            tile = rows[top : top + height, left : left + width]
            lo, hi, *counts = _row_ends(tile)
            band[:2] = np.minimum(band[0], lo), np.maximum(band[1], hi)
            band[2:] += counts
            if values.ndim > 1:
                columns = largest_of_columns[left : left + width]
                np.maximum(columns, _largest_of_columns(tile), out=columns)
    lo, hi, nan, infinite = found
    finite = lo <= hi
    outliers = {}
    if values.ndim > 1:
        of_rows = np.where(finite, np.maximum(-lo, hi), -1.0)
        others = largest_of_columns.reshape(values.shape[1:], order="F" if by_columns else "C")
        for axis in range(values.ndim):
            apart = tuple(k for k in range(others.ndim) if k != axis - 1)
            largest = others.max(axis=apart, initial=-1.0) if axis else of_rows
            known = np.flatnonzero(largest >= 0)
            if far := known[outliers_of(largest[known])].tolist():
                outliers[axis] = tuple(far)
    least, most = (float(lo[finite].min()), float(hi[finite].max())) if finite.any() else (None, None)
    return Extent(least, most, int(nan.sum()), int(infinite.sum()), outliers)


def _largest_of_columns(rows: Array) -> Array:
    """Return the largest finite magnitude of each column, -1 without any."""
    numbers = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    largest: Array = np.maximum(-numbers.min(axis=0), numbers.max(axis=0))
    if not np.isfinite(largest).all():
        magnitudes = np.abs(numbers)
        largest = np.max(magnitudes, axis=0, where=np.isfinite(magnitudes), initial=-1.0)
    return largest


def _row_ends(rows: Array) -> tuple[Array, Array, Array, Array]:
    """Return the finite extremes of each row, inf and -inf without any, and the counts of NaN and infinities."""
    numbers = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    lo, hi = numbers.min(axis=1), numbers.max(axis=1)
    if np.isfinite(lo).all() and np.isfinite(hi).all():  # almost always so, and in a fifth of the time
        return lo, hi, np.zeros(len(rows)), np.zeros(len(rows))
    nan = np.isnan(numbers)
    infinite = np.isinf(numbers)
    finite = ~(nan | infinite)
    lo = np.min(numbers, axis=1, where=finite, initial=np.inf)
    hi = np.max(numbers, axis=1, where=finite, initial=-np.inf)
    return lo, hi, nan.sum(axis=1), infinite.sum(axis=1)
