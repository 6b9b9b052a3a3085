"""The same work without fastq, where that is simple: an expression of NumPy, a loop of Numba, a copy.

What is timed is what one would write: an expression makes temporaries and its result anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numba import njit, prange

from fastq.formats.qtypes import QTYPES

from .arrays import Array, Operands, dtype_of, empty
from .grid import GRANULARITIES, OF_CODES_WORKS, WORKS, Cell

Call = Callable[[], Any]
FOUR_BITS = ("int4", "uint4")
LOOP_FORMATS = ("int8", "uint8", "int16", "uint16")
F32 = np.float32


# --- an expression of NumPy -------------------------------------------------------------------------------------------


def grouped(cell: Cell, x: Array) -> tuple[Array, tuple[int, ...]] | None:
    """A view in which whole axes share a scale, and these axes; None where blocks are ragged."""
    row = GRANULARITIES[cell.granularity]
    if not row.block_size:
        return x, tuple(a for a in range(x.ndim) if a not in row.kept)
    (axis,) = row.kept
    if x.shape[axis] % row.block_size:
        return None
    shape = (*x.shape[:axis], x.shape[axis] // row.block_size, row.block_size, *x.shape[axis + 1 :])
    return x.reshape(shape), (axis + 1,)


def _of_range(x: Array, axes: tuple[int, ...], cell: Cell) -> tuple[Array, Any]:
    qtype = QTYPES[cell.format]
    if WORKS[cell.work].parameters == "symmetric":
        return np.abs(x).max(axes, keepdims=True) / F32((1 << qtype.bits - 1) - 1), F32(qtype.middle)
    lo, hi = np.minimum(x.min(axes, keepdims=True), F32(0)), np.maximum(x.max(axes, keepdims=True), F32(0))
    scale = (hi - lo) / F32(qtype.qmax - qtype.qmin)
    return scale, np.rint(qtype.qmin - lo / scale)


def _given(view: Array, axes: tuple[int, ...], o: Operands) -> tuple[Array, Any]:
    assert o.qparams is not None
    shape = [1 if a in axes else n for a, n in enumerate(view.shape)]
    return o.qparams.scale.reshape(shape), o.qparams.zero_point.reshape(shape).astype(F32)


def _encoded(x: Array, scale: Array, zero: Any, cell: Cell) -> Array:
    qtype = QTYPES[cell.format]
    return np.clip(np.rint(x / scale) + zero, qtype.qmin, qtype.qmax)


def _quantize(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call:
    parameters = partial(_given, view, axes, o) if o.qparams else partial(_of_range, view, axes, cell)
    return lambda: _encoded(view, *parameters(), cell).astype(QTYPES[cell.format].storage)


def _fake_quantize(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call:
    parameters = partial(_given, view, axes, o) if o.qparams else partial(_of_range, view, axes, cell)

    def call() -> Array:
        scale, zero = parameters()
        return (_encoded(view, scale, zero, cell) - zero) * scale

    return call


def _dequantize(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call:
    scale, zero = _given(view, axes, o)
    return lambda: ((view.astype(F32) - zero) * scale).astype(dtype_of(cell.dtype), copy=False)


def _choose_qparams(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call:
    return lambda: _of_range(view, axes, cell)


def _minmax(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call:
    return lambda: (view.min(axes), view.max(axes))


def _errors(x: Array, approximation: Array) -> tuple[Any, ...]:
    error = x - approximation
    return np.mean(error * error), np.abs(error).max(), np.mean(np.abs(error)), np.mean(x * x)


def _compare(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call:
    if not o.qparams:
        return lambda: _errors(view, o.approximation)
    scale, zero = _given(view, axes, o)
    codes = o.approximation.reshape(view.shape)
    return lambda: _errors(view, (codes.astype(F32) - zero) * scale)


def _pack(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call | None:
    if cell.format not in FOUR_BITS or view.shape[-1] % 2:
        return None
    codes = view.view(np.uint8)
    return lambda: codes[..., ::2] & 15 | codes[..., 1::2] << 4


def _unpack(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call | None:
    if cell.format not in FOUR_BITS or o.shape[-1] % 2:
        return None
    packed, out = view.view(QTYPES[cell.format].storage), np.empty(o.shape, QTYPES[cell.format].storage)

    def call() -> Array:
        out[..., ::2], out[..., 1::2] = packed << 4 >> 4, packed >> 4
        return out

    return call


_EXPRESSIONS: dict[str, Callable[..., Call | None]] = {
    "quantize": _quantize,
    "quantize_linear": _quantize,
    "dequantize_linear": _dequantize,
    "dequantize": _dequantize,
    "fake_quantize": _fake_quantize,
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
    "pack": _pack,
    "unpack": _unpack,
}


def numpy_expression(cell: Cell, o: Operands) -> Call | None:
    """The work as an expression of NumPy; None where it takes more than one, or dtypes that are not NumPy's own."""
    function = WORKS[cell.work].function
    known = cell.format not in QTYPES or (QTYPES[cell.format].fills_storage and not QTYPES[cell.format].element)
    packs = function in ("pack", "unpack")
    if function not in _EXPRESSIONS or cell.dtype == "bfloat16" or not (packs or (known and not _prescribed(cell))):
        return None
    view = (o.first, ()) if packs else grouped(cell, o.first)
    return view and _EXPRESSIONS[function](cell, o, *view)


def _prescribed(cell: Cell) -> bool:
    return cell.format in QTYPES and QTYPES[cell.format].block_size > 0


# --- a copy -----------------------------------------------------------------------------------------------------------


def copyto(cell: Cell, o: Operands) -> Call | None:
    """The values copied into C order, where they have another layout; codes are too few bytes to compare with."""
    if cell.layout == "c" or cell.work in OF_CODES_WORKS:
        return None
    target = empty(o.first.shape, o.first.dtype.newbyteorder("="))
    return lambda: np.copyto(target, o.first)


# --- a loop of Numba --------------------------------------------------------------------------------------------------


@njit(parallel=True)
def quantize_groups(x, scale, zero, lowest, highest, codes):
    for g in prange(x.shape[0]):
        for i in range(x.shape[1]):
            codes[g, i] = min(max(round(x[g, i] / scale[g]) + zero[g], lowest), highest)


@njit(parallel=True)
def quantize_groups_by_range(x, steps, lowest, highest, codes):
    for g in prange(x.shape[0]):
        lo = hi = np.float32(0)
        for i in range(x.shape[1]):
            lo, hi = min(lo, x[g, i]), max(hi, x[g, i])
        scale = (hi - lo) / steps
        zero = round(lowest - lo / scale)
        for i in range(x.shape[1]):
            codes[g, i] = min(max(round(x[g, i] / scale) + zero, lowest), highest)


@njit(parallel=True)
def fake_quantize_groups(x, scale, zero, lowest, highest, values):
    for g in prange(x.shape[0]):
        for i in range(x.shape[1]):
            code = min(max(round(x[g, i] / scale[g]) + zero[g], lowest), highest)
            values[g, i] = (code - zero[g]) * scale[g]


@njit(parallel=True)
def dequantize_groups(codes, scale, zero, values):
    for g in prange(codes.shape[0]):
        for i in range(codes.shape[1]):
            values[g, i] = (codes[g, i] - zero[g]) * scale[g]


@njit(parallel=True)
def minmax_groups(x, lows, highs):
    for g in prange(x.shape[0]):
        lo = hi = x[g, 0]
        for i in range(x.shape[1]):
            lo, hi = min(lo, x[g, i]), max(hi, x[g, i])
        lows[g], highs[g] = lo, hi


def _group_length(cell: Cell, shape: tuple[int, ...]) -> int:
    """Neighbours in memory that share a scale; 0 where these are none, and for one scale as many as a loop needs."""
    row = GRANULARITIES[cell.granularity]
    if row.block_size:
        whole = row.axis == len(shape) - 1 and shape[-1] % row.block_size == 0
        return row.block_size if whole else 0
    return prod(shape[len(row.kept) :]) if row.kept == tuple(range(len(row.kept))) and row.kept else 0


def _groups(cell: Cell, o: Operands) -> tuple[Array, tuple[Array, Array]] | None:
    """The operand by groups, and the parameters of each: one scale for the array is repeated for groups of a row."""
    length, one = _group_length(cell, o.shape), GRANULARITIES[cell.granularity].axis is None
    if not length and not (one and o.qparams):
        return None
    x = o.first.reshape(-1, length or o.shape[-1])
    if o.qparams is None:
        return x, (np.empty(0), np.empty(0))
    scale, zero = (np.broadcast_to(each.ravel(), len(x)).copy() for each in (o.qparams.scale, o.qparams.zero_point))
    return x, (scale, zero.astype(np.int32))


def _limits(cell: Cell) -> tuple[np.int32, np.int32]:
    return np.int32(QTYPES[cell.format].qmin), np.int32(QTYPES[cell.format].qmax)


def _loop_quantize(cell: Cell, x: Array, given: tuple[Array, Array]) -> Call:
    codes = np.zeros(x.shape, QTYPES[cell.format].storage)
    if WORKS[cell.work].parameters == "given":
        return lambda: quantize_groups(x, *given, *_limits(cell), codes)
    lowest, highest = _limits(cell)
    return lambda: quantize_groups_by_range(x, F32(highest - lowest), lowest, highest, codes)


def _loop_fake_quantize(cell: Cell, x: Array, given: tuple[Array, Array]) -> Call | None:
    values = np.zeros(x.shape, F32)
    is_given = WORKS[cell.work].parameters == "given"
    return (lambda: fake_quantize_groups(x, *given, *_limits(cell), values)) if is_given else None


def _loop_dequantize(cell: Cell, codes: Array, given: tuple[Array, Array]) -> Call:
    values = np.zeros(codes.shape, F32)
    return lambda: dequantize_groups(codes, *given, values)


def _loop_minmax(cell: Cell, x: Array, given: tuple[Array, Array]) -> Call:
    lows, highs = np.zeros(len(x), F32), np.zeros(len(x), F32)
    return lambda: minmax_groups(x, lows, highs)


_LOOPS: dict[str, Callable[[Cell, Array, tuple[Array, Array]], Call | None]] = {
    "quantize": _loop_quantize,
    "quantize_linear": _loop_quantize,
    "fake_quantize": _loop_fake_quantize,
    "dequantize": _loop_dequantize,
    "dequantize_linear": _loop_dequantize,
    "minmax": _loop_minmax,
}


def numba_loop(cell: Cell, o: Operands) -> Call | None:
    """The work as a parallel loop over groups; None but for float32, integers of whole bytes and memory in C order."""
    make, known = _LOOPS.get(WORKS[cell.work].function), (*LOOP_FORMATS, "none")
    if make is None or cell.format not in known or (cell.dtype, cell.layout) != ("float32", "c"):
        return None
    groups = _groups(cell, o)
    return groups and make(cell, *groups)


RIVALS: dict[str, Callable[[Cell, Operands], Call | None]] = {
    "copyto": copyto,
    "numpy": numpy_expression,
    "loop": numba_loop,
}
