"""The same work as functions of torch, which torch.compile fuses: results go into memory that is there.

Parameters have the axes of the operand, blocks being an axis of their own, and length 1 where it shares them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..peers.torch_compile import tensor
from . import loops
from .arrays import Array, Operands
from .grid import NO_FORMAT, WORKS, Cell, torch_takes
from .loops import Work, work_of

MEASURES = 8  # sums, maxima and counts of `measure`


class Rule(NamedTuple):
    """The axes that share parameters, whether zero points are the middle, the first and the last code."""

    axes: tuple[int, ...]
    symmetric: bool
    lowest: int = 0
    highest: int = 0


def parameters_of(x: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    steps = rule.highest - rule.lowest
    if rule.symmetric:
        scale = x.abs().amax(rule.axes, keepdim=True) / (steps / 2)
        return torch.where(scale == 0, 1, scale), torch.full_like(scale, (rule.lowest + rule.highest) / 2)
    lo, hi = x.amin(rule.axes, keepdim=True).clamp(max=0), x.amax(rule.axes, keepdim=True).clamp(min=0)
    scale = torch.where(hi == lo, 1, (hi - lo) / steps)
    return scale, torch.clamp(torch.round(rule.lowest - lo / scale), rule.lowest, rule.highest)


def encode(x: Tensor, scale: Tensor, zero: Tensor, rule: Rule) -> Tensor:
    return torch.clamp(torch.round(x / scale) + zero, rule.lowest, rule.highest)


def decode(codes: Tensor, scale: Tensor, zero: Tensor, rule: Rule) -> Tensor:
    return (codes - zero) * scale


def encode_and_decode(x: Tensor, scale: Tensor, zero: Tensor, rule: Rule) -> Tensor:
    return decode(encode(x, scale, zero, rule), scale, zero, rule)


def use_given(element: Any, rule: Rule, x: Tensor, scale: Tensor, zero: Tensor, result: Tensor) -> None:
    result.copy_(element(x.to(scale.dtype), scale, zero, rule))


def use_own(element: Any, rule: Rule, x: Tensor, scale: Tensor, zero: Tensor, result: Tensor) -> None:
    s, z = parameters_of(x.to(scale.dtype), rule)
    scale.copy_(s)
    zero.copy_(z)
    result.copy_(element(x.to(scale.dtype), s, z, rule))


def choose(rule: Rule, x: Tensor, scale: Tensor, zero: Tensor) -> None:
    s, z = parameters_of(x.to(scale.dtype), rule)
    scale.copy_(s)
    zero.copy_(z)


def find_ranges(rule: Rule, x: Tensor, low: Tensor, high: Tensor) -> None:
    low.copy_(x.amin(rule.axes, keepdim=True))
    high.copy_(x.amax(rule.axes, keepdim=True))


def measure_codes(rule: Rule, x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, sums: Tensor) -> None:
    code = torch.round(x.to(scale.dtype) / scale) + zero
    clipped = (code < rule.lowest) | (code > rule.highest)
    measure_values(x, decode(codes.to(scale.dtype), scale, zero, rule), clipped, sums)


def measure_values(x: Tensor, values: Tensor, clipped: Tensor | None, sums: Tensor) -> None:
    exact = x.double()
    error, size = (exact - values.double()).abs(), exact.abs()
    relative = torch.where(size > 0, error / size, 0)
    counted = (size > 0).sum()
    outside = torch.zeros((), dtype=torch.int64) if clipped is None else clipped.sum()
    squares, power = (error * error).sum(), (exact * exact).sum()
    sums.copy_(
        torch.stack((squares, error.sum(), relative.sum(), power, error.max(), relative.max(), counted, outside))
    )


# what becomes of an element in a plain loop -> the same of tensors
_ELEMENTS = {loops.encode: encode, loops.encode_and_decode: encode_and_decode, loops.decode: decode}


class Prepared(NamedTuple):
    """A function, what it is called with, and the arrays that have the results then."""

    function: Callable[..., None]
    arguments: tuple[Any, ...]
    results: tuple[Array, ...]


def _rule(work: Work) -> Rule:
    limits = () if work.cell.format == NO_FORMAT else work.qtype.code_range(work.symmetric)
    return Rule(work.shared, work.symmetric, *map(int, limits))


def _given(work: Work) -> tuple[Array, Array]:
    p = work.operands.qparams
    assert p is not None
    shape = work.shape_of_parameters
    return p.scale.reshape(shape), p.zero_point.astype(work.real).reshape(shape)


def _own(work: Work, dtype: Any) -> tuple[Array, Array]:
    return np.ones(work.shape_of_parameters, dtype), np.ones(work.shape_of_parameters, dtype)


def _elements(work: Work) -> Prepared:
    element, result = _ELEMENTS[loops.ELEMENTS[WORKS[work.cell.work].function]], work.result()
    own = work.operands.qparams is None
    parameters = _own(work, work.real) if own else _given(work)
    arrays = map(tensor, (work.first, *parameters, result.reshape(work.first.shape)))
    return Prepared(use_own if own else use_given, (element, _rule(work), *arrays), (result,))


def _choose_qparams(work: Work) -> Prepared:
    made = _own(work, work.real)
    return Prepared(choose, (_rule(work), *map(tensor, (work.first, *made))), made)


def _minmax(work: Work) -> Prepared:
    made = _own(work, work.first.dtype)
    return Prepared(find_ranges, (_rule(work), *map(tensor, (work.first, *made))), made)


def _compare(work: Work) -> Prepared:
    other, sums = work.operands.approximation, np.ones(MEASURES)
    assert other is not None
    both = tensor(work.first), tensor(other.reshape(work.first.shape))
    if work.operands.qparams is None:
        return Prepared(measure_values, (*both, None, tensor(sums)), (sums,))
    return Prepared(measure_codes, (_rule(work), *both, *map(tensor, _given(work)), tensor(sums)), (sums,))


_FUNCTIONS: dict[str, Callable[[Work], Prepared]] = {
    **dict.fromkeys(loops.ELEMENTS, _elements),
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
}


def prepared(cell: Cell, o: Operands) -> Prepared | None:
    """The work as a function of torch; None where torch does not take it, or blocks are ragged."""
    work = work_of(cell, o) if torch_takes(cell) else None
    return work and _FUNCTIONS[WORKS[cell.work].function](work)


def compiled(cell: Cell, o: Operands) -> Callable[[], Any] | None:
    """The call of what torch.compile makes of it."""
    made = prepared(cell, o)
    return made and partial(torch.compile(made.function, dynamic=False), *made.arguments)
