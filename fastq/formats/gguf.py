"""BlockFormat: the block formats of GGUF, one table."""

from __future__ import annotations

from dataclasses import dataclass

from fastq.system.arguments import as_int, as_str, shown
from fastq.system.lazy import cached_property

BLOCK = 32  # values in a block


@dataclass(frozen=True)
class BlockFormat:
    """A format that stores 32 neighbours as float16 parameters and a code each.

    In memory: the scale; for "range" the smallest value; for 5 bits the fifth bits, value j's in bit j of a
    little-endian 32 bit integer; the codes, for 8 bits one a byte, else value j in the low and value j + 16 in the high
    half of byte j.

    Attributes
    ----------
    name, number : str, int
        Name and value in ggml's enumeration of types.
    bits : int
        Width of a code.
    extent : {"magnitude", "signed", "range"}
        What the scale is a fraction of: the largest magnitude, the first value of the largest magnitude with its sign,
        or the largest less the smallest value.
    steps : int
        ``scale = extent / steps``.
    """

    name: str
    number: int
    bits: int
    extent: str
    steps: int

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

    def __str__(self) -> str:
        return self.name


# ggml/include/ggml.h, enum ggml_type; ggml/src/ggml-common.h, block_q*; ggml/src/ggml-quants.c, quantize_row_*_ref
BLOCK_FORMATS = {
    row.name: row
    for row in (
        BlockFormat("Q4_0", 2, 4, "signed", -8),
        BlockFormat("Q4_1", 3, 4, "range", 15),
        BlockFormat("Q5_0", 6, 5, "signed", -16),
        BlockFormat("Q5_1", 7, 5, "range", 31),
        BlockFormat("Q8_0", 8, 8, "magnitude", 127),
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
