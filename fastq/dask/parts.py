"""Which chunks of an array share parameters, and whether chunks end where blocks and bytes do."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fastq.formats.granularity import Granularity
from fastq.formats.qtypes import QType

Chunks = tuple[tuple[int, ...], ...]


class Parts(NamedTuple):
    """The chunks of an array, and which elements share parameters.

    Attributes
    ----------
    chunks : tuple of tuple of int
        Of each axis; NaN where dask does not know them.
    granularity : Granularity
        What each parameter belongs to.
    """

    chunks: Chunks
    granularity: Granularity

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(map(sum, self.chunks))

    @property
    def all_axes(self) -> tuple[int, ...]:
        """Axes of the array."""
        return tuple(range(len(self.chunks)))

    @property
    def kept(self) -> tuple[int, ...]:
        """Axes that parameters have too."""
        return self.granularity.parameter_axes(len(self.chunks))

    @property
    def reduced(self) -> tuple[int, ...]:
        """Axes that parameters don't have."""
        return tuple(axis for axis in self.all_axes if axis not in self.kept)

    @property
    def parameter_chunks(self) -> Chunks:
        """Chunks of the parameters."""
        size = self.granularity.block_size
        return tuple(
            tuple(-(-n // size) for n in self.chunks[axis])
            if size and axis in self.granularity.kept
            else self.chunks[axis]
            for axis in self.kept
        )

    @property
    def within_chunks(self) -> bool:
        """Whether each parameter belongs to elements of one chunk."""
        return all(len(self.chunks[axis]) == 1 for axis in self.reduced)

    def check_aligned(self, qtype: QType | None = None) -> None:
        """Raise an error unless chunks end where blocks do, and bytes, for codes that share them."""
        last = len(self.chunks) - 1
        for axis, sizes in enumerate(self.chunks):
            size = self.granularity.block_size
            multiple = size if size and axis in self.granularity.kept else 1
            if qtype is not None and qtype.packed and axis == last:
                multiple = math.lcm(multiple, 8 // math.gcd(8, qtype.bits))
            _check_multiple(axis, sizes, multiple)


def value_chunks(chunks: Chunks, shape: tuple[int, ...], qtype: QType) -> Chunks:
    """Return the chunks of the values of an array, by those of its codes: packed ones end where bytes do."""
    if not qtype.packed or not shape:
        return chunks if shape else ()
    sizes = tuple(size * 8 // qtype.bits for size in chunks[-1][:-1])
    return (*chunks[:-1], (*sizes, shape[-1] - sum(sizes)))


def _check_multiple(axis: int, sizes: tuple[int, ...], multiple: int) -> None:
    wrong: list[Any] = [size for size in sizes[:-1] if size % multiple]
    if multiple == 1 or not wrong:
        return
    if any(map(math.isnan, sizes)):
        raise ValueError(f"x has chunks of unknown sizes along axis {axis}: call x.compute_chunk_sizes() before")
    size = max(1, round(max(sizes) / multiple)) * multiple
    raise ValueError(
        f"x has a chunk of {wrong[0]} along axis {axis}, where block_size and bytes of codes need chunks of a multiple "
        f"of {multiple}: rechunk with x.rechunk({{{axis}: {size}}})"
    )
