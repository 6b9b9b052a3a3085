"""The page of literal examples has each row of tests/formats/examples.toml."""

import importlib.util
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "formats" / "examples.toml"

SPEC = importlib.util.spec_from_file_location("examples_page", ROOT / "docs" / "_ext" / "examples_page.py")
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)


def test_the_page_has_each_row_in_the_section_of_its_convention_or_format():
    page = made.page(STORED)
    tables = [table for those in tomllib.loads(STORED.read_text(encoding="utf-8")).values() for table in those]
    titles = dict.fromkeys(table.get("convention") or table.get("dtype") or "packed codes" for table in tables)
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == list(titles)
    assert page.count("\n| ") == sum(2 + len(table["rows"]) for table in tables)
    assert "| 0.25 | 4 | 0.5 | half a step: a tie |" in page  # of torch
    assert "| 448.0 | 0x7e | 448.0 | the largest number |" in page
    assert "| int4 | 1 -2 3 | 0xe1 0x03 |" in page
