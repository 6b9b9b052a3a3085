"""The examples of pages run and print what they say."""

import doctest
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL, CALIBRATION = DOCS / "start" / "tutorial.md", DOCS / "howto" / "calibration.md"


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
        ("docs/howto/images.md", 11),
        ("docs/howto/requantize.md", 14),
        ("docs/reference/engine.md", 17),
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
    assert (failed, tried) == (0, 60)


def test_the_page_on_sound_prints_what_it_says():
    pytest.importorskip("soundfile", reason="no soundfile")
    failed, tried = doctest.testfile(str(DOCS / "howto" / "sound.md"), module_relative=False)
    assert (failed, tried) == (0, 6)
