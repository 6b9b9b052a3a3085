"""Numbers of blocks of GGUF with few codes and with 4 bit float codes, in plain NumPy: one row for each block."""

from __future__ import annotations

import numpy as np

from fastq.formats.gguf import Float4Format, TernaryFormat
from fastq.reference.gguf_fields import F, Numbers, float_steps, half_bits
from fastq.system.dtypes import Array


def quantize_binary(x: Array) -> Numbers:
    """Return the numbers of blocks of signs; magnitudes are added one after the other."""
    # contract 20.7
    total = np.add.accumulate(np.abs(x), axis=1, dtype=F)[:, -1]
    return {"d": half_bits(total / F(x.shape[1])), "codes": (x >= 0).astype(np.int64)}


def quantize_ternary(x: Array, form: TernaryFormat) -> Numbers:
    """Return the numbers of blocks of ternary codes."""
    # contract 20.7
    d = np.abs(x).max(axis=1)
    inverse = np.where(d == 0, F(0), F(1) / d)
    position = x * np.where(np.isinf(inverse), F(0), inverse)[:, None]
    codes = (np.abs(position) >= 0.5) * np.sign(position).astype(np.int64) + 1
    return {"d": half_bits(d), "codes": np.where(np.isinf(inverse)[:, None], form.of_tiny, codes)}


def quantize_float4(x: Array, form: Float4Format) -> Numbers:
    """Return the numbers of blocks whose codes are floats of 4 bits: MXFP4 and NVFP4."""
    # contract 20.7 and 20.8
    parts = x.reshape(len(x), -1, form.sub)
    largest = np.abs(parts).max(axis=2)
    scales = _exponents(largest) if form.scale == "e8m0" else _e4m3(largest / F(6))
    codes = nearest_floats(parts, float_steps(scales, form)[:, :, None])
    return {"d": scales, "codes": codes.reshape(len(x), -1)}


def nearest_floats(x: Array, step: Array) -> Array:
    """Codes of the nearest numbers: for ties the one nearer to 0; with a step of 0 all are ties."""
    code = (step > 0) * sum((np.abs(x) > F(limit) * step).astype(np.uint8) for limit in (0.5, 1.5, 2.5, 3.5, 5, 7, 10))
    return np.asarray(code | ((x < 0) & (code > 0)).astype(np.uint8) << 3)


def _exponents(largest: Array) -> Array:
    """Scales as exponents: the floor of log2 rounded to float32; a byte, even if it is negative."""
    whole = np.floor(np.log2(largest.astype(np.float64)).astype(F))
    return np.where(largest > 0, (whole - 2 + 127), 0).astype(np.int64) & 0xFF


def _e4m3(x: Array) -> Array:
    """Scales as floats of 4 and 3 bits, halves rounded up; 448 for all from 248 on, subnormal ones up to 7."""
    x = np.minimum(x, F(448))
    word = x.view(np.int32)
    exponent = (word >> 23) - 127 + 7
    normal = (exponent << 3 | word >> 20 & 7) + (word >> 19 & 1)
    normal = np.where(normal >= 0x78, 0x7E, normal)
    subnormal = np.minimum((x * F(512) + F(0.5)).astype(np.int32), 7)
    return np.where(exponent > 0, normal, subnormal).astype(np.int64)
