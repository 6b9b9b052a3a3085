"""Elements that callers pass: in native byte order, wide enough, and without NaN."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fastq.formats.qtypes import QType
from fastq.requests import values
from fastq.system.arguments import native
from fastq.system.dtypes import Array

HALVES = ("float16", "bfloat16")


def as_input(x: ArrayLike, name: str = "x") -> Array:
    """Return `x` as an array of one of the input dtypes, in native byte order."""
    x = values.as_input(x, name)
    return x.astype(native(x.dtype), copy=False)


@np.errstate(invalid="ignore")  # signalling NaN
def widened(x: Array) -> Array:
    """Return 16-bit floats as float32, which holds them all; other dtypes as they are."""
    return x.astype(np.float32) if x.dtype.name in HALVES else x


def nan_as_zero(x: Array, nan: str) -> Array:
    """Return `x` with 0 in place of NaN, which the policy "raise" refuses; with "omit" as it is."""
    if nan == "omit":
        return x
    if nan == "raise":
        check_no_nan(x, "x has {} NaN; pass nan='zero' to take them for 0.0")
    return np.where(np.isnan(x), x.dtype.type(0), x)


def ready_to_encode(x: Array, nan: str, qtype: QType) -> Array:
    """Return `x` as its codes are taken from; a block with a NaN to keep has a scale that makes it zeros."""
    number = nan_as_zero(x, nan)
    return x if nan == "keep" and not qtype.block_size else number


def check_no_nan(x: Array, message: str) -> None:
    """Raise ValueError if `x` has NaN; `message` is formatted with their number."""
    count = np.count_nonzero(np.isnan(x))
    if count:
        raise ValueError(message.format(count))
