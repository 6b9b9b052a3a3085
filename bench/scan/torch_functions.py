"""The formulas as functions of torch, which torch.compile fuses: results go into memory that is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..peers.torch_compile import tensor
from . import formulas, loops
from .arrays import Array, Operands
from .formulas import MEASURES, Rule, rule_of
from .grid import WORKS, Cell
from .loops import Work, work_of
from .peers import Prepared

Made = tuple[Callable[..., None], tuple[Any, ...], tuple[Array, ...]]  # a function, its arguments, and what it fills


def use_given(element: Any, rule: Rule, x: Tensor, scale: Tensor, zero: Tensor, result: Tensor) -> None:
    result.copy_(element(torch, x.to(scale.dtype), scale, zero, rule))


def use_own(element: Any, rule: Rule, x: Tensor, scale: Tensor, zero: Tensor, result: Tensor) -> None:
    choose(rule, x, scale, zero)
    use_given(element, rule, x, scale, zero, result)


def choose(rule: Rule, x: Tensor, scale: Tensor, zero: Tensor) -> None:
    s, z = formulas.parameters_of(torch, x.to(scale.dtype), rule)
    scale.copy_(s)
    zero.copy_(z)


def find_ranges(rule: Rule, x: Tensor, low: Tensor, high: Tensor) -> None:
    lo, hi = formulas.ranges_of(torch, x, rule)
    low.copy_(lo)
    high.copy_(hi)


def measure_codes(rule: Rule, x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, sums: Tensor) -> None:
    clipped = formulas.is_clipped(torch, x.to(scale.dtype), scale, zero, rule)
    values = formulas.decode(torch, codes.to(scale.dtype), scale, zero, rule)
    measure_values(x, values, clipped, sums)


def measure_values(x: Tensor, values: Tensor, clipped: Tensor | None, sums: Tensor) -> None:
    sums.copy_(formulas.measures_of(torch, x.double(), values.double(), clipped))


# what becomes of an element in a plain loop -> the same of tensors
_ELEMENTS = {
    loops.encode: formulas.encode,
    loops.encode_and_decode: formulas.encode_and_decode,
    loops.decode: formulas.decode,
}


def _own(work: Work, dtype: Any) -> tuple[Array, Array]:
    return np.ones(work.shape_of_parameters, dtype), np.ones(work.shape_of_parameters, dtype)


def _elements(work: Work) -> Made:
    element, result = _ELEMENTS[loops.ELEMENTS[WORKS[work.cell.work].function]], work.result()
    own = work.operands.qparams is None
    parameters = _own(work, work.real) if own else work.beside
    arrays = map(tensor, (work.first, *parameters, result.reshape(work.first.shape)))
    return use_own if own else use_given, (element, rule_of(work), *arrays), (result,)


def _choose_qparams(work: Work) -> Made:
    made = _own(work, work.real)
    return choose, (rule_of(work), *map(tensor, (work.first, *made))), made


def _minmax(work: Work) -> Made:
    made = _own(work, work.first.dtype)
    return find_ranges, (rule_of(work), *map(tensor, (work.first, *made))), made


def _compare(work: Work) -> Made:
    other, sums = work.operands.approximation, np.ones(MEASURES)
    assert other is not None
    both = tensor(work.first), tensor(other.reshape(work.first.shape))
    if work.operands.qparams is None:
        return measure_values, (*both, None, tensor(sums)), (sums,)
    return measure_codes, (rule_of(work), *both, *map(tensor, work.beside), tensor(sums)), (sums,)


_FUNCTIONS: dict[str, Callable[[Work], Made]] = {
    **dict.fromkeys(loops.ELEMENTS, _elements),
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
}


COMPILED = partial(torch.compile, dynamic=False)


def prepared(cell: Cell, o: Operands, compiled: Callable[[Any], Any] = COMPILED) -> Prepared | None:
    """The work as a function of torch that is compiled; None where blocks are ragged."""
    work = work_of(cell, o)
    if work is None:
        return None
    function, arguments, results = _FUNCTIONS[WORKS[cell.work].function](work)
    return Prepared(partial(compiled(function), *arguments), lambda: results)
