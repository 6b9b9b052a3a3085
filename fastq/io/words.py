"""Rows of integer codes of fewer than 8 bits as compressed-tensors packs them: code - qmin, first code in the low bits.

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
    """Return rows of `length` packed codes, as `fastq.pack` gives them, in words."""
    shifted = packed ^ _shift(length, qtype)
    padding = [(0, 0)] * (packed.ndim - 1) + [(0, -packed.shape[-1] % 4)]
    return np.ascontiguousarray(np.pad(shifted, padding)).view("<i4")


def from_words(words: Array, length: int, qtype: QType) -> Array:
    """Return what `to_words` was given."""
    packed = np.ascontiguousarray(words).view(np.uint8)[..., : -(-length * qtype.bits // 8)]
    return packed ^ _shift(length, qtype)


def _shift(length: int, qtype: QType) -> NDArray[np.uint8]:
    """Return the bits that turn a row of packed codes into codes minus qmin, and back; the padding stays zero."""
    return fastq.pack(np.full(length, qtype.qmin, qtype.storage), qtype)
