"""Codes in words of int32: in the order of their neighbours, or in the order of AWQ."""

from __future__ import annotations

import math

import numpy as np

from fastq.ops.packing import pack, unpack
from fastq.system.dtypes import Array


def as_words(packed: Array) -> Array:
    """Return rows of bytes as words of int32; zeros fill the last word of a row."""
    padding = -packed.shape[-1] % 4
    filled = np.pad(packed, [(0, 0)] * (packed.ndim - 1) + [(0, padding)]) if padding else packed
    return np.ascontiguousarray(filled).view("<i4")


def to_words(codes: Array, bits: int, axis: int, name: str, order: tuple[int, ...] = ()) -> Array:
    """Return codes in words of int32 along an axis, the first one in the lowest bits.

    With an `order` the axis is the last one, and the lowest bits have the code of index order[0] among neighbours, the
    next ones that of order[1]. `name` is the tensor that errors name.
    """
    if order and codes.shape[1] % len(order):
        raise ValueError(f"{name} needs whole words: a multiple of {len(order)} outputs, not {codes.shape[1]}")
    if codes.shape[axis] * bits % 32:
        raise ValueError(f"{name} needs whole words: a multiple of {32 // math.gcd(bits, 32)}, not {codes.shape[axis]}")
    if order:
        codes = codes.reshape(len(codes), -1, len(order))[..., order].reshape(codes.shape)
    rows = np.ascontiguousarray(np.moveaxis(codes, axis, -1))
    words = as_words(pack(rows, f"uint{bits}") if bits < 8 else rows)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def from_words(words: Array, bits: int, axis: int, order: tuple[int, ...] = ()) -> Array:
    """Return the codes in words along an axis, in their own order: what `to_words` was given."""
    rows = np.ascontiguousarray(np.moveaxis(words, axis, -1)).astype("<i4", copy=False).view(np.uint8)
    length = rows.shape[-1] * 8 // bits
    codes = unpack(rows, f"uint{bits}", shape=(*rows.shape[:-1], length)) if bits < 8 else rows
    if order:
        codes = codes.reshape(len(codes), -1, len(order))[..., np.argsort(order)].reshape(codes.shape)
    return np.ascontiguousarray(np.moveaxis(codes, -1, axis))
