"""Refuse what kernels reported: count NaN and infinities for the message of the error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.kernels.status import HAS_INFINITE_RANGE, HAS_NAN
from fastq.results.measures import missing_values_error

Array = NDArray[Any]

_PIECE = 1 << 18  # elements looked at together


def refuse_nan(status: int, x: Array, *_: object, nan: str) -> None:
    """Raise a ValueError if NaN was met that the caller wants refused."""
    if status & HAS_NAN and nan == "raise":
        count = count_of(np.isnan, x)
        raise ValueError(f"x has {count} NaN; pass nan='zero' to treat them as 0.0")


def refuse_nan_in_compare(status: int, x: Array, *_: object) -> None:
    """Raise a ValueError if the array whose errors are measured has NaN."""
    if status & HAS_NAN:
        raise missing_values_error(count_of(np.isnan, x))


def refuse_infinite_values(status: int, x: Array) -> None:
    """Raise a ValueError if an infinite value was met that has no place in a histogram."""
    if status & HAS_INFINITE_RANGE:
        raise ValueError(f"x has {count_of(np.isinf, x)} infinite values, which have no place in a histogram; clip x")


def refuse_range(status: int, x: Array, *_: object, nan: str) -> None:
    """Raise a ValueError if x can't be quantized by its range."""
    refuse_nan(status, x, nan=nan)
    refuse_infinite(status, x)


def refuse_infinite(status: int, x: Array) -> None:
    """Raise a ValueError if a range had no finite scale: of infinite values, or of finite ones too far apart."""
    if not status & HAS_INFINITE_RANGE:
        return
    if count := count_of(np.isinf, x):
        raise ValueError(f"x has {count} infinite values: their range has no scale; clip x, or pass qparams")
    lo, hi = _reduce(np.fmin, x), _reduce(np.fmax, x)
    raise ValueError(f"x has a range too wide for a finite scale, in {lo}..{hi}; clip x, or pass qparams")


@np.errstate(invalid="ignore")  # signalling NaN of bfloat16
def count_of(test: np.ufunc, x: Array) -> int:
    """Count the elements that pass a test; piece by piece, so that temporaries stay small."""
    return sum(int(np.count_nonzero(test(x[index]))) for index in _pieces(x.shape))


@np.errstate(invalid="ignore")
def _reduce(ufunc: np.ufunc, x: Array) -> Any:
    """Reduce all elements to one, such as the least; piece by piece as in `count_of`."""
    return ufunc.reduce([ufunc.reduce(x[index], axis=None) for index in _pieces(x.shape)])


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield indices of parts of an array that follow each other in C order, each of at most `_PIECE` elements.

    If that were 100, an array of shape (2, 5, 30) would have the parts ``[0, 0:3]``, ``[0, 3:6]``, ``[1, 0:3]`` and
    ``[1, 3:6]``.
    """
    axis = len(shape)
    inner = 1
    while axis and inner * shape[axis - 1] <= _PIECE:
        axis -= 1
        inner *= shape[axis]
    if not axis:
        yield ()
        return
    rows = max(1, _PIECE // inner)
    for index in np.ndindex(shape[: axis - 1]):
        for first_row in range(0, shape[axis - 1], rows):
            yield (*index, slice(first_row, first_row + rows))
