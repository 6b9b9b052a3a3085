"""Numbers of blocks of GGUF, of K-quants and of codebooks, in plain NumPy: one row for each block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastq.formats.gguf import WEIGHTED_CANDIDATES, CodebookFormat, SuperFormat
from fastq.reference import gguf_search as search
from fastq.reference.gguf_fields import Numbers, half_bits, pack, unpack
from fastq.reference.gguf_search import TINY, F, nearest, total
from fastq.system.dtypes import Array


def half(x: Array) -> Array:
    """Return a parameter rounded to its stored float16."""
    return x.astype(np.float16).astype(F)


def sub_blocks(x: Array, size: int) -> list[Array]:
    """Values of each sub-block, in the order of the searches."""
    return [np.ascontiguousarray(part.T) for part in np.split(x, x.shape[1] // size, axis=1)]


def mean_square(x: Array) -> Array:
    """Return the mean square of each row, its sum taken in order."""
    return np.asarray(total(np.ascontiguousarray((x * x).T)) / F(x.shape[1]))


def weights_of(x: Array, importance: Array, spread: float) -> Array:
    """Weights of the values: that of the column times the root of the value's square plus the block's mean square."""
    # contract 20.4 and 20.5
    # in ggml's order, which tiny sums of squares tell from `mean_square` times the spread
    mean = F(spread) * total(np.ascontiguousarray((x * x).T)) / F(x.shape[1])
    return np.asarray(importance * np.sqrt(mean[:, None] + x * x))


def _codes(parts: list[Array], step: Array, least: Array, fitted: Sequence[Array], low: int, high: int) -> Array:
    """Return the codes of sub-blocks from `low` on, by the stored steps; where a step is 0, those of the search."""
    codes = np.clip(nearest((np.stack(parts) + least[:, None]) / step[:, None]), low, high) - low
    return np.where(step[:, None] == 0, np.stack(fitted), codes).reshape(-1, step.shape[1]).T


# --- K-quants ---------------------------------------------------------------------------------------------------------


def quantize_super(x: Array, importance: Array | None, form: SuperFormat) -> Numbers:
    """Return the numbers of blocks of a K-quant."""
    # contract 20.1, 20.2 and 20.3
    return (_with_minimum if form.has_minimum else _blocks_of_signed_codes)(x, importance, form)


def _with_minimum(x: Array, importance: Array | None, form: SuperFormat) -> Numbers:
    """Return the numbers of blocks whose sub-blocks have a smallest value, of Q2_K, Q4_K and Q5_K.

    Without importance, Q2_K weighs values by their magnitude and fits absolute errors, the others by magnitude plus the
    root mean square. With it, Q5_K alone bounds the codes of scales; those of Q2_K and Q4_K may reach beyond.
    """
    parts = sub_blocks(x, form.sub)
    two_bits = form.bits == 2
    if importance is None:
        weights = [np.abs(part) if two_bits else _flat_weights(part) for part in parts]
    else:
        weights = sub_blocks(weights_of(x, importance, 1 if two_bits else 2), form.sub)
    candidates = form.candidates if importance is None else WEIGHTED_CANDIDATES
    assert candidates is not None
    pairs = zip(parts, weights, strict=True)
    absolute = two_bits and importance is None
    fits = [search.fit_range(part, w, form.steps, candidates, absolute) for part, w in pairs]
    scales, minima, fitted = zip(*fits, strict=True)
    both = np.stack(scales), np.stack(minima)
    if importance is None:
        (d, scale_codes), (dmin, minimum_codes) = (_unit_and_codes(each, form) for each in both)
    else:
        sums = np.stack([total(w) for w in weights])
        steps = form.scale_steps
        (d, scale_codes), (dmin, minimum_codes) = (search.fit_positive(each, sums, steps) for each in both)
        if form.bits == 5:
            scale_codes, minimum_codes = (np.minimum(each, steps) for each in (scale_codes, minimum_codes))
    numbers = {"d": half_bits(d), "min": half_bits(dmin), "scales": scale_codes.T, "mins": minimum_codes.T}
    stored = unpack(pack(numbers, form), form)  # bits of codes beyond the largest one are in other codes
    step = half(d) * stored["scales"].T.astype(F)
    least = half(dmin) * stored["mins"].T.astype(F)
    return numbers | {"codes": _codes(parts, step, least, fitted, 0, form.steps)}


def _flat_weights(part: Array) -> Array:
    """Weights of a sub-block of which no importance is known."""
    return np.asarray(np.sqrt(total(part * part) / F(len(part))) + np.abs(part))


def _unit_and_codes(parameters: Array, form: SuperFormat) -> tuple[Array, Array]:
    """Float16 unit of scales or smallest values, the largest over the steps, and their codes, which are bytes."""
    largest = np.zeros(parameters.shape[1:], F)
    for row in parameters:
        largest = np.where(row > largest, row, largest)
    inverse = np.where(largest > 0, F(form.scale_steps) / largest, F(0))
    codes = nearest(inverse * parameters) & 0xFF
    return largest / F(form.scale_steps), codes if form.bits == 2 else np.minimum(codes, form.scale_steps)


def _blocks_of_signed_codes(x: Array, importance: Array | None, form: SuperFormat) -> Numbers:
    """Return the numbers of blocks whose sub-blocks have a scale alone, of Q3_K and Q6_K.

    Without importance Q3_K changes one code after the other, Q6_K weighs values by their squares. With it, Q3_K fits
    the codes of scales too, and Q6_K weighs by importance alone. A block of zeros of Q6_K has only zeros as numbers.
    """
    parts = sub_blocks(x, form.sub)
    three_bits = form.bits == 3
    steps = form.steps
    if three_bits and importance is None:
        fits = [search.fit_signed_in_turn(part, steps) for part in parts]
    else:
        w = x * x if importance is None else weights_of(x, importance, 2) if three_bits else importance
        weights = sub_blocks(w, form.sub)
        fits = [search.fit_signed(part, w, steps) for part, w in zip(parts, weights, strict=True)]
    scales = np.stack([scale for scale, _ in fits])
    fitted = [codes for _, codes in fits]
    if three_bits and importance is not None:
        d, scale_codes = search.fit_signed(scales, np.stack([total(w) for w in weights]), form.scale_steps)
        scale_codes = scale_codes - form.scale_steps
    else:
        d, scale_codes = _signed_unit_and_codes(scales, form)
    step = half(d) * scale_codes.astype(F)
    codes = _codes(parts, step, np.zeros_like(step), fitted, -steps, steps - 1)
    numbers = {"d": half_bits(d), "scales": scale_codes.T + form.scale_zero, "codes": codes}
    if three_bits:
        return numbers
    zero = np.nanmax(np.abs(scales), axis=0, initial=0) < TINY
    return {of: np.where(zero[:, None], 0, each) for of, each in numbers.items()}


def first_largest_scale(scales: Array) -> Array:
    """First scale of the largest magnitude, 0.0 of none: NaN is passed over."""
    largest, size = np.zeros((2, *scales.shape[1:]), F)
    for row in scales:
        largest, size = search.choose(np.abs(row) > size, (row, np.abs(row)), (largest, size))
    return np.asarray(largest)


def _signed_unit_and_codes(scales: Array, form: SuperFormat) -> tuple[Array, Array]:
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


def quantize_codebook(x: Array, importance: Array | None, form: CodebookFormat) -> Numbers:
    """Return the numbers of blocks of a codebook: of one sub-block, or of eight with codes for scales."""
    # contract 20.1
    parts = sub_blocks(x, form.sub)
    weights = sub_blocks(x * x if importance is None else weights_of(x, importance, 2), form.sub)
    steps = np.stack([search.fit_codebook(part, w) for part, w in zip(parts, weights, strict=True)])
    numbers = {"d": half_bits(steps[0])}
    if len(parts) > 1:
        d, scales = _codebook_unit_and_codes(steps)
        steps = d * scales.astype(F)
        numbers = {"d": half_bits(d), "scales": scales.T + form.scale_zero}
    inverses = np.where(steps == 0, F(0), F(1) / steps)
    codes = [search.nearest_of_codebook(inverse * part).T for inverse, part in zip(inverses, parts, strict=True)]
    return numbers | {"codes": np.concatenate(codes, axis=1)}


def _codebook_unit_and_codes(scales: Array) -> tuple[Array, Array]:
    """Return the unit of scales, and their codes -32..31."""
    largest = first_largest_scale(scales)
    d = -largest / F(32)
    inverse = np.where(d == 0, F(0), F(1) / d)
    return d, np.clip(nearest(inverse * scales), -32, 31)
