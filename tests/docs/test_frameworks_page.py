"""docs/howto/frameworks.md: its calls run, and its examples print what they say where the library is installed."""

import dataclasses
import doctest
import re
from pathlib import Path

import numpy as np
import pytest

import fastq

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "frameworks.md").read_text(encoding="utf-8")
CALLS = [
    found for row in PAGE.splitlines() if row.startswith("| ") for found in re.findall(r"`([^`]+)`", row.split("|")[2])
]
CALLS = [call for call in CALLS if "(" in call and "(ds)" not in call]  # of Datasets: tests/xarray
SECTIONS = {part.splitlines()[0]: part for part in PAGE.split("\n## ") if ">>> " in part}
X = np.random.default_rng(0).standard_normal((64, 64), np.float32)
NAMES = {
    **{name: getattr(fastq, name) for name in fastq.__all__ if name not in ("dask", "plot", "xarray", "zarr")},
    "dataclasses": dataclasses,
    "replace": dataclasses.replace,
    "np": np,
    "x": X,
    "w": X,
    "lengths": np.linalg.norm(X.astype(np.float64), axis=1),
    "scale": np.float32(0.1),
    "offset": np.float32(2.0),
    "zero_point": np.int8(3),
    "scales": np.full(64, 0.1, np.float32),
    "zero_points": np.full(64, 3, np.int8),
    "codes": np.zeros(5, np.int8),
}


@pytest.mark.slow("compiles a kernel for each convention", quick=lambda call: call == next(iter(CALLS)))
@pytest.mark.parametrize("call", CALLS)
def test_calls_of_the_table_run(call):
    assert eval(call, dict(NAMES)) is not None


@pytest.mark.filterwarnings("ignore")  # of the libraries, about themselves
@pytest.mark.parametrize("section", SECTIONS)
def test_sections_print_what_they_say(section):
    text = SECTIONS[section]
    for library in sorted(set(re.findall(r"torch|jax|onnxruntime", text.split("```")[1]))):
        pytest.importorskip(library, reason=f"no {library}")
    example = doctest.DocTestParser().get_doctest(text, {}, section, None, None)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


def test_the_page_has_what_is_tested():
    assert len(CALLS) > 20
    assert len(SECTIONS) == 4
