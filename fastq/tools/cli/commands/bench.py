"""`fastq bench`: compare speed with other libraries."""

from __future__ import annotations

import importlib
import importlib.util

import click


@click.command(
    add_help_option=False,
    short_help="Compare speed with other libraries.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Compare every operation with other libraries and the memory's limit."""
    run = importlib.import_module(f"{benchmark_package()}.command").run
    # `main` would end it with "Aborted!"
    with run.make_context("fastq bench", list(arguments), help_option_names=["-h", "--help"]) as ctx:
        run.invoke(ctx)


def benchmark_package() -> str:
    """Return the name of the package of `fastq bench`: installed with fastq, or a folder of the repository."""
    return "fastq._bench" if importlib.util.find_spec("fastq._bench") else "bench"
