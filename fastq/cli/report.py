"""The table that the command line prints."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fastq.formats.conventions import CONVENTIONS
from fastq.formats.describe import code_formula, scale_formula, zero_point_formula
from fastq.io.pipeline import Converted, total_of

UNLIMITED = 1_000_000  # columns: of what no table has more
PAGE = 80  # columns of paragraphs where no terminal tells its width
UNBROKEN = "\0"  # in place of a space at which no line is broken

Line = TypeVar("Line")
Column = tuple[str, Callable[[Line], str]]

CONVERTED: tuple[Column[Converted], ...] = (
    ("tensor", lambda row: printable(row.name)),
    ("shape", lambda row: "" if row.shape is None else shape_text(row.shape) or "scalar"),
    ("bytes before", lambda row: f"{row.before:,}"),
    ("scheme", lambda row: f"{row.target}, {row.remark}" if row.remark else row.target),
    ("bytes", lambda row: f"{row.after:,}"),
    ("SQNR dB", lambda row: number_text(row.sqnr_db, ".2f")),
    ("largest error", lambda row: number_text(row.max_abs_error, ".3g")),
)
TEXT = ("tensor", "scheme", "type", "from", "to", "key", "value")


def print_table(
    rows: Sequence[Line], columns: Sequence[Column[Line]], *, total: Line | None = None, width: int | None = None
) -> None:
    """Print one line per row, and the total below a rule, on standard output.

    A terminal narrower than the table gets the rows one below the other, each with its columns wrapped. Where nothing
    tells the width, as in a pipe, a row is a line, however long.
    """
    table = Table(box=SIMPLE_HEAD)
    for title, _ in columns:
        table.add_column(title, justify="left" if title in TEXT else "right")
    for row in rows:
        table.add_row(*(text(row) for _, text in columns), end_section=row is rows[-1])
    if total is not None:
        table.add_row(*(text(total) for _, text in columns))
    plain = False if os.environ.get("TERM") in ("dumb", "unknown") else None  # Rich takes those for 80 columns wide
    console = Console(markup=False, highlight=False, width=UNLIMITED, force_terminal=plain)
    wide, width = console.measure(table).maximum, width or terminal_width()
    if width is None or wide <= width:
        console.print(table)  # at its natural width: Rich would fold names and numbers to fit
    else:
        _print_records([*rows, *([] if total is None else [total])], columns, width)


def total_text(rows: Sequence[Converted], *, done: str = "quantized") -> str:
    """Return the line of sums that all commands end with: bytes, their ratio, SQNR of all, and the worst tensor."""
    total, measured = total_of(rows), [row for row in rows if row.errors is not None]
    counted = f", {len(measured):,} {done}" if measured else ""
    parts = [f"{total.name}{counted}: {total.before:,} -> {total.after:,} bytes"]
    parts += [f"{total.before / total.after:.2f} x"] if total.after else []
    ratios = [(ratio, row.name) for row in measured if (ratio := row.sqnr_db) is not None and not math.isnan(ratio)]
    if ratios and total.sqnr_db is not None:
        worst, name = min(ratios)
        parts += [f"{total.sqnr_db:.2f} dB, worst {worst:.2f} dB: {printable(name)}"]
    return ", ".join(parts)


def print_line(text: str) -> None:
    """Print a sentence in lines that fit the terminal."""
    for line in textwrap.wrap(text, terminal_width() or UNLIMITED, subsequent_indent="  ", break_on_hyphens=False):
        click.echo(line)


def _print_records(rows: Sequence[Line], columns: Sequence[Column[Line]], width: int) -> None:
    """Print each row as a paragraph: its first column, and the others below with their titles."""
    (_, name), *others = columns
    for row in rows:
        click.echo(name(row))
        parts = [f"{title} {value}" for title, text in others if (value := text(row)) not in ("", "-")]
        _print_wrapped(_joined(parts), width)


def _joined(parts: Sequence[str]) -> str:
    """Return parts between which lines are broken rather than within them."""
    return ", ".join(part.replace(" ", UNBROKEN) for part in parts)


def _print_wrapped(text: str, width: int) -> None:
    for line in textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False):
        click.echo(line.replace(UNBROKEN, " "))


def terminal_width() -> int | None:
    """Return how many columns the terminal has, or as many as COLUMNS says; None where neither tells."""
    told = os.environ.get("COLUMNS", "")
    if told.isdigit() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def print_facts(facts: Mapping[str, str]) -> None:
    """Print a line for each fact, its name first; longer ones go on below themselves."""
    width, indent = terminal_width() or UNLIMITED, max(map(len, facts)) + 2
    for name, text in facts.items():
        for line in textwrap.wrap(f"{name:{indent}}{text}", width, subsequent_indent=" " * indent):
            click.echo(line)


def print_conventions() -> None:
    """Print a paragraph per convention: name and system, and the formulas, in lines that fit."""
    width = terminal_width() or PAGE
    for row in CONVENTIONS.values():
        first = row.under(False, "array")
        for line in textwrap.wrap(f"{row.name}: {row.system}", width, subsequent_indent="  "):
            click.echo(line)
        for title, formula in (("code", code_formula), ("scale", scale_formula), ("zero point", zero_point_formula)):
            text = f"{title:10}  {formula(first)}"
            for line in textwrap.wrap(text, width, initial_indent="  ", subsequent_indent=" " * 14):
                click.echo(line)


def count_or_dash(count: int | None) -> str:
    """Return a count, or a dash for none."""
    return f"{count:,}" if count else "-"


def number_text(value: float | None, style: str) -> str:
    """Return a number in a style of `format`, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else format(value, style)


def printable(text: str) -> str:
    """Return text of a file without what a terminal would take for a command."""
    return "".join(character if character.isprintable() else "?" for character in text)


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text; nothing for one number."""
    return " x ".join(map(str, shape))
