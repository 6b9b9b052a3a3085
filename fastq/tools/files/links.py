"""Links to files that are missing, as in a cache of the hub that lacks a blob."""

from __future__ import annotations

from pathlib import Path


def check_link(path: Path, written: str = "") -> None:
    """Raise ValueError for a link to nothing; `written` is what the error calls it, by default its name."""
    if path.is_symlink() and not path.exists():
        raise ValueError(
            f"{written or path.name} is a link to a file that is missing; fetch it again, or remove the link"
        )
