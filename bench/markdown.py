"""A table of Markdown, as the generated pages have them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"-$|[<>= ]*-?[\d.,]+")


def markdown(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; columns of numbers are at the right."""
    columns, rows = list(columns), [list(row) for row in rows]
    rules = ["---:" if all(_NUMBER.match(row[k]) for row in rows) else "---" for k in range(len(columns))]
    lines = [columns, rules, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
