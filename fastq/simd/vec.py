"""Vec, a portable vector type for Numba: every operation for a Vec and, under the same name, for a scalar.

A ``Vec(dtype, n)`` is n lanes held in registers, an LLVM vector that code generation splits or joins to fit the CPU.
Memory is reached through typed pointers. A formula written with these names is one function for both::

    @inline
    def square_sum(x, y):
        return fma(x, x, y * y)      # float32, float64 or a Vec of either

Operators ``+ - * / & | ^ ~ << >> < <= > >= == !=`` act lane by lane where LLVM has them for the lane type (no ``/``
for integers, no ``&`` for floats), and a scalar operand is broadcast. Comparisons give a mask, ``Vec(boolean, n)``.
Shuffles (`lower`, `upper`, `even`, `odd`, `reverse`, `join`, `interleave`) take a Vec only. Nothing here has fast-math
flags: each operation is the IEEE one, with the NaN rules stated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import models, overload, register_model
from numba.core.imputils import lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global

from fastq.jit import intrinsic
from fastq.jit import njit as inline
from fastq.jit import specialize as by_type

_FLOAT_SUFFIX = {types.float32: "f32", types.float64: "f64"}
_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.boolean: ir.IntType(1)}


class Vec(types.Type):  # type: ignore[misc]
    """Type of n lanes of `dtype`; a value, never boxed into Python.

    As an argument of `load`, `full` and `convert` it names the lanes that are wanted; a scalar type stands there for
    one.
    """

    def __init__(self, dtype: types.Type, n: int) -> None:
        self.dtype, self.n = dtype, n
        super().__init__(name=f"Vec({dtype}, {n})")


class Element(types.Type):  # type: ignore[misc]
    """Type of what lies in memory in a form that no lane has: pointers to it count in elements of `bitwidth` bits.

    Several that are narrower than a byte share one, the first in the lowest bits; a pointer to them is to a whole byte.
    """

    def __init__(self, name: str, bitwidth: int) -> None:
        self.bitwidth = bitwidth
        super().__init__(name=name)


class ElementModel(models.PrimitiveModel):  # type: ignore[misc]
    """How Numba lowers an Element, to be registered for each subclass."""

    def __init__(self, manager: Any, element: Element) -> None:
        super().__init__(manager, element, _llvm(element))


@register_model(Vec)
class _VecModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vec: Vec) -> None:
        super().__init__(manager, vec, _llvm(vec))


def _llvm(kind: types.Type) -> ir.Type:
    """LLVM type of a scalar or Vec type."""
    if isinstance(kind, Vec):
        return ir.VectorType(_llvm(kind.dtype), kind.n)
    return _LLVM.get(kind) or ir.IntType(max(kind.bitwidth, 8))


def _lanes(kind: types.Type) -> types.Type:
    """Scalar type of one lane."""
    return types.unliteral(kind.dtype if isinstance(kind, Vec) else kind)


def _width(kind: types.Type) -> int:
    """Number of lanes of a scalar or Vec type."""
    return kind.n if isinstance(kind, Vec) else 1


def _like(kind: types.Type, dtype: types.Type) -> types.Type:
    """As many lanes as `kind`, of `dtype`."""
    return Vec(dtype, kind.n) if isinstance(kind, Vec) else dtype


def _named(kind: types.Type) -> Any:
    """Return the type that an argument names: a scalar type or a Vec type."""
    if isinstance(kind, types.NumberClass):
        return kind.dtype
    return (
        kind.instance_type
        if isinstance(kind, types.TypeRef) and isinstance(kind.instance_type, Vec | Element)
        else None
    )


def _splat(builder: Any, value: Any, vector: ir.Type) -> Any:
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return emit_shuffle(builder, first, [0] * vector.count)


def emit_shuffle(builder: Any, value: Any, lanes: list[int], other: Any = None) -> Any:
    """Emit the lanes of that order, counted through `value` and then `other`."""
    other = ir.Constant(value.type, ir.Undefined) if other is None else other
    return builder.shuffle_vector(value, other, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def _call(builder: Any, name: str, result: ir.Type, args: list[Any]) -> Any:
    function = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), args)


def _suffix(kind: types.Type) -> str:
    element = _FLOAT_SUFFIX.get(_lanes(kind)) or f"i{_lanes(kind).bitwidth}"
    return f"v{kind.n}{element}" if isinstance(kind, Vec) else element


def is_float(kind: types.Type) -> bool:
    """Whether a scalar or Vec type has float lanes."""
    return isinstance(_lanes(kind), types.Float)


def _is_signed(kind: types.Type) -> bool:
    return isinstance(_lanes(kind), types.Integer) and bool(_lanes(kind).signed)


def _is_value(kind: types.Type) -> bool:
    return isinstance(kind, Vec | types.Float | types.Integer | types.Boolean)


# --- memory -----------------------------------------------------------------------------------------------------------


@intrinsic
def pointer(typingctx: Any, address: Any, dtype: Any) -> Any:
    """Pointer to `dtype` from an integer address."""
    result = types.CPointer(_named(dtype))

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.intp, dtype), emit


@intrinsic
def cast_pointer(typingctx: Any, where: Any, dtype: Any) -> Any:
    """The same address as a pointer to `dtype`."""
    result = types.CPointer(_named(dtype))

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(where, dtype), emit


@intrinsic
def advance(typingctx: Any, where: Any, count: Any) -> Any:
    """The pointer `count` elements further on, a whole number of bytes."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _address(builder, where, *args)

    return where(where, types.intp), emit


def _address(builder: Any, kind: types.CPointer, where: Any, index: Any) -> Any:
    """Address of an element, or of the byte in which it begins."""
    if kind.dtype.bitwidth < 8:
        index = builder.ashr(builder.mul(index, index.type(kind.dtype.bitwidth)), index.type(3))
    return builder.gep(where, [index])


def _vector_address(builder: Any, where: Any, index: Any, vec: types.Type) -> Any:
    return builder.bitcast(builder.gep(where, [index]), _llvm(vec).as_pointer())


@intrinsic
def scratch(typingctx: Any, count: Any, dtype: Any) -> Any:
    """Pointer to so many elements, a literal, on the stack of the kernel, aligned to a cache line."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    element = _named(dtype)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        with builder.goto_entry_block():  # Numba's own way fills it with zeros, element by element
            memory = builder.alloca(ir.ArrayType(_llvm(element), count.literal_value))
        memory.align = LINE
        return builder.bitcast(memory, _llvm(element).as_pointer())

    return types.CPointer(element)(count, dtype), emit


@intrinsic
def load(typingctx: Any, where: Any, index: Any, kind: Any) -> Any:
    """Lanes ``where[index]`` onwards, as the Vec or scalar type `kind` names; no alignment is assumed."""
    if not isinstance(where, types.CPointer) or (result := _named(kind)) is None or _lanes(result) != where.dtype:
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = builder.load(_vector_address(builder, args[0], args[1], result))
        value.align = 1
        return value

    return result(where, types.intp, kind), emit


def _store_with(streaming: bool) -> Any:
    def typed(typingctx: Any, where: Any, index: Any, value: Any) -> Any:
        if not isinstance(where, types.CPointer) or not _is_value(value):
            return None
        value = _like(value, where.dtype)

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            line = builder.store(args[2], _vector_address(builder, args[0], args[1], value))
            line.align = min(where.dtype.bitwidth // 8 * _width(value), LINE) if streaming else 1
            if streaming:
                line.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
            return context.get_dummy_value()

        return types.void(where, types.intp, value), emit

    return typed


@intrinsic
def store(typingctx: Any, where: Any, index: Any, value: Any) -> Any:
    """Write the lanes of `value` to ``where[index]`` onwards; no alignment is assumed."""
    return _store_with(streaming=False)(typingctx, where, index, value)


@intrinsic
def stream(typingctx: Any, where: Any, index: Any, value: Any) -> Any:
    """`store` past the cache. The address must be aligned to the Vec, or to lines, or the CPU faults."""
    return _store_with(streaming=True)(typingctx, where, index, value)


@intrinsic
def fence(typingctx: Any) -> Any:
    """Make streamed lines visible to other threads before anything that follows."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def address_of(typingctx: Any, where: Any) -> Any:
    """Integer address of a pointer."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], ir.IntType(types.intp.bitwidth))

    return types.intp(where), emit


@by_type
def misalignment(where: Any, index: Any, kind: Any) -> Any:
    """Elements from the last address that is a multiple of the size of `kind` to ``where[index]``."""
    size = where.dtype.bitwidth // 8
    whole = size * _width(_named(kind))
    return lambda where, index, kind: (address_of(where) + index * size) % whole // size


@intrinsic
def prefetch(typingctx: Any, where: Any, index: Any) -> Any:
    """Ask for the line of ``where[index]``; any address is allowed."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32, line = ir.IntType(32), builder.bitcast(_address(builder, where, *args), ir.IntType(8).as_pointer())
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(where, types.intp), emit


@intrinsic
def claim(typingctx: Any, counter: Any) -> Any:
    """``counter[0]`` before adding 1 to it, atomically."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], ir.IntType(64)(1), "monotonic")

    return types.int64(types.CPointer(types.int64)), emit


@intrinsic
def set_bits(typingctx: Any, where: Any, bits: Any) -> Any:
    """``where[0] |= bits``, atomically."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.atomic_rmw("or", args[0], args[1], "monotonic")
        return context.get_dummy_value()

    return types.void(types.CPointer(types.int64), types.int64), emit


_WORD = types.CPointer(types.int64)


@intrinsic
def atomic_load(typingctx: Any, where: Any) -> Any:
    """``where[0]``; this and the five below happen in one order for all threads, with what is around them."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(args[0], "seq_cst", 8)

    return types.int64(_WORD), emit


@intrinsic
def atomic_store(typingctx: Any, where: Any, value: Any) -> Any:
    """``where[0] = value``."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[1], args[0], "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(_WORD, types.int64), emit


def _read_and_write(name: str, operation: str, doc: str) -> Any:
    def typed(typingctx: Any, where: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.atomic_rmw(operation, args[0], args[1], "seq_cst")

        return types.int64(_WORD, types.int64), emit

    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


atomic_add = _read_and_write("atomic_add", "add", "``where[0]`` before adding `value` to it.")
atomic_or = _read_and_write("atomic_or", "or", "``where[0]`` before setting the bits of `value` in it.")
exchange = _read_and_write("exchange", "xchg", "``where[0]`` before `value` takes its place.")


@intrinsic
def replace(typingctx: Any, where: Any, expected: Any, value: Any) -> Any:
    """Put `value` into ``where[0]`` if `expected` is there; whether it was."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.extract_value(builder.cmpxchg(*args, "seq_cst", "seq_cst"), 1)

    return types.boolean(_WORD, types.int64, types.int64), emit


# what tells a CPU that this thread waits in a loop, by the first part of LLVM's name of the system
_PAUSE: dict[str, tuple[str, list[int]]] = {
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [1]),
    "arm64": ("llvm.aarch64.hint", [1]),
}


@intrinsic
def pause(typingctx: Any) -> Any:
    """Let the other thread of this core, and the bus, go first for a moment; nothing on CPUs without such a word."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        name, operands = _PAUSE.get(builder.module.triple.partition("-")[0], ("", []))
        if name:
            _call(builder, name, ir.VoidType(), [ir.IntType(32)(operand) for operand in operands])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def full(typingctx: Any, value: Any, kind: Any) -> Any:
    """`value` in every lane of `kind`."""
    if (result := _named(kind)) is None:
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, args[0], _llvm(result)) if isinstance(result, Vec) else args[0]

    return result(_lanes(result), kind), emit


@intrinsic
def full_like(typingctx: Any, value: Any, like: Any) -> Any:
    """`value`, a scalar of the lane type of `like`, in as many lanes as `like` has."""
    result = types.unliteral(like)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, args[0], _llvm(result)) if isinstance(result, Vec) else args[0]

    return result(_lanes(result), result), emit


@intrinsic
def constant(typingctx: Any, value: Any, like: Any) -> Any:
    """`value` as one scalar of the lane type of `like`, which keeps float32 arithmetic in float32."""
    dtype = _lanes(like)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0]

    return dtype(dtype, like), emit


# --- lane types -------------------------------------------------------------------------------------------------------

LINE = 64  # bytes of a cache line
REGISTER_BITS = 512  # code generation splits a Vec where the CPU's registers are narrower


@by_type
def lanes(where: Any, *widths: Any) -> Any:
    """Vec type of elements of `where`, as many as fill one register of the widest of all these pointers' elements."""
    widths = widths[0] if widths and isinstance(widths[0], types.BaseTuple) else widths
    vec = Vec(where.dtype, REGISTER_BITS // max(pointer.dtype.bitwidth for pointer in (where, *widths)))
    return lambda where, *widths: vec


@by_type
def lanes_of_line(where: Any, target: Any) -> Any:
    """Vec type of elements of `where`, as many as elements of `target` fill a cache line."""
    vec = Vec(where.dtype, 8 * LINE // target.dtype.bitwidth)
    return lambda where, target: vec


@by_type
def lanes_in(registers: Any, where: Any) -> Any:
    """Vec type of elements of `where` that fill so many registers, a literal."""
    if not isinstance(registers, types.IntegerLiteral):
        return None
    vec = Vec(where.dtype, registers.literal_value * REGISTER_BITS // where.dtype.bitwidth)
    return lambda registers, where: vec


@by_type
def count(kind: Any) -> Any:
    """Number of lanes of a Vec type, 1 of a scalar type."""
    n = _width(_named(kind))
    return lambda kind: n


@by_type
def dtype_of(where: Any) -> Any:
    """Scalar type that a pointer points to, or of which a Vec type has lanes."""
    dtype = where.dtype if isinstance(where, types.CPointer) else _lanes(_named(where))
    return lambda where: dtype


@by_type
def bits_of(where: Any) -> Any:
    """Width of the elements that a pointer points to."""
    bits = where.dtype.bitwidth
    return lambda where: bits


@by_type
def lanes_like(kind: Any, where: Any) -> Any:
    """Vec type of as many elements of `where` as the Vec type `kind` has lanes; a scalar type for a scalar type."""
    like = _like(_named(kind), where.dtype)
    return lambda kind, where: like


# --- lane by lane -----------------------------------------------------------------------------------------------------


def _operation(
    emit_lanes: Callable[[Any, Any, list[Any]], Any], result_of: Callable[[Any], Any] = lambda kind: kind
) -> Any:
    """An intrinsic on operands of one lane type, scalars among them broadcast where any is a Vec."""

    def typed(typingctx: Any, *operands: Any) -> Any:
        if len(operands) == 1 and isinstance(operands[0], types.BaseTuple):
            operands = tuple(operands[0])
        kind = next((operand for operand in operands if isinstance(operand, Vec)), types.unliteral(operands[0]))
        wanted = tuple(kind if isinstance(operand, Vec) else _lanes(kind) for operand in operands)

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            values = [
                _splat(builder, value, _llvm(kind)) if isinstance(kind, Vec) and not isinstance(operand, Vec) else value
                for value, operand in zip(args, wanted, strict=True)
            ]
            return emit_lanes(builder, kind, values)

        return signature(result_of(kind), *wanted), emit

    return typed


def _unary(name: str, emit_lanes: Callable[[Any, Any, list[Any]], Any], doc: str) -> Any:
    typed = _operation(emit_lanes)

    def unary(typingctx: Any, x: Any) -> Any:
        return typed(typingctx, x) if _is_value(x) else None

    unary.__name__, unary.__doc__ = name, doc
    return intrinsic(unary)


def _binary(name: str, emit_lanes: Callable[[Any, Any, list[Any]], Any], doc: str) -> Any:
    typed = _operation(emit_lanes)

    def binary(typingctx: Any, a: Any, b: Any) -> Any:
        return typed(typingctx, a, b) if _is_value(a) and _is_value(b) else None

    binary.__name__, binary.__doc__ = name, doc
    return intrinsic(binary)


def _compare(builder: Any, comparison: str, kind: types.Type, a: Any, b: Any) -> Any:
    if is_float(kind):
        # NaN is different from everything, itself included: the one comparison that is true when unordered
        return (builder.fcmp_unordered if comparison == "!=" else builder.fcmp_ordered)(comparison, a, b)
    return (builder.icmp_signed if _is_signed(kind) else builder.icmp_unsigned)(comparison, a, b)


def _extreme(comparison: str) -> Callable[[Any, Any, list[Any]], Any]:
    def emit(builder: Any, kind: Any, values: list[Any]) -> Any:
        a, b = values
        return builder.select(_compare(builder, comparison, kind, a, b), a, b)

    return emit


def _llvm_call(name: str) -> Callable[[Any, Any, list[Any]], Any]:
    return lambda builder, kind, values: _call(builder, f"llvm.{name}.{_suffix(kind)}", values[0].type, values)


def _absolute(builder: Any, kind: Any, values: list[Any]) -> Any:
    if is_float(kind):
        return _llvm_call("fabs")(builder, kind, values)
    negative = builder.sub(ir.Constant(values[0].type, None), values[0])
    return _extreme(">")(builder, kind, [values[0], negative]) if _is_signed(kind) else values[0]


minimum = _binary("minimum", _extreme("<"), "``a if a < b else b``, lane by lane: b where either is NaN.")
maximum = _binary("maximum", _extreme(">"), "``a if a > b else b``, lane by lane: b where either is NaN.")
absolute = _unary("absolute", _absolute, "Magnitude; that of the most negative integer is itself.")
rint = _unary("rint", _llvm_call("rint"), "Nearest whole number, ties to even.")
floor = _unary("floor", _llvm_call("floor"), "Largest whole number not above x.")
trunc = _unary("trunc", _llvm_call("trunc"), "Whole part, towards zero.")
copysign = _binary("copysign", _llvm_call("copysign"), "Float lanes with the magnitude of a and the sign of b.")


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` rounded once."""
    return _operation(_llvm_call("fma"))(typingctx, a, b, c)


@intrinsic
def is_nan(typingctx: Any, x: Any) -> Any:
    """Mask of the lanes that are NaN."""
    return _operation(
        lambda builder, kind, v: builder.fcmp_unordered("uno", v[0], v[0]), lambda k: _like(k, types.boolean)
    )(typingctx, x)


@intrinsic
def either_nan(typingctx: Any, a: Any, b: Any) -> Any:
    """Mask of the lanes where a or b is NaN, in one comparison."""
    return _operation(lambda builder, kind, v: builder.fcmp_unordered("uno", *v), lambda k: _like(k, types.boolean))(
        typingctx, a, b
    )


@intrinsic
def select(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:
    """``a if mask else b``, lane by lane."""
    kind = a if isinstance(a, Vec) else b
    if isinstance(mask, Vec) and not isinstance(kind, Vec):
        kind = Vec(_lanes(kind), mask.n)
    wanted = tuple(v if isinstance(v, Vec) else _lanes(kind) for v in (a, b))

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        chosen = [
            _splat(builder, v, _llvm(kind)) if isinstance(kind, Vec) and not isinstance(t, Vec) else v
            for v, t in zip(args[1:], wanted, strict=True)
        ]
        test = (
            args[0]
            if isinstance(mask, Vec)
            else builder.trunc(args[0], ir.IntType(1))
            if args[0].type.width > 1
            else args[0]
        )
        return builder.select(test, *chosen)

    return kind(mask, *wanted), emit


def _arithmetic(on_float: str, on_integer: str) -> Callable[[Any, Any, list[Any]], Any]:
    return lambda builder, kind, v: getattr(builder, on_float if is_float(kind) else on_integer)(*v)


def _comparison(symbol: str) -> Callable[[Any, Any, list[Any]], Any]:
    return lambda builder, kind, v: _compare(builder, symbol, kind, *v)


def _shift_right(builder: Any, kind: Any, values: list[Any]) -> Any:
    return (builder.ashr if _is_signed(kind) else builder.lshr)(*values)


def _same(kind: Any) -> Any:
    return kind


def _mask(kind: Any) -> Any:
    return _like(kind, types.boolean)


_OPERATORS: dict[Any, tuple[Callable[[Any, Any, list[Any]], Any], Callable[[Any], Any]]] = {
    operator.add: (_arithmetic("fadd", "add"), _same),
    operator.sub: (_arithmetic("fsub", "sub"), _same),
    operator.mul: (_arithmetic("fmul", "mul"), _same),
    operator.truediv: (lambda builder, kind, v: builder.fdiv(*v), _same),
    operator.and_: (lambda builder, kind, v: builder.and_(*v), _same),
    operator.or_: (lambda builder, kind, v: builder.or_(*v), _same),
    operator.xor: (lambda builder, kind, v: builder.xor(*v), _same),
    operator.lshift: (lambda builder, kind, v: builder.shl(*v), _same),
    operator.rshift: (_shift_right, _same),
    operator.lt: (_comparison("<"), _mask),
    operator.le: (_comparison("<="), _mask),
    operator.gt: (_comparison(">"), _mask),
    operator.ge: (_comparison(">="), _mask),
    operator.eq: (_comparison("=="), _mask),
    operator.ne: (_comparison("!="), _mask),
}


def _overload_operator(symbol: Any, emit_lanes: Any, result_of: Any) -> None:
    typed = _operation(emit_lanes, result_of)

    class Operator(AbstractTemplate):  # type: ignore[misc]
        key = symbol

        def generic(self, args: Any, kws: Any) -> Any:
            return typed(self.context, *args)[0] if any(isinstance(arg, Vec) for arg in args) else None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return typed(context, *sig.args)[1](context, builder, sig, args)

    infer_global(symbol)(Operator)
    for operands in ((Vec, Vec), (Vec, types.Any), (types.Any, Vec)):
        lower_builtin(symbol, *operands)(lower)


for _symbol, _row in _OPERATORS.items():
    _overload_operator(_symbol, *_row)


_invert = _unary("_invert", lambda builder, kind, v: builder.not_(v[0]), "Every bit flipped.")
_negate = _unary(
    "_negate", lambda builder, kind, v: builder.fneg(v[0]) if is_float(kind) else builder.neg(v[0]), "Sign changed."
)


@overload(operator.invert, strict=False)
def _overload_invert(x: Any) -> Any:
    return (lambda x: _invert(x)) if isinstance(x, Vec) else None


@overload(operator.neg, strict=False)
def _overload_negate(x: Any) -> Any:
    return (lambda x: _negate(x)) if isinstance(x, Vec) else None


# --- conversion -------------------------------------------------------------------------------------------------------


def _convert_lanes(builder: Any, value: Any, source: types.Type, target: types.Type, vector: ir.Type) -> Any:
    if source == target:
        return value
    if is_float(source) and is_float(target):
        return (builder.fptrunc if target.bitwidth < source.bitwidth else builder.fpext)(value, vector)
    if is_float(target):
        return (builder.sitofp if _is_signed(source) else builder.uitofp)(value, vector)
    if source == types.boolean or target.bitwidth > source.bitwidth:
        return (builder.sext if _is_signed(source) else builder.zext)(value, vector)
    return builder.trunc(value, vector) if target.bitwidth < source.bitwidth else value


@intrinsic
def convert(typingctx: Any, x: Any, dtype: Any) -> Any:
    """The lanes as `dtype`: between floats rounded to nearest, from integers likewise, between integers modulo 2**bits.

    A float does not convert to an integer here, since LLVM leaves that undefined out of range: see `saturate`.
    """
    source, target = _lanes(x), dtype.dtype
    if isinstance(source, types.Float) and isinstance(target, types.Integer):
        return None
    result = _like(x, target)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _convert_lanes(builder, args[0], source, target, _llvm(result))

    return result(types.unliteral(x), dtype), emit


@intrinsic
def bitcast(typingctx: Any, x: Any, dtype: Any) -> Any:
    """The bits of x as lanes of `dtype`, as many as they fill, in the order they would have in memory."""
    kind = types.unliteral(x)
    target, bits = dtype.dtype, _lanes(kind).bitwidth * _width(kind)
    result = Vec(target, bits // target.bitwidth) if isinstance(kind, Vec) else target

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _llvm(result))

    return result(kind, dtype), emit


@intrinsic
def bounded_to_integer(typingctx: Any, x: Any, dtype: Any) -> Any:
    """Whole part of float lanes as the integer `dtype`, for callers that have proved every lane in range.

    Out of range LLVM's conversion is undefined; `saturate` is the form for everything else.
    """
    source, target = _lanes(x), dtype.dtype
    # a whole vector of 8 or 16 bit lanes converts through 32 bits on every CPU; said here, LLVM need not find it
    wide = max(target.bitwidth, 64 if source == types.float64 and target.bitwidth > 32 else 32)
    signed = bool(target.signed) or target.bitwidth < wide
    result = _like(x, target)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole = _llvm(_like(x, types.Integer.from_bitwidth(wide, signed)))
        value = (builder.fptosi if signed else builder.fptoui)(args[0], whole)
        return builder.trunc(value, _llvm(result)) if target.bitwidth < wide else value

    return result(x, dtype), emit


@intrinsic
def nearest(typingctx: Any, x: Any) -> Any:
    """Nearest integer to float lanes, ties to even, as int32: one instruction, where `rint` and a conversion are three.

    A lane that is NaN or out of range gives an integer that is not specified (llvm.lrint: never undefined).
    """
    result = _like(x, types.int32)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, f"llvm.lrint.{_suffix(result)}.{_suffix(x)}", _llvm(result), [args[0]])

    return result(x), emit


@inline
def saturate(x: Any, lowest: Any, highest: Any, dtype: Any) -> Any:
    """Float lanes clamped to ``lowest..highest`` and converted to the integer `dtype`, which must hold both bounds.

    A lane that is NaN gives `lowest`. For 32 and 64 bit targets the bounds must be floats within the range of `dtype`:
    float32(2**31 - 1) is 2**31 and is not.
    """
    return bounded_to_integer(minimum(maximum(x, lowest), highest), dtype)


@intrinsic
def first(typingctx: Any, x: Any) -> Any:
    """Lane 0."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.extract_element(args[0], ir.IntType(32)(0))

    return x.dtype(x), emit


# --- across lanes -----------------------------------------------------------------------------------------------------


def shuffled(doc: str, name: str, lanes_of: Callable[[int], list[int]]) -> Any:
    """Make an intrinsic that takes lanes of a Vec in the order that `lanes_of` gives for its number of lanes."""

    def across(typingctx: Any, x: Any) -> Any:
        if not isinstance(x, Vec):
            return None
        lanes = lanes_of(x.n)

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit_shuffle(builder, args[0], lanes)

        return Vec(x.dtype, len(lanes))(x), emit

    across.__name__, across.__doc__ = name, doc
    return intrinsic(across)


lower = shuffled("First half of the lanes.", "lower", lambda n: list(range(n // 2)))
upper = shuffled("Second half of the lanes.", "upper", lambda n: list(range(n // 2, n)))
even = shuffled("Lanes 0, 2, 4, ...", "even", lambda n: list(range(0, n, 2)))
odd = shuffled("Lanes 1, 3, 5, ...", "odd", lambda n: list(range(1, n, 2)))
reverse = shuffled("Lanes from the last to the first.", "reverse", lambda n: list(range(n))[::-1])


def _joined(doc: str, name: str, lanes_of: Callable[[int], list[int]]) -> Any:
    def joined(typingctx: Any, a: Any, b: Any) -> Any:
        if not isinstance(a, Vec) or a != b:
            return None

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit_shuffle(builder, args[0], lanes_of(a.n), args[1])

        return Vec(a.dtype, 2 * a.n)(a, b), emit

    joined.__name__, joined.__doc__ = name, doc
    return intrinsic(joined)


join = _joined("The lanes of a, then those of b.", "join", lambda n: list(range(2 * n)))
interleave = _joined("a0, b0, a1, b1, ...", "interleave", lambda n: [k for i in range(n) for k in (i, n + i)])


@intrinsic
def any_lane(typingctx: Any, mask: Any) -> Any:
    """Whether any lane of a mask is true."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if not isinstance(mask, Vec):
            return args[0]
        bits = builder.bitcast(args[0], ir.IntType(mask.n))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(mask), emit


def _reduction(name: str, combine: Callable[[Any, Any, list[Any]], Any], doc: str) -> Any:
    def reduce(typingctx: Any, x: Any) -> Any:
        if not _is_value(x):
            return None

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            value, n = args[0], _width(x)
            while n > 1:
                n //= 2
                halves = [emit_shuffle(builder, value, list(range(first, first + n))) for first in (0, n)]
                value = combine(builder, x, halves)
            return builder.extract_element(value, ir.IntType(32)(0)) if isinstance(x, Vec) else value

        return _lanes(x)(types.unliteral(x)), emit

    reduce.__name__, reduce.__doc__ = name, doc
    return intrinsic(reduce)


reduce_min = _reduction("reduce_min", _extreme("<"), "Smallest lane; any lane where one is NaN.")
reduce_max = _reduction("reduce_max", _extreme(">"), "Largest lane; any lane where one is NaN.")
reduce_sum = _reduction(
    "reduce_sum", _arithmetic("fadd", "add"), "Sum of the lanes, halves added pairwise: the same order on every CPU."
)


@intrinsic
def mask_to_bits(typingctx: Any, mask: Any) -> Any:
    """A mask of 8, 16, 32 or 64 lanes as an unsigned integer, lane 0 the lowest bit."""
    result = types.Integer.from_bitwidth(mask.n, signed=False)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _llvm(result))

    return result(mask), emit


@intrinsic
def bits_to_mask(typingctx: Any, bits: Any) -> Any:
    """The mask of which an integer's bits are the lanes, the lowest bit lane 0."""
    kind = types.unliteral(bits)
    result = Vec(types.boolean, kind.bitwidth)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _llvm(result))

    return result(kind), emit
