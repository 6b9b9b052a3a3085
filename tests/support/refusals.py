"""Which raise statements of the package tests have reached: how it refuses what is wrong is part of its contract."""

import ast
import importlib.util
import re
import traceback
from pathlib import Path

import pytest

import fastq

ROOT = Path(fastq.__file__).parent
# what users meet: the rest is files and the command line, tested where they are, and what no argument can bring about
ROOMS = [
    "ops",
    "plan",
    "formats",
    "results",
    "requests",
    "testing.py",
    "tools/plot",
    "tools/layouts",
    "adapters/dask",
    "adapters/xarray",
    "adapters/zarr",
    "reference",
]
ROOMS += ["system/arguments.py", "system/arrays_of_callers.py", "engine/code/shipped.py"]

# rooms whose tests need a package that may have no wheel for a new Python yet
NEEDED = {"tools/plot": "matplotlib", "adapters/dask": "dask", "adapters/xarray": "xarray", "adapters/zarr": "zarr"}

MISSING = pytest.StashKey[list[str]]()
reached = set()  # file and line of each


_NOTHING = re.compile(r"\b(?:has|have) 0(?![.\w])(?! \w+, but\b)")  # "has 0 axes, but ..." tells of a mismatch


def counts_nothing(message):
    """Whether a message complains about things of which it counts none, as "x has 0 infinite values" does."""
    return bool(_NOTHING.search(message))


def note(trace):
    """Note where an exception comes from."""
    for frame, line in traceback.walk_tb(trace):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            reached.add((path.relative_to(ROOT).as_posix(), line))


def record():
    """From now on note where each exception comes from that `pytest.raises` meets."""
    kind = type(pytest.raises(Exception, match="any"))
    leave = kind.__exit__

    def noted(self, exception_type, exception, trace):
        note(trace)
        told = exception
        while told is not None:  # also from where those come that it tells of
            note(told.__traceback__)
            told = told.__cause__ or told.__context__
        return leave(self, exception_type, exception, trace)

    kind.__exit__ = noted


def statements(room):
    """Yield file, first and last line of each statement that raises an exception of its own."""
    path = ROOT / room
    assert path.exists(), f"{room} is no room: a move must not hide what it refuses"
    for file in [path] if path.suffix else sorted(path.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise) and node.exc:
                yield file.relative_to(ROOT).as_posix(), node.lineno, node.end_lineno


def not_reached():
    """List the statements that no test has reached."""
    return [
        f"fastq/{file}:{first}"
        for room in ROOMS
        if importlib.util.find_spec(NEEDED.get(room, "numpy"))
        for file, first, last in statements(room)
        if not any((file, line) in reached for line in range(first, last + 1))
    ]
