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
    s, z = formulas.parameters_of(torch, x.to(scale.dtype), rule)
    scale.copy_(s)
    zero.copy_(z)
    use_given(element, rule, x, scale, zero, result)


def decode_pairs(half: Callable[[Tensor], Tensor], packed: Tensor, scale: Tensor, result: Tensor) -> None:
    pairs = torch.stack((half(packed & 15), half(packed >> 4)), -1)
    result.copy_(pairs.flatten(-2) * scale.to(torch.float32))


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


def prepared(o: Operands) -> Runner:
    """Prepare the work as a function of torch that is compiled."""
    function, arguments, results = _elements(o)
    return Runner(partial(COMPILED(function), *arguments), lambda: results)
