"""JSON files of models: read within limits, written whole or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fastq.system.atomic import replacing
from fastq.tools.files.naming_errors import naming

# most bytes, and most objects in objects: their reader is recursive
LONGEST_JSON = 1 << 28
DEEPEST_JSON = 100


def _as_float(text: str) -> float:
    """Return a number; raise ValueError if it is too large, since JSON could not hold the infinity."""
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
    level: list[Any] = [content]  # the objects and lists at one depth
    for _ in range(DEEPEST_JSON):
        children = (value.values() if isinstance(value, dict) else value for value in level)
        level = [child for values in children for child in values if isinstance(child, (dict, list))]
    if level:
        raise ValueError(f"{path.name} nests objects more than {DEEPEST_JSON} deep")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
