"""Rows of integer codes of at most 8 bits as compressed-tensors packs them: code - qmin, first code in the low bits.

A row is a number of int32 words; the padding at its end is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.qtypes import QType

Array = NDArray[Any]


def words_for(length: int, qtype: QType) -> int:
    """Return how many words a row of so many codes takes."""
    return -(-length * qtype.bits // 32)


def to_words(packed: Array, length: int, qtype: QType) -> Array:
    """Return rows of `length` packed codes, as `fastq.pack` gives them or of int8, in words."""
    *outer, size = packed.shape
    words = np.empty((*outer, -(-size // 4) * 4), np.uint8)
    words[..., size:] = 0
    np.bitwise_xor(packed.view(np.uint8), _shift(length, qtype), out=words[..., :size])
    return words.view("<i4")


def from_words(words: Array, length: int, qtype: QType) -> Array:
    """Return what `to_words` was given."""
    packed = np.ascontiguousarray(words).view(np.uint8)[..., : -(-length * qtype.bits // 8)]
    return (packed ^ _shift(length, qtype)).view(np.uint8 if qtype.packed else qtype.storage)


def columns_to_words(codes: Array, qtype: QType) -> Array:
    """Return codes, one an element, in words along the last axis but one, as zero points are packed."""
    columns = np.swapaxes(codes, -1, -2)
    packed = fastq.pack(columns, qtype) if qtype.packed else np.ascontiguousarray(columns)
    return np.ascontiguousarray(np.swapaxes(to_words(packed, columns.shape[-1], qtype), -1, -2))


def columns_from_words(words: Array, shape: tuple[int, ...], qtype: QType) -> Array:
    """Return the codes of that shape of which `columns_to_words` made words."""
    *outer, rows, columns = shape
    packed = from_words(np.swapaxes(words, -1, -2), rows, qtype)
    codes = fastq.unpack(packed, qtype, shape=(*outer, columns, rows)) if qtype.packed else packed
    return np.swapaxes(codes, -1, -2)


def _shift(length: int, qtype: QType) -> NDArray[np.uint8]:
    """Return the bits that turn a row of packed codes into codes minus qmin, and back; the padding stays zero."""
    lowest = np.full(length, qtype.qmin, qtype.storage)
    return fastq.pack(lowest, qtype) if qtype.packed else lowest.view(np.uint8)
