"""fastq inspect, compare and completion; tables on terminals of any width."""

import csv
import functools
import io
import json
import math
import os
import re
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from commands import invoke, run, told
from gguf_files import write as write_gguf
from quantized_arrays import ARRAYS
from safetensors.numpy import save_file
from source_models import rewrite_header, write_file

import fastq
from fastq import reference
from fastq.results.squares import SumOfSquares, decibels, noise_at
from fastq.system.dtypes import ML_FLOATS
from fastq.tools.cli.html_report import INK, page
from fastq.tools.cli.report import csv_text, json_text
from fastq.tools.files.measured_errors import NO_ERRORS, Errors, errors_of
from fastq.tools.files.records import Scheme
from fastq.tools.tensors.extent import _row_ends as row_ends
from fastq.tools.tensors.extent import extent_of
from fastq.tools.tensors.reading import tensors_of

RNG = np.random.default_rng(4)
W = RNG.standard_normal((96, 64)).astype(np.float32)
W[5] *= 50


@pytest.fixture(autouse=True)
def _folder(here):
    """A folder with a plain and a quantized file, of which one is the current one."""
    spoiled = RNG.standard_normal(8).astype(np.float32)
    spoiled[[1, 2]] = np.nan, np.inf
    save_file({"layer.weight": W, "layer.bias": spoiled, "ids": np.arange(5)}, "in.safetensors")
    np.save("w.npy", W)
    np.save("near.npy", W + np.float32(0.25))


# inspect


def test_a_file_is_inspected():
    output = run("inspect", "in.safetensors")
    assert re.search(rf"layer\.weight +96 x 64 +F32 +24,576 +{W.min():.4g} +{W.max():.4g} +- +- +axis 0: 5", output)
    assert re.search(r"layer\.bias +8 +F32 +32 .* 1 +1 +-", output)
    assert re.search(r"3 tensors, 24,648 bytes", output)
    assert "min" not in run("inspect", "in.safetensors", "--header")


def test_a_quantized_file_shows_the_tensors_that_it_was_made_from(tmp_path):
    run("quantize", "w.npy", "q.safetensors", "--axis", "none")
    (entry,) = json.loads(run("inspect", "q.safetensors", "--json"))["tensors"]
    values = reference.dequantize(reference.quantize(W, "int8", symmetric=True))
    assert (entry["name"], entry["shape"], entry["scheme"]) == ("w", [96, 64], "int8 symmetric")
    assert (entry["lo"], entry["hi"], entry["nan"], entry["outliers"]) == (values.min(), values.max(), 0, {"0": [5]})
    assert entry["bytes"] == 96 * 64 + 4


@pytest.mark.slow("compiles kernels of each", quick=lambda name: name != "float8 fnuz")
@pytest.mark.parametrize("name", ["int8", "packed", "float8 fnuz", "convention", "bits"])
def test_a_file_of_one_array_is_inspected_and_compared(tmp_path, name):
    q = ARRAYS[name]
    q.save("q.safetensors")
    np.save("q.npy", reference.dequantize(q))
    (entry,) = json.loads(run("inspect", "q.safetensors", "--json"))["tensors"]
    assert (entry["name"], entry["shape"]) == ("q", list(q.shape))
    assert entry["bytes"] == q.codes.nbytes + q.scale.nbytes + q.zero_point.nbytes
    whose = {"axis": q.axis, "block_size": q.block_size, "symmetric": q.symmetric}
    assert entry["scheme"] == str(Scheme(str(q.dtype), **whose, convention="own" if name == "convention" else "onnx"))
    if name != "float8 fnuz":  # of which some codes are NaN
        (compared,) = json.loads(run("compare", "q.npy", "q.safetensors", "--json"))["tensors"]
        assert compared["max_abs_error"] == 0


def test_what_is_no_file_of_tensors_is_told_who_reads_it():
    q = ARRAYS["int8"]
    q.save("q.safetensors")
    q.qparams.save("p.safetensors")
    line = "p.safetensors: QParams.save wrote it, and fastq.QParams.load reads it\n"
    for command in (["inspect", "p.safetensors"], ["dequantize", "p.safetensors", "o.npy"]):
        assert told(*command) == f"Error: {line}"
    run("dequantize", "q.safetensors", "o.npy")
    assert np.load("o.npy").tobytes() == reference.dequantize(q).tobytes()
    assert "p.safetensors: QParams.save wrote it" in told("inspect", ".")  # of a folder the file is named too


@pytest.mark.parametrize("name", ML_FLOATS)
def test_floats_that_numpy_lacks_are_inspected(here, name):
    dtype = np.dtype(getattr(ml_dtypes, ML_FLOATS[name]))
    x = np.array([0.5, 1, 4], np.float32).astype(dtype)
    write_file(here / "x.safetensors", {"x": x}, {"x": {"dtype": name}})
    (entry,) = json.loads(run("inspect", "x.safetensors", "--json"))["tensors"]
    assert (entry["scheme"], entry["lo"], entry["hi"]) == (name, 0.5, 4)
    loaded = tensors_of(here / "x.safetensors")["x"].load()
    assert (loaded.dtype, loaded.tobytes()) == (dtype, x.tobytes())


def test_a_folder_is_inspected(here):
    for folder in ("sub", "empty"):
        os.mkdir(folder)
    for name in ("a", "b"):
        save_file({name: W}, f"sub/{name}.safetensors")
    assert list(tensors_of(here / "sub")) == ["a", "b"]
    assert "2 tensors" in run("inspect", "sub")
    save_file({"a": W}, "sub/c.safetensors")
    assert "two tensors are called 'a'; the second is in c.safetensors" in told("inspect", "sub")
    os.link("in.safetensors", "twice.safetensors")
    assert told("inspect", ".").startswith("Error: .: two tensors are called 'ids'")
    none = "there is no .npy, .npz or .safetensors file in it"
    assert told("inspect", "empty") == f"Error: empty: {none}\n"
    os.makedirs("cache/snapshots/one")
    save_file({"a": W}, "cache/snapshots/one/model.safetensors")
    at = os.path.join("cache", "snapshots", "one")
    assert told("inspect", "cache") == f"Error: cache: {none}, but {at} has one\n"
    assert told("convert", "cache", "out", "--scheme", "W4A16") == "Error: cache: it has no config.json\n"
    os.makedirs("cache/snapshots/one/deep/deeper")
    os.rename("cache/snapshots/one/model.safetensors", "cache/snapshots/one/deep/deeper/model.safetensors")
    assert told("inspect", "cache") == f"Error: cache: {none}\n"


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 5), (0, 2, 3), (5,), (2, 3, 4)])
def test_extents_are_those_of_numpy(shape):
    x = RNG.standard_normal(shape).astype(np.float16) if shape else np.float16(2.5)
    extent = extent_of(np.asarray(x))
    assert (extent.lo, extent.hi) == ((float(np.min(x)), float(np.max(x))) if np.size(x) else (None, None))
    assert (extent.nan, extent.infinite) == (0, 0)


@pytest.mark.parametrize("spoiled", [np.nan, np.inf, -np.inf, 0.0])
@pytest.mark.parametrize("shape", [(6, 8), (48,), (2, 3, 8), (48, 1)])
@pytest.mark.parametrize("piece", [1, 3, 7, 8, 20, 1000])
def test_extents_of_pieces(monkeypatch, piece, shape, spoiled):
    x = W[:6, :8].reshape(shape).copy()
    x.flat[[3, 30, 31]] = spoiled
    seen = []
    monkeypatch.setattr("fastq.tools.tensors.extent.PIECE", piece)
    monkeypatch.setattr("fastq.tools.tensors.extent._row_ends", lambda rows: seen.append(rows.size) or row_ends(rows))
    extent, finite = extent_of(x), x[np.isfinite(x)]
    assert (extent.lo, extent.hi) == (finite.min(), finite.max())
    assert (extent.nan, extent.infinite) == (np.isnan(x).sum(), np.isinf(x).sum())
    assert max(seen) <= piece


def outlier_channels(x):
    """Of each axis, without NaN and infinities."""
    found, size = {}, np.where(np.isfinite(x), np.abs(x.astype(np.float64)), np.nan)
    for axis in range(x.ndim):
        with warnings.catch_warnings():  # of channels without finite numbers
            warnings.simplefilter("ignore")
            largest = np.nanmax(size, axis=tuple(k for k in range(x.ndim) if k != axis))
            middle = np.nanmedian(largest)
        far = np.flatnonzero(largest >= 6 * middle) if middle else ()
        found |= {axis: tuple(far)} if len(far) else {}
    return found


@pytest.mark.parametrize("spoiled", [0.0, np.nan, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int16"])
@pytest.mark.parametrize("piece", [7, 100, 1 << 20])
@pytest.mark.parametrize("shape", [(12, 9), (1, 40), (40, 1), (5, 7, 6), (4, 3, 5, 6)])
def test_outlier_channels_of_every_axis_are_named(monkeypatch, shape, piece, dtype, spoiled):
    monkeypatch.setattr("fastq.tools.tensors.extent.PIECE", piece)
    if dtype == "int16":
        spoiled = 0
    for axis in range(len(shape)):
        x = np.random.default_rng(axis).uniform(5, 9, shape).astype(dtype)
        if shape[axis] > 3:
            np.moveaxis(x, axis, 0)[2] *= 100
        x.flat[:: x.size // 3] = spoiled
        np.moveaxis(x, axis, 0)[0] = spoiled  # a channel without finite numbers
        expected = outlier_channels(x)
        assert (shape[axis] > 3) == (axis in expected)
        for order in "CF":
            assert extent_of(np.array(x, order=order)).outliers == expected


def test_a_stored_matrix_names_its_outlier_column():
    save_file({"w": np.where(np.arange(64) == 7, 40, 1) * RNG.uniform(1, 2, (96, 64)).astype("f4")}, "c.safetensors")
    assert re.search(r"w +96 x 64 .* axis 1: 7 *\n", run("inspect", "c.safetensors"))


def test_outlier_channels_are_named_where_the_column_has_no_room(monkeypatch):
    x = np.where(np.arange(64) == 7, 40, 1) * RNG.uniform(1, 2, (96, 64)).astype("f4")
    names = [f"model.layers.{k}.attention.projection.weight" for k in range(5)]
    save_file(dict.fromkeys(names, x) | {"flat.weight": np.ones((96, 64), np.float32)}, "d.safetensors")
    monkeypatch.setenv("COLUMNS", "80")
    shown = " ".join(run("inspect", "d.safetensors").split())
    first = ", ".join(f"{name} (axis 1: 7)" for name in names[:3])
    assert f"5 tensors with outlier channels: {first} and 2 more" in shown
    np.save("flat.npy", np.ones((96, 64), np.float32))
    assert "with outlier channels" not in run("inspect", "flat.npy")


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (2, 3, 2, 4)])
def test_extents_in_fortran_order_are_not_copied(monkeypatch, shape):
    x = np.asfortranarray(W[:6, :8].reshape(-1)[: np.prod(shape)].reshape(shape))
    x[1] *= 100
    shared = []
    monkeypatch.setattr(
        "fastq.tools.tensors.extent._row_ends", lambda rows: shared.append(np.shares_memory(rows, x)) or row_ends(rows)
    )
    extent = extent_of(x)
    assert shared
    assert all(shared)
    assert (extent.lo, extent.hi) == (x.min(), x.max())
    assert extent.outliers == outlier_channels(x)


def test_extents_without_numbers():
    assert extent_of(np.full((3, 2), np.nan)).lo is None
    assert extent_of(np.full((3, 2), np.nan)).nan == 6


@pytest.mark.parametrize("value", [None, -9, 10**30, 1.5, "x", [1], {}], ids=repr)
@pytest.mark.parametrize("key", ["axis", "block_size", "shape", "dtype", "convention", "symmetric"])
def test_damaged_records_are_one_line(here, key, value):
    run("quantize", "w.npy", "q.safetensors", "--block-size", "32")

    def change(header):
        records = json.loads(header["__metadata__"]["fastq"])
        assert key in records["tensors"]["w"]
        records["tensors"]["w"][key] = value
        header["__metadata__"]["fastq"] = json.dumps(records)

    rewrite_header(here / "q.safetensors", change)
    for command in (["inspect", "q.safetensors"], ["compare", "w.npy", "q.safetensors"]):
        assert told(*command).count("\n") == 1


# compare


def test_errors_are_those_of_the_reference():
    (entry,) = json.loads(run("compare", "w.npy", "near.npy", "--json"))["tensors"]
    measures = reference.compare(W, np.load("near.npy"))
    assert entry["max_abs_error"] == measures.max_abs_error
    assert entry["sqnr_db"] == pytest.approx(measures.sqnr_db)
    run("quantize", "w.npy", "q.safetensors", "--axis", "none")
    run("compare", "w.npy", "q.safetensors", "--report", "errors.csv")
    (row,) = csv.DictReader(io.StringIO(Path("errors.csv").read_text()))
    q = reference.quantize(W, "int8", symmetric=True)
    assert float(row["max_abs_error"]) == reference.compare(W, q).max_abs_error
    assert (row["b"], row["clipped"], row["bytes_b"]) == ("int8 symmetric", "0", str(q.codes.nbytes + 4))


def test_float8_is_compared(tmp_path):
    save_file({"w": W.astype(ml_dtypes.float8_e5m2)}, tmp_path / "a.safetensors")
    assert "equal" in run("compare", "a.safetensors", "a.safetensors")


def test_zeros_reach_any_ratio():
    """An error of 0 is "equal" in every command, also where there is no signal."""
    np.save("zeros.npy", np.zeros((4, 64), np.float32))
    assert ", equal\n" in run("compare", "zeros.npy", "zeros.npy", "--at-least", "10")
    assert re.search(r"int2 .* equal *\n", run("suggest", "zeros.npy", "--sqnr", "90"))
    assert " x, equal\n" in run("quantize", "zeros.npy", "zeros.safetensors")
    output = run("compare", "zeros.npy", "zeros.safetensors", "--at-least", "90")
    assert re.search(r"symmetric +equal .*, equal\n$", output, re.DOTALL)
    assert "inf" not in output


def test_integers_are_not_in_the_sum():
    for name, step in (("a", 0), ("b", 0.25)):
        save_file({"w": W + np.float32(step), "ids": np.arange(512)}, f"{name}.safetensors")
    output = run("compare", "a.safetensors", "b.safetensors")
    assert re.search(r"ids +512 +I64 +I64 +equal", output)
    assert f", 1 compared: {W.nbytes + 4096:,}" in output
    assert f"{reference.compare(W, W + np.float32(0.25)).sqnr_db:.2f} dB, worst" in output.splitlines()[-1]


def test_a_file_and_what_it_is_dequantized_to_have_the_same_total():
    """Also beside large tensors that are copied."""
    save_file(
        {"w": W, "near": W + 1, "bias": np.full(999, 1e4, "f4"), "zeros": np.zeros((4, 64), "f4")}, "a.safetensors"
    )
    run("quantize", "a.safetensors", "q.safetensors")
    run("dequantize", "q.safetensors", "back.safetensors")
    totals = [
        json.loads(run("compare", "a.safetensors", name, "--json")) for name in ("q.safetensors", "back.safetensors")
    ]
    noise, signal = 0.0, 0.0
    for x in (W, W + 1):
        errors = x.astype(np.float64) - reference.dequantize(reference.quantize(x, "int8", axis=0, symmetric=True))
        noise += np.sum(errors**2)
        signal += np.sum(x.astype(np.float64) ** 2)
    for total in totals:
        assert total["sqnr_db"] == pytest.approx(10 * np.log10(signal / noise), abs=1e-6)


def test_the_total_says_what_overflows():
    with np.errstate(over="ignore"):
        in_half = (W * np.float32(1e9)).astype(np.float16)
    save_file({"big": W * np.float32(1e9), "w": W}, "a.safetensors")
    save_file({"big": in_half, "w": W + 1}, "b.safetensors")
    assert run("compare", "a.safetensors", "b.safetensors").endswith(" x, -inf dB, worst -inf dB: big\n")
    infinite = np.where(W > 1, np.inf, W).astype(np.float32)
    save_file({"big": infinite, "w": W}, "a.safetensors")
    save_file({"big": infinite, "w": W + 1}, "b.safetensors")
    ratio = f"{reference.compare(W, W + 1).sqnr_db:.2f} dB"
    assert run("compare", "a.safetensors", "b.safetensors").endswith(f" x, worst {ratio}: w, no SQNR: big\n")
    save_file({"big": infinite, "w": W}, "b.safetensors")
    assert run("compare", "a.safetensors", "b.safetensors").endswith(" x, no SQNR: big\n")


@pytest.mark.parametrize(
    ("values", "approximation", "largest", "expected"),
    [
        ([1e-160, 1], [2e-160, 1], 1e-160, 3200),
        ([1, 0], [1, 1e-170], 1e-170, 3400),
        ([1e-200, 0], [1e-200, 1e200], 1e200, -8000),
    ],
)
def test_ratios_beyond_float64_are_known(values, approximation, largest, expected):
    values, approximation = np.array(values, float), np.array(approximation, float)
    errors = errors_of(values, approximation)
    assert errors.largest == largest
    assert errors.sqnr_db == pytest.approx(expected, rel=1e-12)
    assert NO_ERRORS.with_more(errors).sqnr_db == errors.sqnr_db
    save_file({"x": values}, "a.safetensors")
    save_file({"x": approximation}, "b.safetensors")
    assert f"{expected}.00 dB, worst {expected}.00 dB: x" in run("compare", "a.safetensors", "b.safetensors")


def test_sums_of_parts_need_no_common_magnitude():
    """Nor a finite sum."""
    far, near = (errors_of(np.full(8, x), np.full(8, y)) for x, y in ((1e200, 1.1e200), (1e-200, 1.2e-200)))
    assert far.with_more(near).sqnr_db == near.with_more(far).sqnr_db == pytest.approx(20, abs=1e-9)
    large = errors_of(np.full(8, 4e153), np.full(8, 4.4e153))
    total = functools.reduce(Errors.with_more, [large] * 20)
    assert total.signal_exponent > 0
    assert total.sqnr_db == pytest.approx(20, abs=1e-9)


@pytest.mark.parametrize("ratio", [-math.inf, -9000.0, -40.0, 0.0, 25.0, 9000.0, math.inf])
def test_noise_of_a_ratio(ratio):
    signal = SumOfSquares(3.0, -700)
    noise = noise_at(ratio, signal)
    assert decibels(signal.number, noise.number, signal.exponent - noise.exponent) == pytest.approx(ratio, abs=1e-9)


@pytest.mark.parametrize("exponent", [-900, -560, 600, 1000])
def test_squares_beyond_float64_are_measured(exponent):
    """A power of two changes no ratio, in any command; float64 holds neither these squares nor those of the errors."""
    near = (W * np.float32(1.01)).astype(np.float64)
    save_file({"x": np.ldexp(W.astype(np.float64), exponent)}, "a.safetensors")
    save_file({"x": np.ldexp(near, exponent)}, "b.safetensors")
    expected = reference.compare(W, near).sqnr_db
    (entry,) = json.loads(run("compare", "a.safetensors", "b.safetensors", "--json"))["tensors"]
    assert entry["sqnr_db"] == pytest.approx(expected, abs=1e-6)
    assert f" {expected:.2f} dB, worst {expected:.2f} dB: x" in run("compare", "a.safetensors", "b.safetensors")
    assert invoke("compare", "a.safetensors", "b.safetensors", "--at-least", expected - 0.1).exit_code == 0
    assert invoke("compare", "a.safetensors", "b.safetensors", "--at-least", expected + 0.1).exit_code == 3
    found = []
    for name, x in {"x": np.ldexp(W.astype(np.float64), exponent), "w": W.astype(np.float64)}.items():
        np.save(f"{name}.npy", x)
        result = json.loads(run("suggest", f"{name}.npy", "--sqnr", "25", "--json"))["tensors"]
        text = run("suggest", f"{name}.npy", "--sqnr", "25").splitlines()[-1]
        run("quantize", f"{name}.npy", f"{name}.safetensors", "--dtype", "int8")
        (quantized,) = json.loads(run("compare", f"{name}.npy", f"{name}.safetensors", "--json"))["tensors"]
        found.append((result[0]["scheme"], result[0]["sqnr_db"], text.rpartition(":")[0], quantized["sqnr_db"]))
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2]
    np.testing.assert_allclose(found[0][1::2], found[1][1::2], atol=1e-6)


def test_tensors_without_elements_are_equal():
    save_file({"none": np.zeros((0, 4), np.float32), "ids": np.zeros(0, np.int64), "w": W}, "a.safetensors")
    entries = json.loads(run("compare", "a.safetensors", "a.safetensors", "--json", "--at-least", "90"))["tensors"]
    assert {entry["name"]: entry["max_abs_error"] for entry in entries} == {"none": 0, "ids": 0, "w": 0}
    assert run("compare", "a.safetensors", "a.safetensors").splitlines()[-1].startswith("3 tensors, ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_what_is_read_is_not_replaced_by_a_page():
    # contract 28.9
    os.link("w.npy", "same.html")
    os.symlink("near.npy", "link.html")
    os.mkfifo("pipe.html")
    os.mkdir("folder.html")
    before = {name: os.lstat(name) for name in os.listdir()}
    for page_path, said in (
        ("w.npy", "'w.npy' does not end in .json, .csv or .html"),
        ("near.npy", "'near.npy' does not end in .json, .csv or .html"),
        ("same.html", "'same.html' is A itself"),
        ("link.html", "'link.html' is B itself"),
        ("pipe.html", "'pipe.html' is not a file"),
        ("folder.html", "'folder.html' is not a file"),
        ("no/page.html", "there is no folder 'no'"),
    ):
        line = " ".join(told("compare", "w.npy", "near.npy", "--report", page_path, exit_code=2).split())
        assert f"Invalid value for '--report': {said}" in line
    assert {name: os.lstat(name) for name in os.listdir()} == before
    for _ in range(2):  # the page of an earlier run is replaced
        run("compare", "w.npy", "near.npy", "--report", "page.html")


def test_tensors_that_can_not_be_measured_are_named_and_their_bytes_compared():
    # contract 28.10
    same = {"w": W, "u": np.arange(4, dtype=np.uint32), "flags": np.array([True, False]), "e": np.zeros(0, np.uint64)}
    save_file(same, "a.safetensors")
    save_file(same | {"u": same["u"] + 1, "flags": np.array([1, 0], np.int8)}, "b.safetensors")
    said = told("compare", "a.safetensors", "a.safetensors", "--at-least", "99", exit_code=0)
    assert "not measured: U32, the same bytes in both\n" in said
    result = invoke("compare", "a.safetensors", "b.safetensors", "--at-least", "99")
    assert (result.exit_code, "equal" in result.stdout) == (3, True)
    assert "u: not measured: U32, and the bytes differ\n" in result.stderr
    assert "flags: not measured: BOOL in a.safetensors and I8 in b.safetensors\n" in result.stderr
    assert "e: not measured: U64, the same bytes in both\n" in result.stderr
    os.makedirs("folder")
    for name, tensors in (("one", {"u": same["u"]}), ("two", {"w": W})):  # and in folders
        save_file(tensors, f"folder/{name}.safetensors")
    said = told("compare", "folder", "b.safetensors", "--at-least", "99", exit_code=3)
    assert "u: not measured: U32, and the bytes differ\n" in said


def test_no_option_is_advised_that_commands_lack():
    save_file({"a": np.full((4, 4), np.nan, np.float32)}, "nan.safetensors")
    said = "Error: nan.safetensors: no scheme holds NaN or infinite values: a\n"
    assert told("suggest", "nan.safetensors") == said


class Table(HTMLParser):
    """Texts of the cells of a page, and what it asks others for."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.open, self.links, self.tags = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for key, value in attributes if key in ("src", "href")]
        if tag == "td":
            self.cells.append("")
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def test_a_page_stands_alone(tmp_path):
    run("compare", "w.npy", "near.npy", "--report", "page.html")
    table = Table((tmp_path / "page.html").read_text())
    assert table.links == []
    assert table.cells[:4] == ["w", "96 x 64", "F32", "F32"]


def test_a_page_shows_names_as_text():
    errors = reference.compare(W, W).to_dict()
    entry = {"name": "<script>", "shape": (1,), "a": "F32", "b": '"', "bytes_a": 1, "bytes_b": 1, **errors}
    table = Table(page("<b>", "<i>", list(entry), [entry], [("<u>", "<svg></svg>")]))
    assert table.cells[0] == "<script>"
    assert not {"b", "i", "u"} & set(table.tags)


def test_a_page_has_pictures_of_the_worst_of_which_the_first_is_open(tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib")
    near = {name: W + np.float32(step) for name, step in zip("abcd", (0.1, 0.4, 0.3, 0.2), strict=True)}
    save_file(dict.fromkeys("abcd", W), "a.safetensors")
    save_file(near, "b.safetensors")
    run("compare", "a.safetensors", "b.safetensors", "--report", "page.html")
    text = (tmp_path / "page.html").read_text()
    assert re.findall(r'<td data-value="([a-d])">', text) == ["b", "c", "d", "a"]
    titles = re.findall(r"<details( open)?><summary>(\w): ", text)
    assert titles == [(" open", "b"), ("", "c"), ("", "d")]
    assert text.count("<svg ") == 4 + 3  # bars, and pictures
    assert INK not in text
    assert "currentColor" in text


def test_a_page_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run("compare", "w.npy", "near.npy", "--report", "page.html")
    assert "pip install matplotlib" in (tmp_path / "page.html").read_text()


def test_tables_of_files_are_written_in_one_way():
    entries = [{"name": 'a "b",', "sqnr_db": np.inf, "clipped": None}, {"name": "c", "sqnr_db": 1.5, "clipped": 2}]
    assert csv_text(list(entries[0]), entries) == 'name,sqnr_db,clipped\n"a ""b"",",inf,\nc,1.5,2\n'
    shapes = [{"shape": (2, 3)}, {"shape": ()}]
    assert csv_text(["shape"], shapes) == "shape\n2 x 3\nscalar\n"
    text = json_text({"tensors": entries})
    assert json.loads(text)["tensors"][0] == {"name": 'a "b",', "sqnr_db": None, "clipped": None}
    assert text.endswith("}\n")
    assert json.loads(json_text({"pair": (np.inf, [np.nan])}), parse_constant=pytest.fail) == {"pair": [None, [None]]}


# GGUF


def gguf_file(path, quantized):
    weight = (fastq.gguf.quantize(W, "Q4_0"), "Q4_0") if quantized else W
    write_gguf(path, {"norm": W[0], "w": weight})


def test_gguf_files_are_compared():
    gguf_file("a.gguf", False)
    gguf_file("b.gguf", True)
    norm, w = sorted(
        json.loads(run("compare", "a.gguf", "b.gguf", "--json"))["tensors"], key=lambda entry: entry["name"]
    )
    errors = reference.compare(W, reference.gguf.dequantize(reference.gguf.quantize(W, "Q4_0"), "Q4_0"))
    assert (norm["a"], norm["b"], norm["max_abs_error"]) == ("F32", "F32", 0)
    assert (w["shape"], w["a"], w["b"], w["bytes_b"]) == ([96, 64], "F32", "Q4_0", 96 * 2 * 18)
    assert (w["max_abs_error"], w["clipped"]) == (errors.max_abs_error, None)
    assert w["sqnr_db"] == pytest.approx(errors.sqnr_db)


def test_metadata_of_gguf_files_is_json():
    # contract 28.11
    write_gguf("m.gguf", {"w": W}, fields={"scale": float("nan"), "ends": [1.5, float("inf")]})
    found = json.loads(run("inspect", "m.gguf", "--json"), parse_constant=pytest.fail)
    assert (found["metadata"]["scale"]["value"], found["metadata"]["ends"]["value"]) == (None, [1.5, None])
    assert found["tensors"][0]["shape"] == [96, 64]


def test_schemes_are_suggested_for_what_a_gguf_command_quantizes():
    said = "a.gguf: no tensor of two axes or more of F64, F32, F16, BF16; left out: 1 (vectors), 1 "
    for quantized, why in ((False, "not quantized by fastq gguf"), (True, "quantized already")):
        gguf_file("a.gguf", quantized)
        assert told("suggest", "a.gguf") == f"Error: {said}({why})\n"
    run("compare", "broken.gguf", "a.gguf", exit_code=2)


# Terminals


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("command", [("inspect", "in.safetensors"), ("compare", "w.npy", "near.npy"), ("conventions",)])
def test_lines_fit_the_terminal(command, width):
    output = run(*command, COLUMNS=str(width))
    assert max(map(len, output.splitlines())) <= width
    for word in ("layer.weight", "96 x 64") if command[0] == "inspect" else ():
        assert word in output


def test_tables_are_lines_where_nothing_tells_the_width():
    assert re.search(r"layer\.weight +96 x 64 ", run("inspect", "in.safetensors"))
    assert max(map(len, run("conventions").splitlines())) <= 80


def test_conventions_are_complete():
    output = " ".join(run("conventions").split())
    for name in fastq.CONVENTIONS:
        assert f"{name}: " in output
    named = run("conventions", "textbook", "cf").splitlines()
    assert [line.split(":")[0] for line in named if not line.startswith(" ")] == ["textbook", "cf"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(shell):
    assert "_FASTQ_COMPLETE" in run("completion", shell)


def _arrays_with_nan():
    """Arrays of two sides by the name of where NaN is, with the elements that are measured and the exit code."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((48, 64)).astype(np.float32)
    y = x + np.float32(0.01)
    holes = x > 1.5
    fewer = holes & (x > 2)
    nan = np.float32(np.nan)
    return {
        "nowhere": (x, y, np.ones_like(holes), 0),
        "on both sides": (np.where(holes, nan, x), np.where(holes, nan, y), ~holes, 0),
        "in a": (np.where(holes, nan, x), y, ~holes, 4),
        "in b": (x, np.where(holes, nan, y), ~holes, 4),
        "more in a": (np.where(holes, nan, x), np.where(fewer, nan, y), ~holes, 4),
        "nothing else in a": (np.full_like(x, np.nan), y, np.zeros_like(holes), 4),
    }


def _write_files_of(form, path, arrays):
    if form == "gguf":
        write_gguf(path, arrays)
    elif form == "npz":
        np.savez(path, **arrays)
    elif form == "folder":
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    elif form == "nc":
        xarray = pytest.importorskip("xarray", reason="xarray is not installed")
        xarray.Dataset({name.replace(" ", "_"): (("y", "x"), array) for name, array in arrays.items()}).to_netcdf(path)
    else:
        save_file(arrays, path)


@pytest.mark.parametrize("form", ["gguf", "npz", "safetensors", "folder", "nc"])
def test_one_tensor_with_nan_stops_no_other(tmp_path, form):
    """Its row has the measures of the other elements, and the number of those that were left out."""
    cases = _arrays_with_nan()
    a, b = (tmp_path / f"{side}.{form}" for side in "ab")
    _write_files_of(form, a, {name: each[0] for name, each in cases.items()})
    _write_files_of(form, b, {name: each[1] for name, each in cases.items()})
    result = invoke("compare", a, b, "--json")
    assert result.exit_code == 4, result.stderr
    rows = {row["name"].replace("_", " "): row for row in json.loads(result.stdout)["tensors"]}
    assert rows.keys() == cases.keys()
    for name, (x, y, is_measured, code) in cases.items():
        row = rows[name]
        assert row["nan"] == x.size - np.count_nonzero(is_measured)
        expected = reference.compare(x[is_measured], y[is_measured]).sqnr_db if is_measured.any() else None
        assert row["sqnr_db"] == (expected and pytest.approx(expected, abs=1e-9))
        on_one_side = np.count_nonzero(np.isnan(x) != np.isnan(y))
        line = f"{row['name']}: {on_one_side:,} values missing on one side only"
        assert (line in result.stderr.splitlines()) == (code == 4)
    text = invoke("compare", a, b).stdout
    assert " NaN " in text
    page_path = tmp_path / "page.html"
    assert invoke("compare", a, b, "--report", page_path).exit_code == 4
    assert page_path.stat().st_size
    assert invoke("compare", a, b, "--at-least", 1).exit_code == 3
