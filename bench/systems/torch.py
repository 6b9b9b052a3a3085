"""torch: eager operators, and torch.compile of functions that write into given memory, both in inference mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed
import works
from torch import Tensor
from works import BLOCK, SCALE, SHAPES, ZERO_POINT, Results, Runner

warnings.filterwarnings("ignore", category=UserWarning)
torch.set_num_threads(2)
INFERENCE = torch.inference_mode()
INFERENCE.__enter__()
SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)


def flat(size: str) -> Tensor:
    return torch.from_numpy(works.flat(size, aligned=True))


def flat_codes(size: str) -> Tensor:
    return torch.from_numpy(works.flat_codes(size, aligned=True))


# Eager: the results are allocated by each call, which below 32 MiB costs next to nothing; the .out variants are slower.


def eager(call: Callable[[], Any], results: Callable[[Any], Results]) -> Runner:
    return Runner(call, lambda: results(call()))


def quantized(q: Tensor) -> Results:
    parameters = {"scale": np.array(q.q_scale(), np.float32), "zero_point": np.array(q.q_zero_point())}
    return {"codes": q.int_repr().numpy()} | parameters


def values(y: Tensor) -> Results:
    return {"values": y.numpy()}


def quantize_linear(size: str) -> Runner:
    call = partial(torch.quantize_per_tensor, flat(size), SCALE, ZERO_POINT, torch.qint8)
    return eager(call, lambda q: {"codes": q.int_repr().numpy()})


def dequantize(size: str) -> Runner:
    q = torch._make_per_tensor_quantized_tensor(flat_codes(size), SCALE, ZERO_POINT)
    return eager(q.dequantize, values)


def dequantize_decomposed(size: str) -> Runner:
    function = torch.ops.quantized_decomposed.dequantize_per_tensor
    return eager(partial(function, flat_codes(size), SCALE, ZERO_POINT, -128, 127, torch.int8), values)


def minmax(size: str) -> Runner:
    return eager(partial(torch.aminmax, flat(size)), lambda pair: {"lo": pair[0].numpy(), "hi": pair[1].numpy()})


def quantize_dynamic(size: str) -> Runner:
    return eager(partial(torch.quantize_per_tensor_dynamic, flat(size), torch.quint8, False), quantized)


def quantize(size: str) -> Runner:
    x = flat(size)

    def call() -> Tensor:
        low, high = (bound.item() for bound in torch.aminmax(x))
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255
        return torch.quantize_per_tensor(x, scale, min(255, max(0, round(-low / scale))), torch.quint8)

    return eager(call, quantized)


# Compiled: copy_ into the output is fused into the loop, so nothing is allocated.


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


def compiled(function: Callable[[Tensor, Tensor], None], given: Callable[[str], Tensor], size: str) -> Runner:
    source = given(size)
    y = torch.from_numpy(works.empty(source.numel(), np.float32, aligned=True))
    return Runner(partial(torch.compile(function, dynamic=False), source, y), lambda: values(y))


def compiled_symmetric(shape: tuple[int, ...], axis: int, size: str) -> Runner:
    groups = flat(size).view(SHAPES[size]).view(SHAPES[size][0], *shape)
    codes = torch.zeros(groups.shape, dtype=torch.int8)
    scale = torch.zeros_like(groups.narrow(axis, 0, 1))
    call = partial(torch.compile(symmetric_into, dynamic=False), groups, axis, codes, scale)
    return Runner(call, lambda: {"codes": codes.view(SHAPES[size]).numpy(), "scale": scale.squeeze(axis).numpy()})


BUILDERS: dict[tuple[str, str], Callable[[str], Runner]] = {
    ("quantize_linear", "quantize_per_tensor"): quantize_linear,
    ("dequantize_linear", "dequantize"): dequantize,
    ("dequantize_linear", "decomposed"): dequantize_decomposed,
    ("dequantize_linear", "compile"): partial(compiled, dequantize_into, flat_codes),
    ("minmax", "aminmax"): minmax,
    ("quantize", "aminmax + quantize_per_tensor"): quantize,
    ("quantize", "quantize_per_tensor_dynamic"): quantize_dynamic,
    ("fake_quantize", "compile"): partial(compiled, fake_quantize_into, flat),
    ("fake_quantize_range", "compile"): partial(compiled, fake_quantize_range_into, flat),
    ("rows", "compile"): partial(compiled_symmetric, (-1,), 1),
    ("columns", "compile"): partial(compiled_symmetric, (-1,), 0),
    ("blocks", "compile"): partial(compiled_symmetric, (-1, BLOCK), 2),
}
