"""Weights of bfloat16 and float16 under the conventions of torchao: scales, zero points, codes and values."""

import ml_dtypes
import numpy as np
import pytest
from torch_tensors import as_tensor, bytes_of

import fastq

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torchao", reason="torchao is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of torchao itself

VALUES = 1 << 20
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def weights(dtype):
    """Rows of many magnitudes; zeros, constants, subnormal numbers and numbers on ties among them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((VALUES // 1024, 1024)) * 10.0 ** rng.uniform(-3, 2, (VALUES // 1024, 1))
    x[:4] = [[0], [3.7], [-2.5], [1e-6]]
    x[4] *= 1e-7
    x[5] *= 1e-40
    x[6] = rng.integers(-4, 5, 1024) / 2
    return x.astype(np.float32).astype(DTYPES[dtype])


def by_affine_functions(tensor, name, symmetric, block_size):
    from torchao.quantization import quant_primitives as ao

    block = (1, block_size or tensor.shape[1])
    mapping = ao.MappingType.SYMMETRIC if symmetric else ao.MappingType.ASYMMETRIC
    ends = {"int8": (-128, 127), "int4": (-8, 7)}[name]
    scale, zero = ao.choose_qparams_affine(tensor, mapping, block, torch.int8, *ends, zero_point_dtype=torch.int32)
    codes = ao.quantize_affine(tensor, block, scale, zero, torch.int8, *ends)
    values = ao.dequantize_affine(codes, block, scale, zero, torch.int8, *ends, output_dtype=tensor.dtype)
    return scale, zero, codes, values


def by_intx(tensor, name, symmetric, block_size):
    from systems.torch_libraries import weights_as_torchao
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup
    from torchao.quantization.quant_primitives import MappingType

    config = IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, name),
        granularity=PerGroup(block_size) if block_size else PerAxis(0),
        mapping_type=MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC,
    )
    made = weights_as_torchao(tensor, config)
    return made.scale, made.zero_point, made.qdata, made.dequantize()


def by_int8(tensor, name, symmetric, block_size):
    from systems.torch_libraries import weights_as_torchao
    from torchao.quantization import Int8WeightOnlyConfig

    made = weights_as_torchao(tensor, Int8WeightOnlyConfig())
    return made.scale, torch.zeros_like(made.scale), made.qdata, made.dequantize()


def by_float8(tensor, name, symmetric, block_size):
    from systems.torch_libraries import weights_as_torchao
    from torchao.quantization import Float8WeightOnlyConfig

    made = weights_as_torchao(tensor, Float8WeightOnlyConfig(weight_dtype=getattr(torch, name)))
    return made.scale, torch.zeros_like(made.scale), made.qdata.view(torch.uint8), made.dequantize()


SYSTEMS = {
    "torchao": by_affine_functions,
    "torchao-intx": by_intx,
    "torchao-int8": by_int8,
    "torchao-float8": by_float8,
}
CASES = [
    (convention, name, symmetric, block_size)
    for convention in ("torchao", "torchao-intx")
    for name in ("int8", "int4")
    for symmetric in (False, True)
    for block_size in (0, 32)
]
CASES += [("torchao-int8", "int8", True, 0)]
CASES += [("torchao-float8", name, True, 0) for name in ("float8_e4m3fn", "float8_e5m2")]


def differing(convention, dtype, name, symmetric, block_size, system=None):
    """How many scales, zero points, codes and values differ."""
    x = weights(dtype)
    parts = {"axis": -1, "block_size": block_size} if block_size else {"axis": 0}
    q = fastq.quantize(x, name, symmetric=symmetric, convention=convention, **parts)
    scale, zero_point, codes, values = SYSTEMS[system or convention](as_tensor(x), name, symmetric, block_size)
    codes = codes.numpy()
    scales = scale.float().numpy().reshape(-1)
    ours = q.unpacked().view(codes.dtype)
    decoded = q.dequantize(dtype=x.dtype)
    theirs = values.contiguous().view(torch.int16).numpy().view(x.dtype)
    if convention == "torchao-float8":  # where a scale rounds to 0, there is nothing to be equal to
        usable = scales > 0
        assert np.count_nonzero(usable) > 0.9 * scales.size
        ours, codes, decoded, theirs = (each[usable] for each in (ours, codes, decoded, theirs))
    else:
        usable = slice(None)
    return (
        np.count_nonzero(q.scale.reshape(-1)[usable] != scales[usable]),
        np.count_nonzero(q.zero_point.reshape(-1) != zero_point.numpy().reshape(-1)),
        np.count_nonzero(ours != codes),
        np.count_nonzero(bytes_of(decoded) != bytes_of(theirs)),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("convention", "name", "symmetric", "block_size"), CASES)
def test_nothing_differs(dtype, convention, name, symmetric, block_size):
    assert not any(differing(convention, dtype, name, symmetric, block_size))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_of_float32_are_seen_to_differ(dtype):
    scales = differing("torch", dtype, "int8", True, 0, system="torchao-int8")[0]
    assert scales > 0.9 * VALUES // 1024
