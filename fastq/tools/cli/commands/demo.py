"""`fastq demo`: quantize a generated matrix and check the codes."""

from __future__ import annotations

from collections.abc import Iterable

import click

from fastq.system.imports import undisturbed
from fastq.tools.cli.progress import with_progress
from fastq.tools.cli.tables import cell_text, title_of


@click.command(short_help="Quantize a generated matrix and check the codes.")
@click.option("--size", default=4096, show_default=True, type=click.IntRange(1), help="Number of rows and of columns.")
def demo(size: int) -> None:
    """Quantize a generated weight matrix in several schemes, checking every code.

    Every code, scale and zero point is compared with the NumPy reference; the last column is the reference's time
    divided by ours. Exits with 1 if anything differs.
    """
    with undisturbed():  # here, since the reference takes a part of the start of every command
        from fastq.tools.cli import selfcheck
    click.echo(f"{size} x {size} float32, {4 * size**2:,} bytes")
    x = selfcheck.weight_matrix(size)
    wrong = 0
    widths = selfcheck.COLUMNS.values()
    click.echo(_in_columns(map(title_of, selfcheck.COLUMNS), widths))
    for scheme in with_progress(selfcheck.SCHEMES, "schemes"):
        outcome = selfcheck.outcome_of(x, scheme)
        click.echo(_in_columns((cell_text(column, outcome[column]) for column in selfcheck.COLUMNS), widths))
        wrong += outcome["mismatches"]
    if wrong:
        raise click.ClickException(f"{wrong:,} codes, scales or zero points differ from the reference")
    click.echo("Every code, scale and zero point equals the reference's.")


def _in_columns(texts: Iterable[str], widths: Iterable[str]) -> str:
    """Return a line of a table that is printed line by line; `widths` are format specs such as ">12"."""
    return "".join(f"{text:{width}}" for text, width in zip(texts, widths, strict=True))
