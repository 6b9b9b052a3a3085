"""Loop that decodes blocks of GGUF: numbers that codes stand for, times scales, and with smallest values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, traced
from fastq.engine.simd.vector import call_llvm
from fastq.formats.gguf import BLOCK, CODEBOOK, DOUBLED, BinaryFormat, CodebookFormat, Float4Format, GridFormat
from fastq.kernels.codebooks import constant_array
from fastq.kernels.ggml.fields import (
    LANES,
    emit_numbers,
    least_bits,
    mins_of,
    scales_of,
    unit_bits,
    units_of,
    with_all_codes,
)
from fastq.kernels.ggml.spec import as_signed, from_half, negative_where_made, scale_beside, step_of
from fastq.kernels.parameters import in_memory
from fastq.kernels.traversal.streaming import flush, stage_at, store_tail, write_pointer

_HALVES = v.Vec(types.uint16, LANES)
_FLOATS = v.Vec(types.float32, LANES)
_STAGED_VALUES = 512  # at most, of whole blocks: they are decoded on the stack, and then go past the cache line by line
_STAGE_BYTES = _STAGED_VALUES * 4 + 2 * v.LINE  # with room for the parts of lines before and behind them
_AHEAD = 16  # blocks of 32 values, or cache lines of larger ones, that are prefetched


@traced
def dequantize_blocks(spec, operands, args, units):
    """Decode blocks start..stop; src and dst begin with block `origin`."""
    src = v.advance(operands.src, -units.origin * spec.nbytes)
    dst = v.advance(operands.dst, -units.origin * spec.size)
    if spec.streaming:
        stage = stage_at(v.scratch(_STAGE_BYTES, types.uint8), v.advance(dst, units.start * spec.size))
        p = units.start
        while p < units.stop:
            blocks = min(_STAGED_VALUES // spec.size, units.stop - p)
            for k in range(blocks):
                values = v.advance(v.cast_pointer(write_pointer(stage), types.float32), k * spec.size)
                decode_block(spec, v.advance(src, (p + k) * spec.nbytes), values)
            stage = flush(stage, blocks * spec.size * 4)
            p += blocks
        store_tail(stage)
        return 0
    for p in range(units.start, units.stop):
        decode_block(spec, v.advance(src, p * spec.nbytes), v.advance(dst, p * spec.size))
    return 0


@traced
def decode_block(spec, src, dst):
    """Decode one block: its parameters first, then all codes by these; blocks ahead are prefetched."""
    v.prefetch(src, _AHEAD * spec.nbytes if spec.size == BLOCK else _AHEAD * v.LINE)
    steps = steps_in(spec, src)
    if not spec.block_format.has_minimum:
        steps = in_memory(steps)
        (store_points if isinstance(spec.block_format, GridFormat) else store_all)(spec, src, (dst, steps, steps))
    else:
        least = minima_in(spec, src)
        store_all(spec, src, (dst, in_memory(scale_beside(least, steps)), in_memory(least)))


@traced
def store_sixteen(spec, n, codes, context):
    """Store the values of sixteen codes, in halves of a register: NumPy's arrays begin 16 bytes after a line."""
    dst, steps, minima = context
    step = of_sub_block(spec, steps, n)
    if isinstance(spec.block_format, BinaryFormat):  # of NaN too
        value = v.select(codes == v.constant(1, codes), step, -step)
    else:
        value = negative_where_made(number_of(spec, codes) * step, step)
    if spec.block_format.has_minimum:
        least = of_sub_block(spec, minima, n)
        value = negative_where_made(value - least if spec.block_format.count("mins") else value + least, value, least)
    v.store(dst, n, v.lower(value))
    v.store(dst, n + 8, v.upper(value))


store_all = with_all_codes(store_sixteen)


@traced
def of_sub_block(spec, parameters, n):
    """Load the parameter of the values from number n on."""
    if spec.block_format.sub == spec.size:
        return v.load(parameters, 0, _FLOATS)
    return parameters[n // spec.block_format.sub]


# --- parameters -------------------------------------------------------------------------------------------------------


@traced
def steps_in(spec, src):
    """Return the scale of each sub-block, in every lane if there is one.

    Converted alone, one would wait for the contents of the other lanes of the register, which the instruction keeps:
    decision D67.
    """
    is_one = spec.size == spec.block_format.sub
    if isinstance(spec.block_format, Float4Format):
        steps = step_of(spec, v.convert(units_of(spec, src), types.int32))
        return v.full(v.first(steps), _FLOATS) if is_one else steps
    unit = unit_bits(spec, src)
    if is_one:
        return from_half(spec, v.full(unit, _HALVES))
    if isinstance(spec.block_format, GridFormat):
        codes = scales_of(spec, src)
        steps = from_half(spec, unit) * as_signed(codes + codes + v.constant(1, codes), 0)
        return steps * v.constant(spec.block_format.unit, steps)
    return _times(from_half(spec, unit), as_signed(scales_of(spec, src), spec.block_format.scale_zero))


@traced
def minima_in(spec, src):
    """Return the smallest value of each sub-block; of super-blocks its opposite, which is taken from the values."""
    unit = least_bits(spec, src)
    if spec.size == spec.block_format.sub:
        return from_half(spec, v.full(unit, _HALVES))
    return _times(from_half(spec, unit), as_signed(mins_of(spec, src), 0))


@traced
def _times(unit, codes):
    """Multiply the unit of scales by their codes, with NaN of the sign that x86-64 gives it."""
    return negative_where_made(unit * codes, unit)


# --- codes ------------------------------------------------------------------------------------------------------------


# the instruction that looks 16 bytes up in 16 others, which LLVM does not find by itself
_LOOK_UP = "llvm.x86.ssse3.pshuf.b.128" if TARGET.has("ssse3") else ""
_LOOK_UP = "llvm.aarch64.neon.tbl1.v16i8" if TARGET.is_arm else _LOOK_UP


def _make_look_up(name: str, table: tuple[int, ...], doc: str):
    """Make an instruction that looks 16 nibbles up in a table of signed bytes."""

    @v.instruction(lambda codes: v.Vec(types.int8, codes.n)(codes), name, doc)
    def look_up(context, builder, sig, codes):
        lanes = codes.type
        if _LOOK_UP:
            bytes_ = ir.Constant(lanes, [number % 256 for number in table])
            return call_llvm(builder, _LOOK_UP, lanes, [bytes_, codes])
        numbers = ir.Constant(lanes, [table[0]] * lanes.count)
        for code, number in enumerate(table[1:], 1):
            this = builder.icmp_unsigned("==", codes, ir.Constant(lanes, [code] * lanes.count))
            numbers = builder.select(this, ir.Constant(lanes, [number] * lanes.count), numbers)
        return numbers

    return look_up


in_codebook = _make_look_up("in_codebook", CODEBOOK, "Look codes up in the codebook.")
doubled = _make_look_up("doubled", DOUBLED, "Decode codes of float4_e2m1fn, doubled.")


@traced
def number_of(spec, codes):
    """Return what codes stand for, in units of the scale, as floats."""
    if isinstance(spec.block_format, (CodebookFormat, Float4Format)):
        numbers = (in_codebook if isinstance(spec.block_format, CodebookFormat) else doubled)(codes)
        return v.convert(v.convert(numbers, types.int32), types.float32)
    return as_signed(codes, 0 if isinstance(spec.block_format, GridFormat) else spec.block_format.zero)


# --- points of grids, with their signs --------------------------------------------------------------------------------

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def points_of(builder, form: GridFormat, src) -> Callable[..., Any]:
    """Emit the unpacking of the codes and signs of a block; return what emits sixteen values from number n on."""
    codes = emit_numbers(builder, form, "codes", src, 0, form.count("codes"), _I16)
    at = _on_the_stack(builder, codes, _I16), _on_the_stack(builder, _signs(builder, form, src), _I8)
    return partial(_emit_points, builder, form, _table(builder, form), *at)


def _on_the_stack(builder, value, element: ir.IntType):
    """Store lanes: to load them one by one is faster than to take them out of a register."""
    pointer = v.stack_memory(builder, value.type)
    pointer.align = v.LINE
    builder.store(value, pointer).align = v.LINE
    return builder.bitcast(pointer, element.as_pointer())


def _signs(builder, form: GridFormat, src):
    """Emit a byte of signs for each eight values.

    A format may store eight, or seven, which the eighth one makes an even number of minus signs, or one for all values
    of a part of the block.
    """
    count = form.count("signs")
    signs = emit_numbers(builder, form, "signs", src, 0, count)
    if form.width("signs") == 1:
        repeats = form.size // 8 // count
        signs = builder.sub(ir.Constant(signs.type, [0] * count), signs)
        return v.emit_shuffle(builder, signs, [k // repeats for k in range(count * repeats)])
    if form.width("signs") == 7:
        ones = call_llvm(builder, f"llvm.ctpop.v{count}i8", signs.type, [signs])
        return builder.or_(signs, builder.shl(ones, ir.Constant(signs.type, [7] * count)))
    return signs


def _table(builder, form: GridFormat):
    """Emit the points as integers, each of which has a byte for each coordinate."""
    points = form.grid.points + np.int8(form.shifts)
    rows = points.view(f"<u{form.grid.width}")[:, 0].tolist()
    return constant_array(builder, ir.Constant(ir.ArrayType(ir.IntType(8 * form.grid.width), len(rows)), rows), "grid")


def _emit_points(builder, form: GridFormat, table, codes, signs, first: int):
    """Emit sixteen values in units of the scale, as signed bytes."""
    width = form.grid.width
    rows: Any = ir.Constant(ir.VectorType(ir.IntType(8 * width), LANES // width), ir.Undefined)
    for k in range(LANES // width):
        code = builder.load(builder.gep(codes, [_I64(first // width + k)]))
        point = builder.load(builder.gep(table, [_I64(0), builder.zext(code, _I64)]))
        rows = builder.insert_element(rows, point, _I32(k))
    lanes = ir.VectorType(_I8, LANES)
    values = builder.bitcast(rows, lanes)
    pointer = builder.bitcast(builder.gep(signs, [_I64(first // 8)]), _I16.as_pointer())
    word = builder.load(pointer)
    word.align = 1
    mask = builder.bitcast(word, ir.VectorType(ir.IntType(1), LANES))
    if form.shifts:  # the table has the larger one of each two
        other = builder.sub(values, ir.Constant(lanes, [2] * LANES))
    else:
        other = builder.sub(ir.Constant(lanes, [0] * LANES), values)
    return builder.select(mask, other, values)


store_points = with_all_codes(store_sixteen, points_of)
