"""Field: the position of bits in a block of GGUF; Candidates: numbers that a search tries."""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """The position of some bits of some numbers in a block: packers, decoders and the page of formats read this.

    Words are little-endian. Word ``g * stride + i`` holds `parts` numbers, of which number ``first + (g * parts + k) *
    stride + i`` has its bits from `shift` on at the bits ``low + k * pitch`` of the word. Bits of a number beyond its
    highest field are not cut off, but spill into the following bits, as in ggml's C code.

    Attributes
    ----------
    of : {"d", "min", "scales", "mins", "signs", "codes"}
        The numbers: the scale, or the unit of the scales of sub-blocks; the same for smallest values; the scales and
        the smallest values of sub-blocks in these units; the signs of eight values; the codes of values.
    at, nbytes : int
        First byte, and number of bytes.
    numbers : int
        Number of numbers, beginning with number `first`.
    bits : int
        Number of bits of each.
    stride : int
        Difference of the indices of numbers in a word.
    word : int
        Bytes of a word.
    base : int
        If 3, a byte is a fraction of 256, rounded up, and the numbers are its digits in base 3, the highest first.
    apart : int
        Bits from one number in a word to the next one; 0 if they are adjacent.
    """

    of: str
    at: int
    nbytes: int
    numbers: int
    bits: int
    stride: int
    shift: int = 0
    low: int = 0
    first: int = 0
    word: int = 1
    base: int = 2
    apart: int = 0

    @property
    def words(self) -> int:
        """Number of words."""
        return self.nbytes // self.word

    @property
    def parts(self) -> int:
        """Numbers in a word."""
        return self.numbers // self.words

    @property
    def pitch(self) -> int:
        """Bits from one number in a word to the next one."""
        return self.apart or self.bits


class Candidates(NamedTuple):
    """The numbers that a search tries: ``first + k * delta`` for k = 0..last."""

    first: float
    delta: float
    last: int
