"""netCDF files and zarr stores, whose variables are read as tensors: decoded, and in parts along their first axis."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from xarray import Variable

Labels = Callable[[], Mapping[str, Any]]
Reader = Callable[[], contextlib.AbstractContextManager[Callable[[Any], Array]]]

NETCDF, ZARR = (".nc", ".nc4", ".cdf", ".h5"), ".zarr"
V2 = ".zgroup"
MARKS = "zarr.json", V2  # files of zarr groups
# attributes of a packing and of a rounding
PACKED = "scale_factor", "add_offset", "_FillValue"
ROUNDED = "quantization_nsb", "quantization_nsd"
# times are numbers with units; bounds and coordinates are variables
_DECODED = dict.fromkeys(("decode_times", "decode_timedelta", "decode_coords"), False)
_NEEDED = "this needs xarray with netCDF4 or zarr: pip install xarray dask netCDF4 zarr"


def is_store(path: Path) -> bool:
    """Return whether a path is that of a netCDF file or of a zarr store, by its name and its marks."""
    return path.suffix in NETCDF or any((path / mark).is_file() for mark in MARKS)


def library() -> Any:
    """Return xarray; raise ValueError if it is not installed."""
    try:
        return importlib.import_module("xarray")
    except ModuleNotFoundError as error:
        raise ValueError(_NEEDED) from error


def way_to(path: Path) -> dict[str, Any]:
    """Return the options by which xarray opens a file or a store."""
    return {"engine": "zarr", "consolidated": False} if path.is_dir() else {}


def groups_of(path: Path, **decoding: bool) -> dict[str, Any]:
    """Return the Datasets of all groups of a file or a store; raise ValueError if xarray can't open it."""
    xarray = library()
    try:
        with warnings.catch_warnings(action="ignore"):  # of attributes that xarray decodes in its own way
            groups: dict[str, Any] = xarray.open_groups(path, **decoding, **way_to(path))
    except ValueError as error:
        reason = str(error).partition(". ")[0]
        if type(error).__name__ == "ContainsArrayError":
            reason = "it is an array of zarr; name the store that it lies in"
        raise ValueError(f"xarray can't open it: {reason}") from error
    return groups


def variables_of(path: Path) -> Iterator[tuple[str, Variable, Reader, Labels]]:
    """Yield the variables of all groups of a file or a store, decoded except for times.

    With each comes what reads its values, and what reads the coordinates of its dimensions.
    """
    for group, ds in groups_of(path, **_DECODED).items():
        descriptions = {variable.attrs.get("quantization") for variable in ds.variables.values()}  # without data
        for name, variable in ((name, variable) for name, variable in ds.variables.items() if name not in descriptions):
            labels = functools.partial(labels_of, path, group, () if variable.dims == (name,) else variable.dims)
            yield f"{group}/{name}".lstrip("/"), variable, functools.partial(_opened, path, group, name), labels
        ds.close()


@contextlib.contextmanager
def _opened(path: Path, group: str, name: str) -> Iterator[Callable[[Any], Array]]:
    """Open a file for the values of a variable, which a function returns at an index.

    It is closed at the end: netCDF fails to open a file of which the garbage collector has yet to close another.
    """
    with library().open_dataset(path, group=group, **_DECODED, **way_to(path)) as ds:
        variable = ds.variables[name]
        yield lambda index: np.asarray(variable[index].values)


def labels_of(path: Path, group: str, dims: tuple[str, ...]) -> dict[str, Variable]:
    """Return the coordinates of dimensions, those of times decoded: of the group, or of the nearest one around it."""
    xarray = library()
    found: dict[str, Variable] = {}
    names = group.strip("/").split("/")
    for depth in range(len(names), -1, -1):
        with xarray.open_dataset(path, group="/".join(names[:depth]) or None, **_DECODED, **way_to(path)) as ds:
            for dim in dims:
                if dim in ds.variables and ds.variables[dim].dims == (dim,) and dim not in found:
                    found[dim] = _decoded_times(ds[[dim]]).variables[dim].load()
        if not names[0]:
            break
    return found


def _decoded_times(ds: Any) -> Any:
    """Return a Dataset of a coordinate with its times decoded, or as it is if they can't be."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return library().decode_cf(ds)
    except (ValueError, OverflowError):
        return ds


def described(variable: Variable) -> dict[str, Any]:
    """Return the attributes of a packing or a rounding of a decoded variable, as Python numbers."""
    noted = {key: variable.encoding.get(key) for key in PACKED if is_packed(variable)}
    noted |= {key: variable.attrs.get(key) for key in ROUNDED}
    return {key: shortest(value) for key, value in noted.items() if value is not None}


def is_packed(variable: Variable) -> bool:
    """Return whether a decoded variable is stored with a scale or an offset."""
    return any(key in variable.encoding for key in PACKED[:2])


def shortest(value: Any) -> Any:
    """Return a number of NumPy as one of Python, with the fewest digits that name a float in its dtype."""
    return float(str(value)) if isinstance(value, np.floating) else getattr(value, "tolist", lambda: value)()
