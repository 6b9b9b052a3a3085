"""Loop that decodes blocks of GGUF: numbers that codes stand for, times scales, and with smallest values."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, intrinsic, njit, specialize
from fastq.engine.simd.vector import call_llvm
from fastq.formats.gguf import BLOCK, CODEBOOK, DOUBLED, CodebookFormat, FloatFormat
from fastq.kernels.ggml.fields import LANES, mins_of, scales_of, units_of, with_all_codes
from fastq.kernels.ggml.spec import from_half, nbytes, scale_beside, signed, size, step_of, streams
from fastq.kernels.traversal.stores import flush, stage_at, store_tail, write_pointer

_HALVES, _FLOATS = v.Vec(types.uint16, LANES), v.Vec(types.float32, LANES)
_STAGED = 512  # values
_ROOM = _STAGED * 4 + 2 * v.LINE  # bytes of as many, as they are staged
_AHEAD = 16  # blocks of 32 values, or cache lines of larger ones, that are prefetched


@njit
def dequantize_groups(spec, operands, args, units):
    """Decode blocks start..stop; src and dst begin with block `origin`."""
    src = v.advance(operands.src, -units.origin * nbytes(spec))
    dst = v.advance(operands.dst, -units.origin * size(spec))
    if streams(spec):
        stage, p = stage_at(v.scratch(_ROOM, types.uint8), v.advance(dst, units.start * size(spec))), units.start
        while p < units.stop:
            blocks = min(_STAGED // size(spec), units.stop - p)
            for k in range(blocks):
                values = v.advance(v.cast_pointer(write_pointer(stage), types.float32), k * size(spec))
                decode_block(spec, v.advance(src, (p + k) * nbytes(spec)), values)
            stage = flush(stage, blocks * size(spec) * 4)
            p += blocks
        store_tail(stage)
        return 0
    for p in range(units.start, units.stop):
        decode_block(spec, v.advance(src, p * nbytes(spec)), v.advance(dst, p * size(spec)))
    return 0


@specialize
def decode_block(spec, src, dst):
    """Decode one block."""
    ahead = _AHEAD * spec.row.nbytes if spec.row.size == BLOCK else _AHEAD * v.LINE

    def scaled(spec, src, dst):
        v.prefetch(src, ahead)
        steps = v.scratch(LANES, types.float32)
        v.store(steps, 0, steps_in(spec, src))
        store_all(spec, src, (dst, steps, steps))

    def moved(spec, src, dst):
        v.prefetch(src, ahead)
        steps, minima = v.scratch(LANES, types.float32), v.scratch(LANES, types.float32)
        least = minima_in(spec, src)
        v.store(minima, 0, least)
        v.store(steps, 0, scale_beside(least, steps_in(spec, src)))
        store_all(spec, src, (dst, steps, minima))

    return moved if spec.row.has_minimum else scaled


@specialize
def store_sixteen(spec, n, codes, context):
    """Store the values of sixteen codes."""

    def scaled(spec, n, codes, context):
        dst, steps, _ = context
        store_floats(dst, n, number_of(spec, codes) * of_sub_block(spec, steps, n))

    def moved(spec, n, codes, context):
        dst, steps, minima = context
        store_floats(dst, n, number_of(spec, codes) * of_sub_block(spec, steps, n) + of_sub_block(spec, minima, n))

    def lowered(spec, n, codes, context):
        dst, steps, minima = context
        store_floats(dst, n, number_of(spec, codes) * of_sub_block(spec, steps, n) - of_sub_block(spec, minima, n))

    if not spec.row.has_minimum:
        return scaled
    return lowered if spec.row.count("mins") else moved


store_all = with_all_codes(store_sixteen)


@specialize
def of_sub_block(spec, parameters, n):
    """Load the parameter of the values from number n on."""
    sub = spec.row.sub
    if sub == spec.row.size:
        return lambda spec, parameters, n: v.load(parameters, 0, _FLOATS)
    return lambda spec, parameters, n: parameters[n // sub]


@njit
def store_floats(dst, i, value):
    """Store 16 numbers in halves of a register: NumPy's arrays begin 16 bytes after a line."""
    v.store(dst, i, v.lower(value))
    v.store(dst, i + 8, v.upper(value))


# --- parameters -------------------------------------------------------------------------------------------------------


def _bits_of(of: str, doc: str) -> Any:
    """Make what loads the bits of a float16 parameter of the block at src."""

    def load_bits(spec, src):
        (field,) = spec.row.fields_of(of)
        at = field.at
        return lambda spec, src: v.load(v.cast_pointer(v.advance(src, at), types.uint16), 0, types.uint16)

    load_bits.__name__, load_bits.__doc__ = f"{of}_of", doc
    return specialize(load_bits)


d_of = _bits_of("d", "Load the scale, or the unit of scales.")
min_of = _bits_of("min", "Load the smallest value, or the unit of smallest values.")


@specialize
def steps_in(spec, src):
    """Return the scale of each sub-block, in every lane if there is one.

    Where one was converted alone, the instruction kept the other lanes of a register, and waited for what was in them:
    Q8_0 took up to twice as long.
    """
    zero, is_one = spec.row.scale_zero, spec.row.size == spec.row.sub
    if isinstance(spec.row, FloatFormat):
        if is_one:
            return lambda spec, src: v.full(
                v.first(step_of(spec, v.convert(units_of(spec, src), types.int32))), _FLOATS
            )
        return lambda spec, src: step_of(spec, v.convert(units_of(spec, src), types.int32))
    if is_one:
        return lambda spec, src: from_half(spec, v.full(d_of(spec, src), _HALVES))
    return lambda spec, src: from_half(spec, d_of(spec, src)) * signed(scales_of(spec, src), zero)


@specialize
def minima_in(spec, src):
    """Return the smallest value of each sub-block, in super-blocks times -1."""
    if spec.row.size == spec.row.sub:
        return lambda spec, src: from_half(spec, v.full(min_of(spec, src), _HALVES))
    return lambda spec, src: from_half(spec, min_of(spec, src)) * signed(mins_of(spec, src), 0)


# --- codes ------------------------------------------------------------------------------------------------------------


# the instruction that looks 16 bytes up in 16 others, which LLVM does not find by itself
_LOOK_UP = "llvm.x86.ssse3.pshuf.b.128" if TARGET.has("ssse3") else ""
_LOOK_UP = "llvm.aarch64.neon.tbl1.v16i8" if TARGET.is_arm else _LOOK_UP


def _looked_up(name: str, table: tuple[int, ...], doc: str):
    """Make an intrinsic that looks 16 nibbles up in a table of signed bytes."""

    def look_up(typingctx, codes):
        def emit(context, builder, sig, args):
            if _LOOK_UP:
                bytes_ = ir.Constant(args[0].type, [number % 256 for number in table])
                return call_llvm(builder, _LOOK_UP, args[0].type, [bytes_, args[0]])
            found = ir.Constant(ir.VectorType(ir.IntType(8), codes.n), [table[0]] * codes.n)
            for code, number in enumerate(table[1:], 1):
                this = builder.icmp_unsigned("==", args[0], ir.Constant(args[0].type, [code] * codes.n))
                found = builder.select(this, ir.Constant(found.type, [number] * codes.n), found)
            return found

        return v.Vec(types.int8, codes.n)(codes), emit

    look_up.__name__, look_up.__doc__ = name, doc
    return intrinsic(look_up)


in_codebook = _looked_up("in_codebook", CODEBOOK, "Look codes up in the codebook.")
doubled = _looked_up("doubled", DOUBLED, "Decode codes of float4_e2m1fn, doubled.")


@specialize
def number_of(spec, codes):
    """Return what codes stand for, in units of the scale, as floats."""
    zero, table = spec.row.zero, {CodebookFormat: in_codebook, FloatFormat: doubled}.get(type(spec.row))
    if table is None:
        return lambda spec, codes: signed(codes, zero)
    return lambda spec, codes: v.convert(v.convert(table(codes), types.int32), types.float32)
