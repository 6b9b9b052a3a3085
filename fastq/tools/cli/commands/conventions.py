"""`fastq conventions`: print the formulas of conventions."""

from __future__ import annotations

from collections.abc import Iterable

import click

from fastq.formats.conventions.table import CONVENTIONS
from fastq.formats.describe import code_formula, scale_formula, zero_point_formula
from fastq.tools.cli.terminal import print_wrapped, terminal_width

PAGE = 80  # columns of paragraphs if the width of the terminal is unknown


def print_conventions(names: Iterable[str]) -> None:
    """Print a paragraph for each convention: name and system, and the formulas, in lines that fit."""
    width = terminal_width() or PAGE
    for row in map(CONVENTIONS.__getitem__, names):
        first = row.under(False, "array")
        print_wrapped(f"{row.name}: {row.system}", width, "  ")
        for title, formula in (("code", code_formula), ("scale", scale_formula), ("zero point", zero_point_formula)):
            print_wrapped(f"{title:10}  {formula(first)}", width, " " * 14, initial_indent="  ")


@click.command(short_help="Print the formulas of the conventions.")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(tuple(CONVENTIONS)))
def conventions(names: tuple[str, ...]) -> None:
    """Print the formulas of codes, scale and zero point of the named conventions of `fastq.quantize`, or of all.

    F is the compute type, lo and hi are the ends of the range, qmin and qmax the first and the last code, and n = qmax
    - qmin. If schemes or granularities differ, the first formula is for one asymmetric scale per array.
    """
    print_conventions(names or CONVENTIONS)
