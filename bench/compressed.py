"""Files of results: compressed where their name says so, never half-written."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastq.system.atomic import replacing

SUFFIX = ".gz"


def write(path: Path, content: bytes) -> None:
    """Write to a temporary name in the same folder, and rename."""
    with replacing(path.resolve()) as file:
        file.write(gzip.compress(content, mtime=0) if path.suffix == SUFFIX else content)


def read(path: Path) -> bytes:
    """Read what `write` wrote.

    Raises
    ------
    ValueError
        If the name says that the file is compressed, and it is not, or damaged.
    """
    stored = path.read_bytes()
    if path.suffix != SUFFIX:
        return stored
    try:
        return gzip.decompress(stored)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error


def stored(folder: Path, read_one: Callable[[Path], Any]) -> dict[Path, Any]:
    """Return what the files of a folder hold, those that were begun last first."""
    found = {path: read_one(path) for path in folder.glob("*.json*")}
    return dict(sorted(found.items(), key=lambda item: item[1].started, reverse=True))
