"""The folder of machine code: one that only this user can write to, or none.

Whoever can write to a file of machine code runs what he likes in the process that loads it. So nothing is loaded from
or written to where another user could have put a file: a folder or file that another user owns or may write to, or a
folder within one. Root, whom no permission stops, checks the same.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from numba.core import config

_CHECKED = hasattr(os, "geteuid")  # Windows keeps the cache of a user in his profile, which is private there


@functools.cache
def code_folder() -> Path | None:
    """Return the folder of machine code, made if it does not exist; None where there is none to be trusted."""
    for folder in _candidates():
        with contextlib.suppress(OSError):
            if not refusal(folder):
                _make(folder)
                if os.access(folder, os.W_OK) or any(folder.iterdir()):
                    return folder
    return None


def _candidates() -> Iterator[Path]:
    """Yield the folders to try in their order, which is Numba's: set by the user, beside the sources, of the user."""
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR).absolute() / "fastq-kernels"
    yield Path(__file__).parent / "__pycache__" / "code"
    with contextlib.suppress(RuntimeError):  # no home
        yield _user_folder() / "fastq-kernels"


def _user_folder() -> Path:
    """Return the folder that this system has for caches of the user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _make(folder: Path) -> None:
    """Make a folder and its missing parents, private whatever the umask is."""
    if not folder.exists():
        _make(folder.parent)
        folder.mkdir(0o700, exist_ok=True)


def refusal(folder: Path) -> str:
    """Return why a folder, which need not exist yet, is not to be trusted; "" if it is."""
    folder = Path(os.path.realpath(folder))
    for path in (folder, *folder.parents):
        if path.exists() and (why := _distrust(os.stat(path), is_parent=path != folder)):
            return f"{path} {why}"
    return ""


def _distrust(status: os.stat_result, is_parent: bool = False) -> str:
    """Return why others could change what has this status, or move a folder out of this parent; "" if they cannot."""
    if not _CHECKED:
        return ""
    if status.st_uid != os.geteuid() and not (is_parent and status.st_uid == 0):
        return "belongs to another user"
    sticky = is_parent and status.st_mode & stat.S_ISVTX  # only the owner of an entry can move it
    return "can be written to by others" if _others_may_write(status) and not sticky else ""


def _others_may_write(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid)))


@functools.cache
def _is_private(group: int) -> bool:
    """Whether a group has its user as its only member, as many systems give one to each user."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        user, row = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
        return user.pw_gid == group and row.gr_name == user.pw_name and set(row.gr_mem) <= {user.pw_name}
    return False


def read_trusted(path: Path) -> bytes:
    """Read a file of the folder; OSError if another user owns it or may write to it, or it is no plain file."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or _distrust(status):
            raise PermissionError(f"{path} {_distrust(status) or 'is no plain file'}")
        return file.read()


def stored_code() -> tuple[int, int]:
    """Return how many files of machine code the folder has, and their bytes."""
    folder, files, nbytes = code_folder(), 0, 0
    with contextlib.suppress(OSError):
        for path in folder.glob("*.code") if folder else ():
            files, nbytes = files + 1, nbytes + path.stat().st_size
    return files, nbytes


def refusals() -> list[str]:
    """Return why folders before the one in use are not trusted, and which of its files are not."""
    used, reasons = code_folder(), []
    for folder in _candidates():
        with contextlib.suppress(OSError):
            if folder == used:
                reasons += [f"{path} {why}" for path in folder.iterdir() if (why := _distrust(os.lstat(path)))]
                break
            reasons += [why] if (why := refusal(folder)) else []
    return reasons
