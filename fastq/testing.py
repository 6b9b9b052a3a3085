"""Assertions about quantized arrays, for tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import as_convention
from fastq.formats.granularity import granularity
from fastq.results import QuantizedArray
from fastq.system.arguments import native, shown
from fastq.system.arrays_of_callers import as_array, has_named_dimensions
from fastq.system.labels import check_coordinates


def assert_same_codes(actual: QuantizedArray, desired: QuantizedArray) -> None:
    """Assert that two arrays have the same codes and parameters, to the bit.

    Parameters
    ----------
    actual, desired : QuantizedArray
        Arrays to compare: shape, format, granularity, scheme and convention, labels where both have them, then the
        bytes of codes, scale, zero point and, in formats with two levels of scales, the scale of the array. Memory and
        byte order may differ; -0.0 and 0.0 are different.

    Raises
    ------
    AssertionError
        If they differ; the message names the first difference, for codes and parameters with the number of places and
        the first place.
    TypeError
        If one is not a QuantizedArray.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.linspace(-1, 1, 8, dtype=np.float32)
    >>> fastq.testing.assert_same_codes(fastq.quantize(x, "int8"), fastq.reference.quantize(x, "int8"))
    >>> fastq.testing.assert_same_codes(fastq.quantize(x, "int8"), fastq.quantize(x, "uint8"))
    Traceback (most recent call last):
        ...
    AssertionError: dtype: int8, not uint8
    """
    for name, q in (("actual", actual), ("desired", desired)):
        if not isinstance(q, QuantizedArray):
            raise TypeError(f"{name} must be a QuantizedArray, not {shown(q)}")
    ours = _description_of(actual)
    theirs = _description_of(desired)
    different = [f"{name}: {_unlike(ours[name], theirs[name])}" for name in ours if ours[name] != theirs[name]]
    if not different and has_named_dimensions(actual.codes) and has_named_dimensions(desired.codes):
        different = _unlike_labels(actual.codes, desired.codes)
    if not different:
        pairs = zip(_arrays(actual).items(), _arrays(desired).values(), strict=True)
        different = [f"{name}: {text}" for (name, a), b in pairs if (text := _difference(a, b))]
    if different:
        raise AssertionError("; ".join(different))


def _description_of(q: QuantizedArray) -> dict[str, Any]:
    """Return everything except the numbers, in the order in which differences are reported."""
    return {
        "shape": q.shape,
        "dtype": q.dtype,
        "axis": granularity(q.axis, q.block_size, q.ndim).axes,
        "block_size": q.block_size,
        "symmetric": q.symmetric,
        "convention": as_convention(q.convention),
    }


def _unlike(ours: Any, theirs: Any) -> str:
    """Return a text on two unequal values; of two conventions of one name the fields in which they differ."""
    if not isinstance(ours, Convention):
        return f"{ours}, not {theirs}"
    if ours.name != theirs.name:
        return f"{ours.name}, not {theirs.name}"
    pairs = ((field.name, getattr(ours, field.name), getattr(theirs, field.name)) for field in fields(ours))
    return ", ".join(f"{name} of {ours.name} {a!r}, not {b!r}" for name, a, b in pairs if a != b)


def _unlike_labels(ours: Any, theirs: Any) -> list[str]:
    """Return a text on the labels in which two arrays of codes differ."""
    if ours.dims != theirs.dims:
        return [f"dimensions: {ours.dims}, not {theirs.dims}"]
    try:
        check_coordinates(ours, theirs, "actual.codes", "desired.codes")
    except ValueError as error:
        return [f"coordinates: {error}"]
    return []


def _arrays(q: QuantizedArray) -> dict[str, NDArray[Any]]:
    """Return codes and parameters by name; a tensor scale of 1 stands for none, so that both arrays have the same."""
    tensor_scale = np.float32(1) if q.tensor_scale is None else q.tensor_scale
    numbers = {"scale": q.scale, "zero_point": q.zero_point, "tensor_scale": tensor_scale}
    return {"codes": as_array(q.codes, "q.codes"), **{name: as_array(each, name) for name, each in numbers.items()}}


def _difference(actual: NDArray[Any], desired: NDArray[Any]) -> str:
    """Return a text on how two arrays of numbers differ in their bits, in any byte order; empty if they do not."""
    actual, desired = (each.astype(native(each.dtype), copy=False) for each in (actual, desired))
    for property_name, a, b in (("dtype", actual.dtype, desired.dtype), ("shape", actual.shape, desired.shape)):
        if a != b:
            return f"{property_name} {a}, not {b}"
    unequal = _bits(actual) != _bits(desired)
    if not unequal.any():
        return ""
    place = tuple(int(k) for k in np.argwhere(unequal)[0])
    share = f"{np.count_nonzero(unequal):,} of {unequal.size:,} differ"
    return f"{share}, the first at {place}: {actual[place]}, not {desired[place]}"


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as unsigned integers of the same bits."""
    return np.asarray(array, order="C").view(f"u{array.itemsize}")
