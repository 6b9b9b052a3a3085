"""Unpacked Datasets: what xarray.decode_cf makes of them to the last bit, whatever attributes say, and lazily."""

import dataclasses
import importlib
import pickle
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
from catalogue import same_bytes
from unpacked import plainly

import fastq
from fastq.ops import cf_packing
from fastq.system import tuning

xarray = pytest.importorskip("xarray", reason="no xarray")
F32 = np.float32

# of each attribute what netCDF, HDF5 and zarr files and their readers give, and what is wrong
ATTRIBUTES = {
    "scale_factor": (*(F32(0.1), np.float64(-0.1), 0.3, 2, np.int16(3), np.array([0.5])), np.inf, 0.0, np.float16(0.5)),
    "add_offset": (F32(3), np.float64(5.5), 7, -0.0, np.nan),
    "_FillValue": (np.int16(-1), -1, 255, -9999.0, np.nan, F32(4), 3.9999999999, 5.4),
    "missing_value": (5, np.array([5, 6, 7]), -1, np.array([3.0, 1e20]), "none"),
    "_Unsigned": ("true", "false", "True"),
}
STORED = ("i1", "u1", "i2", ">i2", "u2", "i4", ">i4", "u4", "i8", "f4", ">f8")


def packed(seed):
    """A Dataset of one variable with any of the attributes."""
    rng = random.Random(seed)
    noted = {key: rng.choice(values) for key, values in ATTRIBUTES.items() if rng.random() < 0.6}
    noted = noted or {"scale_factor": 0.5}
    stored = np.dtype(STORED[seed % len(STORED)])
    codes = np.random.default_rng(seed).integers(0 if stored.kind == "u" else -10, 12, (4, 10)).astype(stored)
    return xarray.Dataset({"t": (("y", "x"), codes, noted)}, {"x": np.arange(10)}, {"title": "any"})


def outcome(function):
    """What a function returns or raises, and its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            result = function().load()
        except Exception as error:
            result = type(error)
    return result, [str(each.message) for each in found]


def by_xarray(ds):
    return xarray.decode_cf(ds, decode_times=False, decode_timedelta=False)


def check_same(found, expected):
    """Values, dtypes, attributes and encodings are the same."""
    xarray.testing.assert_identical(found, expected)
    for name, variable in expected.variables.items():
        if variable.encoding.keys() - {"dtype"}:  # xarray notes the dtype of all others too
            assert repr(found[name].encoding) == repr(variable.encoding)
        if variable.dtype != object:
            same_bytes(found[name].values, variable.values)


@pytest.mark.slow("four seconds", quick=lambda seeds: 0 in seeds)
@pytest.mark.parametrize("seeds", [range(200), range(200, 600)], ids=str)
def test_all_attributes_are_read_as_by_xarray(seeds):
    # contract 25.11
    """By kernels where those compute the same, else by xarray itself; errors and warnings are its own."""
    kept = importlib.import_module("xarray.core.indexing").MemoryCachedArray
    by_kernels = 0
    for seed in seeds:
        ds = packed(seed)
        (found, warned), (expected, expected_warned) = (
            outcome(lambda unpack=unpack, ds=ds: unpack(ds)) for unpack in (fastq.xarray.unpack, by_xarray)
        )
        assert warned == expected_warned, seed
        if isinstance(expected, type):
            assert found is expected, seed
            continue
        check_same(found, expected)
        with warnings.catch_warnings(action="ignore"):
            by_kernels += isinstance(fastq.xarray.unpack(ds).variables["t"]._data, kept)
    assert by_kernels > len(seeds) / 4


def test_a_packed_dataset_comes_back():
    t = np.sin(np.arange(60, dtype=F32)).reshape(6, 10)
    t[2:4, 3] = np.nan
    ds = xarray.Dataset({"t": (("time", "x"), t), "n": ("x", np.arange(10))}, {"time": np.arange(6)}, {"title": "a"})
    for code in ("int8", "uint8", "int16", "uint16"):
        check_same(fastq.xarray.unpack(fastq.xarray.pack(ds, code)), by_xarray(fastq.xarray.pack(ds, code)))
    assert np.array_equal(np.isnan(fastq.xarray.unpack(fastq.xarray.pack(ds)).t.values), np.isnan(t))


def test_coordinates_are_unpacked_too():
    noted = {"scale_factor": F32(0.5), "add_offset": F32(10)}
    ds = xarray.Dataset(
        {"t": ("x", np.arange(4, dtype=np.int16), noted)},
        {"x": ("x", np.arange(4, dtype=np.int16), noted), "lat": ("x", np.arange(4, dtype=np.int8), noted)},
    )
    check_same(fastq.xarray.unpack(ds), by_xarray(ds))
    assert fastq.xarray.unpack(ds).indexes["x"].tolist() == [10, 10.5, 11, 11.5]


def test_times_are_left_to_xarray():
    times = {"units": "hours since 2000-01-01", "_FillValue": np.int16(-1)}
    ds = xarray.Dataset(
        {
            "when": ("x", np.array([0, -1, 5], np.int16), times),
            "t": ("x", np.arange(3, dtype=np.int8), {"add_offset": 3.5}),
        }
    )
    found = fastq.xarray.unpack(ds)
    xarray.testing.assert_identical(found.when, ds.when)
    xarray.testing.assert_identical(xarray.decode_cf(found), xarray.decode_cf(ds))


def test_files_are_read_when_values_are_looked_at(tmp_path):
    pytest.importorskip("netCDF4", reason="no netCDF4")
    t = np.sin(np.arange(6 * 8 * 10, dtype=F32)).reshape(6, 8, 10)
    t[:, 2] = np.nan
    fastq.xarray.pack(xarray.Dataset({"t": (("time", "y", "x"), t)})).to_netcdf(tmp_path / "t.nc", engine="netcdf4")
    expected = xarray.load_dataset(tmp_path / "t.nc", engine="netcdf4")
    with xarray.open_dataset(tmp_path / "t.nc", engine="netcdf4", mask_and_scale=False) as raw:
        ds = fastq.xarray.unpack(raw)
        assert "480 values with dtype=float32" in repr(ds.t.variable)  # which are not read
        for part in ({"time": 3}, {"y": slice(1, 6, 2), "x": [7, 1]}, {"time": [2, 0], "y": [1, 2], "x": 4}, {}):
            same_bytes(ds.t.isel(part).values, expected.t.isel(part).values)
        for kept in (ds, pickle.loads(pickle.dumps(ds))):
            check_same(kept.load(), expected)
    ds.t[0, 0, 0] = 7
    assert ds.t.values[0, 0, 0] == 7


def test_dask_arrays_stay_lazy():
    da = pytest.importorskip("dask.array", reason="no dask")
    codes = np.arange(-30, 30, dtype=np.int16).reshape(6, 10)
    ds = xarray.Dataset({"t": (("y", "x"), codes, {"scale_factor": 0.1, "add_offset": 3.0, "_FillValue": -9})})
    lazy = fastq.xarray.unpack(ds.chunk(y=4))
    assert isinstance(lazy.t.data, da.Array)
    assert (lazy.t.chunks, lazy.t.dtype) == (((4, 2), (10,)), np.float64)
    check_same(lazy.compute(), by_xarray(ds))


def test_codes_of_several_files_with_one_scale_are_told_of(tmp_path):
    files = [tmp_path / name for name in ("a.nc", "b.nc")]
    for path, first in zip(files, (0, 100), strict=True):
        values = np.linspace(first, first + 10, 12, dtype=np.float32).reshape(3, 4)
        fastq.xarray.pack(xarray.Dataset({"t": (("time", "x"), values)})).to_netcdf(path)
    how = {"combine": "nested", "concat_dim": "time", "mask_and_scale": False}
    with xarray.open_mfdataset(files, **how) as joined, pytest.warns(UserWarning, match="^'t' of ds is longer than in"):
        fastq.xarray.unpack(joined)
    eager = xarray.concat([xarray.load_dataset(path, mask_and_scale=False) for path in files], "time")
    with pytest.warns(UserWarning, match="preprocess=fastq.xarray.unpack") as caught:
        fastq.xarray.unpack(eager)
    assert [each.filename for each in caught] == [__file__]
    with xarray.open_mfdataset(files, **how, preprocess=fastq.xarray.unpack) as unpacked:  # without a warning
        np.testing.assert_allclose(unpacked.t[3, 0], 100, atol=1e-3)
        again = fastq.xarray.pack(unpacked)
        fastq.xarray.unpack(again)
    with xarray.open_dataset(files[0], mask_and_scale=False) as one:
        fastq.xarray.unpack(one)
        fastq.xarray.unpack(one.isel(time=slice(1)))


def test_values_of_another_dtype():
    noted = {"scale_factor": F32(0.1), "add_offset": F32(-3), "_FillValue": np.int16(4)}
    codes = np.arange(-50, 50).astype(np.int16)
    ds = xarray.Dataset({"t": ("x", codes, noted), "of_64": ("x", codes, noted | {"add_offset": -3.0})})
    found = fastq.xarray.unpack(ds, dtype="float64")
    exact = np.where(codes == 4, np.nan, codes * np.float64(F32(0.1)) - 3)
    same_bytes(found.t.values, exact)
    found = fastq.xarray.unpack(ds, dtype=np.float32)
    same_bytes(found.t.values, by_xarray(ds).t.values)
    same_bytes(found.of_64.values, exact.astype(F32))


# --- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles kernels of all dtypes", quick=lambda dtype, stream_from: dtype == np.int16)
@pytest.mark.parametrize("dtype", sorted(cf_packing.PACKED_INTEGERS, key=str))
@pytest.mark.parametrize("stream_from", [1, 1 << 40])
def test_arrays(dtype, stream_from, monkeypatch):
    # contract 25.10
    """Each number of codes around a register and a line, past the cache and into it, with any number of gaps."""
    row = dataclasses.replace(tuning.current(), stream_from=stream_from)
    monkeypatch.setattr(tuning, "current", lambda: row)
    rng, info = np.random.default_rng(3), np.iinfo(dtype)
    some = rng.integers(info.min, info.max, 5000, dtype, endpoint=True)
    some[::3] = rng.choice([info.min, 5, 6, 7, info.max], some[::3].size).astype(dtype)
    for computed, values in (("f4", "f4"), ("f8", "f8"), ("f8", "f4")):
        units = np.array([-0.0137], computed), np.array([-0.0], computed)
        for gaps in ((), (int(info.min),), (5, int(info.max)), (5, 6, 7)):
            for size in (0, 1, *range(15, 18), *range(60, 70), 5000):
                x = some[:size]
                found = cf_packing.unpack_integers(x, np.dtype(values), *units, gaps)
                same_bytes(found, plainly(x, computed, values, units[0][0], units[1][0], gaps))


def test_arrays_of_any_memory():
    """In other orders, with gaps between elements, of the other byte order, and so large that threads share them."""
    large = np.arange(1 << 20).astype(np.int16)
    rows = large[:600].reshape(20, 30)
    for codes in (large, rows.T, rows[::-2, ::3], rows.astype(">i2"), rows[:, 3], np.int16(7), large[1:999]):
        found = fastq.xarray.unpack_array(codes, F32(0.5), F32(-3), fill_value=[6, 7])
        same_bytes(found, plainly(np.asarray(codes), "f4", "f4", 0.5, -3, (6, 7)))


@pytest.mark.parametrize(
    ("units", "options", "computed", "values"),
    [
        ((), {}, "f8", "f8"),
        ((F32(0.1),), {}, "f4", "f4"),
        ((F32(0.1), 3), {}, "f4", "f4"),
        ((F32(0.1), 3.0), {}, "f4", "f4"),
        ((F32(0.1), np.float64(3)), {}, "f8", "f8"),
        ((0.1, np.int16(3)), {}, "f8", "f8"),
        ((F32(0.1), F32(3)), {"dtype": "float64"}, "f8", "f8"),
        ((0.1, 3.3), {"dtype": np.float32}, "f8", "f4"),
    ],
)
def test_dtypes_of_arrays(units, options, computed, values):
    codes = np.arange(-100, 100).astype(np.int16)
    found = fastq.xarray.unpack_array(codes, *units, fill_value=np.int16(-7), **options)
    scale, offset = (*units, *(1, 0)[len(units) :])
    same_bytes(found, plainly(codes, computed, values, scale, offset, (-7,)))


def test_32_bits_are_computed_in_float64():
    codes = np.array([2**31 - 1, -(2**31), 2**24 + 1], np.int32)
    same_bytes(fastq.xarray.unpack_array(codes, F32(1)), codes.astype(np.float64))
    same_bytes(fastq.xarray.unpack_array(codes, 1, fill_value=[2**40, 2**24 + 1]), np.array([*codes[:2], np.nan]))


CODES = np.arange(4, dtype=np.int16)
REFUSED = [
    (lambda: fastq.xarray.unpack(CODES), TypeError, "ds must be a Dataset, not ndarray"),
    (lambda: fastq.xarray.unpack(xarray.Dataset({"t": ("x", CODES)}).t), TypeError, r"DataArray: to_dataset\(\) makes"),
    (lambda: fastq.xarray.unpack(xarray.Dataset(), dtype="int8"), ValueError, "dtype must be one of 'float32', 'flo"),
    (lambda: fastq.xarray.unpack_array(CODES, dtype="float16"), ValueError, "dtype must be one of 'float32', 'float6"),
    (lambda: fastq.xarray.unpack_array(CODES, dtype="g5"), TypeError, "dtype must be float32 or float64, not 'g5'"),
    (lambda: fastq.xarray.unpack_array(CODES.astype("i8")), TypeError, "codes must be integers of 8, 16 or 32 bits, n"),
    (lambda: fastq.xarray.unpack_array(CODES, np.inf), ValueError, "scale_factor must be finite, not inf"),
    (lambda: fastq.xarray.unpack_array(CODES, 1, np.nan), ValueError, "add_offset must be from -inf to inf, not "),
    (lambda: fastq.xarray.unpack_array(CODES, "1"), TypeError, "scale_factor must be a number, not '1'"),
    (lambda: fastq.xarray.unpack_array(CODES, fill_value=1.0), TypeError, "fill_value must be an int, or several of t"),
    (lambda: fastq.xarray.unpack_array(CODES, fill_value=[True]), TypeError, "fill_value must be an int, or several o"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_arrays_need_no_xarray():
    code = "import sys, numpy, fastq\nfastq.xarray.unpack_array(numpy.int16([1]))\nprint('xarray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=600) == "False\n"


def test_without_xarray_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ModuleNotFoundError, match=r"fastq\.xarray\.unpack needs xarray: pip install xarray"):
        fastq.xarray.unpack(None)
