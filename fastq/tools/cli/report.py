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
from fastq.tools.cli.errors import one_line_errors
from fastq.tools.cli.html_report import ArraysOf, page, picture_of, worst_of
from fastq.tools.cli.output_paths import WRITABLE, with_suffix
from fastq.tools.cli.progress import with_progress
from fastq.tools.cli.tables import EQUAL, Entry, arrange_rows, print_table, shape_text
from fastq.tools.cli.terminal import print_line, printable
from fastq.tools.files.pipeline import Converted, total_of
from fastq.tools.files.texts import some_of
from fastq.tools.tensors.reading import tensors_of
from fastq.tools.tensors.tensor import Tensor

COMPARABLE = "float16", "bfloat16", "float32", "float64"
# columns of the table of converted tensors
CONVERTED = "name", "shape", "bytes_before", "scheme", "bytes", "sqnr_db", "max_abs_error"
# fields of each tensor in JSON and in reports, and of all tensors in JSON
FIELDS = "name", "shape", "scheme", "bytes_before", "bytes", "sqnr_db", "max_abs_error"
FIGURES = "bytes_before", "bytes", "sqnr_db"
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


class TableOptions(NamedTuple):
    """The options of a command that say where its table goes."""

    as_json: bool
    report: Path | None
    every: bool
    worst_first: bool

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> TableOptions:
        """Take these options out of the options of a command."""
        return cls(
            as_json=options.pop("as_json"),
            report=options.pop("report"),
            every=options.pop("every"),
            worst_first=options.pop("worst_first"),
        )


def table_options(command: Any) -> Any:
    """Give a command the options of `TableOptions`."""
    every = click.option("--every", is_flag=True, help=EVERY_HELP)
    return json_option(report_option(every(worst_option(command))))


def show_table(
    options: TableOptions,
    rows: Sequence[Converted],
    columns: Sequence[str] = CONVERTED,
    *,
    entries: Sequence[Entry] = (),
    fields: Sequence[str] = FIELDS,
    title: str,
    done: str = "quantized",
    arrays_of: ArraysOf | None = None,
) -> None:
    """Write the report, if there is one, then print the table or JSON, and the sums of all tensors.

    Entries, by default those of converted tensors, have a column for each field and for each column of the table.
    """
    entries = entries or [*map(entry_of, rows)]
    totals = entry_of(total_of(rows))
    text = total_text(rows, done=done)
    table = {"tensors": [{field: entry[field] for field in fields} for entry in entries]}
    table |= {name: totals[name] for name in FIGURES}
    if options.report is not None:  # before the table, whose reader may end early, as head does
        with one_line_errors(options.report, options.report):
            write_report(options.report, title, text, table, arrays_of)
    if options.as_json:
        print_json(table)
    else:
        total = totals if "bytes" in columns else None
        shown_rows = arrange_rows(entries, every=options.every, worst_first=options.worst_first)
        print_table(shown_rows, columns, total=total)
        print_line(text)


def total_text(rows: Sequence[Converted], *, done: str = "quantized") -> str:
    """Return the last line of all commands: bytes, their ratio, the SQNR of all tensors, and the worst tensor."""
    total = total_of(rows)
    measured = [row for row in rows if row.errors is not None]
    counted = f", {len(measured):,} {done}" if measured else ""
    parts = [f"{total.name}{counted}: {total.before:,} -> {total.after:,} bytes"]
    if total.after:
        parts.append(f"{total.before / total.after:.2f} x")
    ratios = [(row.name, ratio) for row in measured if (ratio := row.sqnr_db) is not None]
    unknown = [printable(name) for name, ratio in ratios if math.isnan(ratio)]  # infinite values, or their squares are
    known = [(ratio, name) for name, ratio in ratios if not math.isnan(ratio)]
    worst, name = min(known, default=(math.inf, ""))
    if worst < math.inf:
        if total.sqnr_db is not None and not math.isnan(total.sqnr_db):
            parts.append(f"{total.sqnr_db:.2f} dB")
        parts.append(f"worst {worst:.2f} dB: {printable(name)}")
    elif known and not unknown:
        parts.append(EQUAL)
    if unknown:
        parts.append(f"no SQNR: {some_of(unknown)}")
    return ", ".join(parts)


def print_json(table: Entry) -> None:
    """Print an object as JSON."""
    click.echo(json_text(table), nl=False)


def json_text(table: Entry) -> str:
    """Return an object as JSON; NaN and infinities, which JSON lacks, are null."""
    return json.dumps(_without_infinities(table), indent=1, allow_nan=False) + "\n"


def _without_infinities(value: Any) -> Any:
    """Return a value of JSON in which NaN and infinities are None."""
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_text(columns: Sequence[str], entries: Sequence[Entry]) -> str:
    """Return entries as CSV with a line of names; a field that is None is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        cells = {key: shape_text(cell) if isinstance(cell, tuple) else cell for key, cell in entry.items()}
        writer.writerow(cells)
    return text.getvalue()


def arrays_of_pictures(a: Path | Mapping[str, Tensor], b: Path | Mapping[str, Tensor]) -> ArraysOf:
    """Return the function that reads what a picture shows: a tensor of A, and the tensor of B with the same name."""

    def read(name: str) -> tuple[Any, Any]:
        """Return the values of a tensor of A, and the codes or values of that of B; files are read anew."""
        ours = tensors_of(a) if isinstance(a, Path) else a
        theirs = tensors_of(b) if isinstance(b, Path) else b
        return as_float(ours[name].values()), as_float(theirs[name].codes())

    return read


def as_float(values: Any) -> Any:
    """Return codes as they are, and values as floats."""
    is_comparable = isinstance(values, QuantizedArray) or values.dtype.name in COMPARABLE
    return values if is_comparable else values.astype(np.float64)


def write_report(path: Path, title: str, summary: str, table: Entry, arrays_of: ArraysOf | None) -> None:
    """Write a table to a file of the format that its suffix names: JSON, CSV, or HTML with pictures of the worst."""
    entries = table["tensors"]
    fields = list(entries[0]) if entries else FIELDS
    if path.suffix == ".html":
        rows = arrange_rows(entries, every=True, worst_first=True)
        worst = worst_of(entries)
        pictures: list[tuple[str, str]] = []
        if worst and arrays_of is not None:
            shown = with_progress(worst, f"pictures of {path.name}")
            pictures = [picture_of(entry, arrays_of) for entry in shown]
        text = page(title, summary, fields, rows, pictures)
    else:
        text = csv_text(fields, entries) if path.suffix == ".csv" else json_text(table)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "replace"))
