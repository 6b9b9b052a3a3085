"""The tensors of a file or a model directory as a mapping, of which each is read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastq.io.checkpoints.finding import StoredWeights, stored_weights
from fastq.io.checkpoints.folder import ModelFolder
from fastq.io.checkpoints.stored import CompressedWeight
from fastq.io.gguf.container import open_gguf
from fastq.io.pipeline import count_text, naming, nearest
from fastq.io.tensors import Tensor, gguf_tensors, plain_tensor, tensor_of_weight, tensors_of
from fastq.operations.file_parts import as_name, as_path
from fastq.results import QuantizedArray
from fastq.system.arguments import shown
from fastq.system.dtypes import Array


class ByName(Mapping[str, QuantizedArray | Array]):
    """The tensors of a file or a directory; a name that is none of theirs is told with the nearest ones."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self._name, self._tensors = path.name or path.resolve().name, tensors

    def __getitem__(self, name: str) -> QuantizedArray | Array:
        if name not in self._tensors:
            raise KeyError(f"{self._name} has no tensor {name!r}{nearest(str(name), self._tensors)}")
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
        return f"{type(self).__name__}({self._name!r}: {told})"


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
        with naming(lambda error: f"tensor {name!r} of {self._name} can't be read: {error}"):
            return super()._read(name)


def open_tensors(path: Path) -> Tensors:
    """Return the tensors of a file or of a directory; ValueError if it can't be read."""
    with naming(lambda error: f"path can't be read: {shown(str(path))}: {error}"):
        found = path if path.is_dir() else as_path(path)
        return Tensors(found, tensors_of(found))


class Checkpoint(ByName):
    """A quantized model, of which a tensor is read when it is asked for.

    Quantized weights are `QuantizedArray` under the names of their modules, all else are arrays under the names of
    tensors. Arrays are mapped, not read.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np, fastq.io
    >>> q = fastq.quantize(np.eye(4, 8, dtype=np.float32), "int8", axis=0, symmetric=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fastq.io.save_checkpoint(f"{folder}/model", {"layer": q})
    ...     list(fastq.io.open_checkpoint(f"{folder}/model"))
    ['layer']
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], config: dict[str, Any]) -> None:
        super().__init__(path, tensors)
        self.config = config


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a quantized model: a directory of compressed-tensors, float8, AWQ, GPTQ or gpt-oss, or a GGUF file.

    Parameters
    ----------
    path : str or Path
        A directory with config.json and .safetensors files, or a .gguf file.

    Returns
    -------
    Checkpoint
        A mapping. Quantized weights are `QuantizedArray` under the names of their modules, of shape (rows, columns);
        where blocks have several rows the matrix is in blocks, (rows / b, b, columns / b, b), and ends with zeros.
        Experts in one tensor have a first axis for them; those of gpt-oss are (experts, outputs, inputs), as stored.
        Of a GGUF file those of Q8_0 are, under their whole names where another tensor has that of the module, while
        other blocks are read as their values in float32. All other tensors are arrays under their own names, read-only
        and mapped. `config` is that of config.json, or the metadata.

    Raises
    ------
    TypeError, ValueError
        If there are none, the files are damaged, or store weights in a way that is not known here.

    Examples
    --------
    >>> import fastq.io
    >>> model = fastq.io.open_checkpoint("llama-W4A16")  # doctest: +SKIP
    >>> model["model.layers.0.self_attn.q_proj"]  # doctest: +SKIP
    QuantizedArray(shape=(4096, 4096), dtype=int4, axis=-1, block_size=128, nbytes=8912896)
    """
    path = as_name(path)
    tensors: dict[str, Tensor] = {}
    if path.suffix == ".gguf":
        file = open_gguf(path)
        for tensor in gguf_tensors(file):
            module, whole = tensor.name.removesuffix(".weight"), tensor.scheme == "Q8_0"
            name = module if whole and module not in file.tensors else tensor.name
            tensors[name] = replace(tensor, is_quantized=whole)
        fields = file.fields.items()
        return Checkpoint(path, tensors, {key: each.value() for key, each in fields if each.type_name != "array"})
    if not path.is_dir():
        raise ValueError(f"path must be that of a model directory or of a .gguf file, not {shown(str(path))}")
    model = ModelFolder(path)
    weights = stored_weights(model) if model.quantization else StoredWeights()
    dtype = model.dtype
    tensors |= {name: tensor_of_weight(weight, dtype) for name, weight in weights.items()}
    for name, spec in model.tensors.items():
        if name in weights.parts:
            continue
        if name in weights:
            codes = weights[name].codes.name
            raise ValueError(f"tensor {name!r} and the weight of {codes!r} would both be {name!r}; rename one")
        tensors[name] = plain_tensor(model, spec)
    return Checkpoint(path, tensors, model.config)
