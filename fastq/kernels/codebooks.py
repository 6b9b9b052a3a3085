"""Look up the numbers of codebooks, and find the code of a value by bisection of their thresholds."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from llvmlite import ir
from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, traced
from fastq.engine.simd.vector import call_llvm, llvm_type
from fastq.formats.codebooks import LEAST_SCALE, Codebook

_I32 = ir.IntType(32)

# instructions that look lanes up in a register of 32-bit words, or in two, which LLVM does not find by itself
_PERMUTE = ""
_PERMUTE_TWO = ""
_WORDS = 0
if TARGET.has("avx512f"):
    _PERMUTE = "llvm.x86.avx512.permvar.si.512"
    _PERMUTE_TWO = "llvm.x86.avx512.vpermi2var.d.512"
    _WORDS = 16
elif TARGET.has("avx2"):
    _PERMUTE = "llvm.x86.avx2.permd"
    _WORDS = 8

LOOK_UP_BITS = _WORDS.bit_length()  # of codes whose numbers fill two registers at most


def _vector(numbers: Sequence[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_I32, len(numbers)), list(numbers))


def _emit_permutation(builder, index, table: tuple[int, ...]):
    """Emit a look-up in a table, for lanes of an index that fill one register.

    The instructions ignore the upper bits of an index. So a table that fills more registers is looked up in halves, and
    the bit of an index that they differ in chooses between the results.
    """
    if len(table) == 2 * _WORDS and _PERMUTE_TWO:
        halves = _vector(table[:_WORDS]), _vector(table[_WORDS:])
        return call_llvm(builder, _PERMUTE_TWO, index.type, [halves[0], index, halves[1]])
    if len(table) > _WORDS:
        half = len(table) // 2
        above = builder.icmp_signed("!=", builder.and_(index, _vector([half] * _WORDS)), _vector([0] * _WORDS))
        low, high = (_emit_permutation(builder, index, part) for part in (table[:half], table[half:]))
        return builder.select(above, high, low)
    if len(table) == 1:
        return _vector(table * _WORDS)
    return call_llvm(builder, _PERMUTE, index.type, [_vector((table * _WORDS)[:_WORDS]), index])


def _by_registers(builder, index, count: int, table: tuple[int, ...]):
    """Emit look-ups by permutations, register by register."""
    padded = -(-count // _WORDS) * _WORDS
    if padded != count:
        index = v.emit_shuffle(builder, index, [min(k, count - 1) for k in range(padded)])
    parts = [
        _emit_permutation(builder, v.emit_shuffle(builder, index, list(range(at, at + _WORDS))), table)
        for at in range(0, padded, _WORDS)
    ]
    while len(parts) > 1:
        joined = list(range(2 * parts[0].type.count))
        parts = [v.emit_shuffle(builder, a, joined, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0] if padded == count else v.emit_shuffle(builder, parts[0], list(range(count)))


def constant_array(builder, content: ir.Constant, name: str):
    """Emit an array that is part of the code, from a cache line on."""
    pointer = ir.GlobalVariable(builder.module, content.type, builder.module.get_unique_name(name))
    pointer.linkage = "internal"
    pointer.global_constant = True
    pointer.initializer = content
    pointer.align = v.LINE
    return pointer


def _from_memory(builder, index, count: int, table: tuple[int, ...]):
    """Emit look-ups lane by lane in memory."""
    pointer = constant_array(builder, ir.Constant(ir.ArrayType(_I32, len(table)), list(table)), "codebook")
    looked_up = ir.Constant(index.type, ir.Undefined)
    for lane in range(count):
        place = builder.gep(pointer, [_I32(0), builder.extract_element(index, _I32(lane))])
        looked_up = builder.insert_element(looked_up, builder.load(place), _I32(lane))
    return looked_up


@v.instruction(lambda table, index: table(table, index))
def permute(context, builder, sig, table, index):
    """Look lanes of an index up in the lanes of a table that repeats every eight: its last three bits count.

    So registers of 8 and of 16 words look up alike.
    """
    count = index.type.count
    table = builder.bitcast(table, index.type)
    if not _WORDS:
        memory = v.stack_memory(builder, table.type)
        builder.store(table, memory)
        pointer = builder.bitcast(memory, _I32.as_pointer())
        index = builder.and_(index, v.splat(builder, _I32(7), index.type))
        looked_up = table
        for lane in map(_I32, range(count)):
            place = builder.gep(pointer, [builder.extract_element(index, lane)])
            looked_up = builder.insert_element(looked_up, builder.load(place), lane)
    else:
        part = v.emit_shuffle(builder, table, list(range(_WORDS)))
        parts = [v.emit_shuffle(builder, index, list(range(at, at + _WORDS))) for at in range(0, count, _WORDS)]
        looked_up, *others = (call_llvm(builder, _PERMUTE, part.type, [part, part_of_index]) for part_of_index in parts)
        for other in others:
            looked_up = v.emit_shuffle(builder, looked_up, list(range(count)), other)
    return builder.bitcast(looked_up, llvm_type(sig.return_type))


def _emit_look_up(builder, index, table: tuple[int, ...]):
    """Emit look-ups of the int32 lanes of an index in a table of words, whose number is a power of two.

    Up to 16 pairs of registers are looked up in: decision D6.
    """
    most = 16 if _PERMUTE_TWO and index.type.count >= _WORDS else 8
    emit = _by_registers if len(table) <= most * _WORDS else _from_memory
    return emit(builder, index, index.type.count, table)


def words(numbers: Sequence[float]) -> tuple[int, ...]:
    """Return the bits of float32 numbers."""
    return tuple(map(int, np.array(numbers, np.float32).view(np.int32)))


def _levels(codebook: Codebook) -> list[tuple[int, ...]]:
    """Return the thresholds that each step of a bisection chooses among, as words.

    Of thresholds a, b and c the first step has b alone, the second one a and c.
    """
    count = 1 << codebook.bits
    thresholds = words(codebook.thresholds)
    return [thresholds[count // (2 * parts) - 1 :: count // parts] for parts in (1 << k for k in range(codebook.bits))]


@functools.cache
def make_value_of_code(table: tuple[int, ...]):
    """Make an instruction that looks up the float32 numbers of int32 codes in a table of their bits."""

    @v.instruction(lambda codes: v.Vec(types.float32, codes.n)(codes))
    def value_of(context, builder, sig, codes):
        return builder.bitcast(_emit_look_up(builder, codes, table), llvm_type(sig.return_type))

    return value_of


@functools.cache
def _make_code_of(codebook: Codebook):
    """Make an instruction that finds the int32 codes of float32 lanes.

    Each comparison halves the numbers that are left: the place of a value among the parts so far chooses the threshold
    within its part. 15 instructions for 8 lanes of AVX2, where a comparison with each of 15 thresholds takes 30.
    """
    levels = _levels(codebook)
    sorted_codes = codebook.order == tuple(range(len(codebook.order)))

    @v.instruction(lambda x: v.Vec(types.int32, x.n)(x))
    def code_of(context, builder, sig, x):
        place = ir.Constant(llvm_type(sig.return_type), [0] * sig.return_type.n)
        for level in levels:
            threshold = builder.bitcast(_emit_look_up(builder, place, level), llvm_type(sig.args[0]))
            above = builder.fcmp_ordered(">", x, threshold)
            place = builder.add(builder.add(place, place), builder.zext(above, place.type))
        return place if sorted_codes else _emit_look_up(builder, place, codebook.order)

    return code_of


@traced
def decode_by_table(bits, form):
    """Look up the float32 numbers of the codes of a codebook."""
    return make_value_of_code(words(form.format.values))(v.convert(bits, types.int32))


@traced
def encode_by_table(x, form):
    """Find the codes of values in units of the scale: the number at the place of as many thresholds as are below."""
    return v.convert(_make_code_of(form.format)(_round_up(x)), types.uint8)


@traced
def _round_up(x):
    """Return float lanes as float32, rounded up: above a number of float32 is then what was above it before.

    Comparisons of float32 are faster than those of float64: decision D7.
    """
    if v.lane_type(x) == types.float32:
        return x
    near = v.convert(x, types.float32)
    bits = v.bitcast(near, types.int32)
    zero = v.constant(0, near)
    above = bits + v.select(near < zero, v.constant(-1, bits), v.constant(1, bits))
    return v.select(v.convert(near, types.float64) < x, v.bitcast(above, types.float32), near)


@traced
def codebook_factor(scale):
    """Return what values are multiplied by: the reciprocal of the scale, of one that is too small that of the least."""
    return v.constant(1, scale) / v.maximum(scale, v.constant(LEAST_SCALE, scale))
