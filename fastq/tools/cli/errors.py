"""Errors of commands: one line about an argument, the data or a file."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from fastq.tools.cli.terminal import printable

# advice of the functions about arguments that commands do not have
NO_OPTIONS = "; pass nan='zero' to treat them as 0.0", "; clip x, or pass qparams"


@contextlib.contextmanager
def usage_errors(
    message: Callable[[Exception], str] = str, kinds: Any = ValueError, argument: str | None = None
) -> Iterator[None]:
    """Turn an error about an argument, by default that of the callback, into an error of usage."""
    try:
        yield
    except kinds as error:
        raise click.BadParameter(message(error), param_hint=argument and f"'{argument}'") from error


def regular_expression(pattern: str) -> contextlib.AbstractContextManager[None]:
    """Refuse a pattern that is not a regular expression."""
    return usage_errors(lambda error: f"{pattern!r} is not a regular expression: {error}", re.error)


@contextlib.contextmanager
def one_line_errors(source: object, out: Path) -> Iterator[None]:
    """Turn an error of the data or of the file system into one line about the source or the file."""
    try:
        yield
    except ValueError as error:
        # a message that begins with the name of the source or of OUT needs no other subject
        names = (str(source), os.path.basename(str(source)), str(out), name_of_path(out))
        has_subject = str(error).startswith(tuple(f"{name} " for name in names))
        raise one_line_error("" if has_subject else source, error) from error
    except MemoryError as error:
        raise one_line_error(source, f"out of memory: {error}") from error
    except OSError as error:
        raise one_line_error(error.filename or out, error.strerror or error) from error


def name_of_path(path: Path) -> str:
    """Return the name of a file or a folder in messages; for one without a name, such as '.', the path."""
    return path.name or str(path)


def one_line_error(subject: object, text: object) -> click.ClickException:
    """Return the error that ends a command, one line that a terminal can show; the text may name its own subject."""
    line = " ".join((f"{subject}: {text}" if subject else str(text)).splitlines())
    for advice in NO_OPTIONS:
        line = line.replace(advice, "")
    return click.ClickException(printable(line))
