"""torch.compile of the formulas, into given memory: copy_ is fused into the loop, so nothing is allocated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import data, formulas
from ..calls import Array, Operands
from ..formulas import ELEMENTS, Rule, rule_of
from . import Runner, own_threads

warnings.filterwarnings("ignore", category=UserWarning)
torch.set_num_threads(own_threads())
INFERENCE = torch.inference_mode()
INFERENCE.__enter__()
# torch._dynamo forgets a function after eight shapes, and runs it uncompiled
torch._dynamo.config.recompile_limit = 1000
E2M1 = torch.from_numpy(data.elements("mxfp4"))
# what half a byte stands for
HALVES: dict[str, Callable[[Tensor], Tensor]] = {
    "int4": lambda bits: (bits.to(torch.int32) ^ 8) - 8,
    "mxfp4": lambda bits: E2M1[bits.to(torch.int32)],
}
COMPILED = partial(torch.compile, dynamic=False)
BITS = {"bfloat16": np.uint16, "float8_e8m0fnu": np.uint8}
Made = tuple[Callable[..., None], tuple[Any, ...], dict[str, Array]]  # a function, its arguments, and what it fills


def tensor(array: Array) -> Tensor:
    """Torch knows NumPy's dtypes only; others go by their bits."""
    name = array.dtype.name
    if name in BITS:
        return torch.from_numpy(array.view(BITS[name])).view(getattr(torch, name))
    return torch.from_numpy(array)


# --- functions --------------------------------------------------------------------------------------------------------


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


def decode_pairs(half: Callable[[Tensor], Tensor], packed: Tensor, scale: Tensor, result: Tensor) -> None:
    pairs = torch.stack((half(packed & 15), half(packed >> 4)), -1)
    result.copy_(pairs.flatten(-2) * scale.to(torch.float32))


def measure_codes(rule: Rule, x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, sums: Tensor) -> None:
    clipped = formulas.is_clipped(torch, x.to(scale.dtype), scale, zero, rule)
    values = formulas.decode(torch, codes.to(scale.dtype), scale, zero, rule)
    measure_values(x, values, clipped, sums)


def measure_values(x: Tensor, values: Tensor, clipped: Tensor | None, sums: Tensor) -> None:
    sums.copy_(formulas.measures_of(torch, x.double(), values.double(), clipped))


# --- works ------------------------------------------------------------------------------------------------------------


def _own(o: Operands, dtype: Any) -> tuple[Array, Array]:
    return np.ones(o.shape_of_parameters, dtype), np.ones(o.shape_of_parameters, dtype)


def _elements(o: Operands) -> Made:
    result, own = o.result(), o.qparams is None
    x, y = tensor(o.grouped(o.first)), tensor(o.grouped(result))
    if o.function == "dequantize" and o.qtype.packed:
        return decode_pairs, (HALVES[o.code], x, tensor(o.beside[0]), y), {o.made: result}
    parameters = _own(o, o.real) if own else o.beside
    arguments = ELEMENTS[o.function], rule_of(o), x, *map(tensor, parameters), y
    return use_own if own else use_given, arguments, {o.made: result}


def _choose_qparams(o: Operands) -> Made:
    scale, zero = _own(o, o.real)
    arguments = rule_of(o), *map(tensor, (o.grouped(o.first), scale, zero))
    return choose, arguments, {"scale": scale, "zero_point": zero}


def _minmax(o: Operands) -> Made:
    lo, hi = _own(o, o.first.dtype)
    return find_ranges, (rule_of(o), *map(tensor, (o.grouped(o.first), lo, hi))), {"lo": lo, "hi": hi}


def _compare(o: Operands) -> Made:
    assert o.approximation is not None
    sums, both = np.ones(formulas.MEASURES), map(tensor, map(o.grouped, (o.first, o.approximation)))
    if o.qparams is None:
        return measure_values, (*both, None, tensor(sums)), {"measures": sums}
    return measure_codes, (rule_of(o), *both, *map(tensor, o.beside), tensor(sums)), {"measures": sums}


_FUNCTIONS: dict[str, Callable[[Operands], Made]] = {
    **dict.fromkeys(ELEMENTS, _elements),
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
}


def prepared(o: Operands, compiled: Callable[[Any], Any] = COMPILED) -> Runner | None:
    """Prepare the work as a function of torch that is compiled; None where blocks are ragged."""
    if o.ragged:
        return None
    function, arguments, results = _FUNCTIONS[o.function](o)
    return Runner(partial(compiled(function), *arguments), lambda: results)
