"""Pack codes of fewer than 8 bits, and signs of values, bit by bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.qtypes import QTYPES, QType
from fastq.system.dtypes import Array


def pack_codes(codes: Array, qtype: QType, axis: int, bitorder: Any = "little") -> NDArray[np.uint8]:
    """Pack codes along an axis without gaps; zeros fill up the last byte."""
    # contract 1.9 and 1.10
    numbers = np.moveaxis(codes.view(np.uint8) if qtype.element else codes.astype(np.uint8), axis, -1)
    *outer, length = numbers.shape
    rows = numbers.reshape(math.prod(outer), length, 1)  # an array may have no more axes
    bits = rows >> np.arange(qtype.bits, dtype=np.uint8) & np.uint8(1)
    packed = np.packbits(bits.reshape(len(rows), length * qtype.bits), axis=-1, bitorder=bitorder)
    return np.asarray(np.moveaxis(packed.reshape(*outer, packed.shape[-1]), -1, axis), order="C")


def pack_bits(bits: Array, axis: int, bitorder: Any, dtype: np.dtype[Any]) -> Array:
    """Pack booleans along an axis; bytes of int8 are less by 128."""
    # contract 1.12
    packed = pack_codes(np.asarray(bits), QTYPES["uint1"], axis, bitorder)
    return packed if dtype == np.uint8 else (packed.astype(np.int16) - 128).astype(np.int8)


def unpack_codes(packed: NDArray[np.uint8], qtype: QType, shape: tuple[int, ...], axis: int, bitorder: Any) -> Array:
    """Return unpacked codes, in the storage dtype of the format."""
    length = shape[axis] if shape else 1
    last = np.moveaxis(packed, axis, -1)
    bits = np.unpackbits(last, axis=-1, count=length * qtype.bits, bitorder=bitorder)
    weights = 1 << np.arange(qtype.bits)
    if qtype.signed and not qtype.element:
        weights[-1] *= -1
    numbers = bits.reshape(math.prod(last.shape[:-1]) * length, qtype.bits) @ weights
    codes = numbers.astype(np.uint8).view(qtype.storage).reshape(*last.shape[:-1], length)
    return np.asarray(np.moveaxis(codes, -1, axis).reshape(shape), order="C")
