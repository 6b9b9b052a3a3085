"""`python -m bench systems`: encoders of systems beside fastq's."""

import numpy as np
import pytest
from benchmark import part

import fastq

systems, compressed = map(part, ["systems", "compressed"])


def pair(theirs):
    """An encoder of whole numbers, and fastq's."""
    one = np.float32(1)
    return lambda x: systems.Pair(
        lambda: theirs(x), lambda: fastq.quantize_linear(x, one, 0, "int8"), lambda *found: [found]
    )


def rounded(x):
    return np.rint(x).astype(np.int8)


def rows_of(monkeypatch, *rows):
    monkeypatch.setattr(systems, "SYSTEMS", rows)
    monkeypatch.setattr(systems, "SIDE", 8)
    monkeypatch.setattr(systems, "settle", lambda: None)
    said = []
    threads = fastq.get_num_threads()
    try:
        return systems.measured(2, said.append), said
    finally:
        fastq.set_num_threads(threads)


def test_a_row_has_medians_of_both(monkeypatch):
    here = systems.System("onnx", "rint, to int8", "numpy", pair(rounded))
    absent = systems.System("onnx", "nothing", "no_such_module", pair(rounded))
    found, said = rows_of(monkeypatch, here, absent)
    (row,) = found["rows"]
    assert (found["values"], found["threads"]) == (64, 2)
    assert row["version"] == f"numpy {np.__version__}"
    assert min(row["theirs"], row["fastq"]) > 0
    assert said[0] == "onnx: no_such_module is not installed"
    assert len(said) == 1 + systems.RUNS


def test_the_run_with_the_middle_quotient_counts():
    assert systems.middle([(8.0, 2.0), (1.0, 1.0), (4.0, 2.0)]) == (4.0, 2.0)


def test_other_results_are_refused(monkeypatch):
    def cut(x):
        return rounded(x) + (x == x[0, 0])

    with pytest.raises(ValueError, match="onnx, rint: 1 of 64 numbers differ"):
        rows_of(monkeypatch, systems.System("onnx", "rint", "numpy", pair(cut)))


def test_what_is_stored_is_of_these_systems():
    found = compressed.read(systems.STORED)
    assert found["values"] == 1 << 22
    assert [row["call"] for row in found["rows"]] == [system.call for system in systems.SYSTEMS]
    assert {row["convention"] for row in found["rows"]} <= fastq.CONVENTIONS.keys()
