"""Points of the grids that codes of some block formats of GGUF stand for, with their signs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from fastq.engine import simd as v
from fastq.engine.simd.vector import call_llvm
from fastq.formats.gguf import GridFormat
from fastq.kernels.codebooks import constant_array
from fastq.kernels.ggml.fields import LANES, emit_numbers

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
    """Emit a byte of signs for each eight values."""
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
