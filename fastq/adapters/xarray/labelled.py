"""Calls on DataArrays of xarray: they go on with the arrays inside, and results get back coordinates and names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from fastq.formats.granularity import as_granularity
from fastq.plan import cache
from fastq.requests.options import MinMaxOptions
from fastq.results import QuantizedArray
from fastq.system.arguments import is_a, is_lazy, shown


def call(given: cache.Call) -> Any:
    """Make a call on the array in a DataArray, in memory or of dask, and label what it returns."""
    x, *others = given.operands
    _refuse_names(given)
    result = given._replace(operands=(x.data, *map(_unlabelled, others))).made()
    label = given.operation.labels
    return LABELS[label](x, result, given.options) if label else result


def _refuse_names(given: cache.Call) -> None:
    """Refuse names of dimensions as axes; dask arrays and results know none."""
    axis = getattr(given.options, "axis", None)
    if any(is_a(each, str) for each in (axis if is_a(axis, (list, tuple)) else (axis,))):
        x = given.operation.operands[0]
        raise TypeError(f"axis must be numbers of axes, not names: pass axis={x}.get_axis_num({shown(axis)})")


def _unlabelled(operand: Any) -> Any:
    """Return the dask array in a DataArray; others become arrays where they are needed."""
    return operand.data if is_lazy(operand) and hasattr(operand, "dims") else operand


def _like(x: Any, data: Any) -> Any:
    """Return a DataArray without the encoding of x, by which a file would scale codes once more."""
    return type(x)(data, coords=x.coords, dims=x.dims, name=x.name, attrs=x.attrs)


def _elements(x: Any, data: Any, options: object) -> Any:
    """Label an array of x's shape."""
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


def _ranges(x: Any, ends: tuple[Any, Any], options: MinMaxOptions) -> tuple[Any, Any]:
    """Label minima and maxima; those of a block have the coordinates of its first element."""
    where = as_granularity(options.axis, options.block_size, x.ndim)
    if where.block_size:
        first = x.isel({x.dims[where.kept[0]]: slice(None, None, where.block_size)})
    else:
        first = x.isel({dim: 0 for k, dim in enumerate(x.dims) if k not in where.kept}, drop=True)
    lo, hi = (_like(first, end) for end in ends)
    return lo, hi


# functions that label a result, by `Operation.labels`
LABELS: dict[str, Callable[..., Any]] = {"codes": _codes, "elements": _elements, "ranges": _ranges}
