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

from .. import formulas
from ..calls import Array, Operands, call_of, dtype_of, empty
from ..peers.naive_numba import FOUR_BITS, Call, numba_loop
from .grid import OF_CODES_WORKS, Cell

# --- an expression of NumPy -------------------------------------------------------------------------------------------


def _elements(o: Operands) -> Call:
    if o.code in CASTS:
        return lambda: o.first.astype(dtype_of(o.code))
    element, rule, x = formulas.ELEMENTS[o.function], formulas.rule_of(o), o.grouped(o.first)
    if o.qparams is None:
        return lambda: element(np, x, *formulas.parameters_of(np, x, rule), rule).astype(o.result_dtype, copy=False)
    given = o.beside
    return lambda: element(np, x, *given, rule).astype(o.result_dtype, copy=False)


def _choose_qparams(o: Operands) -> Call:
    rule, x = formulas.rule_of(o), o.grouped(o.first)
    return lambda: formulas.parameters_of(np, x, rule)


def _minmax(o: Operands) -> Call:
    x = o.grouped(o.first)
    return lambda: (x.min(o.shared), x.max(o.shared))


def _errors(x: Array, approximation: Array) -> tuple[Any, ...]:
    error = x - approximation
    return np.mean(error * error), np.abs(error).max(), np.mean(np.abs(error)), np.mean(x * x)


def _compare(o: Operands) -> Call:
    assert o.approximation is not None
    x, other = o.grouped(o.first), o.grouped(o.approximation)
    if not o.qparams:
        return lambda: _errors(x, other)
    given, rule = o.beside, formulas.rule_of(o)
    return lambda: _errors(x, formulas.decode(np, other, *given, rule))


def _binarize(o: Operands) -> Call:
    if o.qtype.signed:
        return lambda: (np.packbits(o.first > 0, axis=-1) ^ np.uint8(128)).view(np.int8)
    return lambda: np.packbits(o.first > 0, axis=-1)


def _pack(o: Operands) -> Call:
    codes = o.first.view(np.uint8)
    return lambda: codes[..., ::2] & 15 | codes[..., 1::2] << 4


def _unpack(o: Operands) -> Call:
    packed, out = o.first.view(o.qtype.storage), np.empty(o.shape, o.qtype.storage)

    def call() -> Array:
        out[..., ::2], out[..., 1::2] = packed << 4 >> 4, packed >> 4
        return out

    return call


_EXPRESSIONS: dict[str, Callable[[Operands], Call]] = {
    **dict.fromkeys(formulas.ELEMENTS, _elements),
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
    "binarize": _binarize,
    "xarray.unpack_array": partial(call_of, reference),
    "pack": _pack,
    "unpack": _unpack,
}


def numpy_expression(o: Operands) -> Call | None:
    """Return the work as an expression of NumPy; None where it takes more than one, or other dtypes than NumPy's."""
    make, qtype = _EXPRESSIONS.get(o.function), QTYPES.get(o.code)
    if make is None or o.dtype == "bfloat16":
        return None
    if o.function in ("pack", "unpack"):
        return None if o.code not in FOUR_BITS or o.shape[-1] % 2 else make(o)
    simple = qtype is None or (qtype.fills_storage and not (qtype.element or qtype.block_size))
    return make(o) if simple and not o.ragged else None


# --- a copy -----------------------------------------------------------------------------------------------------------


def copyto(cell: Cell, o: Operands) -> Call | None:
    """Return a copy of the values into C order, if their layout is another; codes are too few bytes to compare with."""
    if cell.layout == "c" or cell.work in OF_CODES_WORKS:
        return None
    target = empty(o.first.shape, o.first.dtype.newbyteorder("="))
    return lambda: np.copyto(target, o.first)


BASELINES: dict[str, Callable[[Cell, Operands], Call | None]] = {
    "copyto": copyto,
    "numpy": lambda cell, o: numpy_expression(o) if cell.is_plain else None,
    "loop": lambda cell, o: numba_loop(o) if cell.is_plain else None,
}
