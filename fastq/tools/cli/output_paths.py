"""Arguments that name a file to write: which suffixes they have, and what may be replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from fastq.tools.files.texts import alternatives

WRITABLE = click.Path(path_type=Path)


def with_suffix(
    *suffixes: str, hint: Mapping[str, str] | None = None
) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """Return a callback that refuses paths without one of the suffixes; hints tell what files with others hold."""

    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        """Return the path as it is; refuse another suffix."""
        if path is not None and path.suffix not in suffixes:
            content = (hint or {}).get(path.suffix)
            reason = f"; a {path.suffix} file holds {content}" if content else ""
            raise click.BadParameter(f"{path.name!r} does not end in {alternatives(suffixes)}{reason}")
        return path

    return check


def check_out(sources: Mapping[str, Path | None], out: Path, *, force: bool, report: Path | None = None) -> None:
    """Refuse an OUT or a report that can't or should not be written; `sources` are read, by their arguments."""
    passed = {argument: path for argument, path in sources.items() if path}
    check_replaceable(out, "OUT", passed)
    if report is not None:
        check_replaceable(report, "--report", {**passed, "OUT": out} if os.path.exists(out) else passed)
    if os.path.lexists(out) and not force:
        raise click.BadParameter(f"{out.name!r} exists; --force replaces it", param_hint="'OUT'")


def check_replaceable(out: Path, argument: str, sources: Mapping[str, Path]) -> None:
    """Refuse to replace a file that is read, is not a plain file, or has no folder; a link counts as its target."""
    exists = os.path.exists(out)
    if not os.path.isdir(out.parent):
        reason = f"there is no folder {str(out.parent)!r}"
    elif same := [name for name, source in sources.items() if exists and os.path.samefile(source, out)]:
        reason = f"{out.name!r} is {same[0]} itself"
    elif exists and not os.path.isfile(out):
        reason = f"{out.name!r} is not a file"
    else:
        return
    raise click.BadParameter(reason, param_hint=f"'{argument}'")


def sizes_text(before: Path, after: Path) -> str:
    """Return the bytes of two files or stores, and their ratio."""
    first, second = map(_bytes_on_disk, (before, after))
    return f"{first:,} -> {second:,} bytes" + (f", {first / second:.2f} x" if second else "")


def _bytes_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
