"""BlockFormat: the block formats of GGUF, one table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from fastq.system.arguments import as_int, as_str, shown
from fastq.system.lazy import cached_property

BLOCK = 32  # values in a small block
SUPER = 256  # values in a super-block


@dataclass(frozen=True)
class BlockFormat(ABC):
    """A format that stores neighbours on the last axis as blocks of bytes.

    Attributes
    ----------
    name, number : str, int
        Name and value in ggml's enumeration of types.
    """

    name: str
    number: int

    @property
    def size(self) -> int:
        """Values in a block."""
        return SUPER

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of a block."""

    @property
    def weighted(self) -> bool:
        """Whether the importance of columns changes the blocks."""
        return True

    @property
    def of_rows(self) -> bool:
        """Whether that importance counts by the spread of a whole row, not of a block."""
        return False

    def searches(self, weighted: bool) -> bool:
        """Whether scales are searched for, by sums that must not overflow."""
        return self.weighted

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ScaledFormat(BlockFormat):
    """A format that stores 32 neighbours as float16 parameters and a code each.

    In memory: the scale; for "range" the smallest value; for 5 bits the fifth bits, value j's in bit j of a
    little-endian 32 bit integer; the codes, for 8 bits one a byte, else value j in the low and value j + 16 in the high
    half of byte j.

    Attributes
    ----------
    bits : int
        Width of a code.
    extent : {"magnitude", "signed", "range"}
        What the scale is a fraction of: the largest magnitude, the first value of the largest magnitude with its sign,
        or the largest less the smallest value.
    steps : int
        ``scale = extent / steps``.
    """

    bits: int
    extent: str
    steps: int

    @property
    def size(self) -> int:
        """Values in a block."""
        return BLOCK

    @property
    def weighted(self) -> bool:
        """Whether the importance of columns changes the blocks."""
        return self.extent != "magnitude"

    @property
    def of_rows(self) -> bool:
        """Whether that importance counts by the spread of a whole row, not of a block."""
        return True

    def searches(self, weighted: bool) -> bool:
        """Whether scales are searched for, by sums that must not overflow."""
        return weighted

    @property
    def zero(self) -> int:
        """Code of 0.0; in a "range" format, of the smallest value."""
        return -self.steps if self.extent == "signed" else 0

    @property
    def has_minimum(self) -> bool:
        """Whether the smallest value is stored."""
        return self.extent == "range"

    @property
    def head(self) -> int:
        """Bytes before the codes and their fifth bits."""
        return 2 + 2 * self.has_minimum

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.head + BLOCK * self.bits // 8


class Candidates(NamedTuple):
    """Scales that a search tries: ``range / (steps + first + k * delta)`` for k = 0..last."""

    first: float
    delta: float
    last: int


@dataclass(frozen=True)
class SuperFormat(BlockFormat):
    """A K-quant: 256 neighbours in sub-blocks, whose scales are integers in units of a float16 scale.

    Attributes
    ----------
    bits : int
        Width of a code.
    sub : int
        Values in a sub-block.
    scale_bits : int
        Width of the scale of a sub-block, and of its smallest value.
    candidates : Candidates, optional
        Scales that are tried without weights, in formats with a smallest value for each sub-block; in the others
        codes are signed.
    """

    bits: int
    sub: int
    scale_bits: int
    candidates: Candidates | None = None

    @property
    def has_minimum(self) -> bool:
        """Whether the smallest value of each sub-block is stored."""
        return self.candidates is not None

    @property
    def steps(self) -> int:
        """Largest code, or how far signed codes reach below 0."""
        return (1 << self.bits) - 1 if self.has_minimum else 1 << self.bits - 1

    @property
    def scale_steps(self) -> int:
        """Largest scale of a sub-block as an integer, or how far signed ones reach below 0."""
        return (1 << self.scale_bits) - 1 if self.has_minimum else 1 << self.scale_bits - 1

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a block."""
        parameters = 1 + self.has_minimum
        return SUPER * self.bits // 8 + SUPER // self.sub * self.scale_bits * parameters // 8 + 2 * parameters


@dataclass(frozen=True)
class CodebookFormat(BlockFormat):
    """A format of 4 bit codes that stand for the integers of a table, in sub-blocks of 32 with a scale each.

    Attributes
    ----------
    size : int
        Values in a block: of one sub-block, whose scale is float16, or of eight, whose scales have 6 bits.
    """

    values: int

    @property
    def size(self) -> int:
        """Values in a block."""
        return self.values

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return 2 + self.values // 2 + (6 if self.values == SUPER else 0)


# ggml/src/ggml-common.h, kvalues_iq4nl
CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True)
class TernaryFormat(BlockFormat):
    """A format of codes -1, 0 and 1 in units of the largest magnitude of 256 neighbours.

    Attributes
    ----------
    trits : int
        Codes in a byte.
    """

    trits: int

    @property
    def weighted(self) -> bool:
        """Whether the importance of columns changes the blocks."""
        return False

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return 54 if self.trits == 5 else SUPER // self.trits + 2


@dataclass(frozen=True)
class FloatFormat(BlockFormat):
    """A format of codes in float4_e2m1fn with a scale of 8 bits for each sub-block.

    Attributes
    ----------
    values : int
        Values in a block.
    sub : int
        Values in a sub-block.
    scale : {"e8m0", "e4m3"}
        Format of the scales: a power of two, or a float of which the sign is not used.
    """

    values: int
    sub: int
    scale: str

    @property
    def size(self) -> int:
        """Values in a block."""
        return self.values

    @property
    def weighted(self) -> bool:
        """Whether the importance of columns changes the blocks."""
        return False

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.values // self.sub + self.values // 2


# what the codes of float4_e2m1fn stand for, doubled
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

WEIGHTED_CANDIDATES = Candidates(-0.9, 0.05, 36)  # with weights, of every format with a smallest value

# ggml/include/ggml.h, enum ggml_type; ggml/src/ggml-common.h, block_*; ggml/src/ggml-quants.c, quantize_row_*
BLOCK_FORMATS: dict[str, BlockFormat] = {
    row.name: row
    for row in (
        ScaledFormat("Q4_0", 2, 4, "signed", -8),
        ScaledFormat("Q4_1", 3, 4, "range", 15),
        ScaledFormat("Q5_0", 6, 5, "signed", -16),
        ScaledFormat("Q5_1", 7, 5, "range", 31),
        ScaledFormat("Q8_0", 8, 8, "magnitude", 127),
        SuperFormat("Q2_K", 10, 2, 16, 4, Candidates(-0.5, 0.1, 15)),
        SuperFormat("Q3_K", 11, 3, 16, 6),
        SuperFormat("Q4_K", 12, 4, 32, 6, Candidates(-1.0, 0.1, 20)),
        SuperFormat("Q5_K", 13, 5, 32, 6, Candidates(-0.5, 0.1, 15)),
        SuperFormat("Q6_K", 14, 6, 16, 8),
        CodebookFormat("IQ4_NL", 20, BLOCK),
        CodebookFormat("IQ4_XS", 23, SUPER),
        TernaryFormat("TQ1_0", 34, 5),
        TernaryFormat("TQ2_0", 35, 4),
        FloatFormat("MXFP4", 39, 32, 32, "e8m0"),
        FloatFormat("NVFP4", 40, 64, 16, "e4m3"),
    )
}
_BY_NUMBER = {row.number: row for row in BLOCK_FORMATS.values()}


def as_block_format(qtype: object) -> BlockFormat:
    """Return the row that a name or a number, which members of gguf.GGMLQuantizationType are, stands for.

    Raises
    ------
    TypeError
        If qtype is neither a string nor an integer.
    ValueError
        If it stands for none of the formats.
    """
    if issubclass(type(qtype), str):
        found = BLOCK_FORMATS.get(as_str(qtype, "qtype"))
    else:
        found = _BY_NUMBER.get(as_int(qtype, "qtype", "a name, a number or a GGMLQuantizationType"))
    if found is None:
        names = ", ".join(f"{row.name} ({row.number})" for row in BLOCK_FORMATS.values())
        raise ValueError(f"qtype must be one of {names}, not {shown(qtype)}")
    return found
