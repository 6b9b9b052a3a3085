"""Loops over blocks of 32 values that are stored as GGUF stores them."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.core.extending import models, register_model

from fastq.formats.gguf import BLOCK, BlockFormat
from fastq.kernels import SAW_INFINITE_RANGE
from fastq.kernels.loops.block_extremes import ends_of, magnitudes_of, side_by_side
from fastq.kernels.loops.nontemporal import finish, flush, place, stage_at
from fastq.kernels.minifloat import Minifloat, decode, encode
from fastq.runtime.plan import AHEAD
from fastq.simd.vec import (
    LINE,
    REGISTER_BITS,
    Vec,
    absolute,
    advance,
    any_lane,
    bitcast,
    bits_to_mask,
    bounded_to_integer,
    by_type,
    cast_pointer,
    constant,
    convert,
    dtype_of,
    full_like,
    inline,
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

GROUP = 16  # blocks whose parameters are computed side by side, one a lane

# How far ahead to prefetch, in elements: while codes are written, for the extremes of the groups to come. 2**25 float32
# on one core, median: 1.2 times (Q8_0) and 1.4 times (Q4_0) as fast as 256 ahead while extremes are looked for.
BLOCKS_AHEAD = max(AHEAD, 768)

_F32 = Vec(types.float32, GROUP)
_NIBBLES = Vec(types.uint8, BLOCK // 2)
_STAGED = GROUP * BLOCK  # values of a group
_ROOM = _STAGED * 4 + 2 * LINE  # bytes of a group, of values or blocks, as they are staged
_SIGN = -(1 << 31)
_BELOW_HALF = 0x3EFFFFFF  # bits of the float32 before 0.5


class Blocks(types.Opaque):  # type: ignore[misc]
    """Type of an argument that is nothing at run time and says how blocks are stored.

    Parameters
    ----------
    row : BlockFormat
        The format.
    parameter : Minifloat
        Format of the scale and the smallest value.
    source : type
        Scalar type of the values to quantize, or the Minifloat whose bits they are.
    streaming : bool
        Whether results go past the cache.
    """

    def __init__(
        self,
        row: BlockFormat,
        parameter: Minifloat,
        source: types.Type,
        streaming: bool,
    ) -> None:
        self.row, self.parameter, self.source, self.streaming = row, parameter, source, streaming
        # all of the row, since machine code is kept on disk under this name
        super().__init__(name=f"Blocks({row!r}, {parameter}, {source}, {streaming})")

    def __reduce__(self) -> Any:
        return Blocks, (self.row, self.parameter, self.source, self.streaming)


register_model(Blocks)(models.OpaqueModel)


@by_type
def nbytes(form):
    """Bytes of a block."""
    n = form.row.nbytes
    return lambda form: n


@by_type
def streams(form):
    """Whether results go past the cache."""
    streaming = form.streaming
    return lambda form: streaming


# --- quantize ---------------------------------------------------------------------------------------------------------


def quantize_blocks(form, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Quantize blocks start..stop; src and dst begin with block `origin`. Reports a block that has no finite scale."""
    src, dst = advance(src, -origin * BLOCK), advance(dst, -origin * nbytes(form))
    values_of_few, bytes_of_few = scratch(_STAGED, dtype_of(src)), scratch(_ROOM, types.uint8)
    stage = stage_at(scratch(_ROOM, types.uint8), advance(dst, start * nbytes(form)))
    p, refused = start, False
    while p < stop:
        x, y, blocks = advance(src, p * BLOCK), advance(dst, p * nbytes(form)), stop - p
        if streams(form):
            y = place(stage)
        if blocks < GROUP:  # by way of a group on the stack
            x, y = values_of_few, bytes_of_few
            for i in range(blocks * BLOCK):
                x[i] = src[p * BLOCK + i]
            for i in range(blocks * BLOCK, _STAGED):
                x[i] = 0
        refused |= _quantize_group(form, x, y)
        if blocks < GROUP:
            for i in range(blocks * nbytes(form)):
                dst[p * nbytes(form) + i] = y[i]
        elif streams(form):
            stage = flush(stage, GROUP * nbytes(form))
        p += GROUP
    if streams(form):
        finish(stage)
    return SAW_INFINITE_RANGE * refused


@inline
def _quantize_group(form, src, dst):
    """Sixteen blocks: their parameters are computed side by side, and one division serves for all."""
    scales, minima = scratch(GROUP, types.uint16), scratch(GROUP, types.uint16)
    inverses, shifts = scratch(GROUP, types.float32), scratch(GROUP, types.float32)
    s = sides((form, src), 0, GROUP)
    p = parameters(form, *extents(form, src, s))
    store(scales, 0, p.scale)
    store(minima, 0, p.minimum)
    store(inverses, 0, p.inverse)
    store(shifts, 0, p.shift)
    for k in range(GROUP):
        prefetch_block(form, src, k * BLOCK + BLOCKS_AHEAD)
        codes = codes_of(form, values(form, src, k * BLOCK), inverses[k], shifts[k])
        i = k * nbytes(form)
        put_parameters(form, dst, i, scales[k], minima[k])
        put_codes(form, dst, i, codes)
    return any_lane(p.refused | s.nan)


@by_type
def values(form, src, i):
    """The block that begins with src[i], in float32."""
    source, vec = form.source, Vec(src.dtype, BLOCK)
    if isinstance(source, Minifloat):
        return lambda form, src, i: decode(load(src, i, vec), source)
    return lambda form, src, i: convert(load(src, i, vec), types.float32)


@by_type
def prefetch_block(form, src, i):
    """Prefetch the lines of a block of values."""
    line = REGISTER_BITS // src.dtype.bitwidth

    def lines(form, src, i):
        for k in range(0, BLOCK, line):
            prefetch(src, i + k)

    return lines


@by_type
def _sides_of_block(context, k):
    """Sides of block k of a group, in a register."""
    by_magnitude = context.types[0].row.extent == "magnitude"
    of = magnitudes_of if by_magnitude else ends_of

    def of_block(context, k):
        form, src = context
        return of(values(form, src, k * BLOCK), GROUP)

    return of_block


sides = side_by_side(_sides_of_block)


@by_type
def extents(form, src, s):
    """What the scales of a group are a fraction of, and what is taken off before."""

    def magnitude(form, src, s):
        size = bitcast(s.high, types.float32)
        return size, full_like(constant(0, size), size)

    def signed(form, src, s):
        extent, zero = select(s.high > -s.low, s.high, s.low), full_like(constant(0, s.low), s.low)
        if any_lane(s.high == -s.low):
            extent = _with_first_signs(form, src, extent)
        return extent, zero

    def distance(form, src, s):
        low = s.low
        if any_lane(low == constant(0, low)):
            low = _with_first_signs(form, src, low)
        return maximum(s.high, low) - low, low

    return {"magnitude": magnitude, "signed": signed, "range": distance}[form.row.extent]


@inline
def _with_first_signs(form, src, extreme):
    """Extremes of a group, each with the sign that it has where it comes first in its block."""
    memory = scratch(GROUP, types.float32)
    store(memory, 0, extreme)
    for k in range(GROUP):
        x, size = values(form, src, k * BLOCK), absolute(memory[k])
        word = bitcast(x, types.int32)
        at = mask_to_bits(is_extreme(form, x, memory[k]))
        negative = (mask_to_bits(word < constant(0, word)) & at & -at) != 0
        memory[k] = select(negative, -size, size)
    return load(memory, 0, _F32)


@by_type
def is_extreme(form, x, extreme):
    """Mask of the lanes where the extreme is, whatever its sign where that is in doubt."""
    if form.row.extent == "signed":
        return lambda form, x, extreme: absolute(x) == absolute(extreme)
    return lambda form, x, extreme: x == extreme


class Parameters(NamedTuple):
    """Of blocks side by side: what is stored, what `codes_of` needs, and which blocks have no finite parameters."""

    scale: Any
    minimum: Any
    inverse: Any
    shift: Any
    refused: Any


@inline
def parameters(form, extent, lowest):
    """Parameters from what `extents` gives. A reciprocal that overflows leaves every code 0."""
    step = step_of(form, extent)
    zero = full_like(constant(0, step), step)
    inverse = select(step == zero, zero, constant(1, step) / step)
    usable = absolute(inverse) < constant(float("inf"), step)
    scale, least = half(form, step), half(form, lowest)
    refused = is_special(form, scale) | is_special(form, least)
    return Parameters(scale, least, select(usable, inverse, zero), shift_of(form, usable, lowest), refused)


@by_type
def step_of(form, extent):
    """Scale before it is rounded to float16; the codes are taken with this one."""
    steps = form.row.steps
    return lambda form, extent: extent / constant(steps, extent)


@by_type
def half(form, x):
    """Bits of a parameter as it is stored."""
    parameter = form.parameter
    return lambda form, x: encode(x, parameter)


@by_type
def is_special(form, bits):
    """Mask of parameters that are infinite or NaN."""
    infinity = form.parameter.row.infinity
    return lambda form, bits: (bits & constant(infinity, bits)) == constant(infinity, bits)


@by_type
def shift_of(form, usable, lowest):
    """What `codes_of` needs beside the reciprocal: the smallest value, or what to add before the fraction is cut."""
    if form.row.extent == "signed":
        half_up, least = form.row.zero + 0.5, 0.5
        return lambda form, usable, lowest: select(usable, constant(half_up, lowest), full_like(least, lowest))
    return lambda form, usable, lowest: lowest


@by_type
def codes_of(form, x, inverse, shift):
    """Codes of a block as int32; in a block that is refused they are undefined."""
    most = float(2**form.row.bits - 1)

    def half_away(form, x, inverse, shift):
        # half less one ulp, with the sign of x: the sum's fraction is cut to the nearest whole number, halves away
        word = bitcast(x, types.int32)
        towards = bitcast((word & constant(_SIGN, word)) | constant(_BELOW_HALF, word), types.float32)
        return bounded_to_integer(x * inverse + towards, types.int32)

    def signed_extreme(form, x, inverse, shift):
        return bounded_to_integer(minimum(x * inverse + shift, constant(most, x)), types.int32)

    def from_lowest(form, x, inverse, shift):
        return bounded_to_integer(minimum((x - shift) * inverse + constant(0.5, x), constant(most, x)), types.int32)

    return {"magnitude": half_away, "signed": signed_extreme, "range": from_lowest}[form.row.extent]


@by_type
def put_parameters(form, dst, i, scale, least):
    """Write what the block at dst[i] begins with."""
    bits = form.parameter.bits

    def one(form, dst, i, scale, least):
        store(cast_pointer(advance(dst, i), bits), 0, scale)

    def two(form, dst, i, scale, least):
        where = cast_pointer(advance(dst, i), bits)
        store(where, 0, scale)
        store(where, 1, least)

    return two if form.row.extent == "range" else one


@by_type
def put_codes(form, dst, i, codes):
    """Write the codes of the block at dst[i]."""
    head, bits = form.row.head, form.row.bits

    def bytes_(form, dst, i, codes):
        store(dst, i + head, convert(codes, types.uint8))

    def nibbles(form, dst, i, codes):
        put_nibbles(dst, i + head, codes)

    def nibbles_and_fifth_bits(form, dst, i, codes):
        store(cast_pointer(advance(dst, i + head), types.uint32), 0, mask_to_bits(codes > constant(15, codes)))
        put_nibbles(dst, i + head + 4, codes)

    return {8: bytes_, 4: nibbles, 5: nibbles_and_fifth_bits}[bits]


@inline
def put_nibbles(dst, i, codes):
    """Write the four low bits of codes to dst[i] onwards, the first half of the codes in the low halves of bytes."""
    low, high = lower(codes), upper(codes)
    store(dst, i, convert((low & constant(15, low)) | (high << constant(4, high)), types.uint8))


# --- dequantize -------------------------------------------------------------------------------------------------------


def dequantize_blocks(form, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Decode blocks start..stop; src and dst begin with block `origin`."""
    src, dst = advance(src, -origin * nbytes(form)), advance(dst, -origin * BLOCK)
    p = stream_groups(form, src, dst, start, stop)
    while p < stop:
        put_values(form, src, p, dst, p * BLOCK)
        p += 1
    return 0


@inline
def put_values(form, src, p, dst, i):
    """Decode block p to dst[i] onwards."""
    at = p * nbytes(form)
    prefetch(src, at + nbytes(form) * GROUP)
    value = value_of(form, src, at)
    # stores of half a register: NumPy's arrays begin 16 bytes after a line, and whole registers would all cross one
    first, second = lower(value), upper(value)
    store(dst, i, lower(first))
    store(dst, i + 8, upper(first))
    store(dst, i + 16, lower(second))
    store(dst, i + 24, upper(second))


@by_type
def value_of(form, src, i):
    """Values of the block at src[i]."""
    zero, parameter, bits = form.row.zero, form.parameter, form.parameter.bits

    def scaled(form, src, i):
        q = whole_codes(form, src, i)
        where = cast_pointer(advance(src, i), bits)
        return convert(q - constant(zero, q), types.float32) * decode(load(where, 0, bits), parameter)

    def scaled_and_moved(form, src, i):
        q = convert(whole_codes(form, src, i), types.float32)
        where = cast_pointer(advance(src, i), bits)
        return q * decode(load(where, 0, bits), parameter) + decode(load(where, 1, bits), parameter)

    return scaled_and_moved if form.row.extent == "range" else scaled


@by_type
def whole_codes(form, src, i):
    """Codes of the block at src[i] as int32."""
    head, bits = form.row.head, form.row.bits
    row = Vec(types.uint8, BLOCK)

    def bytes_(form, src, i):
        return convert(convert(load(src, i + head, row), types.int8), types.int32)

    def nibbles(form, src, i):
        return load_nibbles(src, i + head)

    def nibbles_and_fifth_bits(form, src, i):
        high = bits_to_mask(load(cast_pointer(advance(src, i + head), types.uint32), 0, types.uint32))
        q = load_nibbles(src, i + head + 4)
        return select(high, q | constant(16, q), q)

    return {8: bytes_, 4: nibbles, 5: nibbles_and_fifth_bits}[bits]


@inline
def load_nibbles(src, i):
    """What `put_nibbles` wrote to src[i] onwards."""
    both = convert(load(src, i, _NIBBLES), types.int32)
    return join(both & constant(15, both), both >> constant(4, both))


@by_type
def stream_groups(form, src, dst, start, stop):
    """Decode whole groups of blocks from `start` on past the cache, where the form says so; where that ended."""
    return _stream_groups if form.streaming else lambda form, src, dst, start, stop: start


@inline
def _stream_groups(form, src, dst, start, stop):
    stage, p = stage_at(scratch(_ROOM, types.uint8), advance(dst, start * BLOCK)), start
    while p <= stop - GROUP:
        values_of_group = cast_pointer(place(stage), types.float32)
        for k in range(GROUP):
            put_values(form, src, p + k, values_of_group, k * BLOCK)
        stage = flush(stage, _STAGED * 4)
        p += GROUP
    finish(stage)
    return p
