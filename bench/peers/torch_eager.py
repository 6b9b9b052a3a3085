"""torch, operator by operator. Each call allocates its result: the .out variants, where there are any, are slower."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor

from .. import data
from ..calls import SCALE, ZERO_POINT, Operands, dtype_of
from ..verify import EXACT
from . import Builders, Runner, own_threads

warnings.filterwarnings("ignore", category=UserWarning)
torch.set_num_threads(own_threads())
INFERENCE = torch.inference_mode()
INFERENCE.__enter__()


def first(o: Operands) -> Tensor:
    return torch.from_numpy(o.first)


def eager(call: Callable[[], Any], results: Callable[[Any], dict[str, Any]]) -> Runner:
    return Runner(call, lambda: results(call()))


def quantized(q: Tensor) -> dict[str, Any]:
    return {"codes": q.int_repr().numpy(), "scale": np.float32(q.q_scale()), "zero_point": q.q_zero_point()}


def values(y: Tensor) -> dict[str, Any]:
    return {"values": y.numpy()}


def quantize_linear(o: Operands) -> Runner:
    call = partial(torch.quantize_per_tensor, first(o), SCALE, ZERO_POINT, torch.qint8)
    return eager(call, lambda q: {"codes": q.int_repr().numpy()})


def channels(o: Operands) -> Tensor:
    """A view with a channel for each scale."""
    return first(o).view(-1, o.block_size or o.shape[1])


def parameters(o: Operands) -> tuple[Tensor, Tensor, int]:
    """Scales, zero points and the axis of the channels."""
    scales = torch.from_numpy(o.beside[0]).ravel()
    return scales, torch.zeros(len(scales), dtype=torch.int32), int(o.axis == 1 and not o.block_size)


def dequantize_linear(o: Operands) -> Runner:
    if o.symmetric:
        q = torch._make_per_channel_quantized_tensor(channels(o), *parameters(o))
    else:
        q = torch._make_per_tensor_quantized_tensor(first(o), SCALE, ZERO_POINT)
    return eager(q.dequantize, values)


def dequantize_decomposed(o: Operands) -> Runner:
    operators = torch.ops.quantized_decomposed
    if o.symmetric:
        given = channels(o), *parameters(o)
        return eager(partial(operators.dequantize_per_channel, *given, -128, 127, torch.int8), values)
    given = first(o), SCALE, ZERO_POINT
    return eager(partial(operators.dequantize_per_tensor, *given, -128, 127, torch.int8), values)


def dequantize_product(o: Operands) -> Runner:
    return eager(partial(torch.mul, *map(torch.from_numpy, (o.grouped(o.first), o.beside[0]))), values)


def minmax(o: Operands) -> Runner:
    return eager(partial(torch.aminmax, first(o)), lambda pair: {"lo": pair[0].numpy(), "hi": pair[1].numpy()})


def quantize_dynamic(o: Operands) -> Runner:
    return eager(partial(torch.quantize_per_tensor_dynamic, first(o), torch.quint8, False), quantized)


def quantize(o: Operands) -> Runner:
    source = first(o)

    def call() -> Tensor:
        low, high = (bound.item() for bound in torch.aminmax(source))
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255
        return torch.quantize_per_tensor(source, scale, min(255, max(0, round(-low / scale))), torch.quint8)

    return eager(call, quantized)


def fake_quantize(o: Operands) -> Runner:
    if o.symmetric:
        given = channels(o), *parameters(o), *map(int, o.limits)
        return eager(partial(torch.fake_quantize_per_channel_affine, *given), values)
    return eager(partial(torch.fake_quantize_per_tensor_affine, first(o), SCALE, ZERO_POINT, -128, 127), values)


def quantize_to_float8(o: Operands) -> Runner:
    source, kind = first(o), getattr(torch, o.code)
    step, largest = float(data.scale(o.code)), torch.finfo(kind).max

    def call() -> Tensor:
        return (source / step).clamp_(-largest, largest).to(kind)

    storage = dtype_of(o.code)
    return Runner(call, lambda: {"codes": call().view(torch.uint8).numpy().view(storage)}, EXACT)


BUILDERS: Builders = {
    ("quantize_linear", "to(float8)"): quantize_to_float8,
    ("dequantize_linear", "decomposed"): dequantize_decomposed,
    ("dequantize_linear", "mul"): dequantize_product,
    ("quantize", "quantize_per_tensor_dynamic"): quantize_dynamic,
}
