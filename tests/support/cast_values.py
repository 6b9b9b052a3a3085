"""Cast values as the codec cast_value of zarr, number by number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from fastq.system.dtypes import Array


def _half_away(x: Fraction) -> int:
    return math.floor(x + Fraction(1, 2)) if x >= 0 else math.ceil(x - Fraction(1, 2))


ROUND: dict[str, Callable[[Fraction], int]] = {
    "nearest-even": round,
    "towards-zero": math.trunc,
    "towards-positive": math.ceil,
    "towards-negative": math.floor,
    "nearest-away": _half_away,
}


def cast_value(
    x: Array,
    dtype: np.dtype[Any],
    *,
    rounding: str = "nearest-even",
    out_of_range: str | None = None,
    scalar_map: Mapping[float, float] | None = None,
) -> Array:
    """Return integers or floats cast to an integer dtype; arguments and errors as for `fastq.zarr.cast_value`."""
    dtype, info = np.dtype(dtype), np.iinfo(dtype)
    known, values = as_numbers_of(x.dtype, scalar_map or {}), []
    for value in x.ravel().tolist():
        same = [key for key in known if key == value or (key != key and value != value)]
        values.append(int(known[same[0]]) if same else _cast(value, info, ROUND[rounding], out_of_range))
    return np.array(values, object).astype(dtype).reshape(x.shape)


def as_numbers_of(dtype: np.dtype[Any], scalar_map: Mapping[float, float]) -> dict[float, float]:
    """Return what values become, these rounded to the dtype of an array where it has floats; the first one counts."""
    known: dict[float, float] = {}
    for key, value in scalar_map.items():
        rounds = dtype.kind == "f" and abs(key) <= float(np.finfo(dtype).max)
        known.setdefault(float(dtype.type(key)) if rounds else key, value)
    return known


def _cast(value: float, info: np.iinfo[Any], rounded: Callable[[Fraction], int], out_of_range: str | None) -> int:
    if not math.isfinite(value):
        raise ValueError(f"x has {value}, which integers lack; map them in scalar_map")
    whole, least, most = rounded(Fraction(value)), int(info.min), int(info.max)
    if out_of_range == "wrap":
        return (whole - least) % (most - least + 1) + least
    if out_of_range == "clamp":
        return min(max(whole, least), most)
    if not least <= whole <= most:
        raise ValueError(f"x has {value}, which is out of range of {info.dtype}; pass out_of_range='clamp' or 'wrap'")
    return whole
