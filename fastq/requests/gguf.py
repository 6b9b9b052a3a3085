"""What is asked for blocks of GGUF: a search for the least error, and the importance of columns that weighs errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.gguf import LEAST_ERROR, RANGES, BlockFormat
from fastq.system.arguments import as_choice, is_python, native
from fastq.system.arrays_of_callers import as_array


def as_least_error(method: object, form: BlockFormat) -> bool:
    """Return whether an option `range` asks for a search for the least error, which only some formats support."""
    is_mse = as_choice(method, "range", RANGES) == "mse"
    if is_mse and not form.trials:
        raise ValueError(f"range 'mse' supports the qtypes {', '.join(LEAST_ERROR)}, not {form}")
    return is_mse


def check_importance_of_columns(form: BlockFormat, importance: object) -> None:
    """Raise ValueError if a format needs an importance of columns, and none is given."""
    if form.needs_importance and importance is None:
        raise ValueError(f"importance must be given for {form}, to which ggml quantizes with an importance alone")


def as_importance_of_columns(importance: Any, shape: tuple[int, ...], group: int) -> tuple[NDArray[Any], int]:
    """Return the importance of columns as an array, and the number of rows in a shape that share each of its rows.

    If `group` neighbours are all 0, ggml would store zeros for them; here they get equal weights.
    """
    weights = as_array(importance, "importance")
    if native(weights.dtype) != np.float32 and not (is_python(importance) and weights.dtype.kind in "iuf"):
        raise TypeError(f"importance must be float32, not {weights.dtype}")
    with np.errstate(over="ignore", under="ignore"):  # numbers beyond float32 are refused below
        weights = np.require(weights, np.float32, "A")
    own_axes = _axes_with_own_rows(weights.shape, shape)
    if own_axes is None or not shape:
        raise ValueError(
            f"importance has shape {weights.shape}, but for data of shape {shape} it must be one row, {shape[-1:]}, a "
            "row for each row, or for each index of the first axes, with 1 for the others"
        )
    if weights.size and not (weights.min() >= 0 and weights.max() < np.inf):
        raise ValueError("importance must be finite and not negative")
    return with_equal_weights_where_all_are_0(weights, group), math.prod(shape[own_axes:-1])


def _axes_with_own_rows(weights: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """Return for how many of the first axes of data importance has rows of its own; None for a shape that fits no data.

    For data of shape (8, 4, 32) importance of shape (8, 4, 32) has rows for each index of two axes, (8, 1, 32) for each
    index of the first one, and (1, 1, 32) and (32,) have one row for all.
    """
    *leading, columns = shape or (0,)
    if weights == (columns,):
        return 0
    for axes in range(len(leading), -1, -1):
        if weights == (*leading[:axes], *(1,) * (len(leading) - axes), columns):
            return axes
    return None


def with_equal_weights_where_all_are_0(weights: NDArray[Any], group: int) -> NDArray[Any]:
    """Return importance with ones for groups of neighbours that are all 0; itself without such groups."""
    if not group or weights.all():
        return weights
    groups = weights.reshape(-1, group)
    has_importance = groups.any(axis=1, keepdims=True)
    return weights if has_importance.all() else np.where(has_importance, groups, np.float32(1)).reshape(weights.shape)
