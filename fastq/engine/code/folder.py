"""The folder of machine code: one, the user's own, that nobody else can write to; else there is none.

Whoever can write to a file of machine code runs what he likes in the process that loads it. So nothing is read from or
written to a folder, or read from a file, that another user owns or may write to.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
from pathlib import Path

_HAS_OWNERS = hasattr(os, "geteuid")  # Windows keeps the cache of a user in his profile, which is private there


@functools.cache
def code_folder() -> Path | None:
    """Return the folder of machine code, made if it does not exist; None if it cannot be made or is not trusted."""
    folder = wanted_folder()
    with contextlib.suppress(OSError):
        if folder is not None and not refusal():
            # the outermost one first, each of those that are made private: `parents=True` makes parents by the umask
            for directory in reversed((folder, *folder.parents)):
                directory.mkdir(0o700, exist_ok=True)
            return folder
    return None


def wanted_folder() -> Path | None:
    """Return the folder in NUMBA_CACHE_DIR, else that of the user's cache; None where the user has no home."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    with contextlib.suppress(RuntimeError):  # of `Path.home`
        return (Path(chosen).absolute() if chosen else _user_folder()) / "fastq-kernels"
    return None


def _user_folder() -> Path:
    """Return the folder that this system has for caches of the user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def refusal() -> str:
    """Return why the folder is not trusted; "" if it is, or if there is none yet."""
    folder = wanted_folder()
    with contextlib.suppress(OSError):
        if folder is not None and (why := _distrust(os.stat(folder))):
            return f"{folder} {why}"
    return ""


def _distrust(status: os.stat_result) -> str:
    """Return why others could change what has this status; "" if they cannot."""
    if not _HAS_OWNERS:
        return ""
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written to by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def read_trusted(path: Path) -> bytes:
    """Read a file of the folder; raise OSError if another user owns it or may write to it, or if it is not plain."""
    # no link is followed, and to open a pipe does not wait for its other end
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or _distrust(status):
            raise PermissionError(f"{path} {_distrust(status) or 'is not a plain file'}")
        return file.read()


def stored_code() -> tuple[int, int]:
    """Return how many files of machine code the folder has, and their bytes."""
    folder = code_folder()
    files = 0
    nbytes = 0
    with contextlib.suppress(OSError):
        for path in folder.glob("*.code") if folder else ():
            files = files + 1
            nbytes = nbytes + path.stat().st_size
    return files, nbytes
