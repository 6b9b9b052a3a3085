"""Convert lanes between types, by value or by bits."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from fastq.engine.jit import intrinsic
from fastq.engine.simd.vector import (
    Vec,
    call_llvm,
    is_float,
    is_signed,
    lane_count,
    lane_type,
    llvm_suffix,
    llvm_type,
    with_lane_type,
)


def _convert_lanes(builder, value, source: types.Type, target: types.Type, vector: ir.Type):
    if source == target:
        return value
    if is_float(source) and is_float(target):
        return (builder.fptrunc if target.bitwidth < source.bitwidth else builder.fpext)(value, vector)
    if is_float(target):
        return (builder.sitofp if is_signed(source) else builder.uitofp)(value, vector)
    if source == types.boolean or target.bitwidth > source.bitwidth:
        return (builder.sext if is_signed(source) else builder.zext)(value, vector)
    return builder.trunc(value, vector) if target.bitwidth < source.bitwidth else value


@intrinsic
def convert(typingctx, x, dtype):
    """Convert lanes to `dtype`: to floats rounded to nearest, between integers modulo 2**bits.

    No float converts to an integer here, since LLVM leaves that undefined out of range: see `bounded_to_integer`.
    """
    source, target = lane_type(x), dtype.dtype
    if isinstance(source, types.Float) and isinstance(target, types.Integer):
        return None
    result = with_lane_type(x, target)

    def emit(context, builder, sig, args):
        return _convert_lanes(builder, args[0], source, target, llvm_type(result))

    return result(types.unliteral(x), dtype), emit


@intrinsic
def bitcast(typingctx, x, dtype):
    """Reinterpret the bits of x as lanes of `dtype`, as many as they fill, in the order of memory.

    The lanes of a mask have one bit each.
    """
    kind = types.unliteral(x)
    width = 1 if lane_type(kind) == types.boolean else lane_type(kind).bitwidth
    target, bits = dtype.dtype, width * lane_count(kind)
    result = Vec(target, bits // target.bitwidth) if isinstance(kind, Vec) else target

    def emit(context, builder, sig, args):
        return builder.bitcast(args[0], llvm_type(result))

    return result(kind, dtype), emit


@intrinsic
def bounded_to_integer(typingctx, x, dtype):
    """Convert the whole part of float lanes to the integer `dtype`; callers have proved every lane in range.

    Out of range LLVM's conversion is undefined.
    """
    target = dtype.dtype
    # every CPU converts to 8 and 16 bit lanes through 32 bits; said here, LLVM need not find it
    wide = max(target.bitwidth, 32)
    signed = bool(target.signed) or target.bitwidth < wide
    result = with_lane_type(x, target)

    def emit(context, builder, sig, args):
        whole = llvm_type(with_lane_type(x, types.Integer.from_bitwidth(wide, signed)))
        value = (builder.fptosi if signed else builder.fptoui)(args[0], whole)
        return builder.trunc(value, llvm_type(result)) if target.bitwidth < wide else value

    return result(x, dtype), emit


@intrinsic
def round_to_int32(typingctx, x):
    """Round float lanes to int32, ties to even: one instruction, where `rint` and a conversion are three.

    A lane that is NaN or out of range gives an unspecified integer (llvm.lrint: never undefined).
    """
    result = with_lane_type(x, types.int32)

    def emit(context, builder, sig, args):
        return call_llvm(builder, f"llvm.lrint.{llvm_suffix(result)}.{llvm_suffix(x)}", llvm_type(result), [args[0]])

    return result(x), emit
