"""The examples in docstrings run and print what they say."""

import doctest
import importlib
from importlib.util import find_spec

import pytest

MODULES = [f"fastq.{name}" for name in ("ops", "packing", "qarray", "threads", "compare", "conventions", "qtypes")]
MODULES += [pytest.param("fastq.plot", marks=pytest.mark.skipif(not find_spec("matplotlib"), reason="no matplotlib"))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_every_public_function_has_an_example():
    import fastq

    functions = [getattr(fastq, name) for name in fastq.__all__ if callable(getattr(fastq, name))]
    without = [f.__name__ for f in functions if f.__module__ == "fastq.ops" and ">>>" not in (f.__doc__ or "")]
    assert functions
    assert without == []
