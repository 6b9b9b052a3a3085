"""Codes, scales and values of codebook formats are those of bitsandbytes on the CPU, nested scales too."""

import dataclasses

import numpy as np
import pytest

import fastq
from fastq.formats.codebooks import CODEBOOKS

torch = pytest.importorskip("torch", reason="not installed: torch; codebooks are not compared with bitsandbytes")
functional = pytest.importorskip(
    "bitsandbytes.functional", reason="not installed: bitsandbytes; codebooks are not compared with it"
)

VALUES = 10_000_000
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
FORMATS = ("nf4", "fp4")


def hard_values(name, count, seed):
    """Blocks of 4096: a normal distribution, wide exponents, values at and next to thresholds, zeros, one value."""
    rng, row = np.random.default_rng(seed), CODEBOOKS[name]
    x = rng.standard_normal((count // 4096 + 1, 4096)).astype(np.float32)
    x[1::5] *= np.float32(2) ** rng.integers(-40, 41, (len(x[1::5]), 4096)).astype(np.float32)
    near = np.array(row.thresholds, np.float32)[rng.integers(0, len(row.thresholds), x[2::5].shape)]
    steps = rng.integers(-2, 3, near.shape)
    near = (near.view(np.int32) + np.where(near == 0, 0, steps).astype(np.int32)).view(np.float32)
    near[:, ::32] = 1
    x[2::5] = near * np.float32(2) ** rng.integers(-20, 21, (len(near), 1)).astype(np.float32)
    x[2::10] *= rng.uniform(1, 2, (len(x[2::10]), 1)).astype(np.float32)  # quotients and products then differ
    x[3::5] = x[3::5] * rng.choice([0, 0, 1], x[3::5].shape).astype(np.float32)
    x[4::5, :2048] = 0
    return x


def codes_of(packed, shape):
    """Codes one in a byte of bitsandbytes' bytes, the first in the high half."""
    both = packed.numpy().reshape(-1)
    return np.stack([both >> 4, both & 15], axis=-1).reshape(shape)


def by_bitsandbytes(x, name, block_size):
    packed, state = functional.quantize_4bit(torch.from_numpy(x), blocksize=block_size, quant_type=name)
    values = functional.dequantize_4bit(packed, state)
    return codes_of(packed, x.shape), state.absmax.numpy(), values.numpy()


def differing(name, block_size, count, changed=0):
    """Numbers of codes, scales and values that differ; with `changed` one threshold is passed over."""
    x = hard_values(name, count, block_size) + np.float32(changed)
    q = fastq.quantize(x, name, axis=-1, block_size=block_size)
    codes, scales, values = by_bitsandbytes(x - np.float32(changed), name, block_size)
    different = codes != q.unpacked(), scales != q.scale.reshape(-1), values != q.dequantize()
    return tuple(map(np.count_nonzero, different))


@pytest.mark.parametrize("name", FORMATS)
def test_no_code_differs(name):
    # contract 10.2, 10.4 and 10.6
    found = {size: differing(name, size, VALUES // len(BLOCK_SIZES)) for size in BLOCK_SIZES}
    assert not any(map(any, found.values())), found


@pytest.mark.parametrize("name", FORMATS)
def test_other_values_are_seen_to_differ(name):
    assert all(differing(name, 64, 100_000, changed=0.01))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(name, dtype):
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((300, 4096)).astype(np.float32))
    half = x.to(getattr(torch, dtype))
    packed, state = functional.quantize_4bit(half, blocksize=64, quant_type=name)
    q = fastq.quantize(half.float().numpy(), name, axis=-1, block_size=64)
    assert np.array_equal(codes_of(packed, q.shape), q.unpacked())
    expected = functional.dequantize_4bit(packed, state).float().numpy()
    assert np.array_equal(torch.from_numpy(q.dequantize()).to(half.dtype).float().numpy(), expected)


def test_dynamic_map():
    assert np.array_equal(functional.create_dynamic_map().numpy(), np.array(CODEBOOKS["dynamic8"].values, np.float32))


@pytest.mark.parametrize("block_size", [64, 256, 4096])
def test_dynamic_codes(block_size):
    # contract 10.3
    x = hard_values("dynamic8", VALUES // 3, 5)
    x[~x.any(axis=1)] = 1
    x[4::5, :2048] = np.random.default_rng(9).standard_normal((len(x[4::5]), 2048)).astype(np.float32)
    x[3::5, ::64] = 3  # of a block of zeros its codes are 0, a number that a scale of 0 takes to 0 as well
    codes, state = functional.quantize_blockwise(torch.from_numpy(x), blocksize=block_size)
    q = fastq.quantize(x, "dynamic8", axis=-1, block_size=block_size)
    assert np.array_equal(codes.numpy(), q.codes)
    assert np.array_equal(state.absmax.numpy(), q.scale.reshape(-1))
    assert np.array_equal(functional.dequantize_blockwise(codes, state).numpy(), q.dequantize())


@pytest.mark.parametrize("name", FORMATS)
def test_double_quantization(name):
    # contract 10.7
    x = hard_values(name, 3_000_000, 7)
    x[1::5] = x[0]
    x[2::5] = x[0] * 2
    packed, state = functional.quantize_4bit(torch.from_numpy(x), quant_type=name, compress_statistics=True)
    q = fastq.quantize(x, name, axis=-1, block_size=64)
    offset = float(state.offset)
    nested = fastq.nest_scale(q.scale, offset=offset)
    assert np.array_equal(nested.quantized.codes, state.absmax.numpy())
    assert np.array_equal(nested.quantized.scale, state.state2.absmax.numpy())
    params = dataclasses.replace(q.qparams, scale=nested.dequantize())
    values = fastq.QuantizedArray(q.codes, params, q.shape).dequantize()
    assert np.array_equal(values, functional.dequantize_4bit(packed, state).numpy())
    assert fastq.nest_scale(q.scale).offset == pytest.approx(offset, rel=1e-6)
