"""HQQ, whose quantizer multiplies by the inverse of the scale that it keeps."""

from oracle import Case, Quantized, System

FORMATS = ("uint8", "uint6", "uint5", "uint4", "uint3", "uint2", "uint1")


def quantized_by_hqq(tensor, dtype, group):
    """Return codes, one for each element, and what belongs to them, without the search for better zero points."""
    from hqq.core.quantize import Quantizer

    bits = int(dtype.removeprefix("uint"))
    return Quantizer.quantize(
        tensor, nbits=bits, group_size=group, axis=1, optimize=False, round_zero=False, bitpack=False, device="cpu"
    )


def hqq(x, case):
    """Quantizer.quantize and dequantize."""
    import torch
    from hqq.core.quantize import Quantizer

    codes, meta = quantized_by_hqq(torch.from_numpy(x), case.dtype, case.block_size or x.shape[1])
    values = Quantizer.dequantize(codes, meta | {"compute_dtype": torch.float32})
    shape = (x.shape[0], -1) if case.block_size else x.shape[:1]
    scale, zero = (meta[name].numpy().reshape(shape) for name in ("scale", "zero"))
    return Quantized(codes.numpy().reshape(x.shape), scale, zero, values.numpy())


SYSTEMS = (
    System(
        "hqq",
        ("hqq", "torch"),
        hqq,
        (
            *(Case(dtype, False, "block", 64) for dtype in FORMATS),
            *(Case(dtype, False, "block", 128) for dtype in FORMATS[:-1]),
            *(Case(dtype, False, "channel") for dtype in FORMATS[:-1]),
        ),
        undefined="A range wider than float32 has the scale infinity. NaN in a group makes its scale NaN. By default "
        "it goes on to change the zero points (optimize), and it may round them (round_zero).",
    ),
)
