"""Unpack variables as xarray decodes them, lazily: the variables for kernels, and their numbers."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray
from xarray import conventions
from xarray.backends import BackendArray
from xarray.core import indexing

from fastq.adapters.xarray.datasets import by_chunks
from fastq.adapters.xarray.missing_values import OF_GAPS, OF_SCALE
from fastq.ops.cf_packing import PACKED_INTEGERS, unpack_integers
from fastq.system.arguments import native, shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.callers import warn_caller
from fastq.system.dtypes import Array

_NUMBERS = (int, float, np.integer, np.float32, np.float64)  # xarray multiplies and adds these in the dtype of values
# kinds of codes by the attribute _Unsigned, as stored and as interpreted
_SIGNS_BY_UNSIGNED = {"true": ("i", "u"), "false": ("u", "i")}
_AS_THEY_ARE = {"decode_times": False, "decode_timedelta": False, "decode_coords": False, "concat_characters": False}


class Unpacking(NamedTuple):
    """The rule from codes to values: see `fastq.ops.cf_packing.unpack_integers`."""

    dtype_of_codes: np.dtype[Any]  # by the attribute _Unsigned
    dtype: np.dtype[Any]  # dtype of the values
    scale: Array
    offset: Array
    gaps: tuple[int, ...]  # codes of missing values

    def values(self, stored: Array) -> Array:
        """Return the values of codes as they are stored."""
        codes = stored.view(self.dtype_of_codes.newbyteorder(stored.dtype.byteorder))
        values: Array = unpack_integers(codes, self.dtype, self.scale, self.offset, self.gaps)
        return values


class _Unpacked(BackendArray):
    """A variable that is unpacked when it is read."""

    def __init__(self, packed: xarray.Variable, unpacking: Unpacking) -> None:
        self.packed = packed
        self.unpacking = unpacking
        self.shape = packed.shape
        self.dtype = unpacking.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Return the values of a part; xarray brings any index into a form that `_part` takes."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._part)

    def _part(self, key: tuple[Any, ...]) -> Array:
        """Return the values of a part that xarray has brought into the form of slices and lists of indices."""
        return self.unpacking.values(as_array(self.packed[key], "ds", has_gaps=True))


def unpack_dataset(ds: xarray.Dataset, dtype: np.dtype[Any] | None) -> xarray.Dataset:
    """Return a Dataset as xarray decodes it, times left out; variables of packed integers in a dtype, if one is given.

    xarray itself decodes a few codes to tell the rule, so that its rules are not repeated here.
    """
    packed = {name: variable for name, variable in ds.variables.items() if _is_packed(variable)}
    if joined := [shown(name) for name, variable in packed.items() if _is_joined(variable)]:
        warn_caller(
            f"{', '.join(joined)} of ds is longer than in the file whose scale it has: unpack each file before they are"
            " joined, as xarray.open_mfdataset(files, mask_and_scale=False, preprocess=fastq.xarray.unpack) does, or"
            " the others are read by a scale that may not be theirs"
        )
    decoded = _decode(packed)
    indexes = ds.indexes  # xarray makes these each time
    coords = ds.coords
    variables = {}
    for name, variable in packed.items():
        unpacking = None if name in indexes else _unpacking_like_xarray(name, variable, decoded[name], dtype)
        if unpacking is None:
            variables[name] = decoded[name]
        else:
            variables[name] = decoded[name].copy(deep=False, data=_values(variable, unpacking))
    coordinates = {name: variable for name, variable in variables.items() if name in coords}
    data = {name: variable for name, variable in variables.items() if name not in coordinates}
    result = ds.assign(data)
    return result.assign_coords(coordinates) if coordinates else result


def _decode(variables: Mapping[Any, xarray.Variable]) -> Any:
    """Return variables as xarray decodes them: what its `decode_cf` calls, without the Datasets around it.

    It takes attributes away from the variables that it is given.
    """
    copies = {name: variable.copy(deep=False) for name, variable in variables.items()}
    return conventions.decode_cf_variables(copies, {}, **_AS_THEY_ARE)[0]


def _is_packed(variable: xarray.Variable) -> bool:
    """Return whether attributes describe a packing but not times, which xarray decodes differently."""
    attributes = variable.attrs
    are_times = "since" in str(attributes.get("units"))
    return not are_times and not attributes.keys().isdisjoint((*OF_SCALE, *OF_GAPS, "_Unsigned"))


def _is_joined(packed: xarray.Variable) -> bool:
    """Return whether a variable is longer than in the file that its attributes are of, as xarray notes it."""
    original_shape = packed.encoding.get("original_shape", packed.shape)
    has_codes = packed.dtype.kind in "iu"
    is_longer = len(original_shape) == packed.ndim and any(map(operator.gt, packed.shape, original_shape))
    return has_codes and is_longer


def _unpacking_like_xarray(
    name: Any, packed: xarray.Variable, decoded: xarray.Variable, dtype: np.dtype[Any] | None
) -> Unpacking | None:
    """Return the rule by which kernels decode a variable like xarray; None if xarray must decode it itself."""
    attributes = packed.attrs
    stored = native(packed.dtype)
    # a missing offset is -0.0, since x + -0.0 is x for every x
    scale_and_offset = [attributes.get(key, neutral) for key, neutral in zip(OF_SCALE, (1, -0.0), strict=True)]
    gaps = np.concatenate([np.ravel(attributes[key]) for key in OF_GAPS if key in attributes] or [np.zeros(0)])
    are_numbers = gaps.dtype.kind in "iuf" and all(isinstance(number, _NUMBERS) for number in scale_and_offset)
    has_kernel = stored in PACKED_INTEGERS and decoded.dtype in (np.float32, np.float64)
    if not (are_numbers and np.isfinite(scale_and_offset).all() and has_kernel):
        return None
    kind_to_change, kind_of_codes = _SIGNS_BY_UNSIGNED.get(str(attributes.get("_Unsigned")), ("", ""))
    dtype_of_codes = np.dtype(f"{kind_of_codes}{stored.itemsize}") if stored.kind == kind_to_change else stored
    # xarray 2026.9 swaps the bytes of a fill value, or compares it with codes that float32 rounds
    swaps_bytes = dtype_of_codes != stored != packed.dtype
    compares_rounded = stored.itemsize == 4 and decoded.dtype == np.float32
    if swaps_bytes or compares_rounded:
        return None
    gap_codes = _gaps_by_xarray(name, gaps, stored, attributes).view(dtype_of_codes).tolist()
    computed = np.result_type(decoded.dtype, dtype or decoded.dtype)
    scale, offset = (np.array([number], computed) for number in scale_and_offset)
    return Unpacking(
        dtype_of_codes=dtype_of_codes,
        dtype=dtype or decoded.dtype,
        scale=scale,
        offset=offset,
        gaps=tuple(dict.fromkeys(gap_codes)),
    )


def _gaps_by_xarray(name: Any, gaps: Array, stored: np.dtype[Any], attributes: dict[Any, Any]) -> Array:
    """Return the stored integers that xarray decodes to NaN; it tells which of those near the numbers in attributes."""
    with np.errstate(invalid="ignore"):
        candidates: Array = np.concatenate([np.trunc(gaps), np.rint(gaps)]).astype(np.int64).astype(stored)
    with warnings.catch_warnings(action="ignore"):
        are_gaps = np.isnan(_decode({name: xarray.Variable("gap", candidates, attributes)})[name].values)
    gap_codes: Array = candidates[are_gaps]
    return gap_codes


def _values(packed: xarray.Variable, unpacking: Unpacking) -> Any:
    """Return the values of a variable: lazily for dask, else when they are accessed, and kept then."""
    if packed.chunks is None:
        lazily = indexing.LazilyIndexedArray(_Unpacked(packed, unpacking))
        return indexing.MemoryCachedArray(indexing.CopyOnWriteArray(lazily))
    return by_chunks(unpacking.values, packed.data, dtype=unpacking.dtype)
