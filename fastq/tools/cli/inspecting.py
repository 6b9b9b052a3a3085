"""Commands that read tensors and change nothing: inspect, suggest, and compare."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
import numpy as np

import fastq
from fastq.ops.compare import totals as totals_of
from fastq.results import Comparison
from fastq.results.measures import Totals, comparison_of
from fastq.system import labels
from fastq.tools.cli import files, report
from fastq.tools.cli.files import FOLDER, IN_PART, TOO_FAR, ZARR_STORE, called, in_one_line, note
from fastq.tools.cli.quantizing import inspect_gguf
from fastq.tools.cli.report import Shown, as_float, json_option, operands, print_json, show, table_options, total_text
from fastq.tools.cli.suggesting import Suggestion, Trials, Way, cheapest, command, schemes_for
from fastq.tools.cli.tables import Entry, arranged, cell_text, print_line, print_table, shape_text
from fastq.tools.cli.waits import notice_if_slow
from fastq.tools.files import pipeline
from fastq.tools.files.codes import parts_of_weights
from fastq.tools.files.pipeline import (
    NAMED,
    Converted,
    Errors,
    Progress,
    count_text,
    errors_in,
    signal_of,
    some_of,
    sums_of,
)
from fastq.tools.files.records import FLOATS, Scheme
from fastq.tools.tensors.stores import NETCDF
from fastq.tools.tensors.tensors import (
    PARTS,
    PIECE,
    SUFFIXES,
    Tensor,
    codes_read_as_stored,
    elsewhere_in,
    tensors_of,
    with_experts_apart,
)

INSPECTED = "name", "shape", "scheme", "bytes", "lo", "hi", "nan", "infinite", "outliers"
SUGGESTED = "name", "shape", "bytes_before", "scheme", "bits", "bytes", "sqnr_db"
SOURCE = files.Source(FOLDER, *SUFFIXES)
FIELDS = "name", "shape", "a", "b", "bytes_a", "bytes_b", *(field.name for field in fields(Comparison))
COMPARED = "name", "shape", "a", "b", "sqnr_db", "max_abs_error", "mean_abs_error", "clipped", "bytes_a", "bytes_b"
ANY = files.Source(FOLDER, ZARR_STORE, *SUFFIXES, *NETCDF)


@click.command(short_help="Show the tensors of files.")
@click.argument("source", metavar="FILE|DIR", type=ANY)
@json_option
@click.option("--header", is_flag=True, help="Read names, shapes and sizes only, not the numbers.")
def inspect(source: Path, as_json: bool, header: bool) -> None:
    """Show the tensors of a .npy, .npz, .safetensors or .gguf file, of a model directory, or of a folder of such files.

    Variables of netCDF files and zarr stores are shown with their packing and the range of their values.

    The codes, scales and zero points of a quantized matrix are one tensor. The table has shapes, dtypes or schemes,
    bytes, ranges, counts of NaN and infinities, and outlier channels: for each axis, the indices whose largest
    magnitude is at least six times the median. For GGUF files it has types, bits per weight and metadata.

    Exit codes: 0; 1 for a file that can't be read; 2 for wrong arguments; 4 for a model with an invalid config.json,
    whose tensors are shown as they are stored.
    """
    if source.suffix == ".gguf":
        inspect_gguf(source, as_json=as_json)
        return
    with files.failures(called(source), source):
        try:
            with notice_if_slow(f"opening {called(source)}"):
                found = tensors_of(source, say=note)
        except ValueError as error:
            try:  # if config.json is invalid
                found = tensors_of(source, as_stored=True)
            except ValueError:
                raise error from None
            note(f"{called(source)}: {error}; its tensors are shown as they are stored", IN_PART)
        _note_codes(source, found)
        tensors = list(found.values())
        packing = list(dict.fromkeys(key for tensor in tensors for key in tensor.about))
        entries: list[Entry] = []
        with files.progress_bar(tensors) as advance:
            for tensor in tensors:
                about = {"name": tensor.name, "shape": tensor.shape, "scheme": tensor.scheme, "bytes": tensor.nbytes}
                is_read = tensor.has_numbers and not header
                noted = dict.fromkeys(packing) | dict(tensor.about)
                entries.append(about | noted | (asdict(tensor.extent(advance)) if is_read else {}))
                advance(0 if is_read else tensor.nbytes, 1)
    if as_json:
        print_json({"tensors": entries})
        return
    print_table(entries, (*INSPECTED[:3], *packing, "bytes", *(() if header else INSPECTED[4:])))
    quantized = sum(tensor.is_quantized for tensor in tensors)
    nbytes = sum(tensor.nbytes for tensor in tensors)
    print_line(f"{count_text(len(tensors), 'tensor')}, {nbytes:,} bytes, {quantized:,} quantized")


@click.command(short_help="Find the scheme with the fewest bits.")
@click.argument("source", metavar="FILE|DIR", type=SOURCE)
@files.decibels("--sqnr", default=30.0, show_default=True, help="SQNR in dB that each tensor must reach.")
@json_option
@report.worst_option
def suggest(source: Path, sqnr: float, as_json: bool, worst_first: bool) -> None:
    """Find for each tensor the scheme with the fewest bytes that reaches a signal to quantization noise ratio.

    The schemes are those of the command that quantizes such files. For fastq quantize: int2 to int8 with zero points
    and without, float8_e4m3fn and float8_e5m2, each with one scale, with scales along any axis, and in blocks of 32
    along any axis; the MX formats and NVFP4 along any axis. For fastq convert: schemes that quantize weights only, on
    the matrices that it quantizes. For fastq gguf: all types of blocks that need no importance matrix, and BF16. The
    SQNR is that of the whole tensor, and the bytes are those that the command writes for it. If no scheme reaches the
    SQNR, the best one is printed. Floating-point tensors of two or more axes are tried, and the array of a .npy file.
    Standard error lists the tensors that were left out and, for models and GGUF files, the command to use.

    Exit codes: 0; 1 for a file that can't be read; 2 for wrong arguments; 3 if no scheme reaches the SQNR for some
    tensor.
    """
    with files.failures(called(source), source):
        with notice_if_slow(f"opening {called(source)}"):
            opened = tensors_of(source, say=note)
        _note_codes(source, opened)
        found = opened.values()
        parts = parts_of_weights(elsewhere_in(opened.values()))
        trials = schemes_for(source)
        reasons = [_reason(tensor, parts, vectors=trials.vectors) or trials.stays(tensor) for tensor in found]
        tensors = [tensor for tensor, reason in zip(found, reasons, strict=True) if not reason]
        left = Counter(filter(None, reasons))
        chosen: dict[str, tuple[Scheme | str, int, float]] = {}
        groups: dict[Any, list[Tensor]] = {}
        for tensor in tensors:
            groups.setdefault(trials.group(tensor), []).append(tensor)
        with files.progress_bar(tensors) as advance:
            for group in groups.values():
                suggestion = _suggested(group, trials, sqnr)
                if suggestion is None:
                    left["no scheme is smaller"] += len(group)
                else:
                    figures = zip(group, suggestion.nbytes, suggestion.sqnr_db, strict=True)
                    chosen |= {tensor.name: (suggestion.scheme, nbytes, ratio) for tensor, nbytes, ratio in figures}
                for tensor in group:
                    advance(tensor.nbytes, 1)
        told = f"left out: {', '.join(f'{count:,} ({reason})' for reason, count in left.items())}"
        if not chosen:
            raise in_one_line(called(source), f"no tensor of two axes or more of {', '.join(FLOATS)}; {told}")
    entries = []
    rows = []
    for tensor in (tensor for tensor in tensors if tensor.name in chosen):
        scheme, nbytes, ratio = chosen[tensor.name]
        signal = signal_of(tensor.values())
        sums = Errors(signal and signal * 10 ** (-ratio / 10), signal, math.nan)
        as_text = scheme.arguments() if as_json and isinstance(scheme, Scheme) else str(scheme)
        about: Entry = {"name": tensor.name, "shape": tensor.shape, "scheme": as_text, "bytes_before": tensor.nbytes}
        about |= {"bytes": nbytes, "bits": 8 * nbytes / math.prod(tensor.shape), "sqnr_db": ratio}
        entries.append(about)
        rows.append(Converted(tensor.name, tensor.shape, tensor.nbytes, nbytes, "", str(scheme), sums))
    if as_json:
        print_json({"tensors": entries})
    else:
        print_table(arranged(entries, every=True, worst_first=worst_first), SUGGESTED)
        print_line(total_text(rows, done="tried"))
    if left:
        note(told)
    if way := command(source, Counter(str(scheme) for scheme, *_ in chosen.values())):
        note(way)
    short = [f"{name} ({ratio:.2f})" for name, (_, _, ratio) in chosen.items() if not ratio >= sqnr]
    if short:
        note(f"no scheme reaches {sqnr:g} dB: {some_of(short)}", TOO_FAR)


def _note_codes(source: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a line on the weights that are codes without a description."""
    if line := codes_read_as_stored(source, tensors.values()):
        note(line)


def _reason(tensor: Tensor, parts: Collection[str], *, vectors: bool) -> str:
    """Return why a tensor is left out, or an empty text if it is not; `parts` are codes and scales."""
    if tensor.is_quantized or tensor.name in parts:
        return "quantized already"
    if tensor.scheme not in FLOATS:
        return tensor.scheme
    if not tensor.shape or (len(tensor.shape) < 2 and not vectors):
        return "vectors" if tensor.shape else "scalars"
    return "" if math.prod(tensor.shape) else "no elements"


def _suggested(group: list[Tensor], trials: Trials, sqnr: float) -> Suggestion | None:
    """Return the scheme for the tensors of a group."""
    return cheapest([_ways_of(tensor, trials) for tensor in group], sqnr)


def _ways_of(tensor: Tensor, trials: Trials) -> list[Way]:
    """Return the schemes of a tensor; an error names it."""
    with pipeline.naming(lambda error: f"tensor {tensor.name!r}: {error}"):
        return trials.ways(tensor)


@click.command(short_help="Measure errors of one file against another.")
@click.argument("a", metavar="A", type=ANY)
@click.argument("b", metavar="B", type=ANY)
@files.decibels("--at-least", help="SQNR in dB: exit with 3 if a tensor is below it.")
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
        files.check_replaceable(shown.report, "--report", {"A": a, "B": b})
    ours, theirs = map(_opened, (a, b))
    ours, theirs = with_experts_apart(ours, theirs), with_experts_apart(theirs, ours)
    with files.failures(called(a), a):
        if ".npy" in (a.suffix, b.suffix) and len(ours) == len(theirs) == 1:  # named for their files
            theirs = dict(zip(ours, theirs.values(), strict=True))
        code = IN_PART if at_least is None else TOO_FAR
        common = [(ours[name], theirs[name]) for name in _common(a, b, ours, theirs, code)]
        pairs = [pair for pair in common if _is_measured(*pair, a, b, code) and 0 not in pair[0].shape]
        pairs = [pair for pair in pairs if _agree(*pair, a, b, code)]
        quantized = any(tensor.is_quantized for tensor in (*ours.values(), *theirs.values()))
        if quantized and not any(tensor.is_quantized for pair in pairs for tensor in pair):
            note(f"no quantized tensor is among the {len(pairs):,} that were compared", IN_PART)
        with files.progress_bar([x for x, _ in pairs]) as advance:
            found = [_compared(*pair, quantized, advance, code) for pair in pairs]
        entries = [entry for entry, _ in found]
        rows = [row for _, row in found]
        about = {"title": f"{called(b)} compared with {called(a)}", "done": "quantized" if quantized else "compared"}
        pictured = None if any(tensor.reader for tensor in ours.values()) else operands(ours, theirs)
        show(shown, rows, COMPARED, entries=entries, fields=FIELDS, errors_of=pictured, **about)
        if any(tensor.reader for pair in pairs for tensor in pair) and not shown.as_json:
            print_line(f"on disk, where they may be compressed: {files.sizes_text(a, b)}")
    low = [entry for entry in entries if at_least is not None and not entry["sqnr_db"] >= at_least]
    low.sort(key=lambda entry: float(entry["sqnr_db"]))
    if low:
        worst = some_of([f"{entry['name']} ({cell_text('sqnr_db', entry['sqnr_db'])})" for entry in low])
        note(f"below {at_least:g} dB: {worst}", TOO_FAR)


# Which tensors are compared


def _opened(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one side; an error is about its file."""
    with files.failures(called(path), path), notice_if_slow(f"opening {called(path)}"):
        tensors = tensors_of(path, say=note)
    _note_codes(path, tensors)
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
    for dim in theirs:
        if dim in ours and not labels.agree(theirs[dim], ours[dim]):
            how = f"along {dim} {labels.disagreement(theirs[dim], ours[dim], called(b), called(a))}"
            note(f"{x.name}: not measured: {how}; bring both to the same labels, as sel of xarray does", code)
            return False
    return True


# What is measured


def _compared(x: Tensor, y: Tensor, quantized: bool, advance: Progress, code: int) -> tuple[Entry, Converted]:
    """Return a row; its sums are part of the total if it is quantized, or if nothing is quantized on either side."""
    with pipeline.naming(lambda error: f"tensor {x.name!r}: {error}"):
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
        return kind, Comparison(0.0, math.inf, 0.0, 0.0, 0.0, 0.0, None), pipeline.NO_ERRORS
    return kind, comparison_of(totals), errors_in(totals)
