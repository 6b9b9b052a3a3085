"""The command that measures how far the tensors of one file are from those of another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.cli import files
from fastq.cli.files import FOLDER, IN_PART, TOO_FAR, called, in_one_line, note, with_suffix
from fastq.cli.page import write_report
from fastq.cli.report import Entry, cell_text, csv_text, print_json, print_line, print_table, shape_text, total_text
from fastq.io.pipeline import NAMED, Converted, naming, some_of, sums_of
from fastq.io.tensors import PARTS, PIECE, SUFFIXES, Tensor, tensors_of
from fastq.results import Comparison, QuantizedArray

FIELDS = ("name", "shape", "a", "b", "bytes_a", "bytes_b", *(field.name for field in fields(Comparison)))
COMPARED = "name", "shape", "a", "b", "sqnr_db", "max_abs_error", "mean_abs_error", "clipped", "bytes_a", "bytes_b"
COMPARABLE = "float16", "bfloat16", "float32", "float64"
BOTH = files.Source(FOLDER, *SUFFIXES)
PAGE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Measure errors of one file against another.")
@click.argument("a", metavar="A", type=BOTH)
@click.argument("b", metavar="B", type=BOTH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--html", type=PAGE, metavar="PAGE", callback=with_suffix(".html"), help="Write a sortable HTML report.")
@files.decibels("--at-least", help="Exit with 3 if a tensor has a lower SQNR.")
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
        files.check_replaceable(html, "--html", {"A": a, "B": b})
    with files.failures(called(a), html or a):
        ours, theirs = (tensors_of(path, say=note) for path in (a, b))
        if a.suffix == b.suffix == ".npy":
            theirs = dict(zip(ours, theirs.values(), strict=True))
        code = IN_PART if at_least is None else TOO_FAR
        common = [(ours[name], theirs[name]) for name in _common(a, b, ours, theirs, code)]
        pairs = [pair for pair in common if _is_measured(*pair, a, b, code) and 0 not in pair[0].shape]
        quantized = any(tensor.is_quantized for tensor in (*ours.values(), *theirs.values()))
        if quantized and not any(tensor.is_quantized for pair in pairs for tensor in pair):
            note(f"no quantized tensor is among the {len(pairs):,} that were compared", IN_PART)
        with files.progress_bar([x for x, _ in pairs]) as advance:
            found = [_compared(*pair, quantized, advance) for pair in pairs]
        entries, total = [entry for entry, _ in found], "quantized" if quantized else "compared"
        total = total_text([row for _, row in found], done=total)
        if html is not None:
            title = f"{called(b)} compared with {called(a)}"
            write_report(html, title, total, FIELDS, entries, lambda name: _operands(ours[name], theirs[name]))
    if as_json or as_csv:
        print_json(entries) if as_json else click.echo(csv_text(FIELDS, entries), nl=False)
    elif html is None:
        print_table(entries, COMPARED)
        print_line(total)
    if html is not None:
        note(f"{html}: {total}")
    low = [entry for entry in entries if at_least is not None and not entry["sqnr_db"] >= at_least]
    low.sort(key=lambda entry: float(entry["sqnr_db"]))
    if low:
        worst = some_of([f"{entry['name']} ({cell_text('sqnr_db', entry['sqnr_db'])})" for entry in low])
        note(f"below {at_least:g} dB: {worst}", TOO_FAR)


# Which tensors are compared


def _common(a: Path, b: Path, ours: dict[str, Tensor], theirs: dict[str, Tensor], code: int) -> list[str]:
    """Return the names of tensors that both have, of one shape; tell those that one side lacks."""
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
    return common


def _hint(*names: str) -> str:
    """Return what else to give where names are those of parts of quantized matrices."""
    if not any(name.endswith(PARTS) for name in names):
        return ""
    return "; parts such as weight_scale are read as one matrix where config.json is next to them"


def _is_measured(x: Tensor, y: Tensor, a: Path, b: Path, code: int) -> bool:
    """Whether two tensors can be measured; of others the bytes are compared, and it is told what is so."""
    if x.has_numbers and y.has_numbers:
        return True
    same = x.scheme == y.scheme and x.raw is not None and y.raw is not None and _are_same(x.raw(), y.raw())
    found = f"{x.scheme}, the same bytes in both" if same else f"{x.scheme}, and the bytes differ"
    if x.scheme != y.scheme:
        found = f"{x.scheme} in {called(a)} and {y.scheme} in {called(b)}"
    note(f"{x.name}: not measured: {found}", 0 if same else code)
    return False


def _are_same(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> bool:
    pieces = range(0, x.size, PIECE)
    return x.size == y.size and all(np.array_equal(x[k : k + PIECE], y[k : k + PIECE]) for k in pieces)


# What is measured


def _compared(x: Tensor, y: Tensor, quantized: bool, advance: Callable[[int, int], None]) -> tuple[Entry, Converted]:
    """Return a line; its sums count in the total if it is quantized, or floats where nothing is on either side."""
    with naming(lambda error: f"tensor {x.name!r}: {error}"):
        numbers = x.values()
        values = _as_float(numbers)
        measured = fastq.compare(values, _as_float(y.codes()))
    counts = x.is_quantized or y.is_quantized or not (quantized or numbers.dtype.kind in "iu")
    sums = sums_of(measured, values) if counts else None
    advance(x.nbytes, 1)
    row = Converted(x.name, x.shape, x.nbytes, y.nbytes, x.scheme, y.scheme, sums, size=math.prod(x.shape))
    about = x.name, shape_text(x.shape), x.scheme, y.scheme, x.nbytes, y.nbytes
    return dict(zip(FIELDS, (*about, *measured.to_dict().values()), strict=True)), row


def _operands(x: Tensor, y: Tensor) -> tuple[Any, Any]:
    """Return the values of a tensor, and the codes or values of another."""
    return _as_float(x.values()), _as_float(y.codes())


def _as_float(values: Any) -> Any:
    """Return codes as they are, and values as floats."""
    is_taken = isinstance(values, QuantizedArray) or values.dtype.name in COMPARABLE
    return values if is_taken else values.astype(np.float64)
