"""Codes from one form in memory to another: a byte or more each, or several a byte."""

from __future__ import annotations

from numba import types

from fastq.kernels import SAW_OUT_OF_RANGE
from fastq.kernels.bitpack import Bits
from fastq.kernels.load_store import fetch_bits, prefetch_lanes, put
from fastq.kernels.loops.nontemporal import in_lines
from fastq.runtime.plan import AHEAD
from fastq.simd.vec import (
    advance,
    any_lane,
    by_type,
    cast_pointer,
    constant,
    convert,
    count,
    dtype_of,
    inline,
    lanes,
)


def rows(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Copy the codes of rows start..stop of `plan.length` codes, each of which begins on a whole byte.

    The last row ends where there are `plan.parameters` codes in all.
    """
    length, size, streaming = plan.length, plan.parameters, plan.streaming != 0
    outside = False
    for row in range(start, stop):
        n = min(length, size - row * length)
        outside |= _row(action, row_at(src, row, length), row_at(dst, row, length), n, streaming)
    return SAW_OUT_OF_RANGE * outside


@by_type
def row_at(where, row, length):
    """Pointer to a row."""
    bits, dtype = where.dtype.bitwidth, where.dtype
    if bits >= 8:
        return lambda where, row, length: advance(where, row * length)
    return lambda where, row, length: cast_pointer(
        advance(cast_pointer(where, types.uint8), row * ((length * bits + 7) >> 3)), dtype
    )


@by_type
def in_register(code, dst):
    """A code as `put` takes it for a pointer."""
    dtype = dst.dtype.held if isinstance(dst.dtype, Bits) else dst.dtype
    return lambda code, dst: convert(code, dtype)


@by_type
def out_of_range(code, dst):
    """Mask of the codes that do not fit the form of a pointer's elements."""
    kind, dtype = dst.dtype, getattr(code, "dtype", code)
    if not isinstance(kind, Bits):
        return lambda code, dst: False
    least = -(1 << (kind.bitwidth - 1)) if kind.signed else 0
    most = least + (1 << kind.bitwidth) - 1
    if dtype.signed:
        return lambda code, dst: (code < constant(least, code)) | (code > constant(most, code))
    return lambda code, dst: code > constant(most, code)


@inline
def _codes_at(context, i, vec):
    """The codes of the Vec at src[i] as `put` takes them, and which are out of range."""
    src, dst = context
    codes = fetch_bits(src, i, vec)
    return in_register(codes, dst), out_of_range(codes, dst)


@inline
def _codes_ahead(context, i, vec):
    prefetch_lanes(context[0], i + AHEAD * 4, vec)  # only here: in cache the loop has no room for it
    return _codes_at(context, i, vec)


_stream_lines = in_lines(_codes_ahead)


@inline
def _row(action, src, dst, n, streaming):
    vec = lanes(src, dst)
    step, k, outside = count(vec), 0, False
    if n >= step:
        _, bad = _codes_at((src, dst), 0, vec)
        if streaming:
            k, outside = _stream_lines(action, (src, dst), src, dst, 0, n, vec)
        while k <= n - step:
            codes, more = _codes_at((src, dst), k, vec)
            bad = bad | more
            put(dst, k, codes)
            k += step
        outside |= any_lane(bad)
    while k < n:
        code = fetch_bits(src, k, dtype_of(src))
        outside |= out_of_range(code, dst)
        put(dst, k, in_register(code, dst))
        k += 1
    return outside
