"""A page of HTML: one file, a table that sorts, bars, pictures that fold; light and dark as the reader has it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from fastq.cli.pictures import Picture

# of the columns
TITLES = {
    "name": "tensor",
    "shape": "shape",
    "a": "A",
    "b": "B",
    "bytes_a": "bytes A",
    "bytes_b": "bytes B",
    "scheme": "scheme",
    "bytes_before": "bytes before",
    "bytes": "bytes",
    "sqnr_db": "SQNR dB",
    "max_abs_error": "largest error",
    "mean_abs_error": "mean error",
    "mse": "mean squared error",
    "max_relative_error": "largest relative error",
    "mean_relative_error": "mean relative error",
    "clipped": "clipped",
}

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
td:first-child {{ white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }}
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
    title: str, summary: str, fields: Sequence[str], entries: Sequence[dict[str, Any]], pictures: Iterable[Picture] = ()
) -> str:
    """Return a page with a row for each entry, whose fields are of `TITLES`, and pictures, of which the first is open.

    The ratio `sqnr_db` has a bar next to it, as long as its share of the largest one.
    """
    ratios = [ratio for entry in entries if (ratio := entry["sqnr_db"]) is not None and math.isfinite(ratio)]
    most = max(ratios, default=1.0)
    return _PAGE.format(
        title=html.escape(title),
        summary=html.escape(summary),
        heads="".join(f'<th scope="col"><button>{TITLES[field]}</button></th>' for field in fields),
        rows="\n".join(f"<tr>{''.join(_cell(key, entry[key], most) for key in fields)}</tr>" for entry in entries),
        pictures="\n".join(
            f"<details{'' if k else ' open'}><summary>{html.escape(picture.title)}</summary>\n{picture.svg}</details>"
            for k, picture in enumerate(pictures)
        ),
    )


_STYLES = {float: ".4g", int: ","}


def _cell(key: str, value: Any, most: float) -> str:
    """Return a cell with what it is sorted by; the ratio with a bar."""
    sorted_by = {math.inf: "1e999", -math.inf: "-1e999"}.get(value, value) if isinstance(value, float) else value
    text = "-" if value is None else format(value, _STYLES.get(type(value), ""))
    bar = _bar(value, most) if key == "sqnr_db" else ""
    return f'<td data-value="{html.escape(str(sorted_by))}">{html.escape(text)}{bar}</td>'


def _bar(value: float | None, most: float) -> str:
    share = 0.0 if value is None or math.isnan(value) else min(max(value / most, 0.0), 1.0) if most > 0 else 0.0
    bar = f'<rect width="{80 * share:.1f}" height="10" fill="#0072B2"/>'
    return f'<svg width="80" height="10" aria-hidden="true">{bar}</svg>'
