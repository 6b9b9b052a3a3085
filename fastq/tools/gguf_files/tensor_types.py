"""TensorType: all types of tensors in GGUF files; those whose blocks fastq knows are rows of `fastq.formats.gguf`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter

from fastq.formats.gguf import BLOCK_FORMATS

FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class TensorType:
    """A type of ggml: the number of neighbours in a block, and the bytes of a block."""

    # name and value in ggml's enumeration of types
    name: str
    number: int
    block: int  # values in a block; 1 for plain numbers, 0 if only the number of the type is known
    nbytes: int  # bytes of a block

    @property
    def bits(self) -> float | None:
        """Bits per value, if they are known."""
        return 8 * self.nbytes / self.block if self.block else None

    @property
    def is_float(self) -> bool:
        """Whether it is one of the floats that llama.cpp quantizes, which F64 is not."""
        return self.name in FLOATS

    def size_of(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor whose rows are whole blocks; 0 if the size is unknown."""
        return math.prod(shape) // self.block * self.nbytes if self.block else 0

    def __str__(self) -> str:
        return self.name


# ggml/include/ggml.h, enum ggml_type; ggml/src/ggml-common.h, block_*
_ROWS = (
    TensorType("F32", 0, 1, 4),
    TensorType("F16", 1, 1, 2),
    TensorType("Q8_1", 9, 32, 40),
    TensorType("Q8_K", 15, 256, 292),
    TensorType("I8", 24, 1, 1),
    TensorType("I16", 25, 1, 2),
    TensorType("I32", 26, 1, 4),
    TensorType("I64", 27, 1, 8),
    TensorType("F64", 28, 1, 8),
    TensorType("BF16", 30, 1, 2),
    *(TensorType(row.name, row.number, row.size, row.nbytes) for row in BLOCK_FORMATS.values()),
)
_BY_NUMBER = {row.number: row for row in sorted(_ROWS, key=attrgetter("number"))}
TENSOR_TYPES = {row.name: row for row in _BY_NUMBER.values()}


def type_of_number(number: int) -> TensorType:
    """Return the type with a number; one outside the table, as of a newer llama.cpp, is called by its number."""
    return _BY_NUMBER.get(number) or TensorType(f"type {number}", number, 0, 0)
