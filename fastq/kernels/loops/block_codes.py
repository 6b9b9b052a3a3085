"""Parameters and codes of sixteen blocks of GGUF side by side, as rows of bytes: lane k of every Vec is of block k."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.formats.gguf import (
    SUPER,
    WEIGHTED_CANDIDATES,
    CodebookFormat,
    FloatFormat,
    ScaledFormat,
    SuperFormat,
    TernaryFormat,
)
from fastq.jit import njit, specialize
from fastq.kernels.loops.block_rows import columns, neighbours, nibbles, store_half, store_row
from fastq.kernels.loops.block_small import floats, ternary
from fastq.kernels.loops.block_spec import from_half, half, is_special
from fastq.kernels.loops.scale_search import (
    F32,
    I32,
    LANES,
    U8,
    RangeFit,
    SignedFit,
    codebook_index,
    fit_codebook,
    fit_positive,
    fit_range,
    fit_signed,
    fit_signed_in_turn,
    nearest,
    range_code,
    signed_code,
    sum_of,
    sum_of_squares,
)
from fastq.simd import (
    absolute,
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
    sqrt,
    store,
    upper,
)

_SUBS = 16 * LANES  # numbers of all sub-blocks
_VALUES = SUPER * LANES
_PART = 32 * LANES  # values of a sub-block
_TINY = 1e-15


class Tile(NamedTuple):
    """Pointers to values, to the importance of their columns, and to the mean square of the row of each block."""

    x: Any
    importance: Any
    means: Any


@specialize
def quantize_tile(spec, tile, rows):
    """Write the bytes of sixteen blocks; return the mask of those that have no finite parameters."""
    by_format = {
        ScaledFormat: _scaled,
        SuperFormat: _ranged if getattr(spec.row, "has_minimum", False) else _signed,
        CodebookFormat: _codebook,
        TernaryFormat: ternary,
        FloatFormat: floats,
    }[type(spec.row)]
    return lambda spec, tile, rows: by_format(spec, tile, rows)


# --- weights ----------------------------------------------------------------------------------------------------------


@specialize
def spread(spec, tile):
    """Return the mean square that goes with the importance of columns: of the row, or of the block."""
    row = spec.row
    if not spec.weighted:
        return lambda spec, tile: full(0.0, F32)
    if row.of_rows:
        return lambda spec, tile: load(tile.means, 0, F32)
    n, factor = row.size, 1.0 if getattr(row, "bits", 0) == 2 else 2.0

    def of_block(spec, tile):
        total = sum_of_squares(tile.x, n)
        return total * constant(factor, total) / constant(n, total)

    return of_block


@specialize
def weigh(spec, tile, first, count, mean, w):
    """Write the weights of values `first` to `first` + count."""
    row = spec.row

    def by_importance(spec, tile, first, count, mean, w):
        for i in range(count):
            v = load(tile.x, (first + i) * LANES, F32)
            store(w, i * LANES, load(tile.importance, (first + i) * LANES, F32) * sqrt(mean + v * v))

    def importance(spec, tile, first, count, mean, w):
        for i in range(count):
            store(w, i * LANES, load(tile.importance, (first + i) * LANES, F32))

    def squares(spec, tile, first, count, mean, w):
        for i in range(count):
            v = load(tile.x, (first + i) * LANES, F32)
            store(w, i * LANES, v * v)

    def magnitudes(spec, tile, first, count, mean, w):
        for i in range(count):
            store(w, i * LANES, absolute(load(tile.x, (first + i) * LANES, F32)))

    def raised(spec, tile, first, count, mean, w):
        total = sum_of_squares(advance(tile.x, first * LANES), count)
        root = sqrt(total / constant(count, total))
        for i in range(count):
            store(w, i * LANES, root + absolute(load(tile.x, (first + i) * LANES, F32)))

    if spec.weighted:
        return importance if getattr(row, "bits", 0) == 6 else by_importance
    if isinstance(row, SuperFormat) and row.has_minimum:
        return magnitudes if row.bits == 2 else raised
    return squares


# --- K-quants with a smallest value -----------------------------------------------------------------------------------


@specialize
def range_of(spec, x, w, room):
    """Fit scale and smallest value of sub-blocks."""
    row = spec.row
    count, steps = getattr(row, "sub", row.size), row.steps
    first, delta, last = WEIGHTED_CANDIDATES if spec.weighted else row.candidates
    squared = spec.weighted or row.bits > 2
    return lambda spec, x, w, room: fit_range(x, w, room, count, steps, first, delta, last, squared)


@specialize
def _ranged(spec, tile, rows):
    row = spec.row
    sub, steps, by_columns = row.sub, row.steps, spec.weighted
    subs = SUPER // sub
    of_scale, of_minimum = (80, 82) if row.bits == 2 else (0, 2)

    def ranged(spec, tile, rows):
        w, room, codes = scratch(_PART, types.float32), scratch(_PART, types.float32), scratch(_VALUES, types.uint8)
        scales, minima, sums = (
            scratch(_SUBS, types.float32),
            scratch(_SUBS, types.float32),
            scratch(_SUBS, types.float32),
        )
        inverses, bases = scratch(_SUBS, types.float32), scratch(_SUBS, types.float32)
        flats = scratch(_SUBS, types.float32)
        mean = spread(spec, tile)
        for j in range(subs):
            weigh(spec, tile, j * sub, sub, mean, w)
            fit = range_of(spec, advance(tile.x, j * sub * LANES), w, room)
            store(scales, j * LANES, fit.scale)
            store(minima, j * LANES, fit.minimum)
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
                v = load(tile.x, i, F32)
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
        codes = scratch(_SUBS, types.float32)
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


# --- K-quants with signed codes ---------------------------------------------------------------------------------------


@specialize
def _signed(spec, tile, rows):
    row = spec.row
    steps, in_turn = row.steps, row.bits == 3 and not spec.weighted
    at, six_bits = row.nbytes - 2, row.bits == 3

    def signed(spec, tile, rows):
        w, room, codes = scratch(_PART, types.float32), scratch(_PART, types.float32), scratch(_VALUES, types.uint8)
        scales, sums = scratch(_SUBS, types.float32), scratch(_SUBS, types.float32)
        inverses, zeros = scratch(_SUBS, types.float32), scratch(_SUBS, types.float32)
        mean = spread(spec, tile)
        if in_turn:
            for j in range(0, 16, 2):
                both = fit_signed_in_turn(advance(tile.x, j * 16 * LANES), room, 16, steps)
                store(scales, j * LANES, lower(both))
                store(scales, (j + 1) * LANES, upper(both))
                for i in range(0, _PART, LANES):
                    code = bounded_to_integer(load(room, i, F32), types.int32)
                    store(codes, j * 16 * LANES + i, convert(code, types.uint8))
        else:
            for j in range(16):
                weigh(spec, tile, j * 16, 16, mean, w)
                fit = fit_signed(advance(tile.x, j * 16 * LANES), w, room, 16, steps)
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
                v = load(tile.x, i, F32)
                code = nearest(v / step)
                code = minimum(maximum(code, constant(-steps, code)), constant(steps - 1, code)) + constant(steps, code)
                if some:
                    before = convert(load(codes, i, U8), types.int32) if in_turn else signed_code(fit, v, steps)
                    code = select(no_step, before, code)
                store(codes, i, convert(code, types.uint8))
        pack(spec, codes, rows)
        if not six_bits:
            clear(rows, size < constant(_TINY, size))
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
        room = scratch(_SUBS, types.float32)
        fit = fit_signed(scales, sums, room, 16, steps)
        for j in range(16):
            code = signed_code(fit, load(scales, j * LANES, F32), steps)
            keep(scales, j, code - constant(steps, code))
        return fit.scale, full(1.0, F32)

    def over_largest(spec, scales, sums):
        zero = full(0.0, F32)
        largest, size = zero, zero
        for j in range(16):
            scale = load(scales, j * LANES, F32)
            above = absolute(scale) > size
            largest, size = select(above, scale, largest), select(above, absolute(scale), size)
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
        codes = scratch(_SUBS, types.uint8)
        for j in range(16):
            code = integer(scales, j)
            store(codes, j * LANES, convert(code + constant(32, code), types.uint8))
        nibbles(rows, 96, codes, 0, 8, 8)
        columns(rows, 104, codes, 0, 4, 2, 4, 4, 4)

    return of_6_bits if spec.row.bits == 3 else of_8_bits


# --- one sub-block ----------------------------------------------------------------------------------------------------


@specialize
def _scaled(spec, tile, rows):
    row = spec.row
    steps, five_bits, head = row.steps, row.bits == 5, row.head

    def pack_scaled(codes, rows):
        if five_bits:
            neighbours(rows, head, codes, 4, 1, 8, 4)
        nibbles(rows, head + (4 if five_bits else 0), codes, 0, 16, 16)

    pack_codes = njit(pack_scaled)

    def ranged(spec, tile, rows):
        w, room, codes = scratch(_PART, types.float32), scratch(_PART, types.float32), scratch(_PART, types.uint8)
        weigh(spec, tile, 0, 32, spread(spec, tile), w)
        fit = range_of(spec, tile.x, w, room)
        for i in range(0, _PART, LANES):
            store(codes, i, convert(range_code(fit, load(tile.x, i, F32), steps), types.uint8))
        d, least = half(spec, fit.scale), half(spec, -fit.minimum)
        store_half(rows, 0, d)
        store_half(rows, 2, least)
        pack_codes(codes, rows)
        return is_special(spec, d) | is_special(spec, least)

    def signed(spec, tile, rows):
        w, room, codes = scratch(_PART, types.float32), scratch(_PART, types.float32), scratch(_PART, types.uint8)
        weigh(spec, tile, 0, 32, spread(spec, tile), w)
        fit = fit_signed(tile.x, w, room, 32, -steps)
        for i in range(0, _PART, LANES):
            store(codes, i, convert(signed_code(fit, load(tile.x, i, F32), -steps), types.uint8))
        d = half(spec, fit.scale)
        store_half(rows, 0, d)
        pack_codes(codes, rows)
        return is_special(spec, d)

    return ranged if row.has_minimum else signed


# --- codebooks --------------------------------------------------------------------------------------------------------


@specialize
def _codebook(spec, tile, rows):
    subs = spec.row.size // 32

    def codebook(spec, tile, rows):
        w, scales, codes = scratch(_PART, types.float32), scratch(_SUBS, types.float32), scratch(_VALUES, types.uint8)
        mean = spread(spec, tile)
        for j in range(subs):
            weigh(spec, tile, j * 32, 32, mean, w)
            store(scales, j * LANES, fit_codebook(advance(tile.x, j * 32 * LANES), w, 32))
        d = half(spec, codebook_inverses(spec, scales, rows))
        store_half(rows, 0, d)
        for j in range(subs):
            inverse = load(scales, j * LANES, F32)
            for i in range(j * _PART, (j + 1) * _PART, LANES):
                index = bounded_to_integer(codebook_index(inverse * load(tile.x, i, F32)), types.int32)
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
        codes = scratch(_SUBS, types.uint8)
        largest, size = zero, zero
        for j in range(8):
            scale = load(scales, j * LANES, F32)
            above = absolute(scale) > size
            largest, size = select(above, scale, largest), select(above, absolute(scale), size)
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
