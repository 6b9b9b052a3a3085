"""Which files of a folder are a model: its config.json, and the .safetensors files that transformers reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastq.system.arguments import shown
from fastq.tools.checkpoints.config_json import CONFIG
from fastq.tools.checkpoints.json_files import read_json
from fastq.tools.files.links import check_link
from fastq.tools.files.texts import NAMED

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
WEIGHTS_KEY = "transformers_weights"  # key of config.json: the file or index that transformers reads
ADAPTER = "adapter_model"  # the name without suffix of weights that readers add to those of a model
# files of weights that fastq does not read, by the ends of their names, and what to do with them
OTHER_WEIGHTS = {
    f"{ADAPTER}.safetensors": "merge the adapter into its model first, with merge_and_unload of peft",
    ".gguf": "fastq gguf reads it",
    ".bin": "load it with transformers, and write .safetensors with save_pretrained",
    ".pth": "load it with torch, and write .safetensors",
}
# what a directory without config.json is, by a file that it has instead
INSTEAD = {
    "adapter_config.json": "it is an adapter; merge_and_unload of peft merges it with its base into a model",
    "model_index.json": "it is a pipeline of diffusers, which does not read compressed-tensors",
    "params.json": "it is in the layout of its makers; take the files that transformers loads",
}


@dataclass(frozen=True, kw_only=True)
class WeightFiles:
    """The files with the weights of a model."""

    names: list[str]
    index: str  # the name of the index that the model has, or will have when it is converted; empty without one
    promised: Mapping[str, str]  # the file of each tensor, as the index says
    notes: list[str]  # lines on what is not read


def check_is_model(path: Path) -> None:
    """Raise ValueError unless a folder has a config.json; the error says what the folder seems to be."""
    if not path.is_dir():
        raise ValueError("it is not a directory")
    check_link(path / CONFIG)
    if (path / CONFIG).is_file():
        return
    ends = [f": {reason}" for name, reason in INSTEAD.items() if (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        ends += [f", but {name}: {advice}" for name, advice in _other_weights(path)]
    ends.append(folder_within(path, [".safetensors"], CONFIG))  # the last resort, and empty without such a folder
    raise ValueError(f"it has no {CONFIG}{ends[0]}")


def find_weight_files(path: Path, config: Mapping[str, Any]) -> WeightFiles:
    """Return the files that transformers reads; raise ValueError if that can't be told.

    These are the file that config.json names, else model.safetensors, else the files of the index, else the only
    .safetensors file.
    """
    file_name = config.get(WEIGHTS_KEY)
    if file_name is not None:
        return _named_file(path, file_name)
    if (path / SINGLE).is_file():
        notes = []
        if (path / INDEX).is_file() and any(path.glob("model-*.safetensors")):
            notes.append(f"{SINGLE} is read, as in transformers, and not the files of {INDEX}")
        return WeightFiles(names=[SINGLE], index="", promised={}, notes=notes)
    if (path / INDEX).is_file():
        return _indexed_files(path, INDEX)
    names = sorted(file.name for file in path.glob("*.safetensors") if file.stem != ADAPTER)
    if len(names) == 1:  # a file of another name, which readers find in an index only
        return WeightFiles(names=names, index=INDEX, promised={}, notes=[])
    needed = f"without {SINGLE} and {INDEX} it must have one .safetensors file; it has"
    if names:
        raise ValueError(f"{needed} {', '.join(names[:NAMED])}{', ...' * (len(names) > NAMED)}")
    for name, advice in _other_weights(path):  # the first one is enough
        raise ValueError(f"{needed} {name}: {advice}")
    raise ValueError(f"{needed} none")


def folder_within(path: Path, suffixes: Iterable[str], companion: str = "") -> str:
    """Return the end of an error about a folder without certain files: a folder inside it that has them, or nothing.

    `companion` is the name of a file that must be next to them; empty if none must.
    """
    for levels in ("*", "*/*", "*/*/*"):  # the last one of a cache of the hub
        files = sorted(file for suffix in suffixes for file in path.glob(f"{levels}/*{suffix}"))
        folders = [file.parent for file in files if (file.parent / companion).exists()]
        if folders:
            return f", but {folders[0]} has one"
    return ""


def _named_file(path: Path, file_name: Any) -> WeightFiles:
    """Return the file, or the files of the index, that config.json names."""
    if not isinstance(file_name, str) or not _is_inside(file_name.removesuffix(".index.json")):
        raise ValueError(f"{CONFIG} names {shown(file_name)} as {WEIGHTS_KEY}, which is not a .safetensors file in it")
    if not (path / file_name).is_file():
        raise ValueError(f"{CONFIG} names {file_name} as {WEIGHTS_KEY}, which is missing; fetch it again")
    if file_name.endswith(".json"):
        return _indexed_files(path, file_name)
    return WeightFiles(names=[file_name], index="", promised={}, notes=[])


def _indexed_files(path: Path, index: str) -> WeightFiles:
    """Return the files that an index lists."""
    promised = _weight_map(path / index)
    return WeightFiles(names=sorted(set(promised.values())), index=index, promised=promised, notes=[])


def _weight_map(path: Path) -> dict[str, str]:
    """Return the file of each tensor in an index; names that lead out of the directory, or to no file, are refused."""
    file_of = read_json(path).get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise ValueError(f"{path.name} has no weight_map")
    for name in set(map(str, file_of.values())):
        if not _is_inside(name):
            raise ValueError(f"{path.name} names {shown(name)}, which is not a .safetensors file in the directory")
        if not (path.parent / name).is_file():
            raise ValueError(f"{path.name} names {name}, which is missing; fetch it again")
    return {str(tensor): str(name) for tensor, name in file_of.items()}


def _is_inside(name: str) -> bool:
    """Return whether a name is that of a .safetensors file, without a folder."""
    return Path(name).name == name and "\\" not in name and name.endswith(".safetensors")


def _other_weights(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names of the files of weights that fastq does not read here, and what to do with each."""
    for name in sorted(file.name for file in path.iterdir()):
        yield from ((name, advice) for end, advice in OTHER_WEIGHTS.items() if name.endswith(end))
