"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import fastq

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL, CALIBRATION = DOCS / "start" / "tutorial.md", DOCS / "howto" / "calibration.md"
ROOT = Path(fastq.__file__).parent
MODULES = sorted(
    ".".join(["fastq", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.slow("compiles 35 kernels", quick=lambda name: name != "fastq.ops.warmup")
@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    needed = {"plot": "matplotlib", "xarray": "xarray", "zarr": "zarr"}.get(name.split(".")[1])
    if needed:
        pytest.importorskip(needed, reason=f"no {needed}")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert (failed, tried > 0) == (0, True)


@pytest.mark.slow("compiles 30 kernels", quick=lambda page, examples: page == CALIBRATION)
@pytest.mark.skipif(not find_spec("matplotlib"), reason="no matplotlib, which the pages draw with")
@pytest.mark.parametrize(("page", "examples"), [(TUTORIAL, 41), (CALIBRATION, 25)], ids=["tutorial", "calibration"])
def test_a_page_prints_what_it_says_and_draws_its_pictures(page, examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert (failed, tried >= examples) == (0, True)
    shown = re.findall(r"!\[.*?\]\((.*?)\)", page.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in shown if not (page.parent / name).is_file()] == []


@pytest.mark.parametrize(
    ("page", "examples"),
    [
        ("README.md", 10),
        ("docs/index.md", 4),
        ("docs/howto/compiled.md", 6),
        ("docs/howto/requantize.md", 14),
        ("docs/reference/engine.md", 14),
    ],
    ids=lambda value: str(value).split("/")[-1],
)
def test_a_page_without_pictures_prints_what_it_says(page, examples):
    failed, tried = doctest.testfile(str(DOCS.parent / page), module_relative=False)
    assert (failed, tried) == (0, examples)


@pytest.mark.slow("builds indexes of 50,000 vectors")
def test_the_page_on_embeddings_prints_what_it_says():
    for library in ("faiss", "usearch"):
        pytest.importorskip(library, reason=f"no {library}")
    failed, tried = doctest.testfile(str(DOCS / "howto" / "embeddings.md"), module_relative=False)
    assert (failed, tried) == (0, 42)


def test_every_public_function_has_an_example():
    functions = [getattr(fastq, name) for name in fastq.__all__ if inspect.isfunction(getattr(fastq, name))]
    functions = [f for f in functions if not f.__name__.startswith("get_")]  # their examples are those of set_
    functions += [
        fastq.gguf.quantize,
        fastq.gguf.dequantize,
        *(getattr(fastq.plot, name) for name in fastq.plot.__all__),
    ]
    functions += [fastq.testing.assert_same_codes]
    assert [f.__qualname__ for f in functions if ">>>" not in (f.__doc__ or "")] == []
