"""coremltools, which quantizes weights of Core ML's models."""

import numpy as np
from oracle import Case, Quantized, System

FORMATS = ("int8", "uint8", "int4", "uint4")


def coremltools(x, case):
    """compute_qparams, which linear_quantize_weights calls, and dequantize_by_scale_and_zp."""
    from coremltools.converters.mil.mil import types
    from coremltools.optimize import _utils

    blocks = {"array": [0, 0], "channel": [1, 0], "block": [1, case.block_size]}[case.per]
    mode = "LINEAR_SYMMETRIC" if case.symmetric else "LINEAR"
    with np.errstate(all="ignore"):
        codes, scale, zero_point = _utils.compute_qparams_by_dtype(x, types.string_to_builtin(case.dtype), mode, blocks)
    values = _utils.dequantize_by_scale_and_zp(codes, scale, zero_point)
    shape = {"array": (), "channel": x.shape[:1], "block": scale.shape}[case.per]
    lost = np.broadcast_to(_utils.repeat_data_as(scale, x.shape) == 0, x.shape)
    codes = np.where(lost, np.nan, codes.astype(np.float32))
    scale = np.where(scale == 0, np.nan, scale.astype(np.float32))
    point = None if zero_point is None else zero_point.astype(np.float32).reshape(shape)
    return Quantized(codes, scale.reshape(shape), point, values)


SYSTEMS = (
    System(
        "coremltools",
        ("coremltools",),
        coremltools,
        tuple(
            Case(dtype, symmetric, per, 32 if per == "block" else 0)
            for dtype in FORMATS
            for symmetric in (False, True)
            for per in ("array", "channel", "block")
        ),
        neighbour="onnx",
        except_for=("nearly overflowing",),
        undefined="A scale of 0, as of zeros, makes NaN of x / scale, which becomes a code as the CPU converts it; "
        "here the scale is 1. Ranges beyond the largest number of the weights' dtype over qmax, for float16 and uint8 "
        "over 256, overflow in its zero points. Arrays of bfloat16 are refused.",
    ),
)
