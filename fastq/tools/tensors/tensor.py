"""A tensor of a file, as commands see it: its properties, its bytes and its values, whatever kind of file it is in."""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.qtypes import QType, as_qtype, packed_length
from fastq.ops.packing import pack, unpack
from fastq.results import QParams, QuantizedArray
from fastq.system.attributes import cached_property
from fastq.system.dtypes import DTYPES, ML_FLOATS, PACKED_FLOATS, Array
from fastq.tools.checkpoints.experts import Stack
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.stored_weights import StoredWeight
from fastq.tools.files.containers import TensorSource
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.patterns import WEIGHT
from fastq.tools.files.pipeline import Progress
from fastq.tools.files.tensor_specs import TensorSpec, bytes_of
from fastq.tools.tensors import extent
from fastq.tools.tensors.extent import Extent, extent_of


@dataclass(frozen=True, kw_only=True)
class Tensor(ABC):
    """A tensor of a file; its kinds are below, and in gguf_tensor.py and variable_tensor.py."""

    name: str
    shape: tuple[int, ...]  # of a quantized tensor the shape of the original
    scheme: str  # its dtype, or its scheme
    nbytes: int  # bytes in the file, including scales and zero points
    original_dtype: str  # dtype of the original tensor, by its name in safetensors
    is_quantized: bool
    has_numbers: bool = True  # whether its values can be measured: not those of unknown blocks, nor BOOL

    @abstractmethod
    def load(self) -> Array | QuantizedArray:
        """Return the array, mapped if the file allows it, or the codes and parameters of a quantized tensor."""

    def codes(self) -> Array | QuantizedArray:
        """Return codes and parameters if they have the tensor's shape, else the values: what is compared and shown."""
        return self.load()

    def values(self) -> Array:
        """Return the values; an error names the tensor."""
        with naming(lambda error: f"tensor {self.name!r} can't be dequantized: {error}"):
            return self._decode()

    def _decode(self) -> Array:
        """Return the values."""
        loaded = self.load()
        return loaded.dequantize() if isinstance(loaded, QuantizedArray) else loaded

    def raw(self) -> NDArray[np.uint8] | None:
        """Return its bytes, or None if it is several tensors of the file."""
        return None

    # Parts, in which a tensor of a netCDF file or a zarr store is read

    @property
    def is_read_in_parts(self) -> bool:
        """Whether its values may not fit in memory, and can be read part by part."""
        return False

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunks of its storage, with which parts are aligned; empty without chunks."""
        return ()

    @contextlib.contextmanager
    def open_parts(self) -> Iterator[Callable[[Any], Array]]:
        """Open the tensor, and yield the function that returns the values of a part."""
        yield self.values().__getitem__

    def parts(self) -> Iterator[tuple[slice, ...]]:
        """Yield the indices of parts: whole chunks of the storage, as many as have about a million elements.

        A part has whole axes from the last one on, as in memory, as long as it has few enough elements. Of shape (5000,
        1000) in chunks of (10, 100) it has 1040 rows: 104 rows of chunks, of 10,000 elements each.
        """
        sizes = list(self.chunks or (1,) * len(self.shape))
        for axis in reversed(range(len(sizes))):
            chunks = max(extent.PIECE // math.prod(sizes), 1)
            sizes[axis] = max(min(sizes[axis] * chunks, self.shape[axis]), 1)
        starts = (range(0, length, size) for length, size in zip(self.shape, sizes, strict=True))
        for corner in itertools.product(*starts):
            yield tuple(slice(start, start + size) for start, size in zip(corner, sizes, strict=True))

    def nbytes_of(self, values: Array) -> int:
        """Return the bytes in the file of the values of a part."""
        return self.nbytes * values.size // max(math.prod(self.shape), 1)

    def extent(self, progress: Progress) -> Extent:
        """Return the statistics of the values; `progress` is called with the bytes of each part."""
        progress(self.nbytes, 0)
        return extent_of(self.values())

    # What only variables of netCDF and zarr have

    @property
    def packing(self) -> Mapping[str, Any]:
        """The attributes of its packing or its rounding."""
        return {}

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of its dimensions; empty if they have no names."""
        return ()

    def labels(self) -> Mapping[str, Any]:
        """Return the coordinates of its dimensions by their names."""
        return {}


@dataclass(frozen=True, kw_only=True)
class PlainTensor(Tensor):
    """A tensor that is stored as it is."""

    source: TensorSource | ModelFolder

    @classmethod
    def of(cls, source: TensorSource | ModelFolder, spec: TensorSpec) -> PlainTensor:
        """Return a tensor of a file or a model."""
        return cls(
            name=spec.name,
            shape=spec.shape,
            scheme=spec.dtype,
            nbytes=spec.nbytes,
            original_dtype=spec.dtype,
            is_quantized=False,
            has_numbers=spec.dtype in (*DTYPES, *ML_FLOATS, *PACKED_FLOATS),
            source=source,
        )

    def load(self) -> Array | QuantizedArray:
        """Return the array, mapped if the file allows it; floats of less than a byte as codes with a scale of 1."""
        if self.scheme not in PACKED_FLOATS:
            return self.source.load(self.name)
        return _packed_floats(self.source.raw(self.name), as_qtype(PACKED_FLOATS[self.scheme]), self.shape)

    def raw(self) -> NDArray[np.uint8]:
        """Return its bytes."""
        return self.source.raw(self.name)


def _packed_floats(raw: NDArray[np.uint8], qtype: QType, shape: tuple[int, ...]) -> QuantizedArray:
    """Return the floats of fewer bits than a byte in the bytes of a tensor, as codes with a scale of 1.

    Safetensors stores them as one stream of bits, but in a QuantizedArray each row begins a byte of its own.
    """
    is_row_whole_bytes = shape[-1] * qtype.bits % 8 == 0
    if is_row_whole_bytes:
        codes = raw.reshape(*shape[:-1], packed_length(shape[-1], qtype))
    else:
        codes = pack(unpack(raw, qtype, shape=(math.prod(shape),)).reshape(shape), qtype)
    params = QParams(scale=np.ones((), np.float32), zero_point=qtype.storage.type(0), dtype=qtype, symmetric=True)
    return QuantizedArray(codes, params, shape)


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor(Tensor):
    """A tensor that fastq quantized and stored as codes, scales and zero points."""

    read: Callable[[], QuantizedArray]

    def load(self) -> QuantizedArray:
        """Return codes and parameters."""
        return self.read()


@dataclass(frozen=True, kw_only=True)
class WeightTensor(Tensor):
    """A quantized weight of a model, in the layout of any writer."""

    weight: StoredWeight

    @classmethod
    def of(cls, weight: StoredWeight, dtype: str) -> WeightTensor:
        """Return a weight of a model with a dtype."""
        return cls(
            name=weight.name,
            shape=weight.shape,
            scheme=weight.label,
            nbytes=weight.nbytes,
            original_dtype=dtype,
            is_quantized=True,
            weight=weight,
        )

    def load(self) -> QuantizedArray:
        """Return codes and parameters, with experts along a first axis."""
        return self.weight.as_array()

    def codes(self) -> Array | QuantizedArray:
        """Return codes and parameters if they have the tensor's shape, else the values."""
        return self.load() if self.weight.is_equal_to_array else self.values()

    def _decode(self) -> Array:
        """Return the values."""
        return super()._decode() if self.weight.is_equal_to_array else self.weight.all_values()


class _ExpertValues:
    """The values of a tensor of experts, decoded once for its matrices, which are read one after the other."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    @cached_property
    def values(self) -> Array:
        """The values of all experts, of shape (experts, rows, columns)."""
        return self._tensor.values()


@dataclass(frozen=True, kw_only=True)
class ExpertMatrix(Tensor):
    """The matrix of one expert, some rows in a tensor of all experts."""

    experts: _ExpertValues
    expert: int
    first: int  # its first row in the matrix of the expert

    def load(self) -> Array:
        """Return the values."""
        values: Array = self.experts.values[self.expert, self.first : self.first + self.shape[0]]
        return values

    def codes(self) -> Array:
        """Return the values."""
        return self.values()

    def raw(self) -> NDArray[np.uint8]:
        """Return the bytes of the values."""
        return bytes_of(self.load())


def expert_matrices(tensor: Tensor) -> dict[str, Tensor]:
    """Return the matrices in a tensor of experts by the names of their weights; empty if its rows are no matrices."""
    count, rows, columns = tensor.shape
    stack = Stack(tensor.name, (count, rows, columns))
    if not stack.is_even:
        return {}
    experts = _ExpertValues(tensor)
    matrices: dict[str, Tensor] = {}
    for module, expert, first in stack.modules():
        name = f"{module}{WEIGHT}"
        matrices[name] = ExpertMatrix(
            name=name,
            shape=(stack.rows, columns),
            scheme=tensor.scheme,
            nbytes=tensor.nbytes * stack.rows // (count * rows),
            original_dtype=tensor.original_dtype,
            is_quantized=tensor.is_quantized,
            has_numbers=tensor.has_numbers,
            experts=experts,
            expert=expert,
            first=first,
        )
    return matrices
