"""Loops that decode blocks of GGUF other than those of 32 with float16 parameters."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit import intrinsic, njit, specialize, target
from fastq.engine.simd import (
    LINE,
    Vec,
    advance,
    bitcast,
    cast_pointer,
    constant,
    convert,
    join,
    load,
    lower,
    prefetch,
    scratch,
    select,
    store,
    upper,
)
from fastq.engine.simd.vector import call_llvm
from fastq.formats.gguf import (
    CODEBOOK,
    DOUBLED,
    CodebookFormat,
    FloatFormat,
    SuperFormat,
    TernaryFormat,
)
from fastq.kernels.ggml.spec import from_half, nbytes, scale_beside, size, streams
from fastq.kernels.traversal.stores import flush, stage_at, store_tail, write_pointer

_U8_8, _U8_16 = Vec(types.uint8, 8), Vec(types.uint8, 16)
_STAGED = 256  # values
_ROOM = _STAGED * 4 + 2 * LINE  # bytes of as many, as they are staged
_AHEAD = 1024  # bytes of blocks that are prefetched


@njit
def dequantize_groups(spec, operands, args, units):
    """Decode blocks start..stop; src and dst begin with block `origin`."""
    src = advance(operands.src, -units.origin * nbytes(spec))
    dst = advance(operands.dst, -units.origin * size(spec))
    if streams(spec):
        stage, p = stage_at(scratch(_ROOM, types.uint8), advance(dst, units.start * size(spec))), units.start
        while p < units.stop:
            blocks = min(_STAGED // size(spec), units.stop - p)
            prefetch(src, p * nbytes(spec) + _AHEAD)
            for k in range(blocks):
                x = advance(src, (p + k) * nbytes(spec))
                decode_block(spec, x, advance(cast_pointer(write_pointer(stage), types.float32), k * size(spec)))
            stage = flush(stage, blocks * size(spec) * 4)
            p += blocks
        store_tail(stage)
        return 0
    for p in range(units.start, units.stop):
        decode_block(spec, advance(src, p * nbytes(spec)), advance(dst, p * size(spec)))
    return 0


@specialize
def decode_block(spec, src, dst):
    """Decode one block."""
    row = spec.row
    if isinstance(row, SuperFormat):
        return {2: _two, 3: _three, 4: _four, 5: _five, 6: _six}[row.bits]
    loops: dict[type, Any] = {CodebookFormat: _codebook, TernaryFormat: _ternary, FloatFormat: _floats}
    by_format = loops[type(row)]
    return lambda spec, src, dst: by_format(spec, src, dst)


@njit
def store_floats(dst, i, value):
    """Store 16 numbers in halves of a register: NumPy's arrays begin 16 bytes after a line."""
    store(dst, i, lower(value))
    store(dst, i + 8, upper(value))


@njit
def put(dst, i, codes, scale):
    """Store 16 unsigned or signed bytes times a scale."""
    store_floats(dst, i, convert(convert(codes, types.int32), types.float32) * scale)


@njit
def put_less(dst, i, codes, scale, least):
    """Store 16 bytes times a scale, less something."""
    store_floats(dst, i, scale * convert(convert(codes, types.int32), types.float32) - least)


@njit
def parameter(spec, src, i):
    """Load a float16 parameter."""
    return from_half(spec, load(cast_pointer(advance(src, i), types.uint16), 0, types.uint16))


# --- K-quants ---------------------------------------------------------------------------------------------------------


@njit
def _two(spec, src, dst):
    steps, lows = scratch(16, types.float32), scratch(16, types.float32)
    pairs = load(src, 0, _U8_16)
    low = parameter(spec, src, 82) * convert(convert(pairs >> constant(4, pairs), types.int32), types.float32)
    step = parameter(spec, src, 80) * convert(convert(pairs & constant(15, pairs), types.int32), types.float32)
    store(lows, 0, low)
    store(steps, 0, scale_beside(low, step))
    for j in range(16):
        shift = j % 8 // 2 * 2
        both = load(src, 16 + j // 8 * 32 + j % 2 * 16, _U8_16)
        codes = (both >> constant(shift, both)) & constant(3, both)
        put_less(dst, 16 * j, codes, steps[j], lows[j])


@njit
def _three(spec, src, dst):
    steps, scales = scratch(16, types.float32), scratch(16, types.uint8)
    words, stored = cast_pointer(scales, types.uint32), cast_pointer(advance(src, 96), types.uint32)
    a, b, c = load(stored, 0, types.uint32), load(stored, 1, types.uint32), load(stored, 2, types.uint32)
    low, high = types.uint32(0x0F0F0F0F), types.uint32(0x03030303)
    store(words, 0, (a & low) | ((c & high) << types.uint32(4)))
    store(words, 1, (b & low) | (((c >> types.uint32(2)) & high) << types.uint32(4)))
    store(words, 2, ((a >> types.uint32(4)) & low) | (((c >> types.uint32(4)) & high) << types.uint32(4)))
    store(words, 3, ((b >> types.uint32(4)) & low) | (((c >> types.uint32(6)) & high) << types.uint32(4)))
    whole = convert(load(scales, 0, _U8_16), types.int32)
    store(steps, 0, parameter(spec, src, 108) * convert(whole - constant(32, whole), types.float32))
    for j in range(16):
        shift = j % 8 // 2 * 2
        both = load(src, 32 + j // 8 * 32 + j % 2 * 16, _U8_16)
        top = (load(src, j % 2 * 16, _U8_16) >> constant(j // 2, both)) & constant(1, both)
        codes = ((both >> constant(shift, both)) & constant(3, both)) | (top << constant(2, both))
        put(dst, 16 * j, convert(codes - constant(4, codes), types.int8), steps[j])


@njit
def load_pairs(spec, src, steps, lows):
    """Compute the scales and smallest values of eight sub-blocks."""
    scales = scratch(16, types.uint8)
    words, stored = cast_pointer(scales, types.uint32), cast_pointer(advance(src, 4), types.uint32)
    a, b, c = load(stored, 0, types.uint32), load(stored, 1, types.uint32), load(stored, 2, types.uint32)
    six, low, high = types.uint32(0x3F3F3F3F), types.uint32(0x0F0F0F0F), types.uint32(0x03030303)
    store(words, 0, a & six)
    store(words, 1, (c & low) | (((a >> types.uint32(6)) & high) << types.uint32(4)))
    store(words, 2, b & six)
    store(words, 3, ((c >> types.uint32(4)) & low) | (((b >> types.uint32(6)) & high) << types.uint32(4)))
    whole = convert(convert(load(scales, 0, _U8_16), types.int32), types.float32)
    low = parameter(spec, src, 2) * upper(whole)
    store(lows, 0, low)
    store(steps, 0, scale_beside(low, parameter(spec, src, 0) * lower(whole)))


@njit
def _four(spec, src, dst):
    steps, lows = scratch(8, types.float32), scratch(8, types.float32)
    load_pairs(spec, src, steps, lows)
    for j in range(4):
        for i in range(0, 32, 16):
            both = load(src, 16 + 32 * j + i, _U8_16)
            put_less(dst, 64 * j + i, both & constant(15, both), steps[2 * j], lows[2 * j])
            put_less(dst, 64 * j + 32 + i, both >> constant(4, both), steps[2 * j + 1], lows[2 * j + 1])


@njit
def _five(spec, src, dst):
    steps, lows = scratch(8, types.float32), scratch(8, types.float32)
    load_pairs(spec, src, steps, lows)
    for j in range(4):
        for i in range(0, 32, 16):
            both, high = load(src, 48 + 32 * j + i, _U8_16), load(src, 16 + i, _U8_16)
            one, four = constant(1, both), constant(4, both)
            first_high = ((high >> constant(2 * j, high)) & one) << four
            second_high = ((high >> constant(2 * j + 1, high)) & one) << four
            put_less(dst, 64 * j + i, (both & constant(15, both)) | first_high, steps[2 * j], lows[2 * j])
            put_less(dst, 64 * j + 32 + i, (both >> four) | second_high, steps[2 * j + 1], lows[2 * j + 1])


@njit
def _six(spec, src, dst):
    steps = scratch(16, types.float32)
    scales = convert(convert(load(src, 192, _U8_16), types.int8), types.int32)
    store(steps, 0, parameter(spec, src, 208) * convert(scales, types.float32))
    for n in range(2):
        for i in range(0, 32, 16):
            low, next_, high = (
                load(src, 64 * n + i, _U8_16),
                load(src, 64 * n + 32 + i, _U8_16),
                load(src, 128 + 32 * n + i, _U8_16),
            )
            at, j, half = 128 * n + i, 8 * n + i // 16, constant(15, low)
            put(dst, at, _six_bits(low & half, high, 0), steps[j])
            put(dst, at + 32, _six_bits(next_ & half, high, 2), steps[j + 2])
            put(dst, at + 64, _six_bits(low >> constant(4, low), high, 4), steps[j + 4])
            put(dst, at + 96, _six_bits(next_ >> constant(4, low), high, 6), steps[j + 6])


@njit
def _six_bits(low, high, shift):
    code = low | (((high >> constant(shift, high)) & constant(3, high)) << constant(4, high))
    return convert(code - constant(32, code), types.int8)


# --- codebooks, floating point and ternary ----------------------------------------------------------------------------


# the instruction that looks 16 bytes up in 16 others, which LLVM does not find by itself
_LOOK_UP = "llvm.x86.ssse3.pshuf.b.128" if target().has("ssse3") else ""
_LOOK_UP = "llvm.aarch64.neon.tbl1.v16i8" if target().is_arm else _LOOK_UP


def _looked_up(name: str, table: tuple[int, ...], doc: str):
    """Make an intrinsic that looks 16 nibbles up in a table of signed bytes."""

    def look_up(typingctx, codes):
        def emit(context, builder, sig, args):
            if _LOOK_UP:
                bytes_ = ir.Constant(args[0].type, [number % 256 for number in table])
                return call_llvm(builder, _LOOK_UP, args[0].type, [bytes_, args[0]])
            found = ir.Constant(ir.VectorType(ir.IntType(8), codes.n), [table[0]] * codes.n)
            for code, number in enumerate(table[1:], 1):
                this = builder.icmp_unsigned("==", args[0], ir.Constant(args[0].type, [code] * codes.n))
                found = builder.select(this, ir.Constant(found.type, [number] * codes.n), found)
            return found

        return Vec(types.int8, codes.n)(codes), emit

    look_up.__name__, look_up.__doc__ = name, doc
    return intrinsic(look_up)


in_codebook = _looked_up("in_codebook", CODEBOOK, "Look codes up in the codebook.")
doubled = _looked_up("doubled", DOUBLED, "Decode codes of float4_e2m1fn, doubled.")


@specialize
def _codebook(spec, src, dst):
    def of_one(spec, src, dst):
        scale, both = parameter(spec, src, 0), load(src, 2, _U8_16)
        put(dst, 0, in_codebook(both & constant(15, both)), scale)
        put(dst, 16, in_codebook(both >> constant(4, both)), scale)

    def of_eight(spec, src, dst):
        d, high = parameter(spec, src, 0), load(cast_pointer(advance(src, 2), types.uint16), 0, types.uint16)
        for j in range(8):
            low = (convert(src[4 + j // 2], types.int32) >> (4 * (j % 2))) & 15
            whole = (low | ((convert(high, types.int32) >> (2 * j)) & 3) << 4) - 32
            scale, both = d * convert(whole, types.float32), load(src, 8 + 16 * j, _U8_16)
            put(dst, 32 * j, in_codebook(both & constant(15, both)), scale)
            put(dst, 32 * j + 16, in_codebook(both >> constant(4, both)), scale)

    return of_one if spec.row.size == 32 else of_eight


@specialize
def _floats(spec, src, dst):
    def power(spec, src, dst):
        both, code = load(src, 1, _U8_16), convert(src[0], types.int32)
        word = 0x200000 << code if code < 2 else (code - 1) << 23
        scale = bitcast(convert(word, types.int32), types.float32)
        put(dst, 0, doubled(both & constant(15, both)), scale)
        put(dst, 16, doubled(both >> constant(4, both)), scale)

    def e4m3(spec, src, dst):
        for j in range(4):
            both, code = load(src, 4 + 8 * j, _U8_8), convert(src[j], types.int32)
            exponent, mantissa = (code >> 3) & 15, code & 7
            word = bitcast(convert(((exponent + 119) << 23) | (mantissa << 20), types.int32), types.float32)
            tiny = convert(mantissa, types.float32) * constant(2.0**-10, word)
            scale = select(exponent == 0, tiny, word)
            scale = select(code == 0x7F, constant(0, scale), scale)
            put(dst, 16 * j, doubled(join(both & constant(15, both), both >> constant(4, both))), scale)

    return power if spec.row.scale == "e8m0" else e4m3


@specialize
def _ternary(spec, src, dst):
    def of_two_bits(spec, src, dst):
        d = parameter(spec, src, 64)
        for j in range(2):
            for i in range(0, 32, 16):
                both = load(src, 32 * j + i, _U8_16)
                for k in range(4):
                    code = (both >> constant(2 * k, both)) & constant(3, both)
                    put(dst, 128 * j + 32 * k + i, convert(code - constant(1, code), types.int8), d)

    def in_base_three(spec, src, dst):
        d, last = parameter(spec, src, 52), scratch(16, types.uint8)
        for i in range(0, 48, 16):
            packed = load(src, i, _U8_16)
            at, apart = (i, 32) if i < 32 else (160, 16)
            for k in range(5):
                put(dst, at + apart * k, highest_trit(packed), d)
                packed = packed * constant(3, packed)
        for k in range(4):  # of four bytes
            for i in range(4):
                last[4 * k + i] = src[48 + i] if k == 0 else last[4 * k + i - 4] * 3
        put(dst, 240, highest_trit(load(last, 0, _U8_16)), d)

    return of_two_bits if spec.row.trits == 4 else in_base_three


@njit
def highest_trit(packed):
    """Return the highest digit in base 3 of fractions of 256, less 1."""
    wide = convert(packed, types.uint16)
    digit = (wide * constant(3, wide)) >> constant(8, wide)
    return convert(digit - constant(1, digit), types.int8)
