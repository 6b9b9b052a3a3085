"""Quantized models as mappings, of which a tensor is read when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastq.io.checkpoints.finding import StoredWeights, stored_weights
from fastq.io.checkpoints.folder import ModelFolder
from fastq.io.gguf.container import open_gguf
from fastq.io.loading import ByName
from fastq.io.tensors import Tensor, gguf_tensors, plain_tensor, tensor_of_weight
from fastq.operations.file_parts import as_name
from fastq.system.arguments import shown


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
