"""Parameters and codes of sixteen blocks of GGUF side by side, as rows of bytes: lane k of every Vec is of block k."""

from __future__ import annotations

from typing import Any

from numba import types

from fastq.engine.jit import njit, specialize
from fastq.engine.simd import (
    advance,
    bounded_to_integer,
    constant,
    convert,
    full,
    load,
    maximum,
    minimum,
    scratch,
    select,
    store,
)
from fastq.formats.gguf import CodebookFormat, FloatFormat, ScaledFormat, SuperFormat, TernaryFormat
from fastq.kernels.ggml.fields import neighbours, nibbles, store_half
from fastq.kernels.ggml.k_quants import ranged_super, signed_super
from fastq.kernels.ggml.search import (
    F32,
    LANES,
    PART,
    SUBS,
    VALUES,
    codebook_index,
    first_largest,
    fit_codebook,
    fit_signed,
    nearest,
    range_code,
    signed_code,
)
from fastq.kernels.ggml.spec import half, is_special
from fastq.kernels.ggml.ternary_and_float import floats, ternary
from fastq.kernels.ggml.weights import range_of, spread, weigh


@specialize
def quantize_group(spec, group, rows):
    """Write the bytes of sixteen blocks; return the mask of those that have no finite parameters."""
    loops: dict[type, Any] = {
        ScaledFormat: _scaled,
        SuperFormat: ranged_super if getattr(spec.row, "has_minimum", False) else signed_super,
        CodebookFormat: _codebook,
        TernaryFormat: ternary,
        FloatFormat: floats,
    }
    by_format = loops[type(spec.row)]
    return lambda spec, group, rows: by_format(spec, group, rows)


# --- one sub-block ----------------------------------------------------------------------------------------------------


@specialize
def _scaled(spec, group, rows):
    row = spec.row
    steps, five_bits, head = row.steps, row.bits == 5, row.head

    def pack_scaled(codes, rows):
        if five_bits:
            neighbours(rows, head, codes, 4, 1, 8, 4)
        nibbles(rows, head + (4 if five_bits else 0), codes, 0, 16, 16)

    pack_codes = njit(pack_scaled)

    def ranged(spec, group, rows):
        w, room, codes = scratch(PART, types.float32), scratch(PART, types.float32), scratch(PART, types.uint8)
        weigh(spec, group, 0, 32, spread(spec, group), w)
        fit = range_of(spec, group.x, w, room)
        for i in range(0, PART, LANES):
            store(codes, i, convert(range_code(fit, load(group.x, i, F32), steps), types.uint8))
        d, least = half(spec, fit.scale), half(spec, -fit.negated_minimum)
        store_half(rows, 0, d)
        store_half(rows, 2, least)
        pack_codes(codes, rows)
        return is_special(spec, d) | is_special(spec, least)

    def signed(spec, group, rows):
        w, room, codes = scratch(PART, types.float32), scratch(PART, types.float32), scratch(PART, types.uint8)
        weigh(spec, group, 0, 32, spread(spec, group), w)
        fit = fit_signed(group.x, w, room, 32, -steps)
        for i in range(0, PART, LANES):
            store(codes, i, convert(signed_code(fit, load(group.x, i, F32), -steps), types.uint8))
        d = half(spec, fit.scale)
        store_half(rows, 0, d)
        pack_codes(codes, rows)
        return is_special(spec, d)

    return ranged if row.has_minimum else signed


# --- codebooks --------------------------------------------------------------------------------------------------------


@specialize
def _codebook(spec, group, rows):
    subs = spec.row.size // 32

    def codebook(spec, group, rows):
        w, scales, codes = scratch(PART, types.float32), scratch(SUBS, types.float32), scratch(VALUES, types.uint8)
        mean = spread(spec, group)
        for j in range(subs):
            weigh(spec, group, j * 32, 32, mean, w)
            store(scales, j * LANES, fit_codebook(advance(group.x, j * 32 * LANES), w, 32))
        d = half(spec, codebook_inverses(spec, scales, rows))
        store_half(rows, 0, d)
        for j in range(subs):
            inverse = load(scales, j * LANES, F32)
            for i in range(j * PART, (j + 1) * PART, LANES):
                index = bounded_to_integer(codebook_index(inverse * load(group.x, i, F32)), types.int32)
                store(codes, i, convert(index, types.uint8))
            nibbles(rows, (2 if subs == 1 else 8) + 16 * j, codes, 32 * j, 32 * j + 16, 16)
        return is_special(spec, d)

    return codebook


@specialize
def codebook_inverses(spec, scales, rows):
    """Return the scale to be stored, and write the inverses of those of sub-blocks in their place, and their codes."""

    def of_one(spec, scales, rows):
        scale = load(scales, 0, F32)
        store(scales, 0, inverse_of(scale))
        return scale

    def of_eight(spec, scales, rows):
        zero = full(0.0, F32)
        codes = scratch(SUBS, types.uint8)
        largest, _ = first_largest(scales, 8)
        d = -largest / constant(32, zero)
        inverse = inverse_of(d)
        for j in range(8):
            code = nearest(inverse * load(scales, j * LANES, F32))
            code = minimum(maximum(code, constant(-32, code)), constant(31, code))
            store(scales, j * LANES, inverse_of(d * convert(code, types.float32)))
            store(codes, j * LANES, convert(code + constant(32, code), types.uint8))
        neighbours(rows, 2, codes, 4, 2, 4, 2)
        neighbours(rows, 4, codes, 0, 4, 2, 4)
        return d

    return of_one if spec.row.size == 32 else of_eight


@njit
def inverse_of(scale):
    """Inverse of a scale, 0.0 of zero."""
    zero = full(0.0, F32)
    return select(scale == zero, zero, constant(1, zero) / scale)
