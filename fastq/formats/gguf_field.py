"""Field: the position of bits in a block of GGUF."""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """The position of some bits of some numbers in a block: packers, decoders and the page of formats read this.

    Words are little-endian. Word ``g * stride + i`` holds `parts` numbers, of which number ``first + (g * parts + k) *
    stride + i`` has its bits from `shift` on at the bits ``low + k * pitch`` of the word. Bits of a number beyond its
    highest field are not cut off, but spill into the following bits, as in ggml's C code.

    The codes of Q4_0 are 32 numbers of 4 bits in 16 bytes, with a stride of 16: byte i, which is a word, has numbers i
    and 16 + i, the first in its lowest bits.
    """

    # the numbers: "d" and "min" are scale and smallest value, or the units of those of sub-blocks, "scales" and "mins";
    # "signs" are those of eight values, "codes" those of values
    of: str
    # first byte, and number of bytes
    at: int
    nbytes: int
    numbers: int  # number of numbers, beginning with number `first`
    bits: int  # number of bits of each
    stride: int  # difference of the indices of numbers in a word
    shift: int = 0
    low: int = 0
    first: int = 0
    word: int = 1  # bytes of a word
    # if 3, a byte is a fraction of 256, rounded up, and the numbers are its digits in base 3, the highest first
    base: int = 2
    apart: int = 0  # bits from one number in a word to the next one; 0 if they are adjacent

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
