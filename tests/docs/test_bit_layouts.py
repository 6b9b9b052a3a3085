"""docs/reference/formats.md: what it draws is what the formats are."""

import functools
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf_blocks import needed_importance

import fastq
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import QTYPES

EXTENSION = Path(__file__).parents[2] / "docs" / "_ext" / "bit_layouts.py"


@pytest.fixture(scope="module")
def layouts():
    spec = importlib.util.spec_from_file_location("bit_layouts", EXTENSION)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bit_layouts"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_of_gguf_are_those_bytes(layouts, name):
    """Of twice the values scales are others, powers of two apart, and no byte else."""
    row, parts = BLOCK_FORMATS[name], layouts.BLOCKS[name]
    assert sum(count for _, count in parts) == row.nbytes
    x = np.random.default_rng(0).standard_normal((64, 512), np.float32)
    quantize = functools.partial(fastq.reference.gguf.quantize, importance=needed_importance(name, 512))
    once, twice = (quantize(k * x, name).reshape(-1, row.nbytes) for k in (1, 2))
    ends = np.cumsum([0, *(count for _, count in parts)])
    differ = {what for (what, _), a, b in zip(parts, ends, ends[1:], strict=False) if (once != twice)[:, a:b].any()}
    assert differ == {what for what, _ in parts if {"d", "min"} & {*what.split(" + ")}}


@pytest.mark.parametrize("bits", range(1, 8))
def test_packed_codes_follow_each_other(layouts, bits):
    assert layouts.packed_owners(bits) == [i // bits for i in range(24)]


def test_every_format_is_drawn(layouts):
    page = (EXTENSION.parents[1] / "reference" / "formats.md").read_text(encoding="utf-8")
    drawn = "".join(draw() for name, draw in layouts.DRAWN.items() if f"{{bit-layouts}} {name}\n" in page)
    assert [name for name in (*QTYPES, *BLOCK_FORMATS) if f"<code>{name}</code>" not in drawn] == []
