"""Numbers of K-quants of sixteen blocks of GGUF side by side: lane k of every Vec is of block k."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.gguf import SUPER
from fastq.kernels.ggml.fields import keep_stored
from fastq.kernels.ggml.scale_search import (
    F32,
    I32,
    LANES,
    PART,
    SUBS,
    TINY,
    U8,
    VALUES,
    RangeFit,
    SignedFit,
    code_of_signed_fit,
    first_largest,
    fit_positive,
    fit_range_by_format,
    fit_signed,
    fit_signed_in_turn,
    nearest,
    range_code,
    sum_of,
)
from fastq.kernels.ggml.spec import as_signed, from_half, half
from fastq.kernels.ggml.weights import mean_square_for_weights, weigh

_U16 = v.Vec(types.uint16, LANES)

# --- with a smallest value --------------------------------------------------------------------------------------------


@traced
def super_blocks_of_ranges(spec, group, numbers):
    """Write the numbers of super-blocks whose sub-blocks have a scale and a smallest value.

    Each sub-block is fitted, scales and minima are rounded to codes in units `d` and `dmin`, and the codes of values
    are written by these rounded parameters.
    """
    part = spec.sub * LANES
    subs = SUPER // spec.sub
    weights_of_part = floats(PART)
    room = floats(PART)
    scales, minima, sums, inverses, bases, flats = for_each_sub(6)
    mean = mean_square_for_weights(spec, group)
    for j in range(subs):
        weigh(spec, group, j * spec.sub, spec.sub, mean, weights_of_part)
        fit = fit_range_by_format(spec, v.advance(group.x, j * part), weights_of_part, room)
        v.store(scales, j * LANES, fit.scale)
        v.store(minima, j * LANES, fit.negated_minimum)
        v.store(inverses, j * LANES, fit.inverse)
        v.store(bases, j * LANES, fit.base)
        # masks have no memory of their own: kept as 1.0 and 0.0
        v.store(flats, j * LANES, v.select(fit.flat, v.full(1.0, F32), v.full(0.0, F32)))
        if spec.weighted:
            v.store(sums, j * LANES, sum_of(weights_of_part, spec.sub))
    d = half(spec, unit_and_codes(spec, scales, sums, numbers.scales))
    dmin = half(spec, unit_and_codes(spec, minima, sums, numbers.mins))
    v.store(numbers.d, 0, d)
    v.store(numbers.min, 0, dmin)
    keep_stored(spec, numbers)
    scale = from_half(spec, d)
    least = from_half(spec, dmin)
    for j in range(subs):
        step = scale * scale_at(spec, numbers.scales, j)
        shift = least * scale_at(spec, numbers.mins, j)
        flat = v.load(flats, j * LANES, F32) > v.full(0.0, F32)
        fit = RangeFit(
            scale=step,
            negated_minimum=shift,
            inverse=v.load(inverses, j * LANES, F32),
            base=v.load(bases, j * LANES, F32),
            flat=flat,
        )
        _store_ranged_codes(spec, group, numbers, fit, j * part, (j + 1) * part)


@traced
def floats(count):
    """Allocate float32 on the stack."""
    return v.scratch(count, types.float32)


@traced
def for_each_sub(count):
    """Allocate float32 for all sub-blocks, `count` times."""
    return tuple([v.scratch(SUBS, types.float32) for _ in range(count)])


@traced
def _store_ranged_codes(spec, group, numbers, fit, start, stop):
    """Write the codes of a sub-block by the stored parameters; if the stored scale is 0, by those of its fit."""
    no_step = fit.scale == v.full(0.0, F32)
    any_without_step = v.any_lane(no_step)
    for i in range(start, stop, LANES):
        value = v.load(group.x, i, F32)
        code = nearest((value + fit.negated_minimum) / fit.scale)
        code = v.minimum(v.maximum(code, v.constant(0, code)), v.constant(spec.steps, code))
        if any_without_step:
            code = v.select(no_step, range_code(fit, value, spec.steps), code)
        v.store(numbers.codes, i, v.convert(code, types.uint8))


@traced
def unit_and_codes(spec, parameters, sums, codes):
    """Return the float32 unit of parameters of sub-blocks, and write their codes, which are bytes."""
    return (_fit_positive if spec.weighted else _over_largest)(spec, parameters, sums, codes)


@traced
def _fit_positive(spec, parameters, sums, codes):
    """Return the unit that fits parameters best, weighted by the sums of weights, and write their codes."""
    count = SUPER // spec.sub
    room = floats(SUBS)
    unit = fit_positive(parameters, sums, room, count, spec.scale_steps)
    for j in range(0, count * LANES, LANES):
        code = v.bounded_to_integer(v.load(room, j, F32), types.int32)
        v.store(codes, j, v.convert(bound_if(spec.bits == 5, code, spec.scale_steps), types.uint8))
    return unit


@traced
def _over_largest(spec, parameters, sums, codes):
    """Return the unit by which the largest parameter has the last code, and write the codes."""
    count = SUPER // spec.sub
    zero = v.full(0.0, F32)
    largest = zero
    for j in range(0, count * LANES, LANES):
        largest = v.maximum(v.load(parameters, j, F32), largest)
    inverse = v.select(largest > zero, v.constant(spec.scale_steps, zero) / largest, zero)
    for j in range(0, count * LANES, LANES):
        code = nearest(inverse * v.load(parameters, j, F32))
        code = code & v.constant(0xFF, code)
        v.store(codes, j, v.convert(bound_if(spec.bits > 2, code, spec.scale_steps), types.uint8))
    return largest / v.constant(spec.scale_steps, largest)


@traced
def bound_if(bounds, code, steps):
    """Return codes, none above `steps` where they are bounded: in which formats ggml does so, depends on the search."""
    return v.select(bounds, v.minimum(code, v.constant(steps, code)), code)


# --- with signed codes ------------------------------------------------------------------------------------------------


@traced
def store_scale(spec, codes, j, code):
    """Store the code of a scale of sub-blocks as it is stored."""
    v.store(codes, j * LANES, v.convert(code + v.constant(spec.block_format.scale_zero, code), types.uint8))


@traced
def scale_at(spec, codes, j):
    """Load the code of a scale of sub-blocks as a float."""
    return as_signed(v.load(codes, j * LANES, U8), spec.block_format.scale_zero)


@traced
def super_blocks_of_signed_codes(spec, group, numbers):
    """Write the numbers of super-blocks whose sub-blocks have a signed scale alone: Q3_K and Q6_K.

    Each sub-block is fitted, scales are rounded to codes in units of `d`, and values get codes by these rounded scales;
    where one is 0, those of the fit remain.
    """
    w = floats(PART)
    room = floats(PART)
    scales, sums, inverses, zeros = for_each_sub(4)
    mean = mean_square_for_weights(spec, group)
    if spec.in_turn:
        for j in range(0, 16, 2):
            both = fit_signed_in_turn(v.advance(group.x, j * 16 * LANES), room, 16, spec.steps)
            v.store(scales, j * LANES, v.lower(both))
            v.store(scales, (j + 1) * LANES, v.upper(both))
            for i in range(0, PART, LANES):
                code = v.bounded_to_integer(v.load(room, i, F32), types.int32)
                v.store(numbers.codes, j * 16 * LANES + i, v.convert(code, types.uint8))
    else:
        for j in range(16):
            weigh(spec, group, j * 16, 16, mean, w)
            fit = fit_signed(v.advance(group.x, j * 16 * LANES), w, room, 16, spec.steps)
            v.store(scales, j * LANES, fit.scale)
            v.store(inverses, j * LANES, fit.inverse)
            v.store(zeros, j * LANES, v.select(fit.is_zero, v.full(1.0, F32), v.full(0.0, F32)))
            if spec.bits == 3:
                v.store(sums, j * LANES, sum_of(w, 16))
    unit, size = signed_unit_and_codes(spec, scales, sums, numbers.scales)
    d = half(spec, unit)
    v.store(numbers.d, 0, d)
    scale = from_half(spec, d)
    for j in range(16):
        is_zero = v.load(zeros, j * LANES, F32) > v.full(0.0, F32)
        fit = SignedFit(scale * scale_at(spec, numbers.scales, j), v.load(inverses, j * LANES, F32), is_zero)
        _store_signed_codes(spec, group, numbers, fit, j * 16 * LANES, (j + 1) * 16 * LANES)
    if spec.bits == 6:
        clear(numbers, size < v.constant(TINY, size))


@traced
def _store_signed_codes(spec, group, numbers, fit, start, stop):
    """Write the codes of a sub-block by the scale as it is stored, by that of its fit where it is 0."""
    steps = spec.steps
    no_step = fit.scale == v.full(0.0, F32)
    any_without_step = v.any_lane(no_step)
    for i in range(start, stop, LANES):
        value = v.load(group.x, i, F32)
        code = nearest(value / fit.scale)
        code = v.minimum(v.maximum(code, v.constant(-steps, code)), v.constant(steps - 1, code))
        code = code + v.constant(steps, code)
        if any_without_step:
            fitted = code_of_signed_fit(fit, value, steps)
            if spec.in_turn:
                fitted = v.convert(v.load(numbers.codes, i, U8), types.int32)
            code = v.select(no_step, fitted, code)
        v.store(numbers.codes, i, v.convert(code, types.uint8))


@traced
def clear(numbers, mask):
    """Write zeros to all numbers of blocks of Q6_K."""
    if v.any_lane(mask):
        v.store(numbers.d, 0, v.select(mask, v.full(0, _U16), v.load(numbers.d, 0, _U16)))
        for i in range(0, SUBS, LANES):
            v.store(numbers.scales, i, v.select(mask, v.full(0, U8), v.load(numbers.scales, i, U8)))
        for i in range(0, VALUES, LANES):
            v.store(numbers.codes, i, v.select(mask, v.full(0, U8), v.load(numbers.codes, i, U8)))


@traced
def signed_unit_and_codes(spec, scales, sums, codes):
    """Return the float32 unit of scales and the largest magnitude, and write their codes."""
    is_fitted = spec.block_format.bits == 3 and spec.weighted
    return (_fit_signed if is_fitted else _signed_unit_of_largest)(spec, scales, sums, codes)


@traced
def _fit_signed(spec, scales, sums, codes):
    """Return the unit that fits signed scales best, weighted by the sums of weights, and write their codes.

    The magnitude, which only Q6_K asks for, is 1.0: no block counts as zero.
    """
    fit = fit_signed(scales, sums, floats(SUBS), 16, spec.scale_steps)
    for j in range(0, SUBS, LANES):
        v.store(codes, j, v.convert(code_of_signed_fit(fit, v.load(scales, j, F32), spec.scale_steps), types.uint8))
    return fit.scale, v.full(1.0, F32)


@traced
def _signed_unit_of_largest(spec, scales, sums, codes):
    """Return the unit by which the scale of largest magnitude has code -steps, and that magnitude; write the codes."""
    steps = spec.scale_steps
    zero = v.full(0.0, F32)
    largest, size = first_largest(scales, 16)
    inverse = v.constant(-steps, zero) / largest
    none = largest == zero
    for j in range(16):
        code = as_byte_if(spec.bits == 3, nearest(inverse * v.load(scales, j * LANES, F32)), steps)
        code = v.minimum(code, v.constant(steps - 1, code))
        store_scale(spec, codes, j, v.select(none, v.full(-steps, I32), code))
    return v.select(none, zero, v.constant(1, zero) / inverse), size


@traced
def as_byte_if(is_byte, code, steps):
    """Return codes, those of a format that ggml keeps in an int8 wrapped to it, and then not below -steps."""
    byte = v.convert(v.convert(code, types.int8), types.int32)
    return v.select(is_byte, v.maximum(byte, v.constant(-steps, code)), code)
