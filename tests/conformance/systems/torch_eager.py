"""PyTorch: tensors of quantized dtypes, the operators of its export, and fake quantization."""

from dataclasses import replace
from functools import cache

import numpy as np
from oracle import Quantized, System, grid

EPS = 2.0**-23


@cache
def _torch():
    import torch
    import torch.ao.quantization.fx._decomposed

    return torch


def _observed(x, case, dtype):
    """Return the parameters that an observer takes from a tensor, in their own shapes."""
    from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver

    torch, channel = _torch(), case.per == "channel"
    scheme = f"per_{'channel' if channel else 'tensor'}_{'symmetric' if case.symmetric else 'affine'}"
    reduced = dict(case.changes).get("reduce_range", False)
    observer = (PerChannelMinMaxObserver if channel else MinMaxObserver)(
        dtype=dtype, qscheme=getattr(torch, scheme), reduce_range=reduced, **({"ch_axis": 0} if channel else {})
    )
    observer(x)
    scale, zero_point = observer.calculate_qparams()
    return (scale, zero_point) if channel else (scale[0], zero_point[0])


def quantize(x, case):
    """quantize_per_tensor and quantize_per_channel with the parameters of an observer."""
    torch, x = _torch(), _torch().from_numpy(x)
    dtype = {"int8": torch.qint8, "uint8": torch.quint8}[case.dtype]
    scale, zero_point = _observed(x, case, dtype)
    if case.per == "channel":
        q = torch.quantize_per_channel(x, scale, zero_point, 0, dtype)
    else:
        q = torch.quantize_per_tensor(x, float(scale), int(zero_point), dtype)
    return Quantized(q.int_repr().numpy(), scale.numpy(), zero_point.numpy(), q.dequantize().numpy())


def quantize_decomposed(x, case):
    """choose_qparams and quantize of torch.ops.quantized_decomposed; per channel it has no choose_qparams."""
    torch, x = _torch(), _torch().from_numpy(x)
    ops, dtype, info = torch.ops.quantized_decomposed, getattr(torch, case.dtype), np.iinfo(case.dtype)
    ends = int(info.min), int(info.max)
    if case.per == "channel":
        scale, zero_point = _observed(x, case, dtype)
        q = ops.quantize_per_channel(x, scale, zero_point, 0, *ends, dtype)
        values = ops.dequantize_per_channel(q, scale, zero_point, 0, *ends, dtype)
        return Quantized(q.numpy(), scale.numpy(), zero_point.numpy(), values.numpy())
    choose = ops.choose_qparams_symmetric.tensor if case.symmetric else ops.choose_qparams.tensor
    scale, zero_point = choose(x, *ends, EPS, dtype)
    q = ops.quantize_per_tensor.tensor(x, scale, zero_point, *ends, dtype)
    values = ops.dequantize_per_tensor.tensor(q, scale, zero_point, *ends, dtype)
    return Quantized(q.numpy(), scale.numpy()[0], zero_point.numpy()[0], values.numpy())


def quantize_groups(x, case, scale, zero_point):
    """quantize_per_channel_group and its inverse, with given parameters."""
    torch, ops, info = _torch(), _torch().ops.quantized_decomposed, np.iinfo(case.dtype)
    scale, zero_point = torch.from_numpy(scale.astype(np.float32)), torch.from_numpy(zero_point.astype(np.int32))
    rest = int(info.min), int(info.max), getattr(torch, case.dtype), case.block_size
    q = ops.quantize_per_channel_group(torch.from_numpy(x), scale, zero_point, *rest)
    return Quantized(
        q.numpy(), None, None, ops.dequantize_per_channel_group(q, scale, zero_point, *rest, torch.float32).numpy()
    )


def fake_quantize(x, case):
    """fake_quantize_per_tensor_affine and fake_quantize_per_channel_affine, which give no codes away."""
    torch, x, info = _torch(), _torch().from_numpy(x), np.iinfo(case.dtype)
    scale, zero_point = _observed(x, case, getattr(torch, case.dtype))
    ends = int(info.min), int(info.max)
    if case.per == "channel":
        values = torch.fake_quantize_per_channel_affine(x, scale, zero_point.int(), 0, *ends)
    else:
        values = torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero_point), *ends)
    return Quantized(None, scale.numpy(), zero_point.numpy(), values.numpy())


CASES = grid(("int8", "uint8"), ("array", "channel"))
REDUCED = tuple(
    replace(case, changes=(("reduce_range", True),)) for case in CASES if not (case.symmetric and case.dtype == "uint8")
)

NOT_FINITE = (
    "NaN in the data makes the scale NaN, an infinity or a range wider than float32 makes it inf; the values are NaN."
)

SYSTEMS = (
    System(
        "torch",
        ("torch",),
        quantize,
        CASES + REDUCED,
        neighbour="torch-pt2e",
        undefined=NOT_FINITE + " It has no symmetric uint8 with a reduced range.",
    ),
    System(
        "torch-pt2e",
        ("torch",),
        quantize_decomposed,
        CASES,
        neighbour="torch",
        undefined=NOT_FINITE,
    ),
    System(
        "torch-pt2e",
        ("torch",),
        quantize_groups,
        grid(("int8", "uint8"), ("block",)),
        neighbour="torchao",
        given=True,
    ),
    System(
        "torch-fake-quantize",
        ("torch",),
        fake_quantize,
        CASES,
        neighbour="torch",
        undefined=NOT_FINITE,
    ),
)
