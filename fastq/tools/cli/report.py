"""Reports of commands: the table of converted tensors; entries as a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from fastq.results import QuantizedArray
from fastq.system.atomic import replacing
from fastq.tools.cli.errors import failures
from fastq.tools.cli.html_report import ErrorsOf, page, pictures_of_worst
from fastq.tools.cli.output_paths import WRITABLE, with_suffix
from fastq.tools.cli.progress import patience
from fastq.tools.cli.tables import EQUAL, Entry, arranged, print_table, shape_text
from fastq.tools.cli.terminal import print_line, printable
from fastq.tools.files.pipeline import Converted, total_of
from fastq.tools.tensors.reading import tensors_of
from fastq.tools.tensors.tensor import Tensor

COMPARABLE = "float16", "bfloat16", "float32", "float64"
CONVERTED = "name", "shape", "bytes_before", "scheme", "bytes", "sqnr_db", "max_abs_error"  # columns
FIELDS = "name", "shape", "scheme", "bytes_before", "bytes", "sqnr_db", "max_abs_error"  # of JSON and of reports
FIGURES = "bytes_before", "bytes", "sqnr_db"  # of all tensors, as JSON
REPORT_HELP = "Also write the table to a .json, .csv or .html file; HTML has pictures of the worst tensors."
EVERY_HELP = "Print one row for each tensor, also for those that were copied."


def entry_of(row: Converted) -> Entry:
    """Return the entry of a converted tensor, or of the sums of all tensors, which have no shape."""
    return {
        "name": row.name,
        "shape": "" if row.shape is None else row.shape,
        "from": row.source,
        "to": row.target,
        "scheme": f"{row.target}, {row.remark}" if row.remark else row.target,
        "bytes_before": row.before,
        "bytes": row.after,
        "bits": 8 * row.after / row.size if row.size else None,
        "sqnr_db": row.sqnr_db,
        "max_abs_error": row.max_abs_error,
        "imatrix": row.weighted,
    }


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
worst_option = click.option("--worst-first", is_flag=True, help="Sort the table by SQNR, the lowest first.")
report_option = click.option(
    "--report", type=WRITABLE, callback=with_suffix(".json", ".csv", ".html"), help=REPORT_HELP
)


class Shown(NamedTuple):
    """The options of a command that say where its table goes."""

    as_json: bool
    report: Path | None
    every: bool
    worst_first: bool

    @classmethod
    def taken(cls, given: dict[str, Any]) -> Shown:
        """Take these options out of the options of a command."""
        return cls(*(given.pop(name) for name in cls._fields))


def table_options(command: Any) -> Any:
    """Give a command the options of `Shown`."""
    every = click.option("--every", is_flag=True, help=EVERY_HELP)
    return json_option(report_option(every(worst_option(command))))


def show(
    shown: Shown,
    rows: Sequence[Converted],
    columns: Sequence[str] = CONVERTED,
    *,
    entries: Sequence[Entry] = (),
    fields: Sequence[str] = FIELDS,
    title: str,
    done: str = "quantized",
    errors_of: ErrorsOf | None = None,
) -> None:
    """Write the report, if there is one, then print the table or JSON, and the sums of all tensors.

    Entries, by default those of converted tensors, have a column for each field and for each column of the table.
    """
    entries = entries or [*map(entry_of, rows)]
    totals = entry_of(total_of(rows))
    text = total_text(rows, done=done)
    table = {"tensors": [{field: entry[field] for field in fields} for entry in entries]}
    table |= {name: totals[name] for name in FIGURES}
    if shown.report is not None:  # before the table, whose reader may end early, as head does
        with failures(shown.report, shown.report):
            write_report(shown.report, title, text, table, errors_of)
    if shown.as_json:
        print_json(table)
    else:
        total = totals if "bytes" in columns else None
        print_table(arranged(entries, every=shown.every, worst_first=shown.worst_first), columns, total=total)
        print_line(text)


def total_text(rows: Sequence[Converted], *, done: str = "quantized") -> str:
    """Return the last line of all commands: bytes, their ratio, the SQNR of all tensors, and the worst tensor."""
    total = total_of(rows)
    measured = [row for row in rows if row.errors is not None]
    counted = f", {len(measured):,} {done}" if measured else ""
    parts = [f"{total.name}{counted}: {total.before:,} -> {total.after:,} bytes"]
    parts += [f"{total.before / total.after:.2f} x"] if total.after else []
    ratios = [(ratio, row.name) for row in measured if (ratio := row.sqnr_db) is not None and not math.isnan(ratio)]
    if ratios and total.sqnr_db is not None:
        worst, name = min(ratios)
        parts += [f"{total.sqnr_db:.2f} dB, worst {worst:.2f} dB: {printable(name)}" if worst < math.inf else EQUAL]
    return ", ".join(parts)


def print_json(table: Entry) -> None:
    """Print an object as JSON."""
    click.echo(json_text(table), nl=False)


def json_text(table: Entry) -> str:
    """Return an object as JSON; NaN and infinities, which JSON lacks, are null."""
    return json.dumps(_finite(table), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_text(columns: Sequence[str], entries: Sequence[Entry]) -> str:
    """Return entries as CSV with a line of names; a field that is None is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        writer.writerow({key: shape_text(each) if isinstance(each, tuple) else each for key, each in entry.items()})
    return text.getvalue()


def operands(a: Path | Mapping[str, Tensor], b: Path | Mapping[str, Tensor]) -> ErrorsOf:
    """Return the function that reads what a picture shows: a tensor of A, and the tensor of B with the same name."""

    def read(name: str) -> tuple[Any, Any]:
        ours, theirs = (tensors_of(each) if isinstance(each, Path) else each for each in (a, b))
        return as_float(ours[name].values()), as_float(theirs[name].codes())

    return read


def as_float(values: Any) -> Any:
    """Return codes as they are, and values as floats."""
    is_taken = isinstance(values, QuantizedArray) or values.dtype.name in COMPARABLE
    return values if is_taken else values.astype(np.float64)


def write_report(path: Path, title: str, summary: str, table: Entry, errors_of: ErrorsOf | None) -> None:
    """Write a table to a file of the format that its suffix names: JSON, CSV, or HTML with pictures of the worst."""
    entries = table["tensors"]
    fields = list(entries[0]) if entries else FIELDS
    if path.suffix == ".html":
        shown = arranged(entries, every=True, worst_first=True)
        with patience(f"drawing the pictures of {path.name}"):
            text = page(title, summary, fields, shown, pictures_of_worst(entries, errors_of) if errors_of else ())
    else:
        text = csv_text(fields, entries) if path.suffix == ".csv" else json_text(table)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "replace"))
