"""Codes from one form in memory to another: a byte or more each, or several a byte."""

from __future__ import annotations

from numba import types

from fastq.kernels import SAW_OUT_OF_RANGE
from fastq.kernels.memory import fetch_bits, put, put_streaming
from fastq.kernels.packing import Bits
from fastq.kernels.plan import AHEAD
from fastq.kernels.simd import (
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
    lanes_like,
    misalignment,
    prefetch,
)


def rows(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Copy the codes of rows start..stop of `plan.length` codes, each of which begins on a whole byte.

    The last row ends where there are `plan.parameters` codes in all.
    """
    length, size, streaming = plan.length, plan.parameters, plan.streaming != 0
    outside = False
    for row in range(start, stop):
        n = min(length, size - row * length)
        outside |= _row(row_at(src, row, length), row_at(dst, row, length), n, streaming)
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
def _row(src, dst, n, streaming):
    vec = lanes(src, dst)
    step, k, outside = count(vec), 0, False
    if n >= step:
        whole = n - n % step
        bad = out_of_range(fetch_bits(src, 0, vec), dst)
        if streaming and misalignment(dst, 0, lanes_like(vec, dst)) == 0:
            while k < whole:
                prefetch(src, k + AHEAD * 4)
                codes = fetch_bits(src, k, vec)
                bad = bad | out_of_range(codes, dst)
                put_streaming(dst, k, in_register(codes, dst))
                k += step
        while k < whole:
            codes = fetch_bits(src, k, vec)
            bad = bad | out_of_range(codes, dst)
            put(dst, k, in_register(codes, dst))
            k += step
        outside |= any_lane(bad)
    while k < n:
        code = fetch_bits(src, k, dtype_of(src))
        outside |= out_of_range(code, dst)
        put(dst, k, in_register(code, dst))
        k += 1
    return outside
