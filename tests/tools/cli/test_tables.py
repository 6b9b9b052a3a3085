"""Tables of the command line at any width: what is one row, what is cut, and what is left out."""

import re

import numpy as np
import pytest
from commands import run
from safetensors.numpy import save_file

from fastq.tools.cli.tables import DISPENSABLE, arrange_rows, print_table, shorten
from fastq.tools.files.patterns import matches_tensor

COLUMNS = "name", "shape", "bytes_before", "scheme", "bytes", "sqnr_db", "max_abs_error"
PARTS = "attention.output.dense", "attention.self.query", "intermediate.dense", "output.dense"
NAMES = [f"encoder.layer.{k}.{part}.weight" for k in range(12) for part in PARTS]


def entry(name, **others):
    known = {"shape": "30522 x 1024", "bytes_before": 125_018_112, "scheme": "int4 group 128", "bytes": 15_627_264}
    return {"name": name, **known, "sqnr_db": 19.234, "max_abs_error": 0.000123, **others}


def printed(capsys, entries, width, columns=COLUMNS, **options):
    print_table(entries, columns, width=width, **options)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("width", [*range(60, 100), 120, 160, 200])
def test_a_table_stays_a_table_and_tells_names_apart(capsys, width):
    lines = printed(capsys, [entry(name) for name in NAMES], width, total=entry("48 tensors", scheme="total"))
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "19.23" in line]
    assert len({row.split()[0] for row in rows[:-1]}) == len(NAMES)
    assert rows[-1].split()[:2] == ["48", "tensors"]
    assert all("int4 group 128" in row for row in rows[:-1])
    titles = " ".join(line for line in lines[: lines.index(next(line for line in lines if "─" in line))]).split()
    told = " ".join(" ".join(lines[lines.index(rows[-1]) + 1 :]).split())
    for column, word in [("bytes_before", "before"), ("max_abs_error", "largest"), ("shape", "shape")]:
        assert (word in titles) != (word in told), column
    assert (f"this terminal has {width} columns" in told) == (width < 133)


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("columns", [COLUMNS, ("name", "shape", "a", "b", "sqnr_db", "max_abs_error", "bytes")])
def test_usual_terminals_have_axis_and_block_size(capsys, width, columns):
    scheme = "float8_e4m3fn axis=-1 blocks of 32 symmetric"
    lines = printed(capsys, [entry(name, scheme=scheme, a="F32", b=scheme) for name in NAMES], width, columns)
    assert max(map(len, lines)) <= width
    assert sum("float8_e4m3fn axis=-1 blocks of 32" in line for line in lines) == len(NAMES)


@pytest.mark.parametrize("width", [1, 8, 20, 40])
def test_the_narrowest_terminal_has_names_and_ratios(capsys, width):
    lines = printed(capsys, [entry(name) for name in NAMES], width)
    assert sum("19.23" in line for line in lines) == len(NAMES)
    left = " ".join(" ".join(lines).partition(" without ")[2].split())
    assert left.startswith("shape, bytes before, bytes, largest error") or width < 12


def test_columns_without_a_number_are_left_out_first(capsys):
    lines = printed(capsys, [entry(name, bytes=None) for name in NAMES], 98)
    assert "without bytes, with" in " ".join(lines)
    assert "bytes" in DISPENSABLE[5:]


def test_columns_without_a_number_go_before_a_name_is_shortened(capsys):
    for width in range(60, 140):
        told = " ".join(" ".join(printed(capsys, [entry(name, bytes=None) for name in NAMES], width)).split())
        is_whole = all(name in told for name in NAMES)
        assert is_whole or re.search(r"without [^:]*\bbytes\b(?! before)", told)


def test_eighty_columns_show_what_science_asks_for(capsys):
    """Of a packed variable its range and gaps, of two files the largest error; a scale has the digits of a float32."""
    known = {"shape": (48, 80, 120), "bytes": 921_600, "scheme": "int16, packed"}
    packing = {"scale_factor": 0.00026487436844035983, "add_offset": 286.538818359375, "_FillValue": -32_768}
    extent = {"lo": 277.9, "hi": 295.2, "nan": 43_200, "infinite": 0, "outliers": None}
    rows = [{"name": name, **known, **packing, **extent} for name in ("t2m", "longitude")]
    columns = ("name", "shape", "scheme", *packing, "bytes", *extent)
    told = " ".join(printed(capsys, rows, 80, columns))
    assert all(text in told for text in ("int16, packed", "277.9", "295.2", "43,200"))
    assert "0.000264874368 " in " ".join(printed(capsys, rows, 200, columns))
    errors = {"a": "float32", "b": "int16, packed", "sqnr_db": 131.4, "max_abs_error": 0.000122, "mean_abs_error": 6e-5}
    sizes = {"clipped": None, "bytes_a": 1_843_200, "bytes_b": 921_600}
    rows = [{"name": name, **known, **errors, **sizes} for name in ("t2m", "longitude")]
    assert "0.000122" in " ".join(printed(capsys, rows, 80, ("name", "shape", *errors, *sizes)))


def test_a_pipe_gets_all(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(capsys, [entry(name) for name in NAMES], None)
    assert all(any(name in line for line in lines) for name in NAMES)
    assert "columns" not in " ".join(lines)


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("a.bc", 4, "a.bc"),
        ("encoder.layer.10.attention.output.dense.weight", 38, "encoder.lay*.10.att*out*den*weight"),
        ("encoder.layer.10.attention.output.dense.weight", 26, "encoder.l*.10.a*o*d*weight"),
        ("encoder.layer.10.attention.output.dense.weight", 15, "encoder*.weight"),
        ("int8 axis=0 symmetric", 12, "int8...etric"),
        ("int4 axis=-1 blocks of 32 symmetric mse", 34, "int4 axis=-1 blocks of 32 ..."),
        ("int4 axis=-1 blocks of 32 symmetric", 29, "int4 axis=-1 blocks of 32 ..."),
        ("int4 axis=-1 blocks of 32", 25, "int4 axis=-1 blocks of 32"),
        ("general.name", 2, "*e"),
        ("漢字仮名交じり文の名前", 13, "漢字仮*の名前"),
    ],
)
def test_texts_are_cut_in_their_middle(text, width, expected):
    assert shorten(text, width) == expected
    assert " " in text or matches_tensor(text, expected)


def test_what_has_no_error_is_a_row_for_each_reason():
    copied = {"sqnr_db": None, "max_abs_error": None, "bytes": 4}
    entries = [
        entry("n.bias", scheme="copied: bias", shape="7", **copied),
        entry("a", sqnr_db=20.0),
        entry("b", sqnr_db=10.0),
        entry("c", sqnr_db=np.nan),
        entry("n.norm", scheme="copied: a vector", shape="7", **copied),
        entry("m.bias", scheme="copied: bias", shape="8", **copied),
    ]
    names = [each["name"] for each in arrange_rows(entries)]
    assert names == ["a", "b", "c", "2 tensors", "n.norm"]
    folded = arrange_rows(entries)[3]
    assert (folded["bytes"], folded["shape"], folded["scheme"]) == (8, None, "copied: bias")
    assert arrange_rows(entries, every=True) == entries
    worst = arrange_rows(entries, worst_first=True)
    assert [each["name"] for each in worst] == ["c", "b", "a", "2 tensors", "n.norm"]


@pytest.mark.usefixtures("here")
def test_commands_fold_and_sort_their_tables():
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    vectors = {"a.bias": x[0], "b.bias": x[1]}
    save_file(
        {"large": 1000 * x, "outlier": np.where(x == x.max(), 1000, x).astype(np.float32), **vectors}, "x.safetensors"
    )
    output = run("quantize", "x.safetensors", "q.safetensors")
    assert re.findall(r"^ *(\w+(?: tensors)?) .*(?:int8|copied)", output, re.MULTILINE) == [
        "large",
        "outlier",
        "2 tensors",
    ]
    output = run("quantize", "x.safetensors", "q.safetensors", "--force", "--every", "--worst-first")
    found = re.findall(r"^ *([\w.]+) .*(?:int8|copied)", output, re.MULTILINE)
    assert found == ["outlier", "large", "a.bias", "b.bias"]
    output = run("compare", "x.safetensors", "q.safetensors", "--worst-first")
    assert re.findall(r"^ *(\w+(?: tensors)?) .*F32", output, re.MULTILINE) == ["outlier", "large", "2 tensors"]
    output = run("suggest", "x.safetensors", "--worst-first", "--sqnr", "20")
    assert set(re.findall(r"^ *(\w+) +8 x 64", output, re.MULTILINE)) == {"outlier", "large"}
