"""Folders that go with a model: what sentence-transformers put next to it, tokenizers, code; and what stays behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from fastq.io.checkpoints.folder import WEIGHTS

MODULES = "modules.json"  # of sentence-transformers: which folders the parts of a model are in
OTHER_FORMS = {"original", "onnx", "openvino", "coreml", "gguf", "metal"}  # folders with the model in another form
LARGEST = 1 << 26  # bytes of a folder without weights that is copied unasked


def modules_of(path: Path) -> list[str]:
    """Return the folders that the modules.json of a model names and that have files; none without one to be read."""
    try:
        entries = json.loads((path / MODULES).read_bytes())
        named = [entry["path"] for entry in entries if not str(entry["type"]).endswith("Normalize")]
        return [each for each in named if isinstance(each, str) and each]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def companions(path: Path, out: Path) -> tuple[list[Path], list[str]]:
    """Return the files in folders of a model that are to be copied, relative to it, and lines on what is not."""
    named = modules_of(path)
    files: list[Path] = []
    behind = [file.name for file in sorted(path.iterdir()) if file.is_file() and _is_other_weight(file)]
    for folder in sorted(each for each in path.iterdir() if each.is_dir() and each.name[0] != "."):
        if out.resolve().is_relative_to(folder.resolve()):
            continue
        found = list(_files(folder))
        needed = any(Path(name).parts[:1] == (folder.name,) for name in named)
        small = sum(file.stat().st_size for file in found) <= LARGEST
        plain = not any(file.suffix in WEIGHTS for file in found)
        if needed or (small and plain and folder.name not in OTHER_FORMS):
            files += [file.relative_to(path) for file in found]
        elif found:
            behind.append(f"{folder.name}/")
    lines = [f"not copied: {', '.join(behind)}"] if behind else []
    for name in named:
        if Path(name).is_absolute() or ".." in Path(name).parts or not (path / name).is_dir():
            lines.append(f"{MODULES} names {name!r}, which is no folder of it: sentence-transformers does not load it")
    return files, lines


def _is_other_weight(file: Path) -> bool:
    """Whether a file has weights in a form that is not read here; parts of downloads are none."""
    return file.suffix in WEIGHTS and file.suffix not in (".safetensors", ".part") and file.name[0] != "."


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        yield from (Path(place, name) for name in sorted(names) if name[0] != "." and Path(place, name).is_file())
