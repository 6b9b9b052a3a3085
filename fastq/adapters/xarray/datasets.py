"""Shared parts of the functions of Datasets: xarray itself, float variables, and arguments by name of variable."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastq.formats.floats import FLOATS
from fastq.plan.callers import in_own_thread
from fastq.system.arguments import did_you_mean, is_a, native, shown
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from xarray import Dataset, Variable


def library(function: str, **given: Any) -> Any:
    """Return xarray, for a function that needs it; raise TypeError unless its arguments are Datasets."""
    try:
        xarray = importlib.import_module("xarray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{function} needs xarray: pip install xarray") from error
    for argument, ds in given.items():
        if not is_a(ds, xarray.Dataset):
            hint = ": to_dataset() makes one" if is_a(ds, xarray.DataArray) else ""
            raise TypeError(f"{argument} must be a Dataset, not {type(ds).__name__}{hint}")
    return xarray


def by_chunks(function: Callable[..., Any], data: Any, *arguments: Any, dtype: Any) -> Array:
    """Return the result of a function, in the shape of its array: lazily if that is lazy, in the thread of a task."""
    if not hasattr(data, "map_blocks"):
        return np.asarray(function(np.asarray(data), *arguments))
    meta, of_chunk = np.empty((0,) * data.ndim, dtype), functools.partial(in_own_thread, function)
    lazy: Array = data.map_blocks(of_chunk, *arguments, dtype=dtype, meta=meta)
    return lazy


def floats(ds: Dataset) -> dict[Any, Variable]:
    """Return the float variables of a Dataset that are not coordinates."""
    return {name: ds.variables[name] for name in ds.data_vars if native(ds.variables[name].dtype) in FLOATS}


def numbers(name: Any, variable: Variable) -> Any:
    """Return the array of a variable; raise TypeError if its elements are arrays, which xarray takes for numbers."""
    data = variable.data
    if not hasattr(data, "to_delayed") and data.dtype.kind == "O":
        raise TypeError(
            f"ds has arrays in {name!r}, as netCDF of variable length has, not numbers: exclude=[{name!r}] leaves it"
        )
    return data


def by_name(argument: str, kind: str, given: Any, data: Collection[Any], kept: Mapping[Any, str]) -> Mapping[Any, Any]:
    """Return an argument that is a mapping by names of variables, which must all be data."""
    if given is not None and not is_a(given, Mapping):
        raise TypeError(f"{argument} must be a dict of {kind} by the names of variables, not {shown(given)}")
    for name in given or {}:
        if name not in data:
            other = f"is not a float variable{did_you_mean(name, [each for each in data if is_a(each, str)], {})}"
            why = f"stays as it is: {kept[name]}" if name in kept else other
            raise TypeError(f"{argument} names {name!r}, which {why}")
    return given or {}
