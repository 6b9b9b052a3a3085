"""Numbers of K-quants of sixteen blocks of GGUF side by side: lane k of every Vec is of block k."""

from __future__ import annotations

from numba import types

from fastq.engine.jit import njit, specialize
from fastq.engine.simd import (
    Vec,
    advance,
    any_lane,
    bounded_to_integer,
    constant,
    convert,
    full,
    load,
    lower,
    maximum,
    minimum,
    scratch,
    select,
    store,
    upper,
)
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

_U16 = Vec(types.uint16, LANES)

# --- with a smallest value --------------------------------------------------------------------------------------------


@specialize
def ranged_super(spec, group, numbers):
    """Write the numbers of super-blocks whose sub-blocks have a scale and a smallest value."""
    row = spec.row
    sub, steps, by_columns = row.sub, row.steps, spec.weighted
    subs = SUPER // sub

    def ranged(spec, group, numbers):
        w, room = scratch(PART, types.float32), scratch(PART, types.float32)
        scales, minima, sums = (
            scratch(SUBS, types.float32),
            scratch(SUBS, types.float32),
            scratch(SUBS, types.float32),
        )
        inverses, bases = scratch(SUBS, types.float32), scratch(SUBS, types.float32)
        flats = scratch(SUBS, types.float32)
        mean = spread(spec, group)
        for j in range(subs):
            weigh(spec, group, j * sub, sub, mean, w)
            fit = range_of(spec, advance(group.x, j * sub * LANES), w, room)
            store(scales, j * LANES, fit.scale)
            store(minima, j * LANES, fit.negated_minimum)
            store(inverses, j * LANES, fit.inverse)
            store(bases, j * LANES, fit.base)
            store(flats, j * LANES, select(fit.flat, full(1.0, F32), full(0.0, F32)))
            if by_columns:
                store(sums, j * LANES, sum_of(w, sub))
        d = half(spec, shared(spec, scales, sums, numbers.scales))
        dmin = half(spec, shared(spec, minima, sums, numbers.mins))
        store(numbers.d, 0, d)
        store(numbers.min, 0, dmin)
        keep_stored(spec, numbers)
        scale, least = from_half(spec, d), from_half(spec, dmin)
        for j in range(subs):
            step, shift = scale * scale_at(spec, numbers.scales, j), least * scale_at(spec, numbers.mins, j)
            no_step = step == full(0.0, F32)
            some = any_lane(no_step)
            flat = load(flats, j * LANES, F32) > full(0.0, F32)
            fit = RangeFit(step, shift, load(inverses, j * LANES, F32), load(bases, j * LANES, F32), flat)
            for i in range(j * sub * LANES, (j + 1) * sub * LANES, LANES):
                v = load(group.x, i, F32)
                code = nearest((v + shift) / step)
                code = minimum(maximum(code, constant(0, code)), constant(steps, code))
                if some:
                    code = select(no_step, range_code(fit, v, steps), code)
                store(numbers.codes, i, convert(code, types.uint8))

    return ranged


@specialize
def shared(spec, parameters, sums, codes):
    """Return the float32 unit of parameters of sub-blocks, and write their codes, which are bytes."""
    row = spec.row
    count, steps, bound = SUPER // row.sub, row.scale_steps, row.bits > 2
    bound_positive = row.bits == 5

    def positive(spec, parameters, sums, codes):
        room = scratch(SUBS, types.float32)
        unit = fit_positive(parameters, sums, room, count, steps)
        for j in range(0, count * LANES, LANES):
            code = bounded_to_integer(load(room, j, F32), types.int32)
            store(codes, j, convert(minimum(code, constant(steps, code)) if bound_positive else code, types.uint8))
        return unit

    def over_largest(spec, parameters, sums, codes):
        zero = full(0.0, F32)
        largest = zero
        for j in range(0, count * LANES, LANES):
            largest = maximum(load(parameters, j, F32), largest)
        inverse = select(largest > zero, constant(steps, zero) / largest, zero)
        for j in range(0, count * LANES, LANES):
            code = nearest(inverse * load(parameters, j, F32))
            code = code & constant(0xFF, code)
            store(codes, j, convert(minimum(code, constant(steps, code)) if bound else code, types.uint8))
        return largest / constant(steps, largest)

    return positive if spec.weighted else over_largest


# --- with signed codes ------------------------------------------------------------------------------------------------


@specialize
def store_scale(spec, codes, j, code):
    """Store the code of a scale of sub-blocks as it is stored."""
    zero = spec.row.scale_zero
    return lambda spec, codes, j, code: store(codes, j * LANES, convert(code + constant(zero, code), types.uint8))


@specialize
def scale_at(spec, codes, j):
    """Load the code of a scale of sub-blocks as a float."""
    zero = spec.row.scale_zero
    return lambda spec, codes, j: signed(load(codes, j * LANES, U8), zero)


@specialize
def signed_super(spec, group, numbers):
    """Write the numbers of super-blocks of signed codes."""
    row = spec.row
    steps, three_bits, in_turn = row.steps, row.bits == 3, row.bits == 3 and not spec.weighted

    def blocks(spec, group, numbers):
        w, room = scratch(PART, types.float32), scratch(PART, types.float32)
        scales, sums = scratch(SUBS, types.float32), scratch(SUBS, types.float32)
        inverses, zeros = scratch(SUBS, types.float32), scratch(SUBS, types.float32)
        mean = spread(spec, group)
        if in_turn:
            for j in range(0, 16, 2):
                both = fit_signed_in_turn(advance(group.x, j * 16 * LANES), room, 16, steps)
                store(scales, j * LANES, lower(both))
                store(scales, (j + 1) * LANES, upper(both))
                for i in range(0, PART, LANES):
                    code = bounded_to_integer(load(room, i, F32), types.int32)
                    store(numbers.codes, j * 16 * LANES + i, convert(code, types.uint8))
        else:
            for j in range(16):
                weigh(spec, group, j * 16, 16, mean, w)
                fit = fit_signed(advance(group.x, j * 16 * LANES), w, room, 16, steps)
                store(scales, j * LANES, fit.scale)
                store(inverses, j * LANES, fit.inverse)
                store(zeros, j * LANES, select(fit.is_zero, full(1.0, F32), full(0.0, F32)))
                if three_bits:
                    store(sums, j * LANES, sum_of(w, 16))
        unit, size = shared_signed(spec, scales, sums, numbers.scales)
        d = half(spec, unit)
        store(numbers.d, 0, d)
        scale = from_half(spec, d)
        for j in range(16):
            step = scale * scale_at(spec, numbers.scales, j)
            no_step = step == full(0.0, F32)
            some = any_lane(no_step)
            is_zero = load(zeros, j * LANES, F32) > full(0.0, F32)
            fit = SignedFit(step, load(inverses, j * LANES, F32), is_zero)
            for i in range(j * 16 * LANES, (j + 1) * 16 * LANES, LANES):
                v = load(group.x, i, F32)
                code = nearest(v / step)
                code = minimum(maximum(code, constant(-steps, code)), constant(steps - 1, code)) + constant(steps, code)
                if some:
                    before = convert(load(numbers.codes, i, U8), types.int32) if in_turn else signed_code(fit, v, steps)
                    code = select(no_step, before, code)
                store(numbers.codes, i, convert(code, types.uint8))
        if not three_bits:
            clear(numbers, size < constant(TINY, size))

    return blocks


@njit
def clear(numbers, mask):
    """Write zeros to all numbers of blocks of Q6_K."""
    if any_lane(mask):
        store(numbers.d, 0, select(mask, full(0, _U16), load(numbers.d, 0, _U16)))
        for i in range(0, SUBS, LANES):
            store(numbers.scales, i, select(mask, full(0, U8), load(numbers.scales, i, U8)))
        for i in range(0, VALUES, LANES):
            store(numbers.codes, i, select(mask, full(0, U8), load(numbers.codes, i, U8)))


@specialize
def shared_signed(spec, scales, sums, codes):
    """Return the float32 unit of scales and the largest magnitude, and write their codes."""
    row = spec.row
    steps, is_byte = row.scale_steps, row.bits == 3

    def fitted(spec, scales, sums, codes):
        room = scratch(SUBS, types.float32)
        fit = fit_signed(scales, sums, room, 16, steps)
        for j in range(0, SUBS, LANES):
            store(codes, j, convert(signed_code(fit, load(scales, j, F32), steps), types.uint8))
        return fit.scale, full(1.0, F32)

    def over_largest(spec, scales, sums, codes):
        zero = full(0.0, F32)
        largest, size = first_largest(scales, 16)
        inverse, none = constant(-steps, zero) / largest, largest == zero
        for j in range(16):
            code = nearest(inverse * load(scales, j * LANES, F32))
            if is_byte:
                code = convert(convert(code, types.int8), types.int32)  # as C code does before it is bounded
                code = maximum(code, constant(-steps, code))
            code = minimum(code, constant(steps - 1, code))
            store_scale(spec, codes, j, select(none, full(-steps, I32), code))
        return select(none, zero, constant(1, zero) / inverse), size

    return fitted if is_byte and spec.weighted else over_largest
