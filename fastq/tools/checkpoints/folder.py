"""A model directory: its configuration, its shards with their tensors, and the folders that belong to it."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fastq.system import lazy
from fastq.system.arguments import shown
from fastq.system.dtypes import Array
from fastq.tools.files.containers import open_source
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.safetensors_files import SafetensorsSource
from fastq.tools.files.tensor_specs import TensorSpec

# of config.json
KEY = "quantization_config"
OLD_KEY = "compression_config"
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MLX = "mlx"  # the name here of the quant_method of MLX, which names none
# files of older writers with the contents of KEY, and the quant_method of those that do not name it
SIDE_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
NAMED = "transformers_weights"  # key of config.json: the file or index that transformers reads
# ends of names of files of weights: of fastq, PyTorch, GGUF, ONNX and its data, TensorFlow, Flax, Rust, Core ML,
# Paddle, NeMo, MLX, TensorRT, LiteRT, ExecuTorch, MNN, RKNN, OpenVINO, and of unfinished downloads
WEIGHTS = re.compile(
    r".*\.(safetensors|bin|pt|pt2|pth|ptl|ckpt|pkl|pickle|ggml|gguf|llamafile|onnx([._]data)?([._]\d+)?|ort|h5|hdf5|keras|pb|"
    r"tflite|litertlm|task|msgpack|flax|ot|mlmodel|mlpackage|pdparams|pdiparams|pdmodel|nemo|npz|engine|plan|trt|pte|mnn|"
    r"rknn|mar|safetensors\.index\.json|data-\d+-of-\d+|part|incomplete)",
    re.IGNORECASE,
)
UNFINISHED = ".part", ".incomplete"
ADAPTER = "adapter_model"  # names that readers add to the weights of a model
# weights that fastq does not read, by the ends of their names, and what to do with them
OTHER_WEIGHTS = {
    f"{ADAPTER}.safetensors": "merge the adapter into its model first, with merge_and_unload of peft",
    ".gguf": "fastq gguf reads it",
    ".bin": "load it with transformers, and write .safetensors with save_pretrained",
    ".pth": "load it with torch, and write .safetensors",
}
# tensors that models create if no file has them: a head or an embedding that is tied to another one, tables of
# positions
TIED = re.compile(r"(.*\.)?(lm_head|embed_out|output|decoder|[^.]*embed[^.]*|wte|shared)\.(weight|bias)")
BUFFERS = re.compile(r".*\.(inv_freq|position_ids|masked_bias|attn\.bias)")
# most bytes, and most objects in objects: their reader is recursive
LONGEST_JSON = 1 << 28
DEEPEST_JSON = 100
LANGUAGE = ("text_config", "llm_config", "language_config")  # keys of the language model within a larger one
INSTEAD = {  # directories without config.json
    "adapter_config.json": "it is an adapter; merge_and_unload of peft merges it with its base into a model",
    "model_index.json": "it is a pipeline of diffusers, which does not read compressed-tensors",
    "params.json": "it is in the layout of its makers; take the files that transformers loads",
}
DTYPE_KEYS = ("dtype", "torch_dtype")  # older writers use the second one
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}  # by their names in config.json
HALVES = {code: name for name, code in DTYPES.items()}
MODULES = "modules.json"  # of sentence-transformers: the folders with the parts of a model
OTHER_FORMS = {"original", "onnx", "openvino", "coreml", "gguf", "metal"}  # folders with the model in another form
LARGEST = 1 << 26  # most bytes of a folder without weights that is copied


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

    @lazy.cached_property
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

    def other_files(self) -> Iterable[Path]:
        """Return the files of a model that do not depend on its weights: tokenizer, code, licence."""
        for path in sorted(each for each in self.path.iterdir() if not each.is_dir() and each.name[0] != "."):
            wanted = path.stem == ADAPTER or not (path.name in (CONFIG, *SIDE_FILES) or _stays(path))
            if wanted and path.is_file():  # and no pipe
                yield path


def quantization_in(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the quantization entry of config.json, or of the file of an older writer; empty without one."""
    entry = entry_of(config)
    for name, method in SIDE_FILES.items():
        if not entry and (folder / name).is_file():
            entry = {"quant_method": method, **read_json(folder / name)}
    return entry


def parts_of(config: Mapping[str, Any], keys: Iterable[str] | None = None) -> list[Mapping[str, Any]]:
    """Return config.json and the configurations of models within it under some keys, by default under any key."""
    inner = (config.get(key) for key in (config if keys is None else keys))
    return [config, *(part for part in inner if isinstance(part, dict))]


def entry_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the quantization entry of config.json, empty without one."""
    if isinstance(config.get("quantization"), dict):  # MLX, regardless of other entries
        return {"quant_method": MLX}
    for part in parts_of(config, LANGUAGE):
        for key in (KEY, OLD_KEY):
            entry = part.get(key)
            if isinstance(entry, dict) and entry:
                return entry | entry[KEY] if isinstance(entry.get(KEY), dict) else entry  # nested by older writers
    return {}


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the dtype that config.json names, as safetensors spells it; None if it does not name a known dtype."""
    for part in parts_of(config, LANGUAGE):
        for key in DTYPE_KEYS:
            named = part.get(key)
            if isinstance(named, str) and named.removeprefix("torch.") in DTYPES:
                return DTYPES[named.removeprefix("torch.")]
    return None


def _as_float(text: str) -> float:
    """Return a number that can be written as JSON; NaN and infinities are names there, and take another way."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond float64")
    return number


def parsed_json(path: Path) -> Any:
    """Return the contents of a JSON file; raise ValueError if it can't be read."""
    if path.stat().st_size > LONGEST_JSON:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes, too many for such a file")
    with naming(lambda error: f"{path.name} is not readable JSON: {error}", (ValueError, RecursionError)):
        return json.loads(path.read_bytes(), parse_float=_as_float)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; raise ValueError if it is not an object."""
    content = parsed_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} does not hold a JSON object")
    level: list[Any] = [content]
    for _ in range(DEEPEST_JSON):
        values = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for each in values for value in each if isinstance(value, (dict, list))]
    if level:
        raise ValueError(f"{path.name} nests objects more than {DEEPEST_JSON} deep")
    return content


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


def modules_of(path: Path) -> list[str]:
    """Return the folders with files that the modules.json of a model names; empty if it can't be read."""
    try:
        entries = parsed_json(path / MODULES)
        named = [entry["path"] for entry in entries if not str(entry["type"]).endswith("Normalize")]
        return [each for each in named if isinstance(each, str) and each]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _stays(file: Path) -> bool:
    """Return whether a file of a model is not copied: one of weights or of their index, or a large one."""
    return bool(WEIGHTS.fullmatch(file.name)) or file.name.endswith(".index.json") or _size(file) > LARGEST


def _size(file: Path) -> int:
    """Return the bytes of a file; raise ValueError if it is a link to nothing."""
    if file.is_symlink() and not file.exists():
        raise ValueError(f"{file} is a link to a file that is missing; fetch it again, or remove the link")
    return file.stat().st_size


def companions(model: ModelFolder, out: Path) -> tuple[list[Path], list[str]]:
    """Return the files of a model to copy, relative to it, and lines about the others.

    Raise ValueError if a file is a link to nothing, as in a cache of the hub that lacks a blob.
    """
    path = model.path
    copied = [*model.other_files()]
    read = {CONFIG, *SIDE_FILES, *model.shards}
    named = modules_of(path)
    files = [file.relative_to(path) for file in copied]
    seen = [file for file in sorted(path.iterdir()) if file.name[0] != "."]
    behind = []
    for file in seen:
        is_other = file.name not in read and not file.name.endswith((".index.json", *UNFINISHED))
        if is_other and file not in copied and not file.is_dir() and _stays(file):
            behind.append(file.name)
    for folder in filter(Path.is_dir, seen):
        if not folder.is_symlink() and out.resolve().is_relative_to(folder.resolve()):
            continue
        needed = any(Path(name).parts[:1] == (folder.name,) for name in named)
        found = _found(folder, math.inf if needed else -1 if folder.name in OTHER_FORMS else LARGEST)
        if found is None:
            behind.append(f"{folder.name}/")
            continue
        files += [each.relative_to(path) for each in found if not each.is_dir()]
        behind += [f"{each.relative_to(path).as_posix()}/ (a link)" for each in found if each.is_dir()]
    lines = [f"not copied: {', '.join(behind)}"] if behind else []
    for name in named:
        if Path(name).is_absolute() or ".." in Path(name).parts or not os.path.isdir(path / name):
            why = "which is not a folder in it: sentence-transformers does not load it"
            lines.append(f"{MODULES} names {shown(name)}, {why}")
    return files, lines


def _found(folder: Path, most: float) -> list[Path] | None:
    """Return the files of a folder, and links to folders, which are not followed; None for more bytes than `most`."""
    if folder.is_symlink():
        return [folder]
    found = []
    total = 0.0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        found += [link for name in folders if (link := Path(place, name)).is_symlink()]
        for file in (Path(place, name) for name in sorted(names) if name[0] != "."):
            if WEIGHTS.fullmatch(file.name) and most < math.inf:
                return None
            total += _size(file)
            if total > most:
                return None
            if file.is_file():
                found.append(file)
    return found
