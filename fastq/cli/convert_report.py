"""The table of `fastq convert` as a file: JSON, CSV, or HTML with pictures of the worst tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastq.cli.page import page
from fastq.cli.pictures import pictures_of_worst
from fastq.cli.report import shape_text, total_text
from fastq.cli.tables import Entry, csv_text, json_text
from fastq.io.checkpoints.converting import Conversion
from fastq.io.checkpoints.quantizing import Quantization
from fastq.io.pipeline import Converted
from fastq.system.atomic import replacing

FIELDS = ("name", "shape", "scheme", "bytes_before", "bytes", "sqnr_db", "max_abs_error")


def write_report(path: Path, rows: list[Converted], conversion: Conversion) -> None:
    """Write the table to a file of the format that its suffix names."""
    text = REPORTS[path.suffix]([_entry(row) for row in rows], conversion, total_text(rows))
    with replacing(path) as file:
        file.write(text.encode("utf-8", "replace"))


def _entry(row: Converted) -> Entry:
    about = row.name, shape_text(row.shape or ()) or "scalar", row.target, row.before, row.after
    return dict(zip(FIELDS, (*about, row.sqnr_db, row.max_abs_error), strict=True))


def _html(entries: list[Entry], conversion: Conversion, total: str) -> str:
    quantized = isinstance(conversion, Quantization)
    pictures = pictures_of_worst(entries, conversion.sample) if isinstance(conversion, Quantization) else ()
    title = f"{conversion.source.path.name} {'quantized' if quantized else 'dequantized'}"
    return page(title, total, FIELDS, entries, pictures)


REPORTS: dict[str, Callable[[list[Entry], Conversion, str], str]] = {
    ".json": lambda entries, *_: json_text({"tensors": entries}),
    ".csv": lambda entries, *_: csv_text(FIELDS, entries),
    ".html": _html,
}
