"""Pack and unpack codes of 1 to 7 bits: dense in memory, in registers one a lane.

The first code is in the lowest bits unless `highest_first` is asked for, as binarized values do by default: it is
``bitorder="big"`` of the public functions.
"""

from __future__ import annotations

import functools

from llvmlite import ir
from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.storage import codes_in_group

_WORDS = {2: types.uint16, 4: types.uint32, 8: types.uint64}


class Bits(v.Element):
    """Type of codes of 1 to 7 bits, `signed` ones in two's complement.

    With `highest_first` the first of eight codes of one bit is in the highest bit of their byte.
    """

    def __init__(self, bits: int, signed: bool, highest_first: bool = False) -> None:
        self.signed = signed
        self.highest_first = highest_first
        self.code_type = types.int8 if signed else types.uint8
        self.group = codes_in_group(bits)
        self.group_bytes = self.group * bits // 8
        super().__init__(f"Bits({bits}, {signed}, {highest_first})", bits)

    @property
    def word(self) -> types.Integer:
        """Integer type with a byte for each code of a group."""
        return _WORDS[self.group]

    @property
    def merges(self) -> list[tuple[int, int, int]]:
        """Rounds of merging neighbouring fields of a word, from codes in a byte each to a group without gaps.

        A round is: how far the upper field of each pair moves down, the mask of the lower fields, and the mask of the
        upper fields in their new place. Codes of 4 bits have one, (4, 0x000F, 0x00F0): it makes ``a | b << 4`` of ``a |
        b << 8``.
        """
        merges = []
        for field in (8, 16, 32):
            if field < self.word.bitwidth:
                width = field // 8 * self.bitwidth
                merges.append((field - width, self.mask(width, 2 * field), self.mask(width, 2 * field) << width))
        return merges

    def mask(self, width: int, field: int) -> int:
        """Return a word with the lowest `width` bits of every field set."""
        return sum(((1 << width) - 1) << at for at in range(0, self.word.bitwidth, field))


class LowBits(v.Element):
    """Type of integers of 1 to 7 bits in the lowest bits of a byte each, as ml_dtypes has them."""

    def __init__(self, bits: int, signed: bool) -> None:
        self.code_bits = bits
        self.signed = signed
        self.code_type = types.int8 if signed else types.uint8
        super().__init__(f"LowBits({bits}, {signed})", 8)


@traced
def _extend_sign(codes, bits, signed):
    """Give codes in the lowest bits of bytes their sign, if they have one: of 4 bits 15 becomes (15 ^ 8) - 8, or -1."""
    sign = v.constant(1 << (bits - 1), codes)
    return (codes ^ sign) - sign if v.literal(signed) else codes


@traced
def from_low_bits(value, form):
    """Return the codes in the lowest bits of bytes."""
    codes = v.convert(value & v.constant((1 << form.code_bits) - 1, value), form.code_type)
    return _extend_sign(codes, form.code_bits, form.signed)


# --- many codes -------------------------------------------------------------------------------------------------------


def _in_order(kind: Bits, n: int) -> list[int]:
    """Return which lane each of n lanes comes from when codes are put in order: `highest_first` turns eights around."""
    return [k ^ 7 if kind.highest_first else k for k in range(n)]


def _bytes_by_group(bytes_before, kind, packs: bool):
    """Return the signature of what packs groups of codes in bytes of their own to fewer bytes, or unpacks them."""
    form = kind.instance_type
    groups = bytes_before.n // (form.group if packs else form.group_bytes)
    return v.Vec(types.uint8, groups * (form.group_bytes if packs else form.group))(bytes_before, kind)


@v.instruction(lambda codes, kind: codes(codes, kind))
def _swap_order(context, builder, sig, codes, kind):
    """Swap codes between the order of the array and that from the lowest bits up; its own inverse."""
    return v.emit_shuffle(builder, codes, _in_order(sig.args[1].instance_type, sig.args[0].n))


@v.instruction(lambda codes, kind: _bytes_by_group(codes, kind, packs=True))
def _gather_bytes(context, builder, sig, codes, kind):
    """Drop the bytes that are empty once the codes of a group were merged."""
    form = sig.args[1].instance_type
    return v.emit_shuffle(builder, codes, [k for k in range(sig.args[0].n) if k % form.group < form.group_bytes])


@v.instruction(lambda packed, kind: _bytes_by_group(packed, kind, packs=False))
def _scatter_bytes(context, builder, sig, packed, kind):
    """Spread packed bytes to as many bytes as there are codes: after the bytes of each group come zeros."""
    form = sig.args[1].instance_type
    n = sig.args[0].n
    places = (divmod(k, form.group) for k in range(sig.return_type.n))
    order = [group * form.group_bytes + k if k < form.group_bytes else n for group, k in places]
    return v.emit_shuffle(builder, packed, order, ir.Constant(packed.type, None))


@traced
def pack_lanes(codes, form):
    """Pack codes in 8 bit lanes, whole groups of them; the higher bits of a lane are ignored.

    A mask is codes of 1 bit.
    """
    if v.lane_type(codes) == types.boolean:
        return v.bitcast(_swap_order(codes, form), types.uint8)
    words = v.bitcast(_swap_order(codes, form), form.word)
    words = words & v.constant(form.mask(form.bitwidth, 8), words)
    for distance, low, high in form.merges:
        upper = (words >> v.constant(distance, words)) & v.constant(high, words)
        words = (words & v.constant(low, words)) | upper
    return _gather_bytes(v.bitcast(words, types.uint8), form)


@traced
def unpack_lanes(packed, form):
    """Unpack whole groups of codes, each to a lane of 8 bits, in order and with its sign: undoes `pack_lanes`."""
    words = v.bitcast(_scatter_bytes(packed, form), form.word)
    for distance, low, high in form.merges[::-1]:
        upper = (words & v.constant(high, words)) << v.constant(distance, words)
        words = (words & v.constant(low, words)) | upper
    return _extend_sign(_swap_order(v.bitcast(words, form.code_type), form), form.bitwidth, form.signed)


# --- one code ---------------------------------------------------------------------------------------------------------


@traced
def _place(i, form):
    """Return the byte in which code i begins, and the position of its lowest bit there."""
    if form.highest_first:
        return i >> 3, 7 - (i & 7)
    return i * form.bitwidth >> 3, i * form.bitwidth & 7


@functools.cache
def _one_code(form: Bits):
    """Make what loads one code of the bytes at a pointer, and what stores one."""
    bits = form.bitwidth
    code_type = form.code_type
    signed = form.signed
    mask = (1 << form.bitwidth) - 1
    top = 64 - bits  # a shift to the top of a word and back gives a code its sign, or cuts off what is above it
    first_up = 7 if form.highest_first else 0  # the position of the first code of a byte, before which none is kept

    @traced
    def load(pointer, i):
        k, up = _place(i, form)
        word = v.convert(pointer[k], types.int64) >> up
        if up + bits > 8:
            word |= v.convert(pointer[k + 1], types.int64) << (8 - up)
        word <<= top
        return v.convert(word >> top if signed else (word >> top) & mask, code_type)

    @traced
    def store(pointer, i, code):
        k, up = _place(i, form)
        word = (v.convert(code, types.int64) & mask) << up
        before = v.convert(0, types.int64) if up == first_up else v.convert(pointer[k], types.int64)
        pointer[k] = v.convert(before | word, types.uint8)
        if up + bits > 8:
            pointer[k + 1] = v.convert(word >> 8, types.uint8)

    return load, store


@traced
def load_code(pointer, i, form):
    """Load code i of the bytes at a pointer."""
    return _one_code(form)[0](pointer, i)


@traced
def store_code(pointer, i, code, form):
    """Store code i of the bytes at a pointer, keeping the codes before it in its byte and writing zeros after it."""
    _one_code(form)[1](pointer, i, code)
