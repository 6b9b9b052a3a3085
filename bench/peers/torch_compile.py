"""torch.compile of functions that write into given memory: copy_ is fused into the loop, so nothing is allocated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import data
from ..cases import Case
from ..scan import formulas
from ..scan.formulas import Rule
from . import Runner, own_threads

warnings.filterwarnings("ignore", category=UserWarning)
torch.set_num_threads(own_threads())
INFERENCE = torch.inference_mode()
INFERENCE.__enter__()
# torch._dynamo forgets a function after eight shapes, and runs it uncompiled
torch._dynamo.config.recompile_limit = 1000
E2M1 = torch.from_numpy(data.elements("mxfp4"))
ELEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "int4": lambda bits: (bits.to(torch.int32) ^ 8) - 8,
    "mxfp4": lambda bits: E2M1[bits.to(torch.int32)],
}
COMPILED = partial(torch.compile, dynamic=False)
BITS = {"bfloat16": np.uint16, "float8_e8m0fnu": np.uint8}


def tensor(array: np.ndarray) -> Tensor:
    """Torch knows NumPy's dtypes only; others go by their bits."""
    name = array.dtype.name
    if name in BITS:
        return torch.from_numpy(array.view(BITS[name])).view(getattr(torch, name))
    return torch.from_numpy(array)


# --- functions that write into given memory, of the formulas of the scan ----------------------------------------------


def use_given(element: Any, rule: Rule, x: Tensor, scale: Tensor, zero: Tensor, result: Tensor) -> None:
    result.copy_(element(torch, x.to(scale.dtype), scale, zero, rule))


def use_own(element: Any, rule: Rule, x: Tensor, scale: Tensor, zero: Tensor, result: Tensor) -> None:
    choose(rule, x, scale, zero)
    use_given(element, rule, x, scale, zero, result)


def choose(rule: Rule, x: Tensor, scale: Tensor, zero: Tensor) -> None:
    s, z = formulas.parameters_of(torch, x.to(scale.dtype), rule)
    scale.copy_(s)
    zero.copy_(z)


def dequantize_packed_into(packed: Tensor, scale: Tensor, y: Tensor, element: Callable[[Tensor], Tensor]) -> None:
    pairs = torch.stack((element(packed & 15), element(packed >> 4)), -1)
    y.copy_(pairs.flatten(-2) * scale.to(torch.float32))


# --- works ------------------------------------------------------------------------------------------------------------


def both(source: str, result: str, case: Case) -> tuple[Tensor, np.ndarray, Tensor]:
    """An operand, memory for the result, and that as a tensor of the shape of the operand's groups."""
    x, out = getattr(data, source)(case, aligned=True), data.out(case, result, aligned=True)
    return tensor(data.grouped(x, case)), out, tensor(data.grouped(out, case))


def given(element: Any, source: str, result: str, case: Case) -> Runner:
    x, out, y = both(source, result, case)
    rule, scale = Rule((), case.work.symmetric, *data.limits(case)), tensor(data.scales_of(case))
    call = partial(COMPILED(use_given), element, rule, x, scale, torch.full_like(scale, data.zero(case)), y)
    return Runner(call, lambda: {result: out})


def own(element: Any, result: str, case: Case) -> Runner:
    x, out, y = both("x", result, case)
    axis = 0 if case.work.granularity in ("tensor", "columns") else x.ndim - 1
    scale = torch.zeros_like(x.narrow(axis, 0, 1))
    rule, scales = Rule((axis,), case.work.symmetric, *data.limits(case)), {"scale": scale.numpy()}
    call = partial(COMPILED(use_own), element, rule, x, scale, torch.zeros_like(scale), y)
    return Runner(call, lambda: {result: out} | (scales if result == "codes" else {}))


def dequantize(case: Case) -> Runner:
    x, out, y = both("packed", "values", case)
    call = partial(COMPILED(dequantize_packed_into), x, tensor(data.scales_of(case)), y, ELEMENTS[case.work.code])
    return Runner(call, lambda: {"values": out})


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize_linear", ""): partial(given, formulas.encode, "x", "codes"),
    ("dequantize_linear", ""): partial(given, formulas.decode, "codes", "values"),
    ("dequantize", ""): dequantize,
    ("fake_quantize", ""): partial(given, formulas.encode_and_decode, "x", "values"),
    ("fake_quantize_range", ""): partial(own, formulas.encode_and_decode, "values"),
    ("quantize", ""): partial(own, formulas.encode, "codes"),
}
