"""Cast values by the rules of the codec cast_value."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fastq.kernels import status
from fastq.ops.cast import SOURCES, TARGETS, cast_floats
from fastq.system.arguments import as_array, as_choice, as_dtype, is_a, native, shown
from fastq.system.dtypes import INTEGER_DTYPES, Array

# names of the specification, and of fastq's formulas
ROUNDINGS = {
    "nearest-even": "half_even",
    "towards-zero": "trunc",
    "towards-positive": "ceil",
    "towards-negative": "floor",
    "nearest-away": "half_away",
}
_NUMBERS = f"float16, float32, float64, {INTEGER_DTYPES}"
_OF_INTEGERS = "'clamp' or 'wrap'"


def _half_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.asarray(whole + np.copysign(np.abs(x - whole) >= 0.5, x))


_WHOLE: dict[str, Callable[[Array], Any]] = {
    "nearest-even": np.rint,
    "towards-zero": np.trunc,
    "towards-positive": np.ceil,
    "towards-negative": np.floor,
    "nearest-away": _half_away,
}
# when to replace a float that was rounded to even by its neighbour on the other side of the exact number: from the sign
# of the remainder, whether it has the sign of the float, and whether the number is a tie
_STEPS: dict[str, Callable[[Array, Array, Array], Any]] = {
    "towards-zero": lambda left, side, tie: side < 0,
    "towards-positive": lambda left, side, tie: left > 0,
    "towards-negative": lambda left, side, tie: left < 0,
    "nearest-away": lambda left, side, tie: tie & (side >= 0),
}


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
        Array to cast; floats to integers of 8, 16 and 32 bits are cast by a kernel, other pairs by NumPy.
    dtype : dtype
        The integer or float dtype to cast to.
    rounding : {"nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"}
        How values are rounded to numbers of dtype.
    out_of_range : {None, "clamp", "wrap"}
        What to do with rounded values out of range: None refuses them, "clamp" takes the nearest number in range,
        "wrap" adds a multiple of the number of integers. For floats, "clamp" makes values that are too large infinite.
    scalar_map : mapping, optional
        Replacements: values in the dtype of x, NaN included, and the numbers of dtype that they become, to which floats
        are rounded.

    Returns
    -------
    ndarray
        The result in the shape of x, C-contiguous.

    Raises
    ------
    TypeError
        If x or dtype is neither integers nor floats, or scalar_map is not a mapping of numbers.
    ValueError
        If scalar_map has values that are not numbers of dtype, or out_of_range is "wrap" for floats. If x has NaN, an
        infinity or a value out of range that no option covers.

    References
    ----------
    https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/cast_value; for infinities, which integers lack,
    "clamp" is undefined there.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.zarr.cast_value(np.array([0.5, 300, np.nan]), "uint8", out_of_range="wrap", scalar_map={np.nan: 255})
    array([  0,  44, 255], dtype=uint8)
    """
    x = as_array(x, "x")
    target = as_dtype(dtype, "dtype", _NUMBERS)
    for name, each in (("x", x.dtype), ("dtype", target)):
        if each.kind not in "iuf" or each.itemsize > 8:
            raise TypeError(f"{name} must be {_NUMBERS}, not {each}")
    as_choice(rounding, "rounding", ROUNDINGS)
    if out_of_range is not None:
        as_choice(out_of_range, "out_of_range", ("clamp", "wrap"))
    target = native(target)
    return _mapped(x, target, rounding, out_of_range, {} if scalar_map is None else _checked(scalar_map, target))


def _checked(scalar_map: Any, dtype: np.dtype[Any]) -> dict[float, float]:
    """Return values and their replacements, which must be numbers of the dtype."""
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
    """Return whether a dtype has a number: in its range, and for integers whole."""
    if dtype.kind == "f":
        return number != number or abs(number) == math.inf or abs(number) <= float(np.finfo(dtype).max)
    info = np.iinfo(dtype)
    return info.min <= number <= info.max and number == int(number)


def _places_of(x: Array, key: float) -> Array:
    """Return the positions of a number in an array; for floats it is rounded to the dtype."""
    if key != key:
        return np.asarray(np.isnan(x))
    return np.asarray(x == x.dtype.type(int(key) if x.dtype.kind in "iu" else key))


def _mapped(
    x: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None, scalar_map: dict[float, float]
) -> Array:
    """Cast the values without a replacement, with 0 for the others, and insert the replacements."""
    places = [(_places_of(x, key), value) for key, value in scalar_map.items() if _has(x.dtype, key)]
    if places:
        x = np.where(functools.reduce(np.logical_or, [where for where, _ in places]), x.dtype.type(0), x)
    if dtype.kind == "f":
        cast = _to_floats
    else:
        has_kernel = native(x.dtype) in SOURCES and dtype in TARGETS
        cast = _to_integers_by_kernel if has_kernel else _to_integers
    result = cast(x, dtype, rounding, out_of_range)
    for where, value in reversed(places):
        result[where] = value
    return result


def _refuse_special() -> NoReturn:
    raise ValueError("x has NaN or infinite values, which integers lack; map them in scalar_map")


def _refuse_outside(dtype: np.dtype[Any], options: str) -> NoReturn:
    raise ValueError(f"x has values out of range of {dtype}; pass out_of_range={options}")


def _to_integers_by_kernel(x: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None) -> Array:
    result, found = cast_floats(x, dtype, ROUNDINGS[rounding], wraps=out_of_range == "wrap")
    if found & status.HAS_NAN:
        _refuse_special()
    if found & status.OUT_OF_RANGE and out_of_range is None:
        _refuse_outside(dtype, _OF_INTEGERS)
    return np.asarray(result)


@np.errstate(invalid="ignore")  # numbers out of range are not integers yet
def _to_integers(x: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None) -> Array:
    """Cast integers, or floats to integers of 64 bits."""
    if x.dtype.kind == "f":
        if not np.isfinite(x).all():
            _refuse_special()
        x = _WHOLE[rounding](x.astype(np.float64))
        if out_of_range == "wrap":
            size = np.fmod(np.abs(x), 2.0**64).astype(np.uint64)
            x = np.where(x < 0, np.negative(size), size)
    result = np.asarray(x).astype(dtype, order="C")
    if out_of_range != "wrap" and not np.can_cast(x.dtype, dtype):
        first, end = (int(each) for each in (np.iinfo(dtype).min, np.iinfo(dtype).max + 1))
        below, above = x < first, x >= end
        if out_of_range is None and (below.any() or above.any()):
            _refuse_outside(dtype, _OF_INTEGERS)
        result[below] = first
        result[above] = end - 1
    return result


@np.errstate(all="ignore")  # signalling NaN, and overflow
def _to_floats(x: Array, dtype: np.dtype[Any], rounding: str, out_of_range: str | None) -> Array:
    if out_of_range == "wrap":
        raise ValueError(f"out_of_range must be None or 'clamp' for {dtype}: floats do not wrap")
    result = x.astype(dtype, order="C")
    digits = np.finfo(dtype).nmant + 1
    is_exact = x.dtype.itemsize <= dtype.itemsize if x.dtype.kind == "f" else np.iinfo(x.dtype).bits <= digits
    if not is_exact and rounding != "nearest-even":
        result = _rounded(x, result, rounding)
    if out_of_range is None and np.any(np.isinf(result) & np.isfinite(x)):
        _refuse_outside(dtype, "'clamp'")
    return result


def _rounded(x: Array, even: Array, rounding: str) -> Array:
    """Round to floats in a direction other than to even, as if exponents were unbounded."""
    low = x & 2047 if x.dtype.kind != "f" and x.dtype.itemsize == 8 else 0  # float64 has 53 of 64 bits
    wide = (x - low).astype(np.float64)
    left = (wide - even) + low  # exact, since the remainder has few bits
    other = np.nextafter(even, np.copysign(np.inf, left).astype(even.dtype))
    steps = _STEPS[rounding](left, np.sign(left) * np.sign(even), other - even.astype(np.float64) == 2 * left)
    beyond = np.ldexp(1.0, np.finfo(even.dtype).maxexp)  # infinite for float64
    return np.asarray(np.where(steps & (np.abs(wide + low) < beyond), other, even))
