"""What commands of the benchmark share: options and where tables go."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

from . import machine
from .cases import LOG2_SIZES

WIDTH = 190  # of a table that is not for a terminal
FILE = click.Path(dir_okay=False, path_type=Path)


def console() -> Console:
    """Standard output, at its natural width if it is not a terminal."""
    made = Console()
    return made if made.is_terminal else Console(width=WIDTH)


def progress(*columns: ProgressColumn) -> Progress:
    """A bar on standard error, with these columns after it; nothing if that is not a terminal."""
    bar = Console(stderr=True)
    return Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=bar, disable=not bar.is_terminal)


class Sizes(click.ParamType):
    """Sizes as powers of two: "12,18" or "10-26:2" or both."""

    name = "LOG2"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Return the powers."""
        if isinstance(value, tuple):
            return value
        sizes: list[int] = []
        try:
            for part in value.split(","):
                span, _, step = part.partition(":")
                first, _, last = span.partition("-")
                sizes += range(int(first), int(last or first) + 1, int(step or 1))
        except ValueError:
            self.fail(f"{value!r} is not like 18 or 12,18 or 10-26:2")
        if any(size not in LOG2_SIZES for size in sizes) or not sizes:
            self.fail(f"{value!r} is not within {LOG2_SIZES[0]} to {LOG2_SIZES[-1]}")
        return tuple(sizes)


threads_option = click.option(
    "-t",
    "--threads",
    type=click.IntRange(1),
    default=machine.cores,
    show_default="all",
    help="Number of threads of every contender.",
)


keep_option = click.option(
    "--keep", "json_file", type=FILE, help="Keep the results in FILE, which is written after every case."
)


def count_option(name: str, default: int, text: str) -> Any:
    """An option that is a number of times."""
    return click.option(name, type=click.IntRange(1), default=default, show_default=True, help=text)


def sizes_option(shown: Iterable[int], and_more: str = "", **default: Any) -> Any:
    """The option of sizes, of which these are the default."""
    told = f"{','.join(map(str, shown))}{and_more}"
    text = "Sizes of arrays, as log2 of the number of elements."
    return click.option("--sizes", type=Sizes(), show_default=told, help=text, **default)


def chosen_option(short: str, long: str, name: str, metavar: str, text: str, callback: Any = None) -> Any:
    """An option that is given several times, or with commas."""
    return click.option(short, long, name, multiple=True, callback=callback, metavar=metavar, help=text)
