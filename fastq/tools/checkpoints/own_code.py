"""The code that a model has of its own, in files next to its weights: which of its modules are tables.

The code is parsed and never run. A statement such as `self.places = nn.Embedding(64, 128)` tells the class of all
modules called places; so does one with a container, `self.places = nn.ModuleList([nn.Embedding(...)])`, for its items.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastq.tools.checkpoints.skipped_modules import NUMBERED

LARGEST = 1 << 22  # most bytes of a file of code that is parsed
LINEAR = "Linear"
CONTAINERS = {"ModuleList", "ModuleDict", "Sequential"}

Classes = Mapping[str, frozenset[str]]


def has_own_code(config: Mapping[str, Any]) -> bool:
    """Return whether a model is built by code of its own, which config.json names."""
    return isinstance(config.get("auto_map"), dict)


def classes_in_code(folder: Path, config: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the classes that the code of a model calls for each attribute of its modules; empty without such code."""
    classes_by_name: dict[str, set[str]] = {}
    for file in sorted(folder.glob("*.py")) if has_own_code(config) else ():
        if file.is_file() and file.stat().st_size <= LARGEST:
            for name, classes in _assigned(file.read_bytes()):
                classes_by_name.setdefault(name, set()).update(classes)
    return {name: frozenset(classes) for name, classes in classes_by_name.items()}


def _assigned(code: bytes) -> Iterator[tuple[str, set[str]]]:
    """Yield the attributes to which statements assign what classes make, and the names of these classes."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # code of a newer Python, or no code at all
        return
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute) and node.value is not None:
                functions = [call.func for call in ast.walk(node.value) if isinstance(call, ast.Call)]
                names = {getattr(function, "attr", getattr(function, "id", "")) for function in functions}
                yield target.attr, {name for name in names if name[:1].isupper()}


def is_embedding(module: str, classes: Classes) -> bool:
    """Return whether a module is a table, given the classes of attributes, and no Linear layer of the same name."""
    own = _classes_of(module, classes)
    return any(map(_is_table, own)) and LINEAR not in own


def _classes_of(module: str, classes: Classes) -> frozenset[str]:
    """Return the classes of a module by its own name, or by that of the container of which it is an item."""
    parent, _, name = module.rpartition(".")
    if name in classes:
        return classes[name]
    of_container = classes.get(parent.rpartition(".")[2], frozenset())
    return of_container if of_container & CONTAINERS else frozenset()


def _is_table(name: str) -> bool:
    return name in ("Embedding", "EmbeddingBag") or name.endswith("ParallelEmbedding")


def taken_for_linear(modules: Iterable[str], config: Mapping[str, Any], classes: Classes) -> list[str]:
    """Return the modules outside the layers that no name and no code tells to be Linear, where code may say so."""
    if config.get("model_type") and not has_own_code(config):  # transformers has the code
        return []
    unknown = [module for module in modules if not NUMBERED.search(module)]
    return [module for module in unknown if not _is_linear(_classes_of(module, classes))]


def _is_linear(classes: frozenset[str]) -> bool:
    return LINEAR in classes and not any(map(_is_table, classes))
