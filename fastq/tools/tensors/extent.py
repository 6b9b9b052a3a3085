"""Statistics of the numbers of a tensor: their range, NaN, infinities, and outlier channels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fastq.results.measures import outliers_of
from fastq.system.dtypes import Array

PIECE = 1 << 20  # elements looked at together; bounds the temporaries


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Statistics of the numbers of a tensor."""

    lo: float | None = None  # the smallest finite number; None without finite numbers
    hi: float | None = None  # the largest one
    nan: int = 0  # number of NaN
    infinite: int = 0  # number of infinities
    # outlier channels by axis, of two or more axes: indices whose largest magnitude is at least six times the median
    outliers: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def with_more(self, other: Extent) -> Extent:
        """Return the statistics of both parts, without outlier channels."""
        return Extent(
            lo=min((lo for lo in (self.lo, other.lo) if lo is not None), default=None),
            hi=max((hi for hi in (self.hi, other.hi) if hi is not None), default=None),
            nan=self.nan + other.nan,
            infinite=self.infinite + other.infinite,
        )


def extent_of(values: Array) -> Extent:
    """Return the statistics of an array, computed piece by piece, of all rows and all columns of a matrix in one pass.

    The rows of the matrix are the indices of the first axis, its columns those of all others. A vector is one row.
    """
    is_vector = values.ndim < 2
    shape = (1, values.size) if is_vector else (values.shape[0], math.prod(values.shape[1:]))
    # arrays in Fortran order are not copied: the order of columns does not matter here
    is_fortran = values.flags.f_contiguous and not is_vector
    matrix = values.T.reshape(shape[::-1]).T if is_fortran else values.reshape(shape)
    height = max(PIECE // max(shape[1], 1), 1)
    width = max(min(PIECE, shape[1]), 1)
    lo = np.full(shape[0], np.inf)  # of each row
    hi = np.full(shape[0], -np.inf)
    nan = 0
    infinite = 0
    largest_of_columns = np.full(0 if is_vector else shape[1], -1.0)  # -1 without finite numbers
    for top in range(0, shape[0], height):
        rows = slice(top, top + height)
        for left in range(0, shape[1], width):
            columns = slice(left, left + width)
            tile = matrix[rows, columns]
            lo_of_tile, hi_of_tile, nan_of_tile, infinite_of_tile = _row_ends(tile)
            np.minimum(lo[rows], lo_of_tile, out=lo[rows])
            np.maximum(hi[rows], hi_of_tile, out=hi[rows])
            nan += int(nan_of_tile.sum())
            infinite += int(infinite_of_tile.sum())
            if not is_vector:
                largest = largest_of_columns[columns]
                np.maximum(largest, _largest_of_columns(tile), out=largest)
    has_finite = lo <= hi  # of each row, whether it has finite numbers
    outliers = {}
    if not is_vector:
        largest_of_rows = np.where(has_finite, np.maximum(-lo, hi), -1.0)
        largest_within_rows = largest_of_columns.reshape(values.shape[1:], order="F" if is_fortran else "C")
        outliers = _outliers_by_axis(largest_of_rows, largest_within_rows)
    return Extent(
        lo=float(lo[has_finite].min()) if has_finite.any() else None,
        hi=float(hi[has_finite].max()) if has_finite.any() else None,
        nan=nan,
        infinite=infinite,
        outliers=outliers,
    )


def _outliers_by_axis(largest_of_rows: Array, largest_within_rows: Array) -> dict[int, tuple[int, ...]]:
    """Return outlier channels by axis, given the largest magnitude of each row, and of each place within rows.

    A magnitude of -1 stands for a channel without finite numbers, which is no outlier and counts for no median.
    """
    outliers = {}
    for axis in range(largest_within_rows.ndim + 1):
        if axis == 0:
            largest = largest_of_rows
        else:
            other_axes = tuple(k for k in range(largest_within_rows.ndim) if k != axis - 1)
            largest = largest_within_rows.max(axis=other_axes, initial=-1.0)
        measured = np.flatnonzero(largest >= 0)
        channels = measured[outliers_of(largest[measured])].tolist()
        if channels:
            outliers[axis] = tuple(channels)
    return outliers


def _largest_of_columns(rows: Array) -> Array:
    """Return the largest finite magnitude of each column, or -1 if it has none."""
    numbers = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    largest: Array = np.maximum(-numbers.min(axis=0), numbers.max(axis=0))
    if not np.isfinite(largest).all():
        magnitudes = np.abs(numbers)
        largest = np.max(magnitudes, axis=0, where=np.isfinite(magnitudes), initial=-1.0)
    return largest


def _row_ends(rows: Array) -> tuple[Array, Array, Array, Array]:
    """Return the smallest and the largest finite number of each row, and its numbers of NaN and of infinities.

    A row without finite numbers has inf and -inf.
    """
    numbers = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    lo = numbers.min(axis=1)
    hi = numbers.max(axis=1)
    if np.isfinite(lo).all() and np.isfinite(hi).all():  # almost always so, and in a fifth of the time
        return lo, hi, np.zeros(len(rows)), np.zeros(len(rows))
    nan = np.isnan(numbers)
    infinite = np.isinf(numbers)
    finite = ~(nan | infinite)
    lo = np.min(numbers, axis=1, where=finite, initial=np.inf)
    hi = np.max(numbers, axis=1, where=finite, initial=-np.inf)
    return lo, hi, nan.sum(axis=1), infinite.sum(axis=1)
