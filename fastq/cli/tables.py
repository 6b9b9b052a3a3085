"""Figures of tensors as a file or for another program: JSON, CSV and HTML, each written in one way."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

Entry = dict[str, Any]  # numbers, texts and None by the names of columns


def json_text(table: Any) -> str:
    """Return entries, or an object that has them, as JSON, which has neither NaN nor infinity: they are null."""
    return json.dumps(_finite(table), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_text(fields: Sequence[str], entries: Sequence[Entry]) -> str:
    """Return entries as CSV with a line of names; a field that is None is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    return text.getvalue()
