"""Tables of Markdown, parts that unfold, and parts of pages that are generated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .show import NOT_THERE

Row = dict[str, Any]
Cell = Callable[[Row], str]
_NUMBER = re.compile(r"-$|[<>= ]*-?[\d.,]+")


def markdown(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; columns of numbers are at the right."""
    columns, rows = list(columns), [list(row) for row in rows]
    rules = ["---:" if all(_NUMBER.match(row[k]) for row in rows) else "---" for k in range(len(columns))]
    lines = [columns, rules, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def listed(columns: Mapping[str, Cell], rows: Iterable[Row]) -> str:
    """A table that has a line for each row, with these cells of it."""
    return markdown(columns, ([cell(row) for cell in columns.values()] for row in rows))


def number(key: str, digits: int = 2, units: float = 1) -> Cell:
    """A cell that has a number in other units, `units` of them for one."""
    return lambda row: NOT_THERE if row.get(key) is None else f"{row[key] * units:.{digits}f}"


def folded(title: str, text: str) -> str:
    """A part of a page that unfolds; it must have no headings."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def with_part(text: str, begin: str, part: str, end: str) -> str:
    """A page with the text between two marks replaced; ValueError if it has no such marks."""
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page has no part from {begin} to {end}")
    return f"{before}{begin}\n{part}\n{end}{after}"
