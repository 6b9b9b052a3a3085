"""Folders that go with a model: what sentence-transformers put next to it, tokenizers, code; and what stays behind."""

from __future__ import annotations

import math
import os
from pathlib import Path

from fastq.io.checkpoints.folder import WEIGHTS, parsed_json
from fastq.system.arguments import shown

MODULES = "modules.json"  # of sentence-transformers: which folders the parts of a model are in
OTHER_FORMS = {"original", "onnx", "openvino", "coreml", "gguf", "metal"}  # folders with the model in another form
LARGEST = 1 << 26  # bytes of a folder without weights that is copied unasked


def modules_of(path: Path) -> list[str]:
    """Return the folders that the modules.json of a model names and that have files; none without one to be read."""
    try:
        entries = parsed_json(path / MODULES)
        named = [entry["path"] for entry in entries if not str(entry["type"]).endswith("Normalize")]
        return [each for each in named if isinstance(each, str) and each]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def companions(path: Path, out: Path) -> tuple[list[Path], list[str]]:
    """Return the files in folders of a model that are to be copied, relative to it, and lines on what is not."""
    named = modules_of(path)
    files: list[Path] = []
    ends = set(WEIGHTS) - {".safetensors", ".part"}  # of weights in a form that is not read here; parts are none
    seen = [file for file in sorted(path.iterdir()) if file.name[0] != "."]
    behind = [file.name for file in seen if file.suffix in ends and file.is_file()]
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
            why = "which is no folder of it: sentence-transformers does not load it"
            lines.append(f"{MODULES} names {shown(name)}, {why}")
    return files, lines


def _found(folder: Path, most: float) -> list[Path] | None:
    """Return the files of a folder, and the links to folders, which lead out of it and are not followed.

    None if the files have more bytes than that, which weights have unless there is no limit.
    """
    if folder.is_symlink():
        return [folder]
    found, total = [], 0.0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        found += [link for name in folders if (link := Path(place, name)).is_symlink()]
        for file in (Path(place, name) for name in sorted(names) if name[0] != "."):
            if file.is_file():
                found.append(file)
                total += math.inf if file.suffix in WEIGHTS else file.stat().st_size
                if total > most:
                    return None
    return found
