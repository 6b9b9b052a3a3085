"""What commands that read and write files share: arguments, errors in one line, progress bars."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fastq.cli.report import printable
from fastq.formats.range_methods import METHODS

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
WRITABLE = click.Path(path_type=Path)
# what functions advise, and commands have no such argument for
NO_OPTIONS = "; pass nan='zero' to take them for 0.0", "; clip x, or pass qparams"


range_option = click.option(
    "--range",
    "method",
    type=click.Choice(METHODS),
    default="minmax",
    show_default=True,
    help="All values, or the part of them with the least squared error: others are clipped.",
)
force_option = click.option("--force", is_flag=True, help="Replace OUT if it exists.")


def with_suffix(*suffixes: str) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """Return a callback that refuses paths that do not end in one of the suffixes; None is an option not given."""

    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and path.suffix not in suffixes:
            raise click.BadParameter(f"{path.name!r} does not end in {' or '.join(suffixes)}")
        return path

    return check


def pairs_of(texts: Iterable[str], wanted: str) -> Iterator[tuple[str, str]]:
    """Split each PATTERN=NAME at its last =, since patterns may have one."""
    for text in texts:
        pattern, equals, name = text.rpartition("=")
        if not (pattern and equals):
            raise click.BadParameter(f"{text!r} is not {wanted}")
        yield pattern, name


def decibels(ctx: click.Context, param: click.Parameter, number: float | None) -> float | None:
    """Refuse NaN, which nothing reaches and nothing fails to reach."""
    if number is not None and math.isnan(number):
        raise click.BadParameter("'nan' is not a number of decibels")
    return number


def check_out(source: Path, out: Path, *, force: bool) -> None:
    """Refuse an OUT that can't or should not be written."""
    check_replaceable(out, "OUT", {"IN": source})
    if os.path.lexists(out) and not force:
        raise click.BadParameter(f"{out.name!r} exists; --force replaces it", param_hint="'OUT'")


def check_replaceable(out: Path, argument: str, sources: Mapping[str, Path]) -> None:
    """Refuse a file that no other may replace: one that is read, is not a plain file, or lies in no folder.

    A link counts as what it leads to, if that is there.
    """
    there = os.path.exists(out)
    if not os.path.isdir(out.parent):
        reason = f"there is no folder {str(out.parent)!r}"
    elif itself := [name for name, source in sources.items() if there and os.path.samefile(source, out)]:
        reason = f"{out.name!r} is {itself[0]} itself"
    elif there and not os.path.isfile(out):
        reason = f"{out.name!r} is not a file"
    else:
        return
    raise click.BadParameter(reason, param_hint=f"'{argument}'")


@contextlib.contextmanager
def failures(source: object, out: Path) -> Iterator[None]:
    """Turn an error of the data, or of the file system, into one line about the source, or the file."""
    try:
        yield
    except ValueError as error:
        raise in_one_line(source, error) from error
    except MemoryError as error:
        raise in_one_line(source, f"out of memory: {error}") from error
    except OSError as error:
        raise in_one_line(error.filename or out, error.strerror or error) from error


def called(path: Path) -> str:
    """Return what messages call a file or a folder: its name, of those that have none, as '.', the path."""
    return path.name or str(path)


def in_one_line(subject: object, text: object) -> click.ClickException:
    """Return the error that ends a command with one line that a terminal can show."""
    line = " ".join(f"{subject}: {text}".splitlines())
    for advice in NO_OPTIONS:
        line = line.replace(advice, "")
    return click.ClickException(printable(line))


@contextlib.contextmanager
def progress_bar(tensors: Collection[Any]) -> Iterator[Callable[[int, int], None]]:
    """Show how many of some tensors and of their bytes are done, on standard error if that is a terminal."""
    text = TextColumn("{task.fields[done]} of {task.fields[tensors]} tensors")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task, done = progress.add_task("", total=sum(t.nbytes for t in tensors), tensors=len(tensors), done=0), 0

        def advance(nbytes: int, tensors: int) -> None:
            nonlocal done
            done += tensors
            progress.update(task, advance=nbytes, done=done)

        yield advance
