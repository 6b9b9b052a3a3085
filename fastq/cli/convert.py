"""The command for model directories: quantize one as compressed-tensors stores it, or turn it back into floats."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click

from fastq.cli.convert_report import REPORTS, write_report
from fastq.cli.files import (
    FOLDER,
    Source,
    check_replaceable,
    failures,
    in_one_line,
    is_given,
    note,
    pairs_of,
    progress_bar,
    range_option,
    with_suffix,
)
from fastq.cli.report import CONVERTED, print_line, print_table, total_text
from fastq.formats.compressed_tensors import PRESETS, LayerScheme, as_scheme
from fastq.io.checkpoints.converting import JOURNAL, Conversion, UnfitOut, convert
from fastq.io.checkpoints.dequantizing import Dequantization
from fastq.io.checkpoints.folder import CONFIG, DTYPES, INDEX, ModelFolder
from fastq.io.checkpoints.loading import loading
from fastq.io.checkpoints.names import check_pattern
from fastq.io.checkpoints.quantizing import Quantization
from fastq.io.checkpoints.rules import Rules
from fastq.io.pipeline import total_of

AGAIN = "; what is finished stays, and the same command goes on from there"
SCHEME_MISSING = f"--scheme is missing: one of {', '.join(PRESETS)}"
OF_SCHEMES = "schemes", "ignore", "include", "unequal", "group_size", "symmetric", "method", "convention"
SRC = Source(FOLDER, ways={".safetensors": "give the folder that has it and config.json"})


def _patterns(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Pass patterns whose regular expressions are any."""
    for text in texts:
        try:
            check_pattern(text)
        except re.error as error:
            raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from error
    return texts


def _scheme(name: str) -> LayerScheme:
    try:
        return as_scheme(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _schemes(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, LayerScheme], ...]:
    pairs = pairs_of(texts, "PATTERN=SCHEME")
    return tuple((_patterns(ctx, param, (pattern,))[0], _scheme(name)) for pattern, name in pairs)


def _check_report(report: Path, source: Path, out: Path) -> None:
    """Refuse a file for the report that would take the place of one of SRC or OUT, or can't be written."""
    check_replaceable(report, "--report", {})
    folder, whole = report.parent.resolve(), out.resolve()
    twin = source / folder.relative_to(whole) if folder.is_relative_to(whole) else None  # what is copied to there
    taken = {CONFIG, INDEX, JOURNAL, *(path.name for path in twin.iterdir())} if twin and twin.is_dir() else set()
    if folder.is_relative_to(source.resolve()):
        reason = "lies in SRC, in which nothing is written"
    elif folder / report.name == whole:
        reason = "is OUT itself"
    elif report.name.casefold() in {name.casefold() for name in taken}:
        reason = "is a file of the model in OUT"
    else:
        return
    raise click.BadParameter(f"{report.name!r} {reason}; name another one", param_hint="'--report'")


@click.command("convert", short_help="Quantize a model directory.")
@click.argument("source", metavar="SRC", type=SRC)
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--scheme",
    metavar="SCHEME",
    callback=lambda ctx, param, name: None if name is None else _scheme(name),
    help=f"One of {', '.join(PRESETS)}.",
)
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
@click.option(
    "--include",
    multiple=True,
    metavar="PATTERN",
    callback=_patterns,
    help="Quantize such modules that stay by their names, as lm_head; repeatable.",
)
@click.option(
    "--allow-unequal",
    "unequal",
    is_flag=True,
    help="Let matrices that vLLM and SGLang read as one have unequal schemes, for transformers alone.",
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
@click.option(
    "--report", type=click.Path(path_type=Path), callback=with_suffix(*REPORTS), help="Write the table to a file too."
)
@click.option("--force", is_flag=True, help="Replace files in OUT, and remove its other .safetensors files.")
def convert_command(
    source: Path,
    out: Path,
    scheme: LayerScheme | None,
    schemes: tuple[tuple[str, LayerScheme], ...],
    ignore: tuple[str, ...],
    include: tuple[str, ...],
    unequal: bool,
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
    repeated. --dequantize is the way back, also of what llm-compressor, AWQ, GPTQ and makers of float8 models wrote.

    The FILE of --report, .json, .csv or .html, has a line for each tensor; the last one has pictures of the worst, too.
    """
    if not os.path.isdir(out.parent):
        raise click.BadParameter(f"there is no folder {str(out.parent)!r}", param_hint="'OUT'")
    if dequantize == (scheme is not None):
        raise click.UsageError(SCHEME_MISSING if scheme is None else "--dequantize goes without --scheme")
    if dequantize and any(map(is_given, OF_SCHEMES)):
        raise click.UsageError("--dequantize goes with --dtype, --report and --force only")
    if dtype and not dequantize:
        raise click.UsageError("--dtype goes with --dequantize")
    chosen = _with_options([scheme, *(each for _, each in schemes)], group_size, symmetric) if scheme else []
    with failures(source, out):
        if report is not None:
            _check_report(report, source, out)
        opened = ModelFolder(source)
        for line in opened.notes:
            note(f"{source}: {line}")
        conversion: Conversion
        if scheme is None:
            conversion = Dequantization(opened, DTYPES[dtype] if dtype else None)
        else:
            first, *others = chosen
            named = zip((pattern for pattern, _ in schemes), others, strict=True)
            rules = Rules(first, ignore, tuple(named), include, unequal)
            conversion = Quantization(opened, rules, bit_exact=convention == "compressed-tensors", method=method)
            for line in [*conversion.source.notes[len(opened.notes) :], *conversion.plan.notes]:
                note(f"{source}: {line}")
        with _resumable(out), progress_bar(conversion.source.tensors.values()) as advance:
            try:
                rows = convert(conversion, out, force=force, progress=advance, notice=note)
            except UnfitOut as error:
                raise click.BadParameter(str(error), param_hint="'OUT'") from error
    print_table(rows, CONVERTED, total=total_of(rows))
    print_line(total_text(rows))
    if report is not None:
        with failures(source, report):
            write_report(report, rows, conversion)
    if isinstance(conversion, Quantization):
        for line in loading(out, conversion.source, conversion.plan.matrices):
            note(line)


def _with_options(schemes: list[LayerScheme], group_size: int | None, symmetric: bool | None) -> list[LayerScheme]:
    """Return schemes with options for integers in groups, in those that have such; one must have."""
    fit = [scheme for scheme in schemes if scheme.in_groups] or schemes
    try:
        return [scheme.with_options(group_size, symmetric) if scheme in fit else scheme for scheme in schemes]
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Add to an interrupt, or to an error of the file system, how to go on, if there is something to go on with."""
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        if not os.path.isfile(out / JOURNAL):
            raise
        if isinstance(error, OSError):
            raise in_one_line(error.filename or out, f"{error.strerror or error}{AGAIN}") from error
        raise KeyboardInterrupt(AGAIN) from None
