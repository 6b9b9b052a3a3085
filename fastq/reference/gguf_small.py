"""Blocks of GGUF of ternary and of 4 bit floating-point codes, in plain NumPy: one row for each block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.gguf import DOUBLED, FloatFormat, TernaryFormat
from fastq.reference.gguf_search import F
from fastq.reference.gguf_super import is_finite, stored

Array = NDArray[Any]


# --- ternary ----------------------------------------------------------------------------------------------------------


def quantize_ternary(x: Array, form: TernaryFormat) -> tuple[Array, Array]:
    """Return the bytes of blocks, and which of them have finite parameters."""
    d = np.abs(x).max(axis=1)
    inverse = np.where(d == 0, F(0), F(1) / d)
    position = x * np.where(np.isinf(inverse), F(0), inverse)[:, None]
    codes = (np.abs(position) >= 0.5) * np.sign(position).astype(np.int64) + 1
    if form.trits == 4:
        quarters = codes.reshape(-1, 2, 4, 32)
        packed = (quarters << np.array([0, 2, 4, 6])[:, None]).sum(axis=2).reshape(len(x), -1)
    else:
        groups = [
            codes[:, :160].reshape(-1, 5, 32),
            codes[:, 160:240].reshape(-1, 5, 16),
            codes[:, 240:].reshape(-1, 4, 4),
        ]
        powers = np.array([81, 27, 9, 3, 1])
        whole = [(group * powers[: group.shape[1], None]).sum(axis=1) for group in groups]
        packed = -(np.concatenate(whole, axis=1) * -256 // 243)  # rounded up
    return np.concatenate([packed.astype(np.uint8), stored(d)], axis=1), is_finite(d)


def ternary_values(rows: Array, form: TernaryFormat) -> Array:
    """Values of blocks of ternary codes."""
    d = rows[:, -2:].copy().view("<f2").astype(F)
    if form.trits == 4:
        quarters = rows[:, :-2].reshape(-1, 2, 32)
        codes = np.stack([quarters >> 2 * k & 3 for k in range(4)], axis=2).reshape(len(rows), -1)
    else:
        groups = [(rows[:, :32], 5), (rows[:, 32:48], 5), (rows[:, 48:52], 4)]
        trits = [(group.astype(np.int64) * 3**k % 256 * 3) >> 8 for group, count in groups for k in range(count)]
        codes = np.concatenate(trits, axis=1)
    values: Array = (codes.astype(np.int64) - 1).astype(F) * d
    return values


# --- floating point ---------------------------------------------------------------------------------------------------


def quantize_float(x: Array, form: FloatFormat) -> tuple[Array, Array]:
    """Return the bytes of blocks, all of which have finite parameters."""
    parts = x.reshape(len(x), -1, form.sub)
    largest = np.abs(parts).max(axis=2)
    scales = _exponents(largest) if form.scale == "e8m0" else _e4m3(largest / F(6))
    step = _steps(scales, form)[:, :, None]
    # of two numbers as near, the one nearer to 0; a scale of 0 makes all as near
    code = (step > 0) * sum(
        (np.abs(parts) > F(limit) * step).astype(np.uint8) for limit in (0.5, 1.5, 2.5, 3.5, 5, 7, 10)
    )
    codes = code | ((parts < 0) & (code > 0)).astype(np.uint8) << 3
    packed = codes[:, :, : form.sub // 2] | codes[:, :, form.sub // 2 :] << 4
    return np.concatenate([scales, packed.reshape(len(x), -1)], axis=1), np.ones(len(x), bool)


def _exponents(largest: Array) -> Array:
    """Scales as exponents: of log2, which is rounded to float32, the floor; a byte, also where that is negative."""
    whole = np.floor(np.log2(largest.astype(np.float64)).astype(F))
    return np.where(largest > 0, (whole - 2 + 127), 0).astype(np.int64).astype(np.uint8)


def _e4m3(x: Array) -> Array:
    """Scales as floats of 4 and 3 bits, halves rounded up; 448 for all from 248 on, subnormal ones up to 7."""
    x = np.minimum(x, F(448))
    word = x.view(np.int32)
    exponent = (word >> 23) - 127 + 7
    normal = (exponent << 3 | word >> 20 & 7) + (word >> 19 & 1)
    normal = np.where(normal >= 0x78, 0x7E, normal)
    subnormal = np.minimum((x * F(512) + F(0.5)).astype(np.int32), 7)
    codes: Array = np.where(exponent > 0, normal, subnormal).astype(np.uint8)
    return codes


def _steps(scales: Array, form: FloatFormat) -> Array:
    """Half of what scales stand for: codes are looked up doubled."""
    if form.scale == "e8m0":
        exponent = scales.astype(np.int64)
        steps: Array = np.ldexp(F(1), np.minimum(exponent, 255) - 128).astype(F)
        return steps
    exponent, mantissa = scales.astype(np.int64) >> 3 & 15, (scales & 7).astype(F)
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / F(8), exponent - 7)).astype(F)
    return np.where((scales == 0) | (scales == 0x7F), F(0), value * F(0.5))


def float_values(rows: Array, form: FloatFormat) -> Array:
    """Values of blocks of floating-point codes."""
    count = form.size // form.sub
    nibbles = rows[:, count:].reshape(len(rows), count, -1)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)
    values: Array = np.array(DOUBLED, F)[codes] * _steps(rows[:, :count], form)[:, :, None]
    return values.reshape(len(rows), -1)
