"""The formulas as functions of torch, which torch.compile fuses: results go into memory that is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..peers.torch_compile import COMPILED, choose, tensor, use_given, use_own
from . import formulas, loops
from .arrays import Array, Operands
from .formulas import MEASURES, Rule, rule_of
from .grid import WORKS, Cell
from .peers import Prepared
from .views import PlainInputs, plain_inputs

Made = tuple[Callable[..., None], tuple[Any, ...], tuple[Array, ...]]  # a function, its arguments, and what it fills


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


def _own(inputs: PlainInputs, dtype: Any) -> tuple[Array, Array]:
    return np.ones(inputs.shape_of_parameters, dtype), np.ones(inputs.shape_of_parameters, dtype)


def _elements(inputs: PlainInputs) -> Made:
    element, result = _ELEMENTS[loops.ELEMENTS[WORKS[inputs.cell.work].function]], inputs.result()
    own = inputs.operands.qparams is None
    parameters = _own(inputs, inputs.real) if own else inputs.beside
    arrays = map(tensor, (inputs.first, *parameters, result.reshape(inputs.first.shape)))
    return use_own if own else use_given, (element, rule_of(inputs), *arrays), (result,)


def _choose_qparams(inputs: PlainInputs) -> Made:
    made = _own(inputs, inputs.real)
    return choose, (rule_of(inputs), *map(tensor, (inputs.first, *made))), made


def _minmax(inputs: PlainInputs) -> Made:
    made = _own(inputs, inputs.first.dtype)
    return find_ranges, (rule_of(inputs), *map(tensor, (inputs.first, *made))), made


def _compare(inputs: PlainInputs) -> Made:
    other, sums = inputs.operands.approximation, np.ones(MEASURES)
    assert other is not None
    both = tensor(inputs.first), tensor(other.reshape(inputs.first.shape))
    if inputs.operands.qparams is None:
        return measure_values, (*both, None, tensor(sums)), (sums,)
    return measure_codes, (rule_of(inputs), *both, *map(tensor, inputs.beside), tensor(sums)), (sums,)


_FUNCTIONS: dict[str, Callable[[PlainInputs], Made]] = {
    **dict.fromkeys(loops.ELEMENTS, _elements),
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
}


def prepared(cell: Cell, o: Operands, compiled: Callable[[Any], Any] = COMPILED) -> Prepared | None:
    """Prepare the work as a function of torch that is compiled; None where blocks are ragged."""
    inputs = plain_inputs(cell, o)
    if inputs is None:
        return None
    function, arguments, results = _FUNCTIONS[WORKS[cell.work].function](inputs)
    return Prepared(partial(compiled(function), *arguments), lambda: results)
