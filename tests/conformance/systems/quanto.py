"""optimum-quanto, which quantizes weights with operations of PyTorch in their dtype."""

import numpy as np
from oracle import Case, Quantized, System

QTYPES = {"int8": "qint8", "uint4": "qint4", "uint2": "qint2"}
BITS = (Case("uint4", False, "block", 128), Case("uint4", False, "block", 64), Case("uint2", False, "block", 128))
BYTES = ("int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")


def weights_of_quanto(tensor, dtype, group=0):
    """Return a tensor as `quantize_weight` makes it with the optimizer that layers have by default."""
    from optimum import quanto

    qtype = getattr(quanto, QTYPES.get(dtype) or f"q{dtype}")
    if group:
        scale, shift = quanto.MaxOptimizer()(tensor, qtype, 0, group)
        return quanto.quantize_weight(tensor, qtype, 0, scale, shift, group, optimized=False)
    return quanto.quantize_weight(tensor, qtype, 0, quanto.AbsmaxOptimizer()(tensor, qtype, 0), optimized=False)


def scales_of(made, shape):
    """Return the scales of a tensor of quanto, NaN for those that are 0."""
    scale = made._scale.detach().float().numpy().reshape(shape)
    return np.where(scale == 0, np.float32(np.nan), scale)


def codes_of(made, shape):
    """Return the codes of a tensor of quanto as it gives them back, in the order of its values."""
    data = made._data.unpack() if hasattr(made._data, "unpack") else made._data
    return data.reshape(shape)


def quanto(x, case):
    """quantize_weight of 8 bits, a scale a row."""
    import torch

    made = weights_of_quanto(torch.from_numpy(x), case.dtype)
    return Quantized(
        codes_of(made, x.shape).float().numpy(), scales_of(made, x.shape[:1]), values=made.dequantize().numpy()
    )


def quanto_bits(x, case):
    """quantize_weight of fewer bits; a zero point is its shift with the other sign."""
    import torch

    made = weights_of_quanto(torch.from_numpy(x), case.dtype, case.block_size)
    shape = (x.shape[0], -1)
    return Quantized(
        codes_of(made, x.shape).numpy(),
        scales_of(made, shape),
        -made._shift.numpy().reshape(shape),
        made.dequantize().numpy(),
    )


_UNDEFINED = "A scale that is or becomes 0, as that of zeros, is 1 here. NaN and an infinity make the scale NaN or inf."

SYSTEMS = (
    System(
        "quanto",
        ("optimum-quanto", "torch"),
        quanto,
        (Case("int8", True, "channel"),),
        neighbour="torchao-int8",
        undefined=_UNDEFINED,
    ),
    System(
        "quanto",
        ("optimum-quanto", "torch"),
        quanto,
        tuple(Case(name, True, "channel") for name in BYTES[1:]),
        neighbour="",
        except_for=("zeros", "subnormal"),
        undefined="Float codes of such a row are NaN; here they are 0.",
    ),
    System("quanto-bits", ("optimum-quanto", "torch"), quanto_bits, BITS, undefined=_UNDEFINED),
)
