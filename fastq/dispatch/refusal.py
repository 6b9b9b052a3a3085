"""Refuse what kernels reported: count NaN and infinities for the message of the error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.strides import tiles
from fastq.kernels.status import HAS_INFINITE_RANGE, HAS_NAN

Array = NDArray[Any]


def refuse_nan(status: int, nan: str, x: Array) -> None:
    """Raise a ValueError if NaN was met that the caller wants refused."""
    if status & HAS_NAN and nan == "raise":
        count, _ = _count_not_finite(x)
        raise ValueError(f"x has {count} NaN; pass nan='zero' to take them for 0.0")


def refuse_infinite(status: int, x: Array) -> None:
    """Raise a ValueError if a range had no finite scale."""
    if status & HAS_INFINITE_RANGE:
        _, count = _count_not_finite(x)
        raise ValueError(f"x has {count} infinite values: their range has no scale; clip x, or pass qparams")


def _count_not_finite(x: Array) -> tuple[int, int]:
    """Return how many elements are NaN, and how many infinite; tile by tile, so that temporaries stay small."""
    nan = infinite = 0
    for index, _, _ in tiles(x.shape):
        nan += int(np.count_nonzero(np.isnan(x[index])))
        infinite += int(np.count_nonzero(np.isinf(x[index])))
    return nan, infinite
