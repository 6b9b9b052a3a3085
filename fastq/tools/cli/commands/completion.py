"""`fastq completion`: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script: for bash, eval "$(fastq completion bash)" in ~/.bashrc."""
    complete = get_completion_class(shell)
    assert complete is not None  # completion exists for these three
    click.echo(complete(click.get_current_context().find_root().command, {}, "fastq", "_FASTQ_COMPLETE").source())
