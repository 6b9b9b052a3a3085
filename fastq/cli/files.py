"""What commands that read and write files share: arguments, errors in one line, progress bars."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

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

from fastq.formats.range_methods import METHODS

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
WRITABLE = click.Path(path_type=Path)

range_option = click.option(
    "--range",
    "method",
    type=click.Choice(METHODS),
    default="minmax",
    show_default=True,
    help="All values, or the part of them with the least squared error: others are clipped.",
)
force_option = click.option("--force", is_flag=True, help="Replace OUT if it exists.")


def with_suffix(*suffixes: str) -> Callable[[click.Context, click.Parameter, Path], Path]:
    """Return a callback that refuses paths that do not end in one of the suffixes."""

    def check(ctx: click.Context, param: click.Parameter, path: Path) -> Path:
        if path.suffix not in suffixes:
            raise click.BadParameter(f"{path.name!r} does not end in {' or '.join(suffixes)}")
        return path

    return check


def check_out(source: Path, out: Path, *, force: bool) -> None:
    """Refuse an OUT that can't or should not be written; a link counts as what it leads to, if that is there."""
    if not os.path.isdir(out.parent):
        reason = f"there is no folder {str(out.parent)!r}"
    elif not os.path.lexists(out):
        return
    elif os.path.exists(out) and os.path.samefile(source, out):
        reason = f"{out.name!r} is IN itself"
    elif os.path.exists(out) and not os.path.isfile(out):
        reason = f"{out.name!r} is not a file"
    elif not force:
        reason = f"{out.name!r} exists; --force replaces it"
    else:
        return
    raise click.BadParameter(reason, param_hint="'OUT'")


@contextlib.contextmanager
def failures(source: Path, out: Path) -> Iterator[None]:
    """Turn an error of the data or of the file system into one line."""
    try:
        yield
    except ValueError as error:
        raise in_one_line(source.name, error) from error
    except MemoryError as error:
        raise in_one_line(source.name, f"out of memory: {error}") from error
    except OSError as error:
        raise in_one_line(error.filename or out, error.strerror or error) from error


def in_one_line(subject: object, text: object) -> click.ClickException:
    """Return the error that ends a command with one line."""
    return click.ClickException(" ".join(f"{subject}: {text}".splitlines()))


@contextlib.contextmanager
def progress_bar(nbytes: int, tensors: int) -> Iterator[Callable[[int, int], None]]:
    """Show how many bytes and tensors are done, on standard error if that is a terminal."""
    text = TextColumn("{task.fields[done]} of {task.fields[tensors]} tensors")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task, done = progress.add_task("", total=nbytes, tensors=tensors, done=0), 0

        def advance(nbytes: int, tensors: int) -> None:
            nonlocal done
            done += tensors
            progress.update(task, advance=nbytes, done=done)

        yield advance
