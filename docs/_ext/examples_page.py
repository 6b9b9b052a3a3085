"""The page of literal examples, which the site makes of tests/formats/examples.toml."""

import math
import tomllib
from pathlib import Path
from typing import Any

_HEAD = """# Examples

What fastq computes, in numbers that do not come from fastq: from the system that a convention is named after, from
another library, or from the definition. `fastq.reference` and fastq are compared with every row by
`tests/formats/test_examples.py`, and `tests/formats/examples.toml` has the rows as data, for other implementations too.

Scales, x and values are float32, written in as few digits as tell a number from its neighbours. Infinities and NaN are
by the definition, since most systems leave them open; NaN goes with `nan="zero"`.
"""

_COLUMNS = {
    "ranges": ("lo", "hi", "scale", "zero point"),
    "arrays": ("x", "code", "value"),
    "codes": ("x", "code", "value"),
    "floats": ("x", "code", "value"),
    "scales": ("code", "value"),
    "tables": ("x", "code", "value"),
    "blocks": ("x", "code", "value"),
    "packing": ("format", "codes", "bytes"),
}
_IN_HEX = {"floats": 1, "scales": 0, "blocks": 1, "packing": 2}  # the column whose numbers are patterns of bits


def page(stored: Path) -> str:
    """Return the page."""
    examples = tomllib.loads(stored.read_text(encoding="utf-8"))
    sections: dict[str, list[str]] = {}
    for kind, tables in examples.items():
        for table in tables:
            title = table.get("convention") or table.get("dtype") or "packed codes"
            sections.setdefault(title, []).append(_table(kind, table))
    return _HEAD + "".join(f"\n## {title}\n" + "".join(texts) for title, texts in sections.items())


def _table(kind: str, table: dict[str, Any]) -> str:
    """Return a table with the sentence before it, which says what is given and where the numbers come from."""
    lines = [(*_COLUMNS[kind], ""), ("---",) * (len(_COLUMNS[kind]) + 1)]
    lines += [(*_cells(kind, row[:-1]), row[-1]) for row in table["rows"]]
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"\n{_given(kind, table)} Source: {table['source']}.\n\n{rows}\n"


def _given(kind: str, table: dict[str, Any]) -> str:
    named = f"`{table['dtype']}`" if "dtype" in table else "Every width"
    if "symmetric" in table:
        named += ", symmetric" if table["symmetric"] else ", asymmetric"
    if "block_size" in table:
        named += f", a block of {table['block_size']}"
    if "saturate" in table:
        named += f", `saturate={table['saturate']}`"
    if kind == "ranges":
        return f"{named}: parameters from a range."
    if kind in ("scales", "packing", "floats"):
        return f"{named}."
    taken = "given" if kind == "codes" else "taken from the array"
    zero_point = f" and zero point {_cell(table['zero_point'])} are" if "zero_point" in table else " is"
    return f"{named}: scale {_cell(table['scale'])}{zero_point} {taken}."


def _cells(kind: str, row: list[Any]) -> list[str]:
    return [_cell(cell, in_hex=_IN_HEX.get(kind) == k) for k, cell in enumerate(row)]


def _cell(cell: Any, in_hex: bool = False) -> str:
    if isinstance(cell, list):
        return " ".join(_cell(each, in_hex) for each in cell)
    if in_hex and cell >= 0:
        return f"{cell:#04x}"
    return "NaN" if isinstance(cell, float) and math.isnan(cell) else str(cell)
