"""Constants, operators, comparisons and arithmetic, lane by lane."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import overload
from numba.core.imputils import lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global

from fastq.engine.jit import intrinsic
from fastq.engine.simd.vector import (
    Vec,
    call_llvm,
    is_float,
    is_signed,
    is_value,
    lane_type,
    llvm_suffix,
    llvm_type,
    named_type,
    splat,
    with_lane_type,
)


@intrinsic
def full(typingctx, value, kind):
    """Broadcast `value` to the lanes of `kind`."""
    if (result := named_type(kind)) is None:
        return None

    def emit(context, builder, sig, args):
        return splat(builder, args[0], llvm_type(result)) if isinstance(result, Vec) else args[0]

    return result(lane_type(result), kind), emit


@intrinsic
def full_like(typingctx, value, like):
    """Broadcast `value`, a scalar of the lane type of `like`, to as many lanes as `like` has."""
    result = types.unliteral(like)

    def emit(context, builder, sig, args):
        return splat(builder, args[0], llvm_type(result)) if isinstance(result, Vec) else args[0]

    return result(lane_type(result), result), emit


@intrinsic
def constant(typingctx, value, like):
    """Convert `value` to a scalar of the lane type of `like`, which keeps float32 arithmetic in float32."""
    dtype = lane_type(like)

    def emit(context, builder, sig, args):
        return args[0]

    return dtype(dtype, like), emit


@intrinsic
def lanes_from(typingctx, k, like):
    """Mask of the lanes of `like` from number k on, an int64 from 0 to how many there are."""

    def emit(context, builder, sig, args):
        integers = ir.VectorType(ir.IntType(lane_type(like).bitwidth), like.n)
        numbers = ir.Constant(integers, list(range(like.n)))
        return builder.icmp_unsigned(">=", numbers, splat(builder, builder.trunc(args[0], integers.element), integers))

    return with_lane_type(like, types.boolean)(types.int64, like), emit


Emit = Callable[[Any, Any, list[Any]], Any]  # (builder, type of the lanes, LLVM values) to an LLVM value


def _same_type(kind):
    return kind


def _mask_like(kind):
    return with_lane_type(kind, types.boolean)


def _operation(emit_lanes: Emit, result_of: Callable[[Any], Any] = _same_type) -> Any:
    """Return the typing function of an operation on lanes of one type; scalars are broadcast where any is a Vec."""

    def typed(typingctx, *operands):
        if len(operands) == 1 and isinstance(operands[0], types.BaseTuple):
            operands = tuple(operands[0])
        kind = next((operand for operand in operands if isinstance(operand, Vec)), types.unliteral(operands[0]))
        wanted = tuple(kind if isinstance(operand, Vec) else lane_type(kind) for operand in operands)

        def emit(context, builder, sig, args):
            values = zip(args, wanted, strict=True)
            return emit_lanes(builder, kind, [_broadcast(builder, value, of, kind) for value, of in values])

        return signature(result_of(kind), *wanted), emit

    return typed


def _broadcast(builder, value, of, kind):
    """Emit a value of type `of` as lanes of `kind`."""
    return splat(builder, value, llvm_type(kind)) if isinstance(kind, Vec) and not isinstance(of, Vec) else value


def _unary(name: str, emit_lanes: Emit, doc: str):
    typed = _operation(emit_lanes)

    def unary(typingctx, x):
        return typed(typingctx, x) if is_value(x) else None

    unary.__name__, unary.__doc__ = name, doc
    return intrinsic(unary)


def _binary(name: str, emit_lanes: Emit, doc: str):
    typed = _operation(emit_lanes)

    def binary(typingctx, a, b):
        return typed(typingctx, a, b) if is_value(a) and is_value(b) else None

    binary.__name__, binary.__doc__ = name, doc
    return intrinsic(binary)


def _compare(builder, comparison: str, kind: types.Type, a, b):
    if is_float(kind):
        # NaN is different from everything, itself included: the one comparison that is true when unordered
        return (builder.fcmp_unordered if comparison == "!=" else builder.fcmp_ordered)(comparison, a, b)
    return (builder.icmp_signed if is_signed(kind) else builder.icmp_unsigned)(comparison, a, b)


def emit_extreme(comparison: str) -> Emit:
    """Return what emits ``a if a <comparison> b else b``."""

    def emit(builder, kind, values: list[Any]):
        a, b = values
        return builder.select(_compare(builder, comparison, kind, a, b), a, b)

    return emit


def _llvm_call(name: str) -> Emit:
    return lambda builder, kind, values: call_llvm(builder, f"llvm.{name}.{llvm_suffix(kind)}", values[0].type, values)


def _absolute(builder, kind, values: list[Any]):
    if is_float(kind):
        return _llvm_call("fabs")(builder, kind, values)
    negative = builder.sub(ir.Constant(values[0].type, None), values[0])
    return emit_extreme(">")(builder, kind, [values[0], negative]) if is_signed(kind) else values[0]


# Hazard: where b is a constant, LLVM makes FMINNM and FMAXNM of these on AArch64, which give NaN where a is a signaling
# NaN, and -0.0 as the minimum of -0.0 and 0.0. So a is what arithmetic gives, no -0.0 if b is 0.0, or b no constant.
minimum = _binary("minimum", emit_extreme("<"), "``a if a < b else b``, lane by lane: b where either is NaN.")
maximum = _binary("maximum", emit_extreme(">"), "``a if a > b else b``, lane by lane: b where either is NaN.")
absolute = _unary("absolute", _absolute, "Magnitude; that of the most negative integer is itself.")
rint = _unary("rint", _llvm_call("rint"), "Nearest whole number, ties to even.")
floor = _unary("floor", _llvm_call("floor"), "Largest whole number not above x.")
sqrt = _unary("sqrt", _llvm_call("sqrt"), "Square root of float lanes.")
ceil = _unary("ceil", _llvm_call("ceil"), "Smallest whole number not below x.")
trunc = _unary("trunc", _llvm_call("trunc"), "Whole part, towards zero.")
copysign = _binary("copysign", _llvm_call("copysign"), "Float lanes with the magnitude of a and the sign of b.")


@intrinsic
def fma(typingctx, a, b, c):
    """Compute ``a * b + c``, rounded once."""
    return _operation(_llvm_call("fma"))(typingctx, a, b, c)


@intrinsic
def is_nan(typingctx, x):
    """Mask of the lanes that are NaN."""
    return _operation(lambda builder, kind, v: builder.fcmp_unordered("uno", v[0], v[0]), _mask_like)(typingctx, x)


@intrinsic
def either_nan(typingctx, a, b):
    """Mask of the lanes where a or b is NaN, in one comparison."""
    return _operation(lambda builder, kind, v: builder.fcmp_unordered("uno", *v), _mask_like)(typingctx, a, b)


@intrinsic
def select(typingctx, mask, a, b):
    """Select ``a if mask else b``, lane by lane."""
    kind = a if isinstance(a, Vec) else b
    if isinstance(mask, Vec) and not isinstance(kind, Vec):
        kind = Vec(lane_type(kind), mask.n)
    wanted = tuple(v if isinstance(v, Vec) else lane_type(kind) for v in (a, b))

    def emit(context, builder, sig, args):
        chosen = [_broadcast(builder, value, of, kind) for value, of in zip(args[1:], wanted, strict=True)]
        test = args[0]
        if not isinstance(mask, Vec) and test.type.width > 1:  # Numba passes a bool as a byte
            test = builder.trunc(test, ir.IntType(1))
        return builder.select(test, *chosen)

    return kind(mask, *wanted), emit


def _arithmetic(on_float: str, on_integer: str) -> Emit:
    return lambda builder, kind, v: getattr(builder, on_float if is_float(kind) else on_integer)(*v)


def _comparison(symbol: str) -> Emit:
    return lambda builder, kind, v: _compare(builder, symbol, kind, *v)


def _shift_right(builder, kind, values: list[Any]):
    return (builder.ashr if is_signed(kind) else builder.lshr)(*values)


_OPERATORS: dict[Any, tuple[Emit, Callable[[Any], Any]]] = {
    operator.add: (_arithmetic("fadd", "add"), _same_type),
    operator.sub: (_arithmetic("fsub", "sub"), _same_type),
    operator.mul: (_arithmetic("fmul", "mul"), _same_type),
    operator.truediv: (lambda builder, kind, v: builder.fdiv(*v), _same_type),
    operator.and_: (lambda builder, kind, v: builder.and_(*v), _same_type),
    operator.or_: (lambda builder, kind, v: builder.or_(*v), _same_type),
    operator.xor: (lambda builder, kind, v: builder.xor(*v), _same_type),
    operator.lshift: (lambda builder, kind, v: builder.shl(*v), _same_type),
    operator.rshift: (_shift_right, _same_type),
    operator.lt: (_comparison("<"), _mask_like),
    operator.le: (_comparison("<="), _mask_like),
    operator.gt: (_comparison(">"), _mask_like),
    operator.ge: (_comparison(">="), _mask_like),
    operator.eq: (_comparison("=="), _mask_like),
    operator.ne: (_comparison("!="), _mask_like),
}


def _overload_operator(symbol, emit_lanes, result_of) -> None:
    typed = _operation(emit_lanes, result_of)

    class Operator(AbstractTemplate):
        key = symbol

        def generic(self, args, kws):
            return typed(self.context, *args)[0] if any(isinstance(arg, Vec) for arg in args) else None

    def lower(context, builder, sig, args):
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
def _overload_invert(x):
    return (lambda x: _invert(x)) if isinstance(x, Vec) else None


@overload(operator.neg, strict=False)
def _overload_negate(x):
    return (lambda x: _negate(x)) if isinstance(x, Vec) else None
