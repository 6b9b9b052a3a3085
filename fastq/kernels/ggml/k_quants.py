"""K-quants of sixteen blocks of GGUF side by side, as rows of bytes: lane k of every Vec is of block k."""

from __future__ import annotations

from numba import types

from fastq.engine.jit import njit, specialize
from fastq.engine.simd import (
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
from fastq.kernels.ggml.fields import columns, nibbles, store_half, store_row
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
from fastq.kernels.ggml.spec import from_half, half, is_special
from fastq.kernels.ggml.weights import range_of, spread, weigh

# --- with a smallest value --------------------------------------------------------------------------------------------


@specialize
def ranged_super(spec, group, rows):
    """Write the bytes of super-blocks whose sub-blocks have a scale and a smallest value; return which are refused."""
    row = spec.row
    sub, steps, by_columns = row.sub, row.steps, spec.weighted
    subs = SUPER // sub
    of_scale, of_minimum = (80, 82) if row.bits == 2 else (0, 2)

    def ranged(spec, group, rows):
        w, room, codes = scratch(PART, types.float32), scratch(PART, types.float32), scratch(VALUES, types.uint8)
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
        d = half(spec, shared(spec, scales, sums))
        dmin = half(spec, shared(spec, minima, sums))
        store_half(rows, of_scale, d)
        store_half(rows, of_minimum, dmin)
        store_pairs(spec, rows, scales, minima)
        scale, least = from_half(spec, d), from_half(spec, dmin)
        for j in range(subs):
            step, shift = scale * load(scales, j * LANES, F32), least * load(minima, j * LANES, F32)
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
                store(codes, i, convert(code, types.uint8))
        pack(spec, codes, rows)
        return is_special(spec, d) | is_special(spec, dmin)

    return ranged


@specialize
def shared(spec, parameters, sums):
    """Return the float32 unit of parameters of sub-blocks, and write their codes in their place, which are bytes."""
    row = spec.row
    count, steps, bound = SUPER // row.sub, row.scale_steps, row.bits > 2
    bound_positive = row.bits == 5

    def positive(spec, parameters, sums):
        codes = scratch(SUBS, types.float32)
        unit = fit_positive(parameters, sums, codes, count, steps)
        for j in range(0, count * LANES, LANES):
            code = load(codes, j, F32)
            store(parameters, j, minimum(code, constant(steps, code)) if bound_positive else code)
        return unit

    def over_largest(spec, parameters, sums):
        zero = full(0.0, F32)
        largest = zero
        for j in range(0, count * LANES, LANES):
            largest = maximum(load(parameters, j, F32), largest)
        inverse = select(largest > zero, constant(steps, zero) / largest, zero)
        for j in range(0, count * LANES, LANES):
            code = nearest(inverse * load(parameters, j, F32))
            code = code & constant(0xFF, code)
            store(parameters, j, convert(minimum(code, constant(steps, code)) if bound else code, types.float32))
        return largest / constant(steps, largest)

    return positive if spec.weighted else over_largest


@njit
def integer(memory, j):
    """Load whole numbers kept as floats."""
    return bounded_to_integer(load(memory, j * LANES, F32), types.int32)


@njit
def keep(memory, j, number):
    """Store whole numbers as floats."""
    store(memory, j * LANES, convert(number, types.float32))


@specialize
def store_pairs(spec, rows, scales, minima):
    """Write the codes of scales and smallest values, and leave in their place what a reader finds."""

    def of_4_bits(spec, rows, scales, minima):
        for j in range(16):
            scale, least = integer(scales, j), integer(minima, j)
            byte = (scale | (least << constant(4, least))) & constant(0xFF, least)
            store_row(rows, j, byte)
            keep(scales, j, byte & constant(15, byte))
            keep(minima, j, byte >> constant(4, byte))

    def of_6_bits(spec, rows, scales, minima):
        for j in range(4):
            scale, least = integer(scales, j + 4), integer(minima, j + 4)
            four, six = constant(4, scale), constant(6, scale)
            low, mask = constant(15, scale), constant(0xFF, scale)
            first = (integer(scales, j) | ((scale >> four) << six)) & mask
            second = (integer(minima, j) | ((least >> four) << six)) & mask
            third = ((scale & low) | (least << four)) & mask
            store_row(rows, 4 + j, first)
            store_row(rows, 8 + j, second)
            store_row(rows, 12 + j, third)
            keep(scales, j, first & constant(63, first))
            keep(minima, j, second & constant(63, first))
            keep(scales, j + 4, (third & low) | ((first >> six) << four))
            keep(minima, j + 4, (third >> four) | ((second >> six) << four))

    return of_4_bits if spec.row.bits == 2 else of_6_bits


@specialize
def pack(spec, codes, rows):
    """Write the codes of super-blocks."""

    def two(spec, codes, rows):
        columns(rows, 16, codes, 0, 0, 2, 4, 32, 32)
        columns(rows, 48, codes, 128, 0, 2, 4, 32, 32)

    def three(spec, codes, rows):
        columns(rows, 0, codes, 0, 2, 1, 8, 32, 32)
        columns(rows, 32, codes, 0, 0, 2, 4, 32, 32)
        columns(rows, 64, codes, 128, 0, 2, 4, 32, 32)

    def four(spec, codes, rows):
        for j in range(4):
            nibbles(rows, 16 + 32 * j, codes, 64 * j, 64 * j + 32, 32)

    def five(spec, codes, rows):
        columns(rows, 16, codes, 0, 4, 1, 8, 32, 32)
        for j in range(4):
            nibbles(rows, 48 + 32 * j, codes, 64 * j, 64 * j + 32, 32)

    def six(spec, codes, rows):
        for j in range(2):
            nibbles(rows, 64 * j, codes, 128 * j, 128 * j + 64, 32)
            nibbles(rows, 64 * j + 32, codes, 128 * j + 32, 128 * j + 96, 32)
            columns(rows, 128 + 32 * j, codes, 128 * j, 4, 2, 4, 32, 32)

    return {2: two, 3: three, 4: four, 5: five, 6: six}[spec.row.bits]


# --- with signed codes ------------------------------------------------------------------------------------------------


@specialize
def signed_super(spec, group, rows):
    """Write the bytes of super-blocks of signed codes; return which have no finite scale."""
    row = spec.row
    steps, in_turn = row.steps, row.bits == 3 and not spec.weighted
    at, six_bits = row.nbytes - 2, row.bits == 3

    def signed(spec, group, rows):
        w, room, codes = scratch(PART, types.float32), scratch(PART, types.float32), scratch(VALUES, types.uint8)
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
                    store(codes, j * 16 * LANES + i, convert(code, types.uint8))
        else:
            for j in range(16):
                weigh(spec, group, j * 16, 16, mean, w)
                fit = fit_signed(advance(group.x, j * 16 * LANES), w, room, 16, steps)
                store(scales, j * LANES, fit.scale)
                store(inverses, j * LANES, fit.inverse)
                store(zeros, j * LANES, select(fit.is_zero, full(1.0, F32), full(0.0, F32)))
                if six_bits:
                    store(sums, j * LANES, sum_of(w, 16))
        unit, size = shared_signed(spec, scales, sums)
        d = half(spec, unit)
        store_half(rows, at, d)
        scale = from_half(spec, d)
        store_signed_scales(spec, rows, scales)
        for j in range(16):
            step = scale * load(scales, j * LANES, F32)
            no_step = step == full(0.0, F32)
            some = any_lane(no_step)
            is_zero = load(zeros, j * LANES, F32) > full(0.0, F32)
            fit = SignedFit(step, load(inverses, j * LANES, F32), is_zero)
            for i in range(j * 16 * LANES, (j + 1) * 16 * LANES, LANES):
                v = load(group.x, i, F32)
                code = nearest(v / step)
                code = minimum(maximum(code, constant(-steps, code)), constant(steps - 1, code)) + constant(steps, code)
                if some:
                    before = convert(load(codes, i, U8), types.int32) if in_turn else signed_code(fit, v, steps)
                    code = select(no_step, before, code)
                store(codes, i, convert(code, types.uint8))
        pack(spec, codes, rows)
        if not six_bits:
            clear(rows, size < constant(TINY, size))
        return is_special(spec, d)

    return signed


@njit
def clear(rows, mask):
    """Write zeros to blocks of Q6_K."""
    if any_lane(mask):
        for i in range(210):
            byte = convert(load(rows, i * LANES, U8), types.int32)
            store_row(rows, i, select(mask, full(0, I32), byte))


@specialize
def shared_signed(spec, scales, sums):
    """Return the float32 unit of scales and the largest magnitude, and write their codes in their place."""
    row = spec.row
    steps, is_byte = row.scale_steps, row.bits == 3

    def fitted(spec, scales, sums):
        room = scratch(SUBS, types.float32)
        fit = fit_signed(scales, sums, room, 16, steps)
        for j in range(16):
            code = signed_code(fit, load(scales, j * LANES, F32), steps)
            keep(scales, j, code - constant(steps, code))
        return fit.scale, full(1.0, F32)

    def over_largest(spec, scales, sums):
        zero = full(0.0, F32)
        largest, size = first_largest(scales, 16)
        inverse, none = constant(-steps, zero) / largest, largest == zero
        for j in range(16):
            code = nearest(inverse * load(scales, j * LANES, F32))
            if is_byte:
                code = convert(convert(code, types.int8), types.int32)  # as C code does before it is bounded
                code = maximum(code, constant(-steps, code))
            code = minimum(code, constant(steps - 1, code))
            keep(scales, j, select(none, full(-steps, I32), code))
        return select(none, zero, constant(1, zero) / inverse), size

    return fitted if is_byte and spec.weighted else over_largest


@specialize
def store_signed_scales(spec, rows, scales):
    """Write the codes of scales."""

    def of_8_bits(spec, rows, scales):
        for j in range(16):
            store_row(rows, 192 + j, integer(scales, j))

    def of_6_bits(spec, rows, scales):
        codes = scratch(SUBS, types.uint8)
        for j in range(16):
            code = integer(scales, j)
            store(codes, j * LANES, convert(code + constant(32, code), types.uint8))
        nibbles(rows, 96, codes, 0, 8, 8)
        columns(rows, 104, codes, 0, 4, 2, 4, 4, 4)

    return of_6_bits if spec.row.bits == 3 else of_8_bits
