"""Constants, operators, comparisons and arithmetic, lane by lane."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit.scalars import vector_operators
from fastq.engine.simd.vector import (
    Vec,
    call_llvm,
    instruction,
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


def _signature_of_full(kind, like):
    """Return the signature of a broadcast to lanes of a type, None where an argument named no type."""
    return None if kind is None else kind(lane_type(kind), like)


@instruction(lambda value, kind: _signature_of_full(named_type(kind), kind))
def full(context, builder, sig, value, kind):
    """Broadcast `value` to the lanes of `kind`."""
    return _broadcast(builder, value, sig.args[0], sig.return_type)


@instruction(lambda value, like: _signature_of_full(types.unliteral(like), types.unliteral(like)))
def full_like(context, builder, sig, value, like):
    """Broadcast `value`, a scalar of the lane type of `like`, to as many lanes as `like` has."""
    return _broadcast(builder, value, sig.args[0], sig.return_type)


@instruction(lambda value, like: lane_type(like)(lane_type(like), like))
def constant(context, builder, sig, value, like):
    """Convert `value` to a scalar of the lane type of `like`, which keeps float32 arithmetic in float32."""
    return value


@instruction(lambda k, like: with_lane_type(like, types.boolean)(types.int64, like))
def lanes_from(context, builder, sig, k, like):
    """Return a mask of the lanes of `like` from number k on; k is an int64 from 0 to the number of lanes."""
    n = sig.return_type.n
    integers = ir.VectorType(ir.IntType(lane_type(sig.args[1]).bitwidth), n)
    first = splat(builder, builder.trunc(k, integers.element), integers)
    return builder.icmp_unsigned(">=", ir.Constant(integers, list(range(n))), first)


def _ramp_signature(kind):
    """Return the signature of `ramp` for a type argument, None unless it names a Vec."""
    vec = named_type(kind)
    return vec(kind) if isinstance(vec, Vec) else None


@instruction(_ramp_signature)
def ramp(context, builder, sig, kind):
    """Return the numbers of the lanes of a Vec type of integers, from 0 on."""
    return ir.Constant(llvm_type(sig.return_type), list(range(sig.return_type.n)))


# --- operations on lanes of one type ----------------------------------------------------------------------------------

Emit = Callable[[Any, Any, list[Any]], Any]  # (builder, type of the lanes, LLVM values) to an LLVM value


def _same_type(kind):
    """Return the type of the result of an operation: that of its lanes."""
    return kind


def _mask_like(kind):
    """Return the type of the result of a comparison: a mask of as many lanes, or a bool."""
    return with_lane_type(kind, types.boolean)


def _kind_of(operands) -> Any:
    """Return the type of the lanes: that of the first Vec, else of a scalar."""
    return next((operand for operand in operands if isinstance(operand, Vec)), types.unliteral(operands[0]))


def _operation(emit_lanes: Emit, result_of: Callable[[Any], Any] = _same_type) -> tuple[Any, Any]:
    """Return typing and emission of an operation on lanes of one type; scalars are broadcast where any is a Vec."""

    def signature_for(*operands):
        """Return the signature for these types, None where one is not that of a value."""
        if not all(map(is_value, operands)):
            return None
        kind = _kind_of(operands)
        operand_types = (kind if isinstance(operand, Vec) else lane_type(kind) for operand in operands)
        return result_of(kind)(*operand_types)

    def emit(context, builder, sig, *values):
        """Emit the operation on LLVM values of the types of the signature."""
        kind = _kind_of(sig.args)
        lanes = [_broadcast(builder, value, of, kind) for value, of in zip(values, sig.args, strict=True)]
        return emit_lanes(builder, kind, lanes)

    return signature_for, emit


def _broadcast(builder, value, of, kind):
    """Emit a value of type `of` as lanes of `kind`."""
    return splat(builder, value, llvm_type(kind)) if isinstance(kind, Vec) and not isinstance(of, Vec) else value


def _declare(name: str, emit_lanes: Emit, doc: str, result_of: Callable[[Any], Any] = _same_type):
    """Declare the instruction of an operation on lanes of one type, which `emit_lanes` emits."""
    signature_for, emit = _operation(emit_lanes, result_of)
    return instruction(signature_for, name, doc)(emit)


def _compare(builder, comparison: str, kind: types.Type, a, b):
    """Emit a comparison of lanes, a mask."""
    if is_float(kind):
        # NaN is different from everything, itself included: the one comparison that is true when unordered
        return (builder.fcmp_unordered if comparison == "!=" else builder.fcmp_ordered)(comparison, a, b)
    return (builder.icmp_signed if is_signed(kind) else builder.icmp_unsigned)(comparison, a, b)


def emit_extreme(comparison: str) -> Emit:
    """Return what emits ``a if a <comparison> b else b``."""
    return lambda builder, kind, v: builder.select(_compare(builder, comparison, kind, *v), *v)


def _llvm_call(name: str) -> Emit:
    """Return what emits a call of an intrinsic of LLVM for the type of the lanes."""
    return lambda builder, kind, values: call_llvm(builder, f"llvm.{name}.{llvm_suffix(kind)}", values[0].type, values)


def _absolute(builder, kind, values: list[Any]):
    """Emit magnitudes; of integers the greater one of x and -x."""
    if is_float(kind):
        return _llvm_call("fabs")(builder, kind, values)
    negative = builder.sub(ir.Constant(values[0].type, None), values[0])
    return emit_extreme(">")(builder, kind, [values[0], negative]) if is_signed(kind) else values[0]


def _emit_unordered(builder, kind, values: list[Any]):
    """Emit which lanes are NaN: of one value, which is compared with itself, or either of two."""
    return builder.fcmp_unordered("uno", values[0], values[-1])


# Hazard: where b is a constant, LLVM makes FMINNM and FMAXNM of these on AArch64, which give NaN where a is a signaling
# NaN, and -0.0 as the minimum of -0.0 and 0.0. So a is what arithmetic gives, no -0.0 if b is 0.0, or b no constant.
minimum = _declare("minimum", emit_extreme("<"), "``a if a < b else b``, lane by lane: b where either is NaN.")
maximum = _declare("maximum", emit_extreme(">"), "``a if a > b else b``, lane by lane: b where either is NaN.")
absolute = _declare("absolute", _absolute, "Magnitude; that of the most negative integer is itself.")
rint = _declare("rint", _llvm_call("rint"), "Nearest whole number, ties to even.")
floor = _declare("floor", _llvm_call("floor"), "Largest whole number not above x.")
sqrt = _declare("sqrt", _llvm_call("sqrt"), "Square root of float lanes.")
ceil = _declare("ceil", _llvm_call("ceil"), "Smallest whole number not below x.")
trunc = _declare("trunc", _llvm_call("trunc"), "Whole part, towards zero.")
copysign = _declare("copysign", _llvm_call("copysign"), "Float lanes with the magnitude of a and the sign of b.")
fma = _declare("fma", _llvm_call("fma"), "Compute ``a * b + c``, rounded once.")
is_nan = _declare("is_nan", _emit_unordered, "Mask of the lanes that are NaN.", _mask_like)
either_nan = _declare(
    "either_nan", _emit_unordered, "Mask of the lanes where a or b is NaN, in one comparison.", _mask_like
)


def _select_signature(mask, a, b):
    """Return the signature of `select`: a Vec if a, b or the mask is one; scalars are of its lane type."""
    kind = a if isinstance(a, Vec) else b
    if isinstance(mask, Vec) and not isinstance(kind, Vec):
        kind = Vec(lane_type(kind), mask.n)
    return kind(mask, *(each if isinstance(each, Vec) else lane_type(kind) for each in (a, b)))


@instruction(_select_signature)
def select(context, builder, sig, mask, a, b):
    """Select ``a if mask else b``, lane by lane."""
    chosen = [_broadcast(builder, value, of, sig.return_type) for value, of in zip((a, b), sig.args[1:], strict=True)]
    if not isinstance(sig.args[0], Vec) and mask.type.width > 1:  # Numba passes a bool as a byte
        mask = builder.trunc(mask, ir.IntType(1))
    return builder.select(mask, *chosen)


def _arithmetic(on_float: str, on_integer: str) -> Emit:
    """Return what emits one of two instructions of LLVM, for lanes of floats or of integers."""
    return lambda builder, kind, v: getattr(builder, on_float if is_float(kind) else on_integer)(*v)


def _comparison(symbol: str) -> Emit:
    """Return what emits a comparison."""
    return lambda builder, kind, v: _compare(builder, symbol, kind, *v)


def _shift_right(builder, kind, values: list[Any]):
    """Emit a shift to the right, which keeps the sign of signed lanes."""
    return (builder.ashr if is_signed(kind) else builder.lshr)(*values)


_OPERATORS: dict[Any, tuple[Emit, Callable[[Any], Any]]] = {
    operator.add: (_arithmetic("fadd", "add"), _same_type),
    operator.sub: (_arithmetic("fsub", "sub"), _same_type),
    operator.mul: (_arithmetic("fmul", "mul"), _same_type),
    operator.truediv: (lambda builder, kind, v: builder.fdiv(*v), _same_type),
    operator.neg: (_arithmetic("fneg", "neg"), _same_type),
    operator.invert: (lambda builder, kind, v: builder.not_(*v), _same_type),
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


for _symbol, _row in _OPERATORS.items():
    vector_operators[_symbol] = _operation(*_row)
