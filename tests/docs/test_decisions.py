"""Decisions that a measurement made are rows of docs/decisions.toml, which pages, docstrings and comments cite."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "decisions.toml"

SPEC = importlib.util.spec_from_file_location("decisions_page", ROOT / "docs" / "_ext" / "decisions_page.py")
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)

DECISIONS = {decision["id"]: decision for decision in made.decisions(STORED)}
CITATION = re.compile(r"\bdecisions?\s+(?:#\s*)?(D\d+(?:(?:,| and|,? to)\s+(?:#\s*)?D\d+)*)")


def cited(path):
    """Numbers of the decisions that a file cites, as in "decisions D3 and D14"."""
    found = CITATION.findall(path.read_text(encoding="utf-8"))
    return [number for each in found for number in re.findall(r"D\d+", each)]


FILES = [*(ROOT / "fastq").rglob("*.py"), *(ROOT / "bench").rglob("*.py"), ROOT / "docs" / "design.md"]


def test_the_page_has_a_section_for_each_decision():
    page = made.page(STORED)
    assert sorted(re.findall(r"^### (.*)$", page, re.MULTILINE)) == sorted(DECISIONS)
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == list(dict.fromkeys(d["topic"] for d in DECISIONS.values()))
    figures = [cell for d in DECISIONS.values() for row in d["rows"] for cell in row]
    assert [cell for cell in figures if f"| {cell} |" not in page] == []


def test_no_number_is_used_twice():
    numbers = [decision["id"] for decision in made.decisions(STORED)]
    assert len(set(numbers)) == len(numbers)
    assert all(re.fullmatch(r"D[1-9]\d*", number) for number in numbers)


@pytest.mark.parametrize("number", DECISIONS)
def test_the_place_is_there(number):
    path, _, name = DECISIONS[number]["place"].partition(":")
    source = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^\s*(def|class) {name}\b|^{name}\b.*=", source, re.MULTILINE) or not name, name


@pytest.mark.parametrize("number", DECISIONS)
def test_rows_have_their_columns(number):
    decision = DECISIONS[number]
    assert {len(row) for row in decision["rows"]} <= {3 if "unit" in decision else 2}
    assert decision["what"].endswith(".")


def test_what_is_cited_is_there():
    missing = {str(path.relative_to(ROOT)): set(cited(path)) - set(DECISIONS) for path in FILES}
    assert {path: numbers for path, numbers in missing.items() if numbers} == {}


def test_every_decision_is_cited_where_it_was_made_or_by_the_design():
    places = {ROOT / decision["place"].partition(":")[0]: [] for decision in DECISIONS.values()}
    design = cited(ROOT / "docs" / "design.md")
    found = {(path, number) for path in places for number in cited(path)}
    uncited = [n for n, d in DECISIONS.items() if (ROOT / d["place"].partition(":")[0], n) not in found]
    assert [number for number in uncited if number not in design] == []
