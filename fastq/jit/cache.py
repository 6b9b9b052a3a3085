"""Machine code on disk: it is found again, it is never wrong, and no trouble with files reaches the caller.

A file for each function and signature: a checksum of all that follows, the key, an object file.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl

from fastq.system.atomic import replacing

_DIGEST = 32  # bytes


class File:
    """Where the code of a function is kept, by a key that nothing else has ever been compiled under."""

    def __init__(self, function: Callable[..., Any], key: bytes) -> None:
        # Numba finds the folder: of NUMBA_CACHE_DIR, beside the source, or of the user
        place = CompileResultCacheImpl(function)
        self._key, self._make_folder = key, place.locator.ensure_cache_path
        self.path = Path(place.locator.get_cache_path()) / f"{place.filename_base}.{key.hex()[:16]}.code"

    def load(self) -> bytes | None:
        """Return what was saved; None where there is no such file, or it is damaged, or another's."""
        with contextlib.suppress(OSError):
            content = self.path.read_bytes()
            checksum, key, code = content[:_DIGEST], content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]
            if key == self._key and checksum == hashlib.sha256(key + code).digest():
                return code
        return None

    def save(self, code: bytes) -> None:
        """Keep code."""
        content = self._key + code
        with contextlib.suppress(OSError):  # a full or read-only disk
            self._make_folder()
            with replacing(self.path) as file:
                file.write(hashlib.sha256(content).digest() + content)


def file_of(function: Callable[..., Any], key: bytes) -> File | None:
    """Return where code is kept; None where no folder can be written."""
    with contextlib.suppress(Exception):  # what Numba raises depends on the system
        return File(function, key)
    return None
