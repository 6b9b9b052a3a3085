"""torchao and compressed-tensors, which quantize with operations of PyTorch on float tensors."""

from oracle import Case, Quantized, System, grid
from torch_tensors import as_tensor

import fastq

FORMATS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}


def torchao(x, case):
    """choose_qparams_affine, quantize_affine and dequantize_affine."""
    import torch
    from torchao.quantization import quant_primitives as ao

    ends, dtype = FORMATS[case.dtype], torch.int8 if case.dtype.startswith("int") else torch.uint8
    block = {"array": x.shape, "channel": (1, x.shape[1]), "block": (1, case.block_size)}[case.per]
    mapping = ao.MappingType.SYMMETRIC if case.symmetric else ao.MappingType.ASYMMETRIC
    tensor = torch.from_numpy(x)
    scale, zero_point = ao.choose_qparams_affine(tensor, mapping, block, dtype, *ends, zero_point_dtype=torch.int32)
    q = ao.quantize_affine(tensor, block, scale, zero_point, dtype, *ends)
    values = ao.dequantize_affine(q, block, scale, zero_point, dtype, *ends)
    shape = {"array": (), "channel": x.shape[:1], "block": (x.shape[0], -1)}[case.per]
    return Quantized(q.numpy(), scale.numpy().reshape(shape), zero_point.numpy().reshape(shape), values.numpy())


def weights_as_torchao(tensor, config):
    """The weights of a linear layer as `quantize_` of torchao stores them."""
    import torch
    from torchao.quantization import quantize_

    layer = torch.nn.Linear(tensor.shape[1], tensor.shape[0], bias=False, dtype=tensor.dtype)
    layer.weight = torch.nn.Parameter(tensor.clone(), requires_grad=False)
    quantize_(layer, config)
    return layer.weight


def torchao_int8(x, case):
    """Int8WeightOnlyConfig, whose zero points are not stored: they are 0."""
    import torch
    from torchao.quantization import Int8WeightOnlyConfig

    made = weights_as_torchao(torch.from_numpy(x), Int8WeightOnlyConfig())
    return Quantized(made.qdata.numpy(), made.scale.numpy()[:, 0], values=made.dequantize().numpy())


def torchao_intx(x, case):
    """IntxWeightOnlyConfig."""
    import torch
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup
    from torchao.quantization.quant_primitives import MappingType

    config = IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, case.dtype),
        granularity=PerGroup(case.block_size) if case.block_size else PerAxis(0),
        mapping_type=MappingType.SYMMETRIC if case.symmetric else MappingType.ASYMMETRIC,
    )
    made = weights_as_torchao(torch.from_numpy(x), config)
    shape = (x.shape[0], -1) if case.block_size else x.shape[:1]
    scale, zero_point = (each.numpy().reshape(shape) for each in (made.scale, made.zero_point))
    return Quantized(made.qdata.numpy(), scale, zero_point, made.dequantize().numpy())


def torchao_float8(x, case):
    """Float8WeightOnlyConfig; codes as their bytes."""
    import torch
    from torchao.quantization import Float8WeightOnlyConfig

    config = Float8WeightOnlyConfig(weight_dtype=getattr(torch, case.dtype))
    made = weights_as_torchao(torch.from_numpy(x), config)
    return Quantized(made.qdata.float().numpy(), made.scale.numpy()[:, 0], values=made.dequantize().numpy())


ELEMENTS = {"mxfp4": "float4_e2m1fn_x2", "mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2"}
MX = (*ELEMENTS, "mxfp6_e2m3", "mxfp6_e3m2")


def torchao_mx(x, case):
    """to_mx in a mode of ScaleCalculationMode, and the values of an MXTensor; codes and scales as bytes."""
    import torch
    from torchao.prototype.mx_formats import constants
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

    name = ELEMENTS.get(case.dtype)
    element = getattr(torch, name) if name else getattr(constants, f"DTYPE_F{case.dtype.removeprefix('mxf').upper()}")
    scale, data = to_mx(as_tensor(x), element, 32, ScaleCalculationMode[case.option])
    values = to_dtype(data, scale, element, 32, torch.float32).reshape(x.shape)
    codes = data.view(torch.uint8).numpy()
    codes = fastq.unpack(codes, "uint4", shape=x.shape) if case.dtype == "mxfp4" else codes
    return Quantized(codes.reshape(x.shape), scale.view(torch.uint8).numpy(), values=values.numpy())


def torchao_nvfp4(x, case):
    """nvfp4_quantize with the scale of per_tensor_amax_to_scale, and without one."""
    import torch
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    tensor = as_tensor(x)
    array = per_tensor_amax_to_scale(tensor.abs().max()) if case.option == "array" else None
    made = NVFP4Tensor.to_nvfp4(tensor, per_tensor_scale=array)
    codes = fastq.unpack(made.qdata.view(torch.uint8).numpy(), "uint4", shape=x.shape)
    scale = made.scale.view(torch.uint8).numpy().reshape(len(x), -1)
    return Quantized(codes, scale, values=made.dequantize(torch.float32).numpy())


def compressed_tensors_mx(x, case):
    """calculate_qparams, and what the compressor of the format stores; values as its dequantize has them."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    bits = int(case.dtype[4])
    name = {4: "mxfp4-pack-quantized", 6: "mxfp6-pack-quantized", 8: "mxfp8-quantized"}[bits]
    options = {"num_bits": bits, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
    args = QuantizationArgs(type="float", symmetric=True, dynamic=False, **options)
    tensor = as_tensor(x)
    groups = tensor.unflatten(-1, (-1, 32))
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    layer = {"weight": tensor, "weight_scale": scale, "weight_zero_point": zero_point}
    stored = BaseCompressor.get_value_from_registry(name).compress(layer, scheme)
    codes = stored["weight" if bits == 8 else "weight_packed"].view(torch.uint8).numpy()
    codes = codes if bits == 8 else fastq.unpack(codes, f"uint{bits}", shape=x.shape)
    return Quantized(codes, stored["weight_scale"].numpy())


def compressed_tensors(x, case):
    """calculate_qparams, quantize and dequantize."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    strategy = {"array": "tensor", "channel": "channel", "block": "group"}[case.per]
    args = QuantizationArgs(
        num_bits=int(case.dtype.removeprefix("int")),
        symmetric=case.symmetric,
        strategy=strategy,
        group_size=case.block_size or None,
    )
    tensor = torch.from_numpy(x)
    groups = tensor.unflatten(-1, (-1, case.block_size)) if case.block_size else tensor
    ends = (tensor.min(), tensor.max()) if case.per == "array" else (groups.amin(-1), groups.amax(-1))
    ends = tuple(end[:, None] for end in ends) if case.per == "channel" else ends
    scale, zero_point = calculate_qparams(*ends, args)
    q = quantize(tensor, scale, zero_point, args, dtype=torch.int8)
    values = dequantize(q, scale, zero_point, args)
    shape = {"array": (), "channel": x.shape[:1], "block": scale.shape}[case.per]
    return Quantized(q.numpy(), scale.numpy().reshape(shape), zero_point.numpy().reshape(shape), values.numpy())


# ranges whose scales have the exponent -127
LEAST_EXPONENTS = ("subnormal", "subnormal scale")
OF_LEAST_EXPONENT = "torchao 0.18 computes codes for the exponent -127 as for -126."


def _mx(mode, *values):
    return tuple(
        Case(dtype, True, "block", 32, option=mode, values=name)
        for dtype in MX
        for name in values or ("float32", "bfloat16")
    )


SYSTEMS = (
    System(
        "torchao",
        ("torchao", "torch"),
        torchao,
        grid(FORMATS),
        neighbour="torch",
        undefined="NaN in the data makes the scale NaN and the zero point -2147483648; an infinity or a range wider "
        "than float32 makes the scale inf and values NaN or inf. Weights of torchao.quantize_ have a row of their own.",
    ),
    System(
        "torchao-int8",
        ("torchao", "torch"),
        torchao_int8,
        (Case("int8", True, "channel"),),
        undefined="NaN in a row makes its scale NaN, an infinity or a range wider than float32 makes it inf.",
    ),
    System(
        "torchao-intx",
        ("torchao", "torch"),
        torchao_intx,
        grid(
            ("int8", "int7", "int6", "int5", "int4", "int2"), per=("channel", "block")
        ),  # of int2 fewer values are on ties
        neighbour="torch",
        undefined="As under torchao. Its mapping SYMMETRIC_NO_CLIPPING_ERR, with a divisor of its own for either sign, "
        "is no row.",
    ),
    System(
        "torchao-float8",
        ("torchao", "torch"),
        torchao_float8,
        (Case("float8_e4m3fn", True, "channel"), Case("float8_e5m2", True, "channel")),
        neighbour="",
        except_for=("zeros", "subnormal"),
        undefined="A scale that rounds to 0, as that of a row of zeros, makes NaN of codes and values; here it is 1, "
        "or the smallest number of the dtype of the weights.",
    ),
    System(
        "onnx",
        ("torchao", "torch"),
        torchao_mx,
        _mx("FLOOR"),
        neighbour="torchao-ceil",
        except_for=LEAST_EXPONENTS,
        undefined=OF_LEAST_EXPONENT,
    ),
    System(
        "onnx",
        ("torchao", "torch"),
        torchao_nvfp4,
        tuple(Case("nvfp4", True, "block", 16, option="array", values=name) for name in ("float32", "bfloat16")),
        neighbour="torchao-nvfp4",
        except_for=("zeros", *LEAST_EXPONENTS),
        undefined="The scale of an array of zeros is 0 in torchao, whose block scales are then NaN; here it is 1, and "
        "that of others at least 2**-120.",
    ),
    System(
        "torchao-ceil",
        ("torchao", "torch"),
        torchao_mx,
        _mx("CEIL"),
        except_for=LEAST_EXPONENTS,
        undefined=OF_LEAST_EXPONENT,
    ),
    System(
        "torchao-even",
        ("torchao", "torch"),
        torchao_mx,
        _mx("EVEN"),
        except_for=LEAST_EXPONENTS,
        undefined=f"{OF_LEAST_EXPONENT} A largest magnitude that is rounded up to 2**128 gives a scale of NaN.",
    ),
    System(
        "torchao-rceil",
        ("torchao", "torch"),
        torchao_mx,
        _mx("RCEIL", "bfloat16"),
        except_for=LEAST_EXPONENTS,
        undefined=f"{OF_LEAST_EXPONENT} With float32 the logarithm of a quotient up to 22 numbers above a power of two "
        "is rounded to that of the power, whose exponent the scale then has; no largest magnitude of bfloat16 has such "
        "a quotient. Of 131,072 random blocks of mxfp4 no scale differed, of as many within 40 numbers of such a "
        "border 5,242.",
    ),
    System(
        "torchao-nvfp4",
        ("torchao", "torch"),
        torchao_nvfp4,
        tuple(Case("nvfp4", True, "block", 16, values=name) for name in ("float32", "bfloat16")),
    ),
    System(
        "compressed-tensors",
        ("compressed-tensors", "torch"),
        compressed_tensors,
        grid(("int8", "int4")),
        neighbour="torch",
        undefined="NaN in the data makes the scale NaN, an infinity or a range wider than float32 makes it inf; "
        "values are NaN. The zero point of an all zero range is a NaN converted to an integer: 0 on x86. Its "
        "fake_quantize keeps codes as floats: what rounds to 0 from below is -0.0, where the value of "
        "its code, and fastq's, is 0.0.",
    ),
    System(
        "compressed-tensors",
        ("compressed-tensors", "torch"),
        compressed_tensors_mx,
        tuple(
            Case(dtype, True, "block", 32, values=name)
            for dtype in ("mxfp4", "mxfp8_e4m3", "mxfp6_e2m3")
            for name in ("float32", "bfloat16")
        ),
        undefined="Scales of MX formats are computed in the dtype of the weights: below 2**-24 that of float16 is 1.",
    ),
)
