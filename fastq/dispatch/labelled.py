"""Calls on DataArrays of xarray: they go on with the arrays inside, and results get back coordinates and names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from fastq.dispatch import cache
from fastq.dispatch.granularity import kept_axes
from fastq.results import QuantizedArray
from fastq.system.arguments import as_axis, as_block_size, is_lazy


def call(given: cache.Call) -> Any:
    """Make a call on the array in a DataArray, in memory or of dask, and label what it returns."""
    scale, zero_point = _unlabelled(given.scale), _unlabelled(given.zero_point)
    result = cache.call(*given._replace(x=given.x.data, scale=scale, zero_point=zero_point))
    label = _LABELS.get(given.operation)
    return result if label is None else label(given.x, result, given.options)


def _unlabelled(numbers: Any) -> Any:
    """Return the dask array in a DataArray; others become arrays where they are needed."""
    return numbers.data if is_lazy(numbers) and hasattr(numbers, "dims") else numbers


def _like(x: Any, data: Any) -> Any:
    """Return a DataArray without the encoding of x, by which a file would scale codes once more."""
    return type(x)(data, coords=x.coords, dims=x.dims, name=x.name, attrs=x.attrs)


def _elements(x: Any, data: Any, options: object) -> Any:
    """Label an array of x's shape.

    Raises
    ------
    TypeError
        If it has another one, as codes that share bytes have.
    """
    if data.shape != x.shape:
        raise TypeError(
            "x is a DataArray, and codes of fewer than 8 bits share bytes, which have no coordinates: pass x.data, or "
            "bits= and dtype 'int8' or 'uint8' for one code in each byte"
        )
    return _like(x, data)


def _codes(x: Any, q: QuantizedArray, options: object) -> QuantizedArray:
    labelled = copy.copy(q)
    vars(labelled)["codes"] = _elements(x, q.codes, options)
    return labelled


def _extremes(x: Any, ends: tuple[Any, Any], options: tuple[Any, ...]) -> tuple[Any, Any]:
    """Label minima and maxima; those of a block have the coordinates of its first element."""
    axis, block_size, _ = options
    axis = as_axis(axis)
    block_size, kept = as_block_size(block_size, axis), kept_axes(axis, x.ndim) or ()
    if block_size:
        first = x.isel({x.dims[kept[0]]: slice(None, None, block_size)})
    else:
        first = x.isel({dim: 0 for k, dim in enumerate(x.dims) if k not in kept}, drop=True)
    lo, hi = (_like(first, end) for end in ends)
    return lo, hi


_LABELS: dict[str, Callable[..., Any]] = {
    "quantize": _codes,
    "quantize_with_qparams": _codes,
    "fake_quantize": _elements,
    "fake_quantize_with_qparams": _elements,
    "quantize_linear": _elements,
    "dequantize_linear": _elements,
    "dequantize": _elements,
    "minmax": _extremes,
}
