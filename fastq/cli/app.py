"""The command line."""

from __future__ import annotations

import _thread
import contextlib
import importlib
import importlib.util
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class
from rich.console import Console
from rich.progress import track

from fastq.cli import demo as demonstration
from fastq.cli import files, selfcheck
from fastq.cli.comparing import compare
from fastq.cli.convert import convert_command
from fastq.cli.gguf import gguf
from fastq.cli.inspecting import inspect, suggest
from fastq.cli.report import CONVERTED, print_conventions, print_facts, print_line, print_table, total_text
from fastq.config import versions
from fastq.formats.conventions import CONVENTIONS
from fastq.formats.qtypes import QTYPES, as_qtype
from fastq.io.containers import SOURCES, open_source
from fastq.io.dequantizing import dequantize_file
from fastq.io.pipeline import count_text, total_of
from fastq.io.quantizing import Selection, quantize_file
from fastq.io.scheme import Scheme
from fastq.io.tensors import tensors_of


def _signal_again(dropped: sys.UnraisableHookArgs) -> None:
    """Have a signal handled again whose exception Python dropped in a destructor; print other exceptions as usual."""
    code = getattr(dropped.exc_value, "code", 128 + signal.SIGINT)
    if issubclass(dropped.exc_type, KeyboardInterrupt | SystemExit) and isinstance(code, int) and code > 128:
        number = code - 128
        # by another thread, a moment later: here it would be dropped again
        threading.Timer(0.01, _thread.interrupt_main, [number]).start()
    else:
        sys.__unraisablehook__(dropped)


def _replace_what_streams_lack() -> None:
    """Let characters that an encoding lacks be written as question marks, where they would be an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="replace")


def main(unwinding: contextlib.AbstractContextManager[None]) -> None:
    """Run the command line; signals that end it raise an exception while `unwinding` is entered."""
    _replace_what_streams_lack()
    sys.unraisablehook = _signal_again
    try:
        with contextlib.ExitStack() as at_end:
            if sys.stdout is not None:
                at_end.callback(sys.stdout.flush)
            cli(obj=unwinding)
    except OSError as error:  # those of files are told by the commands
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to write would fail at exit
        sys.exit(f"Error: standard output: {error.strerror or error}")


class Commands(click.Group):
    """A group of commands which Ctrl-C ends with one line and the exit code that shells expect."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a signal that ends it unwinds it, so that no temporary file stays."""
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


# Arguments


class Format(click.Choice[str]):
    """The name of a code format; the error for another tells families, and the name that was probably meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        try:
            return as_qtype(value).name
        except TypeError as error:
            self.fail(str(error).removeprefix("dtype "), param, ctx)


def _axis(ctx: click.Context, param: click.Parameter, text: str | None) -> int | str | None:
    """Turn an axis into a number, or 'none'; None is an option that was not given."""
    try:
        return text if text in (None, "none") else int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither an integer nor 'none'") from None


def _scheme(
    dtype: str, axis: int | str | None, block_size: int, symmetric: bool, method: str, convention: str
) -> Scheme:
    qtype = as_qtype(dtype)
    try:
        CONVENTIONS[convention].check_format(qtype)
    except ValueError as error:
        raise click.UsageError(f"--convention {convention}: {error}") from error
    if (qtype.element or qtype.block_size) and not symmetric:
        raise click.UsageError(f"--asymmetric is for integer codes; those of {dtype} are symmetric")
    if qtype.block_size:
        if axis == "none" or block_size not in (0, qtype.block_size):
            raise click.UsageError(f"{dtype} has blocks of {qtype.block_size} along an --axis")
        block_size = qtype.block_size
    if block_size and axis == "none":
        raise click.UsageError("--block-size needs an --axis for the blocks to run along, not none")
    if axis is None:
        axis = -1 if block_size else 0
    return Scheme(dtype, axis if isinstance(axis, int) else None, block_size, symmetric, method, convention)


# conventions whose zero points are codes and whose scales are positive and of the compute type, as files hold them
STORABLE = [
    row.name
    for row in CONVENTIONS.values()
    if (row.zero_point, row.stored_type) == ("integer", "compute") and not row.signed_scale
]
FORMAT_HELP = "Code format: int1 to int8, uint1 to uint8, int16, uint16, float8_*, float6_*, float4_*, mx*, nvfp4."
AXIS_HELP = "Channel axis, or the axis that blocks run along, or none.  [default: 0; for blocks -1]"
TO_QUANTIZE = files.Source(
    *SOURCES,
    ways={
        files.FOLDER: "fastq convert {} OUT --scheme W8A16 quantizes a model directory",
        ".gguf": "fastq gguf {} OUT.gguf --type Q4_K_M quantizes it",
    },
)
TO_DEQUANTIZE = files.Source(
    ".safetensors",
    ways={
        files.FOLDER: "fastq convert {} OUT --dequantize turns a model directory back",
        ".gguf": "fastq gguf {} OUT.gguf --dequantize turns it back",
        ".npy": "fastq quantize writes .safetensors, and so does QuantizedArray.save",
        ".npz": "fastq quantize writes .safetensors, and so does QuantizedArray.save",
    },
)


# Commands


@cli.command(short_help="Quantize a generated matrix, checked.")
@click.option("--size", default=4096, show_default=True, type=click.IntRange(1), help="Rows and columns.")
def demo(size: int) -> None:
    """Quantize a generated weight matrix in several schemes, checking every code.

    Every code, scale and zero point is compared with the NumPy reference; the last column is the reference's time
    divided by ours. Exits with 1 if anything differs.
    """
    x = demonstration.weight_matrix(size)
    click.echo(f"{size} x {size} float32, {x.nbytes:,} bytes")
    outcomes = [demonstration.run(x, scheme) for scheme in demonstration.SCHEMES]
    print_table(outcomes, demonstration.COLUMNS)
    wrong = sum(outcome.mismatches for outcome in outcomes)
    if wrong:
        raise click.ClickException(f"{wrong:,} codes, scales or zero points differ from the reference")
    click.echo("Every code, scale and zero point equals the reference's.")


@cli.command(short_help="Quantize a .safetensors, .npy or .npz file.")
@click.argument("source", metavar="IN", type=TO_QUANTIZE)
@click.argument("out", metavar="OUT", type=files.WRITABLE, callback=files.with_suffix(".safetensors"))
@click.option("--include", multiple=True, metavar="PATTERN", help="Quantize only tensors of such names; repeatable.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave tensors of such names alone; repeatable.")
@click.option("--all", "vectors", is_flag=True, help="Quantize vectors and scalars of a .safetensors file too.")
@click.option("--dtype", type=Format(QTYPES), metavar="FORMAT", default="int8", show_default=True, help=FORMAT_HELP)
@click.option("--axis", callback=_axis, metavar="AXIS", help=AXIS_HELP)
@click.option("--block-size", type=click.IntRange(0), default=0, help="Elements that share a scale; 0 for no blocks.")
@click.option("--symmetric/--asymmetric", default=True, show_default=True, help="Zero in the middle of the codes.")
@files.range_option
@click.option(
    "--convention",
    type=click.Choice(STORABLE),
    metavar="NAME",
    default="onnx",
    show_default=True,
    help=f"Whose arithmetic to follow, for formats that it has: {', '.join(STORABLE)}. fastq conventions prints them.",
)
@click.option(
    "--nan",
    type=click.Choice(["raise", "zero"]),
    default="raise",
    show_default=True,
    help='"raise" stops at NaN, "zero" treats it as 0.',
)
@files.force_option
def quantize(
    source: Path,
    out: Path,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    vectors: bool,
    dtype: str,
    axis: int | str | None,
    block_size: int,
    symmetric: bool,
    method: str,
    convention: str,
    nan: str,
    force: bool,
) -> None:
    """Quantize the weights of a .safetensors or .npz file, or the array of a .npy file.

    OUT is a .safetensors file with codes, scales and zero points under the names that compressed-tensors uses. Floating
    tensors of two and more dimensions are quantized; everything else (biases, norm weights) is copied; the table shows
    the reason. With --all vectors and scalars get one scale each, unless --block-size or the format
    cuts vectors into blocks. PATTERN is a shell pattern such as '*.weight'; one that is for no tensor is refused. Model
    directories: fastq convert. GGUF files: fastq gguf. In Python fastq.load reads OUT.
    """
    scheme = _scheme(dtype, axis, block_size, symmetric, method, convention)
    files.check_out(source, out, force=force)
    selection = Selection(include or ("*",), exclude, vectors or source.suffix == ".npy")
    with files.failures(files.called(source), out):
        opened = open_source(source)
        if isinstance(axis, int) and not block_size and all(len(spec.shape) < 2 for spec in opened.tensors.values()):
            raise click.UsageError("--axis is for arrays of two axes or more: vectors and scalars get one scale each")
        with files.progress_bar(opened.tensors.values()) as advance:
            rows = quantize_file(opened, out, scheme, selection, nan=nan, progress=advance)
    print_table(rows, CONVERTED, total=total_of(rows))
    print_line(total_text(rows))
    for row in rows:
        if row.remark:
            files.note(f"{row.name}: {row.remark}")


@cli.command(short_help="Restore floats from a quantized file.")
@click.argument("source", metavar="IN", type=TO_DEQUANTIZE)
@click.argument("out", metavar="OUT", type=files.WRITABLE, callback=files.with_suffix(".npy", ".safetensors"))
@files.force_option
def dequantize(source: Path, out: Path, force: bool) -> None:
    """Turn a quantized file back into tensors of the original names, shapes and dtypes.

    IN is what `fastq quantize` or `QuantizedArray.save` wrote. OUT is a .safetensors file, or a .npy file if IN holds a
    single array. Model directories: fastq convert --dequantize. GGUF files: fastq gguf --dequantize.
    """
    files.check_out(source, out, force=force)
    with files.failures(files.called(source), out):
        opened = open_source(source)
        with files.progress_bar(tensors_of(source).values()) as advance:
            count = dequantize_file(opened, out, progress=advance)
    sizes = f"{source.stat().st_size:,} -> {out.stat().st_size:,} bytes"
    click.echo(f"{count_text(count, 'tensor')} dequantized: {sizes}")


@cli.command(short_help="Compare random cases with the reference.")
@click.option("--cases", type=click.IntRange(1), default=100, show_default=True, help="How many.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which series of cases.")
@click.option("--first", type=click.IntRange(0), default=0, help="Where in the series to start.")
@click.option("-v", "--verbose", is_flag=True, help="Print every case before it runs: one may end the process.")
def check(cases: int, seed: int, first: int, verbose: bool) -> None:
    """Compare the fast functions with the NumPy reference on random cases.

    Input dtypes, values, memory layouts, shapes and schemes are random; results have to agree in every bit. Prints
    each case that does not, with the command that repeats it, and then exits with 1. The first run compiles many
    kernels, about a second each.
    """
    start, wrong = time.perf_counter(), 0
    for index in _tracked(range(first, first + cases)):
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
    with run.make_context(
        "fastq bench", list(arguments), help_option_names=["-h", "--help"]
    ) as ctx:  # `main` would end it with "Aborted!"
        run.invoke(ctx)


@cli.command(short_help="Print versions, CPU and threads.")
def info() -> None:
    """Print versions, CPU, threads and cache folder."""
    print_facts(versions())


@cli.command(short_help="Print formulas of the conventions.")
def conventions() -> None:
    """Print whose arithmetic `fastq.quantize` can follow: formulas of codes, scale and zero point.

    F is the compute type, lo and hi the ends of the range, qmin and qmax those of the codes, n = qmax - qmin. Where
    schemes or granularities differ, the first formula is that of one asymmetric scale for an array.
    """
    print_conventions()


@cli.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script: for bash, eval "$(fastq completion bash)" in ~/.bashrc."""
    complete = get_completion_class(shell)
    assert complete is not None  # of these three there are
    click.echo(complete(cli, {}, "fastq", "_FASTQ_COMPLETE").source())


for command in (convert_command, gguf, inspect, compare, suggest):
    cli.add_command(command)


def benchmark_package() -> str:
    """Return the name of the package of `fastq bench`: part of what is installed, a folder of the repository."""
    return "fastq._bench" if importlib.util.find_spec("fastq._bench") else "bench"


# Bars go to standard error, and only if that is a terminal.


def _tracked(indices: range) -> Iterable[int]:
    console = Console(stderr=True)
    return track(indices, "cases", console=console, disable=not console.is_terminal)
