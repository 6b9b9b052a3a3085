"""ai-edge-quantizer, which quantizes models of LiteRT: parameters from a range, and codes by them."""

import numpy as np
from oracle import Case, Quantized, System

FORMATS = ("int8", "int4")
GROUPS = (32, 64, 128, 256)


def ai_edge(x, case):
    """tensor_zp_scale_from_min_max, uniform_quantize and uniform_dequantize."""
    from ai_edge_quantizer import qtyping
    from ai_edge_quantizer.algorithms.uniform_quantize import uniform_quantize_tensor as quantizer

    name = {"array": "TENSORWISE", "channel": "CHANNELWISE", "block": f"BLOCKWISE_{case.block_size}"}[case.per]
    granularity = getattr(qtyping.QuantGranularity, name)
    axis = {"array": None, "channel": 0, "block": 1}[case.per]
    parts = x.reshape(len(x), -1, case.block_size) if case.block_size else x
    lo, hi = (
        end(parts, axis=None if case.per == "array" else -1, keepdims=not case.block_size) for end in (np.min, np.max)
    )
    bits = int(case.dtype.removeprefix("int"))
    zero_point, scale = quantizer.tensor_zp_scale_from_min_max(lo, hi, bits, case.symmetric, granularity)
    params = qtyping.UniformQuantParams(
        num_bits=bits,
        quantized_dimension=axis,
        scale=scale,
        zero_point=zero_point,
        symmetric=case.symmetric,
        block_size=case.block_size,
    )
    codes = quantizer.uniform_quantize(x, params, bool(case.block_size))
    # asymmetric codes minus their zero point wrap in int8
    values = quantizer.uniform_dequantize(codes, params) if case.symmetric else None
    shape = {"array": (), "channel": x.shape[:1], "block": lo.shape}[case.per]
    scale, zero_point = (a.astype(np.float32).reshape(shape) for a in (scale, zero_point))
    if case.block_size:  # what has a scale of 0 has no codes
        lost = np.repeat(scale == 0, case.block_size, axis=1)
        scale, codes = np.where(scale == 0, np.nan, scale), np.where(lost, np.nan, codes)
    return Quantized(codes, scale, zero_point, values)


UNDEFINED = (
    "Scales of blocks are rounded to bfloat16 and then to float16. One that becomes 0, below about 3e-8, makes codes "
    "at the ends whose values are 0; here it is 1, and so all codes are 0. One beyond float16 is infinite. Its "
    "uniform_dequantize subtracts zero points in int8, where differences wrap; values here are right. Weights are "
    "quantized symmetrically, activations per tensor. NaN in the data makes the scale NaN, an infinity or a range "
    "wider than float32 makes it inf."
)

SYSTEMS = (
    System(
        "ai-edge",
        ("ai-edge-quantizer",),
        ai_edge,
        (
            Case("int16", True),
            Case("int8"),
            *(Case(dtype, True, per) for dtype in FORMATS for per in ("array", "channel")),
            Case("int2", True, "channel"),  # fewer of its values are on ties
        ),
        neighbour="torch",
        undefined=UNDEFINED,
    ),
    System(
        "ai-edge",
        ("ai-edge-quantizer",),
        ai_edge,
        (
            *(Case(dtype, True, "block", group) for dtype in FORMATS for group in GROUPS),
            Case("int2", True, "block", 32),
        ),
        except_for=("large", "nearly overflowing"),
        undefined=UNDEFINED,
    ),
)
