"""Casts and codecs of libraries that docs/who-rounds-how.md names, with the calls of docs/who-rounds-how.toml."""

import dataclasses
import tomllib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

STORED = Path(__file__).parents[2] / "docs" / "who-rounds-how.toml"
ENTRIES = {entry.get("system"): entry for entry in tomllib.loads(STORED.read_text(encoding="utf-8"))["entry"]}


def ours(system, **names):
    """What the call of fastq that the page has for a system returns."""
    call = ENTRIES[system]["calls"][0][1].strip("`")
    known = {"quantize_linear": fastq.quantize_linear, "CONVENTIONS": fastq.CONVENTIONS, "replace": dataclasses.replace}
    return eval(call, known | names)


def numbers(dtype, least, most):
    """2**20 numbers, half of them halves, and the numbers next to halves."""
    rng = np.random.default_rng(0)
    x = rng.uniform(least, most, 1 << 20).astype(dtype)
    x[::2] = np.rint(2 * x[::2]) / 2
    aim = rng.choice([-9999, 0, 0, 9999], x.shape).astype(dtype)
    return np.clip(np.where(aim == 0, x, np.nextafter(x, aim)), least, most)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fixed_scale_offset_of_numcodecs(dtype):
    numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")
    x = (numbers(dtype, 0, 255) / 10 + 5).astype(dtype)
    codec = numcodecs.FixedScaleOffset(offset=5, scale=10, dtype=dtype, astype="u1")
    same_bytes(ours("numcodecs: FixedScaleOffset", x=x), codec.encode(x))
    assert codec.encode(np.array([35.0], dtype)).tolist() == [44]


def test_coordinates_of_laspy():
    laspy = pytest.importorskip("laspy", reason="laspy is not installed")
    header = laspy.LasHeader(point_format=0, version="1.2")
    header.scales, header.offsets = np.full(3, 0.25), np.full(3, 1000.0)
    x = numbers("float64", -(2**20), 2**20) * 0.25 + 1000
    las = laspy.LasData(header)
    las.x = x
    stream = BytesIO()
    las.write(stream, do_compress=False)
    read = laspy.read(BytesIO(stream.getvalue()))
    found = ours("laspy: coordinates of LAS files", x=x, scale=0.25, offset=1000.0)
    same_bytes(found, np.asarray(read.X, np.int32))
    with pytest.raises(OverflowError):
        las.x = np.full(x.size, 1e12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_casts_of_tables(dtype):
    x = numbers(dtype, -128, 127)
    codes = ours("Polars and Arrow: casts to Int8", x=x)
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    same_bytes(codes, arrow.array(x).cast(arrow.int8(), safe=False).to_numpy())
    assert arrow.array([300.0]).cast(arrow.int8(), safe=False).to_pylist() == [44]
    with pytest.raises(arrow.ArrowInvalid):
        arrow.array([2.5]).cast(arrow.int8())
    polars = pytest.importorskip("polars", reason="polars is not installed")
    series = polars.Series(x)
    same_bytes(codes, series.cast(polars.Int8).to_numpy())
    with pytest.raises(polars.exceptions.InvalidOperationError):
        polars.Series([300.7]).cast(polars.Int8)
    assert polars.Series([300.7, np.nan]).cast(polars.Int8, strict=False).to_list() == [None, None]
    assert polars.Series([300.7]).cast(polars.Int8, wrap_numerical=True).to_list() == [127]
