"""Bytes of blocks of GGUF, written and read as the table of fields of a format says.

Sixteen blocks side by side are numbers in memory, number n of all of them at ``n * LANES``, and rows of bytes likewise.
Instructions are made here field by field, without loops: all shifts and places are constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from fastq.engine import simd as v
from fastq.formats.gguf import BlockFormat
from fastq.formats.gguf_field import Field
from fastq.kernels.ggml.spec import GROUP

LANES = GROUP
_MOST = 4  # rows that are written at a time, a cache line

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


class BlockNumbers(NamedTuple):
    """Pointers to the numbers of sixteen blocks: float16 parameters or scales of 8 bits, and bytes."""

    d: Any
    min: Any
    scales: Any
    mins: Any
    signs: Any
    codes: Any


def _runs(field: Field, most: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the first byte of words that follow each other, how many they are, and the first number of each part.

    Up to `most` words of a byte are taken together, as far as the numbers of each part follow each other, too. Wider
    words come one by one.
    """
    together = math.gcd(most, field.stride) if field.word == 1 else 1
    for w in range(0, field.words, together):
        group, i = divmod(w, field.stride)
        firsts = [field.first + (group * field.parts + k) * field.stride + i for k in range(field.parts)]
        yield field.at + w * field.word, together, firsts


def _splat(kind: ir.Type, number: int) -> ir.Constant:
    """Return a constant with a number in each lane; of a scalar type the number itself."""
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _emit_shift(builder, value, left: int):
    """Emit a shift to the left, or to the right where `left` is negative."""
    if left == 0:
        return value
    return (builder.shl if left > 0 else builder.lshr)(value, _splat(value.type, abs(left)))


def _emit_mask(builder, value, bits: int):
    return builder.and_(value, _splat(value.type, (1 << bits) - 1))


def _emit_part(builder, form: BlockFormat, field: Field, number, k: int):
    """Emit the bits of part k of a word; the highest bits of a number are not cut off."""
    number = _emit_shift(builder, number, -field.shift)
    if number.type.element.width < 8 * field.word:
        number = builder.zext(number, ir.VectorType(ir.IntType(8 * field.word), number.type.count))
    if field.shift + field.bits < form.width(field.of):
        number = _emit_mask(builder, number, field.bits)
    return _emit_shift(builder, number, field.low + k * field.pitch)


def _digits(builder, numbers: list[Any]):
    """Emit the byte whose digits in base 3 are these, the highest first: a fraction of 243, as one of 256, rounded up.

    Fewer than five digits are followed by zeros.
    """
    wide = ir.VectorType(_I32, numbers[0].type.count)
    total = _splat(wide, 0)
    for k in range(5):
        total = builder.mul(total, _splat(wide, 3))
        if k < len(numbers):
            total = builder.add(total, builder.zext(numbers[k], wide))
    total = builder.add(_emit_shift(builder, total, 8), _splat(wide, 242))
    return _emit_shift(builder, builder.mul(total, _splat(wide, 69043)), -24)  # over 243


def _vector_at(builder, memory, index, count: int):
    """Emit a pointer to an array of elements."""
    kind = ir.VectorType(memory.type.pointee, count)
    return builder.bitcast(builder.gep(memory, [index]), kind.as_pointer())


def _emit_load(builder, memory, index, count: int):
    """Emit a load of `count` elements from memory[index] on, at any address."""
    value = builder.load(_vector_at(builder, memory, index, count))
    value.align = 1
    return value


def _emit_store(builder, memory, index, value):
    """Emit a store of lanes to memory[index] onwards, at any address."""
    builder.store(value, _vector_at(builder, memory, index, value.type.count)).align = 1


def _emit_rows(builder, form: BlockFormat, fields: tuple[Field, ...], memories: Any, most: int) -> dict[int, Any]:
    """Emit rows of bytes of the numbers in memory, a group at a time, by the index of its first number."""
    rows: dict[int, Any] = {}
    for field in fields:
        for at, together, firsts in _runs(field, most):
            numbers = [_emit_load(builder, memories[field.of], _I64(n * LANES), together * LANES) for n in firsts]
            if field.base == 3:
                word = _digits(builder, numbers)
            else:
                parts = [_emit_part(builder, form, field, number, k) for k, number in enumerate(numbers)]
                word = parts[0]
                for part in parts[1:]:
                    word = builder.or_(word, part)
            for k in range(field.word):
                row = _emit_shift(builder, word, -8 * k)
                if row.type.element != _I8:
                    row = builder.trunc(row, ir.VectorType(_I8, together * LANES))
                rows[at + k] = builder.or_(rows[at + k], row) if at + k in rows else row
    return rows


def _memories(builder, numbers: types.NamedTuple, value) -> dict[str, Any]:
    """Return the pointers of a `BlockNumbers` value by their names."""
    return {name: builder.extract_value(value, k) for k, name in enumerate(numbers.fields)}


@v.instruction(lambda spec, numbers, rows: types.void(spec, numbers, rows))
def pack(context, builder, sig, spec, numbers, rows):
    """Write the bytes of sixteen blocks as rows: row k has byte k of each."""
    form = sig.args[0].block_format
    memories = _memories(builder, sig.args[1], numbers)
    for at, row in _emit_rows(builder, form, form.fields, memories, _MOST).items():
        _emit_store(builder, rows, _I64(at * LANES), row)


@v.instruction(lambda spec, numbers: types.void(spec, numbers))
def keep_stored(context, builder, sig, spec, numbers):
    """Write the scales and smallest values of sub-blocks as a reader finds them: some fall into bits of others."""
    form = sig.args[0].block_format
    memories = _memories(builder, sig.args[1], numbers)
    fields = form.fields_of("scales", "mins")
    rows = _emit_rows(builder, form, fields, memories, 1)
    stored: dict[tuple[str, int], Any] = {}
    for field in fields:
        for at, _, firsts in _runs(field, 1):
            for k, n in enumerate(firsts):
                bits = _emit_mask(builder, _emit_shift(builder, rows[at], -field.low - k * field.pitch), field.bits)
                bits = _emit_shift(builder, bits, field.shift)
                stored[field.of, n] = builder.or_(stored[field.of, n], bits) if (field.of, n) in stored else bits
    for (name, n), value in stored.items():
        _emit_store(builder, memories[name], _I64(n * LANES), value)


@v.instruction(
    lambda spec, dst, i, d, least, codes: types.void(spec, dst, types.intp, types.uint16, types.uint16, codes)
)
def store_block(context, builder, sig, spec, dst, i, d, least, codes):
    """Store the numbers of one block to dst[i] onwards: bits of float16 parameters, and all codes as int32 lanes."""
    form = sig.args[0].block_format
    for field in form.fields:
        pointer = builder.gep(dst, [builder.add(i, _I64(field.at))])
        value = _codes_in(builder, form, field, codes) if field.of == "codes" else {"d": d, "min": least}[field.of]
        builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 1


def _codes_in(builder, form: BlockFormat, field: Field, codes):
    """Emit the bytes of a field of codes with one lane for each code.

    Codes and the words that are made of them are lanes of int32, though a word is a byte: a part that reaches beyond
    it, of a number whose highest bits are not cut off, ends there, as in a C cast.
    """
    if field.bits == field.stride == 1:  # a mask of lanes is those bits
        mask = builder.trunc(_emit_shift(builder, codes, -field.shift), ir.VectorType(ir.IntType(1), field.numbers))
        return builder.bitcast(mask, ir.IntType(field.numbers))
    # for each word of the field the numbers of its parts
    numbers_of_words = [numbers for _, _, numbers in _runs(field, 1)]
    value = None
    for k in range(field.parts):
        part_of_words = v.emit_shuffle(builder, codes, [numbers[k] for numbers in numbers_of_words])
        part = _emit_part(builder, form, field, part_of_words, k)
        value = part if value is None else builder.or_(value, part)
    return builder.trunc(value, ir.VectorType(_I8, field.words))


# --- read -------------------------------------------------------------------------------------------------------------


def emit_numbers(builder, form: BlockFormat, of: str, src, first: int, n: int, kind: ir.IntType = _I8):
    """Emit n numbers of a kind of the block at src, as bytes or wider integers."""
    value = None
    for field in form.fields_of(of):
        if field.first <= first < field.first + field.numbers:
            bits = _emit_field(builder, field, src, first - field.first, n, kind)
            value = bits if value is None else builder.or_(value, bits)
    return value


def _emit_field(builder, field: Field, src, first: int, n: int, kind: ir.IntType):
    """Emit the bits that a field has of n of its numbers."""
    lanes = ir.VectorType(kind, n)
    if field.bits == field.stride == field.pitch == field.word == kind.width // 8 == 1:  # bits that are a mask of lanes
        word = _emit_load(builder, src, _I64(field.at + first // 8), n // 8)
        mask = builder.bitcast(word, ir.VectorType(ir.IntType(1), n))
        return builder.select(mask, _splat(lanes, 1 << field.shift), _splat(lanes, 0))
    if n > field.stride > 1:
        halves = [_emit_field(builder, field, src, k, n // 2, kind) for k in (first, first + n // 2)]
        return v.emit_shuffle(builder, halves[0], list(range(n)), halves[1])
    places = [_place_of(field, number) for number in range(first, first + n)]
    words = _words(builder, field, src, [word for word, _ in places])
    if field.base == 3:  # the highest digit, after a multiplication of which a byte is left
        word = builder.mul(words, _splat(lanes, 3 ** places[0][1] % 256))
        wide = ir.VectorType(ir.IntType(16), n)
        return builder.trunc(_emit_shift(builder, builder.mul(builder.zext(word, wide), _splat(wide, 3)), -8), lanes)
    if field.word < kind.width // 8:
        words = builder.zext(words, lanes)
    shifts = [field.low + part * field.pitch for _, part in places]
    bits = _emit_mask(builder, builder.lshr(words, ir.Constant(words.type, shifts)), field.bits)
    if field.word > kind.width // 8:
        bits = builder.trunc(bits, lanes)
    return _emit_shift(builder, bits, field.shift)


def _place_of(field: Field, number: int) -> tuple[int, int]:
    """Return the word of a number, and which part of it that is."""
    part, i = divmod(number, field.stride)
    group, k = divmod(part, field.parts)
    return group * field.stride + i, k


def _words(builder, field: Field, src, places: list[int]):
    """Load words of a field, which are in these places."""
    first = min(places)
    count = max(places) - min(places) + 1
    kind = ir.VectorType(ir.IntType(8 * field.word), count)
    pointer = builder.gep(src, [_I64(field.at + first * field.word)])
    words = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    words.align = 1
    places = [place - first for place in places]
    return words if places == list(range(count)) else v.emit_shuffle(builder, words, places)


def with_all_codes(visit: Any, prepared: Any = None) -> Any:
    """Make the loop that calls ``visit(spec, n, codes, context)`` with the codes n to n + 15 of a block.

    ``prepared(builder, form, src)`` returns what emits other bytes than codes from number n on.
    """

    @v.instruction(lambda spec, src, context: types.void(spec, src, context))
    def call_each(target, builder, sig, spec, src, context):
        form = sig.args[0].block_format
        kinds = sig.args[0], types.intp, v.Vec(types.uint8, LANES), sig.args[2]
        of_codes = partial(emit_numbers, builder, form, "codes", src, n=LANES)
        emit_bytes = of_codes if prepared is None else prepared(builder, form, src)
        for n in range(0, form.size, 2 * LANES):
            both = [emit_bytes(first=k) for k in (n, n + LANES)]
            for k, codes in zip((n, n + LANES), both, strict=True):
                target.call(visit, kinds, (spec, _I64(k), codes, context))

    return call_each


def _make_load_of_all(of: str, doc: str) -> Any:
    """Make an instruction that loads all numbers of a kind of the block at src, as bytes."""

    @v.instruction(lambda spec, src: v.Vec(types.uint8, spec.block_format.count(of))(spec, src), f"{of}_of", doc)
    def load_all(context, builder, sig, spec, src):
        form = sig.args[0].block_format
        value = None
        # fields hold numbers from their `first` on: between two firsts all numbers lie in the same fields
        for first, stop in pairwise([*sorted({field.first for field in form.fields_of(of)}), form.count(of)]):
            part = emit_numbers(builder, form, of, src, first, stop - first)
            value = part if value is None else v.emit_shuffle(builder, value, list(range(stop)), part)
        return value

    return load_all


scales_of = _make_load_of_all("scales", "Load the scales of sub-blocks.")
mins_of = _make_load_of_all("mins", "Load the smallest values of sub-blocks.")
units_of = _make_load_of_all("d", "Load scales of 8 bits.")


def _make_load_of_bits(of: str, doc: str) -> Any:
    """Make an instruction that loads the bits of a float16 parameter of the block at src."""

    @v.instruction(lambda spec, src: types.uint16(spec, src), f"{of}_bits", doc)
    def bits_of(context, builder, sig, spec, src):
        bits = emit_numbers(builder, sig.args[0].block_format, of, src, 0, 1, ir.IntType(16))
        return builder.extract_element(bits, ir.IntType(32)(0))

    return bits_of


unit_bits = _make_load_of_bits("d", "Load the bits of the scale, or of the unit of scales.")
least_bits = _make_load_of_bits("min", "Load the bits of the smallest value, or of the unit of smallest values.")
