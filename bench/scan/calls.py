"""How the results of a cell are compared with the reference's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fastq import reference

from ..calls import Array, Operands, Results, call_of, repeated, results_of
from ..verify import MEASURES_AGREE
from .arrays import operands, out_like, piece
from .grid import FORMATS, GRANULARITIES, WORKS, Cell

PARAMETERS = ("scale", "zero_point", "lo", "hi")  # results that have the shape of parameters


def expected(cell: Cell, log2: int) -> Results:
    """Return the right results of the piece."""
    return results_of(call_of(reference, piece(cell, log2))())


def with_results(cell: Cell, log2: int) -> tuple[Operands, Results]:
    """Return the operands of a size with memory for the result, and the right results of the piece."""
    right, o = expected(cell, log2), operands(cell, log2)
    array = next((value for name, value in right.items() if name in ("codes", "result")), None)
    if array is not None:
        o = replace(o, out=out_like(cell, o.first, array, GRANULARITIES[cell.granularity].times(log2)))
    return o, right


def ready(cell: Cell, log2: int) -> tuple[Operands, Callable[[Any], str]]:
    """Return the operands of a size, and what says how a result differs from the right one."""
    o, right = with_results(cell, log2)
    return o, partial(differences, cell, right, GRANULARITIES[cell.granularity].times(log2))


def differences(cell: Cell, right: Results, times: int, result: Any) -> str:
    """Say how a result differs from the right one of the piece, repeated: '' where it does not."""
    got = results_of(result)
    if got.keys() != right.keys():
        return f"results {', '.join(got)}, not {', '.join(right)}"
    return "; ".join(filter(None, (_difference(cell, name, got[name], right[name], times) for name in right)))


def _difference(cell: Cell, name: str, got: Any, right: Any, times: int) -> str:
    if name == "clipped":
        wanted = None if right is None else right * times
        return "" if got == wanted else f"clipped: {got}, not {wanted}"
    if name == "measures":  # sums, which are taken in another order
        return "" if np.allclose(got, right, MEASURES_AGREE, 0, equal_nan=True) else f"measures: {got}, not {right}"
    if name == "counts":
        return "" if (got == right * times).all() else f"{name}: not the reference's"
    row = GRANULARITIES[cell.granularity]
    if WORKS[cell.work].at_random and times > 1 and name in ("codes", "result"):
        near = _are_neighbours(cell, got, repeated(right, times, row.growing_axis))
        return "" if near else f"{name}: not next to the reference's"
    axis = (
        row.growing_axis_of_parameters if name in PARAMETERS else None if name == "tensor_scale" else row.growing_axis
    )
    return "" if _repeats(np.asarray(got), np.asarray(right), times, axis) else f"{name}: not the reference's"


def _are_neighbours(cell: Cell, got: Array, right: Array) -> bool:
    """Return whether the codes of two arrays are at most one apart: both are next to the values."""
    if (got.dtype, got.shape) != (right.dtype, right.shape):
        return False
    return bool(np.abs(codes_of(cell, got).astype(np.int32) - codes_of(cell, right)).max() <= 1)


def codes_of(cell: Cell, array: Array) -> Array:
    """Return integers of which neighbours are the next codes."""
    qtype = FORMATS[cell.format]
    if qtype.packed:
        shape = (*array.shape[:-1], array.shape[-1] * 8 // qtype.bits)
        array = reference.unpack(np.ascontiguousarray(array), qtype, shape=shape)
    return array.view(f"u{array.itemsize}") if qtype.element else array


def _repeats(got: Array, right: Array, times: int, axis: int | None) -> bool:
    """Return whether an array is another one repeated along an axis, bit for bit."""
    wanted = repeated(right, times, axis if right.shape else None)
    bits = np.dtype(f"u{got.dtype.itemsize}")
    return got.dtype == wanted.dtype and np.array_equal(got.view(bits), wanted.view(bits))
