"""Shared parts of the functions of Datasets: xarray itself, float variables, and arguments by name of variable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastq.formats.floats import FLOATS
from fastq.plan.call_modes import in_own_thread
from fastq.system.arguments import did_you_mean, native, shown
from fastq.system.arrays_of_callers import as_array, has_mask
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from xarray import Dataset, Variable


def library(function: str, **datasets: Any) -> Any:
    """Return xarray, for a function that needs it; raise TypeError unless its arguments are Datasets."""
    try:
        import xarray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{function} needs xarray: pip install xarray") from error
    for argument, ds in datasets.items():
        if not isinstance(ds, xarray.Dataset):
            hint = ": to_dataset() makes one" if isinstance(ds, xarray.DataArray) else ""
            raise TypeError(f"{argument} must be a Dataset, not {type(ds).__name__}{hint}")
    return xarray


def values_of(name: Any, variable: Variable) -> Any:
    """Return the values of a variable of ds: an ndarray without a mask, or an array of dask.

    Raises TypeError if its elements are arrays, which xarray takes for numbers.
    """
    data = variable.data  # once: without a cache each look reads the file
    if isinstance(data, np.ndarray) and data.dtype.kind == "O":
        raise TypeError(
            f"ds has arrays in {name!r}, as netCDF of variable length has, not numbers: exclude=[{name!r}] leaves it"
        )
    return data if hasattr(data, "map_blocks") else as_array(data, f"ds[{name!r}].data")


def apply_to_chunk(function: Callable[..., Any], chunk: Any, *arguments: Any) -> Any:
    """Return the result of a function of a chunk, in the thread of a task; raise TypeError for a chunk with a mask."""
    if has_mask(chunk):
        raise TypeError(
            "ds has masked chunks, whose masks would be lost; dask.array.ma.filled fills those of an array with a value"
        )
    return in_own_thread(function, as_array(chunk, "a chunk of ds"), *arguments)


def by_chunks(function: Callable[..., Any], data: Any, *arguments: Any, dtype: Any) -> Array:
    """Return the result of a function, in the shape of its array: lazily if that is lazy, in the thread of a task."""
    if not hasattr(data, "map_blocks"):
        return np.asarray(function(as_array(data, "ds"), *arguments))
    meta = np.zeros((0,) * data.ndim, dtype)
    lazy: Array = data.map_blocks(functools.partial(apply_to_chunk, function), *arguments, dtype=dtype, meta=meta)
    return lazy


def floats(ds: Dataset) -> dict[Any, Variable]:
    """Return the float variables of a Dataset that are not coordinates."""
    return {name: ds.variables[name] for name in ds.data_vars if native(ds.variables[name].dtype) in FLOATS}


def check_names(
    argument: str, kind: str, by_name: Any, data: Collection[Any], unchanged: Mapping[Any, str]
) -> Mapping[Any, Any]:
    """Return an argument that has something for variables by their names, or raise TypeError for other names.

    Parameters
    ----------
    argument, kind : str
        The name of the argument, and what it has for each variable, for the message.
    by_name : object
        What the caller passed: a dict, or None for an empty one.
    data : collection
        The names that it may have: those of the variables that will be changed.
    unchanged : mapping
        Names of variables that stay as they are, with the reason.
    """
    if by_name is None:
        return {}
    if not isinstance(by_name, Mapping):
        raise TypeError(f"{argument} must be a dict of {kind} by the names of variables, not {shown(by_name)}")
    result: Mapping[Any, Any] = by_name
    for name in result:
        if name in data:
            continue
        if name in unchanged:
            raise TypeError(f"{argument} names {name!r}, which stays as it is: {unchanged[name]}")
        hint = did_you_mean(name, [known for known in data if isinstance(known, str)], {})
        raise TypeError(f"{argument} names {name!r}, which is not a float variable{hint}")
    return result
