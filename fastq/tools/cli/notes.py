"""Notes on standard error, and the exit code that they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from fastq.tools.cli.terminal import printable
from fastq.tools.tensors.reading import (
    line_on_codes_read_as_stored,
)
from fastq.tools.tensors.tensor import Tensor

_CODE = "fastq.exit_code"  # key of the exit code that notes ask for


def note(text: object, code: int = 0) -> None:
    """Write a line to standard error; the command ends with the smallest nonzero exit code of its notes.

    Codes that say more are smaller: a tensor that is too far off counts more than one that was not compared.
    """
    click.echo(printable(" ".join(str(text).splitlines())), err=True)
    meta = click.get_current_context().meta
    meta[_CODE] = min(filter(None, (exit_code_of_notes(), code)), default=0)


def exit_code_of_notes() -> int:
    """Return the exit code that the notes of this command asked for."""
    return int(click.get_current_context().meta.get(_CODE, 0))


def note_codes(source: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a line on weights that another program quantized, and that are read as plain codes."""
    if line := line_on_codes_read_as_stored(source, tensors.values()):
        note(line)
