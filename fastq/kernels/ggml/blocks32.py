"""Loops over blocks of 32 values that have float16 parameters, in block formats of GGUF."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine.jit import njit, specialize
from fastq.engine.simd import (
    LINE,
    REGISTER_BITS,
    Vec,
    absolute,
    advance,
    any_lane,
    bitcast,
    bits_to_mask,
    bounded_to_integer,
    cast_pointer,
    constant,
    convert,
    dtype_of,
    full_like,
    join,
    load,
    lower,
    mask_to_bits,
    maximum,
    minimum,
    prefetch,
    scratch,
    select,
    store,
    upper,
)
from fastq.formats.gguf import BLOCK
from fastq.kernels.ggml.spec import (
    GROUP,
    from_half,
    half,
    is_special,
    nbytes,
    scale_beside,
    streams,
    values_from,
)
from fastq.kernels.status import HAS_INFINITE_RANGE
from fastq.kernels.traversal.block_extremes import ends_of, magnitudes_of, side_by_side
from fastq.kernels.traversal.stores import flush, stage_at, store_tail, write_pointer
from fastq.system import tuning

BLOCKS_AHEAD = tuning.current().prefetch_blocks  # while codes are written, for the extremes of the groups to come

_F32 = Vec(types.float32, GROUP)
_ROW = Vec(types.float32, BLOCK)
_NIBBLES = Vec(types.uint8, BLOCK // 2)
_STAGED = GROUP * BLOCK  # values of a group
_ROOM = _STAGED * 4 + 2 * LINE  # bytes of a group, of values or blocks, as they are staged
_SIGN = -(1 << 31)
_BELOW_HALF = 0x3EFFFFFF  # bits of the float32 before 0.5


# --- quantize ---------------------------------------------------------------------------------------------------------


@njit
def quantize_blocks(spec, operands, args, units):
    """Quantize blocks start..stop; src and dst begin with block `origin`. Reports a block that has no finite scale."""
    src, dst = advance(operands.src, -units.origin * BLOCK), advance(operands.dst, -units.origin * nbytes(spec))
    values_of_few, bytes_of_few = scratch(_STAGED, dtype_of(src)), scratch(_ROOM, types.uint8)
    stage = stage_at(scratch(_ROOM, types.uint8), advance(dst, units.start * nbytes(spec)))
    p, stop, refused = units.start, units.stop, False
    while p < stop:
        x, y, blocks = advance(src, p * BLOCK), advance(dst, p * nbytes(spec)), stop - p
        if streams(spec):
            y = write_pointer(stage)
        if blocks < GROUP:  # by way of a group on the stack
            x, y = values_of_few, bytes_of_few
            for i in range(blocks * BLOCK):
                store(x, i, load(src, p * BLOCK + i, dtype_of(src)))  # at any address
            for i in range(blocks * BLOCK, _STAGED):
                x[i] = 0
        refused |= _quantize_group(spec, x, y)
        if blocks < GROUP:
            for i in range(blocks * nbytes(spec)):
                dst[p * nbytes(spec) + i] = y[i]
        elif streams(spec):
            stage = flush(stage, GROUP * nbytes(spec))
        p += GROUP
    if streams(spec):
        store_tail(stage)
    return HAS_INFINITE_RANGE * refused


@njit
def _quantize_group(spec, src, dst):
    """Sixteen blocks: their parameters are computed side by side, and one division serves for all."""
    scales, minima = scratch(GROUP, types.uint16), scratch(GROUP, types.uint16)
    inverses, shifts = scratch(GROUP, types.float32), scratch(GROUP, types.float32)
    extremes = block_extremes((spec, src), 0, GROUP)
    p = parameters(spec, *scaled_extent(spec, src, extremes))
    store(scales, 0, p.scale)
    store(minima, 0, p.minimum)
    store(inverses, 0, p.inverse)
    store(shifts, 0, p.shift)
    for k in range(GROUP):
        prefetch_block(spec, src, k * BLOCK + BLOCKS_AHEAD)
        codes = codes_of(spec, values(spec, src, k * BLOCK), inverses[k], shifts[k])
        i = k * nbytes(spec)
        store_parameters(spec, dst, i, scales[k], minima[k])
        store_codes(spec, dst, i, codes)
    return any_lane(p.refused | extremes.nan)


@njit
def values(spec, src, i):
    """Load the block that begins with src[i] as float32."""
    return values_from(spec, src, i, _ROW)


@specialize
def prefetch_block(spec, src, i):
    """Prefetch the lines of a block of values."""
    line = REGISTER_BITS // src.dtype.bitwidth

    def lines(spec, src, i):
        for k in range(0, BLOCK, line):
            prefetch(src, i + k)

    return lines


@specialize
def _extremes_of_block(context, k):
    """Reduce block k of a group to `BlockExtremes` in a register."""
    by_magnitude = context.types[0].row.extent == "magnitude"
    reduce = magnitudes_of if by_magnitude else ends_of

    def of_block(context, k):
        spec, src = context
        return reduce(values(spec, src, k * BLOCK), GROUP)

    return of_block


block_extremes = side_by_side(_extremes_of_block)


@specialize
def scaled_extent(spec, src, s):
    """Return what the scales of a group are a fraction of, and what is subtracted from values before."""

    def magnitude(spec, src, s):
        size = bitcast(s.high, types.float32)
        return size, full_like(constant(0, size), size)

    def signed(spec, src, s):
        extent, zero = select(s.high > -s.low, s.high, s.low), full_like(constant(0, s.low), s.low)
        if any_lane(s.high == -s.low):
            extent = _with_first_signs(spec, src, extent)
        return extent, zero

    def distance(spec, src, s):
        low = s.low
        if any_lane(low == constant(0, low)):
            low = _with_first_signs(spec, src, low)
        return maximum(s.high, low) - low, low

    return {"magnitude": magnitude, "signed": signed, "range": distance}[spec.row.extent]


@njit
def _with_first_signs(spec, src, extreme):
    """Give each extreme of a group the sign that it has where it comes first in its block."""
    memory = scratch(GROUP, types.float32)
    store(memory, 0, extreme)
    for k in range(GROUP):
        x, size = values(spec, src, k * BLOCK), absolute(memory[k])
        word = bitcast(x, types.int32)
        at = mask_to_bits(is_extreme(spec, x, memory[k]))
        negative = (mask_to_bits(word < constant(0, word)) & at & -at) != 0
        memory[k] = select(negative, -size, size)
    return load(memory, 0, _F32)


@specialize
def is_extreme(spec, x, extreme):
    """Mask of the lanes where the extreme is, whatever its sign where that is in doubt."""
    if spec.row.extent == "signed":
        return lambda spec, x, extreme: absolute(x) == absolute(extreme)
    return lambda spec, x, extreme: x == extreme


class Parameters(NamedTuple):
    """Of blocks side by side: what is stored, what `codes_of` needs, and which blocks have no finite parameters."""

    scale: Any
    minimum: Any
    inverse: Any
    shift: Any
    refused: Any


@njit
def parameters(spec, extent, lowest):
    """Compute parameters from what `scaled_extent` gives. A reciprocal that overflows leaves every code 0."""
    scale = scale_of(spec, extent)
    zero = full_like(constant(0, scale), scale)
    inverse = select(scale == zero, zero, constant(1, scale) / scale)
    usable = absolute(inverse) < constant(float("inf"), scale)
    stored, least = half(spec, scale), half(spec, lowest)
    refused = is_special(spec, stored) | is_special(spec, least)
    return Parameters(stored, least, select(usable, inverse, zero), shift_of(spec, usable, lowest), refused)


@specialize
def scale_of(spec, extent):
    """Compute the scale before it is rounded to float16; the codes are taken with this one."""
    steps = spec.row.steps
    return lambda spec, extent: extent / constant(steps, extent)


@specialize
def shift_of(spec, usable, lowest):
    """Return what `codes_of` needs beside the reciprocal: the smallest value, or what to add before truncation."""
    if spec.row.extent == "signed":
        half_up, least = spec.row.zero + 0.5, 0.5
        return lambda spec, usable, lowest: select(usable, constant(half_up, lowest), full_like(least, lowest))
    return lambda spec, usable, lowest: lowest


@specialize
def codes_of(spec, x, inverse, shift):
    """Compute the codes of a block as int32; in a block that is refused they are undefined."""
    most = float(2**spec.row.bits - 1)

    def half_away(spec, x, inverse, shift):
        # half less one ulp, with the sign of x: the sum's fraction is cut to the nearest whole number, halves away
        word = bitcast(x, types.int32)
        towards = bitcast((word & constant(_SIGN, word)) | constant(_BELOW_HALF, word), types.float32)
        return bounded_to_integer(x * inverse + towards, types.int32)

    def signed_extreme(spec, x, inverse, shift):
        return bounded_to_integer(minimum(x * inverse + shift, constant(most, x)), types.int32)

    def from_lowest(spec, x, inverse, shift):
        return bounded_to_integer(minimum((x - shift) * inverse + constant(0.5, x), constant(most, x)), types.int32)

    return {"magnitude": half_away, "signed": signed_extreme, "range": from_lowest}[spec.row.extent]


@specialize
def store_parameters(spec, dst, i, scale, least):
    """Store the parameters of the block at dst[i]."""
    bits = spec.parameter.bits

    def one(spec, dst, i, scale, least):
        store(cast_pointer(advance(dst, i), bits), 0, scale)

    def two(spec, dst, i, scale, least):
        where = cast_pointer(advance(dst, i), bits)
        store(where, 0, scale)
        store(where, 1, least)

    return two if spec.row.extent == "range" else one


@specialize
def store_codes(spec, dst, i, codes):
    """Store the codes of the block at dst[i]."""
    head, bits = spec.row.head, spec.row.bits

    def bytes_(spec, dst, i, codes):
        store(dst, i + head, convert(codes, types.uint8))

    def nibbles(spec, dst, i, codes):
        store_nibbles(dst, i + head, codes)

    def nibbles_and_fifth_bits(spec, dst, i, codes):
        store(cast_pointer(advance(dst, i + head), types.uint32), 0, mask_to_bits(codes > constant(15, codes)))
        store_nibbles(dst, i + head + 4, codes)

    return {8: bytes_, 4: nibbles, 5: nibbles_and_fifth_bits}[bits]


@njit
def store_nibbles(dst, i, codes):
    """Store the four low bits of codes to dst[i] onwards, the first half of the codes in the low halves of bytes."""
    low, high = lower(codes), upper(codes)
    store(dst, i, convert((low & constant(15, low)) | (high << constant(4, high)), types.uint8))


# --- dequantize -------------------------------------------------------------------------------------------------------


@njit
def dequantize_blocks(spec, operands, args, units):
    """Decode blocks start..stop; src and dst begin with block `origin`."""
    src, dst = advance(operands.src, -units.origin * nbytes(spec)), advance(operands.dst, -units.origin * BLOCK)
    p = stream_groups(spec, src, dst, units.start, units.stop)
    while p < units.stop:
        store_values(spec, src, p, dst, p * BLOCK)
        p += 1
    return 0


@njit
def store_values(spec, src, p, dst, i):
    """Decode block p to dst[i] onwards."""
    at = p * nbytes(spec)
    prefetch(src, at + nbytes(spec) * GROUP)
    value = values_at(spec, src, at)
    # stores of half a register: NumPy's arrays begin 16 bytes after a line, and whole registers would all cross one
    first, second = lower(value), upper(value)
    store(dst, i, lower(first))
    store(dst, i + 8, upper(first))
    store(dst, i + 16, lower(second))
    store(dst, i + 24, upper(second))


@specialize
def values_at(spec, src, i):
    """Dequantize the block at src[i]."""
    zero, bits = spec.row.zero, spec.parameter.bits

    def scaled(spec, src, i):
        q = codes_at(spec, src, i)
        where = cast_pointer(advance(src, i), bits)
        return convert(q - constant(zero, q), types.float32) * from_half(spec, load(where, 0, bits))

    def scaled_and_moved(spec, src, i):
        q = convert(codes_at(spec, src, i), types.float32)
        where = cast_pointer(advance(src, i), bits)
        scale, least = from_half(spec, load(where, 0, bits)), from_half(spec, load(where, 1, bits))
        return q * scale_beside(least, scale) + least

    return scaled_and_moved if spec.row.extent == "range" else scaled


@specialize
def codes_at(spec, src, i):
    """Load the codes of the block at src[i] as int32."""
    head, bits = spec.row.head, spec.row.bits
    row = Vec(types.uint8, BLOCK)

    def bytes_(spec, src, i):
        return convert(convert(load(src, i + head, row), types.int8), types.int32)

    def nibbles(spec, src, i):
        return load_nibbles(src, i + head)

    def nibbles_and_fifth_bits(spec, src, i):
        high = bits_to_mask(load(cast_pointer(advance(src, i + head), types.uint32), 0, types.uint32))
        q = load_nibbles(src, i + head + 4)
        return select(high, q | constant(16, q), q)

    return {8: bytes_, 4: nibbles, 5: nibbles_and_fifth_bits}[bits]


@njit
def load_nibbles(src, i):
    """Load what `store_nibbles` wrote to src[i] onwards."""
    both = convert(load(src, i, _NIBBLES), types.int32)
    return join(both & constant(15, both), both >> constant(4, both))


@specialize
def stream_groups(spec, src, dst, start, stop):
    """Decode whole groups of blocks from `start` on past the cache, where the spec says so; return where that ended."""
    return _stream_groups if spec.streaming else lambda spec, src, dst, start, stop: start


@njit
def _stream_groups(spec, src, dst, start, stop):
    stage, p = stage_at(scratch(_ROOM, types.uint8), advance(dst, start * BLOCK)), start
    while p <= stop - GROUP:
        values_of_group = cast_pointer(write_pointer(stage), types.float32)
        for k in range(GROUP):
            store_values(spec, src, p + k, values_of_group, k * BLOCK)
        stage = flush(stage, _STAGED * 4)
        p += GROUP
    store_tail(stage)
    return p
