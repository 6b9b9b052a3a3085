"""Commands that look at tensors and change nothing: inspect, compare, suggest."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.cli.files import called, check_replaceable, decibels, failures, in_one_line, progress_bar, with_suffix
from fastq.cli.gguf import inspect_gguf
from fastq.cli.page import page
from fastq.cli.pictures import Errors, pictures_of_worst
from fastq.cli.report import Column, number_text, print_table, printable, shape_text
from fastq.cli.tables import Entry, csv_text, json_text
from fastq.io.records import FLOATS
from fastq.io.scheme import Scheme
from fastq.io.tensors import PIECE, Extent, Tensor, extent_of, tensors_of
from fastq.plot.candidates import FAMILIES, Measured, Trial
from fastq.results import Comparison, QuantizedArray
from fastq.system.atomic import replacing

READABLE = click.Path(exists=True, path_type=Path)
PAGE = click.Path(path_type=Path, dir_okay=False)
TOO_FAR = 3  # exit code of `compare` and `suggest` where a tensor does not reach what was asked for
OUTLIERS_SHOWN = 4


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
    ("NaN", lambda line: _count_text(line.extent and line.extent.nan)),
    ("infinite", lambda line: _count_text(line.extent and line.extent.infinite)),
    ("outlier channels", lambda line: _outliers_text(line.extent)),
)


@click.command(short_help="Show the tensors of files.")
@click.argument("source", metavar="FILE|DIR", type=READABLE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, of GGUF files with all of the metadata.")
@click.option("--header", is_flag=True, help="Read names, shapes and bytes only, no numbers.")
def inspect(source: Path, as_json: bool, header: bool) -> None:
    """Show the tensors of a .npy, .safetensors or .gguf file, or of a folder of the first two.

    Shapes, dtypes or schemes, bytes, ranges, NaN and infinite numbers; and outlier channels: indices on the first axis
    whose largest magnitude is six times the median of all, or more. Of GGUF files types, bits a weight and metadata.

    Exit codes: 0, 1 for a file that can't be read, 2 for wrong arguments.
    """
    if source.suffix == ".gguf":
        inspect_gguf(source, as_json=as_json)
        return
    _check_suffix(source)
    with failures(called(source), source):
        tensors = tensors_of(source)
        with progress_bar(tensors.values()) as advance:
            lines = [_inspected(tensor, header, advance) for tensor in tensors.values()]
    if as_json:
        click.echo(json_text([_as_json(line) for line in lines]), nl=False)
        return
    print_table(lines, INSPECTED[:4] if header else INSPECTED)
    click.echo(f"{len(lines)} tensors, {sum(tensor.nbytes for tensor in tensors.values()):,} bytes")


def _check_suffix(source: Path) -> None:
    if not source.is_dir() and source.suffix not in (".npy", ".safetensors", ".gguf"):
        raise click.BadParameter(f"{source.name!r} is neither a folder nor a .npy, .safetensors or .gguf file")


def _inspected(tensor: Tensor, header: bool, advance: Any) -> Inspected:
    line = Inspected(tensor, None if header or not tensor.has_numbers else extent_of(tensor.values()))
    advance(tensor.nbytes, 1)
    return line


def _as_json(line: Inspected) -> dict[str, Any]:
    tensor = line.tensor
    entry = {"name": tensor.name, "shape": tensor.shape, "scheme": tensor.scheme, "bytes": tensor.nbytes}
    return entry | ({} if line.extent is None else asdict(line.extent))


def _count_text(count: int | None) -> str:
    return f"{count:,}" if count else "-"


def _outliers_text(extent: Extent | None) -> str:
    if extent is None or not extent.outliers:
        return "-"
    more = ", ..." if len(extent.outliers) > OUTLIERS_SHOWN else ""
    return f"{len(extent.outliers)}: {', '.join(map(str, extent.outliers[:OUTLIERS_SHOWN]))}{more}"


# compare


@dataclass(frozen=True)
class Compared:
    """A line of `fastq compare`."""

    name: str
    shape: tuple[int, ...]
    a: str
    b: str
    before: int
    after: int
    errors: Comparison


COMPARED: tuple[Column[Any], ...] = (
    ("tensor", lambda line: printable(line.name)),
    ("shape", lambda line: shape_text(line.shape)),
    ("A", lambda line: line.a),
    ("B", lambda line: line.b),
    ("SQNR dB", lambda line: number_text(line.errors.sqnr_db, ".2f")),
    ("largest error", lambda line: number_text(line.errors.max_abs_error, ".3g")),
    ("mean error", lambda line: number_text(line.errors.mean_abs_error, ".3g")),
    ("clipped", lambda line: _count_text(line.errors.clipped)),
    ("bytes A", lambda line: f"{line.before:,}"),
    ("bytes B", lambda line: f"{line.after:,}"),
)


@click.command(short_help="Measure errors of one file against another.")
@click.argument("a", metavar="A", type=READABLE)
@click.argument("b", metavar="B", type=READABLE)
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--html", type=PAGE, metavar="PAGE", callback=with_suffix(".html"), help="Write a sortable HTML report.")
@click.option(
    "--at-least", type=float, metavar="DB", callback=decibels, help="Exit with 3 if a tensor has a lower SQNR."
)
def compare(a: Path, b: Path, form: str | None, html: Path | None, at_least: float | None) -> None:
    """Measure how far the tensors of B are from those of A of the same names.

    A and B are .npy, .safetensors or .gguf files, quantized or not, or folders of the first two; two .npy files are
    compared whatever their names. Tensors that one side lacks are named on standard error, and those that can't be
    measured, as of BOOL or U32: of them --at-least wants the same bytes. PAGE has pictures of the worst three, if
    matplotlib is installed.

    Exit codes: 0, 1 for files that can't be read or compared, 2 for wrong arguments, 3 for --at-least.
    """
    for source in (a, b):
        _check_suffix(source)
    if html is not None:
        check_replaceable(html, "--html", {"A": a, "B": b})
    with failures(called(a), html or a):
        ours, theirs = _tensors_of_both(a, b)
        common = _common(a, b, ours, theirs)
        same = _others_are_same(a, b, [(ours[name], theirs[name]) for name in common])
        common = [name for name in common if _is_measured(ours[name], theirs[name]) and math.prod(ours[name].shape) > 0]
        with progress_bar([ours[name] for name in common]) as advance:
            lines = [_compared(name, ours[name], theirs[name], advance) for name in common]
        if html is not None:
            text = _page(called(a), called(b), lines, lambda name: _operands(ours[name], theirs[name]))
            with replacing(html) as file:
                file.write(text.encode("utf-8", "replace"))
    if form == "json":
        click.echo(json_text([_flat(line) for line in lines]), nl=False)
    elif form == "csv":
        click.echo(csv_text(FIELDS, [_flat(line) for line in lines]), nl=False)
    elif html is None:
        print_table(lines, COMPARED)
    if at_least is not None and not (
        same and ours.keys() == theirs.keys() and all(line.errors.sqnr_db >= at_least for line in lines)
    ):
        sys.exit(TOO_FAR)


def _tensors_of_both(a: Path, b: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors of A and B by name; of two .npy files by that of A."""
    ours, theirs = tensors_of(a), tensors_of(b)
    if a.suffix == b.suffix == ".npy":
        theirs = dict(zip(ours, theirs.values(), strict=True))
    return ours, theirs


def _common(a: Path, b: Path, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Return the names of tensors that both have, of one shape; name those that one side lacks."""
    for name in sorted(ours.keys() ^ theirs.keys()):
        click.echo(f"{printable(name)}: only in {called(a if name in ours else b)}", err=True)
    common = [name for name in ours if name in theirs]
    if not common:
        raise in_one_line(called(b), f"has no tensor whose name is in {called(a)}")
    for name in common:
        x, y = ours[name].shape, theirs[name].shape
        if x != y:
            raise in_one_line(called(b), f"{name} has shape {shape_text(y)}, but {shape_text(x)} in {called(a)}")
    return common


def _is_measured(x: Tensor, y: Tensor) -> bool:
    return x.has_numbers and y.has_numbers


def _others_are_same(a: Path, b: Path, pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Return whether tensors that can't be measured are the same in A and B; name each and what is so."""
    alike = True
    for x, y in (pair for pair in pairs if not _is_measured(*pair)):
        same = x.scheme == y.scheme and x.raw is not None and y.raw is not None and _are_same(x.raw(), y.raw())
        if x.scheme != y.scheme:
            found = f"{x.scheme} in {called(a)} and {y.scheme} in {called(b)}"
        else:
            found = f"{x.scheme}, the same bytes in both" if same else f"{x.scheme}, and the bytes differ"
        click.echo(printable(f"{x.name}: not measured: {found}"), err=True)
        alike = alike and same
    return alike


def _are_same(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> bool:
    if x.size != y.size:
        return False
    return all(np.array_equal(x[k : k + PIECE], y[k : k + PIECE]) for k in range(0, x.size, PIECE))


def _compared(name: str, x: Tensor, y: Tensor, advance: Any) -> Compared:
    line = Compared(name, x.shape, x.scheme, y.scheme, x.nbytes, y.nbytes, _errors(name, x, y))
    advance(x.nbytes, 1)
    return line


def _errors(name: str, x: Tensor, y: Tensor) -> Comparison:
    try:
        return fastq.compare(*_operands(x, y))
    except ValueError as error:
        raise ValueError(f"tensor {name!r}: {error}") from error


def _operands(x: Tensor, y: Tensor) -> Errors:
    """Return the values of a tensor, and the codes or values of another."""
    loaded = y.load()
    return _as_float(x.values()), loaded if isinstance(loaded, QuantizedArray) else _as_float(loaded)


_COMPARABLE = ("float16", "bfloat16", "float32", "float64")


def _as_float(values: Any) -> Any:
    return values if values.dtype.name in _COMPARABLE else values.astype(np.float64)


FIELDS = ("name", "shape", "a", "b", "bytes_a", "bytes_b", *(field.name for field in fields(Comparison)))


def _flat(line: Compared) -> Entry:
    """Return a line as numbers and texts by name."""
    about = line.name, shape_text(line.shape), line.a, line.b, line.before, line.after
    return dict(zip(FIELDS, (*about, *line.errors.to_dict().values()), strict=True))


def _page(a: str, b: str, lines: list[Compared], errors_of: Callable[[str], Errors]) -> str:
    entries = [_flat(line) for line in lines]
    sums = f"{sum(line.before for line in lines):,} and {sum(line.after for line in lines):,} bytes"
    return page(f"{b} compared with {a}", sums, FIELDS, entries, pictures_of_worst(entries, errors_of))


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
@click.argument("source", metavar="FILE|DIR", type=READABLE)
@click.option(
    "--sqnr",
    type=float,
    default=30.0,
    show_default=True,
    metavar="DB",
    callback=decibels,
    help="What each tensor shall reach.",
)
def suggest(source: Path, sqnr: float) -> None:
    """Find for each tensor the scheme that reaches a signal to quantization noise ratio with the fewest bits.

    Integers of 2 to 8 bits with one scale, a scale for each row and in blocks of 32, float8, the MX formats and NVFP4
    are tried on 65,536 elements at most of each floating tensor of two axes or more. A tensor that
    none does gets the best one.

    Exit codes: 0, 1 for a file that can't be read, 2 for wrong arguments, 3 if a tensor reaches it with no scheme.
    """
    _check_suffix(source)
    with failures(called(source), source):
        tensors = [tensor for tensor in tensors_of(source).values() if _is_weight(tensor)]
        if not tensors:
            raise in_one_line(called(source), f"no tensor of two axes or more of {', '.join(FLOATS)}")
        with progress_bar(tensors) as advance:
            lines = [_suggested(tensor, sqnr, advance) for tensor in tensors]
    print_table(lines, SUGGESTED)
    before, after = sum(line.tensor.nbytes for line in lines), sum(line.after for line in lines)
    click.echo(f"{len(lines)} tensors: {before:,} -> {after:,} bytes")
    if not all(line.measured.sqnr_db >= sqnr for line in lines):
        sys.exit(TOO_FAR)


def _is_weight(tensor: Tensor) -> bool:
    return tensor.scheme in FLOATS and len(tensor.shape) > 1 and math.prod(tensor.shape) > 0


def _suggested(tensor: Tensor, sqnr: float, advance: Any) -> Suggested:
    trial, tried = Trial(tensor.values()), []
    for shared, dtypes in FAMILIES.values():
        for dtype in dtypes:
            options = {"symmetric": dtype.startswith("int"), **shared, "dtype": dtype}
            try:
                figures = trial.measured(options)
            except ValueError as error:
                raise ValueError(f"tensor {tensor.name!r}: {error}") from error
            tried.append((figures, Scheme(**options)))
    advance(tensor.nbytes, 1)
    enough = [each for each in tried if each[0].sqnr_db >= sqnr]
    figures, scheme = min(enough, key=_bits) if enough else max(tried, key=lambda each: each[0].sqnr_db)
    return Suggested(tensor, scheme, figures)


def _bits(tried: tuple[Measured, Scheme]) -> float:
    return tried[0].bits
