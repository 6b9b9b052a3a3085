"""Load, store, stream and prefetch through typed pointers, at any alignment."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit import traced
from fastq.engine.simd.shuffles import emit_columns
from fastq.engine.simd.vector import (
    Vec,
    call_llvm,
    instruction,
    is_value,
    lane_count,
    lane_type,
    llvm_type,
    named_type,
    with_lane_type,
)
from fastq.system import tuning
from fastq.system.cpu import GRANULE, LINE


def _pointer_to(dtype):
    """Return the type of pointers to what a type argument names."""
    return types.CPointer(named_type(dtype))


@instruction(lambda address, dtype: _pointer_to(dtype)(types.intp, dtype))
def pointer(context, builder, sig, address, dtype):
    """Make a pointer to `dtype` from an integer address."""
    return builder.inttoptr(address, context.get_value_type(sig.return_type))


@instruction(lambda address, dtype: dtype.dtype(types.intp, dtype))
def record_at(context, builder, sig, address, dtype):
    """Refer to the record of a dtype at an integer address; its fields are read where they are named."""
    return builder.inttoptr(address, context.get_value_type(sig.return_type))


@instruction(lambda where, dtype: _pointer_to(dtype)(where, dtype))
def cast_pointer(context, builder, sig, where, dtype):
    """Cast a pointer to one to `dtype`."""
    return builder.bitcast(where, context.get_value_type(sig.return_type))


@instruction(lambda where, count: where(where, types.intp))
def advance(context, builder, sig, where, count):
    """Add `count` elements, which are whole bytes, to a pointer."""
    return _address(builder, sig.args[0], where, count)


def _address(builder, kind: types.CPointer, where, index):
    """Emit the address of an element, or of the byte in which it begins: of 4 bit element 5, byte 2."""
    if kind.dtype.bitwidth < 8:
        index = builder.ashr(builder.mul(index, index.type(kind.dtype.bitwidth)), index.type(3))
    return builder.gep(where, [index])


def _vector_address(builder, where, index, vec: types.Type):
    """Emit a pointer to the lanes that begin with an element of whole bytes."""
    return builder.bitcast(builder.gep(where, [index]), llvm_type(vec).as_pointer())


@instruction(lambda n, dtype: _pointer_to(dtype)(n, dtype) if isinstance(n, types.IntegerLiteral) else None)
def scratch(context, builder, sig, count, dtype):
    """Allocate `count` elements, a literal, on the stack, aligned to a cache line; a pointer to them."""
    element = llvm_type(sig.return_type.dtype)
    with builder.goto_entry_block():  # Numba's own way fills it with zeros, element by element
        memory = builder.alloca(ir.ArrayType(element, sig.args[0].literal_value))
    memory.align = LINE
    return builder.bitcast(memory, element.as_pointer())


def _lanes_at(where, kind):
    """Return the type of lanes that a type argument names, None where a pointer is not to such."""
    named = named_type(kind)
    return named if isinstance(where, types.CPointer) and named and lane_type(named) == where.dtype else None


def _load_signature(where, index, kind):
    """Return the signature of `load`, None where elements are not of the lane type."""
    result = _lanes_at(where, kind)
    return None if result is None else result(where, types.intp, kind)


@instruction(_load_signature)
def load(context, builder, sig, where, index, kind):
    """Load the lanes of the Vec or scalar type `kind` from ``where[index]`` on; no alignment is assumed."""
    value = builder.load(_vector_address(builder, where, index, sig.return_type))
    value.align = 1
    return value


@instruction(lambda where, index: with_lane_type(index, where.dtype)(where, index) if is_value(index) else None)
def look_up(context, builder, sig, where, index):
    """Load ``where[index]`` for each lane of an integer index."""
    if not isinstance(sig.args[1], Vec):
        return builder.load(builder.gep(where, [index]))
    lanes = ir.Constant(llvm_type(sig.return_type), ir.Undefined)
    word = ir.IntType(32)
    for lane in range(lane_count(sig.return_type)):
        place = builder.gep(where, [builder.extract_element(index, word(lane))])
        lanes = builder.insert_element(lanes, builder.load(place), word(lane))
    return lanes


def _square_of_rows(where, step, kind):
    """Return the signature of `load_square`: a tuple of as many Vecs as one has lanes."""
    vec = _lanes_at(where, kind)
    return None if vec is None else types.UniTuple(vec, lane_count(vec))(where, types.intp, kind)


@instruction(_square_of_rows)
def load_square(context, builder, sig, where, step, kind):
    """Load as many Vecs of the type `kind` as it has lanes, which are `step` bytes apart; no alignment is assumed."""
    rows = sig.return_type
    return context.make_tuple(builder, rows, _loaded_rows(builder, where, step, rows.dtype, rows.count))


def _columns_of_rows(where, kind, count):
    """Return the signature of `load_columns`: a tuple of a Vec for each column, whose number is a literal."""
    vec = _lanes_at(where, kind) if isinstance(count, types.IntegerLiteral) else None
    return None if vec is None else types.UniTuple(vec, count.literal_value)(where, kind, count)


@instruction(_columns_of_rows)
def load_columns(context, builder, sig, where, kind, count):
    """Load rows of `count` elements, a literal, one after the other: a Vec of the type `kind` for each column of them.

    There are as many rows as it has lanes. No alignment is assumed.
    """
    columns = sig.return_type
    vec = sig.return_type.dtype
    step = ir.IntType(64)(lane_count(vec) * lane_type(vec).bitwidth // 8)
    values = _loaded_rows(builder, where, step, vec, columns.count)
    return context.make_tuple(builder, columns, emit_columns(builder, values))


def _stored_rows(where, step, rows):
    """Return the signature of `store_rows`, None where elements are not of the lane type."""
    fits = isinstance(where, types.CPointer) and lane_type(rows.dtype) == where.dtype
    return types.void(where, types.intp, rows) if fits else None


@instruction(_stored_rows)
def store_rows(context, builder, sig, where, step, rows):
    """Store Vecs, `step` bytes apart; no alignment is assumed."""
    kind = sig.args[2]
    for k, row in enumerate(_rows(builder, where, step, kind.dtype, kind.count)):
        builder.store(builder.extract_value(rows, k), row).align = 1


def _loaded_rows(builder, where, step, vec: types.Type, count: int):
    """Emit loads of Vecs that are `step` bytes apart."""
    values = [builder.load(row) for row in _rows(builder, where, step, vec, count)]
    for value in values:
        value.align = 1
    return values


def _rows(builder, where, step, vec: types.Type, count: int):
    """Yield pointers to Vecs that are `step` bytes apart."""
    byte = ir.IntType(8).as_pointer()
    target = llvm_type(vec).as_pointer()
    first = builder.bitcast(where, byte)
    for k in range(count):
        yield builder.bitcast(builder.gep(first, [builder.mul(step, step.type(k))]), target)


def _store_signature(where, index, value):
    """Return the signature of a store, whose lanes are of the type that the pointer points to."""
    fits = isinstance(where, types.CPointer) and is_value(value)
    return types.void(where, types.intp, with_lane_type(value, where.dtype)) if fits else None


def _declare_store(name: str, aligned_to: int, doc: str):
    """Make a store of a Vec: into the cache, or past it where the address is a multiple of `aligned_to` bytes.

    With `aligned_to` 0 it goes into the cache. A Vec that is smaller than `aligned_to` has to be aligned to its own
    size.
    """

    @instruction(_store_signature, name, doc)
    def stored(context, builder, sig, where, index, value):
        """Emit the store, with the alignment and the hint that make it one past the cache."""
        kind = sig.args[2]
        line = builder.store(value, _vector_address(builder, where, index, kind))
        line.align = min(lane_type(kind).bitwidth // 8 * lane_count(kind), aligned_to) if aligned_to else 1
        if aligned_to:
            line.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))

    return stored


store = _declare_store("store", 0, "Store the lanes of `value` to ``where[index]`` onwards; no alignment is assumed.")
stream = _declare_store(
    "stream",
    LINE,
    "Store past the cache; the CPU faults where the address is aligned neither to the Vec nor to a cache line.",
)
stream_granules = _declare_store(
    "stream_granules",
    GRANULE,
    "Store past the cache, a granule at a time; the CPU faults where the address is aligned to less than that.",
)


@instruction(lambda: types.void())
def fence(context, builder, sig):
    """Make streamed stores visible to other threads before anything that follows."""
    builder.fence("seq_cst")


@instruction(lambda where: types.intp(where))
def address_of(context, builder, sig, where):
    """Integer address of a pointer."""
    return builder.ptrtoint(where, ir.IntType(types.intp.bitwidth))


@traced
def misalignment(where, index, kind):
    """Elements by which ``where[index]`` lies past the last address that is a multiple of the size of `kind`."""
    size = where.dtype.bitwidth // 8
    return (address_of(where) + index * size) % (size * lane_count(kind)) // size


@instruction(lambda where, index: types.void(where, types.intp))
def prefetch(context, builder, sig, where, index):
    """Prefetch the cache line of ``where[index]``; any address is allowed."""
    i32 = ir.IntType(32)
    kind = sig.args[0]
    line = builder.bitcast(_address(builder, kind, where, index), ir.IntType(8).as_pointer())
    call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [line, i32(0), i32(3), i32(1)])


def tuned(name: str) -> Any:
    """Make the instruction that reads a number of fastq/system/tuning.py from the record of its module.

    The record is that of this CPU, unless the machine code is loaded on another one: it is written then.
    """
    place = tuning.READ_BY_KERNELS.index(name)

    @instruction(lambda: types.intp())
    def read(context, builder, sig):
        """Emit the load of the number; the first one in a module adds the record with the numbers of this CPU."""
        row = tuning.numbers()
        word = ir.IntType(64)
        kind = ir.ArrayType(word, len(row))
        record = builder.module.globals.get(tuning.RECORD)
        if record is None:
            record = ir.GlobalVariable(builder.module, kind, tuning.RECORD)
            record.linkage = "weak"
            record.initializer = kind([int(each) for each in row])
        number = builder.load(builder.gep(record, [word(0), word(place)]))
        number.set_metadata("invariant.load", builder.module.add_metadata([]))  # or it is read after each store
        return number

    return read
