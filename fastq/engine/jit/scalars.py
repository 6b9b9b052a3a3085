"""Types of compiled code as LLVM has them, and the operators of its scalars.

Their results are of the types that Numba gives them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

BIT = ir.IntType(1)
BYTE = ir.IntType(8)
WORD = ir.IntType(64)
DUMMY = ir.Constant(BYTE.as_pointer(), None)  # the value of what is nothing at run time


class UntraceableError(Exception):
    """Raised where a function can't be compiled as it is."""


# --- types ------------------------------------------------------------------------------------------------------------


def is_nothing(kind: types.Type) -> bool:
    """Return whether a type has no value at run time."""
    return isinstance(kind, types.Opaque | types.TypeRef | types.NumberClass | types.StringLiteral)


_llvm: dict[types.Type, ir.Type] = {}


def llvm_of(kind: types.Type) -> ir.Type:
    """Return the LLVM type of values of a type."""
    llvm_type = _llvm.get(kind)
    if llvm_type is None:
        llvm_type = _llvm[kind] = _llvm_of(types.unliteral(kind))
    return llvm_type


def _llvm_of(kind: types.Type) -> ir.Type:
    """Return the LLVM type of values of a type, which is no literal.

    A bool in memory is a byte, as in NumPy, but a bit in a register. A record is referred to by its address.
    """
    if is_nothing(kind):
        return BYTE.as_pointer()
    if (own := getattr(kind, "llvm", None)) is not None:
        return own
    match kind:
        case types.Boolean():
            return BIT
        case types.Integer():
            return ir.IntType(kind.bitwidth)
        case types.Float():
            return {16: ir.HalfType(), 32: ir.FloatType(), 64: ir.DoubleType()}[kind.bitwidth]
        case types.CPointer():
            return (BYTE if isinstance(kind.dtype, types.Boolean) else llvm_of(kind.dtype)).as_pointer()
        case types.Record():
            return ir.ArrayType(BYTE, kind.size).as_pointer()
        case types.BaseTuple():
            return ir.LiteralStructType([llvm_of(each) for each in kind.types])
    raise UntraceableError(f"no type of compiled code: {kind}")


def make_tuple(builder: Any, kind: types.BaseTuple, parts: Any) -> Any:
    """Emit a tuple of LLVM values."""
    struct: Any = ir.Constant(llvm_of(kind), ir.Undefined)
    for k, part in enumerate(parts):
        struct = builder.insert_value(struct, part, k)
    return struct


class _Context:
    """What emitters of instructions ask for types and constants."""

    get_value_type = staticmethod(llvm_of)
    make_tuple = staticmethod(make_tuple)
    call: Any = None  # emits the call of a compiled function, see `emission`

    @staticmethod
    def get_dummy_value() -> Any:
        """Return the value of what is nothing at run time."""
        return DUMMY

    @staticmethod
    def get_constant_null(kind: types.Type) -> Any:
        """Return the value of zeros."""
        return ir.Constant(llvm_of(kind), None)


CONTEXT = _Context()


def python_value(item: Any, kind: types.Type) -> Any:
    """Return a constant as the number of a type."""
    kind = types.unliteral(kind)
    return float(item) if isinstance(kind, types.Float) else int(item)


def truth(builder: Any, kind: types.Type, value: Any) -> Any:
    """Emit whether a number is not 0."""
    if isinstance(kind, types.Boolean):
        return value
    if isinstance(kind, types.Integer):
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))
    if isinstance(kind, types.Float):
        # NaN is true, as in Python
        return builder.fcmp_unordered("!=", value, ir.Constant(value.type, 0))
    raise UntraceableError(f"no condition: {kind}")


def cast(builder: Any, value: Any, source: types.Type, target: types.Type) -> Any:
    """Emit the conversion of a value to another type: tuples part by part, numbers as C converts them."""
    source = types.unliteral(source)
    target = types.unliteral(target)
    if source == target:
        return value
    to = llvm_of(target)
    if isinstance(source, types.BaseTuple) and isinstance(target, types.BaseTuple):
        parts = [
            cast(builder, builder.extract_value(value, k), *source_and_target)
            for k, source_and_target in enumerate(zip(source.types, target.types, strict=True))
        ]
        return make_tuple(builder, target, parts)
    if is_nothing(source) and is_nothing(target):
        return value
    if not (isinstance(source, types.Number | types.Boolean) and isinstance(target, types.Number | types.Boolean)):
        raise UntraceableError(f"{source} is no {target}")
    signed = isinstance(source, types.Integer) and source.signed
    if isinstance(target, types.Boolean):
        return truth(builder, source, value)
    if isinstance(target, types.Float):
        if isinstance(source, types.Float):
            return (builder.fptrunc if target.bitwidth < source.bitwidth else builder.fpext)(value, to)
        return (builder.sitofp if signed else builder.uitofp)(value, to)
    if isinstance(source, types.Float):
        return (builder.fptosi if target.signed else builder.fptoui)(value, to)
    width = 1 if isinstance(source, types.Boolean) else source.bitwidth
    if target.bitwidth < width:
        return builder.trunc(value, to)
    return value if target.bitwidth == width else (builder.sext if signed else builder.zext)(value, to)


def joint_type(kinds: list[types.Type]) -> types.Type:
    """Return the type of a variable that has values of all these, of which it holds each.

    It is the wider one of integers of one sign, a wider signed one for both signs, where a bool counts as one bit, or
    the wider float. Others are refused. So int32 and uint16 give int32, as do int32 and a bool; uint32 and int32 are
    refused, as neither holds the numbers of both.
    """
    first, *others = kinds
    for each in others:
        if each == first:
            continue
        if isinstance(first, types.Integer | types.Boolean) and isinstance(each, types.Integer | types.Boolean):
            signs = {kind.signed for kind in (first, each) if isinstance(kind, types.Integer)}
            widest = max((first, each), key=lambda kind: 1 if isinstance(kind, types.Boolean) else kind.bitwidth)
            if len(signs) == 1 or (
                isinstance(widest, types.Integer) and widest.signed and first.bitwidth != each.bitwidth
            ):
                first = widest
                continue
        if isinstance(first, types.Float) and isinstance(each, types.Float):
            first = max(first, each, key=lambda kind: kind.bitwidth)
            continue
        raise UntraceableError(f"a variable of {first} and {each}")
    return first


# --- operators --------------------------------------------------------------------------------------------------------

Emit = Callable[[Any, list[Any]], Any]
vector_operators: dict[Any, tuple[Any, Any]] = {}  # of `fastq.engine.simd`: typing and emitter


def operation(symbol: Any, kinds: list[types.Type]) -> tuple[types.Type, list[types.Type], Emit]:
    """Return the type of an operator's result, those of its operands, and what emits it for converted operands.

    With a Vec among the operands it is one of `fastq.engine.simd`. Two bools have operators of their own; a quotient of
    integers is a float64.
    """
    # a Vec among them
    if any(hasattr(kind, "n") for kind in kinds):
        typed, emit = vector_operators[symbol]
        sig = typed(*kinds)
        if sig is None:
            raise UntraceableError(f"{symbol.__name__} of {kinds}")
        return sig.return_type, list(sig.args), lambda builder, values: emit(CONTEXT, builder, sig, *values)
    kinds = [types.unliteral(kind) for kind in kinds]
    if not all(isinstance(kind, types.Number | types.Boolean) for kind in kinds):
        raise UntraceableError(f"{symbol.__name__} of {kinds}")
    if all(isinstance(kind, types.Boolean) for kind in kinds) and symbol in _ON_BOOLS:
        return types.boolean, kinds, _ON_BOOLS[symbol]
    kind = _common(symbol, kinds)
    is_float = isinstance(kind, types.Float)
    table = _ON_FLOATS if is_float else _ON_INTEGERS
    if symbol in COMPARISONS:
        name = COMPARISONS[symbol]
        if is_float:
            method = "fcmp_unordered" if name == "!=" else "fcmp_ordered"
        else:
            method = "icmp_signed" if kind.signed else "icmp_unsigned"
        return types.boolean, [kind] * 2, lambda builder, v: getattr(builder, method)(name, *v)
    if symbol is operator.truediv and not is_float:
        kind = types.float64
        table = _ON_FLOATS
    if symbol not in table:
        raise UntraceableError(f"{symbol.__name__} of {kinds}")
    emit = table[symbol]
    return kind, [kind] * len(kinds), lambda builder, values: emit(builder, kind, values)


def _common(symbol: Any, kinds: list[types.Type]) -> types.Type:
    """Return the type that scalar operands are converted to, as Numba does; it is that of the result.

    Floats give the wider one; a float and an integer give float64, unless the integer has fewer than 32 bits, which is
    refused. Integers are computed in 64 bits, unsigned if none is signed; the amount of a shift does not count. Signed
    and unsigned numbers are compared as int64, which does not hold all of uint64.
    """
    floats = [kind for kind in kinds if isinstance(kind, types.Float)]
    if floats:
        if len(floats) < len(kinds):
            if any(isinstance(kind, types.Integer) and kind.bitwidth < 32 for kind in kinds):
                raise UntraceableError(f"{symbol.__name__} of {kinds}")
            return types.float64
        return max(floats, key=lambda kind: kind.bitwidth)
    if symbol in (operator.lshift, operator.rshift):
        kinds = kinds[:1]
    signed = [isinstance(kind, types.Boolean) or kind.signed for kind in kinds]
    if symbol in COMPARISONS and len(set(signed)) > 1:
        if any(kind == types.uint64 for kind in kinds):
            raise UntraceableError(f"{symbol.__name__} of {kinds}")
        return types.int64
    return types.int64 if any(signed) else types.uint64


COMPARISONS = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}
_ON_BOOLS: dict[Any, Emit] = {
    operator.and_: lambda builder, v: builder.and_(*v),
    operator.or_: lambda builder, v: builder.or_(*v),
    operator.xor: lambda builder, v: builder.xor(*v),
    operator.eq: lambda builder, v: builder.icmp_unsigned("==", *v),
    operator.ne: lambda builder, v: builder.icmp_unsigned("!=", *v),
    operator.invert: lambda builder, v: builder.not_(*v),
}
_ON_FLOATS: dict[Any, Callable[[Any, Any, list[Any]], Any]] = {
    operator.add: lambda builder, kind, v: builder.fadd(*v),
    operator.sub: lambda builder, kind, v: builder.fsub(*v),
    operator.mul: lambda builder, kind, v: builder.fmul(*v),
    operator.truediv: lambda builder, kind, v: builder.fdiv(*v),
    operator.neg: lambda builder, kind, v: builder.fneg(*v),
}


def _quotient_and_remainder(builder: Any, kind: types.Type, values: list[Any]) -> tuple[Any, Any]:
    """Emit quotient and remainder, rounded down as Python does, -7 // 2 = -4; 0 where the divisor is 0.

    LLVM rounds towards zero: where the remainder is not 0 and its sign is not the divisor's, the quotient is one less.
    """
    a, b = values
    zero = ir.Constant(a.type, 0)
    may_be_zero = not (isinstance(b, ir.Constant) and b.constant)
    if may_be_zero:
        is_zero = builder.icmp_unsigned("==", b, zero)
        b = builder.select(is_zero, ir.Constant(a.type, 1), b)
    if kind.signed:
        quotient = builder.sdiv(a, b)
        rest = builder.srem(a, b)
        negative = builder.icmp_signed("<", builder.xor(b, rest), zero)
        below = builder.and_(negative, builder.icmp_unsigned("!=", rest, zero))
        quotient = builder.select(below, builder.sub(quotient, ir.Constant(a.type, 1)), quotient)
        rest = builder.select(below, builder.add(rest, b), rest)
    else:
        quotient = builder.udiv(a, b)
        rest = builder.urem(a, b)
    if may_be_zero:
        quotient, rest = (builder.select(is_zero, zero, each) for each in (quotient, rest))
    return quotient, rest


def _shift_right(builder: Any, kind: types.Type, values: list[Any]) -> Any:
    """Emit a shift to the right, which keeps the sign of a signed integer."""
    return (builder.ashr if kind.signed else builder.lshr)(*values)


def _magnitude(builder: Any, kind: types.Type, values: list[Any]) -> Any:
    """Emit the magnitude of an integer."""
    (value,) = values
    if not kind.signed:
        return value
    return builder.select(builder.icmp_signed("<", value, ir.Constant(value.type, 0)), builder.neg(value), value)


def _overflow_flags(kind: types.Type) -> tuple[str, ...]:
    """Return the flags of arithmetic: signed integers do not overflow, so LLVM knows how often a loop runs."""
    return ("nsw",) if kind.signed else ()


_ON_INTEGERS: dict[Any, Callable[[Any, Any, list[Any]], Any]] = {
    operator.add: lambda builder, kind, v: builder.add(*v, flags=_overflow_flags(kind)),
    operator.sub: lambda builder, kind, v: builder.sub(*v, flags=_overflow_flags(kind)),
    operator.mul: lambda builder, kind, v: builder.mul(*v, flags=_overflow_flags(kind)),
    operator.floordiv: lambda builder, kind, v: _quotient_and_remainder(builder, kind, v)[0],
    operator.mod: lambda builder, kind, v: _quotient_and_remainder(builder, kind, v)[1],
    operator.and_: lambda builder, kind, v: builder.and_(*v),
    operator.or_: lambda builder, kind, v: builder.or_(*v),
    operator.xor: lambda builder, kind, v: builder.xor(*v),
    operator.lshift: lambda builder, kind, v: builder.shl(*v),
    operator.rshift: _shift_right,
    operator.neg: lambda builder, kind, v: builder.neg(*v),
    operator.pos: lambda builder, kind, v: v[0],
    operator.invert: lambda builder, kind, v: builder.not_(*v),
    operator.abs: _magnitude,
}
