"""StorageFormat: how codes and scales lie in memory, where a NumPy dtype does not say it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.floats import FLOAT_FORMATS
from fastq.system.cpu import REGISTER_BITS


def codes_in_group(bits: int) -> int:
    """Return the least number of codes of `bits` bits that fills whole bytes."""
    return 8 // math.gcd(bits, 8)


class StorageFormat(NamedTuple):
    """The layout of codes in memory, if a dtype does not determine it."""

    bits: int  # width of a code
    signed: bool  # whether it is two's complement
    element: str = ""  # name of its float format, empty for integers
    saturate: bool = True  # whether what is too large for the float format becomes its largest number
    dense: bool = True  # whether codes of fewer than 8 bits share bytes
    highest_first: bool = False  # whether the first of eight codes of one bit is in the highest bit
    exponent: int = 0  # codes that are powers of two stand for ``2**(code - bias - exponent)``

    @property
    def packed(self) -> bool:
        """Whether codes share bytes."""
        return self.bits < 8 and self.dense

    @property
    def group(self) -> int:
        """The least number of codes that fills whole bytes."""
        return codes_in_group(self.bits)

    @property
    def in_bytes(self) -> StorageFormat:
        """The same codes, one in a byte, whose higher bits mean nothing."""
        return self._replace(dense=self.bits >= 8)

    @property
    def unpacked(self) -> StorageFormat | None:
        """How these codes lie in an array of `unpacked_dtype`, one in a byte; None where the dtype alone says it."""
        return self.in_bytes if self.element else None

    @property
    def unpacked_dtype(self) -> np.dtype[Any]:
        """Dtype of an array of the codes, one in a byte; for float codes the dtype of their bits."""
        return np.dtype(np.int8 if self.signed and not self.element else np.uint8)


ElementType = np.dtype[Any] | StorageFormat  # what a kernel's pointer points to


def bits_of(element: ElementType) -> int:
    """Return the bits of an element."""
    if isinstance(element, StorageFormat):
        return element.bits if element.dense else 8
    float_format = FLOAT_FORMATS.get(element.name)
    return float_format.bits if float_format else element.itemsize * 8


def widest_bits(elements: Iterable[int], scale: int | None = None) -> int:
    """Return the widest of the bits of elements.

    A scale of fewer bits counts as the float32 that it is decoded to: blocks of 16 and 32 fill registers of no more.
    """
    widest: int = max([*elements, *(() if scale is None else (scale, 32))])
    return widest


def register_elements(src: ElementType, dst: ElementType, scale: ElementType | None = None) -> int:
    """Return how many elements a register holds of the widest of these types."""
    return REGISTER_BITS // widest_bits(map(bits_of, (src, dst)), None if scale is None else bits_of(scale))


def computes_in_float64(element: ElementType) -> bool:
    """Return whether input of this dtype is computed with in float64."""
    return isinstance(element, np.dtype) and element.itemsize > (4 if element.kind == "f" else 2)
