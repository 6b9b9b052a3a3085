"""The HTML of a report: a table with bars that can be sorted, and pictures of the worst tensors."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import fastq
from fastq.tools.cli.tables import Entry, cell_text, title_of

INK = "#010203"  # colour of text and lines, in no colour scale: it is replaced by the colour of the page
NO_PICTURE = "<p>No picture: pip install matplotlib</p>"
WORST = 3  # most tensors with a picture

# returns for the name of a tensor an array and its approximation, the arguments of `fastq.plot.errors`
ArraysOf = Callable[[str], tuple[Any, Any]]

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


def page(
    title: str, summary: str, fields: Sequence[str], entries: Sequence[Entry], pictures: Iterable[tuple[str, str]] = ()
) -> str:
    """Return a page with a row for each entry, bars of the ratio `sqnr_db`, and titled pictures, the first open."""
    ratios = [ratio for entry in entries if (ratio := entry["sqnr_db"]) is not None and math.isfinite(ratio)]
    largest_ratio = max(ratios, default=1.0)
    rows = []
    for entry in entries:
        cells = [_cell(key, entry[key], largest_ratio) for key in fields]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    details = []
    for k, (name, svg) in enumerate(pictures):
        state = " open" if k == 0 else ""
        details.append(f"<details{state}><summary>{html.escape(name)}</summary>\n{svg}</details>")
    return _PAGE.format(
        title=html.escape(title),
        summary=html.escape(summary),
        heads="".join(f'<th scope="col"><button>{title_of(field)}</button></th>' for field in fields),
        rows="\n".join(rows),
        pictures="\n".join(details),
    )


def _cell(key: str, value: Any, largest_ratio: float) -> str:
    """Return a cell, that of a ratio with a bar."""
    # the number by which the page sorts: JavaScript reads 1e999 as infinity
    sort_value = {math.inf: "1e999", -math.inf: "-1e999"}.get(value, value) if isinstance(value, float) else value
    text = cell_text(key, value)
    bar = _bar(value, largest_ratio) if key == "sqnr_db" else ""
    return f'<td data-value="{html.escape(str(sort_value))}">{html.escape(text)}{bar}</td>'


def _bar(ratio: float | None, largest_ratio: float) -> str:
    """Return a bar whose length is the share of a ratio in the largest one; without length for an unknown ratio."""
    share = 0.0
    if ratio is not None and not math.isnan(ratio) and largest_ratio > 0:
        share = min(max(ratio / largest_ratio, 0.0), 1.0)
    rectangle = f'<rect width="{80 * share:.1f}" height="10" fill="#0072B2"/>'
    return f'<svg width="80" height="10" aria-hidden="true">{rectangle}</svg>'


def worst_of(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of the tensors with the lowest SQNR, which have pictures: those without NaN."""
    with_errors = [entry for entry in entries if entry["sqnr_db"] is not None and math.isfinite(entry["sqnr_db"])]
    without_nan = [entry for entry in with_errors if not entry.get("nan")]
    return sorted(without_nan, key=lambda entry: float(entry["sqnr_db"]))[:WORST]


def picture_of(entry: Entry, arrays_of: ArraysOf) -> tuple[str, str]:
    """Return a title and a picture of the errors of a tensor."""
    x, approximation = arrays_of(entry["name"])
    return f"{entry['name']}: {entry['sqnr_db']:.2f} dB", _svg(x, approximation)


def _svg(x: Any, approximation: Any) -> str:
    """Return the picture of the errors of an approximation, with text and lines in the colour of the page."""
    try:
        import matplotlib
    except ImportError:
        return NO_PICTURE
    matplotlib.use("agg", force=False)
    from matplotlib import pyplot

    colours = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = dict.fromkeys(colours, INK) | {"svg.fonttype": "none", "font.family": "sans-serif"}
    with pyplot.rc_context(style):
        figure = fastq.plot.errors(x, approximation)[0].figure
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True)
        pyplot.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")
