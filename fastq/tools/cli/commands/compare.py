"""`fastq compare`: measure the errors of one file against another."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from fastq.ops.compare import totals as totals_of
from fastq.results import Comparison
from fastq.results.measures import Totals, comparison_of, measures_of
from fastq.system import labels
from fastq.system.dtypes import Array
from fastq.tools.cli.errors import name_of_path, one_line_error, one_line_errors
from fastq.tools.cli.exit_codes import IN_PART, TOO_FAR
from fastq.tools.cli.input_paths import READABLE
from fastq.tools.cli.notes import note, note_codes
from fastq.tools.cli.options import decibels
from fastq.tools.cli.output_paths import check_replaceable, sizes_text
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import TableOptions, arrays_of_pictures, as_float, show_table, table_options
from fastq.tools.cli.tables import Entry, cell_text, shape_text
from fastq.tools.cli.terminal import print_line
from fastq.tools.cli.waits import notice_if_slow
from fastq.tools.files.measured_errors import NO_ERRORS, Errors, errors_in
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

FIELDS = "name", "shape", "a", "b", "bytes_a", "bytes_b", *(field.name for field in fields(Comparison)), "nan"
NOTHING_MEASURED = Comparison(
    mse=0.0,
    sqnr_db=math.inf,
    max_abs_error=0.0,
    mean_abs_error=0.0,
    max_relative_error=0.0,
    mean_relative_error=0.0,
    clipped=None,
)
COMPARED = "name", "shape", "a", "b", "sqnr_db", "max_abs_error", "mean_abs_error", "clipped", "bytes_a", "bytes_b"


@click.command(short_help="Measure errors of one file against another.")
@click.argument("a", metavar="A", type=READABLE)
@click.argument("b", metavar="B", type=READABLE)
@decibels("--at-least", help="SQNR in dB: exit with 3 if a tensor is below it.")
@table_options
def compare(a: Path, b: Path, at_least: float | None, **options: Any) -> None:
    """Measure the errors of the tensors of B against the tensors of A with the same names.

    A and B are files or folders of any kind that fastq reads, quantized or not: .npy, .npz, .safetensors or .gguf,
    model directories, folders of the first three; if each side has a single array, their names may differ. A quantized
    matrix is one tensor, with its codes, scales and zero points. Variables of netCDF files and zarr stores are
    decoded, and compared part by part where neither side has a missing value. Their dimensions may be in another order;
    where coordinates of a dimension disagree, its variables are not measured. NaN and missing values are left out of
    what is measured; a column counts them. A last line has the bytes on disk, since rounded values only compress
    better.

    Standard error names the tensors that one side lacks and those that can't be measured, such as BOOL or U32; of these
    the bytes are compared. Exit codes: 0; 1 for files that can't be read or compared; 2 for wrong arguments; 3 if
    --at-least is not reached; 4 if one side lacks tensors, if coordinates disagree, if NaN or missing values are on one
    side only, if bytes that can't be measured differ, or if no quantized tensor of A or B was compared.
    """
    table_choice = TableOptions.taken_from(options)
    if table_choice.report is not None:
        check_replaceable(table_choice.report, "--report", {"A": a, "B": b})
    tensors_a = _read_side(a)
    tensors_b = _read_side(b)
    ours = with_experts_apart(tensors_a, others=tensors_b)
    theirs = with_experts_apart(tensors_b, others=tensors_a)
    sides = Sides(a=name_of_path(a), b=name_of_path(b), code=IN_PART if at_least is None else TOO_FAR)
    with one_line_errors(sides.a, a):
        if ".npy" in (a.suffix, b.suffix) and len(ours) == len(theirs) == 1:  # named for their files
            theirs = dict(zip(ours, theirs.values(), strict=True))
        pairs = [(ours[name], theirs[name]) for name in _common_names(ours, theirs, sides)]
        pairs = [(x, y) for x, y in pairs if _is_measured(x, y, sides)]
        pairs = [(x, y) for x, y in pairs if _labels_agree(x, y, sides)]
        quantized = any(tensor.is_quantized for tensor in (*ours.values(), *theirs.values()))
        if quantized and not any(tensor.is_quantized for pair in pairs for tensor in pair):
            note(f"no quantized tensor is among the {len(pairs):,} that were compared", IN_PART)
        with progress_bar([x for x, _ in pairs]) as advance:
            entries_and_rows = [_compare_tensors(x, y, quantized, advance, sides.code) for x, y in pairs]
        entries = [entry for entry, _ in entries_and_rows]
        fit_in_memory = not any(tensor.is_read_in_parts for tensor in ours.values())
        show_table(
            table_choice,
            [row for _, row in entries_and_rows],
            COMPARED + ("nan",) * any(entry["nan"] for entry in entries),
            entries=entries,
            fields=FIELDS,
            title=f"{sides.b} compared with {sides.a}",
            done="quantized" if quantized else "compared",
            arrays_of=arrays_of_pictures(ours, theirs) if fit_in_memory else None,
        )
        if any(tensor.is_read_in_parts for pair in pairs for tensor in pair) and not table_choice.as_json:
            print_line(f"on disk, where they may be compressed: {sizes_text(a, b)}")
    if at_least is not None:
        _note_worst(entries, at_least)


class Sides(NamedTuple):
    """The names of both sides, and the exit code of notes on tensors that are not compared."""

    a: str
    b: str
    code: int


def _note_worst(entries: list[Entry], at_least: float) -> None:
    """Write a line on the tensors below an SQNR."""
    low = [entry for entry in entries if not entry["sqnr_db"] >= at_least]  # NaN, too, which is below nothing
    low.sort(key=lambda entry: float(entry["sqnr_db"]))
    if low:
        worst = some_of([f"{entry['name']} ({cell_text('sqnr_db', entry['sqnr_db'])})" for entry in low])
        note(f"below {at_least:g} dB: {worst}", TOO_FAR)


# Which tensors are compared


def _read_side(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one side; an error is about its file."""
    with one_line_errors(name_of_path(path), path), notice_if_slow(f"opening {name_of_path(path)}"):
        tensors = tensors_of(path, say=note)
    note_codes(path, tensors)
    return tensors


def _common_names(ours: dict[str, Tensor], theirs: dict[str, Tensor], sides: Sides) -> list[str]:
    """Return the names of tensors that both sides have in the same shape; report those that one side lacks."""
    common = [name for name in ours if name in theirs]
    if not common:
        raise one_line_error(sides.b, f"has no tensor whose name is in {sides.a}{_hint_on_parts([*ours, *theirs])}")
    _note_missing(ours.keys() - theirs.keys(), sides.a, sides.code)
    _note_missing(theirs.keys() - ours.keys(), sides.b, sides.code)
    for name in common:
        x = ours[name]
        y = theirs[name]
        if x.dims and y.dims and set(x.dims) != set(y.dims):
            dims = f"has the dimensions {', '.join(y.dims)}, but {', '.join(x.dims)} in {sides.a}"
            raise one_line_error(sides.b, f"{name} {dims}: rename those of one")
        to_y, _ = _orders(x.dims, y.dims)
        if y.shape != (tuple(x.shape[axis] for axis in to_y) if to_y else x.shape):
            shapes = f"has shape {shape_text(y.shape)}, but {shape_text(x.shape)} in {sides.a}"
            raise one_line_error(sides.b, f"{name} {shapes}")
    return common


def _note_missing(names: Collection[str], side: str, code: int) -> None:
    """Write a line on each of the first tensors that only one side has, and on the number of the others."""
    lines = sorted(names)[:NAMED]
    if len(names) > NAMED:
        lines.append(f"{len(names) - NAMED:,} more")
    for line in lines:
        note(f"{line}: only in {side}{_hint_on_parts([line])}", code)


def _hint_on_parts(names: Sequence[str]) -> str:
    """Return a hint if names are those of parts of quantized matrices."""
    if not any(name.endswith(PARTS) for name in names):
        return ""
    return "; parts such as weight_scale are read as one matrix where config.json is next to them"


def _is_measured(x: Tensor, y: Tensor, sides: Sides) -> bool:
    """Return whether two tensors can be measured. If not, compare their bytes, and write a line on the result."""
    if x.has_numbers and y.has_numbers:
        return True
    if x.scheme != y.scheme:
        note(f"{x.name}: not measured: {x.scheme} in {sides.a} and {y.scheme} in {sides.b}", sides.code)
    elif _have_same_bytes(x, y):
        note(f"{x.name}: not measured: {x.scheme}, the same bytes in both")
    else:
        note(f"{x.name}: not measured: {x.scheme}, and the bytes differ", sides.code)
    return False


def _have_same_bytes(x: Tensor, y: Tensor) -> bool:
    """Return whether the bytes of two tensors are equal; False if one of them is several tensors of a file."""
    ours = x.raw()
    theirs = y.raw()
    if ours is None or theirs is None or ours.size != theirs.size:
        return False
    pieces = (slice(start, start + PIECE) for start in range(0, ours.size, PIECE))
    return all(np.array_equal(ours[piece], theirs[piece]) for piece in pieces)


def _labels_agree(x: Tensor, y: Tensor, sides: Sides) -> bool:
    """Return whether the labels of two variables agree. If not, write a line: their elements don't correspond."""
    theirs = y.labels()
    ours = x.labels() if theirs else {}
    both = [name for name in theirs if name in ours and set(theirs[name].dims) == set(ours[name].dims)]
    for name in both:
        dims = ours[name].dims
        # coordinates such as those of places on a grid count only where the dimensions have none of their own
        if name not in dims and all(dim in both for dim in dims):
            continue
        if not labels.agree(theirs[name].transpose(*dims), ours[name]):
            if dims == (name,):
                difference = f"along {name} {labels.disagreement(theirs[name], ours[name], sides.b, sides.a)}"
            else:
                difference = f"{sides.b} has other values of the coordinate {name}"
            advice = "bring both to the same labels, as sel of xarray does"
            note(f"{x.name}: not measured: {difference}; {advice}", sides.code)
            return False
    return True


# What is measured


class Measured(NamedTuple):
    """What was measured of a tensor."""

    dtype_kind: str  # of its numbers
    measures: Comparison
    sums: Errors
    nan: int = 0  # elements that are NaN on a side, which were left out


def _compare_tensors(x: Tensor, y: Tensor, quantized: bool, advance: Progress, code: int) -> tuple[Entry, Converted]:
    """Return an entry and a row. The row counts in the total if it is quantized, or if no tensor is quantized."""
    with naming(lambda error: f"tensor {x.name!r}: {error}"):
        measure = _measure_in_parts if x.is_read_in_parts or y.is_read_in_parts else _measure_at_once
        measured = measure(x, y, advance, code)
    is_quantized = x.is_quantized or y.is_quantized
    counts = is_quantized or not (quantized or measured.dtype_kind in "iu")
    advance(0, 1)
    converted = Converted(
        name=x.name,
        shape=x.shape,
        before=x.nbytes,
        after=y.nbytes,
        source=x.scheme,
        target=y.scheme,
        errors=measured.sums if counts else None,
        size=math.prod(x.shape),
    )
    entry: Entry = {
        "name": x.name,
        "shape": x.shape,
        "a": x.scheme,
        "b": y.scheme,
        "bytes_a": x.nbytes,
        "bytes_b": y.nbytes,
        **measured.measures.to_dict(),
        "nan": measured.nan,
    }
    return entry, converted


def _measure_at_once(x: Tensor, y: Tensor, progress: Progress, code: int) -> Measured:
    """Measure a whole tensor; where it has NaN, its other elements."""
    numbers = x.values()
    values = as_float(numbers)
    if not values.size:
        return Measured(numbers.dtype.kind, NOTHING_MEASURED, NO_ERRORS)
    approximation = as_float(y.codes())
    totals = None if _has_nan(values) else totals_of(values, approximation)
    progress(x.nbytes, 0)
    # the largest error tells whether the other side may have NaN; differences of infinities are NaN, too
    if totals is not None and not (math.isnan(totals.largest) and _has_nan(as_float(y.values()))):
        return Measured(numbers.dtype.kind, measures_of(totals), errors_in(totals))
    part = _measure_without_missing(values, as_float(y.values()))
    if on_both_sides := part.missing - part.missing_on_one_side:
        note(f"{x.name}: {count_text(on_both_sides, 'value')} NaN on both sides, left out")
    return _measured_of([part], numbers.dtype.kind, x.name, code)


def _has_nan(values: Array) -> bool:
    """Return whether NaN is among some values; the sum of all, which takes less time, is NaN then, else seldom."""
    if values.dtype.kind in "iu":
        return False
    with np.errstate(all="ignore"):
        may_have_nan = np.isnan(values.sum(dtype=np.float64))
        return bool(may_have_nan and np.isnan(values).any())


class _Part(NamedTuple):
    """The errors of the elements of a part that are NaN on neither side."""

    totals: Totals
    missing: int
    missing_on_one_side: int


def _measure_without_missing(ours: Array, theirs: Array) -> _Part:
    """Measure the elements that are NaN on neither side."""
    missing_in_ours = np.isnan(ours)
    missing_in_theirs = np.isnan(theirs)
    is_measured = ~(missing_in_ours | missing_in_theirs)
    totals = Totals.of_nothing(has_codes=False)
    if is_measured.any():
        totals = totals_of(ours[is_measured], theirs[is_measured])
    return _Part(
        totals=totals,
        missing=int(is_measured.size - np.count_nonzero(is_measured)),
        missing_on_one_side=int(np.count_nonzero(missing_in_ours != missing_in_theirs)),
    )


def _measured_of(parts: Sequence[_Part], dtype_kind: str, name: str, code: int) -> Measured:
    """Return what was measured of all parts; report how many elements only one side lacks."""
    on_one_side = sum(part.missing_on_one_side for part in parts)
    if on_one_side:
        note(f"{name}: {count_text(on_one_side, 'value')} missing on one side only", code)
    if any(part.totals.size for part in parts):
        measures = comparison_of([part.totals for part in parts])
    elif on_one_side:  # then nothing is equal
        measures = replace(NOTHING_MEASURED, sqnr_db=math.nan)
    else:
        measures = NOTHING_MEASURED
    sums = reduce(Errors.with_more, (errors_in(part.totals) for part in parts), NO_ERRORS)
    return Measured(dtype_kind, measures, sums, nan=sum(part.missing for part in parts))


def _orders(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes by which the dimensions of one variable come into the order of another one, and the way back.

    They are arguments of `transpose`: of (t, x, y) and (y, t, x), axes 2, 0, 1 bring the first one into the order of
    the second, and 1, 2, 0 back. Both are empty where the order is the same, or one of the variables has no names of
    dimensions.
    """
    if not ours or not theirs or ours == theirs:
        return (), ()
    return tuple(ours.index(dim) for dim in theirs), tuple(theirs.index(dim) for dim in ours)


def _measure_in_parts(x: Tensor, y: Tensor, progress: Progress, code: int) -> Measured:
    """Measure the values that neither side lacks, part by part, in the order of the dimensions of x."""
    dtype_kind = "f"
    parts = []
    to_y, to_x = _orders(x.dims, y.dims)
    with x.open_parts() as read_x, y.open_parts() as read_y:
        for part in x.parts():
            ours = read_x(part)
            theirs = read_y(tuple(part[axis] for axis in to_y)).transpose(to_x) if to_y else read_y(part)
            dtype_kind = ours.dtype.kind
            parts.append(_measure_without_missing(np.atleast_1d(as_float(ours)), np.atleast_1d(as_float(theirs))))
            progress(x.nbytes_of(ours), 0)
    return _measured_of(parts, dtype_kind, x.name, code)
