"""Commands that look at tensors and change nothing: inspect and suggest."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from fastq.cli.files import (
    FOLDER,
    IN_PART,
    TOO_FAR,
    Source,
    called,
    decibels,
    failures,
    in_one_line,
    note,
    progress_bar,
)
from fastq.cli.gguf import inspect_gguf
from fastq.cli.quantizing import TO_QUANTIZE
from fastq.cli.report import (
    Column,
    count_or_dash,
    number_text,
    print_line,
    print_table,
    printable,
    shape_text,
    total_text,
)
from fastq.cli.tables import json_text
from fastq.io.containers import SOURCES
from fastq.io.pipeline import Converted, count_text, listed, some_of
from fastq.io.pipeline import failures as naming
from fastq.io.records import FLOATS
from fastq.io.scheme import Scheme
from fastq.io.tensors import SUFFIXES, Extent, Tensor, extent_of, tensors_of
from fastq.plot.candidates import FAMILIES, SAMPLE, Measured, Trial

OUTLIERS_SHOWN = 4
MARGIN = 0.25  # decibels that a sample has to reach beyond what is asked of the tensor: samples of rows differ by less


# inspect


@dataclass(frozen=True)
class Inspected:
    """A line of `fastq inspect`."""

    tensor: Tensor
    extent: Extent | None


INSPECTED: tuple[Column[Any], ...] = (
    ("tensor", lambda line: printable(line.tensor.name)),
    ("shape", lambda line: shape_text(line.tensor.shape)),
    ("scheme", lambda line: line.tensor.scheme),
    ("bytes", lambda line: f"{line.tensor.nbytes:,}"),
    ("min", lambda line: number_text(line.extent and line.extent.lo, ".4g")),
    ("max", lambda line: number_text(line.extent and line.extent.hi, ".4g")),
    ("NaN", lambda line: count_or_dash(line.extent and line.extent.nan)),
    ("infinite", lambda line: count_or_dash(line.extent and line.extent.infinite)),
    ("outlier channels", lambda line: _outliers_text(line.extent)),
)


@click.command(short_help="Show the tensors of files.")
@click.argument("source", metavar="FILE|DIR", type=Source(FOLDER, *SUFFIXES))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, of GGUF files with all of the metadata.")
@click.option("--header", is_flag=True, help="Read names, shapes and bytes only, no numbers.")
def inspect(source: Path, as_json: bool, header: bool) -> None:
    """Show the tensors of a .npy, .npz, .safetensors or .gguf file, of a model directory, or of a folder of such files.

    What is stored for a quantized matrix is one tensor. Shapes, dtypes or schemes, bytes, ranges, NaN and infinite
    numbers; and outlier channels: indices on the first axis whose largest magnitude is six times the median of all, or
    more. Of GGUF files types, bits a weight and metadata.

    Exit codes: 0; 1 for a file that can't be read; 2 for wrong arguments; 4 for a model whose config.json makes no
    sense, which is shown as it is stored.
    """
    if source.suffix == ".gguf":
        inspect_gguf(source, as_json=as_json)
        return
    with failures(called(source), source):
        tensors = _tensors_of(source)
        with progress_bar(tensors.values()) as advance:
            lines = [_inspected(tensor, header, advance) for tensor in tensors.values()]
    if as_json:
        click.echo(json_text([_as_json(line) for line in lines]), nl=False)
        return
    print_table(lines, INSPECTED[:4] if header else INSPECTED)
    quantized = sum(tensor.is_quantized for tensor in tensors.values())
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    print_line(f"{count_text(len(lines), 'tensor')}, {nbytes:,} bytes, {quantized:,} quantized")


def _tensors_of(source: Path) -> dict[str, Tensor]:
    """Return the tensors of a file or a folder; where config.json makes no sense, as they are stored."""
    try:
        return tensors_of(source, say=note)
    except ValueError as error:
        try:
            tensors = tensors_of(source, as_stored=True)
        except ValueError:
            raise error from None
        note(f"{called(source)}: {error}; its tensors are shown as they are stored", IN_PART)
        return tensors


def _inspected(tensor: Tensor, header: bool, advance: Any) -> Inspected:
    line = Inspected(tensor, None if header or not tensor.has_numbers else extent_of(tensor.values()))
    advance(tensor.nbytes, 1)
    return line


def _as_json(line: Inspected) -> dict[str, Any]:
    tensor = line.tensor
    entry = {"name": tensor.name, "shape": tensor.shape, "scheme": tensor.scheme, "bytes": tensor.nbytes}
    return entry | ({} if line.extent is None else asdict(line.extent))


def _outliers_text(extent: Extent | None) -> str:
    if extent is None or not extent.outliers:
        return "-"
    more = ", ..." if len(extent.outliers) > OUTLIERS_SHOWN else ""
    return f"{len(extent.outliers)}: {', '.join(map(str, extent.outliers[:OUTLIERS_SHOWN]))}{more}"


# suggest


@dataclass(frozen=True)
class Suggested:
    """A line of `fastq suggest`: the scheme of the fewest bits that reaches the SQNR, or the best there is."""

    tensor: Tensor
    scheme: Scheme
    measured: Measured

    @property
    def after(self) -> int:
        """Bytes that codes and parameters take."""
        return math.ceil(self.measured.bits * math.prod(self.tensor.shape) / 8)

    @property
    def row(self) -> Converted:
        """The line as those of a conversion, for its sums."""
        return Converted(self.tensor.name, self.tensor.shape, self.tensor.nbytes, self.after, "", str(self.scheme))

    def entry(self) -> dict[str, Any]:
        """Return it for JSON, with the arguments that `fastq.quantize` takes."""
        figures = {"bytes_before": self.tensor.nbytes, "bytes": self.after, **self.measured._asdict()}
        return {"name": self.tensor.name, "shape": self.tensor.shape, "scheme": self.scheme.arguments(), **figures}


SUGGESTED: tuple[Column[Any], ...] = (
    ("tensor", lambda line: printable(line.tensor.name)),
    ("shape", lambda line: shape_text(line.tensor.shape)),
    ("bytes before", lambda line: f"{line.tensor.nbytes:,}"),
    ("scheme", lambda line: str(line.scheme)),
    ("bits", lambda line: number_text(line.measured.bits, ".3f")),
    ("bytes", lambda line: f"{line.after:,}"),
    ("SQNR dB", lambda line: number_text(line.measured.sqnr_db, ".2f")),
)


@click.command(short_help="Find the scheme with the fewest bits.")
@click.argument("source", metavar="FILE|DIR", type=Source(FOLDER, *SUFFIXES))
@click.option(
    "--sqnr",
    type=float,
    default=30.0,
    show_default=True,
    metavar="DB",
    callback=decibels,
    help="What each tensor shall reach.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, which quantize --like takes.")
def suggest(source: Path, sqnr: float, as_json: bool) -> None:
    """Find for each tensor the scheme that reaches a signal to quantization noise ratio with the fewest bits.

    Integers of 2 to 8 bits with one scale, a scale for each row and in blocks of 32, float8, the MX formats and NVFP4
    are tried on 65,536 elements at most of each floating tensor of two axes or more; a part of a tensor has to reach
    0.25 dB more than asked, for the whole to reach it. A tensor that none does gets the best one. fastq quantize takes
    the schemes. What is left out is said on standard error.

    Exit codes: 0; 1 for a file that can't be read; 2 for wrong arguments; 3 if a tensor reaches it with no scheme.
    """
    with failures(called(source), source):
        found = tensors_of(source, say=note).values()
        tensors, left = [tensor for tensor in found if not _reason(tensor)], Counter(map(_reason, found))
        del left[""]
        told = f"left out: {', '.join(f'{count:,} ({reason})' for reason, count in left.items())}"
        if not tensors:
            raise in_one_line(called(source), f"no tensor of two axes or more of {', '.join(FLOATS)}; {told}")
        with progress_bar(tensors) as advance:
            lines = [_suggested(tensor, sqnr, advance) for tensor in tensors]
    if as_json:
        click.echo(json_text({"tensors": [line.entry() for line in lines]}), nl=False)
    else:
        print_table(lines, SUGGESTED)
        print_line(total_text([line.row for line in lines]))
    if left:
        note(told)
    kind = FOLDER if source.is_dir() else source.suffix
    if kind in TO_QUANTIZE.ways:
        way = TO_QUANTIZE.ways[kind].format(source)
        note(f"these schemes are for fastq quantize of {listed(SOURCES)} files; {way}")
    short = [f"{line.tensor.name} ({line.measured.sqnr_db:.2f})" for line in lines if not line.measured.sqnr_db >= sqnr]
    if short:
        note(f"no scheme reaches {sqnr:g} dB: {some_of(short)}", TOO_FAR)


def _reason(tensor: Tensor) -> str:
    """Return why a tensor is left out; empty if it is not."""
    if tensor.is_quantized:
        return "quantized already"
    if tensor.scheme not in FLOATS:
        return tensor.scheme
    if len(tensor.shape) < 2:
        return "vectors" if tensor.shape else "scalars"
    return "" if math.prod(tensor.shape) else "no elements"


def _suggested(tensor: Tensor, sqnr: float, advance: Any) -> Suggested:
    trial, tried = Trial(tensor.values()), []
    for shared, dtypes in FAMILIES.values():
        for dtype in dtypes:
            options = {"symmetric": dtype.startswith("int"), **shared, "dtype": dtype}
            with naming(lambda error: f"tensor {tensor.name!r}: {error}"):
                figures = trial.measured(options)
            tried.append((figures, Scheme(**options)))
    advance(tensor.nbytes, 1)
    wanted = sqnr + (MARGIN if math.prod(tensor.shape) > SAMPLE else 0)
    enough = [each for each in tried if each[0].sqnr_db >= wanted]
    figures, scheme = min(enough, key=_bits) if enough else max(tried, key=lambda each: each[0].sqnr_db)
    return Suggested(tensor, scheme, figures)


def _bits(tried: tuple[Measured, Scheme]) -> float:
    return tried[0].bits
