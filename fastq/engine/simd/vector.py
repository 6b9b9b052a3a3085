"""The vector type, and what instructions need to know of types while they are emitted.

A type argument of compiled code is a scalar type, which stands for one lane, or a `Vec`.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit import UntraceableError, traced
from fastq.engine.jit import instruction as instruction
from fastq.system.cpu import LINE, REGISTER_BITS

_FLOAT_SUFFIX = {types.float32: "f32", types.float64: "f64"}
_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.boolean: ir.IntType(1)}


class Vec(types.Type):
    """Type of a vector of n lanes of `dtype`, held in registers and never boxed into Python.

    As an argument of `load` and `full` it names the lanes that are wanted; a scalar type stands there for one.
    """

    def __init__(self, dtype: types.Type, n: int) -> None:
        self.dtype = dtype
        self.n = operator.index(n)  # a number that is known
        self.llvm = ir.VectorType(llvm_type(dtype), n)
        super().__init__(name=f"Vec({dtype}, {n})")


class Element(types.Type):
    """Type of stored elements that no lane can hold as they are, such as 4 bit codes or float8.

    Pointers count in elements of `bitwidth` bits and point to whole bytes; elements narrower than a byte share bytes,
    the first in the lowest bits.
    """

    def __init__(self, name: str, bitwidth: int) -> None:
        self.bitwidth = bitwidth
        self.llvm = ir.IntType(max(bitwidth, 8))
        super().__init__(name=name)


def llvm_type(kind: types.Type) -> ir.Type:
    """Return the LLVM type of a scalar or Vec type."""
    if isinstance(kind, Vec):
        return ir.VectorType(llvm_type(kind.dtype), kind.n)
    return _LLVM.get(kind) or ir.IntType(max(kind.bitwidth, 8))


def lane_type(kind: types.Type) -> types.Type:
    """Return the scalar type of one lane of a Vec, of the target of a pointer, or of a scalar itself."""
    return types.unliteral(getattr(kind, "dtype", kind))


def lane_count(kind: types.Type) -> int:
    """Return the number of lanes, 1 of a scalar type."""
    return kind.n if isinstance(kind, Vec) else 1


def with_lane_type(kind: types.Type, dtype: types.Type) -> types.Type:
    """Return the type of as many lanes as `kind` has, of `dtype`."""
    return Vec(dtype, kind.n) if isinstance(kind, Vec) else dtype


def named_type(kind: types.Type) -> types.Type | None:
    """Return the scalar, Vec or Element type that a type argument names, None of any other argument."""
    if isinstance(kind, types.NumberClass):
        return kind.dtype
    found = kind.instance_type if isinstance(kind, types.TypeRef) else None
    return found if isinstance(found, Vec | Element) else None


def splat(builder, value, vector: ir.Type):
    """Emit a scalar in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return emit_shuffle(builder, first, [0] * vector.count)


def emit_shuffle(builder, value, lanes: list[int], other=None):
    """Emit the lanes with these indices, counted through `value` and then `other`."""
    other = ir.Constant(value.type, ir.Undefined) if other is None else other
    return builder.shuffle_vector(value, other, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def call_llvm(builder, name: str, result: ir.Type, args: list[Any]):
    """Emit a call of an LLVM intrinsic by its name."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [arg.type for arg in args]), name)
    return builder.call(function, args)


def stack_memory(builder, kind: ir.Type, count: int = 1):
    """Emit memory on the stack for `count` values of a type; return a pointer to it.

    It is allocated where the function begins, so that a loop gets the same memory at each turn instead of more of the
    stack.
    """
    with builder.goto_entry_block():
        return builder.alloca(kind, size=ir.IntType(64)(count))


def llvm_suffix(kind: types.Type) -> str:
    """Return what LLVM appends to the name of an intrinsic for a type, such as v16f32."""
    element = _FLOAT_SUFFIX.get(lane_type(kind)) or f"i{lane_type(kind).bitwidth}"
    return f"v{kind.n}{element}" if isinstance(kind, Vec) else element


def square_lanes(element: types.Type) -> types.Type:
    """Return the Vec type of the rows of a square that is transposed in registers, which has as many rows.

    There are 16 lanes, or as many as a cache line has elements if these are fewer.
    """
    return Vec(element, min(16, LINE * 8 // element.bitwidth))


def is_float(kind: types.Type) -> bool:
    """Return whether lanes are floats."""
    return isinstance(lane_type(kind), types.Float)


def is_signed(kind: types.Type) -> bool:
    """Return whether lanes are signed integers."""
    return isinstance(lane_type(kind), types.Integer) and bool(lane_type(kind).signed)


def is_value(kind: types.Type) -> bool:
    """Return whether a type is that of lanes or of a scalar number."""
    return isinstance(kind, Vec | types.Float | types.Integer | types.Boolean)


@traced
def lanes(where, *others):
    """Vec type of elements of `where`, as many as a register holds of the widest elements of all these pointers."""
    return Vec(where.dtype, REGISTER_BITS // max([pointer.dtype.bitwidth for pointer in (where, *others)]))


@traced
def lanes_of_line(where, target):
    """Vec type of elements of `where`, as many as a cache line holds elements of `target`."""
    return Vec(where.dtype, 8 * LINE // target.dtype.bitwidth)


def literal(item: Any) -> Any:
    """Return a constant; raise UntraceableError where the caller has it as a value of run time.

    A caller that was emitted with its integers as values is then emitted for each of them as a constant: see
    `Unit.variant`.
    """
    if isinstance(item, types.Type):
        raise UntraceableError("a value is known at run time only")
    return item


def unrolled(count: int) -> tuple[int, ...]:
    """Return the numbers below one: a loop over them is unrolled, where one over a range is a loop at run time."""
    return tuple(range(count))


# as compiled code calls them
count = traced(lane_count)
dtype_of = traced(lane_type)


@traced
def bits_of(where):
    """Width of the elements that a pointer points to."""
    return where.dtype.bitwidth


@traced
def lanes_like(kind, where):
    """Vec type of as many elements of `where` as the Vec type `kind` has lanes; a scalar type for a scalar type."""
    return with_lane_type(kind, where.dtype)
