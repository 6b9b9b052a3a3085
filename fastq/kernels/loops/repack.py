"""Copy codes from one storage format to another: a byte or more each, or several a byte."""

from __future__ import annotations

from numba import types

from fastq.jit import njit, specialize
from fastq.kernels.bitpack import Bits
from fastq.kernels.load_store import PREFETCH, load_bits, prefetch_lanes, store_elements
from fastq.kernels.loops.nontemporal import in_lines
from fastq.kernels.operands import rebase
from fastq.kernels.status import OUT_OF_RANGE
from fastq.simd import (
    advance,
    any_lane,
    cast_pointer,
    constant,
    convert,
    count,
    dtype_of,
    lane_type,
    lanes,
)


@njit
def repack(spec, operands, args, units):
    """Copy rows start..stop of `args.length` codes, each of which begins on a whole byte.

    The last row ends where there are `args.size` codes in all.
    """
    length, outside = args.length, False
    for row in range(units.start, units.stop):
        n = min(length, args.size - row * length)
        src, dst = row_at(operands.src, row, length), row_at(operands.dst, row, length)
        outside |= _repack_row(spec, src, dst, n, args.streaming)
    return OUT_OF_RANGE * outside


@njit
def repack_elements(spec, operands, args, units):
    """Copy codes start..stop, which begin on a whole byte; src and dst hold the codes from `origin` on."""
    operands = rebase(operands, args, units)
    src, dst = advance(operands.src, units.start), advance(operands.dst, units.start)
    return OUT_OF_RANGE * _repack_row(spec, src, dst, units.stop - units.start, args.streaming)


@specialize
def row_at(where, row, length):
    """Return a pointer to a row."""
    bits, dtype = where.dtype.bitwidth, where.dtype
    if bits >= 8:
        return lambda where, row, length: advance(where, row * length)
    return lambda where, row, length: cast_pointer(
        advance(cast_pointer(where, types.uint8), row * ((length * bits + 7) >> 3)), dtype
    )


@specialize
def in_register(code, dst):
    """Convert codes to what `store_elements` takes for a pointer."""
    dtype = dst.dtype.code_type if isinstance(dst.dtype, Bits) else dst.dtype
    return lambda code, dst: convert(code, dtype)


@specialize
def out_of_range(code, dst):
    """Mask of the codes that do not fit the elements of a pointer."""
    kind, dtype = dst.dtype, lane_type(code)
    if not isinstance(kind, Bits):
        return lambda code, dst: False
    least = -(1 << (kind.bitwidth - 1)) if kind.signed else 0
    most = least + (1 << kind.bitwidth) - 1
    if dtype.signed:
        return lambda code, dst: (code < constant(least, code)) | (code > constant(most, code))
    return lambda code, dst: code > constant(most, code)


@njit
def _codes_at(context, i, vec):
    """Convert the codes of the Vec at src[i]; return them and which are out of range."""
    src, dst = context
    codes = load_bits(src, i, vec)
    return in_register(codes, dst), out_of_range(codes, dst)


@njit
def _prefetched_codes_at(context, i, vec):
    prefetch_lanes(context[0], i + PREFETCH * 4, vec)  # only here: in cache the loop has no room for it
    return _codes_at(context, i, vec)


_stream_lines = in_lines(_prefetched_codes_at)


@njit
def _repack_row(spec, src, dst, size, streaming):
    vec = lanes(src, dst)
    n, k, outside = count(vec), 0, False
    if size >= n:
        _, bad = _codes_at((src, dst), 0, vec)
        if streaming:
            k, outside = _stream_lines(spec, (src, dst), src, dst, 0, size, vec)
        while k <= size - n:
            codes, more = _codes_at((src, dst), k, vec)
            bad = bad | more
            store_elements(dst, k, codes)
            k += n
        outside |= any_lane(bad)
    while k < size:
        code = load_bits(src, k, dtype_of(src))
        outside |= out_of_range(code, dst)
        store_elements(dst, k, in_register(code, dst))
        k += 1
    return outside
