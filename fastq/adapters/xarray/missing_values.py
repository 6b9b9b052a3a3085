"""Missing values and limits of float variables to pack and to round, by attributes of the CF conventions.

`unpacking` takes names of attributes from here, and nothing else: it asks xarray itself which codes are missing values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastq.system.arguments import as_dtype, native, shown
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from xarray import Variable

OF_SCALE = ("scale_factor", "add_offset")
OF_GAPS = ("_FillValue", "missing_value")
OF_LIMITS = ("valid_range", "valid_min", "valid_max")
NOT_WRITTEN = 9.969209968386869e36  # the default fill value of netCDF for float and double
_KINDS = {"true": "u", "True": "u", "false": "i", "False": "i"}  # by the text of _Unsigned, as in xarray and netCDF4


def not_written(name: Any) -> ValueError:
    """Return the refusal of netCDF's default fill value where it counts as a number."""
    return ValueError(f"ds has {NOT_WRITTEN} in {name!r}, netCDF's own fill value: name it as _FillValue in attrs")


# Errors name the variable, and its owner: the argument that has it.


def codes_dtype(owner: str, name: Any, dtype: Any) -> np.dtype[Any] | None:
    """Return the dtype of an encoding if it is integer or boolean, else None."""
    if dtype is None:
        return None
    stored = native(as_dtype(dtype, f"dtype in the encoding of {name!r} in {owner}", "one of NumPy"))
    return stored if stored.kind in "iub" else None


def numbers(owner: str, name: Any, key: str, value: Any, size: int | None = None) -> Array:
    """Return the numbers of an attribute in one row, empty for None; raise ValueError unless it has `size` of them."""
    values: Array = np.ravel(np.asarray([] if value is None else value))
    if values.dtype.kind not in "iuf":
        raise TypeError(f"{owner} has {key} {shown(value)} of {name!r}, which must be numbers")
    if size is not None and values.size not in (0, size):
        raise ValueError(f"{owner} has {values.size} numbers in {key} of {name!r}, which must have {size}")
    return values


def code(owner: str, name: Any, key: str, number: Any, stored: np.dtype[Any], unsigned: Any) -> int:
    """Return the code for a number in an attribute; raise ValueError without one.

    The number may be the stored one, or the code that `unsigned`, the attribute _Unsigned, makes of it: in int8 with
    "true", both -1 and 255 are the code 255.
    """
    dtype = dtype_by_unsigned(stored, unsigned)
    with np.errstate(invalid="ignore"):
        as_stored = np.array(number).astype(np.int64).astype(stored)
    as_code = as_stored.view(dtype)
    if number not in (as_stored, as_code):
        raise ValueError(f"{owner} has {key} {number} of {name!r}, which must be a number of {dtype}, as its codes are")
    return int(as_code)


def limits(owner: str, name: Any, attributes: Mapping[Any, Any]) -> Iterator[tuple[str, int, Any]]:
    """Yield the limits in attributes: the key, 0 for a lower and 1 for an upper limit, and the number."""
    for key, ends in (("valid_range", (0, 1)), ("valid_min", (0,)), ("valid_max", (1,))):
        values = numbers(owner, name, key, attributes.get(key), len(ends))
        for end, value in zip(ends, values, strict=False):
            yield key, end, value


def dtype_by_unsigned(stored: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    """Return the dtype of codes by the attribute _Unsigned, which has an effect as a text only."""
    kind = _KINDS.get(unsigned, stored.kind) if isinstance(unsigned, str) else stored.kind
    return np.dtype(f"{kind}{stored.itemsize}")


class Missing(NamedTuple):
    """The missing values of a variable: some numbers, and everything below or above the limits."""

    values: tuple[float, ...]
    limits: tuple[float, float]  # the smallest and the largest valid value; infinite without a limit

    @property
    def without_limits(self) -> Missing:
        """The same without limits."""
        return Missing(self.values, (-np.inf, np.inf))

    def with_nan(self, x: Array) -> Array:
        """Return an array with NaN for missing values."""
        low, high = map(x.dtype.type, self.limits)
        gaps: Any = (x < low) | (x > high)
        for value in self.values:
            gaps |= x == value
        return np.where(gaps, x.dtype.type(np.nan), x)


def missing(name: Any, variable: Variable) -> Missing | None:
    """Return the missing values by the attributes of a float variable that is not scaled; None without any."""
    if variable.attrs.keys().isdisjoint((*OF_SCALE, *OF_GAPS, *OF_LIMITS)):
        return None
    for key, neutral in zip(OF_SCALE, (1, 0), strict=True):
        if (numbers("ds", name, key, variable.attrs.get(key)) != neutral).any():  # rioxarray notes 1 and 0
            raise ValueError(f"ds has {key} in the attributes of {name!r}: decode it first, as xarray.decode_cf does")
    in_its_dtype = variable.dtype.type
    with np.errstate(over="ignore"):
        gaps = [in_its_dtype(gap) for key in OF_GAPS for gap in numbers("ds", name, key, variable.attrs.get(key))]
        low, high = map(in_its_dtype, _limits(name, variable))
    values = tuple(float(gap) for gap in gaps if not np.isnan(gap))  # NaN is missing in any case
    has_limit = np.isfinite([low, high]).any()
    return Missing(values, (float(low), float(high))) if values or has_limit else None


def _limits(name: Any, variable: Variable) -> tuple[float, float]:
    """Return the smallest and the largest valid value, widened by half a step for codes: integers with a scale.

    A limit of 10 is a code if it is an integer, and the variable was packed: then values up to that of 10.5 are valid,
    since they are rounded to that code. If the scale is negative, a lower limit of codes is an upper one of values.
    """
    encoding = variable.encoding
    stored = codes_dtype("ds", name, encoding.get("dtype"))
    scale_and_offset = [numbers("ds", name, key, encoding.get(key), 1) for key in OF_SCALE]
    was_packed = any(unit.size for unit in scale_and_offset)
    # the number of an attribute, or the neutral one without it
    scale, offset = (float(np.append(unit, neutral)[0]) for unit, neutral in zip(scale_and_offset, (1, 0), strict=True))

    lower: list[float] = [-np.inf]
    upper: list[float] = [np.inf]
    for key, end, limit in limits("ds", name, variable.attrs):
        is_code = was_packed and limit.dtype.kind != "f"
        is_upper = bool(end)
        if is_code:
            limit_code = limit if stored is None else code("ds", name, key, limit, stored, encoding.get("_Unsigned"))
            half_a_step = 0.5 if is_upper else -0.5
            value = (float(limit_code) + half_a_step) * scale + offset
            is_upper ^= scale < 0
        else:
            value = float(limit)
        (upper if is_upper else lower).append(value)
    return np.fmax.reduce(lower), np.fmin.reduce(upper)
