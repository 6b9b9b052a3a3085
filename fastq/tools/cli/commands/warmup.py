"""`fastq warmup`: prepare kernels ahead of time."""

from __future__ import annotations

import functools
import time

import click

from fastq.config import versions
from fastq.ops.warmup import make_ready
from fastq.ops.works import WORKS
from fastq.tools.cli.progress import with_progress


@click.command(short_help="Prepare kernels ahead of time.")
@click.argument("works", nargs=-1, type=click.Choice(tuple(WORKS)))
@click.option("--all", "everything", is_flag=True, help="Prepare all works.")
@click.option("--native", is_flag=True, help="Compile for exactly this CPU; this user's processes then use that code.")
def warmup(works: tuple[str, ...], everything: bool, native: bool) -> None:
    """Prepare the machine code of works: take it from the package or from disk, or compile it and keep it on disk.

    Use this in container images and on clusters. Without arguments, the code of int8 and uint8 is prepared.
    """
    start = time.perf_counter()
    make_ready(tuple(WORKS) if everything else works, native, functools.partial(with_progress, noun="calls"))
    click.echo(f"{versions()['cache']}, {time.perf_counter() - start:.1f} s")
