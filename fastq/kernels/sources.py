"""A digest of what kernels are made from, which is part of the name of machine code on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of(folder: Path) -> str:
    """Digest of the kernels and of the tables that they read while they are compiled."""
    hasher = hashlib.sha256()
    for path in (*sorted(folder.glob("*.py")), folder.parent / "floats.py", folder.parent / "gguf_formats.py"):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


DIGEST = digest_of(Path(__file__).parent)
