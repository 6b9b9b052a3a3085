"""Run what a page shows, as `python run_page.py PAGE [CELLS]`: its first cells, or examples of a Python session.

It needs nothing of the tests, so that an installed package can be tried in an environment of its own.
"""

import doctest
import re
import subprocess
import sys
from pathlib import Path

CELL = re.compile(r"^```\{code-cell\}.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def cells(text):
    """Sources of the cells of a notebook, without their options."""
    for source in CELL.findall(text):
        yield re.sub(r"\A(---\n.*?\n---\n|(:.*\n)+)", "", source, flags=re.DOTALL)


def run_cells(path, most):
    """Run cells in one namespace, those for a shell in one."""
    names = {"__name__": "__main__"}
    for source in list(cells(path.read_text(encoding="utf-8")))[:most]:
        if source.lstrip().startswith(("%%sh", "%%bash")):
            subprocess.run(["bash", "-e", "-c", source.lstrip().split("\n", 1)[1]], check=True)
        else:
            lines = [line for line in source.splitlines() if not line.startswith("%")]
            exec(compile("\n".join(lines), str(path), "exec"), names)


def run_examples(path, most):
    """Run examples of a Python session; what they print is not looked at."""
    examples, names = doctest.DocTestParser().get_examples(path.read_text(encoding="utf-8")), {}
    for each in examples[:most]:
        exec(compile(each.source, str(path), "single"), names)


if __name__ == "__main__":
    page, most = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    (run_cells if "{code-cell}" in page.read_text(encoding="utf-8") else run_examples)(page, most)
