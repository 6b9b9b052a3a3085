"""Missing values and limits of a variable by the CF conventions, and the numbers in its attributes."""

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
_KINDS = {"true": "u", "True": "u", "false": "i", "False": "i"}  # values of _Unsigned, as text only: xarray, netCDF4


def not_written(name: Any) -> ValueError:
    """Return the refusal of netCDF's default fill value where it counts as a number."""
    return ValueError(f"ds has {NOT_WRITTEN} in {name!r}, netCDF's own fill value: name it as _FillValue in attrs")


def codes_dtype(owner: str, name: Any, noted: Any) -> np.dtype[Any] | None:
    """Return the dtype of an encoding if it is integer or boolean, else None."""
    if noted is None:
        return None
    dtype = native(as_dtype(noted, f"dtype in the encoding of {name!r} in {owner}", "one of NumPy"))
    return dtype if dtype.kind in "iub" else None


def numbers(owner: str, name: Any, key: str, noted: Any, size: int | None = None) -> Array:
    """Return the numbers of an attribute in one row, empty for None; raise ValueError unless it has `size` of them."""
    values: Array = np.ravel(np.asarray([] if noted is None else noted))
    if values.dtype.kind not in "iuf":
        raise TypeError(f"{owner} has {key} {shown(noted)} of {name!r}, which must be numbers")
    if size is not None and values.size not in (0, size):
        raise ValueError(f"{owner} has {values.size} numbers in {key} of {name!r}, which must have {size}")
    return values


def code(owner: str, name: Any, key: str, number: Any, stored: np.dtype[Any], noted: Any) -> int:
    """Return the code for a number in an attribute, as stored or by _Unsigned; raise ValueError without one."""
    dtype = dtype_by_unsigned(stored, noted)
    with np.errstate(invalid="ignore"):
        as_stored = np.array(number).astype(np.int64).astype(stored)
    as_meant = as_stored.view(dtype)
    if number not in (as_stored, as_meant):
        raise ValueError(f"{owner} has {key} {number} of {name!r}, which must be a number of {dtype}, as its codes are")
    return int(as_meant)


def limits(owner: str, name: Any, attributes: Mapping[Any, Any]) -> Iterator[tuple[str, int, Any]]:
    """Yield the limits in attributes: the key, 0 for a lower and 1 for an upper limit, and the number."""
    for key, ends in (("valid_range", (0, 1)), ("valid_min", (0,)), ("valid_max", (1,))):
        values = numbers(owner, name, key, attributes.get(key), len(ends))
        for end, value in zip(ends, values, strict=False):
            yield key, end, value


def dtype_by_unsigned(stored: np.dtype[Any], noted: Any) -> np.dtype[Any]:
    """Return the dtype of codes by the attribute _Unsigned."""
    dtype_kind = _KINDS.get(noted, stored.kind) if isinstance(noted, str) else stored.kind
    return np.dtype(f"{dtype_kind}{stored.itemsize}")


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
    of_its_type = variable.dtype.type
    with np.errstate(over="ignore"):
        gaps = [of_its_type(gap) for key in OF_GAPS for gap in numbers("ds", name, key, variable.attrs.get(key))]
        low, high = map(of_its_type, _limits(name, variable))
    values = tuple(float(gap) for gap in gaps if gap == gap)
    return Missing(values, (float(low), float(high))) if values or np.isfinite([low, high]).any() else None


def _limits(name: Any, variable: Variable) -> tuple[float, float]:
    """Return the smallest and the largest valid value, widened by half a step for codes: integers with a scale."""
    noted = variable.encoding
    stored = codes_dtype("ds", name, variable.encoding.get("dtype"))
    units = [numbers("ds", name, key, noted.get(key), 1) for key in OF_SCALE]
    scale, offset = (float(np.append(unit, neutral)[0]) for unit, neutral in zip(units, (1, 0), strict=True))
    are_codes = any(unit.size for unit in units)

    ends: tuple[list[float], list[float]] = ([-np.inf], [np.inf])
    for key, end, limit in limits("ds", name, variable.attrs):
        if limit.dtype.kind == "f" or not are_codes:
            ends[end].append(float(limit))
            continue
        step = limit if stored is None else code("ds", name, key, limit, stored, noted.get("_Unsigned"))
        ends[end ^ (scale < 0)].append((float(step) + end - 0.5) * scale + offset)
    return np.fmax.reduce(ends[0]), np.fmin.reduce(ends[1])
