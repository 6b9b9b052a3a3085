"""The command line."""

from __future__ import annotations

import _thread
import contextlib
import functools
import importlib
import importlib.util
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import get_completion_class

from fastq.config import versions
from fastq.engine.code import notices
from fastq.formats.conventions import CONVENTIONS
from fastq.ops.warmup import make_ready
from fastq.ops.works import WORKS
from fastq.tools.cli import files, selfcheck
from fastq.tools.cli.convert import convert_command
from fastq.tools.cli.inspecting import compare, inspect, suggest
from fastq.tools.cli.quantizing import binarize, dequantize, gguf, quantize
from fastq.tools.cli.report import print_conventions, print_facts
from fastq.tools.cli.science import bitround, pack
from fastq.tools.cli.tables import cell_text, title_of


def _signal_again(dropped: sys.UnraisableHookArgs) -> None:
    """Raise a signal again if Python dropped its exception in a destructor; print other exceptions as usual."""
    code = getattr(dropped.exc_value, "code", 128 + signal.SIGINT)
    if issubclass(dropped.exc_type, KeyboardInterrupt | SystemExit) and isinstance(code, int) and code > 128:
        number = code - 128
        # from another thread, a moment later: here the exception would be dropped again
        threading.Timer(0.01, _thread.interrupt_main, [number]).start()
    else:
        sys.__unraisablehook__(dropped)


def main(unwinding: contextlib.AbstractContextManager[None]) -> None:
    """Run the command line; inside `unwinding`, a signal that ends it raises an exception."""
    for stream in (sys.stdout, sys.stderr):  # characters that the encoding lacks become question marks, not errors
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="replace")
    sys.unraisablehook = _signal_again
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
        """Run a command; a signal that ends it unwinds the stack, so that no temporary file stays."""
        try:
            with ctx.obj or contextlib.nullcontext():
                returned = super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            click.echo("".join(["Interrupted", *map(str, interrupt.args[:1])]), err=True)
            ctx.exit(128 + signal.SIGINT)
        if code := files.exit_code():
            ctx.exit(code)
        return returned


EXIT_HELP = "\n\n".join(f"{code}: {meaning}." for code, meaning in files.EXIT_CODES.items()).replace("`", "")


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=f"Quantize arrays at the speed of the memory bus.\n\nExit codes:\n\n{EXIT_HELP}",
)
@click.version_option(package_name="fastq-kernels")
def cli() -> None:
    """Run a command."""


# Commands


@cli.command(short_help="Quantize a generated matrix and check the codes.")
@click.option("--size", default=4096, show_default=True, type=click.IntRange(1), help="Number of rows and of columns.")
def demo(size: int) -> None:
    """Quantize a generated weight matrix in several schemes, checking every code.

    Every code, scale and zero point is compared with the NumPy reference; the last column is the reference's time
    divided by ours. Exits with 1 if anything differs.
    """
    click.echo(f"{size} x {size} float32, {4 * size**2:,} bytes")
    x = selfcheck.weight_matrix(size)
    wrong = 0
    click.echo(_in_columns(map(title_of, selfcheck.COLUMNS)))
    for scheme in files.counted(selfcheck.SCHEMES, "schemes"):
        outcome = selfcheck.outcome_of(x, scheme)
        click.echo(_in_columns(cell_text(column, outcome[column]) for column in selfcheck.COLUMNS))
        wrong += outcome["mismatches"]
    if wrong:
        raise click.ClickException(f"{wrong:,} codes, scales or zero points differ from the reference")
    click.echo("Every code, scale and zero point equals the reference's.")


def _in_columns(texts: Iterable[str]) -> str:
    """Return a line of texts in the columns of a table whose lines come one by one."""
    widths = selfcheck.COLUMNS.values()
    return "".join(f"{text:{width}}" for text, width in zip(texts, widths, strict=True))


@cli.command(short_help="Prepare kernels ahead of time.")
@click.argument("works", nargs=-1, type=click.Choice(tuple(WORKS)))
@click.option("--all", "everything", is_flag=True, help="Prepare all works.")
@click.option("--native", is_flag=True, help="Compile for exactly this CPU; this user's processes then use that code.")
def warmup(works: tuple[str, ...], everything: bool, native: bool) -> None:
    """Prepare the machine code of works: take it from the package or from disk, or compile it and keep it on disk.

    Use this in container images and on clusters. Without arguments, the code of int8 and uint8 is prepared.
    """
    start = time.perf_counter()
    make_ready(tuple(WORKS) if everything else works, native, functools.partial(files.counted, noun="calls"))
    click.echo(f"{versions()['cache']}, {time.perf_counter() - start:.1f} s")


@cli.command(short_help="Compare random cases with the reference.")
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
    start = time.perf_counter()
    wrong = 0
    for index in files.counted(range(first, first + cases), "cases"):
        case = selfcheck.random_case(seed, index)
        if verbose:
            click.echo(f"{index}: {case}")
        names = selfcheck.mismatches(case)
        wrong += bool(names)
        if names:
            click.echo(f"{', '.join(names)}: {case}\n    {case.command}")
    click.echo(f"{cases} cases of seed {seed}, {wrong} with differences, {time.perf_counter() - start:.1f} s")
    sys.exit(wrong > 0)


@cli.command(
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


@cli.command(short_help="Print versions, CPU and threads.")
def info() -> None:
    """Print versions, CPU, threads and cache folder."""
    print_facts(versions())


@cli.command(short_help="Print the formulas of the conventions.")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(tuple(CONVENTIONS)))
def conventions(names: tuple[str, ...]) -> None:
    """Print the formulas of codes, scale and zero point of the named conventions of `fastq.quantize`, or of all.

    F is the compute type, lo and hi are the ends of the range, qmin and qmax the first and the last code, and n = qmax
    - qmin. If schemes or granularities differ, the first formula is for one asymmetric scale per array.
    """
    print_conventions(names or CONVENTIONS)


@cli.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script: for bash, eval "$(fastq completion bash)" in ~/.bashrc."""
    complete = get_completion_class(shell)
    assert complete is not None  # completion exists for these three
    click.echo(complete(cli, {}, "fastq", "_FASTQ_COMPLETE").source())


for command in (quantize, dequantize, binarize, convert_command, gguf, inspect, compare, suggest, bitround, pack):
    cli.add_command(command)


def benchmark_package() -> str:
    """Return the name of the package of `fastq bench`: installed with fastq, or a folder of the repository."""
    return "fastq._bench" if importlib.util.find_spec("fastq._bench") else "bench"
