"""Numbers of sixteen blocks of GGUF side by side: lane k of every Vec is of block k."""

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
from fastq.kernels.ggml.k_quants import ranged_super, signed_super, store_scale
from fastq.kernels.ggml.search import (
    F32,
    LANES,
    PART,
    SUBS,
    codebook_index,
    first_largest,
    fit_codebook,
    fit_signed,
    nearest,
    range_code,
    signed_code,
)
from fastq.kernels.ggml.spec import half
from fastq.kernels.ggml.ternary_and_float import floats, ternary
from fastq.kernels.ggml.weights import range_of, spread, weigh


@specialize
def quantize_group(spec, group, numbers):
    """Write the numbers of sixteen blocks."""
    loops: dict[type, Any] = {
        ScaledFormat: _scaled,
        SuperFormat: ranged_super if getattr(spec.row, "has_minimum", False) else signed_super,
        CodebookFormat: _codebook,
        TernaryFormat: ternary,
        FloatFormat: floats,
    }
    by_format = loops[type(spec.row)]
    return lambda spec, group, numbers: by_format(spec, group, numbers)


# --- one sub-block ----------------------------------------------------------------------------------------------------


@specialize
def _scaled(spec, group, numbers):
    steps = spec.row.steps

    def ranged(spec, group, numbers):
        w, room = scratch(PART, types.float32), scratch(PART, types.float32)
        weigh(spec, group, 0, 32, spread(spec, group), w)
        fit = range_of(spec, group.x, w, room)
        for i in range(0, PART, LANES):
            store(numbers.codes, i, convert(range_code(fit, load(group.x, i, F32), steps), types.uint8))
        store(numbers.d, 0, half(spec, fit.scale))
        store(numbers.min, 0, half(spec, -fit.negated_minimum))

    def signed(spec, group, numbers):
        w, room = scratch(PART, types.float32), scratch(PART, types.float32)
        weigh(spec, group, 0, 32, spread(spec, group), w)
        fit = fit_signed(group.x, w, room, 32, -steps)
        for i in range(0, PART, LANES):
            store(numbers.codes, i, convert(signed_code(fit, load(group.x, i, F32), -steps), types.uint8))
        store(numbers.d, 0, half(spec, fit.scale))

    return ranged if spec.row.has_minimum else signed


# --- codebooks --------------------------------------------------------------------------------------------------------


@specialize
def _codebook(spec, group, numbers):
    subs = spec.row.size // 32

    def codebook(spec, group, numbers):
        w, scales = scratch(PART, types.float32), scratch(SUBS, types.float32)
        mean = spread(spec, group)
        for j in range(subs):
            weigh(spec, group, j * 32, 32, mean, w)
            store(scales, j * LANES, fit_codebook(advance(group.x, j * 32 * LANES), w, 32))
        store(numbers.d, 0, half(spec, codebook_inverses(spec, scales, numbers)))
        for j in range(subs):
            inverse = load(scales, j * LANES, F32)
            for i in range(j * PART, (j + 1) * PART, LANES):
                index = bounded_to_integer(codebook_index(inverse * load(group.x, i, F32)), types.int32)
                store(numbers.codes, i, convert(index, types.uint8))

    return codebook


@specialize
def codebook_inverses(spec, scales, numbers):
    """Return the scale to be stored, and write the codes of those of sub-blocks, and their inverses in their place."""

    def of_one(spec, scales, numbers):
        scale = load(scales, 0, F32)
        store(scales, 0, inverse_of(scale))
        return scale

    def of_eight(spec, scales, numbers):
        zero = full(0.0, F32)
        largest, _ = first_largest(scales, 8)
        d = -largest / constant(32, zero)
        inverse = inverse_of(d)
        for j in range(8):
            code = nearest(inverse * load(scales, j * LANES, F32))
            code = minimum(maximum(code, constant(-32, code)), constant(31, code))
            store(scales, j * LANES, inverse_of(d * convert(code, types.float32)))
            store_scale(spec, numbers.scales, j, code)
        return d

    return of_one if spec.row.size == 32 else of_eight


@njit
def inverse_of(scale):
    """Inverse of a scale, 0.0 of zero."""
    zero = full(0.0, F32)
    return select(scale == zero, zero, constant(1, zero) / scale)
