"""Codes of fewer than 8 bits: dense in memory, the first in the lowest bits, one a lane in registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import register_model

from fastq.kernels import group_of
from fastq.simd.vec import (
    Element,
    ElementModel,
    Vec,
    bitcast,
    by_type,
    constant,
    convert,
    emit_shuffle,
    inline,
    intrinsic,
)

_WORDS = {2: types.uint16, 4: types.uint32, 8: types.uint64}


class Bits(Element):
    """Type of codes of 1 to 7 bits.

    Parameters
    ----------
    bits : int
        Width of a code.
    signed : bool
        Whether codes are two's complement.
    highest_first : bool
        Whether the first of eight codes of one bit is in the highest bit of their byte.
    """

    def __init__(self, bits: int, signed: bool, highest_first: bool = False) -> None:
        self.signed, self.highest_first = signed, highest_first
        self.held = types.int8 if signed else types.uint8
        self.group = group_of(bits)
        super().__init__(f"Bits({bits}, {signed}, {highest_first})", bits)

    @property
    def word(self) -> types.Integer:
        """Integer with a byte for each code of a group."""
        return _WORDS[self.group]

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """How pairs of fields join, from codes in a byte each to a group without gaps.

        Each step has how far the upper field of a pair moves down, the mask of the lower fields, and that of the upper
        ones where they come to lie.
        """
        steps = []
        for field in (8, 16, 32):
            if field < self.word.bitwidth:
                width = field // 8 * self.bitwidth
                steps.append((field - width, self.mask(width, 2 * field), self.mask(width, 2 * field) << width))
        return steps

    def mask(self, width: int, field: int) -> int:
        """Return the lowest `width` bits of every field of a word."""
        return sum(((1 << width) - 1) << at for at in range(0, self.word.bitwidth, field))


register_model(Bits)(ElementModel)


# --- many codes -------------------------------------------------------------------------------------------------------


def _in_order(kind: Bits, n: int) -> list[int]:
    return [k ^ 7 if kind.highest_first else k for k in range(n)]


@intrinsic
def _ordered(typingctx: Any, codes: Any, kind: Any) -> Any:
    """Codes as they follow each other from the lowest bits up, or back."""
    order = _in_order(kind.instance_type, codes.n)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_shuffle(builder, args[0], order)

    return codes(codes, kind), emit


@intrinsic
def _gathered(typingctx: Any, codes: Any, kind: Any) -> Any:
    """The bytes that hold a group, of the bytes that held its codes."""
    form = kind.instance_type
    kept = [k for k in range(codes.n) if k % form.group < form.group * form.bitwidth // 8]

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_shuffle(builder, args[0], kept)

    return Vec(types.uint8, len(kept))(codes, kind), emit


@intrinsic
def _scattered(typingctx: Any, packed: Any, kind: Any) -> Any:
    """As many bytes as there are codes, zero after those that hold a group."""
    form = kind.instance_type
    held = form.group * form.bitwidth // 8
    n = packed.n // held * form.group
    order = [k // form.group * held + k % form.group if k % form.group < held else packed.n for k in range(n)]

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_shuffle(builder, args[0], order, ir.Constant(args[0].type, None))

    return Vec(types.uint8, n)(packed, kind), emit


def _joining(steps: list[tuple[int, int, int]]) -> Any:
    if not steps:
        return inline(lambda words: words)
    (distance, low, high), following = steps[0], _joining(steps[1:])

    def join(words):  # type: ignore[no-untyped-def]
        upper = (words >> constant(distance, words)) & constant(high, words)
        return following((words & constant(low, words)) | upper)

    return inline(join)


def _parting(steps: list[tuple[int, int, int]]) -> Any:
    if not steps:
        return inline(lambda words: words)
    (distance, low, high), following = steps[-1], _parting(steps[:-1])

    def part(words):  # type: ignore[no-untyped-def]
        upper = (words & constant(high, words)) << constant(distance, words)
        return following((words & constant(low, words)) | upper)

    return inline(part)


@by_type
def pack_lanes(codes: Any, kind: Any) -> Any:
    """Bytes of the codes in 8 bit lanes, whose higher bits do not count; the lanes are whole groups."""
    form = kind.instance_type
    word, mask, join = form.word, form.mask(form.bitwidth, 8), _joining(form.steps)

    def packed(codes, kind):  # type: ignore[no-untyped-def]
        words = bitcast(_ordered(codes, kind), word)
        return _gathered(bitcast(join(words & constant(mask, words)), types.uint8), kind)

    return packed


@by_type
def unpack_lanes(packed: Any, kind: Any) -> Any:
    """The codes in bytes, in 8 bit lanes."""
    form = kind.instance_type
    word, part, held = form.word, _parting(form.steps), form.held
    sign = -(1 << (form.bitwidth - 1))
    if not form.signed:
        return lambda packed, kind: _ordered(bitcast(part(bitcast(_scattered(packed, kind), word)), held), kind)

    def unpacked(packed, kind):  # type: ignore[no-untyped-def]
        codes = _ordered(bitcast(part(bitcast(_scattered(packed, kind), word)), held), kind)
        return (codes ^ constant(-sign, codes)) + constant(sign, codes)

    return unpacked


# --- one code ---------------------------------------------------------------------------------------------------------


@by_type
def _place(i: Any, kind: Any) -> Any:
    """Byte of code i, and how far up its lowest bit is there."""
    form = kind.instance_type
    bits = form.bitwidth
    if form.highest_first:
        return lambda i, kind: (i >> 3, 7 - (i & 7))
    return lambda i, kind: (i * bits >> 3, i * bits & 7)


@by_type
def fetch_code(where: Any, i: Any, kind: Any) -> Any:
    """Code i of the bytes at a pointer."""
    form = kind.instance_type
    bits, held, top = form.bitwidth, form.held, 64 - form.bitwidth
    signed = form.signed

    def fetched(where, i, kind):  # type: ignore[no-untyped-def]
        k, up = _place(i, kind)
        word = types.int64(where[k]) >> up
        if up + bits > 8:
            word |= types.int64(where[k + 1]) << (8 - up)
        word <<= top
        word = word >> top if signed else (word >> top) & ((1 << bits) - 1)
        return convert(word, held)

    return fetched


@by_type
def put_code(where: Any, i: Any, code: Any, kind: Any) -> Any:
    """Write code i of the bytes at a pointer, the codes before it in the same byte being there, and zeros after it."""
    form = kind.instance_type
    bits, mask = form.bitwidth, (1 << form.bitwidth) - 1
    first_up = 7 if form.highest_first else 0

    def put(where, i, code, kind):  # type: ignore[no-untyped-def]
        k, up = _place(i, kind)
        word = (types.int64(code) & mask) << up
        before = types.int64(0) if up == first_up else types.int64(where[k])
        where[k] = convert(before | word, types.uint8)
        if up + bits > 8:
            where[k + 1] = convert(word >> 8, types.uint8)

    return put
