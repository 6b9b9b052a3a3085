"""A file that appears whole or not at all."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that takes its place when the block ends without an error.

    After any error, an interrupt included, `path` is as it was and the temporary file is gone. `mode` are permissions,
    of which the umask takes some away.

    Yields
    ------
    binary file
        Writable, seekable.
    """
    temporary = path.with_name(f".fastq-{secrets.token_hex(8)}.part")
    try:
        with open(temporary, "xb", opener=functools.partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a loss of power, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
