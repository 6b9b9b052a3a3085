"""Cast values by the rules of the codec cast_value."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.reference import casting as reference
from fastq.system import lazy
from fastq.system.arguments import as_array, as_choice, as_dtype, is_a, native, shown

Array = NDArray[Any]

# names of the specification, and of fastq's formulas
ROUNDINGS = {
    "nearest-even": "half_even",
    "towards-zero": "trunc",
    "towards-positive": "ceil",
    "towards-negative": "floor",
    "nearest-away": "half_away",
}
_NUMBERS = "an integer or float dtype"


def cast_value(
    x: ArrayLike,
    dtype: DTypeLike,
    *,
    rounding: str = "nearest-even",
    out_of_range: str | None = None,
    scalar_map: Mapping[float, float] | None = None,
) -> Array:
    """Cast an array to another dtype by value, as the codec cast_value of zarr-extensions does.

    Parameters
    ----------
    x : array_like of integers or floats
        What is cast; float32 and float64 by a kernel to integers of 8, 16 and 32 bits, other pairs number by number.
    dtype : dtype
        The integer or float dtype to cast to.
    rounding : {"nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"}
        How values are rounded to integers. To floats they are rounded to even only.
    out_of_range : {None, "clamp", "wrap"}
        Refuse what, rounded, is out of range, or make it the nearest number in range, or add a multiple of the number
        of integers. For floats what is too large becomes infinite with "clamp".
    scalar_map : mapping, optional
        Values, NaN among them, as numbers of x's dtype, and what they become instead.

    Returns
    -------
    ndarray
        Of x's shape, C-contiguous.

    Raises
    ------
    TypeError
        If x or dtype is neither integers nor floats, or scalar_map no mapping of numbers.
    ValueError
        If scalar_map has what dtype has no number for.
        If x has NaN, an infinity or a value out of range that no option is for, or floats are to be rounded otherwise.

    References
    ----------
    https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/cast_value; infinities are refused with "clamp",
    too, as cast-value-rs does.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.zarr.cast_value(np.array([0.5, 300, np.nan]), "uint8", out_of_range="wrap", scalar_map={np.nan: 255})
    array([  0,  44, 255], dtype=uint8)
    """
    x, target = as_array(x, "x"), as_dtype(dtype, "dtype", _NUMBERS)
    for name, each in (("x", x.dtype), ("dtype", target)):
        if each.kind not in "iuf" or each.itemsize > 8:
            raise TypeError(f"{name} must be of {_NUMBERS}, not {each}")
    as_choice(rounding, "rounding", ROUNDINGS)
    if out_of_range is not None:
        as_choice(out_of_range, "out_of_range", ("clamp", "wrap"))
    target = native(target)
    return _mapped(x, target, rounding, out_of_range, {} if scalar_map is None else _checked(scalar_map, target))


def _checked(scalar_map: Any, dtype: np.dtype[Any]) -> dict[float, float]:
    """Return values and what they become, numbers that the dtype has."""
    if not is_a(scalar_map, Mapping):
        raise TypeError(f"scalar_map must be a mapping of numbers to numbers, not {shown(scalar_map)}")
    for number in itertools.chain(scalar_map, scalar_map.values()):
        if is_a(number, (bool, np.timedelta64)) or not is_a(number, (int, float, np.integer, np.floating)):
            raise TypeError(f"scalar_map must have numbers, not {shown(number)}")
    for number in scalar_map.values():
        if not _has(dtype, number):
            raise ValueError(f"scalar_map must have numbers of {dtype}, not {shown(number)}")
    return dict(scalar_map)


def _has(dtype: np.dtype[Any], number: float) -> bool:
    """Whether a dtype has a number: in its range, for integers a whole one."""
    if dtype.kind == "f":
        return number != number or abs(number) == math.inf or abs(number) <= float(np.finfo(dtype).max)
    info = np.iinfo(dtype)
    return info.min <= number <= info.max and number == int(number)


def _places_of(x: Array, key: float) -> Array:
    """Return where an array has a number, rounded to its dtype for floats."""
    if key != key:
        return np.asarray(np.isnan(x))
    return np.asarray(x == x.dtype.type(int(key) if x.dtype.kind in "iu" else key))


def _mapped(
    x: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None, scalar_map: dict[float, float]
) -> Array:
    """Cast what no scalar is mapped for, 0 in place of the others, and put in what these become."""
    places = [(_places_of(x, key), value) for key, value in scalar_map.items() if _has(x.dtype, key)]
    if places:
        x = np.where(functools.reduce(np.logical_or, [where for where, _ in places]), x.dtype.type(0), x)
    cast = _to_integers if dtype.kind in "iu" else _to_floats
    result = cast(x, dtype, rounding, out_of_range)
    for where, value in reversed(places):
        result[where] = value
    return result


def _to_integers(x: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None) -> Array:
    casting, status = lazy.module("fastq.dispatch.casting"), lazy.module("fastq.kernels.status")
    if native(x.dtype) not in casting.SOURCES or dtype not in casting.TARGETS:
        return reference.cast_value(x, dtype, rounding=rounding, out_of_range=out_of_range)
    result, found = casting.cast_floats(x, dtype, ROUNDINGS[rounding], wraps=out_of_range == "wrap")
    if found & status.HAS_NAN:
        raise ValueError("x has NaN or infinite values, which no integer stands for; name one in scalar_map")
    if found & status.OUT_OF_RANGE and out_of_range is None:
        raise ValueError(f"x has values out of range of {dtype}; pass out_of_range='clamp' or 'wrap'")
    integers: Array = result
    return integers


def _to_floats(x: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None) -> Array:
    if out_of_range == "wrap":
        raise ValueError(f"out_of_range must be None or 'clamp' for {dtype}: floats do not wrap")
    with np.errstate(over="ignore", invalid="ignore"):  # signalling NaN
        result = x.astype(dtype, order="C")
    if out_of_range is None and np.any(np.isinf(result) & np.isfinite(x)):
        raise ValueError(f"x has values out of range of {dtype}; pass out_of_range='clamp'")
    if rounding != "nearest-even" and not _are_same_numbers(result, x):
        raise ValueError(f"rounding must be 'nearest-even' where values are rounded to {dtype}, not {rounding!r}")
    return result


def _are_same_numbers(floats: Array, x: Array) -> bool:
    """Return whether floats stand for the numbers that they were cast from."""
    if x.dtype.kind == "f":
        return floats.dtype.itemsize >= x.dtype.itemsize or np.array_equal(floats.astype(x.dtype), x, equal_nan=True)
    wide, info = floats.astype(np.float64), np.iinfo(x.dtype)
    inside = (wide >= info.min) & (wide < float(2**info.bits + info.min))  # a conversion of others is undefined
    return bool(inside.all()) and np.array_equal(wide.astype(x.dtype), x)
