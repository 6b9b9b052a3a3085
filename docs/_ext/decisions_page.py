"""The page of the decisions of docs/decisions.toml, which the site has and the repository has not."""

import textwrap
import tomllib
from pathlib import Path
from typing import Any

FACTOR = "times as fast"  # the unit where no other is named; 1 before

_HEAD = """# Decisions

What was decided by a measurement, and the figures that decided it. [The design](design.md), docstrings and comments
name a decision by its number, which is never used again. Figures are of float32 on one core with AVX-512 and 2 MiB of
L2 unless they say otherwise, taken in turns with the alternative on the day that is named; commas part the works, or
the sizes, that a line names. What depends on the CPU is a number in `fastq/system/tuning.py`, which has its figures
there, a row for each family of CPUs.
"""


def decisions(stored: Path) -> list[dict[str, Any]]:
    """Return the decisions of docs/decisions.toml, in its order."""
    return list(tomllib.loads(stored.read_text(encoding="utf-8"))["decision"])


def page(stored: Path) -> str:
    """Return the page."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for decision in decisions(stored):
        topics.setdefault(decision["topic"], []).append(decision)
    return _HEAD + "".join(f"\n## {topic}\n" + "".join(map(_section, those)) for topic, those in topics.items())


def _section(decision: dict[str, Any]) -> str:
    place, _, name = decision["place"].partition(":")
    where = f"`{name}` in `{place}`" if name else f"`{place}`"
    lines = decision["what"], f"Measured on {decision['date']}, {decision['cpu']}; see {where}."
    return f"\n### {decision['id']}\n\n" + "\n\n".join(map(_wrapped, lines)) + "\n" + _figures(decision)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 120, break_on_hyphens=False)


def _figures(decision: dict[str, Any]) -> str:
    unit = decision.get("unit", FACTOR)
    columns = ["work", unit] if unit == FACTOR else ["work", f"{unit}, before", "after"]
    lines = [f"| {' | '.join(map(str, row))} |" for row in [columns, ["---"] + ["---:"] * (len(columns) - 1)]]
    lines += [f"| {' | '.join(map(str, row))} |" for row in decision["rows"]]
    return "\n" + "\n".join(lines) + "\n" if decision["rows"] else ""
