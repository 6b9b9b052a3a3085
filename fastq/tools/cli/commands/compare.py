"""`fastq compare`: measure the errors of one file against another."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np

import fastq
from fastq.ops.compare import totals as totals_of
from fastq.results import Comparison
from fastq.results.measures import Totals, comparison_of
from fastq.system import labels
from fastq.tools.cli.errors import called, failures, in_one_line
from fastq.tools.cli.exit_codes import IN_PART, TOO_FAR
from fastq.tools.cli.input_paths import READABLE
from fastq.tools.cli.notes import note, note_codes
from fastq.tools.cli.options import decibels
from fastq.tools.cli.output_paths import check_replaceable, sizes_text
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import Shown, as_float, operands, show, table_options
from fastq.tools.cli.tables import Entry, cell_text, shape_text
from fastq.tools.cli.terminal import print_line
from fastq.tools.files.measured_errors import NO_ERRORS, Errors, errors_in, sums_of
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.pipeline import Converted, Progress
from fastq.tools.files.texts import NAMED, count_text, some_of
from fastq.tools.tensors.extent import PIECE
from fastq.tools.tensors.reading import (
    PARTS,
    tensors_of,
    with_experts_apart,
)
from fastq.tools.tensors.tensor import Tensor

FIELDS = "name", "shape", "a", "b", "bytes_a", "bytes_b", *(field.name for field in fields(Comparison))
COMPARED = "name", "shape", "a", "b", "sqnr_db", "max_abs_error", "mean_abs_error", "clipped", "bytes_a", "bytes_b"


@click.command(short_help="Measure errors of one file against another.")
@click.argument("a", metavar="A", type=READABLE)
@click.argument("b", metavar="B", type=READABLE)
@decibels("--at-least", help="SQNR in dB: exit with 3 if a tensor is below it.")
@table_options
def compare(a: Path, b: Path, at_least: float | None, **given: Any) -> None:
    """Measure the errors of the tensors of B against the tensors of A with the same names.

    A and B are files or folders of any kind that fastq reads, quantized or not: .npy, .npz, .safetensors or .gguf,
    model directories, folders of the first three; if each side has a single array, their names may differ. A quantized
    matrix is one tensor, with its codes, scales and zero points. Variables of netCDF files and zarr stores are
    decoded, and compared part by part where neither side has a missing value. Their dimensions may be in another order;
    where coordinates of a dimension disagree, its variables are not measured. A last line has the bytes on disk, since
    rounded values only compress better.

    Standard error names the tensors that one side lacks and those that can't be measured, such as BOOL or U32; of these
    the bytes are compared. Exit codes: 0; 1 for files that can't be read or compared; 2 for wrong arguments; 3 if
    --at-least is not reached; 4 if one side lacks tensors, if coordinates disagree, if bytes that can't be measured
    differ, or if no quantized tensor of A or B was compared.
    """
    shown = Shown.taken(given)
    if shown.report is not None:
        check_replaceable(shown.report, "--report", {"A": a, "B": b})
    ours, theirs = map(_opened, (a, b))
    ours, theirs = with_experts_apart(ours, theirs), with_experts_apart(theirs, ours)
    with failures(called(a), a):
        if ".npy" in (a.suffix, b.suffix) and len(ours) == len(theirs) == 1:  # named for their files
            theirs = dict(zip(ours, theirs.values(), strict=True))
        code = IN_PART if at_least is None else TOO_FAR
        common = [(ours[name], theirs[name]) for name in _common(a, b, ours, theirs, code)]
        pairs = [pair for pair in common if _is_measured(*pair, a, b, code) and 0 not in pair[0].shape]
        pairs = [pair for pair in pairs if _agree(*pair, a, b, code)]
        quantized = any(tensor.is_quantized for tensor in (*ours.values(), *theirs.values()))
        if quantized and not any(tensor.is_quantized for pair in pairs for tensor in pair):
            note(f"no quantized tensor is among the {len(pairs):,} that were compared", IN_PART)
        with progress_bar([x for x, _ in pairs]) as advance:
            found = [_compared(*pair, quantized, advance, code) for pair in pairs]
        entries = [entry for entry, _ in found]
        rows = [row for _, row in found]
        about = {"title": f"{called(b)} compared with {called(a)}", "done": "quantized" if quantized else "compared"}
        pictured = None if any(tensor.reader for tensor in ours.values()) else operands(ours, theirs)
        show(shown, rows, COMPARED, entries=entries, fields=FIELDS, errors_of=pictured, **about)
        if any(tensor.reader for pair in pairs for tensor in pair) and not shown.as_json:
            print_line(f"on disk, where they may be compressed: {sizes_text(a, b)}")
    low = [entry for entry in entries if at_least is not None and not entry["sqnr_db"] >= at_least]
    low.sort(key=lambda entry: float(entry["sqnr_db"]))
    if low:
        worst = some_of([f"{entry['name']} ({cell_text('sqnr_db', entry['sqnr_db'])})" for entry in low])
        note(f"below {at_least:g} dB: {worst}", TOO_FAR)


# Which tensors are compared


def _opened(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one side; an error is about its file."""
    with failures(called(path), path):
        tensors = tensors_of(path, say=note)
    note_codes(path, tensors)
    return tensors


def _common(a: Path, b: Path, ours: dict[str, Tensor], theirs: dict[str, Tensor], code: int) -> list[str]:
    """Return the names of tensors that both sides have in the same shape; report those that one side lacks."""
    common = [name for name in ours if name in theirs]
    if not common:
        raise in_one_line(called(b), f"has no tensor whose name is in {called(a)}{_hint(*ours, *theirs)}")
    for source, only in ((a, [*ours.keys() - theirs.keys()]), (b, [*theirs.keys() - ours.keys()])):
        for name in [*sorted(only)[:NAMED], *([f"{len(only) - NAMED:,} more"] if len(only) > NAMED else [])]:
            note(f"{name}: only in {called(source)}{_hint(name)}", code)
    for name in common:
        x, y = ours[name], theirs[name]
        if x.dims and y.dims and set(x.dims) != set(y.dims):
            dims = f"has the dimensions {', '.join(y.dims)}, but {', '.join(x.dims)} in {called(a)}"
            raise in_one_line(called(b), f"{name} {dims}: rename those of one")
        to_y, _ = _orders(x.dims, y.dims)
        if y.shape != (tuple(x.shape[axis] for axis in to_y) if to_y else x.shape):
            shapes = f"has shape {shape_text(y.shape)}, but {shape_text(x.shape)} in {called(a)}"
            raise in_one_line(called(b), f"{name} {shapes}")
    return common


def _hint(*names: str) -> str:
    """Return a hint if names are those of parts of quantized matrices."""
    if not any(name.endswith(PARTS) for name in names):
        return ""
    return "; parts such as weight_scale are read as one matrix where config.json is next to them"


def _is_measured(x: Tensor, y: Tensor, a: Path, b: Path, code: int) -> bool:
    """Return whether two tensors can be measured; of others the bytes are compared, and the result is reported."""
    if x.has_numbers and y.has_numbers:
        return True
    same = False
    if x.scheme == y.scheme and x.raw is not None and y.raw is not None:
        ours, theirs = x.raw(), y.raw()
        pieces = (slice(k, k + PIECE) for k in range(0, ours.size, PIECE))
        same = ours.size == theirs.size and all(np.array_equal(ours[k], theirs[k]) for k in pieces)
    found = f"{x.scheme}, the same bytes in both" if same else f"{x.scheme}, and the bytes differ"
    if x.scheme != y.scheme:
        found = f"{x.scheme} in {called(a)} and {y.scheme} in {called(b)}"
    note(f"{x.name}: not measured: {found}", 0 if same else code)
    return False


def _agree(x: Tensor, y: Tensor, a: Path, b: Path, code: int) -> bool:
    """Return whether the labels of two variables agree; otherwise report it: their elements do not belong together."""
    theirs = y.labels()
    ours = x.labels() if theirs else {}
    both = [name for name in theirs if name in ours and set(theirs[name].dims) == set(ours[name].dims)]
    for name in both:
        dims = ours[name].dims
        if name not in dims and all(dim in both for dim in dims):
            continue  # what these labels agree on is in one order
        if not labels.agree(theirs[name].transpose(*dims), ours[name]):
            how = f"{called(b)} has other values of the coordinate {name}"
            if dims == (name,):
                how = f"along {name} {labels.disagreement(theirs[name], ours[name], called(b), called(a))}"
            note(f"{x.name}: not measured: {how}; bring both to the same labels, as sel of xarray does", code)
            return False
    return True


# What is measured


def _compared(x: Tensor, y: Tensor, quantized: bool, advance: Progress, code: int) -> tuple[Entry, Converted]:
    """Return a row; its sums are part of the total if it is quantized, or if nothing is quantized on either side."""
    with naming(lambda error: f"tensor {x.name!r}: {error}"):
        kind, measured, sums = (_in_parts if x.reader or y.reader else _at_once)(x, y, advance, code)
    counts = x.is_quantized or y.is_quantized or not (quantized or kind in "iu")
    advance(0, 1)
    kept = sums if counts else None
    row = Converted(x.name, x.shape, x.nbytes, y.nbytes, x.scheme, y.scheme, kept, size=math.prod(x.shape))
    about = x.name, x.shape, x.scheme, y.scheme, x.nbytes, y.nbytes
    return dict(zip(FIELDS, (*about, *measured.to_dict().values()), strict=True)), row


def _at_once(x: Tensor, y: Tensor, progress: Progress, code: int) -> tuple[str, Comparison, Errors]:
    """Measure a whole tensor: return the kind of its dtype, the measures and the sums."""
    numbers = x.values()
    values = as_float(numbers)
    measured = fastq.compare(values, as_float(y.codes()))
    progress(x.nbytes, 0)
    return numbers.dtype.kind, measured, sums_of(measured, values)


def _orders(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes by which the dimensions of one variable come into the order of another one, and the way back.

    Both are empty where the order is the same, or one of the variables has no names of dimensions.
    """
    if not ours or not theirs or ours == theirs:
        return (), ()
    return tuple(ours.index(dim) for dim in theirs), tuple(theirs.index(dim) for dim in ours)


def _in_parts(x: Tensor, y: Tensor, progress: Progress, code: int) -> tuple[str, Comparison, Errors]:
    """Measure the values that neither side lacks, part by part; report how many only one side lacks."""
    kind = "f"
    totals = [Totals.of_nothing(has_codes=False)]
    apart = 0
    to_y, to_x = _orders(x.dims, y.dims)
    with x.opened() as read_x, y.opened() as read_y:
        for part in x.parts():
            numbers = read_x(part)
            others = read_y(tuple(part[axis] for axis in to_y)).transpose(to_x) if to_y else read_y(part)
            kind = numbers.dtype.kind
            pair = [np.atleast_1d(as_float(each)) for each in (numbers, others)]
            gaps = [np.isnan(values) for values in pair]
            apart += int(np.count_nonzero(gaps[0] != gaps[1]))
            there = ~(gaps[0] | gaps[1])
            totals += [totals_of(*(values[there] for values in pair))] if there.any() else []
            progress(x.nbytes_of(numbers), 0)
    if apart:
        note(f"{x.name}: {count_text(apart, 'value')} missing on one side only", code)
    if len(totals) == 1:
        return kind, Comparison(0.0, math.inf, 0.0, 0.0, 0.0, 0.0, None), NO_ERRORS
    return kind, comparison_of(totals), errors_in(totals)
