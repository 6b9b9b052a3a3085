"""A page of HTML with a comparison: one file, a table that sorts, bars; light and dark as the reader has it."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

TITLES = {
    "name": "tensor",
    "shape": "shape",
    "a": "A",
    "b": "B",
    "bytes_a": "bytes A",
    "bytes_b": "bytes B",
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
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child {{ text-align: left; position: sticky; left: 0; background: Canvas; }}
th button {{ font: inherit; font-weight: bold; color: inherit; background: none; border: 0; padding: 0; }}
th button {{ cursor: pointer; }}
th[aria-sort=ascending] button::after {{ content: " \\25B2"; }}
th[aria-sort=descending] button::after {{ content: " \\25BC"; }}
svg {{ vertical-align: middle; margin-left: .5rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
<div class="table"><table><thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody></table></div>
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


def comparison_page(a: str, b: str, entries: Sequence[dict[str, Any]]) -> str:
    """Return the page of a comparison: entries have the keys of `TITLES`."""
    finite = [entry["sqnr_db"] for entry in entries if math.isfinite(entry["sqnr_db"])]
    most = max(finite, default=1.0)
    lowest = f", SQNR {min(finite):.2f} to {most:.2f} dB" if finite else ""
    sums = [sum(entry[side] for entry in entries) for side in ("bytes_a", "bytes_b")]
    return _PAGE.format(
        title=html.escape(f"{b} compared with {a}"),
        summary=f"{len(entries)} tensors, {sums[0]:,} and {sums[1]:,} bytes{lowest}",
        heads="".join(f'<th scope="col"><button>{title}</button></th>' for title in TITLES.values()),
        rows="\n".join(f"<tr>{''.join(_cell(key, entry[key], most) for key in TITLES)}</tr>" for entry in entries),
    )


def _cell(key: str, value: Any, most: float) -> str:
    """Return a cell with what it is sorted by; the ratio with a bar."""
    sorted_by = {math.inf: "1e999", -math.inf: "-1e999"}.get(value, value) if isinstance(value, float) else value
    text = f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value or "-")
    bar = _bar(value, most) if key == "sqnr_db" else ""
    return f'<td data-value="{html.escape(str(sorted_by))}">{html.escape(text)}{bar}</td>'


def _bar(value: float, most: float) -> str:
    share = 0.0 if math.isnan(value) else min(max(value / most, 0.0), 1.0) if most > 0 else 0.0
    bar = f'<rect width="{80 * share:.1f}" height="10" fill="#0072B2"/>'
    return f'<svg width="80" height="10" aria-hidden="true">{bar}</svg>'
