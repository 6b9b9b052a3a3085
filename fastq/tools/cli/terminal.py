"""The terminal: its width, its colours, lines that fit it, and characters that are safe to print."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import Any

import click
from rich.console import Console

UNLIMITED = 1_000_000  # columns: the widest table


def printable(text: str) -> str:
    """Return a text with a question mark for each character that a terminal would interpret as a command."""
    return "".join(character if character.isprintable() else "?" for character in text)


def terminal_width() -> int | None:
    """Return the number of columns of the terminal, or of COLUMNS; None if neither is known."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def console_for_tables() -> Console:
    """Return the console that prints tables, in colours if standard output is a terminal that has them."""
    without_control = os.environ.get("TERM") in ("dumb", "unknown")  # for which Rich assumes 80 columns
    return Console(markup=False, highlight=False, width=UNLIMITED, force_terminal=False if without_control else None)


def print_line(text: str) -> None:
    """Print a sentence in lines that fit the terminal."""
    print_wrapped(text, terminal_width() or UNLIMITED, "  ", break_on_hyphens=False)


def print_wrapped(text: str, width: int, indent: str, **options: Any) -> None:
    """Print a text in lines of a width; all but the first are indented."""
    for line in textwrap.wrap(text, width, subsequent_indent=indent, **options):
        click.echo(line)
