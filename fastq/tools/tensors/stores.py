"""netCDF files and zarr stores, whose variables are read as tensors: decoded, and in parts along their first axis."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from xarray import Variable

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


def variables_of(path: Path) -> Iterator[tuple[str, Variable, Reader]]:
    """Yield the variables of all groups of a file or a store, decoded except for times, and what reads their values."""
    for group, ds in groups_of(path, **_DECODED).items():
        descriptions = {variable.attrs.get("quantization") for variable in ds.variables.values()}  # without data
        for name, variable in ((name, variable) for name, variable in ds.variables.items() if name not in descriptions):
            yield f"{group}/{name}".lstrip("/"), variable, functools.partial(_opened, path, group, name)
        ds.close()


@contextlib.contextmanager
def _opened(path: Path, group: str, name: str) -> Iterator[Callable[[Any], Array]]:
    """Open a file for the values of a variable, which a function returns at an index.

    It is closed at the end: netCDF fails to open a file of which the garbage collector has yet to close another.
    """
    with library().open_dataset(path, group=group, **_DECODED, **way_to(path)) as ds:
        variable = ds.variables[name]
        yield lambda index: np.asarray(variable[index].values)


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
