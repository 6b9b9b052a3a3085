"""The command for model directories: quantize one as compressed-tensors stores it, or turn it back into floats."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import click

from fastq.cli.convert_report import REPORTS, write_report
from fastq.cli.files import in_one_line, progress_bar, range_option
from fastq.cli.report import Column, number_text, print_table, printable
from fastq.io.checkpoints.converting import Conversion, Converted, convert
from fastq.io.checkpoints.dequantizing import Dequantization
from fastq.io.checkpoints.folder import DTYPES, ModelFolder
from fastq.io.checkpoints.quantizing import Quantization
from fastq.io.checkpoints.rules import Rules, check_pattern
from fastq.io.checkpoints.schemes import PRESETS, Scheme, as_scheme

CONVERTED: tuple[Column[Converted], ...] = (
    ("tensor", lambda row: printable(row.name)),
    ("shape", lambda row: row.shape),
    ("bytes before", lambda row: f"{row.before:,}"),
    ("scheme", lambda row: row.scheme),
    ("bytes", lambda row: f"{row.after:,}"),
    ("SQNR dB", lambda row: number_text(row.sqnr_db, ".2f")),
    ("largest error", lambda row: number_text(row.max_abs_error, ".3g")),
)
AGAIN = "; what is finished stays, and the same command goes on from there"
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def _patterns(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Pass patterns whose regular expressions are any."""
    for text in texts:
        try:
            check_pattern(text)
        except re.error as error:
            raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from error
    return texts


def _preset(ctx: click.Context, param: click.Parameter, name: str | None) -> Scheme | None:
    return None if name is None else _scheme(name)


def _scheme(name: str) -> Scheme:
    try:
        return as_scheme(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _schemes(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, Scheme], ...]:
    """Split each PATTERN=SCHEME at its last =, since patterns may have one."""
    found = []
    for text in texts:
        pattern, equals, name = text.rpartition("=")
        if not (pattern and equals):
            raise click.BadParameter(f"{text!r} is not PATTERN=SCHEME")
        found.append((_patterns(ctx, param, (pattern,))[0], _scheme(name)))
    return tuple(found)


def _report_path(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix not in REPORTS:
        raise click.BadParameter(f"{path.name!r} does not end in {' or '.join(REPORTS)}")
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"{str(path.parent)!r} is no directory")
    return path


@click.command("convert", short_help="Quantize a model directory.")
@click.argument("source", metavar="SRC", type=FOLDER)
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--scheme", metavar="SCHEME", callback=_preset, help=f"One of {', '.join(PRESETS)}.")
@click.option(
    "--scheme-for",
    "schemes",
    multiple=True,
    metavar="PATTERN=SCHEME",
    callback=_schemes,
    help="Another scheme for modules of that name, or after re: of names that begin so; repeatable, the first counts.",
)
@click.option(
    "--ignore", multiple=True, metavar="PATTERN", callback=_patterns, help="Leave such modules alone; repeatable."
)
@click.option("--group-size", type=click.IntRange(1), help="Columns that share a scale, for integers in groups.")
@click.option("--symmetric/--asymmetric", default=None, help="Without or with zero points, for integers in groups.")
@range_option
@click.option(
    "--convention",
    type=click.Choice(["rounded-scale", "compressed-tensors"]),
    default="rounded-scale",
    show_default=True,
    help="Codes by the scale as it is stored, computed in float32; or the bytes of compressed-tensors.",
)
@click.option("--dequantize", is_flag=True, help="Turn a quantized directory back into floats.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="Of --dequantize; by default that of config.json.")
@click.option("--report", type=click.Path(path_type=Path), callback=_report_path, help="Write the table to a file too.")
@click.option("--force", is_flag=True, help="Replace files in OUT, and remove its other .safetensors files.")
def convert_command(
    source: Path,
    out: Path,
    scheme: Scheme | None,
    schemes: tuple[tuple[str, Scheme], ...],
    ignore: tuple[str, ...],
    group_size: int | None,
    symmetric: bool | None,
    method: str,
    convention: str,
    dequantize: bool,
    dtype: str | None,
    report: Path | None,
    force: bool,
) -> None:
    """Quantize a model directory as compressed-tensors stores it: transformers and vLLM load it.

    SRC has config.json and .safetensors files. Weights of Linear layers are quantized; embeddings, norms, biases,
    routers and the output head are copied, as are all other files. An interrupted run goes on where it was when it is
    repeated. --dequantize is the way back, also of directories that llm-compressor made.

    The FILE of --report, .json, .csv or .html, has a line for each tensor; the last one has pictures of the worst, too.
    """
    if dequantize == (scheme is not None):
        raise click.UsageError("--scheme is missing" if scheme is None else "--dequantize goes without --scheme")
    given = [schemes, ignore, group_size, symmetric, *(() if method == "minmax" else (method,))]
    if dequantize and any(value not in (None, ()) for value in given):
        raise click.UsageError("--dequantize goes with --dtype, --report and --force only")
    if dtype and not dequantize:
        raise click.UsageError("--dtype goes with --dequantize")
    with _failures(source, out):
        opened = ModelFolder(source)
        conversion: Conversion
        if scheme is None:
            conversion = Dequantization(opened, DTYPES[dtype] if dtype else None)
        else:
            rules = Rules(scheme.with_options(group_size, symmetric), ignore, schemes)
            conversion = Quantization(opened, rules, upstream=convention == "compressed-tensors", method=method)
        with progress_bar(opened.nbytes, len(opened.tensors)) as advance:
            rows = convert(conversion, out, force=force, progress=advance, notice=_notice)
    print_table(rows, CONVERTED, total=total_of(rows))
    if report is not None:
        with _failures(source, report):
            write_report(report, rows, conversion)


def _notice(text: str) -> None:
    click.echo(printable(text), err=True)


@contextlib.contextmanager
def _failures(source: Path, out: Path) -> Iterator[None]:
    """Turn an error of the data or of the file system into one line that says how to go on."""
    try:
        yield
    except ValueError as error:
        raise in_one_line(source, error) from error
    except MemoryError as error:
        raise in_one_line(source, f"out of memory: {error}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(AGAIN) from None
    except OSError as error:
        raise in_one_line(error.filename or out, f"{error.strerror or error}{AGAIN}") from error


def total_of(rows: list[Converted]) -> Converted:
    """Return the line of sums, and of the largest error."""
    errors = [row.max_abs_error for row in rows if row.max_abs_error is not None]
    before, after, noise, signal = (
        sum(getattr(row, name) for row in rows) for name in ("before", "after", "noise", "signal")
    )
    name = f"{len(rows)} tensors"
    return Converted(name, "", "total", before, after, noise, signal, max(errors, default=None))
