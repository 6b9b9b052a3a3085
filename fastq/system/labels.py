"""Labels of arrays, by which elements of two arrays belong together.

They are the names of dimensions and the coordinates of xarray, and indexes and columns of pandas and polars.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fastq.system.arguments import shown
from fastq.system.arrays_of_callers import is_lazy


def align(other: Any, x: Any, name: str, of: str) -> Any:
    """Return an array in the order of the dimensions of x; raise ValueError if the labels of the two disagree.

    `name` and `of` are the arguments that the array and x come from.
    """
    if set(other.dims) != set(x.dims):
        by_position = f", or by position {name}.data" if other.shape == x.shape else ""
        advice = f"pass one with the same dimensions, as {name}.rename gives them other names{by_position}"
        for longer, shorter, of_longer in ((other, x, name), (x, other, of)):
            more = [dim for dim in longer.dims if dim not in shorter.dims]
            if len(more) == len(longer.dims) - len(shorter.dims):  # all others are those of the shorter one
                where = ", ".join(f"{dim!r}: 0" for dim in more)
                advice = f"pass {of_longer}.isel({{{where}}}), or another place along {_list_of_names(more)}"
        raise ValueError(
            f"{name} has the dimensions {_list_of_names(other.dims)}, but {of} has {_list_of_names(x.dims)}: {advice}"
        )
    check_coordinates(other, x, name, of)
    return other if other.dims == x.dims else other.transpose(*x.dims)


def axes_of(parameters: Any, x: Any, name: str, of: str) -> tuple[int, ...]:
    """Return the axes of x that have the dimensions of parameters, in order; raise ValueError without any such axis."""
    unknown = [dim for dim in parameters.dims if dim not in x.dims]
    if unknown:
        raise ValueError(
            f"{name} has the dimension {unknown[0]!r}, but {of} has {_list_of_names(x.dims)}: {name}.rename gives it "
            f"another name, and {name}.data with axis= has none"
        )
    return tuple(sorted(x.dims.index(dim) for dim in parameters.dims))


def check_coordinates(other: Any, x: Any, name: str, of: str, blocks: Mapping[Any, int] | None = None) -> None:
    """Raise ValueError if two arrays have other coordinates along a dimension of both.

    `blocks` has the sizes of blocks along dimensions of which the other array has one index for each block.
    """
    for dim in other.dims:
        ours = labels_along(x, dim)
        theirs = labels_along(other, dim)
        if ours is None or theirs is None:
            _check_other_coordinates(other, x, dim, name, of)
        elif blocks and dim in blocks:
            _check_blocks(theirs.values, ours.values, dim, blocks[dim], name, of)
        elif not agree(theirs, ours):
            raise ValueError(f"{name} and {of} disagree along {dim!r}: {_with_advice(theirs, ours, dim, name, of)}")


def labels_along(x: Any, dim: Any) -> Any:
    """Return the coordinate of a dimension as a Variable, or None without one, as in a Variable."""
    coords = getattr(x, "coords", {})
    return coords[dim].variable if dim in coords else None


def agree(theirs: Any, ours: Any) -> bool:
    """Return whether two coordinates have the same labels; floats are compared in the dtype with fewer digits."""
    if theirs.equals(ours):
        return True
    if theirs.shape != ours.shape or not theirs.dtype.kind == ours.dtype.kind == "f":
        return False
    fewer = min(theirs.dtype, ours.dtype, key=lambda dtype: dtype.itemsize)
    with np.errstate(over="ignore", under="ignore"):
        return np.array_equal(theirs.values.astype(fewer), ours.values.astype(fewer), equal_nan=True)


def _check_other_coordinates(other: Any, x: Any, dim: Any, name: str, of: str) -> None:
    """Raise ValueError if coordinates along a dimension without labels disagree, such as coordinates of two axes."""
    for key, theirs, ours in _in_both(other, x):
        is_known = dim in theirs.dims and set(theirs.dims) == set(ours.dims) and key not in other.dims
        if is_known and not agree(theirs.transpose(*ours.dims), ours):
            raise ValueError(
                f"{name} has other values of the coordinate {key!r}, along {dim!r}, than {of}: pass arrays of the same "
                f"places, or by position {name}.drop_vars({key!r})"
            )


def _in_both(other: Any, x: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield names and Variables of coordinates that two arrays have in memory."""
    ours = getattr(x, "coords", {})
    for key, coordinate in getattr(other, "coords", {}).items():
        if key in ours and not is_lazy(coordinate) and not is_lazy(ours[key]):
            yield key, coordinate.variable, ours[key].variable


def _check_blocks(theirs: Any, ours: Any, dim: Any, size: int, name: str, of: str) -> None:
    """Raise ValueError if the label of a block is not among those of its elements, or between them."""
    starts = np.arange(0, len(ours), size)
    if len(starts) != len(theirs) or not (theirs.dtype.kind in "iufmM" and ours.dtype.kind in "iufmM"):
        return  # other sizes are refused as such
    lowest = np.minimum.reduceat(ours, starts)
    highest = np.maximum.reduceat(ours, starts)
    outside = ~((lowest <= theirs) & (theirs <= highest))
    if outside.any():
        k = int(np.argmax(outside))
        raise ValueError(
            f"{name} has the label {_text(theirs[k])} along {dim!r} for a block of {of} from {_text(lowest[k])} to "
            f"{_text(highest[k])}: bring both in one order, or by position pass {name}.drop_vars({dim!r})"
        )


def disagreement(theirs: Any, ours: Any, name: str, of: str) -> str:
    """Return how two coordinates of a dimension disagree, which belong to what `name` and `of` say."""
    a, b = _as_set(theirs), _as_set(ours)
    if not _have_each_once(theirs, ours) or not a & b:
        return f"{name} has {_first(theirs.values)} where {of} has {_first(ours.values)}"
    if a == b:
        return f"{name} has the labels of {of} in another order"
    if a < b:
        return f"{name} has {len(a)} of the {len(b)} labels of {of}"
    if b < a:
        return f"{name} has {len(a)} labels, among them all {len(b)} of {of}"
    return f"{name} has {len(a & b)} of the {len(b)} labels of {of}, and {len(a - b)} others"


def _with_advice(theirs: Any, ours: Any, dim: Any, name: str, of: str) -> str:
    """Return how two coordinates disagree, with advice what to pass instead."""
    difference = disagreement(theirs, ours, name, of)
    a, b = _as_set(theirs), _as_set(ours)
    if not _have_each_once(theirs, ours) or not a & b:
        return f"{difference}; by position pass {name}.drop_vars({dim!r})" if len(theirs) == len(ours) else difference
    if b <= a:
        return f"{difference}; pass {name}.sel({{{dim!r}: {of}[{dim!r}]}})"
    if a < b:
        return f"{difference}; pass {of}.sel({{{dim!r}: {name}[{dim!r}]}})"
    return f"{difference}; pass what xarray.align({of}, {name}) returns"


def _have_each_once(theirs: Any, ours: Any) -> bool:
    """Return whether no label occurs twice in either coordinate, so that labels alone tell which elements are meant."""
    return len(_as_set(theirs)) == len(theirs) and len(_as_set(ours)) == len(ours)


def _as_set(coordinate: Any) -> set[Any]:
    """Return the labels of a coordinate as objects of Python, each once."""
    return set(coordinate.values.tolist())


def _first(labels: Any) -> str:
    """Return the first labels as text."""
    texts = [_text(label) for label in labels[:3]]
    return ", ".join(texts) + (", .." if len(labels) > 3 else "") if texts else "no labels"


def _text(label: Any) -> str:
    """Return a label as text; the `repr` of a number of NumPy would have its dtype in it."""
    return str(label) if isinstance(label, np.generic) else shown(label)


def _list_of_names(dims: Any) -> str:
    """Return names of dimensions as text, in parentheses."""
    return f"({', '.join(map(str, dims))})"


# --- tables -----------------------------------------------------------------------------------------------------------


def check_tables(other: Any, x: Any, name: str, of: str) -> None:
    """Raise ValueError if two tables or columns, both of pandas or both of polars, have other labels."""
    ours = _labels_of_table(x)
    for key, theirs in _labels_of_table(other).items():
        # a list is of polars, an Index of pandas: labels of the two libraries are not compared
        if key not in ours or (type(theirs) is list) != (type(ours[key]) is list) or _are_equal(theirs, ours[key]):
            continue
        a, b = list(theirs), list(ours[key])
        in_order = f"{name}.select({of}.columns)" if type(theirs) is list else f"{name}.reindex_like({of})"
        has_all = len(a) == len(b) == len(set(a)) and set(a) == set(b)
        raise ValueError(
            f"{name} has {_first(a)} as {key} where {of} has {_first(b)}: pass "
            f"{f'{in_order}, or by position ' if has_all else 'the same labels, or by position '}{name}.to_numpy()"
        )


def _labels_of_table(x: Any) -> dict[str, Any]:
    """Return the index and the columns of a table or of a column, by these words; empty for all other objects."""
    pandas = sys.modules.get("pandas")
    polars = sys.modules.get("polars")
    if any(isinstance(x, getattr(pandas, class_name, ())) for class_name in ("DataFrame", "Series")):
        return {"index": x.index} | ({"columns": x.columns} if hasattr(x, "columns") else {})
    is_polars = isinstance(x, getattr(polars, "DataFrame", ()))
    return {"columns": x.columns} if is_polars else {}


def _are_equal(theirs: Any, ours: Any) -> bool:
    """Return whether labels are equal: the columns of polars, which are lists, or Indexes of pandas."""
    return theirs == ours if type(theirs) is list else bool(theirs.equals(ours))
