"""The tensors of a file or a model directory as a mapping: each is read when it is asked for."""

from __future__ import annotations

from pathlib import Path

from fastq.io.checkpoints.stored import CompressedWeight
from fastq.io.mapping import ByName
from fastq.io.pipeline import naming
from fastq.io.tensors import tensors_of
from fastq.operations.file_parts import as_path
from fastq.results import QuantizedArray
from fastq.system.arguments import shown
from fastq.system.dtypes import Array


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

    _kind = "Tensors"

    def __init__(self, path: Path) -> None:
        self._tensors = tensors_of(path)
        super().__init__(path, self._tensors)

    def _read(self, name: str) -> QuantizedArray | Array:
        tensor = self._tensors[name]
        with naming(lambda error: f"tensor {name!r} of {self._name} can't be read: {error}"):
            return tensor.load()

    def stored(self, name: str) -> CompressedWeight | None:
        """Return what is stored for a quantized weight as compressed-tensors has it, else None."""
        weight = self._tensors[name].weight
        return weight.compressed if weight else None


def open_tensors(path: Path) -> Tensors:
    """Return the tensors of a file or of a directory; ValueError if it can't be read."""
    with naming(lambda error: f"path can't be read: {shown(str(path))}: {error}"):
        return Tensors(path if path.is_dir() else as_path(path))
