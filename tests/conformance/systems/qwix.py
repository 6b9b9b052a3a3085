"""Qwix, which quantizes weights of JAX, on its CPU."""

import numpy as np
from oracle import Case, Quantized, System

BOTH = ("int8", "int4")
SYMMETRIC = ("int7", "int6", "int5")


def qwix(x, case):
    """quantize and dequantize."""
    import jax
    import qwix as library

    tiles = {"channelwise_axes": [0]} if case.per == "channel" else {}
    if case.block_size:
        tiles = {"channelwise_axes": [0], "tiled_axes": {1: case.block_size}}
    method = "absmax" if case.symmetric else "minmax"
    qtype = getattr(jax.numpy, case.dtype) if case.dtype in BOTH else case.dtype
    made = library.quantize(jax.numpy.asarray(x), qtype, calibration_method=method, **tiles)
    shape = {"array": (), "channel": x.shape[:1], "block": made.scale.shape}[case.per]
    point = None if case.symmetric else np.asarray(made.zero_point).astype(np.float32).reshape(shape)
    codes, values = np.asarray(made.qvalue).astype(np.float32), np.asarray(library.dequantize(made))
    return Quantized(codes, np.asarray(made.scale).reshape(shape), point, values)


SYSTEMS = (
    System(
        "qwix",
        ("qwix", "jax"),
        qwix,
        (
            *(
                Case(dtype, symmetric, per, 32 if per == "block" else 0)
                for dtype in (*BOTH, *SYMMETRIC)
                for symmetric in (False, True)
                for per in ("array", "channel", "block")
                if symmetric or dtype in BOTH
            ),
            *(Case(dtype, True, "channel") for dtype in ("int3", "int2")),  # fewer of their values are on ties
        ),
        neighbour="onnx",
        except_for=("nearly overflowing",),
        undefined="XLA multiplies by reciprocals, which are rounded for float32 and float16, but not for bfloat16, "
        "where scales and codes are those of divisions: the row with quotient and scale_quotient 'divide' gives the "
        "same bytes. One scale alone, also that of one row, is divided. Subnormal "
        "reciprocals are 0: codes of scales above 2^126 are 0. For float16 a scale below 2^-7 becomes 1. minmax has 8 "
        "and 4 bits. NaN in the data makes the scale NaN, an infinity makes it inf.",
    ),
)
