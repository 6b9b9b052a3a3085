"""`python -m bench gguf-types`: the table and the picture of docs/howto/gguf.md."""

import inspect
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from benchmark import part
from safetensors.numpy import save_file

import fastq
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES

types, importance, compressed = map(part, ["gguf_types", "gguf_importance", "compressed"])
FEW = ("Q4_0", "Q5_1", "Q8_0")
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "gguf.md"


@pytest.fixture
def matrices():
    rng = np.random.default_rng(0)
    return {"a": rng.standard_normal((9, 96), np.float32), "b": rng.standard_normal((4, 300)).astype(np.float16)}


def test_weights_are_the_matrices_of_a_file(tmp_path, matrices):
    others = {
        "vector": np.ones(300, np.float32),
        "small": np.ones((2, 2), np.float32),
        "ids": np.ones((2, 300), np.int32),
    }
    save_file(matrices | others, tmp_path / "w.safetensors")
    title, read = types.weights(tmp_path / "w.safetensors")
    assert (title, sorted(read)) == ("w.safetensors", ["a", "b"])


def test_figures_are_those_of_the_gguf_package(matrices, monkeypatch):
    monkeypatch.setattr(types, "BLOCK_FORMATS", {name: BLOCK_FORMATS[name] for name in FEW})
    found = {q.name: q for q in types.qualities(matrices)}
    x = np.concatenate([matrices["a"].reshape(-1)[:768], matrices["b"].reshape(-1)[:1024].astype(np.float32)])
    for name in FEW:
        kind = gguf.GGMLQuantizationType[name]
        error = x - gguf.quants.dequantize(gguf.quants.quantize(x.reshape(-1, 256), kind), kind).reshape(-1)
        ratio = 10 * np.log10(np.sum(x.astype(np.float64) ** 2) / np.sum(error.astype(np.float64) ** 2))
        assert found[name].sqnr_db == pytest.approx(ratio)
        assert ratio + 0.2 < found[name].least_db < ratio + 2
        assert found[name].bits == TENSOR_TYPES[name].bits


def test_the_table_stands_between_the_marks():
    found = [types.Quality("Q9", 9.25, 55.666, 56.5), types.Quality("Q1", 1.0, 6.0)]
    table = '| type | bits per weight | SQNR dB | less 6.02 dB per bit | `range="mse"`, SQNR dB |\n'
    table += "| --- | ---: | ---: | ---: | --- |\n"
    table += "| Q9 | 9.25 | 55.67 | -0.02 | 56.50 |\n| Q1 | 1 | 6.00 | -0.02 |  |\n"
    text = PAGE.read_text(encoding="utf-8")
    page = types.page(text, "a file", found)
    assert (
        f"{types.BEGIN}\nThe matrices of a file:\n\n{table}\n![Noise against bits](gguf-types.png)\n{types.END}\n"
        in page
    )
    assert types.page(page, "a file", found) == page
    for lost in (types.BEGIN, types.END):
        with pytest.raises(ValueError, match=r"^the page has no part from "):
            types.page(text.replace(lost, ""), "a file", found)


def test_names_in_the_picture_cover_no_other_name(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    part = PAGE.read_text("utf-8").partition(types.BEGIN)[2].partition(types.END)[0]
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| .* \| ([\d.]*) \|$", part, re.MULTILINE)
    found = [
        types.Quality(name, float(bits), float(ratio), float(least) if least else None)
        for name, bits, ratio, least in rows
    ]
    with monkeypatch.context() as patch:
        patch.setattr(pyplot, "close", lambda figure: None)
        types.draw("a file", found, tmp_path / "types.png")
    (axis,) = pyplot.gcf().axes
    assert [text.get_text() for text in axis.texts] == [q.name for q in found] != []
    boxes = [text.get_window_extent() for text in axis.texts]
    assert [box.count_overlaps(boxes) for box in boxes] == [1] * len(boxes)  # itself


def test_page_and_docstrings_name_all_types():
    table = PAGE.read_text(encoding="utf-8").split(types.BEGIN)[1].split(types.END)[0]
    rows = re.findall(r"^\| (\w+) \| [\d.]+ \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(BLOCK_FORMATS)

    text = inspect.getdoc(fastq.gguf.quantize).split("\nqtype : ")[1].split("\nrange : ")[0]
    named = {name: int(number) for name, number in re.findall(r"(\w+)\s+\((\d+)\)", text)}
    assert named == {name: row.number for name, row in BLOCK_FORMATS.items()}


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib")
    types.draw("a file", [types.Quality("Q9", 9.25, 55.7, 56.5), types.Quality("Q1", 1.0, 6.0)], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_with_importance_is_what_is_stored():
    text, found = PAGE.read_text(encoding="utf-8"), compressed.read(importance.STORED)
    assert importance.page(text, found) == text
    assert sorted(row["type"] for row in found["rows"]) == sorted(BLOCK_FORMATS)
    assert {row["type"] for row in found["rows"] if "weighted" in row} == {
        name for name, row in BLOCK_FORMATS.items() if row.weighted
    }


def test_errors_are_those_of_outputs(matrices):
    x = np.random.default_rng(1).standard_normal((50, 96)).astype(np.float32)
    weights, products = matrices["a"], x.T.astype(np.float64) @ x
    values = importance.stored(weights[:8], "Q4_0", np.float32(x**2).mean(axis=0))
    outputs, errors = x @ weights[:8].T, x @ (values - weights[:8]).T
    ratio = 10 * np.log10(np.sum(outputs.astype(np.float64) ** 2) / np.sum(errors.astype(np.float64) ** 2))
    assert importance.decibels(weights[:8], values, products) == pytest.approx(ratio, abs=1e-3)
