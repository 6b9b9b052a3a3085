"""Super-blocks of GGUF, of K-quants and of codebooks, in plain NumPy: one row for each block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.gguf import CODEBOOK, WEIGHTED_CANDIDATES, CodebookFormat, SuperFormat
from fastq.reference.gguf_search import (
    TINY,
    F,
    fit_codebook,
    fit_positive,
    fit_range,
    fit_signed,
    fit_signed_in_turn,
    nearest,
    nearest_of_codebook,
    total,
)

Array = NDArray[Any]


def half(x: Array) -> Array:
    """Return what is left of a parameter when it is stored as float16."""
    return x.astype(np.float16).astype(F)


def stored(x: Array) -> Array:
    """Bytes of float16 parameters, one row each."""
    return x.astype("<f2")[:, None].view(np.uint8)


def is_finite(*parameters: Array) -> Array:
    """Whether all of the parameters of each block are finite in float16."""
    finite: Array = np.logical_and.reduce([np.isfinite(half(each)) for each in parameters])
    return finite


def sub_blocks(x: Array, size: int) -> list[Array]:
    """Values of each sub-block, as the searches take them."""
    return [np.ascontiguousarray(part.T) for part in np.split(x, x.shape[1] // size, axis=1)]


def importance(x: Array, imatrix: Array, spread: float) -> Array:
    """Weights of the values: that of the column times the root of the value's square plus that of the block."""
    mean = F(spread) * total(np.ascontiguousarray((x * x).T)) / F(x.shape[1])
    weights: Array = imatrix * np.sqrt(mean[:, None] + x * x)
    return weights


# --- K-quants ---------------------------------------------------------------------------------------------------------


def quantize_super(x: Array, imatrix: Array | None, form: SuperFormat) -> tuple[Array, Array]:
    """Return the bytes of blocks, and which of them have finite parameters."""
    if form.has_minimum:
        return _with_minimum(x, imatrix, form)
    return _signed(x, imatrix, form)


def _with_minimum(x: Array, imatrix: Array | None, form: SuperFormat) -> tuple[Array, Array]:
    parts = sub_blocks(x, form.sub)
    two_bits = form.bits == 2
    if imatrix is None:
        weights = [np.abs(part) if two_bits else _flat_weights(part) for part in parts]
        candidates = form.candidates
    else:
        weights = sub_blocks(importance(x, imatrix, 1 if two_bits else 2), form.sub)
        candidates = WEIGHTED_CANDIDATES
    assert candidates is not None
    absolute = two_bits and imatrix is None
    fits = [fit_range(part, w, form.steps, candidates, absolute) for part, w in zip(parts, weights, strict=True)]
    scales, minima = np.stack([fit[0] for fit in fits]), np.stack([fit[1] for fit in fits])
    if imatrix is None:
        (d, scale_codes), (dmin, minimum_codes) = (_shared(each, form) for each in (scales, minima))
    else:
        sums = np.stack([total(w) for w in weights])
        (d, scale_codes), (dmin, minimum_codes) = (
            fit_positive(each, sums, form.scale_steps) for each in (scales, minima)
        )
        if form.bits == 5:
            scale_codes, minimum_codes = (np.minimum(each, form.scale_steps) for each in (scale_codes, minimum_codes))
    parameters = _joined(scale_codes, minimum_codes, two_bits)
    scale_codes, minimum_codes = _parted(parameters, two_bits)
    codes = []
    for j, (part, fit) in enumerate(zip(parts, fits, strict=True)):
        step, least = half(d) * scale_codes[j].astype(F), half(dmin) * minimum_codes[j].astype(F)
        code = np.clip(nearest((part + least) / step), 0, form.steps)
        codes.append(np.where(step == 0, fit[2], code))
    packed = _packed(np.concatenate(codes).astype(np.uint8).T, form)
    heads = [stored(d), stored(dmin)]
    bytes_ = [parameters, packed, *heads] if two_bits else [*heads, parameters, packed]
    return np.concatenate(bytes_, axis=1), is_finite(d, dmin)


def _flat_weights(part: Array) -> Array:
    """Weights of a sub-block of which no importance is known."""
    weights: Array = np.sqrt(total(part * part) / F(len(part))) + np.abs(part)
    return weights


def _shared(parameters: Array, form: SuperFormat) -> tuple[Array, Array]:
    """Float16 unit of scales or smallest values, the largest over the steps, and their codes, which are bytes."""
    largest = np.zeros(parameters.shape[1:], F)
    for row in parameters:
        largest = np.where(row > largest, row, largest)
    inverse = np.where(largest > 0, F(form.scale_steps) / largest, F(0))
    codes = nearest(inverse * parameters) & 0xFF
    if form.bits > 2:
        codes = np.minimum(codes, form.scale_steps)
    return largest / F(form.scale_steps), codes


def _joined(scales: Array, minima: Array, two_bits: bool) -> Array:
    """Bytes of the codes of scales and smallest values, one row for each block."""
    s, m = scales.T.astype(np.uint8), minima.T.astype(np.uint8)
    if two_bits:
        return s | m << 4
    low = [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6]
    return np.concatenate([*low, (s[:, 4:] & 15) | m[:, 4:] << 4], axis=1)


def _parted(parameters: Array, two_bits: bool) -> tuple[Array, Array]:
    """Codes of scales and smallest values from their bytes, one column for each block."""
    if two_bits:
        return (parameters & 15).T, (parameters >> 4).T
    s, m, rest = parameters[:, :4], parameters[:, 4:8], parameters[:, 8:]
    scales = np.concatenate([s & 63, rest & 15 | s >> 6 << 4], axis=1)
    minima = np.concatenate([m & 63, rest >> 4 | m >> 6 << 4], axis=1)
    return scales.T, minima.T


def _signed(x: Array, imatrix: Array | None, form: SuperFormat) -> tuple[Array, Array]:
    parts = sub_blocks(x, form.sub)
    three_bits = form.bits == 3
    if three_bits and imatrix is None:
        fits = [fit_signed_in_turn(part, form.steps) for part in parts]
    else:
        if imatrix is None:
            weights = [part * part for part in parts]
        else:
            weights = sub_blocks(importance(x, imatrix, 2) if three_bits else imatrix, form.sub)
        fits = [fit_signed(part, w, form.steps) for part, w in zip(parts, weights, strict=True)]
    scales = np.stack([fit[0] for fit in fits])
    if three_bits and imatrix is not None:
        d, scale_codes = fit_signed(scales, np.stack([total(w) for w in weights]), form.scale_steps)
        scale_codes = scale_codes - form.scale_steps
    else:
        d, scale_codes = _shared_signed(scales, form)
    codes = []
    for part, fit, scale in zip(parts, fits, scale_codes, strict=True):
        step = half(d) * scale.astype(F)
        code = np.clip(nearest(part / step), -form.steps, form.steps - 1) + form.steps
        codes.append(np.where(step == 0, fit[1], code))
    packed = _packed(np.concatenate(codes).astype(np.uint8).T, form)
    if three_bits:
        return np.concatenate([packed, _six_bits(scale_codes + form.scale_steps), stored(d)], axis=1), is_finite(d)
    blocks = np.concatenate([packed, scale_codes.T.astype(np.int8).view(np.uint8), stored(d)], axis=1)
    blocks[np.nanmax(np.abs(scales), axis=0, initial=0) < TINY] = 0
    return blocks, is_finite(d)


def _shared_signed(scales: Array, form: SuperFormat) -> tuple[Array, Array]:
    """Float16 unit of scales, the first of the largest magnitude over the steps, and their codes."""
    largest, size = np.zeros((2, *scales.shape[1:]), F)
    for row in scales:
        larger = np.abs(row) > size
        largest, size = np.where(larger, row, largest), np.where(larger, np.abs(row), size)
    inverse = F(-form.scale_steps) / largest
    codes = nearest(inverse * scales)
    if form.bits == 3:
        codes = np.maximum((codes + 128) % 256 - 128, -form.scale_steps)  # a byte before it is bounded
    codes = np.minimum(codes, form.scale_steps - 1)
    none = largest == 0
    return np.where(none, F(0), F(1) / inverse), np.where(none, -form.scale_steps, codes)


def _six_bits(codes: Array) -> Array:
    """Bytes of sixteen codes of 6 bits: the low halves of two in a byte, then the high parts of four."""
    c = codes.T.astype(np.uint8)
    low = c[:, :8] & 15 | (c[:, 8:] & 15) << 4
    high = c.reshape(-1, 4, 4) >> 4
    return np.concatenate([low, high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6], axis=1)


def _packed(codes: Array, form: SuperFormat) -> Array:
    """Bytes of the codes of each block."""
    if form.bits in (4, 5):
        pairs = codes.reshape(-1, 4, 2, 32)
        nibbles = (pairs[:, :, 0] & 15 | (pairs[:, :, 1] & 15) << 4).reshape(-1, 128)
        return nibbles if form.bits == 4 else np.concatenate([_columns(codes >> 4, 1, 8), nibbles], axis=1)
    if form.bits == 3:
        return np.concatenate([_columns(codes >> 2, 1, 8), _halves(codes & 3, 2, 4)], axis=1)
    if form.bits == 2:
        return _halves(codes, 2, 4)
    low = codes.reshape(-1, 2, 4, 32) & 15
    nibbles = np.stack([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    return np.concatenate([nibbles.reshape(-1, 128), _halves(codes >> 4, 2, 4)], axis=1)


def _columns(codes: Array, bits: int, count: int) -> Array:
    """Bytes of which byte j has the codes j, j + 32, ... of so many, the first in the lowest bits."""
    parts = codes.reshape(-1, count, 32)
    packed: Array = np.bitwise_or.reduce([parts[:, k] << bits * k for k in range(count)])
    return packed


def _halves(codes: Array, bits: int, count: int) -> Array:
    """Bytes of both halves of a block, each as `_columns`."""
    return _columns(codes.reshape(-1, 128), bits, count).reshape(len(codes), -1)


def super_values(rows: Array, form: SuperFormat) -> Array:
    """Values of blocks of a K-quant."""
    codes, parameters, scale, least = _unpacked(rows, form)
    d = np.ascontiguousarray(scale).view("<f2").astype(F)
    if not form.has_minimum:
        signed = _signed_scales(parameters, form)
        steps = np.repeat(d * signed.astype(F), form.sub, axis=1)
        values: Array = steps * (codes.astype(np.int64) - form.steps).astype(F)
        return values
    scales, minima = _parted(parameters, form.bits == 2)
    dmin = np.ascontiguousarray(least).view("<f2").astype(F)
    steps, lows = (np.repeat(each, form.sub, axis=1) for each in (d * scales.T.astype(F), dmin * minima.T.astype(F)))
    steps = np.where(np.isnan(lows), F(0), steps)
    ranged: Array = steps * codes.astype(F) - lows
    return ranged


def _signed_scales(parameters: Array, form: SuperFormat) -> Array:
    if form.bits == 6:
        return np.ascontiguousarray(parameters).view(np.int8).astype(np.int64)
    low = np.concatenate([parameters[:, :8] & 15, parameters[:, :8] >> 4], axis=1).astype(np.int64)
    high = np.concatenate([parameters[:, 8:] >> 2 * k & 3 for k in range(4)], axis=1)
    return (low | high.astype(np.int64) << 4) - 32


def _unpacked(rows: Array, form: SuperFormat) -> tuple[Array, Array, Array, Array]:
    """Codes, bytes of the parameters of sub-blocks, of the scale and of the unit of smallest values."""
    if form.bits == 2:
        return _from_halves(rows[:, 16:80], 2, 4), rows[:, :16], rows[:, 80:82], rows[:, 82:84]
    if form.bits == 3:
        codes = _from_halves(rows[:, 32:96], 2, 4) | _from_columns(rows[:, :32], 1, 8) << 2
        return codes, rows[:, 96:108], rows[:, 108:110], rows[:, :0]
    if form.bits == 6:
        both = rows[:, :128].reshape(-1, 2, 2, 32)
        low = np.stack([both & 15, both >> 4], axis=2).reshape(len(rows), -1)
        return low | _from_halves(rows[:, 128:192], 2, 4) << 4, rows[:, 192:208], rows[:, 208:], rows[:, :0]
    pairs = rows[:, -128:].reshape(-1, 4, 32)
    codes = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(rows), -1)
    if form.bits == 5:
        codes = codes | _from_columns(rows[:, 16:48], 1, 8) << 4
    return codes, rows[:, 4:16], rows[:, :2], rows[:, 2:4]


def _from_columns(packed: Array, bits: int, count: int) -> Array:
    """Codes of which `_columns` gives the bytes."""
    return np.concatenate([packed >> bits * k & (2**bits - 1) for k in range(count)], axis=1)


def _from_halves(packed: Array, bits: int, count: int) -> Array:
    """Codes of which `_halves` gives the bytes."""
    return _from_columns(packed.reshape(-1, 32), bits, count).reshape(len(packed), -1)


# --- codebooks --------------------------------------------------------------------------------------------------------


def quantize_codebook(x: Array, imatrix: Array | None, form: CodebookFormat) -> tuple[Array, Array]:
    """Return the bytes of blocks, and which of them have finite parameters."""
    parts = sub_blocks(x, 32)
    weights = sub_blocks(x * x if imatrix is None else importance(x, imatrix, 2), 32)
    scales = np.stack([fit_codebook(part, w) for part, w in zip(parts, weights, strict=True)])
    if len(parts) == 1:
        d = scales[0]
        inverses, heads = np.where(scales == 0, F(0), F(1) / scales), [stored(d)]
    else:
        d, codes = _shared_codebook(scales)
        steps = d * codes.astype(F)
        inverses = np.where(steps == 0, F(0), F(1) / steps)
        c = (codes.T + 32).astype(np.uint8)
        high = (c >> 4).reshape(-1, 2, 4)
        highs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
        heads = [stored(d), highs, c[:, 0::2] & 15 | (c[:, 1::2] & 15) << 4]
    indices = [
        nearest_of_codebook(inverse * part).T.astype(np.uint8) for inverse, part in zip(inverses, parts, strict=True)
    ]
    return np.concatenate([*heads, *(index[:, :16] | index[:, 16:] << 4 for index in indices)], axis=1), is_finite(d)


def _shared_codebook(scales: Array) -> tuple[Array, Array]:
    """Return the unit of scales, and their codes -32..31."""
    largest, size = np.zeros((2, *scales.shape[1:]), F)
    for row in scales:
        larger = np.abs(row) > size
        largest, size = np.where(larger, row, largest), np.where(larger, np.abs(row), size)
    d = -largest / F(32)
    inverse = np.where(d == 0, F(0), F(1) / d)
    return d, np.clip(nearest(inverse * scales), -32, 31)


def codebook_values(rows: Array, form: CodebookFormat) -> Array:
    """Values of blocks of codes of a codebook."""
    d = rows[:, :2].copy().view("<f2").astype(F)
    if form.size > 32:
        low = np.stack([rows[:, 4:8] & 15, rows[:, 4:8] >> 4], axis=2).reshape(-1, 8).astype(np.int64)
        high = np.stack([rows[:, 2:4] >> 2 * k & 3 for k in range(4)], axis=2).reshape(-1, 8).astype(np.int64)
        d = d * ((low | high << 4) - 32).astype(F)
    nibbles = rows[:, -form.size // 2 :].reshape(-1, form.size // 32, 16)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)
    values: Array = d[:, :, None] * np.array(CODEBOOK, F)[codes]
    return values.reshape(len(rows), -1)
