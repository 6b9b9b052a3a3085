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
from ..data import SCALE, ZERO_POINT
from . import Runner, own_threads

warnings.filterwarnings("ignore", category=UserWarning)
torch.set_num_threads(own_threads())
INFERENCE = torch.inference_mode()
INFERENCE.__enter__()
# torch._dynamo forgets a function after eight shapes, and runs it uncompiled
torch._dynamo.config.recompile_limit = 1000
SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)


def quantize_into(x: Tensor, codes: Tensor) -> None:
    rounded = torch.round(x.to(torch.float32) / SCALE) + ZERO_POINT
    codes.copy_(torch.clamp(rounded, -128, 127).to(torch.int8))


def dequantize_into(codes: Tensor, y: Tensor, scale: Any = SCALE, zero: int = ZERO_POINT) -> None:
    y.copy_((codes.to(torch.float32) - zero) * scale)


def fake_quantize_into(x: Tensor, y: Tensor, scale: Any = SCALE, zero: int = ZERO_POINT, lowest: int = -128) -> None:
    y.copy_((torch.clamp(torch.round(x / scale) + zero, lowest, 127) - zero) * scale)


def dequantize_packed_into(packed: Tensor, y: Tensor, scale: Tensor, element: Callable[[Tensor], Tensor]) -> None:
    pairs = torch.stack((element(packed & 15), element(packed >> 4)), -1)
    y.copy_(pairs.flatten(-2) * scale.to(torch.float32))


E2M1 = torch.from_numpy(data.elements("mxfp4"))
ELEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "int4": lambda bits: (bits.to(torch.int32) ^ 8) - 8,
    "mxfp4": lambda bits: E2M1[bits.to(torch.int32)],
}


def fake_quantize_range_into(x: Tensor, y: Tensor) -> None:
    low, high = torch.aminmax(x)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = (high - low) / 255
    zero_point = torch.clamp(torch.round(-low / scale), 0, 255)
    y.copy_((torch.clamp(torch.round(x / scale) + zero_point, 0, 255) - zero_point) * scale)


def symmetric_into(groups: Tensor, axis: int, codes: Tensor, scale: Tensor) -> None:
    s = groups.abs().amax(axis, keepdim=True) / 127
    s = torch.where(s < SMALLEST_NORMAL, 1.0, s)
    codes.copy_(torch.clamp(torch.round(groups / s), -127, 127).to(torch.int8))
    scale.copy_(s)


BITS = {"bfloat16": np.uint16, "float8_e8m0fnu": np.uint8}


def tensor(array: np.ndarray) -> Tensor:
    """Torch knows NumPy's dtypes only; others go by their bits."""
    name = array.dtype.name
    if name in BITS:
        return torch.from_numpy(array.view(BITS[name])).view(getattr(torch, name))
    return torch.from_numpy(array)


def elementwise(function: Callable[..., None], source: str, result: str, case: Case, *given: Any) -> Runner:
    x, out = getattr(data, source)(case, aligned=True), data.out(case, result, aligned=True)
    arrays = (tensor(data.grouped(array, case)) for array in (x, out))
    return Runner(partial(torch.compile(function, dynamic=False), *arrays, *given), lambda: {result: out})


def dequantize_linear(case: Case) -> Runner:
    given = (tensor(data.beside(case)), data.zero(case)) if case.work.symmetric else ()
    return elementwise(dequantize_into, "codes", "values", case, *given)


def dequantize(case: Case) -> Runner:
    given = tensor(data.beside(case)), ELEMENTS[case.work.code]
    return elementwise(dequantize_packed_into, "packed", "values", case, *given)


def fake_quantize(case: Case) -> Runner:
    given = (tensor(data.beside(case)), data.zero(case), data.limits(case)[0]) if case.work.symmetric else ()
    return elementwise(fake_quantize_into, "x", "values", case, *given)


def symmetric(case: Case) -> Runner:
    groups = tensor(data.grouped(data.x(case, aligned=True), case))
    axis = 0 if case.work.granularity == "columns" else -1
    codes = torch.zeros(groups.shape, dtype=torch.int8)
    scale = torch.zeros_like(groups.narrow(axis, 0, 1))
    call = partial(torch.compile(symmetric_into, dynamic=False), groups, axis, codes, scale)
    return Runner(call, lambda: results(codes, scale))


def results(codes: Tensor, scale: Tensor) -> dict[str, Any]:
    return {"codes": codes.numpy(), "scale": scale.numpy()}


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize_linear", ""): partial(elementwise, quantize_into, "x", "codes"),
    ("dequantize_linear", ""): dequantize_linear,
    ("dequantize", ""): dequantize,
    ("fake_quantize", ""): fake_quantize,
    ("fake_quantize_range", ""): partial(elementwise, fake_quantize_range_into, "x", "values"),
    ("quantize", ""): symmetric,
}
