"""Numbers of blocks of GGUF, of K-quants and of codebooks, in plain NumPy: one row for each block."""

from __future__ import annotations

import numpy as np

from fastq.formats.gguf import WEIGHTED_CANDIDATES, CodebookFormat, SuperFormat
from fastq.reference.gguf_fields import F, Numbers, half_bits, pack, unpack
from fastq.reference.gguf_search import (
    TINY,
    fit_codebook,
    fit_positive,
    fit_range,
    fit_signed,
    fit_signed_in_turn,
    nearest,
    nearest_of_codebook,
    total,
)
from fastq.system.dtypes import Array


def half(x: Array) -> Array:
    """Return what is left of a parameter when it is stored as float16."""
    return x.astype(np.float16).astype(F)


def sub_blocks(x: Array, size: int) -> list[Array]:
    """Values of each sub-block, as the searches take them."""
    return [np.ascontiguousarray(part.T) for part in np.split(x, x.shape[1] // size, axis=1)]


def importance(x: Array, imatrix: Array, spread: float) -> Array:
    """Weights of the values: that of the column times the root of the value's square plus that of the block."""
    mean = F(spread) * total(np.ascontiguousarray((x * x).T)) / F(x.shape[1])
    weights: Array = imatrix * np.sqrt(mean[:, None] + x * x)
    return weights


# --- K-quants ---------------------------------------------------------------------------------------------------------


def quantize_super(x: Array, imatrix: Array | None, form: SuperFormat) -> Numbers:
    """Return the numbers of blocks of a K-quant."""
    if form.has_minimum:
        return _with_minimum(x, imatrix, form)
    return _signed(x, imatrix, form)


def _with_minimum(x: Array, imatrix: Array | None, form: SuperFormat) -> Numbers:
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
    numbers = {"d": half_bits(d), "min": half_bits(dmin), "scales": scale_codes.T, "mins": minimum_codes.T}
    stored = unpack(pack(numbers, form), form)  # of codes beyond the largest one bits fall into others
    codes = []
    for part, fit, scale, minimum in zip(parts, fits, stored["scales"].T, stored["mins"].T, strict=True):
        step, least = half(d) * scale.astype(F), half(dmin) * minimum.astype(F)
        code = np.clip(nearest((part + least) / step), 0, form.steps)
        codes.append(np.where(step == 0, fit[2], code))
    return numbers | {"codes": np.concatenate(codes).T}


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


def _signed(x: Array, imatrix: Array | None, form: SuperFormat) -> Numbers:
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
    numbers = {"d": half_bits(d), "scales": scale_codes.T + form.scale_zero, "codes": np.concatenate(codes).T}
    if three_bits:
        return numbers
    zero = np.nanmax(np.abs(scales), axis=0, initial=0) < TINY
    return {of: np.where(zero[:, None], 0, each) for of, each in numbers.items()}


def first_largest_scale(scales: Array) -> Array:
    """First scale of the largest magnitude, 0.0 of none: NaN is passed over."""
    largest, size = np.zeros((2, *scales.shape[1:]), F)
    for row in scales:
        larger = np.abs(row) > size
        largest, size = np.where(larger, row, largest), np.where(larger, np.abs(row), size)
    first: Array = largest
    return first


def _shared_signed(scales: Array, form: SuperFormat) -> tuple[Array, Array]:
    """Float16 unit of scales, the first of the largest magnitude over the steps, and their codes."""
    largest = first_largest_scale(scales)
    inverse = F(-form.scale_steps) / largest
    codes = nearest(inverse * scales)
    if form.bits == 3:
        codes = np.maximum((codes + 128) % 256 - 128, -form.scale_steps)  # a byte before it is bounded
    codes = np.minimum(codes, form.scale_steps - 1)
    none = largest == 0
    return np.where(none, F(0), F(1) / inverse), np.where(none, -form.scale_steps, codes)


# --- codebooks --------------------------------------------------------------------------------------------------------


def quantize_codebook(x: Array, imatrix: Array | None, form: CodebookFormat) -> Numbers:
    """Return the numbers of blocks."""
    parts = sub_blocks(x, form.sub)
    weights = sub_blocks(x * x if imatrix is None else importance(x, imatrix, 2), form.sub)
    steps = np.stack([fit_codebook(part, w) for part, w in zip(parts, weights, strict=True)])
    numbers = {"d": half_bits(steps[0])}
    if len(parts) > 1:
        d, scales = _shared_codebook(steps)
        steps = d * scales.astype(F)
        numbers = {"d": half_bits(d), "scales": scales.T + form.scale_zero}
    inverses = np.where(steps == 0, F(0), F(1) / steps)
    codes = [nearest_of_codebook(inverse * part).T for inverse, part in zip(inverses, parts, strict=True)]
    return numbers | {"codes": np.concatenate(codes, axis=1)}


def _shared_codebook(scales: Array) -> tuple[Array, Array]:
    """Return the unit of scales, and their codes -32..31."""
    largest = first_largest_scale(scales)
    d = -largest / F(32)
    inverse = np.where(d == 0, F(0), F(1) / d)
    return d, np.clip(nearest(inverse * scales), -32, 31)
