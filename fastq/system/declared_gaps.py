"""What attributes of a caller's array say of its numbers: which of them are missing values, and that they are packed.

Readers such as netCDF4 and xarray decode these attributes, so gaps come as masks or NaN, which are refused. h5netcdf,
h5py and zarr leave numbers as they are stored, as xarray does on demand: there a gap is a number like others. netCDF4
gives gaps as numbers only to a user who turned masks off, and so asked for them.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.system.callers import warn_caller

OF_GAPS = "_FillValue", "missing_value"
OF_SCALE = {"scale_factor": 1, "add_offset": 0}  # with the numbers that change nothing
OF_ZARR_2 = "_ARRAY_DIMENSIONS"  # where xarray notes dimensions, and means the fill value of zarr as _FillValue
OF_NETCDF = "h5netcdf."  # modules of classes that have variables of netCDF, but not its own value for gaps
KEYS = (*OF_GAPS, *OF_SCALE, OF_ZARR_2)
# values of netCDF for what was never written, by dtype; bytes have none, as all of their values are in use
NEVER_WRITTEN = dict.fromkeys(("float32", "float64"), 9.969209968386869e36)
NEVER_WRITTEN |= {"int16": -32767, "int32": -2147483647, "int64": -9223372036854775806}
NEVER_WRITTEN |= {"uint16": 65535, "uint32": 4294967295, "uint64": 18446744073709551614}


class Gap(NamedTuple):
    """A number that stands for a missing value."""

    said_by: str
    value: Any


def check_attributes(x: Any, array: NDArray[Any], name: str) -> None:
    """Raise ValueError if an array has numbers that are missing by the attributes of the object that it comes from.

    Warn of a scale or an offset among them.
    """
    attributes = _attributes_of(x)
    if attributes or type(x).__module__.startswith(OF_NETCDF):
        warn_of_packing(x, name)
        refuse_gaps(array, gaps_of(x), name, f"numpy.asarray({name})")


def gaps_of(x: Any) -> tuple[Gap, ...]:
    """Return the numbers that are missing values by the attributes of a caller's object."""
    attributes = _attributes_of(x)
    gaps = [Gap(key, value) for key in OF_GAPS for value in _numbers(attributes.get(key))]
    if type(x).__module__.startswith(OF_NETCDF) and "_FillValue" not in attributes:
        dtype = np.dtype(x.dtype).newbyteorder("=").name
        if dtype in NEVER_WRITTEN:
            gaps.append(Gap("netCDF's own _FillValue", NEVER_WRITTEN[dtype]))
    if OF_ZARR_2 in attributes and getattr(getattr(x, "metadata", None), "zarr_format", 2) == 2:
        gaps += [Gap("fill_value", value) for value in _numbers(getattr(x, "fill_value", None))]
    # _FillValue and missing_value are one number as a rule: of equal ones the first stays, in the order of their names
    by_value = {gap.value: gap for gap in reversed(gaps)}
    return tuple(reversed(by_value.values()))


def refuse_gaps(array: NDArray[Any], gaps: tuple[Gap, ...], name: str, written: str) -> NDArray[Any]:
    """Return an array; raise ValueError if it has missing values. `written` is how the caller gets at the array."""
    if array.dtype.kind not in "iufV":  # V: bfloat16 and its like
        return array  # what takes no such dtype says so
    for said_by, value in gaps:
        with np.errstate(all="ignore"):
            stored = np.asarray(value).astype(array.dtype)[()]
        is_integer = array.dtype.kind in "iu"
        if stored != value if is_integer else np.isinf(stored) and not np.isinf(value):
            continue  # no number of this dtype
        count = int(np.count_nonzero(array == stored))
        if count:
            text = str(stored)  # with no more digits than its dtype has
            raise ValueError(
                f"{name} has {count} missing value{'s' * (count > 1)}, {text} by {said_by}: pass "
                f"numpy.where({written} == {text}, numpy.nan, {written}) to have NaN there, or {written} to take "
                f"{'them as numbers' if count > 1 else 'it as a number'}"
            )
    return array


def warn_of_packing(x: Any, name: str) -> None:
    """Warn of a scale or an offset among the attributes of an object, unless its numbers are codes by their name."""
    if name.startswith("codes"):
        return
    attributes = _attributes_of(x)
    for key, neutral in OF_SCALE.items():
        for value in _numbers(attributes.get(key)):
            if value != neutral:
                advice = "fastq.xarray.unpack_array decodes such codes"
                message = f"{name} has the {key} {value}, which is not applied: {advice}"
                warn_caller(message)
                return


def _attributes_of(x: Any) -> Mapping[Any, Any]:
    """Return the attributes of an object of h5netcdf, h5py, zarr or xarray; empty for others."""
    try:
        attributes = getattr(x, "attrs", None)
        if attributes and isinstance(attributes, Mapping):
            return {key: attributes[key] for key in KEYS if key in attributes}
    except Exception:  # attributes of strange types
        pass
    return {}


def _numbers(noted: Any) -> Iterator[Any]:
    """Yield the numbers of an attribute that are not NaN, which is no number of an array either."""
    if isinstance(noted, str):  # by which xarray notes floats for zarr
        try:
            noted = struct.unpack("<d", base64.b64decode(noted, validate=True))
        except (binascii.Error, struct.error, ValueError):
            return
    try:
        values = np.ravel(np.asarray([] if noted is None else noted))
    except ValueError:  # of lists of different lengths
        return
    yield from (value for value in values if values.dtype.kind in "iuf" and value == value)
