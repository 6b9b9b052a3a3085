"""What docs/contributing.md and the README name is there: files, and what is defined in them."""

import re
from pathlib import Path

import figures
import pytest

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:fastq|bench|tests|docs)/[\w/.*]+)`", CONTRIBUTING))))
def test_paths_are_there(path):
    assert list(ROOT.glob(path)), path


WHERE = [row.split("|")[2:4] for row in CONTRIBUTING.splitlines() if row.startswith("| Where ")]


@pytest.mark.parametrize(("files", "names"), WHERE, ids=[re.findall(r"`(.*?)`", row[0])[0] for row in WHERE])
def test_names_are_defined_where_the_table_says(files, names):
    sources = "\n".join((ROOT / path).read_text() for path in re.findall(r"`([\w/]+\.py)`", files))
    for name in re.findall(r"`(\w+)`", names.replace("`rounding`", "")):
        assert re.search(rf"^(def|class) {name}\b|^{name}\b.*=", sources, re.MULTILINE), name


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("folder", ["docs", "bench/results"])
def test_no_file_is_large(folder):
    assert {path.name for path in (ROOT / folder).rglob("*") if path.stat().st_size > 100_000} == set()


def test_tables_of_long_runs_are_those_of_what_is_stored():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert figures.page(page) == page, "run python -m tests.figures"
    assert set(re.findall(r"begin: (\S+)", page)) == set(figures.stored())
