"""Requests to unpack integers into floats."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fastq.system.arguments import as_choice, as_dtype, as_float, shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import Array


class UnpackOptions(NamedTuple):
    """Options of `fastq.xarray.unpack_array`: its fill values are `gaps`."""

    gaps: tuple[int, ...] = ()
    dtype: object = None


class UnpackRequest(NamedTuple):
    """Everything in a call of `fastq.xarray.unpack_array` except codes and the two numbers."""

    dtype: np.dtype[Any]
    computed: np.dtype[Any]  # dtype in which product and sum are rounded
    gaps: tuple[int, ...]  # the fill values that are codes, each once

    def ready(self, scale_factor: Any, add_offset: Any) -> tuple[Array, Array]:
        """Return the two numbers as a kernel reads them."""
        return self._unit(scale_factor, "scale_factor"), self._unit(add_offset, "add_offset")

    def _unit(self, unit: Any, name: str) -> Array:
        """Return a scale or an offset as an array of one number, if it is finite."""
        number = as_float(unit, name, -math.inf, math.inf)
        if not math.isfinite(number):
            raise ValueError(f"{name} must be finite, not {number}")
        return np.array([number], self.computed)


def cf_unpack_request(
    dtype: np.dtype[Any], options: UnpackOptions, scale_factor: Any, add_offset: Any
) -> UnpackRequest:
    """Return the request to unpack codes of an integer dtype.

    Of scale_factor and add_offset only the types count: if both are float32, products are rounded in float32,
    except for integers of 32 bits and more.
    """
    dtypes_of_scalars = {each.dtype for each in (scale_factor, add_offset) if isinstance(each, np.floating)}
    are_single = dtypes_of_scalars == {np.dtype(np.float32)}
    computed = np.dtype(np.float32 if are_single and dtype.itemsize < 4 else np.float64)
    dtype_of_values = computed if options.dtype is None else as_float_dtype(options.dtype)
    info = np.iinfo(dtype)
    gaps = tuple(dict.fromkeys(number for number in options.gaps if info.min <= number <= info.max))
    return UnpackRequest(dtype_of_values, np.result_type(computed, dtype_of_values), gaps)


def as_float_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a dtype of values."""
    return np.dtype(as_choice(as_dtype(dtype, "dtype", "float32 or float64").name, "dtype", ("float32", "float64")))


def as_gaps(fill_value: Any) -> tuple[int, ...]:
    """Return fill values as integers of Python."""
    if type(fill_value) is int:
        return (fill_value,)
    numbers = as_array(fill_value, "fill_value").reshape(-1)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise TypeError(f"fill_value must be an int, or several of them, not {shown(fill_value)}")
    return tuple(numbers.tolist())
