"""The operands of a cell: a piece of at most 2**PIECE elements, repeated along the axis that grows, and laid out.

So the right results of a large call are those of the piece, repeated: ranges of repeated values are the same, and what
has parameters of its own is repeated whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq import QParams, QuantizedArray, reference
from fastq.formats.qtypes import QTYPES

from ..data import SEED, ZERO_POINT, dtype_of, empty
from .grid import BLOCK_FORMATS, GRANULARITIES, OF_CODES_WORKS, PIECE, WORKS, Cell

Array = NDArray[Any]

WIDEST = 10**4  # of integers, so that float16 holds the scales of GGUF
NAN_EVERY = 997  # elements, where NaN is not refused


def _ordered(*order: int) -> Callable[[Array], Array]:
    """Lay out with the axes in this order in memory, the slowest first."""
    back = tuple(np.argsort(order))
    return lambda x: np.ascontiguousarray(x.transpose(order)).transpose(back)


def _reversed(x: Array) -> Array:
    return np.flip(np.ascontiguousarray(np.flip(x)))


def _gaps(x: Array) -> Array:
    memory = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    memory[..., ::2] = x
    return memory[..., ::2]


def _broadcast(x: Array) -> Array:
    return np.broadcast_to(x[:1].copy(), x.shape)


def _unaligned(x: Array) -> Array:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    view = memory[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "c": lambda x: x,
    "fortran": _ordered(2, 1, 0),
    "transposed": _ordered(0, 2, 1),
    "permuted": _ordered(1, 2, 0),
    "reversed": _reversed,
    "gaps": _gaps,
    "broadcast": _broadcast,
    "swapped": lambda x: x.astype(x.dtype.newbyteorder("S")),
    "unaligned": _unaligned,
}


@dataclass(frozen=True)
class Operands:
    """What a call is made with.

    Attributes
    ----------
    first : ndarray
        The array that has the layout: of values, or of codes.
    shape : tuple of int
        Shape of the array of values.
    qparams : QParams or None
        The parameters that are given.
    approximation : ndarray or None
        Codes, or values, that `first` is compared with.
    out : ndarray or None
        Where to write.
    """

    first: Array
    shape: tuple[int, ...]
    qparams: QParams | None = None
    approximation: Array | None = None
    out: Array | None = None


def repeated(piece: Array, times: int, axis: int | None) -> Array:
    """Return the piece repeated along an axis; itself without axes."""
    return piece if axis is None or times == 1 else np.concatenate([piece] * times, axis)


def values(dtype: str, shape: tuple[int, ...], nan: bool = False) -> Array:
    """Return normal deviates, some of them NaN, or integers of most of a small dtype's range, some of a wide one's."""
    random, made = np.random.default_rng(SEED), dtype_of(dtype)
    if made.kind not in "iu":
        x = random.standard_normal(shape, np.float32)
        if nan:
            x.reshape(-1)[::NAN_EVERY] = np.nan
        return x.astype(made)
    info = np.iinfo(made)
    return random.integers(max(info.min, -WIDEST), min(info.max, WIDEST), shape, made)


def non_default_arguments(cell: Cell, *axes: str) -> dict[str, str]:
    """Return the arguments that a call names, where they are others than what it takes by itself."""
    return {axis: value for axis in axes if (value := getattr(cell, axis)) != Cell._field_defaults[axis]}


def granularity(cell: Cell) -> dict[str, Any]:
    """Return the arguments axis and block_size; formats that prescribe blocks have a size of their own."""
    row = GRANULARITIES[cell.granularity]
    prescribed = cell.format in QTYPES and QTYPES[cell.format].block_size
    return {"axis": row.axis, "block_size": prescribed or row.block_size}


def grouped(cell: Cell, x: Array) -> tuple[Array, tuple[int, ...]] | None:
    """Return a view in which whole axes share a scale, and these axes; None where blocks are ragged."""
    row = GRANULARITIES[cell.granularity]
    if not row.block_size:
        return x, tuple(a for a in range(x.ndim) if a not in row.kept)
    (axis,) = row.kept
    if x.shape[axis] % row.block_size:
        return None
    shape = (*x.shape[:axis], x.shape[axis] // row.block_size, row.block_size, *x.shape[axis + 1 :])
    return x.reshape(shape), (axis + 1,)


@lru_cache(maxsize=2)
def piece(cell: Cell, log2: int) -> Operands:
    """Return the operands of the piece in C order, whatever the layout, with the values that the layout leaves."""
    shape = cell.shape(min(log2, PIECE))
    if cell.work in OF_CODES_WORKS:
        return _piece_of_codes(cell, shape)
    laid = LAYOUTS[cell.layout](values(cell.dtype, shape, cell.nan != "raise"))
    x = np.ascontiguousarray(laid).astype(dtype_of(cell.dtype))
    made = Operands(x, shape)
    if cell.work == "compare values":
        return replace(made, approximation=(x.astype(np.float32) * np.float32(1.01)))
    if WORKS[cell.work].parameters != "given":
        return made
    named = granularity(cell) | non_default_arguments(cell, "convention", "nan")
    p = reference.choose_qparams(x, cell.format, **named)
    if cell.work == "requantize":  # has one zero point for all channels
        p = p.with_values(p.scale, np.full_like(p.zero_point, ZERO_POINT))
    made = replace(made, qparams=p)
    if cell.work == "compare":
        made = replace(made, approximation=reference.quantize(x, qparams=made.qparams).codes)
    return made


def _piece_of_codes(cell: Cell, shape: tuple[int, ...]) -> Operands:
    x = values("float32", shape)
    if cell.format in BLOCK_FORMATS:
        return _laid_out(cell, Operands(reference.gguf.quantize(x, cell.format), shape))
    named = (
        granularity(cell) | non_default_arguments(cell, "convention") if WORKS[cell.work].parameters == "given" else {}
    )
    q = reference.quantize(x, cell.format, **named)
    if "bytes" in WORKS[cell.work].reads:
        return _laid_out(cell, Operands(_one_each(cell, q), shape, q.qparams))
    return _laid_out(cell, Operands(q.codes, shape, q.qparams))


def _one_each(cell: Cell, q: QuantizedArray) -> Array:
    """Return one code per element; for a function without an argument for the format in a dtype that has it."""
    codes = reference.unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
    return codes.astype(dtype_of(cell.format)) if WORKS[cell.work].function == "dequantize_linear" else codes


def _laid_out(cell: Cell, made: Operands) -> Operands:
    return replace(made, first=np.ascontiguousarray(LAYOUTS[cell.layout](made.first)))


def operands(cell: Cell, log2: int) -> Operands:
    """Return the operands of an array of about 2**log2 elements; `out` is made when the result's shape is known."""
    row, small = GRANULARITIES[cell.granularity], piece(cell, log2)
    times = row.times(log2)
    p = small.qparams
    if p is not None and p.scale.ndim:
        scale, zero_point = (repeated(each, times, row.growing_axis_of_parameters) for each in (p.scale, p.zero_point))
        p = p.with_values(scale, zero_point)
    second = small.approximation
    return Operands(
        LAYOUTS[cell.layout](repeated(small.first, times, row.growing_axis)),
        cell.shape(log2),
        p,
        None if second is None else repeated(second, times, row.growing_axis),
    )


def out_like(cell: Cell, first: Array, result: Array, times: int) -> Array | None:
    """Return memory for the results of a number of pieces, given the result of one; None where none is given."""
    if cell.out == "none":
        return None
    shape = list(result.shape)
    shape[GRANULARITIES[cell.granularity].growing_axis] *= times
    order = tuple(np.argsort([-abs(n) for n in first.strides], kind="stable")) if cell.out == "like x" else (0, 1, 2)
    return empty(tuple(shape[k] for k in order), result.dtype).transpose(np.argsort(order))
