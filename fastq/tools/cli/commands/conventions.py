"""`fastq conventions`: print the formulas of conventions."""

from __future__ import annotations

from collections.abc import Iterable

import click

from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import CONVENTIONS
from fastq.formats.describe import (
    code_formula,
    format_code_formula,
    format_scale_formula,
    scale_formula,
    zero_point_formula,
)
from fastq.formats.qtypes import QTYPES
from fastq.tools.cli.terminal import print_wrapped, terminal_width

PAGE = 80  # columns of paragraphs if the width of the terminal is unknown


def print_conventions(names: Iterable[str]) -> None:
    """Print a paragraph for each convention: name and system, and the formulas, in lines that fit."""
    width = terminal_width() or PAGE
    for row in map(CONVENTIONS.__getitem__, names):
        print_wrapped(f"{row.name}: {row.system}", width, "  ")
        for title, formula in _formulas(row).items():
            print_wrapped(f"{title:10}  {formula}", width, " " * 14, initial_indent="  ")


def _formulas(row: Convention) -> dict[str, str]:
    """Return the formulas of a convention, by what they give; of several schemes those of the first one."""
    qtype = QTYPES[row.formats[0]] if row.formats else None
    if qtype is not None and qtype.block_size:
        first = row.under(True, "blocks", qtype.name)
        return {"code": format_code_formula(qtype, first), "scale": format_scale_formula(qtype, first)}
    first = row.under(False, "array")
    return {"code": code_formula(first), "scale": scale_formula(first), "zero point": zero_point_formula(first)}


@click.command(short_help="Print the formulas of the conventions.")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(tuple(CONVENTIONS)))
def conventions(names: tuple[str, ...]) -> None:
    """Print the formulas of codes, scale and zero point of the named conventions of `fastq.quantize`, or of all.

    F is the compute type, lo and hi are the ends of the range, qmin and qmax the first and the last code, and n = qmax
    - qmin. If schemes or granularities differ, the first formula is for one asymmetric scale per array. In formats with
    scales of their own `largest` is the largest magnitude of a block, and the formulas are those of the first format.
    The page "Who rounds how" of the documentation finds the convention of a function, and systems that need none.
    """
    print_conventions(names or CONVENTIONS)
