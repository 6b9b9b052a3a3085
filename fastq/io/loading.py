"""The tensors of a file or a model directory as a mapping: each is read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastq.io.checkpoints.stored import CompressedWeight
from fastq.io.pipeline import count_text, naming, nearest
from fastq.io.tensors import Tensor, tensors_of
from fastq.operations.file_parts import as_path
from fastq.results import QuantizedArray
from fastq.system.arguments import shown
from fastq.system.dtypes import Array


class ByName(Mapping[str, QuantizedArray | Array]):
    """The tensors of a file or a directory; a name that is none of theirs is told with the nearest ones."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self._path, self._tensors = path, tensors

    def __getitem__(self, name: str) -> QuantizedArray | Array:
        if name not in self._tensors:
            raise KeyError(f"{self._path.name} has no tensor {name!r}{nearest(str(name), self._tensors)}")
        return self._read(name)

    def _read(self, name: str) -> QuantizedArray | Array:
        """Return a tensor that is there."""
        return self._tensors[name].load()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a tensor, or `default` where there is none: that of a mapping looks for the nearest names first."""
        return self[name] if name in self._tensors else default

    def stored(self, name: str) -> CompressedWeight | None:
        """Return what is stored for a quantized weight as compressed-tensors has it, else None."""
        weight = self._tensors[name].weight
        return weight.compressed if weight else None

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # that of a mapping reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        each = self._tensors.values()
        quantized, nbytes = sum(tensor.is_quantized for tensor in each), sum(tensor.nbytes for tensor in each)
        told = f"{count_text(len(each), 'tensor')}, {quantized} quantized, {nbytes:,} bytes"
        return f"{type(self).__name__}({self._path.name!r}: {told})"


class Tensors(ByName):
    """The tensors of a file or a model directory, by name; one is read when it is asked for.

    What `fastq.load` returns. Quantized tensors are `QuantizedArray`, all others are arrays, read-only and mapped where
    the file allows it. No file stays open: the map of an array ends with the array.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np, fastq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "weights.npz"
    ...     np.savez(path, a=np.ones(3, np.float32), b=np.arange(4))
    ...     tensors = fastq.load(path)
    ...     tensors
    ...     dict(tensors)["b"]
    Tensors('weights.npz': 2 tensors, 0 quantized, 44 bytes)
    array([0, 1, 2, 3])
    """

    def _read(self, name: str) -> QuantizedArray | Array:
        with naming(lambda error: f"tensor {name!r} of {self._path.name} can't be read: {error}"):
            return super()._read(name)


def open_tensors(path: Path) -> Tensors:
    """Return the tensors of a file or of a directory; ValueError if it can't be read."""
    with naming(lambda error: f"path can't be read: {shown(str(path))}: {error}"):
        found = path if path.is_dir() else as_path(path)
        return Tensors(found, tensors_of(found))
