"""The calls of the plain loops of loops.py, with memory for their results.

Numba takes neither float16 nor the dtypes of ml_dtypes, nor memory that is unaligned or byte-swapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import get_num_threads

from fastq.formats.qtypes import QTYPES

from ..data import KEEPBITS, SCALE
from .arrays import Array, Operands, dtype_of
from .calls import OFFSET
from .grid import NO_FORMAT, WORKS, Cell
from .loops import (
    ELEMENTS,
    GROUPS_WITH_GIVEN,
    GROUPS_WITH_OWN,
    MEASURE_CODES,
    MEASURE_VALUES,
    WITH_GIVEN,
    WITH_OWN,
    choose,
    find_parameters,
    find_parameters_of_groups,
    find_ranges,
    find_ranges_of_groups,
    find_ranges_of_slices,
    keep_signs,
    pack_pairs,
    round_bits,
    unpack_codes,
    unpack_pairs,
)
from .views import LoopView, PlainInputs, loop_view, plain_inputs

Call = Callable[[], Any]
FOUR_BITS = ("int4", "uint4")
HALVES = ("float16", "bfloat16")


class Ranges:
    """Memory for ranges and parameters, and the calls that fill it.

    Attributes
    ----------
    lows, highs, scale, zero : ndarray
        Arrays in the shape of parameters.
    end_within : bool
        Whether ranges end within the first axis.
    """

    def __init__(self, inputs: PlainInputs, x: Array, view: LoopView, low: Any, high: Any) -> None:
        self.x, self.view, self.start = x, view, (x.dtype.type(low), x.dtype.type(high))
        self.lows, self.highs = np.ones(view.own, x.dtype), np.ones(view.own, x.dtype)
        self.scale, self.zero = np.ones(view.own, inputs.real), np.ones(view.own, inputs.real)
        self.end_within = view.own[0] == len(x)
        self.rule = inputs.symmetric, *inputs.limits
        self.starts = _slices(len(x))
        self.of_slices = [np.ones((len(self.starts) - 1, *view.own[1:]), x.dtype) for _ in self.start]

    def find(self) -> tuple[Array, Array]:
        """Find the ranges."""
        if self.end_within and self.view.in_groups:
            find_ranges_of_groups(_groups(self.x), *self.start, self.lows.ravel(), self.highs.ravel())
        elif self.end_within:
            find_ranges(self.x, *self.start, self.lows, self.highs)
        else:
            find_ranges_of_slices(self.x, self.starts, *self.start, *self.of_slices)
            np.min(self.of_slices[0], 0, keepdims=True, out=self.lows)
            np.max(self.of_slices[1], 0, keepdims=True, out=self.highs)
        return self.lows, self.highs

    def choose(self) -> tuple[Array, Array]:
        """Find the ranges, and take parameters from them."""
        if self.end_within and self.view.in_groups:
            parameters = self.scale.ravel(), self.zero.ravel()
            find_parameters_of_groups(_groups(self.x), *self.start, *self.rule, *parameters)
        elif self.end_within:
            find_parameters(self.x, *self.start, *self.rule, self.lows, self.highs, self.scale, self.zero)
        else:
            choose(0, *self.find(), *self.rule, self.scale, self.zero)
        return self.scale, self.zero

    def use(self, element: Any, result: Array) -> None:
        """Compute all elements with parameters of their ranges."""
        if self.end_within and self.view.in_groups:
            loop, parameters = GROUPS_WITH_OWN[element], (self.scale.ravel(), self.zero.ravel())
            loop(_groups(self.x), *self.start, *self.rule, *parameters, _groups(result))
        elif self.end_within:
            memory = self.lows, self.highs, self.scale, self.zero
            WITH_OWN[element](self.x, *self.start, *self.rule, *memory, result)
        else:
            use_given(element, self.x, self.view, self.view.repeated(*self.choose()), self.rule[1:], result)


def use_given(
    element: Any, x: Array, view: LoopView, given: list[Array], limits: tuple[Any, ...], result: Array
) -> None:
    """Compute all elements with given parameters."""
    if view.in_groups:
        GROUPS_WITH_GIVEN[element](_groups(x), *(each[:, 0, 0, 0] for each in given), *limits, _groups(result))
    else:
        WITH_GIVEN[element](_slices(len(x)), x, *given, *limits, result)


def _groups(array: Array) -> Array:
    return array[:, 0, 0, :]


def _slices(length: int) -> Array:
    """Return the first index of each thread's part, and the end."""
    parts = min(get_num_threads(), length)
    return np.arange(parts + 1) * length // parts


def _elements(inputs: PlainInputs) -> Call:
    element, result = ELEMENTS[WORKS[inputs.cell.work].function], inputs.result()
    beside = result.reshape(inputs.first.shape)
    view = loop_view([inputs.first, beside], inputs.shared)
    x, made = view.all(inputs.first), view.all(beside)
    if inputs.operands.qparams is None:
        ranges = Ranges(inputs, x, view, 0, 0)
        return lambda: ranges.use(element, made) or result
    given = inputs.given(view)
    return lambda: use_given(element, x, view, given, inputs.limits, made) or result


def _choose_qparams(inputs: PlainInputs) -> Call:
    view = loop_view([inputs.first], inputs.shared)
    return Ranges(inputs, view.all(inputs.first), view, 0, 0).choose


def _minmax(inputs: PlainInputs) -> Call:
    view, dtype = loop_view([inputs.first], inputs.shared), inputs.first.dtype
    nothing = (np.iinfo(dtype).max, np.iinfo(dtype).min) if dtype.kind in "iu" else (np.inf, -np.inf)
    return Ranges(inputs, view.all(inputs.first), view, *nothing).find


def _compare(inputs: PlainInputs) -> Call:
    other = inputs.operands.approximation
    assert other is not None
    other = other.reshape(inputs.first.shape)
    view = loop_view([inputs.first, other], inputs.shared)
    arrays = _slices(view.shape[0]), view.all(inputs.first), view.all(other)
    if inputs.operands.qparams is None:
        nothing = np.ones((view.shape[0], 1, 1, 1))
        return lambda: MEASURE_VALUES(*arrays, nothing, nothing, 0.0, 0.0)
    given, limits = inputs.given(view), inputs.limits
    return lambda: MEASURE_CODES(*arrays, *given, *limits)


def _binarize(inputs: PlainInputs) -> Call:
    out, shape = inputs.operands.out, inputs.operands.shape
    packed = np.ones((*shape[:-1], -(-shape[-1] // 8)), inputs.qtype.storage) if out is None else np.ones_like(out)
    return lambda: keep_signs(inputs.operands.first, inputs.qtype.qmin, packed) or packed


def _bitround(inputs: PlainInputs) -> Call:
    x, out = inputs.operands.first, inputs.operands.out
    rounded, words = np.ones_like(x if out is None else out), np.dtype(f"u{x.itemsize}")
    dropped = words.type(np.finfo(x.dtype).nmant - KEEPBITS)
    return lambda: round_bits(x.view(words), dropped, rounded.view(words)) or rounded


def _unpack_array(inputs: PlainInputs) -> Call:
    codes, kind = inputs.operands.first, dtype_of(inputs.cell.dtype)
    values, numbers = np.ones_like(codes, kind), (kind.type(SCALE), kind.type(OFFSET), inputs.qtype.qmin)
    return lambda: unpack_codes(codes, *numbers, values) or values


def _pack(inputs: PlainInputs) -> Call:
    codes, shape = inputs.operands.first.view(np.uint8), inputs.operands.shape
    packed = np.ones((*shape[:-1], -(-shape[-1] // 2)), np.uint8)
    return lambda: pack_pairs(codes, packed) or packed


def _unpack(inputs: PlainInputs) -> Call:
    codes, sign = np.ones(inputs.operands.shape, inputs.qtype.storage), 8 if inputs.qtype.signed else 0
    packed = inputs.operands.first.view(codes.dtype)
    return lambda: unpack_pairs(packed, sign, codes) or codes


_LOOPS: dict[str, Callable[[PlainInputs], Call]] = {
    **dict.fromkeys(ELEMENTS, _elements),
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
    "binarize": _binarize,
    "bitround": _bitround,
    "xarray.unpack_array": _unpack_array,
    "pack": _pack,
    "unpack": _unpack,
}


def _numba_takes(cell: Cell, first: Array) -> bool:
    """Return whether Numba takes the dtypes and memory of all operands and results; codes are whole bytes or halves."""
    work = WORKS[cell.work]
    takes_memory = first.flags.aligned and first.dtype.isnative
    if work.function not in _LOOPS or cell.dtype in HALVES or not (takes_memory and cell.is_plain):
        return False
    if work.function in ("pack", "unpack"):
        return cell.format in FOUR_BITS
    if cell.format not in QTYPES:
        return cell.format == NO_FORMAT
    qtype, moves = QTYPES[cell.format], {*work.reads.split(), *work.writes.split()}
    return not (qtype.element or qtype.block_size) and (qtype.fills_storage or not moves & {"codes", "bytes"})


def numba_loop(cell: Cell, o: Operands) -> Call | None:
    """Return the work as parallel loops; None where Numba does not take it, or blocks are ragged."""
    inputs = plain_inputs(cell, o) if _numba_takes(cell, o.first) else None
    return inputs and _LOOPS[WORKS[cell.work].function](inputs)
