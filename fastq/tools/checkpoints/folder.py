"""A model directory: its configuration, its shards with their tensors, and the folders that belong to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fastq.system.arguments import shown
from fastq.system.attributes import cached_property
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.config_json import CONFIG, HALVES, LANGUAGE, dtype_of, parts_of, quantization_in
from fastq.tools.checkpoints.json_files import read_json
from fastq.tools.checkpoints.tied_embeddings import TIED
from fastq.tools.files.containers import open_source
from fastq.tools.files.safetensors_files import SafetensorsSource
from fastq.tools.files.tensor_specs import TensorSpec

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NAMED = "transformers_weights"  # key of config.json: the file or index that transformers reads
ADAPTER = "adapter_model"  # names that readers add to the weights of a model
# weights that fastq does not read, by the ends of their names, and what to do with them
OTHER_WEIGHTS = {
    f"{ADAPTER}.safetensors": "merge the adapter into its model first, with merge_and_unload of peft",
    ".gguf": "fastq gguf reads it",
    ".bin": "load it with transformers, and write .safetensors with save_pretrained",
    ".pth": "load it with torch, and write .safetensors",
}
BUFFERS = re.compile(r".*\.(inv_freq|position_ids|masked_bias|attn\.bias)")
INSTEAD = {  # directories without config.json
    "adapter_config.json": "it is an adapter; merge_and_unload of peft merges it with its base into a model",
    "model_index.json": "it is a pipeline of diffusers, which does not read compressed-tensors",
    "params.json": "it is in the layout of its makers; take the files that transformers loads",
}


def folder_within(path: Path, suffixes: Iterable[str], companion: str = "") -> str:
    """Return the end of a message about a folder without files: the first one in it that has them and a companion."""
    for levels in ("*", "*/*"):
        files = sorted(file for suffix in suffixes for file in path.glob(f"{levels}/*{suffix}"))
        found = [file.parent for file in files if (file.parent / companion).exists()]
        if found:
            return f", but {found[0]} has one"
    return ""


class ModelFolder:
    """A model directory: `config` of config.json, `shards` by file names, and `files`, the file of each tensor.

    The files are those that transformers reads: the file that config.json names, else model.safetensors, else the files
    of the index, else the only .safetensors file. `index` is the name of the index that the model has or will have,
    empty without an index, and `notes` are lines about differences between an index and its files. `quantization` is
    the quantization_config.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        if not path.is_dir():
            raise ValueError("it is not a directory")
        if not (path / CONFIG).is_file():
            reasons = [f": {why}" for name, why in INSTEAD.items() if (path / name).is_file()]
            if not any(path.glob("*.safetensors")):
                reasons += [f", but {name}: {advice}" for name, advice in self._other_weights()]
            reasons.append(folder_within(path, [".safetensors"], CONFIG))
            raise ValueError(f"it has no {CONFIG}{next(iter(reasons), '')}")
        self.config = read_json(path / CONFIG)
        self.quantization = quantization_in(path, self.config)
        self.index, promised, only = self._first_file()
        names = sorted(set(promised.values())) or [only]
        self.shards = {name: cast(SafetensorsSource, open_source(path / name)) for name in names}
        self.files: dict[str, str] = {}
        for name, shard in self.shards.items():
            for tensor, spec in list(shard.tensors.items()):
                first = self.files.setdefault(tensor, name)
                if first == name:
                    continue
                other = self.shards[first]
                if spec != other.tensors[tensor] or (shard.raw(tensor) != other.raw(tensor)).any():
                    raise ValueError(f"tensor {tensor!r} is in {first} and another one in {name}; keep one")
                del shard.tensors[tensor]
        self._check_index(promised)

    def _first_file(self) -> tuple[str, dict[str, str], str]:
        """Return the name of the index and the file of each tensor in it, or the name of the only file."""
        named = self.config.get(NAMED)
        if named is not None:
            if not isinstance(named, str) or not _is_inside(named.removesuffix(".index.json")):
                raise ValueError(f"{CONFIG} names {shown(named)} as {NAMED}, which is not a .safetensors file in it")
            if not (self.path / named).is_file():
                raise ValueError(f"{CONFIG} names {named} as {NAMED}, which is missing; fetch it again")
            return (named, _weight_map(self.path / named), "") if named.endswith(".json") else ("", {}, named)
        if (self.path / SINGLE).is_file():
            if (self.path / INDEX).is_file() and any(self.path.glob("model-*.safetensors")):
                self.notes.append(f"{SINGLE} is read, as in transformers, and not the files of {INDEX}")
            return "", {}, SINGLE
        if (self.path / INDEX).is_file():
            return INDEX, _weight_map(self.path / INDEX), ""
        names = sorted(file.name for file in self.path.glob("*.safetensors") if file.stem != ADAPTER)
        if len(names) == 1:
            return INDEX, {}, names[0]  # a file of another name, which readers find in an index only
        wanted = f"without {SINGLE} and {INDEX} it must have one .safetensors file; it has"
        if names:
            raise ValueError(f"{wanted} {', '.join(names[:3])}{', ...' * (len(names) > 3)}")
        for name, advice in self._other_weights():
            raise ValueError(f"{wanted} {name}: {advice}")
        raise ValueError(f"{wanted} none")

    def _other_weights(self) -> Iterator[tuple[str, str]]:
        """Return the names of the files of weights that fastq does not read here, and what to do with each."""
        for name in sorted(file.name for file in self.path.iterdir()):
            yield from ((name, advice) for end, advice in OTHER_WEIGHTS.items() if name.endswith(end))

    def _check_index(self, promised: dict[str, str]) -> None:
        """Note tensors that no file has, if models can do without them; others are refused."""
        apart = any(part.get("tie_word_embeddings") is False for part in parts_of(self.config, LANGUAGE))
        for tensor, name in promised.items():
            if tensor in self.files:
                continue
            if not BUFFERS.fullmatch(tensor) and (apart or not TIED.fullmatch(tensor)):
                raise ValueError(f"{self.index} says that {tensor!r} is in {name}, which has no such tensor")
            why = "readers create it" if BUFFERS.fullmatch(tensor) else "it is tied to another one"
            self.notes.append(f"{self.index} names {tensor!r}, which no file has: {why}")

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
        """The dtype in which readers hold weights and scales: that of config.json, else that of most matrices."""
        named = dtype_of(self.config)
        if named is not None:
            return named
        found = Counter(spec.dtype for spec in self.tensors.values() if spec.dtype in HALVES and len(spec.shape) > 1)
        return found.most_common(1)[0][0] if found else "F32"


def _weight_map(path: Path) -> dict[str, str]:
    """Return the file of each tensor; names that lead out of the directory, or to no file, are refused."""
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{path.name} has no weight_map")
    for name in set(map(str, found.values())):
        if not _is_inside(name):
            raise ValueError(f"{path.name} names {shown(name)}, which is not a .safetensors file in the directory")
        if not (path.parent / name).is_file():
            raise ValueError(f"{path.name} names {name}, which is missing; fetch it again")
    return {str(tensor): str(name) for tensor, name in found.items()}


def _is_inside(name: str) -> bool:
    return Path(name).name == name and "\\" not in name and name.endswith(".safetensors")
