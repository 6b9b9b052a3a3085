"""Quantized models as mappings: tensors read when they are asked for, and written as directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.io.checkpoints.finding import stored_weights
from fastq.io.checkpoints.folder import ModelFolder
from fastq.io.checkpoints.stored import CompressedWeight, StoredWeight
from fastq.io.gguf.container import GgufSource, GgufTensor, open_gguf
from fastq.io.mapping import ByName
from fastq.layouts.tensors import with_positive_scales
from fastq.operations.file_parts import as_name
from fastq.results import QParams, QuantizedArray
from fastq.system.arguments import shown
from fastq.system.dtypes import Array

Tensor = QuantizedArray | Array


class Size(NamedTuple):
    """What is known of a tensor that was not read."""

    is_quantized: bool
    nbytes: int


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

    _kind = "Checkpoint"

    def __init__(self, path: Path, sizes: dict[str, Size], config: dict[str, Any]) -> None:
        super().__init__(path, sizes)
        self.config = config

    def stored(self, name: str) -> CompressedWeight | None:
        """Return what is stored for a quantized weight as compressed-tensors has it, else None."""
        return None


class _FolderCheckpoint(Checkpoint):
    def __init__(self, path: Path) -> None:
        self._source = ModelFolder(path)
        self._weights: dict[str, StoredWeight] = stored_weights(self._source) if self._source.quantization else {}
        parts = {spec.name for weight in self._weights.values() for spec in weight.found.values()}
        plain = [name for name in self._source.tensors if name not in parts]
        twice = next((name for name in plain if name in self._weights), None)
        if twice is not None:
            codes = self._weights[twice].codes.name
            raise ValueError(f"tensor {twice!r} and the weight of {codes!r} would both be {twice!r}; rename one")
        found = {name: weight.found.values() for name, weight in self._weights.items()}
        sizes = {name: Size(True, sum(spec.nbytes for spec in specs)) for name, specs in found.items()}
        sizes |= {name: Size(False, self._source.tensors[name].nbytes) for name in plain}
        super().__init__(path, sizes, self._source.config)

    def _read(self, name: str) -> Tensor:
        weight = self._weights.get(name)
        if weight is None:
            return self._source.load(name)
        return weight.whole()

    def stored(self, name: str) -> CompressedWeight | None:
        """Return what is stored for a matrix, if compressed-tensors stores it so."""
        weight = self._weights.get(name)
        return weight.compressed if weight else None


class _GgufCheckpoint(Checkpoint):
    def __init__(self, path: Path) -> None:
        self._source: GgufSource = open_gguf(path)
        fields = {key: field.value() for key, field in self._source.fields.items() if field.type_name != "array"}
        self._tensors = {self._given_name(name): name for name in self._source.valued}
        specs = {given: self._source.tensors[name] for given, name in self._tensors.items()}
        sizes = {given: Size(spec.kind.name == "Q8_0", spec.nbytes) for given, spec in specs.items()}
        super().__init__(path, sizes, fields)

    def _given_name(self, name: str) -> str:
        """Return the name of the module of what is read as `QuantizedArray`, of all else that of the tensor.

        A tensor of the name of the module leaves the other one its own.
        """
        module, tensors = name.removesuffix(".weight"), self._source.tensors
        return module if tensors[name].kind.name == "Q8_0" and module not in tensors else name

    def _read(self, name: str) -> Tensor:
        spec = self._source.tensors[self._tensors[name]]
        if spec.kind.name != "Q8_0":
            return self._source.values(spec.name)
        return of_q8_0(self._source, spec)


def of_q8_0(source: GgufSource, spec: GgufTensor) -> QuantizedArray:
    """Return blocks of Q8_0 as int8 codes in blocks of 32; a scale of 0, of values too small for another, is 1."""
    form, name, shape = BLOCK_FORMATS["Q8_0"], spec.name, spec.shape
    blocks = source.load(name).reshape(-1, form.nbytes)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32).reshape(*shape[:-1], shape[-1] // form.size)
    if (times := source.scale(name)) is not None:
        scale *= times.reshape(*shape[:-2], 1, 1)
    codes = blocks[:, 2:].copy().view(np.int8).reshape(shape)
    qparams = QParams(scale, np.zeros(scale.shape, np.int8), as_qtype("int8"), -1, form.size, symmetric=True)
    return with_positive_scales(QuantizedArray(codes, qparams, shape), f"tensor {name!r}")


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
    if path.suffix == ".gguf":
        return _GgufCheckpoint(path)
    if not path.is_dir():
        raise ValueError(f"path must be that of a model directory or of a .gguf file, not {shown(str(path))}")
    return _FolderCheckpoint(path)
