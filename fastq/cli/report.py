"""The table that the command line prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fastq.formats.conventions import CONVENTIONS
from fastq.formats.describe import code_formula, scale_formula, zero_point_formula
from fastq.io.speed import Row

Line = TypeVar("Line")
Column = tuple[str, Callable[[Line], str]]

TENSOR: tuple[Column[Row], ...] = (
    ("tensor", lambda row: row.name),
    ("shape", lambda row: row.shape),
    ("bytes before", lambda row: f"{row.before:,}"),
)
FIGURES: tuple[Column[Row], ...] = (
    ("scheme", lambda row: row.scheme),
    ("bytes", lambda row: f"{row.after:,}"),
    ("SQNR dB", lambda row: number_text(row.sqnr_db, ".2f")),
    ("largest error", lambda row: number_text(row.max_abs_error, ".3g")),
    ("Gelem/s", lambda row: number_text(row.speed.gelems if row.speed else None, ".2f")),
    ("x NumPy", lambda row: number_text(row.speed.ratio if row.speed else None, ".1f")),
)
TEXT = ("tensor", "scheme", "type", "from", "to", "key", "value")


def print_table(rows: Sequence[Line], columns: Sequence[Column[Line]], *, total: Line | None = None) -> None:
    """Print one line per row, and the total below a rule, on standard output."""
    table = Table(box=SIMPLE_HEAD)
    for title, _ in columns:
        table.add_column(title, justify="left" if title in TEXT else "right")
    for row in rows:
        table.add_row(*(text(row) for _, text in columns), end_section=row is rows[-1])
    if total is not None:
        table.add_row(*(text(total) for _, text in columns))
    # At its natural width, whatever the terminal's: Rich would fold names and numbers to fit.
    Console(markup=False, highlight=False, width=1000).print(table)


def print_conventions() -> None:
    """Print a line per convention: name, formulas, system."""
    table = Table("convention", "codes", "parameters", "system", box=SIMPLE_HEAD)
    for row in CONVENTIONS.values():
        first = row.under(False, "array")
        parameters = f"scale = {scale_formula(first)}; {zero_point_formula(first)}"
        table.add_row(row.name, code_formula(first), parameters, row.system)
    Console(markup=False, highlight=False, width=1000).print(table)


def total_of(rows: Sequence[Row]) -> Row:
    """Return the row of sums, and of the largest error."""
    errors = [row.max_abs_error for row in rows if row.max_abs_error is not None]
    speeds = [row.speed for row in rows if row.speed is not None]
    return Row(
        name=f"{len(rows)} tensors",
        shape="",
        scheme="total",
        before=sum(row.before for row in rows),
        after=sum(row.after for row in rows),
        max_abs_error=max(errors, default=None),
        speed=sum(speeds[1:], speeds[0]) if speeds else None,
    )


def number_text(value: float | None, style: str) -> str:
    """Return a number in a style of `format`, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else format(value, style)
