"""A model directory: its configuration, and its shards with their tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fastq.system.attributes import cached_property
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.config_json import CONFIG, HALVES, LANGUAGE, dtype_of, parts_of, quantization_in
from fastq.tools.checkpoints.json_files import read_json
from fastq.tools.checkpoints.tied_embeddings import TIED
from fastq.tools.checkpoints.weight_files import WeightFiles, check_is_model, find_weight_files
from fastq.tools.files.containers import open_source
from fastq.tools.files.safetensors_files import SafetensorsSource
from fastq.tools.files.tensor_specs import TensorSpec

# tables of positions, which models create if no file has them
BUFFERS = re.compile(r".*\.(inv_freq|position_ids|masked_bias|attn\.bias)")


class Shard(Protocol):
    """A .safetensors file of a model, or an object that can be read like one."""

    path: Path
    metadata: dict[str, str]
    tensors: dict[str, TensorSpec]

    def load(self, name: str) -> Array:
        """Return a tensor."""

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor."""

    def read_ahead(self, name: str) -> None:
        """Let the system start to read a tensor from disk, if it can."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelFolder:
    """A model directory, whose files are those that transformers reads."""

    path: Path
    config: dict[str, Any]  # the contents of config.json
    quantization: dict[str, Any]  # the quantization_config; empty without one
    shards: Mapping[str, Shard]  # by the names of their files
    index: str  # the name of the index that the model has or will have; empty without an index
    notes: list[str]  # lines on what is not read, and on differences between an index and its files

    @classmethod
    def open(cls, path: Path) -> ModelFolder:
        """Read the configuration and the headers of the shards of a directory; raise ValueError if it is no model."""
        check_is_model(path)
        config = read_json(path / CONFIG)
        quantization = quantization_in(path, config)
        files = find_weight_files(path, config)
        shards = {name: cast(SafetensorsSource, open_source(path / name)) for name in files.names}
        _drop_duplicates(shards)
        return cls(
            path=path,
            config=config,
            quantization=quantization,
            shards=shards,
            index=files.index,
            notes=[*files.notes, *_notes_on_missing(files, shards, config)],
        )

    @cached_property
    def files(self) -> dict[str, str]:
        """The name of the file of each tensor."""
        return {tensor: name for name, shard in self.shards.items() for tensor in shard.tensors}

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """All tensors, shard by shard."""
        return {name: spec for shard in self.shards.values() for name, spec in shard.tensors.items()}

    def load(self, name: str) -> Array:
        """Return a tensor, mapped."""
        return self.shards[self.files[name]].load(name)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, mapped."""
        return self.shards[self.files[name]].raw(name)

    @property
    def dtype(self) -> str:
        """The dtype that readers use for weights and scales: from config.json, else the most common one of matrices."""
        dtype = dtype_of(self.config)
        if dtype is not None:
            return dtype
        matrices = [spec for spec in self.tensors.values() if spec.dtype in HALVES and len(spec.shape) > 1]
        counts = Counter(spec.dtype for spec in matrices)
        return counts.most_common(1)[0][0] if counts else "F32"


def _drop_duplicates(shards: Mapping[str, Shard]) -> None:
    """Drop the further copies of each tensor from the `tensors` of their shards, so that each is converted once.

    Raise ValueError if two shards have different tensors of one name.
    """
    first_shard_of: dict[str, str] = {}
    for name, shard in shards.items():
        for tensor, spec in list(shard.tensors.items()):
            first_name = first_shard_of.setdefault(tensor, name)
            if first_name == name:
                continue
            first_shard = shards[first_name]
            if spec != first_shard.tensors[tensor] or (shard.raw(tensor) != first_shard.raw(tensor)).any():
                raise ValueError(f"tensor {tensor!r} is in {first_name} and another one in {name}; keep one")
            del shard.tensors[tensor]


def _notes_on_missing(files: WeightFiles, shards: Mapping[str, Shard], config: Mapping[str, Any]) -> list[str]:
    """Return lines on tensors that an index lists but no file has. Raise ValueError if the model needs them."""
    stored = {tensor for shard in shards.values() for tensor in shard.tensors}
    untied = any(part.get("tie_word_embeddings") is False for part in parts_of(config, LANGUAGE))
    notes = []
    for tensor, name in files.promised.items():
        if tensor in stored:
            continue
        is_buffer = BUFFERS.fullmatch(tensor)
        if not is_buffer and (untied or not TIED.fullmatch(tensor)):
            raise ValueError(f"{files.index} says that {tensor!r} is in {name}, which has no such tensor")
        reason = "readers create it" if is_buffer else "it is tied to another one"
        notes.append(f"{files.index} names {tensor!r}, which no file has: {reason}")
    return notes
