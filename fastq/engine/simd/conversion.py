"""Convert lanes between types, by value or by bits."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from fastq.engine.simd.vector import (
    Vec,
    call_llvm,
    instruction,
    is_float,
    is_signed,
    lane_count,
    lane_type,
    llvm_suffix,
    llvm_type,
    with_lane_type,
)


def _convert_lanes(builder, value, source: types.Type, target: types.Type, vector: ir.Type):
    """Emit lanes of one type as lanes of another, of the LLVM type `vector`; a bool is 0 or 1."""
    if source == target:
        return value
    if is_float(source) and is_float(target):
        return (builder.fptrunc if target.bitwidth < source.bitwidth else builder.fpext)(value, vector)
    if is_float(target):
        return (builder.sitofp if is_signed(source) else builder.uitofp)(value, vector)
    if source == types.boolean or target.bitwidth > source.bitwidth:
        return (builder.sext if is_signed(source) else builder.zext)(value, vector)
    return builder.trunc(value, vector) if target.bitwidth < source.bitwidth else value


def _convert_signature(x, dtype):
    """Return the signature of `convert`, None from floats to integers."""
    source = lane_type(x)
    target = dtype.dtype
    if isinstance(source, types.Float) and isinstance(target, types.Integer):
        return None
    return with_lane_type(x, target)(types.unliteral(x), dtype)


@instruction(_convert_signature)
def convert(context, builder, sig, x, dtype):
    """Convert lanes to `dtype`: to floats rounded to nearest, between integers modulo 2**bits.

    No float converts to an integer here, since LLVM leaves that undefined out of range: see `bounded_to_integer`.
    """
    result = sig.return_type
    return _convert_lanes(builder, x, lane_type(sig.args[0]), lane_type(result), llvm_type(result))


def _bitcast_signature(x, dtype):
    """Return the signature of `bitcast`: of a Vec as many lanes of the new type as its bits fill."""
    kind = types.unliteral(x)
    target = dtype.dtype
    bits = lane_count(kind) * (1 if lane_type(kind) == types.boolean else lane_type(kind).bitwidth)
    return (Vec(target, bits // target.bitwidth) if isinstance(kind, Vec) else target)(kind, dtype)


@instruction(_bitcast_signature)
def bitcast(context, builder, sig, x, dtype):
    """Reinterpret the bits of x as lanes of `dtype`, as many as they fill, in the order of memory.

    The lanes of a mask have one bit each.
    """
    return builder.bitcast(x, llvm_type(sig.return_type))


@instruction(lambda x, dtype: with_lane_type(x, dtype.dtype)(x, dtype))
def bounded_to_integer(context, builder, sig, x, dtype):
    """Convert the whole part of float lanes to the integer `dtype`; callers have proved every lane in range.

    Out of range LLVM's conversion is undefined.
    """
    result = sig.return_type
    target = lane_type(sig.return_type)
    # every CPU converts to 8 and 16 bit lanes through 32 bits; said here, LLVM need not find it
    wide = max(target.bitwidth, 32)
    signed = bool(target.signed) or target.bitwidth < wide
    whole = llvm_type(with_lane_type(result, types.Integer.from_bitwidth(wide, signed)))
    value = (builder.fptosi if signed else builder.fptoui)(x, whole)
    return builder.trunc(value, llvm_type(result)) if target.bitwidth < wide else value


@instruction(lambda x: with_lane_type(x, types.int32)(x))
def round_to_int32(context, builder, sig, x):
    """Round float lanes to int32, ties to even: one instruction, where `rint` and a conversion are three.

    A lane that is NaN or out of range gives an unspecified integer (llvm.lrint: never undefined).
    """
    result = sig.return_type
    name = f"llvm.lrint.{llvm_suffix(result)}.{llvm_suffix(sig.args[0])}"
    return call_llvm(builder, name, llvm_type(result), [x])
