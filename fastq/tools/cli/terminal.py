"""The terminal: its width, lines that fit it, and characters that are safe to print."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import Any

import click

UNLIMITED = 1_000_000  # columns: the widest table


def printable(text: str) -> str:
    """Return the text of a file without characters that a terminal interprets as commands."""
    return "".join(character if character.isprintable() else "?" for character in text)


def terminal_width() -> int | None:
    """Return the number of columns of the terminal, or of COLUMNS; None if neither is known."""
    told = os.environ.get("COLUMNS", "")
    if told.isdigit() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def print_line(text: str) -> None:
    """Print a sentence in lines that fit the terminal."""
    print_wrapped(text, terminal_width() or UNLIMITED, "  ", break_on_hyphens=False)


def print_wrapped(text: str, width: int, indent: str, **options: Any) -> None:
    """Print a text in lines of a width; all but the first are indented."""
    for line in textwrap.wrap(text, width, subsequent_indent=indent, **options):
        click.echo(line)
