"""The mappings that `fastq.load` and `fastq.io.open_checkpoint` return: tensors by name, read when looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastq.ops.file_parts import as_name, as_path
from fastq.results import QuantizedArray
from fastq.system.arguments import shown
from fastq.system.callers import warn_caller
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quant_methods import StoredWeights, stored_weights
from fastq.tools.checkpoints.stored_weights import CompressedWeight
from fastq.tools.files.containers import SOURCES
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.patterns import nearest
from fastq.tools.files.texts import count_text
from fastq.tools.gguf_files.gguf_file import open_gguf
from fastq.tools.tensors.gguf_tensor import gguf_tensors
from fastq.tools.tensors.netcdf_zarr import is_store
from fastq.tools.tensors.reading import line_on_codes_read_as_stored, tensors_of
from fastq.tools.tensors.tensor import PlainTensor, Tensor, WeightTensor


class ByName(Mapping[str, QuantizedArray | Array]):
    """The tensors of a file or a directory; the error for an unknown name lists the nearest names."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self._name = path.name or path.resolve().name
        self._tensors = tensors

    def __getitem__(self, name: str) -> QuantizedArray | Array:
        """Read a tensor; the error for an unknown name lists the nearest ones."""
        if name not in self._tensors:
            raise KeyError(f"{self._name} has no tensor {name!r}{nearest(str(name), self._tensors)}")
        return self._read(name)

    def _read(self, name: str) -> QuantizedArray | Array:
        return self._tensors[name].load()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a tensor, or `default` for an unknown name; `Mapping.get` would look for the nearest names first."""
        return self[name] if name in self._tensors else default

    def stored(self, name: str) -> CompressedWeight | None:
        """Return the stored tensors of a quantized weight in the layout of compressed-tensors, else None."""
        tensor = self._tensors.get(name)
        return tensor.weight.compressed if isinstance(tensor, WeightTensor) else None

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # Mapping.__contains__ reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        tensors = self._tensors.values()
        quantized = sum(tensor.is_quantized for tensor in tensors)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        return (
            f"{type(self).__name__}({self._name!r}: {count_text(len(tensors), 'tensor')}, {quantized} quantized,"
            f" {nbytes:,} bytes)"
        )


class Tensors(ByName):
    """The tensors of a file or a model directory, by name; each is read when it is looked up.

    This is what `fastq.load` returns. Quantized tensors are `QuantizedArray`, all others are arrays, read-only and
    mapped if the file allows it. No file stays open: the map of an array ends with the array.

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
        """Read a tensor; an error names it and the file."""
        with naming(lambda error: f"tensor {name!r} of {self._name} can't be read: {error}"):
            return super()._read(name)


def open_tensors(path: Path) -> Tensors:
    """Return the tensors of a file or of a directory; raise ValueError if it can't be read."""
    with naming(lambda error: f"path can't be read: {shown(str(path))}: {error}"):
        if is_store(path):
            raise ValueError("xarray.open_dataset reads netCDF and zarr")
        source = path if path.is_dir() else as_path(path)
        tensors = tensors_of(source)
    if line := line_on_codes_read_as_stored(source, tensors.values()):
        warn_caller(line)
    return Tensors(source, tensors)


class Checkpoint(ByName):
    """A quantized model; each tensor is read when it is looked up.

    Quantized weights are `QuantizedArray` under the names of their modules, all other tensors are arrays under their
    own names. Arrays are mapped, not read.

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
    """Open a quantized model: a directory of compressed-tensors, float8, AWQ, GPTQ, MLX or gpt-oss, or a GGUF file.

    Parameters
    ----------
    path : str or Path
        A directory with config.json and .safetensors files, or a .gguf file.

    Returns
    -------
    Checkpoint
        A mapping. Quantized weights are `QuantizedArray` under the names of their modules, of shape (rows, columns). A
        matrix with two-dimensional blocks has shape (rows / b, b, columns / b, b) and is padded with zeros. Experts in
        one tensor have a first axis; those of gpt-oss are (experts, outputs, inputs), as stored. In a GGUF file tensors
        of Q8_0 are `QuantizedArray`, under their full names if another tensor has the name of the module; other blocks
        are read as their values in float32. All other tensors are arrays under their own names, read-only and mapped.
        `config` has the contents of config.json, or the metadata.

    Raises
    ------
    TypeError, ValueError
        If path has no such files, the files are damaged, or they store weights in an unknown way.

    Examples
    --------
    >>> import fastq.io
    >>> model = fastq.io.open_checkpoint("llama-W4A16")  # doctest: +SKIP
    >>> model["model.layers.0.self_attn.q_proj"]  # doctest: +SKIP
    QuantizedArray(shape=(4096, 4096), dtype=int4, axis=-1, block_size=128, nbytes=8912896)
    """
    path = as_name(path)
    if path.suffix == ".gguf":
        return _gguf_checkpoint(path)
    if not path.is_dir():
        advice = "; fastq.load opens files of tensors" if path.suffix in SOURCES else ""
        raise ValueError(f"path must be that of a model directory or of a .gguf file, not {shown(str(path))}{advice}")
    return _folder_checkpoint(path)


def _gguf_checkpoint(path: Path) -> Checkpoint:
    """Return the model in a GGUF file."""
    file = open_gguf(path)
    tensors: dict[str, Tensor] = {}
    for tensor in gguf_tensors(file):
        module = tensor.name.removesuffix(".weight")
        has_codes = tensor.scheme == "Q8_0"
        name = module if has_codes and module not in file.tensors else tensor.name
        tensors[name] = replace(tensor, is_quantized=has_codes)  # other blocks are read as values
    config = {key: field.value() for key, field in file.fields.items() if field.type_name != "array"}
    return Checkpoint(path, tensors, config)


def _folder_checkpoint(path: Path) -> Checkpoint:
    """Return the model in a directory."""
    model = ModelFolder.open(path)
    weights = stored_weights(model) if model.quantization else StoredWeights()
    dtype = model.dtype
    tensors: dict[str, Tensor] = {name: WeightTensor.of(weight, dtype) for name, weight in weights.items()}
    for name, spec in model.tensors.items():
        if name in weights.parts:
            continue
        if name in weights:
            codes = weights[name].codes.name
            raise ValueError(f"tensor {name!r} and the weight of {codes!r} would both be {name!r}; rename one")
        tensors[name] = PlainTensor.of(model, spec)
    return Checkpoint(path, tensors, model.config)
