"""A digest of what kernels are made from, which is part of the name of machine code on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of(folder: Path) -> str:
    """Digest of the kernels and of the tables that they read while they are compiled."""
    hasher = hashlib.sha256()
    for name in ("kernels", "simd", "jit", "runtime", "formats"):
        for path in sorted((folder / name).rglob("*.py")):
            hasher.update(path.read_bytes())
    return hasher.hexdigest()


DIGEST = digest_of(Path(__file__).parent.parent)
