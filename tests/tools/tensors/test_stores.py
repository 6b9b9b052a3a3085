"""netCDF files and zarr stores among the files of `fastq inspect` and `fastq compare`: what xarray reads, in parts."""

import contextlib
import json
import math
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np
import pytest
from commands import invoke, refused, run, told

import fastq
from fastq import reference
from fastq.tools.tensors import extent
from fastq.tools.tensors.tensor import Tensor

xarray = pytest.importorskip("xarray", reason="no xarray")
pytest.importorskip("netCDF4", reason="no netCDF4")
zarr = pytest.importorskip("zarr", reason="no zarr")

pytestmark = pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 specification")
RNG = np.random.default_rng(3)
FIELD = RNG.normal(280, 9, (40, 6, 50)).astype(np.float32)
FIELD[:, 2, 7] = np.nan


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file, its packed and its rounded copy, with gaps, times, a scalar, flags and texts."""
    folder = tmp_path_factory.mktemp("written")
    data = {"t": (("time", "y", "x"), FIELD), "gaps": ("x", np.full(50, np.nan)), "grid": ((), np.int32(7))}
    data |= {"land": ("y", np.arange(6) % 2 == 0), "names": ("y", np.array(list("abcdef"))), "p": ("x", FIELD[0, 0])}
    ds = xarray.Dataset(data, {"time": np.datetime64("2024-01-01", "ns") + np.arange(40) * np.timedelta64(1, "h")})
    packed = {"dtype": "int16", "scale_factor": 0.5, "add_offset": 273.0, "_FillValue": -1}
    ds.to_netcdf(folder / "a.nc", encoding={"p": packed, "t": {"chunksizes": (7, 2, 20)}})
    run("pack", folder / "a.nc", folder / "b.nc")
    run("bitround", folder / "a.nc", folder / "c.zarr", "--keepbits", "t=5")
    return folder


@pytest.fixture
def here(written, tmp_path, monkeypatch):
    """Copies of them, in a folder that is the current one."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def decoded(path):
    with xarray.open_dataset(path, engine="zarr" if path.endswith("zarr") else None, decode_times=False) as ds:
        return ds.load()


def rows_of(*command, exit_code=0):
    return {row["name"]: row for row in json.loads(run(*command, "--json", exit_code=exit_code))["tensors"]}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("piece", [1 << 20, 64])
@pytest.mark.parametrize("name", ["a.nc", "b.nc", "c.zarr"])
def test_variables_are_shown_as_any_reader_reads_them(name, piece, monkeypatch):
    monkeypatch.setattr(extent, "PIECE", piece)
    ds, rows = decoded(name), rows_of("inspect", name)
    assert rows.keys() == set(ds.variables) - {"quantization_bitround"}
    with xarray.open_dataset(name, engine="zarr" if name == "c.zarr" else None, decode_cf=False) as stored:
        for each, row in rows.items():
            assert (row["shape"], row["scheme"].split(",")[0]) == (list(ds[each].shape), str(stored[each].dtype))
            assert row["bytes"] == stored[each].size * stored[each].dtype.itemsize
            for key in ("scale_factor", "add_offset", "_FillValue"):
                known = stored[each].attrs.get(key) if "packed" in row["scheme"] else None
                assert np.float32(row.get(key) or 0) == np.float32(known or 0)
    for each in ("t", "p", "time", "grid"):
        values = ds[each].values
        assert (rows[each]["lo"], rows[each]["hi"]) == (np.nanmin(values), np.nanmax(values))
        assert rows[each]["nan"] == np.isnan(values).sum()
    assert [rows["gaps"][key] for key in ("lo", "hi", "nan")] == [None, None, 50]
    assert "lo" not in rows["land"]
    packed = {each for each, row in rows.items() if "packed" in row["scheme"]}
    assert packed == {"a.nc": {"p"}, "b.nc": {"p", "t", "gaps"}, "c.zarr": {"p"}}[name]
    assert rows["t"]["scheme"] == {"a.nc": "float32", "b.nc": "int16, packed", "c.zarr": "float32, rounded"}[name]
    assert name != "c.zarr" or rows["t"]["quantization_nsb"] == 5
    shown = run("inspect", name, "--header")
    assert ("scale factor" in shown, "kept bits" in shown, "min" in shown) == (True, name == "c.zarr", False)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("piece", [1 << 20, 64])
@pytest.mark.parametrize("name", ["b.nc", "c.zarr"])
def test_errors_are_those_of_the_values_that_neither_side_lacks(name, piece, monkeypatch):
    monkeypatch.setattr(extent, "PIECE", piece)
    row = rows_of("compare", "a.nc", name)["t"]
    a, b = (decoded(each).t.values for each in ("a.nc", name))
    there = ~np.isnan(a)
    expected = reference.compare(a[there], b[there]).to_dict()
    assert row.pop("clipped") is expected.pop("clipped") is None
    assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-12)
    assert row["a"] == "float32"
    output = run("compare", "a.nc", name, "--report", "r.html", "--every")
    assert f"worst {expected['sqnr_db']:.2f} dB: t" in output.splitlines()[-2]
    assert [line.split()[0] for line in output.splitlines() if "equal" in line][:2] == ["gaps", "grid"]


@pytest.mark.usefixtures("here")
def test_what_one_side_lacks_is_said():
    ds = decoded("a.nc")
    ds.t.values[3, 4, 5:9] = np.nan
    ds.names.values[2] = "z"
    ds.to_netcdf("less.nc")
    result = invoke("compare", "a.nc", "less.nc")
    assert result.exit_code == 4
    assert "t: 4 values missing on one side only\n" in result.stderr
    assert "land: not measured: bool, the same bytes in both\n" in result.stderr
    assert "names: not measured: <U1, and the bytes differ\n" in result.stderr


@pytest.mark.usefixtures("here")
def test_a_file_that_can_not_be_read_is_named_in_a_line(here):
    (here / "junk.nc").write_text("junk")
    said = (
        "Error: junk.nc: xarray can't open it: did not find a match in any of xarray's currently installed IO backends"
    )
    for command in (["inspect", "junk.nc"], ["compare", "a.nc", "junk.nc"], ["pack", "junk.nc", "o.nc"]):
        line = told(*command)
        assert line.startswith(said)
        assert line.count("\n") == 1


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", [["inspect", "c.zarr/t"], ["pack", "c.zarr/t", "o.zarr"]])
def test_an_array_of_a_store_is_told_as_one(command):
    assert ": xarray can't open it: it is an array of zarr; name the store that it lies in\n" in told(*command)


def test_an_array_without_a_store_is_told_as_one(tmp_path):
    zarr.save_array(tmp_path / "alone.zarr", np.ones(3))
    line = told("inspect", tmp_path / "alone.zarr")
    assert ": xarray can't open it: it is an array of zarr; zarr.open_array reads it, in Python\n" in line


@pytest.mark.usefixtures("here")
def test_groups_are_read_and_other_commands_name_the_way(monkeypatch):
    tree = xarray.DataTree.from_dict({"/": decoded("a.nc"), "/model/more": decoded("a.nc")[["t"]]})
    tree.to_netcdf("groups.nc")
    assert {"t", "model/more/t"} <= rows_of("inspect", "groups.nc").keys()
    way = "fastq pack and fastq bitround take it, fastq inspect shows it, xarray.open_dataset reads it"
    for name, command in (("a.nc", ["suggest", "a.nc"]), ("c.zarr", ["quantize", "c.zarr", "o.npz"])):
        line = refused(*command)
        assert name in line
        assert way in line
    for name in ("a.nc", "c.zarr"):
        with pytest.raises(ValueError, match=r"path can't be read: .*: xarray\.open_dataset reads netCDF and zarr"):
            fastq.load(name)
    monkeypatch.setitem(sys.modules, "xarray", None)
    assert told("inspect", "a.nc") == (
        "Error: a.nc: this needs xarray with netCDF4 or zarr: pip install xarray dask netCDF4 zarr\n"
    )


@dataclass(frozen=True, kw_only=True)
class InChunks(Tensor):
    """An array with chunks of storage."""

    numbers: np.ndarray
    cut: tuple

    def load(self):
        return self.numbers

    @property
    def chunks(self):
        return self.cut


def test_parts_are_whole_chunks():
    """Storage is decompressed chunk by chunk: a part that cuts one would decompress it again for each part."""
    for shape, chunks in (((40, 6, 50), (7, 2, 20)), ((40, 6, 50), (40, 1, 1)), ((9,), (4,)), ((5, 4), ()), ((), ())):
        numbers = np.arange(math.prod(shape)).reshape(shape)
        one = InChunks(
            name="a",
            shape=shape,
            scheme="I64",
            nbytes=0,
            original_dtype="I64",
            is_quantized=False,
            numbers=numbers,
            cut=chunks,
        )
        for piece in (1, 30, 500, 1 << 20):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(extent, "PIECE", piece)
                parts = list(one.parts())
            with one.open_parts() as read:
                found = [read(part) for part in parts]
            assert sorted(np.concatenate([each.ravel() for each in found])) == list(range(numbers.size))
            for part, each in zip(parts, found, strict=True):
                assert each.size <= max(piece, math.prod(chunks))
                assert all(cut.start % size == 0 for cut, size in zip(part, chunks or (1,) * len(shape), strict=True))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("piece", [1 << 20, 64])
@pytest.mark.parametrize("line", ["inspect b.nc", "compare b.nc c.zarr", "inspect b.nc --header"])
def test_progress_counts_all_bytes_and_variables(line, piece, monkeypatch):
    """Part by part, so that the bar of a large variable does not stand still."""
    seen, given = [], []

    @contextlib.contextmanager
    def bar(rows):
        given.extend(rows)
        yield lambda nbytes, count: seen.append((nbytes, count))

    monkeypatch.setattr(extent, "PIECE", piece)
    monkeypatch.setattr(f"fastq.tools.cli.commands.{line.split()[0]}.progress_bar", bar)
    run(*line.split())
    assert sum(count for _, count in seen) == len(given)
    assert 0 <= sum(row.nbytes for row in given) - sum(done for done, _ in seen) < len(seen)  # parts are rounded down


BITROUND = [{"name": "bitround", "configuration": {"keepbits": 7}}]


@pytest.mark.skipif(
    not entry_points(group="zarr.codecs", name="bitround"), reason="fastq was installed before it had entry points"
)
def test_stores_with_a_codec_of_fastq_are_read_in_any_process(tmp_path):
    """By the command, and by zarr in a process that does not import fastq: by entry points of the installed package."""
    path = tmp_path / "a.zarr"
    values = np.linspace(270, 290, 12, dtype=np.float32)
    program = f"""
import sys, numpy, zarr
values = numpy.linspace(270, 290, 12, dtype="f4")
array = zarr.create_array({str(path / "t")!r}, shape=12, dtype="f4", filters={BITROUND!r}, dimension_names=["x"])
array[:] = values
assert abs(zarr.open_array({str(path / "t")!r})[:] - values).max() < 2
assert "fastq" in sys.modules
zarr.open_group({str(path)!r}, mode="a")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert len(rows_of("inspect", path)) == 1
    run("pack", path, tmp_path / "b.nc")
    np.testing.assert_allclose(decoded(str(tmp_path / "b.nc")).t.values, values, atol=2)


def test_an_unknown_codec_is_named(tmp_path):
    path = tmp_path / "a.zarr"
    xarray.Dataset({"t": ("x", np.arange(3.0))}).to_zarr(path, consolidated=False, zarr_format=3)
    about = path / "t" / "zarr.json"
    metadata = json.loads(about.read_text())
    metadata["codecs"].insert(0, {"name": "unheard_of", "configuration": {}})
    about.write_text(json.dumps(metadata))
    for command in (["inspect", path], ["pack", path, tmp_path / "b.nc"]):
        message = told(*command)
        assert "xarray can't open it: Unknown codec: 'unheard_of'; install the package that has it for zarr" in message
