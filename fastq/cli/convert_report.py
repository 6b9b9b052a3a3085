"""The table of `fastq convert` as a file: JSON, CSV, or HTML with a picture of the worst tensor."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastq.io.checkpoints.converting import Conversion, Converted
from fastq.io.checkpoints.quantizing import Quantization
from fastq.system.atomic import replacing

FIELDS = ("name", "shape", "scheme", "bytes_before", "bytes", "sqnr_db", "max_abs_error")
STYLE = (
    "body{font-family:sans-serif}td,th{padding:2px 8px;text-align:right}td:first-child{text-align:left}img{width:100%}"
)


def write_report(path: Path, rows: list[Converted], conversion: Conversion) -> None:
    """Write the table to a file of the format that its suffix names."""
    text = REPORTS[path.suffix](rows, conversion)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "replace"))


def _values(row: Converted) -> dict[str, Any]:
    """Return the fields of a tensor; a ratio without noise is null, as JSON has no infinity."""
    ratio = row.sqnr_db if row.sqnr_db is not None and math.isfinite(row.sqnr_db) else None
    values = row.name, row.shape, row.scheme, row.before, row.after, ratio, row.max_abs_error
    return dict(zip(FIELDS, values, strict=True))


def _json(rows: list[Converted], conversion: Conversion) -> str:
    return json.dumps({"tensors": [_values(row) for row in rows]}, indent=1) + "\n"


def _csv(rows: list[Converted], conversion: Conversion) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS)
    writer.writeheader()
    writer.writerows(_values(row) for row in rows)
    return text.getvalue()


def _html(rows: list[Converted], conversion: Conversion) -> str:
    head = "".join(f"<th>{field}</th>" for field in FIELDS)
    lines = ["".join(f"<td>{_cell(value)}</td>" for value in _values(row).values()) for row in rows]
    table = "\n".join(f"<tr>{line}</tr>" for line in (head, *lines))
    return (
        f'<!doctype html><meta charset="utf-8"><title>fastq convert</title><style>{STYLE}</style>\n'
        f"{_worst(rows, conversion)}<table>\n{table}\n</table>\n"
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    style = ".5g" if isinstance(value, float) else "," if isinstance(value, int) else ""
    return html.escape(format(value, style))


def _worst(rows: list[Converted], conversion: Conversion) -> str:
    """Return a picture of the tensor with the least ratio of signal to noise; nothing without matplotlib."""
    measured = [row for row in rows if row.sqnr_db is not None and math.isfinite(row.sqnr_db)]
    if not measured or not isinstance(conversion, Quantization):
        return ""
    row = min(measured, key=lambda row: row.sqnr_db or 0.0)
    picture = _picture(*conversion.sample(row.name))
    title = f"<h2>{html.escape(row.name)}: {row.sqnr_db:.2f} dB, the worst</h2>\n"
    image = f'<img src="data:image/png;base64,{picture}">' if picture else "<p>no picture: pip install matplotlib</p>"
    return f"{title}{image}\n"


def _picture(x: Any, q: Any) -> str:
    try:
        import matplotlib

        matplotlib.use("agg", force=False)
        from matplotlib import pyplot
    except ImportError:
        return ""
    import fastq

    figure, axes = pyplot.subplots(2, 2, figsize=(12, 10), layout="constrained")
    fastq.plot.errors(x, q, ax=axes)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    pyplot.close(figure)
    return base64.b64encode(image.getvalue()).decode()


REPORTS: dict[str, Callable[[list[Converted], Conversion], str]] = {".json": _json, ".csv": _csv, ".html": _html}
