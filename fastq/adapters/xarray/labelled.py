"""Calls on arrays of xarray: they go on with the arrays inside, and results for DataArrays get back their labels.

Where two arrays have labels, these decide which elements belong together: dimensions are brought into one order by
their names, and coordinates must agree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from fastq.formats.granularity import as_granularity, axes_from_front, granularity
from fastq.plan import cache
from fastq.requests.quantization import MinMaxOptions
from fastq.results import QParams, QuantizedArray
from fastq.system import labels
from fastq.system.arguments import as_axis, shown
from fastq.system.arrays_of_callers import as_array, has_named_dimensions, is_lazy
from fastq.system.declared_gaps import OF_GAPS, gaps_of, refuse_gaps, warn_of_packing


def take_call(arguments: cache.Call) -> Any:
    """Make a call on the array in a DataArray or Variable, in memory or of dask, and label what it returns."""
    _refuse_names(arguments)
    x = arguments.operands[0]
    arguments = _arrange_by_labels(arguments)
    names = arguments.operation.operands
    operands = [_without_labels(operand) for operand in arguments.operands]
    takes_gaps = "gaps" in arguments.operation.options._fields  # as codes that become NaN
    if not takes_gaps:
        operands[0] = _data_without_gaps(x, names[0])
    if "q" in names:
        place = names.index("q")
        approximation = arguments.operands[place]
        if has_named_dimensions(approximation):
            operands[place] = _data_without_gaps(approximation, "q")
    result = arguments._replace(operands=tuple(operands), qparams=_without_labels(arguments.qparams)).make()
    has_coordinates = hasattr(x, "coords")  # a Variable has none, and gets arrays back
    if not has_coordinates or not arguments.operation.labels:
        return result
    return LABELS[arguments.operation.labels](x, result, arguments.options)


def _data_without_gaps(x: Any, name: str) -> Any:
    """Return the array in a DataArray or Variable; gaps by its attributes are refused, at the latest by a task."""
    warn_of_packing(x, name)
    gaps = gaps_of(x)
    if not gaps:
        return x.data
    if is_lazy(x.data):
        return x.data.map_blocks(refuse_gaps, gaps, name, f"{name}.data", dtype=x.dtype, meta=x.data._meta)
    return refuse_gaps(as_array(x.data, name), gaps, name, f"{name}.data")


# --- arrays that belong together --------------------------------------------------------------------------------------


def match_labels(x: Any, q: Any) -> tuple[Any, Any]:
    """Return an array and its approximation with dimensions in one order, if both have labels; these must agree.

    Codes stay as they are, since their parameters belong to axes.
    """
    has_codes = isinstance(q, QuantizedArray)
    if not (has_named_dimensions(x) and has_named_dimensions(q.codes if has_codes else q)):
        return x, q
    if has_codes:
        return labels.align(x, q.codes, "x", "q.dequantize()"), q
    return x, labels.align(q, x, "q", "x")


def _arrange_by_labels(arguments: cache.Call) -> cache.Call:
    """Return a call with numbers in the order of the dimensions of its array, and the axis that their names say."""
    names = arguments.operation.operands
    if isinstance(arguments.qparams, QParams):
        _check_qparams(arguments.operands[0], arguments.qparams, names[0])
        return arguments
    if arguments.operation.function == "gguf.quantize":
        return _with_importance_of_columns(arguments)
    if "importance" in names:
        return _with_importance(arguments)
    takes_raw_parameters = "scale" in names or "multiplier" in names
    if takes_raw_parameters and hasattr(arguments.options, "axis"):
        return _with_parameters(arguments, names)
    return arguments


def _has_labels(numbers: Any) -> bool:
    """Return whether several numbers have labels; one number serves all elements."""
    return has_named_dimensions(numbers) and numbers.size != 1


def _with_importance(arguments: cache.Call) -> cache.Call:
    """Return a call with importance for each element of x, if that has labels.

    Its dimensions are put into the order of x, and those that it lacks are added by broadcasting.
    """
    x, out, importance, _ = arguments.operands
    if not _has_labels(importance):
        return arguments
    labels.axes_of(importance, x, "importance", "x")
    labels.check_coordinates(importance, x, "importance", "x")
    for dim in importance.dims:
        if importance.sizes[dim] != x.sizes[dim]:
            raise ValueError(f"importance has {importance.sizes[dim]} elements along {dim!r}, but x has {x.sizes[dim]}")
    variable = importance.variable if hasattr(importance, "coords") else importance
    in_shape_of_x = variable.set_dims(dict(zip(x.dims, x.shape, strict=True))).data
    return arguments._replace(operands=(x, out, in_shape_of_x, None))


def _with_importance_of_columns(arguments: cache.Call) -> cache.Call:
    """Return a call of `fastq.gguf.quantize` with importance of columns in the order of the dimensions of its data."""
    data, out, importance, _ = arguments.operands
    if not _has_labels(importance):
        return arguments
    axes = labels.axes_of(importance, data, "importance", "data")
    if axes[-1] != data.ndim - 1:
        raise ValueError(
            f"importance has the dimensions {importance.dims}, but columns are along {data.dims[-1]!r} of data"
        )
    labels.check_coordinates(importance, data, "importance", "data")
    in_order = importance.transpose(*(data.dims[axis] for axis in axes))
    return arguments._replace(operands=(data, out, in_order, None))


def _with_parameters(arguments: cache.Call, names: tuple[str, ...]) -> cache.Call:
    """Return a call with raw parameters in the order of the dimensions of x, and the axis that their names say.

    Raise ValueError if their dimensions contradict each other, or the axis that a caller passes.
    """
    x, out, scale, zero_point = arguments.operands
    numbers = {names[2]: scale, "zero_point": zero_point, "bias": arguments.bias}
    block_size = getattr(arguments.options, "block_size", 0)
    axis = arguments.options.axis
    axes_by_names: tuple[int, ...] | None = None
    for name, parameter in numbers.items():
        if not _has_labels(parameter):
            continue
        axes = labels.axes_of(parameter, x, name, names[0])
        blocks = {x.dims[k]: block_size for k in _block_axes(axis, block_size, x.ndim)}
        labels.check_coordinates(parameter, x, name, names[0], blocks)
        numbers[name] = parameter.transpose(*(x.dims[k] for k in axes))
        if len(axes) == x.ndim:
            continue  # parameters that have all axes say by their lengths which ones they belong to
        if axis is not None and axes != granularity(as_axis(axis), 0, x.ndim, names[0]).kept:
            dims = ", ".join(repr(x.dims[k]) for k in axes)
            raise ValueError(
                f"{name} has the dimensions {dims} of {names[0]}, axis {axes}, not axis={shown(axis)}: leave out axis, "
                f"or pass {name}.data"
            )
        if axes_by_names not in (None, axes):
            raise ValueError(
                f"{name} has axes {axes} of {names[0]}, by its dimensions, and others have {axes_by_names}"
            )
        axes_by_names = axes
    if axes_by_names is not None:
        axis = axes_by_names[0] if len(axes_by_names) == 1 else axes_by_names
    arguments = arguments._replace(
        operands=(x, out, numbers[names[2]], numbers["zero_point"]),
        options=arguments.options._replace(axis=axis),
        types=(type(axis), *arguments.types[1:]),
    )
    return arguments if arguments.bias is None else arguments.with_bias(as_array(numbers["bias"], "bias"))


def _block_axes(axis: Any, block_size: Any, ndim: int) -> tuple[int, ...]:
    """Return the axis along which blocks run; errors about it are raised later."""
    is_valid = type(axis) is int and -ndim <= axis < ndim and type(block_size) is int and block_size > 0
    return axes_from_front((axis,), ndim, "x") if is_valid else ()


def _check_qparams(x: Any, p: Any, of: str) -> None:
    """Raise ValueError unless numbers with labels in QParams, as of `with_values`, have the dimensions of its axes."""
    parts = granularity(p.axis, p.block_size, x.ndim, of)
    needed_dims = tuple(x.dims[axis] for axis in parts.parameter_axes(x.ndim))
    blocks = {x.dims[axis]: p.block_size for axis in parts.kept} if p.block_size else None
    for name in ("scale", "zero_point"):
        numbers = getattr(p, name)
        if not _has_labels(numbers):
            continue
        if numbers.dims != needed_dims:
            raise ValueError(
                f"qparams.{name} has the dimensions {numbers.dims}, but its axes are {needed_dims} of {of}"
            )
        labels.check_coordinates(numbers, x, f"qparams.{name}", of, blocks)


def _refuse_names(arguments: cache.Call) -> None:
    """Refuse names of dimensions as axes; dask arrays and results know none."""
    axis = getattr(arguments.options, "axis", None)
    axes = axis if isinstance(axis, (list, tuple)) else (axis,)
    if any(isinstance(number, str) for number in axes):
        x = arguments.operation.operands[0]
        raise TypeError(f"axis must be numbers of axes, not names: pass axis={x}.get_axis_num({shown(axis)})")


def _without_labels(operand: Any) -> Any:
    """Return the array in a DataArray; other objects become arrays where they are needed."""
    return operand.data if has_named_dimensions(operand) else operand


def _like(x: Any, data: Any) -> Any:
    """Return a DataArray without the encoding of x, by which a file would scale codes once more.

    It has no gaps, so it has no attributes that call some of its numbers gaps.
    """
    attributes = {key: value for key, value in x.attrs.items() if key not in OF_GAPS}
    return type(x)(data, coords=x.coords, dims=x.dims, name=x.name, attrs=attributes)


def _elements(x: Any, data: Any, options: object) -> Any:
    """Label an array of x's shape; refuse one of another shape, as that of packed codes."""
    if data.shape != x.shape:
        raise TypeError(
            "x is a DataArray, and codes of fewer than 8 bits share bytes, which have no coordinates: pass x.data, or "
            "bits= and dtype 'int8' or 'uint8' for one code in each byte"
        )
    return _like(x, data)


def _codes(x: Any, q: QuantizedArray, options: object) -> QuantizedArray:
    """Label the codes of an array of x's shape."""
    labelled = copy.copy(q)
    vars(labelled)["codes"] = _elements(x, q.codes, options)
    return labelled


def _ranges(x: Any, ends: tuple[Any, Any], options: MinMaxOptions) -> tuple[Any, Any]:
    """Label minima and maxima; those of a block have the coordinates of its first element."""
    parts = as_granularity(options.axis, options.block_size, x.ndim)
    if parts.block_size:
        first = x.isel({x.dims[parts.kept[0]]: slice(None, None, parts.block_size)})
    else:
        first = x.isel({dim: 0 for k, dim in enumerate(x.dims) if k not in parts.kept}, drop=True)
    lo, hi = (_like(first, end) for end in ends)
    return lo, hi


# functions that label a result, by `Operation.labels`
LABELS: dict[str, Callable[..., Any]] = {"codes": _codes, "elements": _elements, "ranges": _ranges}
