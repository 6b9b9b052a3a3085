"""MLX, whose affine mode keeps scales and biases in the dtype of the weights."""

import numpy as np
from oracle import Case, Quantized, System

import fastq

GROUPS = (32, 64, 128)
FORMATS = tuple(f"uint{bits}" for bits in (1, 2, 3, 4, 5, 6, 8))


def words_of(x, dtype, group):
    """Return the packed words of `mx.quantize` for an array of MLX, and scales and biases."""
    import mlx.core as mx

    return mx.quantize(x, group_size=group, bits=int(dtype.removeprefix("uint")))


def mlx(x, case):
    """mx.quantize and mx.dequantize."""
    import mlx.core as mx

    words, scales, biases = words_of(mx.array(x), case.dtype, case.block_size)
    bits = int(case.dtype.removeprefix("uint"))
    values = mx.dequantize(words, scales, biases, group_size=case.block_size, bits=bits)
    packed = np.array(words).view(np.uint8)
    codes = packed if bits == 8 else fastq.unpack(packed, case.dtype, shape=x.shape)
    return Quantized(codes, np.array(scales), np.array(biases), np.array(values))


SYSTEMS = (
    System(
        "mlx",
        ("mlx",),
        mlx,
        (
            Case("uint1", False, "block", 64),  # fewer of its values are on ties
            *(Case(dtype, False, "block", group) for group in GROUPS for dtype in FORMATS[1:]),
        ),
        undefined="NaN in a group is passed over by its range; an infinity makes its scale NaN. Where a constant is "
        "more than the largest float32 times 1e-7, its scale is 0 and here it is not; codes are 0 in both. 7 bits are "
        "refused. Its formats with scales of their own (mxfp4, mxfp8, nvfp4) have other rules.",
    ),
)
