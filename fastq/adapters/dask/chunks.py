"""The chunks of an array that share parameters, whether they end with blocks and bytes, and a task for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import numpy as np

from fastq.formats.conventions.convention import Convention
from fastq.formats.granularity import Granularity
from fastq.formats.qtypes import QType, packed_length, stored_as
from fastq.plan.cache import Call
from fastq.requests.stochastic_rounding import steps_of
from fastq.system.arrays_of_callers import as_array, dtype_of, has_mask

Index = tuple[int, ...]
Chunks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PartedChunks:
    """The chunks of an array, and which elements share parameters."""

    chunks: Chunks  # chunks of each axis; NaN if dask does not know them
    granularity: Granularity  # what each parameter belongs to
    all_axes: Index = field(init=False)
    kept: Index = field(init=False)  # axes that parameters have, too
    reduced: Index = field(init=False)  # all other axes
    blocks: Index = field(init=False)  # elements in a block along each axis: 1 along those without blocks

    def __post_init__(self) -> None:
        """Set the fields that follow from the other two, past the setter of a frozen dataclass."""
        ndim = len(self.chunks)
        block_size = self.granularity.block_size
        kept = self.granularity.parameter_axes(ndim)
        block_axes = self.granularity.kept if block_size else ()
        reduced = tuple(axis for axis in range(ndim) if axis not in kept)
        blocks = tuple(block_size if axis in block_axes else 1 for axis in range(ndim))
        vars(self).update(all_axes=tuple(range(ndim)), kept=kept, reduced=reduced, blocks=blocks)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(map(sum, self.chunks))

    @property
    def parameter_chunks(self) -> Chunks:
        """Chunks of the parameters."""
        return tuple(tuple(-(-n // self.blocks[axis]) for n in self.chunks[axis]) for axis in self.kept)

    @property
    def result_chunks(self) -> dict[int, Any]:
        """Chunks, by axes, of one result for each part of each chunk: axes that are reduced have length 1 in each."""
        ones = {axis: (1,) * len(self.chunks[axis]) for axis in self.reduced}
        return ones | dict(zip(self.kept, self.parameter_chunks, strict=True))

    def within_chunks(self, qtype: QType, row: Convention) -> bool:
        """Return whether all elements on which the parameters of a chunk depend are in that chunk.

        An error says if they depend on all of the array and this has several chunks.
        """
        if row.scales_by_array(qtype) and any(len(sizes) > 1 for sizes in self.chunks):
            raise ValueError(f"x must be one chunk for {qtype}, which has one scale for the whole array: x.rechunk(-1)")
        return all(len(self.chunks[axis]) == 1 for axis in self.reduced)

    def check_aligned(self, qtype: QType | None = None) -> None:
        """Raise an error unless chunks end where blocks do, and bytes, for codes that share them."""
        last = len(self.chunks) - 1
        for axis, sizes in enumerate(self.chunks):
            multiple = self.blocks[axis]
            if qtype is not None and qtype.packed and axis == last:
                multiple = math.lcm(multiple, 8 // math.gcd(8, qtype.bits))
            _check_multiple(axis, sizes, multiple)


def value_chunks(chunks: Chunks, shape: tuple[int, ...], qtype: QType) -> Chunks:
    """Return the chunks of the values of an array, by those of its codes: packed ones end where bytes do.

    Of 10 values of 4 bits, in codes with chunks of 2 and 3 bytes, these are 4 and 6. The last chunk has what is left.
    """
    if not qtype.packed or not shape:
        return chunks if shape else ()
    sizes = tuple(size * 8 // qtype.bits for size in chunks[-1][:-1])
    return (*chunks[:-1], (*sizes, shape[-1] - sum(sizes)))


def _check_multiple(axis: int, sizes: tuple[int, ...], multiple: int) -> None:
    """Raise ValueError unless all chunks of an axis but the last one are multiples; unknown sizes are NaN."""
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


# --- random numbers ---------------------------------------------------------------------------------------------------


def with_noise(call: Call, chunks: Chunks) -> tuple[Call, list[Any]]:
    """Return a call with the random numbers of the whole array, and where each chunk has its own: operands of tasks.

    There is an array for each axis, with a number for each chunk along it; a task adds up its own. Of shape (4, 6) in
    chunks of (2, 3) they are 0 and 12 along axis 0, 0 and 3 along axis 1, so the last chunk begins with element 15.
    """
    if call.noise is None:
        return call, []
    sizes = tuple(map(sum, chunks))
    if any(map(math.isnan, sizes)):
        raise ValueError(
            "x has chunks of unknown sizes, so its elements have no places by which to round at random: call "
            "x.compute_chunk_sizes() before"
        )
    steps = steps_of(sizes)
    places = []
    for axis, (step, sizes_of_chunks) in enumerate(zip(steps, chunks, strict=True)):
        places_of_chunks = step * np.cumsum((0, *sizes_of_chunks[:-1]), dtype=np.int64)
        places += [da.from_array(places_of_chunks, chunks=1), (axis,)]
    return call._replace(noise=call.noise._replace(steps=steps)), places


# --- masks ------------------------------------------------------------------------------------------------------------


def refuse_masked_meta(x: da.Array, name: str) -> None:
    """Raise TypeError for an array of dask that is known to have masked chunks."""
    if has_mask(x._meta):
        raise TypeError(_mask_message(name))


def as_array_without_mask(chunk: Any, name: str) -> Any:
    """Return a chunk as an ndarray, or raise TypeError if it has a mask, which dask need not know before; or None."""
    if chunk is None or type(chunk) is np.ndarray:
        return chunk
    if has_mask(chunk):
        raise TypeError(_mask_message(name))
    return as_array(chunk, name)


def _mask_message(name: str) -> str:
    """Return the error about an array with masked chunks."""
    return f"{name} has masked chunks, whose masks would be lost; pass dask.array.ma.filled({name}, value)"


# --- tasks ------------------------------------------------------------------------------------------------------------


def dtype_in(x: Any, name: str) -> Any:
    """Return the dtype of an array of dask or of other numbers; None for numbers of Python."""
    return as_array(x._meta, name).dtype if isinstance(x, da.Array) else dtype_of(x, name)


def blockwise(function: Callable[..., Any], index: Index, *operands: Any, dtype: Any, **options: Any) -> da.Array:
    """Return an array of a task for each chunk; operands are arrays and their axes in terms of `index`, in turns.

    Its name is made of everything that is given here, also of the element that an array of no dimension has.
    """
    meta = np.zeros((0,) * len(index), dtype)
    return da.blockwise(function, index, *operands, dtype=dtype, meta=meta, align_arrays=False, **options)


def codes_of(chunks: Chunks, qtype: QType, function: Callable[..., Any], *operands: Any, **options: Any) -> da.Array:
    """Return an array of a task for each chunk that returns its codes, in the chunks that packed codes have."""
    index = tuple(range(len(chunks)))
    if qtype.packed and not index:
        index = (0,)
        options = {**options, "new_axes": {0: 1}}
    elif qtype.packed:
        packed = tuple(packed_length(size, qtype) for size in chunks[-1])
        options = {**options, "adjust_chunks": {index[-1]: packed}}
    return blockwise(function, index, *operands, dtype=stored_as((), qtype)[1], token="codes", **options)
