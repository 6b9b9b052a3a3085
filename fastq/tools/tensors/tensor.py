"""A tensor of a file, plain or quantized: its properties, its bytes and its values."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.results import QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.stored_weights import StoredWeight
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.pipeline import Progress
from fastq.tools.tensors import extent
from fastq.tools.tensors.extent import NOTHING, Extent, extent_of
from fastq.tools.tensors.netcdf_zarr import Labels, Reader


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file."""

    name: str  # shape in the file; for a quantized tensor that of the original
    shape: tuple[int, ...]
    scheme: str  # its dtype, or its scheme
    nbytes: int  # bytes in the file, including scales and zero points
    # whether its values can be measured: not for unknown blocks of GGUF, nor for BOOL, U32, U64 and C64
    has_numbers: bool
    load: Callable[[], Array | QuantizedArray]  # returns it, mapped, or the codes and parameters of a quantized tensor
    original: str  # dtype of the original tensor, by its name in safetensors
    is_quantized: bool = True
    raw: Callable[[], NDArray[np.uint8]] | None = None  # returns its bytes, if it is one tensor of the file
    decode: Callable[[], Array] | None = None  # returns its values, if they differ from the result of `load`
    weight: StoredWeight | None = None  # the stored tensors of a quantized weight of a model
    reader: Reader | None = None  # opens what returns the values at indices, if all may not fit in memory
    chunks: tuple[int, ...] = ()  # those of its storage, by which parts are aligned
    about: Mapping[str, Any] = field(default_factory=dict)  # its packing or rounding in netCDF
    dims: tuple[str, ...] = ()  # names of its dimensions, if they have names
    labels: Labels = dict  # returns the coordinates of its dimensions, by their names

    def values(self) -> Array:
        """Return the values."""
        with naming(lambda error: f"tensor {self.name!r} can't be dequantized: {error}"):
            if self.decode is not None:
                return self.decode()
            loaded = self.load()
            return loaded.dequantize() if isinstance(loaded, QuantizedArray) else loaded

    def parts(self) -> Iterator[Any]:
        """Yield the indices of parts: whole chunks of the storage, as many as have about a million elements."""
        sizes = list(self.chunks or (1,) * len(self.shape))
        for axis in reversed(range(len(sizes))):
            sizes[axis] = max(min(sizes[axis] * max(extent.PIECE // math.prod(sizes), 1), self.shape[axis]), 1)
        starts = (range(0, length, size) for length, size in zip(self.shape, sizes, strict=True))
        for corner in itertools.product(*starts):
            yield tuple(slice(start, start + size) for start, size in zip(corner, sizes, strict=True))

    @contextlib.contextmanager
    def opened(self) -> Iterator[Callable[[Any], Array]]:
        """Open the tensor for a function that returns the values of a part."""
        if self.reader is None:
            yield self.values().__getitem__
            return
        with self.reader() as read:
            yield read

    def nbytes_of(self, values: Array) -> int:
        """Return the bytes in the file of the values of a part."""
        return self.nbytes * values.size // max(math.prod(self.shape), 1)

    def extent(self, progress: Progress) -> Extent:
        """Return the statistics of the values, in parts without outlier channels; `progress` gets the bytes of each."""
        if self.reader is None:
            progress(self.nbytes, 0)
            return extent_of(self.values())
        found = NOTHING
        with self.opened() as read:
            for part in self.parts():
                values = read(part)
                found = found.with_more(extent_of(values.ravel()))
                progress(self.nbytes_of(values), 0)
        return found

    def codes(self) -> Array | QuantizedArray:
        """Return codes and parameters if they have the tensor's shape, else the values."""
        return self.values() if self.decode else self.load()
