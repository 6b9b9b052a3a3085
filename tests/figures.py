"""Figures of long runs: each stores what it counted in docs/reliability.json, from which docs/reliability.md is made.

`python -m tests.figures` writes the tables of docs/reliability.md anew: each stands between ``<!-- begin: NAME -->``
and ``<!-- end: NAME -->``.
"""

import json
import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

import numba
import numpy as np

from fastq.system import tuning

DOCS = Path(__file__).parents[1] / "docs"
STORED, PAGE = DOCS / "reliability.json", DOCS / "reliability.md"


def versions():
    """What a run was made with: Python, NumPy, Numba and the name of the CPU."""
    return {
        "cpu": tuning.cpu_name(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def stored():
    """Figures of all runs, by name."""
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}


def store(name, rows):
    """Replace the figures of a run by `rows`: what was done and how often, a dictionary for each line of the table."""
    runs = stored() | {name: {"date": f"{datetime.now(UTC):%Y-%m-%d}", **versions(), "rows": rows}}
    temporary = STORED.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n", encoding="utf-8")
    temporary.replace(STORED)


def _cell(value):
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(name):
    """Markdown of the last run of a name, with what it was made with."""
    run = stored()[name]
    columns = list(dict.fromkeys(column for row in run["rows"] for column in row))
    lines = [
        columns,
        ["---"] * len(columns),
        *([_cell(row.get(column, "")) for column in columns] for row in run["rows"]),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    made = "{date}, {cpu}, Python {python}, NumPy {numpy}, Numba {numba}".format_map(run)
    return f"{text}\n\nRun of {made}."


def page(text):
    """Text of a page with its tables made anew."""
    pattern = r"(<!-- begin: (\S+) -->\n).*?(<!-- end: \2 -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{table(match[2])}\n{match[3]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
