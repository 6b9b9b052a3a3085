"""Numbers of sixteen blocks of GGUF side by side: lane k of every Vec is of block k."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.formats.gguf import CodebookFormat, FloatFormat, SuperFormat, TernaryFormat
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


@traced
def quantize_group(spec, group, numbers):
    """Write the numbers of sixteen blocks."""
    row = spec.row
    if isinstance(row, TernaryFormat):
        ternary(spec, group, numbers)
    elif isinstance(row, FloatFormat):
        floats(spec, group, numbers)
    elif isinstance(row, CodebookFormat):
        _codebook(spec, group, numbers)
    elif isinstance(row, SuperFormat):
        (ranged_super if row.has_minimum else signed_super)(spec, group, numbers)
    else:
        (_ranged if row.has_minimum else _signed)(spec, group, numbers)


# --- one sub-block ----------------------------------------------------------------------------------------------------


@njit
def _ranged(spec, group, numbers):
    w, room = v.scratch(PART, types.float32), v.scratch(PART, types.float32)
    weigh(spec, group, 0, 32, spread(spec, group), w)
    fit = range_of(spec, group.x, w, room)
    for i in range(0, PART, LANES):
        v.store(numbers.codes, i, v.convert(range_code(fit, v.load(group.x, i, F32), spec.steps), types.uint8))
    v.store(numbers.d, 0, half(spec, fit.scale))
    v.store(numbers.min, 0, half(spec, -fit.negated_minimum))


@njit
def _signed(spec, group, numbers):
    w, room = v.scratch(PART, types.float32), v.scratch(PART, types.float32)
    weigh(spec, group, 0, 32, spread(spec, group), w)
    fit = fit_signed(group.x, w, room, 32, -spec.steps)
    for i in range(0, PART, LANES):
        v.store(numbers.codes, i, v.convert(signed_code(fit, v.load(group.x, i, F32), -spec.steps), types.uint8))
    v.store(numbers.d, 0, half(spec, fit.scale))


# --- codebooks --------------------------------------------------------------------------------------------------------


@njit
def _codebook(spec, group, numbers):
    w, scales = v.scratch(PART, types.float32), v.scratch(SUBS, types.float32)
    mean = spread(spec, group)
    for j in range(spec.size // 32):
        weigh(spec, group, j * 32, 32, mean, w)
        v.store(scales, j * LANES, fit_codebook(v.advance(group.x, j * 32 * LANES), w, 32))
    v.store(numbers.d, 0, half(spec, codebook_inverses(spec, scales, numbers)))
    for j in range(spec.size // 32):
        inverse = v.load(scales, j * LANES, F32)
        for i in range(j * PART, (j + 1) * PART, LANES):
            index = v.bounded_to_integer(codebook_index(inverse * v.load(group.x, i, F32)), types.int32)
            v.store(numbers.codes, i, v.convert(index, types.uint8))


@traced
def codebook_inverses(spec, scales, numbers):
    """Return the scale to be stored, and write the codes of those of sub-blocks, and their inverses in their place."""
    if spec.size > 32:
        return _inverses_of_eight(spec, scales, numbers)
    scale = v.load(scales, 0, F32)
    v.store(scales, 0, inverse_of(scale))
    return scale


@njit
def _inverses_of_eight(spec, scales, numbers):
    zero = v.full(0.0, F32)
    largest, _ = first_largest(scales, 8)
    d = -largest / v.constant(32, zero)
    inverse = inverse_of(d)
    for j in range(8):
        code = nearest(inverse * v.load(scales, j * LANES, F32))
        code = v.minimum(v.maximum(code, v.constant(-32, code)), v.constant(31, code))
        v.store(scales, j * LANES, inverse_of(d * v.convert(code, types.float32)))
        store_scale(spec, numbers.scales, j, code)
    return d


@traced
def inverse_of(scale):
    """Inverse of a scale, 0.0 of zero."""
    zero = v.full(0.0, F32)
    return v.select(scale == zero, zero, v.constant(1, zero) / scale)
