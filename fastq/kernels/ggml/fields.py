"""Rows of bytes of sixteen blocks side by side: byte k of row i is byte i of block k."""

from __future__ import annotations

from numba import types

from fastq.engine.jit import njit
from fastq.engine.simd import Vec, constant, convert, full, load, store
from fastq.kernels.ggml.spec import GROUP

LANES = GROUP
_U8 = Vec(types.uint8, LANES)
_FOUR = Vec(types.uint8, 4 * LANES)  # four rows


@njit
def store_row(rows, i, numbers):
    """Store the lowest bits of integers as row i."""
    store(rows, i * LANES, convert(numbers, types.uint8))


@njit
def store_half(rows, i, bits):
    """Store float16 parameters as rows i and i + 1."""
    store_row(rows, i, bits)
    store_row(rows, i + 1, bits >> constant(8, bits))


@njit
def nibbles(rows, at, codes, low, high, count):
    """Store codes from `low` and from `high` on in the halves of so many rows, a multiple of four."""
    for i in range(0, count, 4):
        a, b = load(codes, (low + i) * LANES, _FOUR), load(codes, (high + i) * LANES, _FOUR)
        store(rows, (at + i) * LANES, (a & constant(15, a)) | (b << constant(4, b)))


@njit
def columns(rows, at, codes, first, shift, bits, parts, stride, count):
    """Store so many rows, a multiple of four, of which row i has a field of each of the codes i + k * stride."""
    mask = (1 << bits) - 1
    for i in range(0, count, 4):
        row = full(0, _FOUR)
        for k in range(parts):
            code = load(codes, (first + i + k * stride) * LANES, _FOUR)
            field = (code >> constant(shift, code)) & constant(mask, code)
            row = row | (field << constant(bits * k, code))
        store(rows, (at + i) * LANES, row)


@njit
def neighbours(rows, at, codes, shift, bits, parts, count):
    """Store so many rows, each of a field of as many codes as there are parts, one after the other."""
    mask = (1 << bits) - 1
    for i in range(count):
        row = full(0, _U8)
        for k in range(parts):
            code = load(codes, (i * parts + k) * LANES, _U8)
            field = (code >> constant(shift, code)) & constant(mask, code)
            row = row | (field << constant(bits * k, code))
        store(rows, (at + i) * LANES, row)
