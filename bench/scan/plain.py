"""The same work without fastq, where that is simple: an expression of NumPy, a loop of Numba, a copy.

What is timed is what one would write: an expression makes new temporaries and a new result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fastq import reference
from fastq.formats.qtypes import CASTS, QTYPES

from .arrays import Array, Operands, dtype_of, empty, grouped
from .calls import call_of
from .grid import OF_CODES_WORKS, WORKS, Cell
from .loop_calls import FOUR_BITS, numba_loop

Call = Callable[[], Any]
F32 = np.float32


# --- an expression of NumPy -------------------------------------------------------------------------------------------


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
    if cell.format in CASTS:
        return lambda: view.astype(dtype_of(cell.format))
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


def _binarize(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call:
    if QTYPES[cell.format].signed:
        return lambda: (np.packbits(view > 0, axis=-1) ^ np.uint8(128)).view(np.int8)
    return lambda: np.packbits(view > 0, axis=-1)


def _unpack_array(cell: Cell, o: Operands, view: Array, axes: tuple[int, ...]) -> Call:
    return call_of(reference, cell, o)


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
    "binarize": _binarize,
    "requantize": _quantize,
    "xarray.unpack_array": _unpack_array,
    "pack": _pack,
    "unpack": _unpack,
}


def numpy_expression(cell: Cell, o: Operands) -> Call | None:
    """Return the work as an expression of NumPy; None where it takes more than one, or other dtypes than NumPy's."""
    function = WORKS[cell.work].function
    known = cell.format not in QTYPES or (QTYPES[cell.format].fills_storage and not QTYPES[cell.format].element)
    packs = function in ("pack", "unpack")
    has = cell.is_plain and function in _EXPRESSIONS and cell.dtype != "bfloat16"
    if not (has and (packs or (known and not _prescribed(cell)))):
        return None
    view = (o.first, ()) if packs else grouped(cell, o.first)
    return view and _EXPRESSIONS[function](cell, o, *view)


def _prescribed(cell: Cell) -> bool:
    return cell.format in QTYPES and QTYPES[cell.format].block_size > 0


# --- a copy -----------------------------------------------------------------------------------------------------------


def copyto(cell: Cell, o: Operands) -> Call | None:
    """Return a copy of the values into C order, if their layout is another; codes are too few bytes to compare with."""
    if cell.layout == "c" or cell.work in OF_CODES_WORKS:
        return None
    target = empty(o.first.shape, o.first.dtype.newbyteorder("="))
    return lambda: np.copyto(target, o.first)


BASELINES: dict[str, Callable[[Cell, Operands], Call | None]] = {
    "copyto": copyto,
    "numpy": numpy_expression,
    "loop": numba_loop,
}
