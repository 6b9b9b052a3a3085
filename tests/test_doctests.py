"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
MODULES = [
    "fastq.gguf",
    "fastq.results",
    "fastq.runtime.result_pool",
    "fastq.formats.conventions",
    "fastq.formats.qtypes",
]
MODULES += [f"fastq.operations.{name}" for name in ("config", "dequantize", "measure", "packing", "quantize")]
MODULES += [pytest.param("fastq.plot", marks=pytest.mark.skipif(not find_spec("matplotlib"), reason="no matplotlib"))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


@pytest.mark.skipif(not find_spec("matplotlib"), reason="no matplotlib, which the tutorial draws with")
def test_the_tutorial_prints_what_it_says_and_draws_its_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(TUTORIAL), module_relative=False)
    assert (failed, tried > 40) == (0, True)
    shown = re.findall(r"!\[.*?\]\((.*?)\)", TUTORIAL.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in shown if not (TUTORIAL.parent / name).is_file()] == []


def test_every_public_function_has_an_example():
    import fastq

    functions = [getattr(fastq, name) for name in fastq.__all__ if callable(getattr(fastq, name))]
    without = [
        f.__name__
        for f in functions
        if f.__module__.startswith("fastq.operations")
        and f.__module__ != "fastq.operations.config"
        and ">>>" not in (f.__doc__ or "")
    ]
    assert functions
    assert without == []
