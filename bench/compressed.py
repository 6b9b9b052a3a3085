"""Files of results: JSON, compressed where their name says so, never half-written."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastq.system.atomic import replacing

SUFFIX = ".gz"


def write(path: Path, content: Any, depth: int) -> None:
    """Write in lines, as `in_lines` makes them, to a temporary name in the same folder, and rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"{in_lines(content, depth)}\n".encode()
    with replacing(path.resolve()) as file:
        file.write(gzip.compress(text, mtime=0) if path.suffix == SUFFIX else text)


def read(path: Path) -> Any:
    """Read the content; ValueError if the file is not JSON, is damaged, or its compression differs from its name."""
    stored = path.read_bytes()
    try:
        return json.loads(gzip.decompress(stored) if path.suffix == SUFFIX else stored)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error


def stored(folder: Path, read_one: Callable[[Path], Any]) -> dict[Path, Any]:
    """Return what the files of a folder hold, those that were begun last first."""
    found = {path: read_one(path) for path in folder.glob("*.json*")}
    return dict(sorted(found.items(), key=lambda item: item[1].started, reverse=True))


def rounded(value: float, digits: int) -> float:
    """Return the number with so few digits, as an integer where it is one."""
    made = float(f"{value:.{digits}g}")
    return int(made) if made.is_integer() else made


def in_lines(content: Any, depth: int) -> str:
    """Return JSON with a line for each item that is not a plain value, down to a depth, which makes diffs readable."""
    items = content.values() if isinstance(content, dict) else content if isinstance(content, (list, tuple)) else ()
    if not depth or not any(isinstance(item, (dict, list, tuple)) for item in items):
        return json.dumps(content, separators=(",", ":"))
    lines = [in_lines(item, depth - 1) for item in items]
    if isinstance(content, dict):
        named = [f"{json.dumps(key)}:{line}" for key, line in zip(content, lines, strict=True)]
        return "{\n" + ",\n".join(named) + "\n}"
    return "[\n" + ",\n".join(lines) + "\n]"
