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
from ..calls import SCALE, ZERO_POINT, dtype_of
from ..cases import GRANULARITIES, Case
from ..verify import EXACT
from . import Runner, own_threads

warnings.filterwarnings("ignore", category=UserWarning)
torch.set_num_threads(own_threads())
INFERENCE = torch.inference_mode()
INFERENCE.__enter__()


def first(case: Case) -> Tensor:
    return torch.from_numpy(data.operands(case).first)


def eager(call: Callable[[], Any], results: Callable[[Any], dict[str, Any]]) -> Runner:
    return Runner(call, lambda: results(call()))


def quantized(q: Tensor) -> dict[str, Any]:
    return {"codes": q.int_repr().numpy(), "scale": np.float32(q.q_scale()), "zero_point": q.q_zero_point()}


def values(y: Tensor) -> dict[str, Any]:
    return {"values": y.numpy()}


def quantize_linear(case: Case) -> Runner:
    call = partial(torch.quantize_per_tensor, first(case), SCALE, ZERO_POINT, torch.qint8)
    return eager(call, lambda q: {"codes": q.int_repr().numpy()})


def channels(given: Tensor, case: Case) -> Tensor:
    """A view with a channel for each scale."""
    return given.view(-1, GRANULARITIES[case.work.granularity].block_size or given.shape[1])


def parameters(case: Case) -> tuple[Tensor, Tensor, int]:
    """Scales, zero points and the axis of the channels."""
    scales = torch.from_numpy(data.operands(case).beside[0]).ravel()
    return scales, torch.zeros(len(scales), dtype=torch.int32), int(case.work.granularity == "columns")


def dequantize(case: Case) -> Runner:
    if case.work.symmetric:
        q = torch._make_per_channel_quantized_tensor(channels(first(case), case), *parameters(case))
    else:
        q = torch._make_per_tensor_quantized_tensor(first(case), SCALE, ZERO_POINT)
    return eager(q.dequantize, values)


def dequantize_decomposed(case: Case) -> Runner:
    operators = torch.ops.quantized_decomposed
    if case.work.symmetric:
        given = channels(first(case), case), *parameters(case)
        return eager(partial(operators.dequantize_per_channel, *given, -128, 127, torch.int8), values)
    given = first(case), SCALE, ZERO_POINT
    return eager(partial(operators.dequantize_per_tensor, *given, -128, 127, torch.int8), values)


def dequantize_product(case: Case) -> Runner:
    o = data.operands(case)
    return eager(partial(torch.mul, *map(torch.from_numpy, (o.grouped(o.first), o.beside[0]))), values)


def minmax(case: Case) -> Runner:
    return eager(partial(torch.aminmax, first(case)), lambda pair: {"lo": pair[0].numpy(), "hi": pair[1].numpy()})


def quantize_dynamic(case: Case) -> Runner:
    return eager(partial(torch.quantize_per_tensor_dynamic, first(case), torch.quint8, False), quantized)


def quantize(case: Case) -> Runner:
    source = first(case)

    def call() -> Tensor:
        low, high = (bound.item() for bound in torch.aminmax(source))
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255
        return torch.quantize_per_tensor(source, scale, min(255, max(0, round(-low / scale))), torch.quint8)

    return eager(call, quantized)


def fake_quantize(case: Case) -> Runner:
    if case.work.symmetric:
        given = channels(first(case), case), *parameters(case), *map(int, data.operands(case).limits)
        return eager(partial(torch.fake_quantize_per_channel_affine, *given), values)
    return eager(partial(torch.fake_quantize_per_tensor_affine, first(case), SCALE, ZERO_POINT, -128, 127), values)


def quantize_to_float8(case: Case) -> Runner:
    source, kind = first(case), getattr(torch, case.work.code)
    step, largest = float(data.scale(case.work.code)), torch.finfo(kind).max

    def call() -> Tensor:
        return (source / step).clamp_(-largest, largest).to(kind)

    storage = dtype_of(case.work.code)
    return Runner(call, lambda: {"codes": call().view(torch.uint8).numpy().view(storage)}, EXACT)


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize_linear", "quantize_per_tensor"): quantize_linear,
    ("quantize_linear", "to(float8)"): quantize_to_float8,
    ("dequantize_linear", "dequantize"): dequantize,
    ("dequantize_linear", "decomposed"): dequantize_decomposed,
    ("dequantize_linear", "mul"): dequantize_product,
    ("minmax", "aminmax"): minmax,
    ("quantize", "aminmax + quantize_per_tensor"): quantize,
    ("quantize", "quantize_per_tensor_dynamic"): quantize_dynamic,
    ("fake_quantize", "fake_quantize"): fake_quantize,
}
