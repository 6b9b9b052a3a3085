"""The command line: a group of commands, each in a file of fastq/tools/cli/commands/."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import warnings
from typing import Any

import click

from fastq.engine.code import notices
from fastq.tools.cli import interrupts
from fastq.tools.cli.commands.bench import bench
from fastq.tools.cli.commands.binarize import binarize
from fastq.tools.cli.commands.bitround import bitround
from fastq.tools.cli.commands.check import check
from fastq.tools.cli.commands.compare import compare
from fastq.tools.cli.commands.completion import completion
from fastq.tools.cli.commands.conventions import conventions
from fastq.tools.cli.commands.convert import convert_command
from fastq.tools.cli.commands.demo import demo
from fastq.tools.cli.commands.dequantize import dequantize
from fastq.tools.cli.commands.gguf import gguf
from fastq.tools.cli.commands.info import info
from fastq.tools.cli.commands.inspect import inspect
from fastq.tools.cli.commands.pack import pack
from fastq.tools.cli.commands.quantize import quantize
from fastq.tools.cli.commands.suggest import suggest
from fastq.tools.cli.commands.warmup import warmup
from fastq.tools.cli.exit_codes import EXIT_CODES
from fastq.tools.cli.interrupts import INTERRUPTED, signal_again
from fastq.tools.cli.notes import exit_code_of_notes
from fastq.tools.tensors.netcdf_zarr import ONE_DIMENSION_TWICE


def main(unwinding: contextlib.AbstractContextManager[None]) -> None:
    """Run the command line. While `unwinding` is entered, a signal raises an exception."""
    for stream in (sys.stdout, sys.stderr):  # characters that the encoding lacks become question marks, not errors
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="replace")
    sys.unraisablehook = signal_again
    notices.before_compiling = functools.partial(notices.tell_user, also_in_pipes=True)
    try:
        with contextlib.ExitStack() as at_end:
            if sys.stdout is not None:
                at_end.callback(sys.stdout.flush)
            cli(obj=unwinding)
    except OSError as error:  # the commands report those of files
        if sys.stdout is not None:
            # writing the rest of the buffer at exit would fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"Error: standard output: {error.strerror or error}")


class Commands(click.Group):
    """A group of commands; Ctrl-C ends each with one line and the exit code that shells expect."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; exit with the code that its notes ask for, if any.

        ``ctx.obj`` is the context that `main` gives: a signal raises KeyboardInterrupt there, so that temporary files
        are removed.
        """
        try:
            with ctx.obj or contextlib.nullcontext(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", ONE_DIMENSION_TWICE)
                returned = super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            click.echo("".join([INTERRUPTED, *map(str, interrupt.args[:1])]), err=True)
            ctx.exit(interrupts.EXIT_CODE)
        if code := exit_code_of_notes():
            ctx.exit(code)
        return returned


EXIT_HELP = "\n\n".join(f"{code}: {meaning}." for code, meaning in EXIT_CODES.items()).replace("`", "")


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=f"Quantize arrays at the speed of the memory bus.\n\nExit codes:\n\n{EXIT_HELP}",
)
@click.version_option(package_name="fastq-kernels")
def cli() -> None:
    """Run a command."""


for command in (
    quantize,
    dequantize,
    binarize,
    convert_command,
    gguf,
    inspect,
    compare,
    suggest,
    bitround,
    pack,
    demo,
    warmup,
    check,
    bench,
    info,
    conventions,
    completion,
):
    cli.add_command(command)
