"""Clauses of docs/contract.md have numbers, which stay, and tests and the reference cite all of them."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACT = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
CLAUSES = re.findall(r"^\*\*C(\d+\.\d+)\*\* ", CONTRACT, re.MULTILINE)
_NUMBER = r"\d+\.\d+"
CITATION = re.compile(rf"\bcontract ({_NUMBER}(?:(?:,| and) {_NUMBER})*)")
FILES = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "fastq").rglob("*.py")]


def cited(text):
    """Numbers of the clauses that a text cites, as in "contract 5.1 and 5.2"."""
    return [number for each in CITATION.findall(text) for number in re.findall(_NUMBER, each)]


@pytest.fixture(scope="module")
def citations():
    """Numbers that are cited, by file."""
    return {path: cited(path.read_text(encoding="utf-8")) for path in FILES if path.name != Path(__file__).name}


def test_citations_are_found():
    assert cited("# contract 5.1, 5.2 and 6.10; of contract 7.3.") == ["5.1", "5.2", "6.10", "7.3"]
    assert cited("the contract of version 1.2") == []


def test_numbers_ascend_in_each_section_and_sections_in_the_page():
    pairs = [tuple(map(int, number.split("."))) for number in CLAUSES]
    assert pairs == sorted(set(pairs))
    sections = [
        set(re.findall(r"^\*\*C(\d+)\.", part, re.MULTILINE)) for part in re.split(r"^##", CONTRACT, flags=re.M)
    ]
    assert Counter(number for found in sections for number in found).most_common(1)[0][1] == 1


def test_every_rule_is_in_a_clause():
    paragraphs = re.split(r"^##+ .*\n\n", CONTRACT, flags=re.MULTILINE)[1:]
    for paragraph in paragraphs:
        first = next(part for part in paragraph.split("\n\n"))
        assert "**C" in paragraph, first


def test_what_is_cited_is_a_clause(citations):
    missing = {str(path.relative_to(ROOT)): set(numbers) - set(CLAUSES) for path, numbers in citations.items()}
    assert {path: numbers for path, numbers in missing.items() if numbers} == {}


def test_each_clause_is_cited(citations):
    found = {number for numbers in citations.values() for number in numbers}
    assert [number for number in CLAUSES if number not in found] == []
