"""Reports of commands: the table of converted tensors; entries as JSON, as CSV, and as HTML with bars and pictures."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

import fastq
from fastq.formats.conventions import CONVENTIONS
from fastq.formats.describe import code_formula, scale_formula, zero_point_formula
from fastq.results import QuantizedArray
from fastq.system.atomic import replacing
from fastq.tools.cli import files, tables
from fastq.tools.cli.tables import EQUAL, Entry, arranged, cell_text, print_line, printable, shape_text, title_of
from fastq.tools.files.pipeline import Converted, total_of
from fastq.tools.tensors.reading import tensors_of
from fastq.tools.tensors.tensor import Tensor

PAGE = 80  # columns of paragraphs if the width of the terminal is unknown
INK = "#010203"  # colour of text and lines, in no colour scale: it is replaced by the colour of the page
NONE = "<p>No picture: pip install matplotlib</p>"
WORST = 3  # most tensors with a picture
COMPARABLE = "float16", "bfloat16", "float32", "float64"
CONVERTED = "name", "shape", "bytes_before", "scheme", "bytes", "sqnr_db", "max_abs_error"  # columns
FIELDS = "name", "shape", "scheme", "bytes_before", "bytes", "sqnr_db", "max_abs_error"  # of JSON and of reports
FIGURES = "bytes_before", "bytes", "sqnr_db"  # of all tensors, as JSON
REPORT_HELP = "Also write the table to a .json, .csv or .html file; HTML has pictures of the worst tensors."
EVERY_HELP = "Print one row for each tensor, also for those that were copied."

# returns for the name of a tensor an array and its approximation, the arguments of `fastq.plot.errors`
ErrorsOf = Callable[[str], tuple[Any, Any]]

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 14px/1.5 sans-serif; margin: 1.5rem; background: Canvas; color: CanvasText; }}
h1, summary {{ overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; line-height: 1.2; }}
summary {{ cursor: pointer; padding: .3rem 0; }}
details {{ max-width: 80rem; overflow-x: auto; }}
details > svg {{ max-width: 100%; min-width: 40rem; height: auto; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child {{ text-align: left; position: sticky; left: 0; background: Canvas; }}
td:first-child {{ white-space: normal; overflow-wrap: anywhere; min-width: min(22rem, 36vw); }}
th button {{ font: inherit; font-weight: bold; color: inherit; background: none; border: 0; padding: 0; }}
th button {{ cursor: pointer; }}
th[aria-sort=ascending] button::after {{ content: " \\25B2"; }}
th[aria-sort=descending] button::after {{ content: " \\25BC"; }}
td svg {{ vertical-align: middle; margin-left: .5rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
<div class="table"><table><thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody></table></div>
{pictures}
<script>
const body = document.querySelector("tbody");
document.querySelectorAll("th button").forEach((button, column) => button.addEventListener("click", () => {{
  const head = button.parentElement, up = head.getAttribute("aria-sort") !== "ascending";
  document.querySelectorAll("th").forEach(each => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => row.cells[column].dataset.value;
  const order = (one, other) => {{
    const a = key(one), b = key(other), x = Number(a), y = Number(b);
    const less = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
    return up ? less : -less;
  }};
  body.append(...[...body.rows].sort(order));
}}));
</script></body></html>
"""


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
    "--report", type=files.WRITABLE, callback=files.with_suffix(".json", ".csv", ".html"), help=REPORT_HELP
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
        with files.failures(shown.report, shown.report):
            write_report(shown.report, title, text, table, errors_of)
    if shown.as_json:
        print_json(table)
    else:
        total = totals if "bytes" in columns else None
        tables.print_table(arranged(entries, every=shown.every, worst_first=shown.worst_first), columns, total=total)
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


def print_facts(facts: Mapping[str, str]) -> None:
    """Print a line for each fact, its name first; long facts continue on indented lines."""
    width = tables.terminal_width() or tables.UNLIMITED
    indent = max(map(len, facts)) + 2
    for name, text in facts.items():
        tables.print_wrapped(f"{name:{indent}}{text}", width, " " * indent)


def print_conventions(names: Iterable[str]) -> None:
    """Print a paragraph for each convention: name and system, and the formulas, in lines that fit."""
    width = tables.terminal_width() or PAGE
    for row in map(CONVENTIONS.__getitem__, names):
        first = row.under(False, "array")
        tables.print_wrapped(f"{row.name}: {row.system}", width, "  ")
        for title, formula in (("code", code_formula), ("scale", scale_formula), ("zero point", zero_point_formula)):
            tables.print_wrapped(f"{title:10}  {formula(first)}", width, " " * 14, initial_indent="  ")


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
        with files.patience(f"drawing the pictures of {path.name}"):
            text = page(title, summary, fields, shown, _pictures_of_worst(entries, errors_of) if errors_of else ())
    else:
        text = csv_text(fields, entries) if path.suffix == ".csv" else json_text(table)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "replace"))


def page(
    title: str, summary: str, fields: Sequence[str], entries: Sequence[Entry], pictures: Iterable[tuple[str, str]] = ()
) -> str:
    """Return a page with a row for each entry, bars of the ratio `sqnr_db`, and titled pictures, the first open."""
    ratios = [ratio for entry in entries if (ratio := entry["sqnr_db"]) is not None and math.isfinite(ratio)]
    most = max(ratios, default=1.0)
    return _PAGE.format(
        title=html.escape(title),
        summary=html.escape(summary),
        heads="".join(f'<th scope="col"><button>{title_of(field)}</button></th>' for field in fields),
        rows="\n".join(f"<tr>{''.join(_cell(key, entry[key], most) for key in fields)}</tr>" for entry in entries),
        pictures="\n".join(
            f"<details{'' if k else ' open'}><summary>{html.escape(name)}</summary>\n{svg}</details>"
            for k, (name, svg) in enumerate(pictures)
        ),
    )


def _cell(key: str, value: Any, most: float) -> str:
    sorted_by = {math.inf: "1e999", -math.inf: "-1e999"}.get(value, value) if isinstance(value, float) else value
    text = cell_text(key, value)
    bar = ""
    if key == "sqnr_db":
        known = value is not None and not math.isnan(value) and most > 0
        share = min(max(value / most, 0.0), 1.0) if known else 0.0
        bar = f'<rect width="{80 * share:.1f}" height="10" fill="#0072B2"/>'
        bar = f'<svg width="80" height="10" aria-hidden="true">{bar}</svg>'
    return f'<td data-value="{html.escape(str(sorted_by))}">{html.escape(text)}{bar}</td>'


def _pictures_of_worst(entries: Sequence[Entry], errors_of: ErrorsOf) -> Iterator[tuple[str, str]]:
    measured = [entry for entry in entries if entry["sqnr_db"] is not None and math.isfinite(entry["sqnr_db"])]
    for entry in sorted(measured, key=lambda entry: float(entry["sqnr_db"]))[:WORST]:
        yield f"{entry['name']}: {entry['sqnr_db']:.2f} dB", _svg(*errors_of(entry["name"]))


def _svg(x: Any, q: Any) -> str:
    try:
        import matplotlib
    except ImportError:
        return NONE
    matplotlib.use("agg", force=False)
    from matplotlib import pyplot

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = dict.fromkeys(inked, INK) | {"svg.fonttype": "none", "font.family": "sans-serif"}
    with pyplot.rc_context(style):
        figure = fastq.plot.errors(x, q)[0].figure
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True)
        pyplot.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")
