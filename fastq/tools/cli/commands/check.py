"""`fastq check`: compare random cases with the reference."""

from __future__ import annotations

import sys
import time

import click

from fastq.system.imports import undisturbed
from fastq.tools.cli.progress import with_progress


@click.command(short_help="Compare random cases with the reference.")
@click.option("--cases", type=click.IntRange(1), default=100, show_default=True, help="Number of cases.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the series of cases.")
@click.option("--first", type=click.IntRange(0), default=0, help="Number of the first case in the series.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print every case before it runs, since a case may end the process."
)
def check(cases: int, seed: int, first: int, verbose: bool) -> None:
    """Compare the fast functions with the NumPy reference on random cases.

    Input dtypes, values, memory layouts, shapes and schemes are random; results must agree in every bit. Each case that
    differs is printed with the command that repeats it, and the exit code is 1. The first run compiles many kernels,
    about a second each.
    """
    with undisturbed():  # here, since the reference takes a part of the start of every command
        from fastq.tools.cli import selfcheck
    start = time.perf_counter()
    wrong = 0
    for index in with_progress(range(first, first + cases), "cases"):
        case = selfcheck.random_case(seed, index)
        if verbose:
            click.echo(f"{index}: {case}")
        names = selfcheck.mismatches(case)
        wrong += bool(names)
        if names:
            click.echo(f"{', '.join(names)}: {case}\n    {case.command}")
    click.echo(f"{cases} cases of seed {seed}, {wrong} with differences, {time.perf_counter() - start:.1f} s")
    sys.exit(wrong > 0)
