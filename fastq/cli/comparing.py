"""The command that measures how far the tensors of one file are from those of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.cli.files import (
    FOLDER,
    IN_PART,
    TOO_FAR,
    Source,
    called,
    check_replaceable,
    decibels,
    failures,
    in_one_line,
    note,
    progress_bar,
    with_suffix,
)
from fastq.cli.page import page
from fastq.cli.pictures import Errors, pictures_of_worst
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
from fastq.cli.tables import Entry, csv_text, json_text
from fastq.io.pipeline import NAMED, Converted, some_of, sums_of
from fastq.io.pipeline import failures as naming
from fastq.io.tensors import PARTS, PIECE, SUFFIXES, Tensor, tensors_of
from fastq.results import Comparison, QuantizedArray
from fastq.system.atomic import replacing

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Compared:
    """A line of `fastq compare`."""

    row: Converted
    errors: Comparison


COMPARED: tuple[Column[Any], ...] = (
    ("tensor", lambda line: printable(line.row.name)),
    ("shape", lambda line: shape_text(line.row.shape)),
    ("A", lambda line: line.row.source),
    ("B", lambda line: line.row.target),
    ("SQNR dB", lambda line: number_text(line.errors.sqnr_db, ".2f")),
    ("largest error", lambda line: number_text(line.errors.max_abs_error, ".3g")),
    ("mean error", lambda line: number_text(line.errors.mean_abs_error, ".3g")),
    ("clipped", lambda line: count_or_dash(line.errors.clipped)),
    ("bytes A", lambda line: f"{line.row.before:,}"),
    ("bytes B", lambda line: f"{line.row.after:,}"),
)


@click.command(short_help="Measure errors of one file against another.")
@click.argument("a", metavar="A", type=Source(FOLDER, *SUFFIXES))
@click.argument("b", metavar="B", type=Source(FOLDER, *SUFFIXES))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PAGE",
    callback=with_suffix(".html"),
    help="Write a sortable HTML report.",
)
@click.option(
    "--at-least", type=float, metavar="DB", callback=decibels, help="Exit with 3 if a tensor has a lower SQNR."
)
def compare(a: Path, b: Path, as_json: bool, as_csv: bool, html: Path | None, at_least: float | None) -> None:
    """Measure how far the tensors of B are from those of A of the same names.

    A and B are files or folders of any kind that fastq reads, quantized or not: .npy, .npz, .safetensors or .gguf,
    model directories, folders of the first three; two .npy files are compared whatever their names. A quantized matrix
    is one tensor, with its codes, scales and zero points. PAGE has pictures of the worst three, if matplotlib is
    installed.

    Tensors that one side lacks are named on standard error, and those that can't be measured, as of BOOL or U32, of
    which the bytes are compared. Exit codes: 0; 1 for files that can't be read or compared; 2 for wrong arguments; 3
    where --at-least is not reached; 4 where one side lacks tensors, where bytes that can't be measured differ, or where
    no quantized tensor of A or B was compared.
    """
    if as_json and as_csv:
        raise click.UsageError("--json goes without --csv: only one of them can be printed")
    if html is not None:
        check_replaceable(html, "--html", {"A": a, "B": b})
    with failures(called(a), html or a):
        ours, theirs = _tensors_of_both(a, b)
        lacking = IN_PART if at_least is None else TOO_FAR
        pairs = _common(a, b, ours, theirs, lacking)
        _note_others(a, b, [pair for pair in pairs if not _is_measured(pair)], lacking)
        pairs = [pair for pair in pairs if _is_measured(pair) and math.prod(pair[0].shape) > 0]
        quantized = _note_quantized(pairs, [*ours.values(), *theirs.values()])
        with progress_bar([x for x, _ in pairs]) as advance:
            lines = [_compared(*pair, quantized, advance) for pair in pairs]
        total = total_text([line.row for line in lines], done="quantized" if quantized else "compared")
        if html is not None:
            text = _page(called(a), called(b), lines, total, lambda name: _operands(ours[name], theirs[name]))
            with replacing(html) as file:
                file.write(text.encode("utf-8", "replace"))
    _print(lines, total, as_json=as_json, as_csv=as_csv, html=html)
    if at_least is not None:
        low = [line for line in lines if not line.errors.sqnr_db >= at_least]
        low.sort(key=lambda line: line.errors.sqnr_db)
        if low:
            worst = some_of([f"{line.row.name} ({number_text(line.errors.sqnr_db, '.2f')})" for line in low])
            note(f"below {at_least:g} dB: {worst}", TOO_FAR)


def _print(lines: list[Compared], total: str, *, as_json: bool, as_csv: bool, html: Path | None) -> None:
    if as_json:
        click.echo(json_text([_flat(line) for line in lines]), nl=False)
    elif as_csv:
        click.echo(csv_text(FIELDS, [_flat(line) for line in lines]), nl=False)
    elif html is None:
        print_table(lines, COMPARED)
        print_line(total)
    if html is not None:
        note(f"{html}: {total}")


# Which tensors are compared


def _tensors_of_both(a: Path, b: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors of A and B by name; of two .npy files by that of A."""
    ours, theirs = (tensors_of(path, say=note) for path in (a, b))
    if a.suffix == b.suffix == ".npy":
        theirs = dict(zip(ours, theirs.values(), strict=True))
    return ours, theirs


def _common(a: Path, b: Path, ours: dict[str, Tensor], theirs: dict[str, Tensor], code: int) -> list[Pair]:
    """Return the tensors that both have, of one shape; name those that one side lacks."""
    common = [name for name in ours if name in theirs]
    if not common:
        raise in_one_line(called(b), f"has no tensor whose name is in {called(a)}{_hint(*ours, *theirs)}")
    for source, only in ((a, [*ours.keys() - theirs.keys()]), (b, [*theirs.keys() - ours.keys()])):
        for name in [*sorted(only)[:NAMED], *([f"{len(only) - NAMED:,} more"] if len(only) > NAMED else [])]:
            note(f"{name}: only in {called(source)}{_hint(name)}", code)
    for name in common:
        x, y = ours[name].shape, theirs[name].shape
        if x != y:
            raise in_one_line(called(b), f"{name} has shape {shape_text(y)}, but {shape_text(x)} in {called(a)}")
    return [(ours[name], theirs[name]) for name in common]


def _hint(*names: str) -> str:
    """Return what else to give where names are those of parts of quantized matrices."""
    if not any(name.endswith(PARTS) for name in names):
        return ""
    return "; parts such as weight_scale are read as one matrix where config.json is next to them"


def _is_measured(pair: Pair) -> bool:
    return all(tensor.has_numbers for tensor in pair)


def _note_others(a: Path, b: Path, pairs: Sequence[Pair], code: int) -> None:
    """Compare the bytes of tensors that can't be measured, and name each and what is so."""
    for x, y in pairs:
        same = x.scheme == y.scheme and x.raw is not None and y.raw is not None and _are_same(x.raw(), y.raw())
        if x.scheme != y.scheme:
            found = f"{x.scheme} in {called(a)} and {y.scheme} in {called(b)}"
        else:
            found = f"{x.scheme}, the same bytes in both" if same else f"{x.scheme}, and the bytes differ"
        note(f"{x.name}: not measured: {found}", 0 if same else code)


def _are_same(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> bool:
    if x.size != y.size:
        return False
    return all(np.array_equal(x[k : k + PIECE], y[k : k + PIECE]) for k in range(0, x.size, PIECE))


def _note_quantized(pairs: Sequence[Pair], tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors of either side are quantized; say so if none of those is compared."""
    quantized = any(tensor.is_quantized for tensor in tensors)
    if quantized and not any(tensor.is_quantized for pair in pairs for tensor in pair):
        note(f"no quantized tensor is among the {len(pairs):,} that were compared", IN_PART)
    return quantized


# What is measured


def _compared(x: Tensor, y: Tensor, quantized: bool, advance: Callable[[int, int], None]) -> Compared:
    """Return a line; its sums count in the total if it is quantized, or floats where nothing is on either side."""
    with naming(lambda error: f"tensor {x.name!r}: {error}"):
        numbers = x.values()
        values = _as_float(numbers)
        measured = fastq.compare(values, _as_float(y.codes()))
    counts = x.is_quantized or y.is_quantized or not (quantized or numbers.dtype.kind in "iu")
    sums = sums_of(measured, values) if counts else None
    advance(x.nbytes, 1)
    row = Converted(x.name, x.shape, x.nbytes, y.nbytes, x.scheme, y.scheme, sums, size=math.prod(x.shape))
    return Compared(row, measured)


def _operands(x: Tensor, y: Tensor) -> Errors:
    """Return the values of a tensor, and the codes or values of another."""
    return _as_float(x.values()), _as_float(y.codes())


_COMPARABLE = ("float16", "bfloat16", "float32", "float64")


def _as_float(values: Any) -> Any:
    """Return codes as they are, and values as floats."""
    is_taken = isinstance(values, QuantizedArray) or values.dtype.name in _COMPARABLE
    return values if is_taken else values.astype(np.float64)


FIELDS = ("name", "shape", "a", "b", "bytes_a", "bytes_b", *(field.name for field in fields(Comparison)))


def _flat(line: Compared) -> Entry:
    """Return a line as numbers and texts by name."""
    row = line.row
    about = row.name, shape_text(row.shape or ()), row.source, row.target, row.before, row.after
    return dict(zip(FIELDS, (*about, *line.errors.to_dict().values()), strict=True))


def _page(a: str, b: str, lines: list[Compared], total: str, errors_of: Callable[[str], Errors]) -> str:
    entries = [_flat(line) for line in lines]
    return page(f"{b} compared with {a}", total, FIELDS, entries, pictures_of_worst(entries, errors_of))
