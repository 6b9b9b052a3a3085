"""Options that several commands have, and how the texts of options are read."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from fastq.formats.range_methods import METHODS
from fastq.system.arguments import reason
from fastq.tools.cli.errors import regular_expression, usage_errors
from fastq.tools.files.patterns import check_pattern

S = TypeVar("S")

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


def choice(name: str, names: Iterable[str], *more: str, **options: Any) -> Callable[[Any], Any]:
    """Return an option with a choice of names; the first one is the default, which the help shows."""
    first, *others = names
    kind = click.Choice([first, *others])
    return click.option(name, *more, type=kind, default=first, show_default=True, **options)


RANGE_HELP = "minmax uses the range of all values; mse searches near it for the range with the least squared error."
range_option = choice("--range", METHODS, "method", help=RANGE_HELP)
IMATRIX_HELP = (
    "Weights of the columns for the search of --range mse, which is implied: a file of llama-imatrix, .safetensors or"
    " .npz."
)
imatrix_option = click.option("--imatrix", type=EXISTING, metavar="FILE", help=IMATRIX_HELP)
nan_option = choice("--nan", ["raise", "zero"], help='"raise" stops at NaN, "zero" treats it as 0.')
like_option = functools.partial(click.option, type=EXISTING, metavar="FILE")
force_option = click.option("--force", is_flag=True, help="Replace OUT if it exists.")


def as_patterns(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the patterns of an option as they are; refuse one that is no valid regular expression."""
    for text in texts:
        with regular_expression(text):
            check_pattern(text)
    return texts


def pairs_of(texts: Iterable[str], form: str) -> Iterator[tuple[str, str]]:
    """Split each PATTERN=NAME at its last "=", since a pattern may have one."""
    for text in texts:
        pattern, equals, name = text.rpartition("=")
        if not (pattern and equals):
            raise click.BadParameter(f"{text!r} is not {form}")
        yield pattern, name


def read_suggestion(path: Path, scheme_of: Callable[[Any], S]) -> dict[str, S]:
    """Return the schemes of tensors by name that `fastq suggest --json` printed."""
    unreadable = ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError
    problem = f"{path.name!r} is not the output of suggest --json for such a file: "
    with usage_errors(lambda error: problem + reason(error), unreadable, "--like"):
        return {entry["name"]: scheme_of(entry["scheme"]) for entry in json.loads(path.read_bytes())["tensors"]}


def _as_decibels(ctx: click.Context, param: click.Parameter, number: float | None) -> float | None:
    """Refuse NaN, with which every comparison is false."""
    if number is not None and math.isnan(number):
        raise click.BadParameter("'nan' is not a number of decibels")
    return number


repeatable = functools.partial(click.option, multiple=True)
patterns = functools.partial(repeatable, metavar="PATTERN", callback=as_patterns)
decibels = functools.partial(click.option, type=float, metavar="DB", callback=_as_decibels)


def method_with(imatrix: Path | None, method: str) -> str:
    """Return the method for ranges: a search if an importance matrix is given, unless minmax was asked for."""
    if imatrix is None or is_given("like"):
        return method
    if method == "minmax" and is_given("method"):
        raise click.UsageError(
            "--imatrix weighs the errors in the search of --range mse; it cannot be combined with --range minmax"
        )
    return "mse"


def is_given(name: str) -> bool:
    """Return whether an argument of the command was written out, even with its default value."""
    return click.get_current_context().get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
