"""Files of results: compressed where their name says so, never half-written."""

from __future__ import annotations

import gzip
from pathlib import Path

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
    OSError, EOFError
        If the file is not there, or no compressed one.
    """
    stored = path.read_bytes()
    return gzip.decompress(stored) if path.suffix == SUFFIX else stored
