"""Machine code on disk: it is found again, it is never wrong, and no trouble with files reaches the caller.

A file for each function and signature: a checksum of all that follows, the key, an object file.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from fastq.engine.jit.folder import read_trusted
from fastq.system.atomic import replacing

_DIGEST = 32  # bytes


class CachedFile:
    """A file with content that belongs to a key, under which nothing else was ever saved."""

    def __init__(self, folder: Path, name: str, key: bytes) -> None:
        self.path, self._key = folder / f"{name}.{key.hex()[:16]}.code", key

    def load(self) -> bytes | None:
        """Return what was saved; None where there is no such file, or it is damaged, another's or not trusted."""
        with contextlib.suppress(OSError):
            content = read_trusted(self.path)
            checksum, key, code = content[:_DIGEST], content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]
            if key == self._key and checksum == hashlib.sha256(key + code).digest():
                return code
        return None

    def save(self, code: bytes) -> None:
        """Save content, readable for this user only; a full or read-only disk is no error."""
        content = self._key + code
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(0o700, exist_ok=True)
            with replacing(self.path, mode=0o600) as file:
                file.write(hashlib.sha256(content).digest() + content)
