"""Numbers of K-quants of sixteen blocks of GGUF side by side: lane k of every Vec is of block k."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.formats.gguf import SUPER
from fastq.kernels.ggml.fields import keep_stored
from fastq.kernels.ggml.search import (
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
    first_largest,
    fit_positive,
    fit_signed,
    fit_signed_in_turn,
    nearest,
    range_code,
    signed_code,
    sum_of,
)
from fastq.kernels.ggml.spec import from_half, half, signed
from fastq.kernels.ggml.weights import range_of, spread, weigh

_U16 = v.Vec(types.uint16, LANES)

# --- with a smallest value --------------------------------------------------------------------------------------------


@specialize
def ranged_super(spec, group, numbers):
    """Write the numbers of super-blocks whose sub-blocks have a scale and a smallest value."""
    row = spec.row
    sub, steps, by_columns = row.sub, row.steps, spec.weighted
    subs = SUPER // sub

    def ranged(spec, group, numbers):
        w, room = v.scratch(PART, types.float32), v.scratch(PART, types.float32)
        scales, minima, sums = (
            v.scratch(SUBS, types.float32),
            v.scratch(SUBS, types.float32),
            v.scratch(SUBS, types.float32),
        )
        inverses, bases = v.scratch(SUBS, types.float32), v.scratch(SUBS, types.float32)
        flats = v.scratch(SUBS, types.float32)
        mean = spread(spec, group)
        for j in range(subs):
            weigh(spec, group, j * sub, sub, mean, w)
            fit = range_of(spec, v.advance(group.x, j * sub * LANES), w, room)
            v.store(scales, j * LANES, fit.scale)
            v.store(minima, j * LANES, fit.negated_minimum)
            v.store(inverses, j * LANES, fit.inverse)
            v.store(bases, j * LANES, fit.base)
            v.store(flats, j * LANES, v.select(fit.flat, v.full(1.0, F32), v.full(0.0, F32)))
            if by_columns:
                v.store(sums, j * LANES, sum_of(w, sub))
        d = half(spec, shared(spec, scales, sums, numbers.scales))
        dmin = half(spec, shared(spec, minima, sums, numbers.mins))
        v.store(numbers.d, 0, d)
        v.store(numbers.min, 0, dmin)
        keep_stored(spec, numbers)
        scale, least = from_half(spec, d), from_half(spec, dmin)
        for j in range(subs):
            step, shift = scale * scale_at(spec, numbers.scales, j), least * scale_at(spec, numbers.mins, j)
            no_step = step == v.full(0.0, F32)
            some = v.any_lane(no_step)
            flat = v.load(flats, j * LANES, F32) > v.full(0.0, F32)
            fit = RangeFit(step, shift, v.load(inverses, j * LANES, F32), v.load(bases, j * LANES, F32), flat)
            for i in range(j * sub * LANES, (j + 1) * sub * LANES, LANES):
                value = v.load(group.x, i, F32)
                code = nearest((value + shift) / step)
                code = v.minimum(v.maximum(code, v.constant(0, code)), v.constant(steps, code))
                if some:
                    code = v.select(no_step, range_code(fit, value, steps), code)
                v.store(numbers.codes, i, v.convert(code, types.uint8))

    return ranged


@specialize
def shared(spec, parameters, sums, codes):
    """Return the float32 unit of parameters of sub-blocks, and write their codes, which are bytes."""
    row = spec.row
    count, steps, bound = SUPER // row.sub, row.scale_steps, row.bits > 2
    bound_positive = row.bits == 5

    def positive(spec, parameters, sums, codes):
        room = v.scratch(SUBS, types.float32)
        unit = fit_positive(parameters, sums, room, count, steps)
        for j in range(0, count * LANES, LANES):
            code = v.bounded_to_integer(v.load(room, j, F32), types.int32)
            v.store(
                codes, j, v.convert(v.minimum(code, v.constant(steps, code)) if bound_positive else code, types.uint8)
            )
        return unit

    def over_largest(spec, parameters, sums, codes):
        zero = v.full(0.0, F32)
        largest = zero
        for j in range(0, count * LANES, LANES):
            largest = v.maximum(v.load(parameters, j, F32), largest)
        inverse = v.select(largest > zero, v.constant(steps, zero) / largest, zero)
        for j in range(0, count * LANES, LANES):
            code = nearest(inverse * v.load(parameters, j, F32))
            code = code & v.constant(0xFF, code)
            v.store(codes, j, v.convert(v.minimum(code, v.constant(steps, code)) if bound else code, types.uint8))
        return largest / v.constant(steps, largest)

    return positive if spec.weighted else over_largest


# --- with signed codes ------------------------------------------------------------------------------------------------


@specialize
def store_scale(spec, codes, j, code):
    """Store the code of a scale of sub-blocks as it is stored."""
    zero = spec.row.scale_zero
    return lambda spec, codes, j, code: v.store(codes, j * LANES, v.convert(code + v.constant(zero, code), types.uint8))


@specialize
def scale_at(spec, codes, j):
    """Load the code of a scale of sub-blocks as a float."""
    zero = spec.row.scale_zero
    return lambda spec, codes, j: signed(v.load(codes, j * LANES, U8), zero)


@specialize
def signed_super(spec, group, numbers):
    """Write the numbers of super-blocks of signed codes."""
    row = spec.row
    steps, three_bits, in_turn = row.steps, row.bits == 3, row.bits == 3 and not spec.weighted

    def blocks(spec, group, numbers):
        w, room = v.scratch(PART, types.float32), v.scratch(PART, types.float32)
        scales, sums = v.scratch(SUBS, types.float32), v.scratch(SUBS, types.float32)
        inverses, zeros = v.scratch(SUBS, types.float32), v.scratch(SUBS, types.float32)
        mean = spread(spec, group)
        if in_turn:
            for j in range(0, 16, 2):
                both = fit_signed_in_turn(v.advance(group.x, j * 16 * LANES), room, 16, steps)
                v.store(scales, j * LANES, v.lower(both))
                v.store(scales, (j + 1) * LANES, v.upper(both))
                for i in range(0, PART, LANES):
                    code = v.bounded_to_integer(v.load(room, i, F32), types.int32)
                    v.store(numbers.codes, j * 16 * LANES + i, v.convert(code, types.uint8))
        else:
            for j in range(16):
                weigh(spec, group, j * 16, 16, mean, w)
                fit = fit_signed(v.advance(group.x, j * 16 * LANES), w, room, 16, steps)
                v.store(scales, j * LANES, fit.scale)
                v.store(inverses, j * LANES, fit.inverse)
                v.store(zeros, j * LANES, v.select(fit.is_zero, v.full(1.0, F32), v.full(0.0, F32)))
                if three_bits:
                    v.store(sums, j * LANES, sum_of(w, 16))
        unit, size = shared_signed(spec, scales, sums, numbers.scales)
        d = half(spec, unit)
        v.store(numbers.d, 0, d)
        scale = from_half(spec, d)
        for j in range(16):
            step = scale * scale_at(spec, numbers.scales, j)
            no_step = step == v.full(0.0, F32)
            some = v.any_lane(no_step)
            is_zero = v.load(zeros, j * LANES, F32) > v.full(0.0, F32)
            fit = SignedFit(step, v.load(inverses, j * LANES, F32), is_zero)
            for i in range(j * 16 * LANES, (j + 1) * 16 * LANES, LANES):
                value = v.load(group.x, i, F32)
                code = nearest(value / step)
                code = v.minimum(v.maximum(code, v.constant(-steps, code)), v.constant(steps - 1, code)) + v.constant(
                    steps, code
                )
                if some:
                    before = (
                        v.convert(v.load(numbers.codes, i, U8), types.int32)
                        if in_turn
                        else signed_code(fit, value, steps)
                    )
                    code = v.select(no_step, before, code)
                v.store(numbers.codes, i, v.convert(code, types.uint8))
        if not three_bits:
            clear(numbers, size < v.constant(TINY, size))

    return blocks


@njit
def clear(numbers, mask):
    """Write zeros to all numbers of blocks of Q6_K."""
    if v.any_lane(mask):
        v.store(numbers.d, 0, v.select(mask, v.full(0, _U16), v.load(numbers.d, 0, _U16)))
        for i in range(0, SUBS, LANES):
            v.store(numbers.scales, i, v.select(mask, v.full(0, U8), v.load(numbers.scales, i, U8)))
        for i in range(0, VALUES, LANES):
            v.store(numbers.codes, i, v.select(mask, v.full(0, U8), v.load(numbers.codes, i, U8)))


@specialize
def shared_signed(spec, scales, sums, codes):
    """Return the float32 unit of scales and the largest magnitude, and write their codes."""
    row = spec.row
    steps, is_byte = row.scale_steps, row.bits == 3

    def fitted(spec, scales, sums, codes):
        room = v.scratch(SUBS, types.float32)
        fit = fit_signed(scales, sums, room, 16, steps)
        for j in range(0, SUBS, LANES):
            v.store(codes, j, v.convert(signed_code(fit, v.load(scales, j, F32), steps), types.uint8))
        return fit.scale, v.full(1.0, F32)

    def over_largest(spec, scales, sums, codes):
        zero = v.full(0.0, F32)
        largest, size = first_largest(scales, 16)
        inverse, none = v.constant(-steps, zero) / largest, largest == zero
        for j in range(16):
            code = nearest(inverse * v.load(scales, j * LANES, F32))
            if is_byte:
                code = v.convert(v.convert(code, types.int8), types.int32)  # as C code does before it is bounded
                code = v.maximum(code, v.constant(-steps, code))
            code = v.minimum(code, v.constant(steps - 1, code))
            store_scale(spec, codes, j, v.select(none, v.full(-steps, I32), code))
        return v.select(none, zero, v.constant(1, zero) / inverse), size

    return fitted if is_byte and spec.weighted else over_largest
