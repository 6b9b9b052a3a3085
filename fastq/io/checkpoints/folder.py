"""A model directory: its configuration, its shards, and which of them has which tensor."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.io.containers import SafetensorsSource, TensorSpec, open_source
from fastq.system.dtypes import Array

KEY, OLD_KEY = "quantization_config", "compression_config"  # of config.json
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".part")
LONGEST_JSON = 1 << 28  # bytes
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}  # by the name that config.json gives them
HALVES = {code: name for name, code in DTYPES.items()}


class ModelFolder:
    """A model directory: `config` of config.json, `shards` by file names, and `files`, the file of each tensor.

    ValueError if there is no such directory, or it is none of a model: a missing or damaged file, a tensor twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise ValueError("it is not a directory")
        if not (path / CONFIG).is_file():
            raise ValueError(f"it has no {CONFIG}")
        self.config = read_json(path / CONFIG)
        self.indexed = (path / INDEX).is_file()
        promised = _weight_map(path / INDEX) if self.indexed else None
        names = sorted(set(promised.values())) if promised else [_only_shard(path)]
        self.shards = {name: self._open(name) for name in names}
        self.files: dict[str, str] = {}
        for name, shard in self.shards.items():
            for tensor in shard.tensors:
                if tensor in self.files:
                    raise ValueError(f"tensor {tensor!r} is in {self.files[tensor]} and in {name}; keep it in one")
                self.files[tensor] = name
        if promised is not None:
            self._check_index(promised)

    def _open(self, name: str) -> SafetensorsSource:
        source = open_source(self.path / name)
        assert isinstance(source, SafetensorsSource)
        return source

    def _check_index(self, promised: dict[str, str]) -> None:
        for tensor, name in promised.items():
            if self.files.get(tensor) != name:
                raise ValueError(f"{INDEX} says that {tensor!r} is in {name}, which has no such tensor")
        for tensor, name in self.files.items():
            if tensor not in promised:
                raise ValueError(f"{tensor!r} of {name} is not in {INDEX}; add it there or remove it")

    @property
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
        """What readers hold weights and scales in: the dtype of config.json, else that of most matrices."""
        named = dtype_of(self.config)
        if named is not None:
            return named
        found = Counter(spec.dtype for spec in self.tensors.values() if spec.dtype in HALVES and len(spec.shape) > 1)
        return found.most_common(1)[0][0] if found else "F32"

    def other_files(self) -> Iterable[Path]:
        """Return the files that go with a model whatever its weights are: tokenizer, code, licence."""
        for path in sorted(self.path.iterdir()):
            if (
                path.is_file()
                and path.suffix not in WEIGHTS
                and path.name not in (CONFIG, INDEX)
                and path.name[0] != "."
            ):
                yield path


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the dtype that config.json names, as safetensors spells it; None if it names none that is known."""
    for part in (config, config.get("text_config")):
        for key in ("dtype", "torch_dtype"):
            named = part.get(key) if isinstance(part, dict) else None
            if isinstance(named, str) and named.removeprefix("torch.") in DTYPES:
                return DTYPES[named.removeprefix("torch.")]
    return None


def _as_float(text: str) -> float:
    """Return a number that JSON is written with again; NaN and infinities, which are names there, come another way."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond float64")
    return number


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; ValueError if it is none."""
    if path.stat().st_size > LONGEST_JSON:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes, more than any such file")
    try:
        content = json.loads(path.read_bytes(), parse_float=_as_float)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return content


def _weight_map(path: Path) -> dict[str, str]:
    """Return the file of each tensor; names that lead out of the directory, or to no file, are refused."""
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{INDEX} has no weight_map")
    for name in set(map(str, found.values())):
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise ValueError(f"{INDEX} names {name!r}, which is not a .safetensors file in the directory")
        if not (path.parent / name).is_file():
            raise ValueError(f"{INDEX} names {name}, which is missing; fetch it again")
    return {str(tensor): str(name) for tensor, name in found.items()}


def _only_shard(path: Path) -> str:
    names = sorted(file.name for file in path.glob("*.safetensors"))
    if len(names) != 1:
        found = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "none"
        raise ValueError(f"without {INDEX} it must have one .safetensors file; it has {found}")
    return names[0]
