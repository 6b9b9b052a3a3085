"""A file that appears whole or not at all."""

from __future__ import annotations

import functools
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    LOCKS = False
else:
    LOCKS = True

_NAME = re.compile(r"\.fastq-[0-9a-f]{16}\.part")


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a writable file next to `path` that takes its place when the block ends without an error.

    After any error, including an interrupt, `path` is unchanged and the temporary file is gone. The temporary file of a
    killed process stays until the next one replaces a file of the folder. `mode` has the permissions, reduced by the
    umask.
    """
    _remove_abandoned(path.parent)
    temporary = path.with_name(f".fastq-{secrets.token_hex(8)}.part")
    try:
        with ExitStack() as lock:
            with _create(temporary, mode) as file:
                if LOCKS:
                    lock.callback(os.close, os.dup(file.fileno()))
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)  # closed, as Windows requires, and still locked
    except BaseException as error:
        with suppress(OSError):  # a read-only disk: the first error is the one to report
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the file that the caller knows
        raise
    _sync_folder(path.parent)


def is_temporary(name: str) -> bool:
    """Return whether a file has the name of a temporary file, which the next replacement of a file there may remove."""
    return _NAME.fullmatch(name) is not None


def _create(path: Path, mode: int) -> BinaryIO:
    """Create a file that is locked while it is open, which shows that it is not abandoned."""
    while True:
        file = open(path, "xb", opener=functools.partial(os.open, mode=mode))  # noqa: SIM115
        if LOCKS:
            with suppress(OSError):  # a file system without locks, on which no file counts as abandoned
                fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_nlink:  # another process considered it abandoned before it was locked
                file.close()
                continue
        return file


def _remove_abandoned(folder: Path) -> None:
    """Remove the unlocked temporary files of this user, whose processes ended without removing them."""
    if not LOCKS:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                with suppress(OSError):
                    _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    """Remove a plain file of this user; raise OSError if a process has locked it."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a loss of power, if the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
