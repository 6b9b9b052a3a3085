"""Load, store, stream and prefetch through typed pointers, at any alignment."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit import intrinsic, traced
from fastq.engine.simd.shuffles import emit_columns
from fastq.engine.simd.vector import (
    call_llvm,
    is_value,
    lane_count,
    lane_type,
    llvm_type,
    named_type,
    with_lane_type,
)
from fastq.system import tuning
from fastq.system.cpu import GRANULE, LINE


@intrinsic
def pointer(typingctx, address, dtype):
    """Make a pointer to `dtype` from an integer address."""
    result = types.CPointer(named_type(dtype))

    def emit(context, builder, sig, args):
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.intp, dtype), emit


@intrinsic
def record_at(typingctx, address, dtype):
    """Refer to the record of a dtype at an integer address; its fields are read where they are named."""
    result = dtype.dtype

    def emit(context, builder, sig, args):
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.intp, dtype), emit


@intrinsic
def cast_pointer(typingctx, where, dtype):
    """Cast a pointer to one to `dtype`."""
    result = types.CPointer(named_type(dtype))

    def emit(context, builder, sig, args):
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(where, dtype), emit


@intrinsic
def advance(typingctx, where, count):
    """Add `count` elements, which are whole bytes, to a pointer."""

    def emit(context, builder, sig, args):
        return _address(builder, where, *args)

    return where(where, types.intp), emit


def _address(builder, kind: types.CPointer, where, index):
    """Address of an element, or of the byte in which it begins."""
    if kind.dtype.bitwidth < 8:
        index = builder.ashr(builder.mul(index, index.type(kind.dtype.bitwidth)), index.type(3))
    return builder.gep(where, [index])


def _vector_address(builder, where, index, vec: types.Type):
    return builder.bitcast(builder.gep(where, [index]), llvm_type(vec).as_pointer())


@intrinsic
def scratch(typingctx, count, dtype):
    """Allocate `count` elements, a literal, on the stack, aligned to a cache line; a pointer to them."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    element = named_type(dtype)

    def emit(context, builder, sig, args):
        with builder.goto_entry_block():  # Numba's own way fills it with zeros, element by element
            memory = builder.alloca(ir.ArrayType(llvm_type(element), count.literal_value))
        memory.align = LINE
        return builder.bitcast(memory, llvm_type(element).as_pointer())

    return types.CPointer(element)(count, dtype), emit


@intrinsic
def load(typingctx, where, index, kind):
    """Load the lanes of the Vec or scalar type `kind` from ``where[index]`` on; no alignment is assumed."""
    result = named_type(kind)
    if not isinstance(where, types.CPointer) or result is None or lane_type(result) != where.dtype:
        return None

    def emit(context, builder, sig, args):
        value = builder.load(_vector_address(builder, args[0], args[1], result))
        value.align = 1
        return value

    return result(where, types.intp, kind), emit


@intrinsic
def load_square(typingctx, where, step, kind):
    """Load as many Vecs of the type `kind` as it has lanes, which are `step` bytes apart; no alignment is assumed."""
    vec = named_type(kind)
    if not isinstance(where, types.CPointer) or vec is None or lane_type(vec) != where.dtype:
        return None
    rows = types.UniTuple(vec, lane_count(vec))

    def emit(context, builder, sig, args):
        return context.make_tuple(builder, rows, _loaded_rows(builder, args[0], args[1], vec, rows.count))

    return rows(where, types.intp, kind), emit


@intrinsic
def load_columns(typingctx, where, kind, count):
    """Load rows of `count` elements, a literal, one after the other: a Vec of the type `kind` for each column of them.

    There are as many rows as it has lanes. No alignment is assumed.
    """
    vec = named_type(kind)
    if not isinstance(where, types.CPointer) or vec is None or lane_type(vec) != where.dtype:
        return None
    if not isinstance(count, types.IntegerLiteral):
        return None
    columns, step = types.UniTuple(vec, count.literal_value), lane_count(vec) * lane_type(vec).bitwidth // 8

    def emit(context, builder, sig, args):
        values = _loaded_rows(builder, args[0], ir.IntType(64)(step), vec, columns.count)
        return context.make_tuple(builder, columns, emit_columns(builder, values))

    return columns(where, kind, count), emit


@intrinsic
def store_rows(typingctx, where, step, rows):
    """Store Vecs, `step` bytes apart; no alignment is assumed."""
    if not isinstance(where, types.CPointer) or lane_type(rows.dtype) != where.dtype:
        return None

    def emit(context, builder, sig, args):
        for k, row in enumerate(_rows(builder, args[0], args[1], rows.dtype, rows.count)):
            builder.store(builder.extract_value(args[2], k), row).align = 1
        return context.get_dummy_value()

    return types.void(where, types.intp, rows), emit


def _loaded_rows(builder, where, step, vec: types.Type, count: int):
    """Emit loads of Vecs that are `step` bytes apart."""
    values = [builder.load(row) for row in _rows(builder, where, step, vec, count)]
    for value in values:
        value.align = 1
    return values


def _rows(builder, where, step, vec: types.Type, count: int):
    """Yield pointers to Vecs that are `step` bytes apart."""
    byte, target = ir.IntType(8).as_pointer(), llvm_type(vec).as_pointer()
    first = builder.bitcast(where, byte)
    for k in range(count):
        yield builder.bitcast(builder.gep(first, [builder.mul(step, step.type(k))]), target)


def _store_with(streamed: int = 0):
    """Make a store of a Vec: into the cache, or past it where `streamed` is the alignment of the address."""

    def typed(typingctx, where, index, value):
        if not isinstance(where, types.CPointer) or not is_value(value):
            return None
        value = with_lane_type(value, where.dtype)

        def emit(context, builder, sig, args):
            line = builder.store(args[2], _vector_address(builder, args[0], args[1], value))
            line.align = min(where.dtype.bitwidth // 8 * lane_count(value), streamed) if streamed else 1
            if streamed:
                line.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
            return context.get_dummy_value()

        return types.void(where, types.intp, value), emit

    return typed


@intrinsic
def store(typingctx, where, index, value):
    """Store the lanes of `value` to ``where[index]`` onwards; no alignment is assumed."""
    return _store_with()(typingctx, where, index, value)


@intrinsic
def stream(typingctx, where, index, value):
    """Store past the cache; the CPU faults where the address is aligned neither to the Vec nor to a cache line."""
    return _store_with(streamed=LINE)(typingctx, where, index, value)


@intrinsic
def stream_granules(typingctx, where, index, value):
    """Store past the cache, a granule at a time; the CPU faults where the address is aligned to less than that."""
    return _store_with(streamed=GRANULE)(typingctx, where, index, value)


@intrinsic
def fence(typingctx):
    """Make streamed stores visible to other threads before anything that follows."""

    def emit(context, builder, sig, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def address_of(typingctx, where):
    """Integer address of a pointer."""

    def emit(context, builder, sig, args):
        return builder.ptrtoint(args[0], ir.IntType(types.intp.bitwidth))

    return types.intp(where), emit


@traced
def misalignment(where, index, kind):
    """Elements by which ``where[index]`` lies past the last address that is a multiple of the size of `kind`."""
    size = where.dtype.bitwidth // 8
    return (address_of(where) + index * size) % (size * lane_count(kind)) // size


@intrinsic
def prefetch(typingctx, where, index):
    """Prefetch the cache line of ``where[index]``; any address is allowed."""

    def emit(context, builder, sig, args):
        i32, line = ir.IntType(32), builder.bitcast(_address(builder, where, *args), ir.IntType(8).as_pointer())
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [line, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(where, types.intp), emit


def tuned(name: str) -> Any:
    """Make the instruction that reads a number of fastq/system/tuning.py from the record of its module.

    The record is that of this CPU, unless the machine code is loaded on another one: it is written then.
    """
    place = tuning.READ_BY_KERNELS.index(name)

    @intrinsic
    def read(typingctx):
        def emit(context, builder, sig, args):
            row, word = tuning.numbers(), ir.IntType(64)
            kind = ir.ArrayType(word, len(row))
            record = builder.module.globals.get(tuning.RECORD)
            if record is None:
                record = ir.GlobalVariable(builder.module, kind, tuning.RECORD)
                record.linkage, record.initializer = "weak", kind([int(each) for each in row])
            number = builder.load(builder.gep(record, [word(0), word(place)]))
            number.set_metadata("invariant.load", builder.module.add_metadata([]))  # or it is read after each store
            return number

        return types.intp(), emit

    return read
