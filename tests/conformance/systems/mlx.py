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


MODES = {"mxfp4": ("mxfp4", 32), "mxfp8_e4m3": ("mxfp8", 32), "nvfp4": ("nvfp4", 16)}


def mlx_float(x, case):
    """The same in modes mxfp4, mxfp8 and nvfp4, on values of three dtypes."""
    import mlx.core as mx

    mode, _ = MODES[case.dtype]
    values = mx.array(x.astype(np.float32)).astype(getattr(mx, case.values))
    words, scales = mx.quantize(values, mode=mode)
    decoded = mx.dequantize(words, scales, mode=mode, dtype=mx.float32)
    packed = np.array(words).view(np.uint8)
    codes = packed if mode == "mxfp8" else fastq.unpack(packed, "uint4", shape=x.shape)
    return Quantized(codes, np.array(scales), values=np.array(decoded))


def _cases(dtype, *values):
    return tuple(Case(dtype, True, "block", MODES[dtype][1], values=name) for name in values)


WIDE, HALF = ("float32", "bfloat16"), ("float16",)
TOO_LARGE = ("large", "nearly overflowing")

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
        "refused. Its formats with scales of their own (mxfp4, mxfp8, nvfp4) are mlx-float.",
    ),
    System(
        "mlx-float",
        ("mlx",),
        mlx_float,
        _cases("mxfp4", *WIDE),
        except_for=("subnormal",),
        undefined="An exponent below -127 wraps around: a group of mxfp4 whose largest magnitude is 1e-42 has the "
        "scale 2**107; here it is 2**-127. NaN or an infinity in a group of mxfp4 and mxfp8: scale 2, or with bfloat16 "
        "2**-127, and codes 0 or of 448; of nvfp4: scale 448, codes 0.",
    ),
    System("mlx-float", ("mlx",), mlx_float, _cases("mxfp8_e4m3", *WIDE), except_for=("subnormal", "subnormal scale")),
    System(
        "mlx-float",
        ("mlx",),
        mlx_float,
        _cases("nvfp4", *WIDE),
        except_for=TOO_LARGE,
        undefined="A number of nvfp4 more than 2**24 times the scale, which ends at 448, has code 0; here it "
        "saturates. With a global_scale of 2688 / 2**k codes and scales are those of x * 2**k, and values 2**-k times "
        "those; other ones give quotients that are rounded otherwise: of 4,194,304 codes one differed from those of "
        "x * (2688 / global_scale).",
    ),
    *(System("mlx-float", ("mlx",), mlx_float, _cases(dtype, *HALF), except_for=TOO_LARGE) for dtype in MODES),
)
