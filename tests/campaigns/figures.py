"""Figures of long runs: each stores what it counted in docs/reliability.json, from which docs/reliability.md is made.

Rows are stored with their date, commit and CPU, since parts of a table may be of different days, commits and CPUs.
`python -m tests.campaigns.figures` writes the tables of docs/reliability.md again: each stands between ``<!-- begin:
NAME -->`` and ``<!-- end: NAME -->``.
"""

import json
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numba
import numpy as np
from kept import write

from fastq.system import tuning

SCREEN = 20  # lines of a table, which unfolds where it has more
ROOT = Path(__file__).parents[2]
STORED, PAGE = ROOT / "docs" / "reliability.json", ROOT / "docs" / "reliability.md"


def _git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit():
    """Short hash of the commit, with a + where the package or its tests have changes; "" where there is no git."""
    try:
        return _git("rev-parse", "--short=10", "HEAD") + "+" * bool(_git("status", "--porcelain", "fastq", "tests"))
    except (OSError, subprocess.CalledProcessError):
        return ""


_COMMIT = commit()  # when the run begins: long ones see other commits come


def made_with():
    """What rows are made with: the day, commit, name of the CPU, Python, NumPy and Numba."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": _COMMIT,
        "cpu": tuning.cpu_name(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def stored():
    """Figures by name: what the last run was made with, its rows, and `earlier` runs of which rows are kept."""
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}


def runs(name):
    """Runs of a table, the last one last: dictionaries of the origin of each, and of its rows."""
    last = stored().get(name)
    return [*last.get("earlier", ()), {key: last[key] for key in last if key != "earlier"}] if last else []


def store(name, rows, by=()):
    """Replace the rows of a table: what was done and how often, a dictionary for each line.

    Where `by` names columns, only rows are replaced whose values there are those of a new one; others stay, with their
    origin.
    """
    kept, new = [], [[row[column] for column in by] for row in rows]
    for run in runs(name) if by else ():
        kept.append(run | {"rows": [row for row in run["rows"] if [row[column] for column in by] not in new]})
    store_runs(name, [*kept, made_with() | {"rows": rows}])


def store_runs(name, made):
    """Replace a table by runs as `runs` returns them, of which those without rows are left out."""
    *earlier, last = [run for run in made if run["rows"]]
    tables = stored() | {name: last | ({"earlier": earlier} if earlier else {})}
    write(STORED, (json.dumps(dict(sorted(tables.items())), indent=1) + "\n").encode())


def _cell(value):
    return f"{value:,}" if isinstance(value, int) else str(value)


def _origin(run):
    """Say what a run was made with; of the first ones no commit was stored, of some nothing."""
    if "date" not in run:
        return "not known"
    at = f"at {run['commit']}" if run.get("commit") else "before commits were stored"
    return "{date} {at}, {cpu}, Python {python}, NumPy {numpy}, Numba {numba}".format_map(run | {"at": at})


def table(name):
    """Lines of a table, with its origin; if that differs, each row names its run by a number.

    Nothing where no run is stored.
    """
    origins, rows = [], []
    for run in runs(name):
        if _origin(run) not in origins:
            origins.append(_origin(run))
        rows += [row | {"run": origins.index(_origin(run)) + 1} for row in run["rows"]]
    if not rows:
        return ""
    columns = [*dict.fromkeys(column for row in rows for column in row if column != "run")]
    columns += ["run"] * (len(origins) > 1)
    lines = [
        columns,
        ["---"] * len(columns),
        *([_cell(row.get(column, "")) for column in columns] for row in rows),
    ]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    text = _folded(lines, text) if len(lines) > SCREEN else text
    numbered = "\n".join(f"Run {number}: {origin}." for number, origin in enumerate(origins, 1))
    return f"{text}\n\n{numbered if len(origins) > 1 else f'Run of {origins[0]}.'}\n"


def _folded(lines, text):
    """A long table that unfolds; its last row is told where that is of all."""
    of_all = [f"{column}: {cell}" for column, cell in zip(lines[0][1:], lines[-1][1:], strict=True) if cell]
    told = "all: " + ", ".join(of_all) if lines[-1][0] == "all" else f"{len(lines) - 2} rows"
    return f"<details>\n<summary>{told}</summary>\n\n{text}\n\n</details>"


def page(text):
    """Text of a page with its tables made again."""
    pattern = r"(<!-- begin: (\S+) -->\n).*?(<!-- end: \2 -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{table(match[2])}{match[3]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
