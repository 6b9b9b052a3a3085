"""The operands of a cell: a piece of at most 2**PIECE elements, repeated along the axis that grows, and laid out.

So the right results of a large call are those of the piece, repeated: ranges of repeated values are the same, and what
has parameters of its own is repeated whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from fastq import QuantizedArray, reference
from fastq.formats.qtypes import QTYPES

from ..calls import SEED, ZERO_POINT, Array, Operands, dtype_of, empty, repeated
from .grid import BLOCK_FORMATS, GRANULARITIES, OF_CODES_WORKS, PIECE, WORKS, Cell
from .layouts import LAYOUTS

WIDEST = 10**4  # of integers, so that float16 holds the scales of GGUF
NAN_EVERY = 997  # elements, where NaN is not refused


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


# function -> the axes whose values are arguments by name
_NAMED = {
    **dict.fromkeys(("quantize", "fake_quantize", "choose_qparams", "quantize_linear"), ("convention", "nan")),
    "dequantize_linear": ("convention",),
    "minmax": ("nan",),
    "binarize": ("nan",),
}


def _not_default(cell: Cell, *axes: str) -> dict[str, str]:
    """Return the arguments that are others than what a call takes by itself."""
    return {axis: value for axis in axes if (value := getattr(cell, axis)) != Cell._field_defaults[axis]}


def _without_arrays(cell: Cell, shape: tuple[int, ...]) -> Operands:
    """Return what is known of the operands before there are any; parameters of fastq know their convention."""
    work, row = WORKS[cell.work], GRANULARITIES[cell.granularity]
    named = _not_default(cell, *_NAMED.get(work.function, ()))
    if work.parameters == "given" and not work.function.endswith("_linear"):
        named.pop("convention", None)
    block_size = (cell.format in QTYPES and QTYPES[cell.format].block_size) or row.block_size
    made = Operands(work.function, cell.format, np.empty(0), shape, cell.dtype, row.axis, block_size)
    return replace(made, symmetric=work.parameters == "symmetric", options=dict(work.options) | named)


@lru_cache(maxsize=2)
def piece(cell: Cell, log2: int) -> Operands:
    """Return the operands of the piece in C order, whatever the layout, with the values that the layout leaves."""
    o = _without_arrays(cell, cell.shape(min(log2, PIECE)))
    if cell.work in OF_CODES_WORKS:
        return _piece_of_codes(cell, o)
    laid = LAYOUTS[cell.layout].lay(values(cell.dtype, o.shape, cell.nan != "raise"))
    x = np.ascontiguousarray(laid).astype(dtype_of(cell.dtype))
    o = replace(o, first=x)
    if cell.work == "compare values":
        return replace(o, approximation=(x.astype(np.float32) * np.float32(1.01)))
    if WORKS[cell.work].parameters != "given":
        return o
    p = reference.choose_qparams(x, cell.format, **o.granularity, **_not_default(cell, "convention", "nan"))
    if cell.work == "requantize":  # has one zero point for all channels
        p = p.with_values(p.scale, np.full_like(p.zero_point, ZERO_POINT))
    codes = reference.quantize(x, qparams=p).codes if cell.work == "compare" else None
    return replace(o, qparams=p, approximation=codes)


def _piece_of_codes(cell: Cell, o: Operands) -> Operands:
    x, is_given = values("float32", o.shape), WORKS[cell.work].parameters == "given"
    if cell.format in BLOCK_FORMATS:
        codes = reference.gguf.quantize(x, cell.format)
    else:
        named = o.granularity | _not_default(cell, "convention") if is_given else {}
        q = reference.quantize(x, cell.format, **named)
        codes = _one_each(cell, q) if "bytes" in WORKS[cell.work].reads else q.codes
        o = replace(o, qparams=q.qparams if is_given else None)
    return replace(o, first=np.ascontiguousarray(LAYOUTS[cell.layout].lay(codes)))


def _one_each(cell: Cell, q: QuantizedArray) -> Array:
    """Return one code per element; for a function without an argument for the format in a dtype that has it."""
    codes = reference.unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
    return codes.astype(dtype_of(cell.format)) if WORKS[cell.work].function == "dequantize_linear" else codes


def operands(cell: Cell, log2: int) -> Operands:
    """Return the operands of an array of about 2**log2 elements; `out` is made when the result's shape is known."""
    row, small = GRANULARITIES[cell.granularity], piece(cell, log2)
    times, p, other = row.times(log2), small.qparams, small.approximation
    if p is not None and p.scale.ndim:
        scale, zero_point = (repeated(each, times, row.growing_axis_of_parameters) for each in (p.scale, p.zero_point))
        p = p.with_values(scale, zero_point)
    first = LAYOUTS[cell.layout].lay(repeated(small.first, times, row.growing_axis))
    other = None if other is None else repeated(other, times, row.growing_axis)
    return replace(small, first=first, shape=cell.shape(log2), qparams=p, approximation=other)


def out_like(cell: Cell, first: Array, result: Array, times: int) -> Array | None:
    """Return memory for the results of a number of pieces, given the result of one; None where none is given."""
    if cell.out == "none":
        return None
    shape = list(result.shape)
    shape[GRANULARITIES[cell.granularity].growing_axis] *= times
    order = tuple(np.argsort([-abs(n) for n in first.strides], kind="stable")) if cell.out == "like x" else (0, 1, 2)
    return empty(tuple(shape[k] for k in order), result.dtype).transpose(np.argsort(order))
