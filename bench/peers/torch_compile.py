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
from .numpy import grouped

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


def dequantize_into(codes: Tensor, y: Tensor) -> None:
    y.copy_((codes.to(torch.float32) - ZERO_POINT) * SCALE)


def fake_quantize_into(x: Tensor, y: Tensor) -> None:
    y.copy_((torch.clamp(torch.round(x / SCALE) + ZERO_POINT, -128, 127) - ZERO_POINT) * SCALE)


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


def tensor(array: np.ndarray) -> Tensor:
    """Torch knows NumPy's dtypes only; bfloat16 goes by its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def elementwise(function: Callable[[Tensor, Tensor], None], source: str, result: str, case: Case) -> Runner:
    given = getattr(data, source)(case, aligned=True).ravel()
    out = data.out(case, result, aligned=True)
    call = partial(torch.compile(function, dynamic=False), tensor(given), torch.from_numpy(out).view(-1))
    return Runner(call, lambda: {result: out})


def symmetric(case: Case) -> Runner:
    groups = tensor(data.x(case, aligned=True).reshape(grouped(case)))
    axis = 0 if case.work.granularity == "columns" else -1
    codes = torch.zeros(groups.shape, dtype=torch.int8)
    scale = torch.zeros_like(groups.narrow(axis, 0, 1))
    call = partial(torch.compile(symmetric_into, dynamic=False), groups, axis, codes, scale)
    return Runner(call, lambda: results(codes, scale))


def results(codes: Tensor, scale: Tensor) -> dict[str, Any]:
    return {"codes": codes.numpy(), "scale": scale.numpy()}


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize_linear", ""): partial(elementwise, quantize_into, "x", "codes"),
    ("dequantize_linear", ""): partial(elementwise, dequantize_into, "codes", "values"),
    ("fake_quantize", ""): partial(elementwise, fake_quantize_into, "x", "values"),
    ("fake_quantize_range", ""): partial(elementwise, fake_quantize_range_into, "x", "values"),
    ("quantize", ""): symmetric,
}
