"""Words that hold codes of distant rows: row k of each of several equal parts of a matrix.

With 2 parts of 4 bits, a matrix of 6 rows has the parts 0 1 2 and 3 4 5: the words of row 0 hold the rows 0 and 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastq.system.dtypes import Array


def _shifts(parts: int, bits: int, is_first_highest: bool) -> list[int]:
    """Return the position of the lowest bit of each part in a word: 0 4 for two parts of 4 bits, or 4 0."""
    positions = [bits * part for part in range(parts)]
    return positions[::-1] if is_first_highest else positions


def from_row_parts(words: Array, bits: int, parts: int, *, is_first_highest: bool) -> NDArray[np.uint8]:
    """Return the rows of codes in words, one part below the other, with the padding of the last part."""
    # a shift of signed words would repeat their highest bit
    unsigned = words.view(f"u{words.itemsize}")
    mask = unsigned.dtype.type((1 << bits) - 1)
    rows = [unsigned >> unsigned.dtype.type(shift) & mask for shift in _shifts(parts, bits, is_first_highest)]
    return np.concatenate(rows).astype(np.uint8)


def to_row_parts(codes: Array, bits: int, parts: int, dtype: str, *, is_first_highest: bool) -> Array:
    """Return words of a dtype that hold codes; the last part is filled with rows of zeros."""
    height = -(-len(codes) // parts)
    padding = [(0, height * parts - len(codes)), *[(0, 0)] * (codes.ndim - 1)]
    rows = np.pad(codes, padding).reshape(parts, height, *codes.shape[1:]).astype(f"u{np.dtype(dtype).itemsize}")
    words: Array = np.zeros_like(rows[0])
    for part, shift in zip(rows, _shifts(parts, bits, is_first_highest), strict=True):
        words |= part << part.dtype.type(shift)
    return words.view(dtype)
