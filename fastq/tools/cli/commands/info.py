"""`fastq info`: print versions, CPU and threads."""

from __future__ import annotations

from collections.abc import Mapping

import click

from fastq.config import versions
from fastq.tools.cli.terminal import UNLIMITED, print_wrapped, terminal_width


def print_facts(facts: Mapping[str, str]) -> None:
    """Print a line for each fact, its name first; long facts continue on indented lines."""
    width = terminal_width() or UNLIMITED
    indent = max(map(len, facts)) + 2
    for name, text in facts.items():
        print_wrapped(f"{name:{indent}}{text}", width, " " * indent)


@click.command(short_help="Print versions, CPU and threads.")
def info() -> None:
    """Print versions, CPU, threads and cache folder."""
    print_facts(versions())
