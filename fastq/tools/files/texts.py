"""Counts and lists of names in the lines that commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NAMED = 3  # most names in a line


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    plural = noun.removesuffix("ix") + "ices" if noun.endswith("ix") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def some_of(names: Sequence[str]) -> str:
    """Return the first of some names, and the number of the others."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def alternatives(names: Iterable[str]) -> str:
    """Return names as a choice: a, b or c."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
