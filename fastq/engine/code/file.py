"""A file of machine code: a checksum of all that follows, the key, and the content.

It is never wrong: whatever is damaged, or belongs to another key, counts as missing. No trouble with files reaches the
caller.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from fastq.engine.code.folder import read_trusted
from fastq.system.atomic import replacing

_DIGEST = 32  # bytes


class CachedFile:
    """A file with content that belongs to a key, under which nothing else was ever saved."""

    def __init__(self, folder: Path, name: str, key: bytes) -> None:
        # a key is a SHA-256 digest; 16 of its 64 hexadecimal digits are enough for a name, and the file has it whole
        self.path = folder / f"{name}.{key.hex()[:16]}.code"
        self._key = key
        self.reference = key + name.encode()  # by which another file leads to this one

    def load(self) -> bytes | None:
        """Return what was saved; None where there is no such file, or it is damaged, another's or not trusted."""
        with contextlib.suppress(OSError):
            content = read_trusted(self.path)
            checksum = content[:_DIGEST]
            key = content[_DIGEST : 2 * _DIGEST]
            code = content[2 * _DIGEST :]
            if key == self._key and checksum == hashlib.sha256(key + code).digest():
                return code
        return None

    def save(self, code: bytes) -> None:
        """Save content, readable for this user only; a full or read-only disk does not raise."""
        content = self._key + code
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(0o700, exist_ok=True)
            with replacing(self.path, mode=0o600) as file:
                file.write(hashlib.sha256(content).digest() + content)

    def follow(self, digest: bytes) -> CachedFile | None:
        """Return the file that this one leads to; None unless this one was saved with the same digest.

        The content of a file that leads to another is a digest of the machine and the compiler (`machine_digest`), then
        the `reference` of the other file: its key and its name.
        """
        content = self.load() or b""
        key = content[_DIGEST : 2 * _DIGEST]
        name = content[2 * _DIGEST :].decode()
        return CachedFile(self.path.parent, name, key) if content[:_DIGEST] == digest else None
