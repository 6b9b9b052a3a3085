"""Packed Datasets: half a step of error, no code that wraps, through files and back."""

import importlib
import weakref

import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq.adapters.xarray import scale_offset_fill
from fastq.engine.runtime import boundary
from fastq.formats.qtypes import as_qtype
from fastq.system import cpu

xarray = pytest.importorskip("xarray", reason="no xarray")

FORMATS = ("int8", "uint8", "int16", "uint16")
QUICK = (("int16", np.float32), ("int16", np.float64))


def seasons(dtype=np.float32, days=60, shape=(9, 16)):
    """Temperature and rain over a year, with gaps, next to variables of other kinds."""
    rng, day = np.random.default_rng(11), np.arange(days) * 365 / days
    cycle = 15 * np.sin(day * 2 * np.pi / 365)[:, None, None]
    t = (283 + cycle - np.linspace(0, 30, shape[0])[None, :, None] + rng.standard_normal((days, *shape))).astype(dtype)
    t[:, 3:5, 2:9] = np.nan
    t[rng.random(t.shape) < 0.02] = np.nan
    rain = (rng.gamma(0.3, 4, t.shape)).astype(dtype)
    dims = ("time", "lat", "lon")
    return xarray.Dataset(
        {
            "t": (dims, t, {"units": "K", "valid_max": 400}),
            "rain": (dims, rain),
            "count": (("time",), np.arange(days)),
            "empty": (("lat",), np.full(shape[0], np.nan, dtype)),
            "flat": (("lat",), np.full(shape[0], 5, dtype)),
        },
        {"time": day, "lat": np.linspace(-80, 80, shape[0]), "lon": np.arange(shape[1]) * 22.5},
        {"title": "weather"},
    )


def check(ds, packed, decoded):
    """Each value is at most half a step and a rounding off, gaps are where they were, and codes do not wrap."""
    for name in ("t", "rain", "flat", "empty"):
        attributes, codes = packed[name].attrs, packed[name].values
        scale, offset, fill = (attributes[key] for key in ("scale_factor", "add_offset", "_FillValue"))
        gaps = np.isnan(ds[name].values)
        assert np.array_equal(codes == fill, gaps)
        assert np.array_equal(np.isnan(decoded[name].values), gaps)
        assert type(scale) is type(offset)
        x = ds[name].values[~gaps].astype(np.float64)
        error = np.abs(decoded[name].values[~gaps] - x)
        allowed = scale / 2 + 4 * np.finfo(scale.dtype).eps * max([0, abs(offset), *np.abs(x)])
        assert error.size == 0 or error.max() <= allowed, name
        exact = np.rint((x - float(offset)) / float(scale))  # a code that wrapped would be thousands off
        assert np.abs(codes[~gaps] - exact).max(initial=0) <= 1


@pytest.mark.slow("compiles kernels of every format", quick=lambda code, dtype: (code, dtype) in QUICK)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ">f4", np.float64])
@pytest.mark.parametrize("code", FORMATS)
def test_every_format(code, dtype):
    ds = seasons(dtype)
    packed = fastq.xarray.pack(ds, code)
    assert packed.t.dtype == packed.rain.dtype == code
    check(ds, packed, xarray.decode_cf(packed))
    xarray.testing.assert_identical(packed["count"], ds["count"])
    assert packed.attrs == ds.attrs
    assert packed.t.attrs["units"] == "K"
    assert packed.t.attrs["valid_max"] == np.iinfo(code).max - (code[0] == "u")
    assert set(packed.coords) == set(ds.coords)


def test_codes_are_those_of_the_convention():
    # contract 25.1 and 25.5
    ds = seasons()
    packed, x = fastq.xarray.pack(ds), ds.t.values
    scale, offset = packed.t.attrs["scale_factor"], packed.t.attrs["add_offset"]
    codes = fastq.reference.quantize_linear(x, scale, offset, "int16", convention="cf", nan="zero")
    same_bytes(packed.t.values, np.where(np.isnan(x), np.int16(-32768), codes))


@pytest.mark.parametrize("engine", ["netcdf4", "zarr"])
def test_files(engine, tmp_path):
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine), reason=f"no {engine}")
    ds, path, options = seasons(), tmp_path / "file", {"engine": engine}
    ds.t.encoding = {"dtype": np.dtype("f4"), "scale_factor": 3.0, "zlib": True} if engine == "netcdf4" else {}
    packed = fastq.xarray.pack(ds)
    if engine == "netcdf4":
        packed.to_netcdf(path, **options)
    else:
        options["consolidated"] = False
        packed.to_zarr(path, consolidated=False)
    raw, read = (xarray.load_dataset(path, decode_cf=flag, **options) for flag in (False, True))
    for name in ("t", "rain"):
        same_bytes(raw[name].values, packed[name].values)
    check(ds, packed, read)


def test_encodings_for_floats_are_left_out():
    ds = seasons()
    ds.t.encoding = {"filters": ("some",), "fill_value": np.float32(np.nan), "quantize_mode": "BitGroom", "zlib": True}
    ds.t.encoding |= {"serializer": "auto", "significant_digits": 3, "least_significant_digit": 2}
    assert fastq.xarray.pack(ds).t.encoding == {"zlib": True, "fill_value": np.int16(-32768)}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("unsigned", [None, "true"])
def test_cells_that_a_zarr_store_lacks_are_missing(tmp_path, dtype, unsigned):
    zarr = pytest.importorskip("zarr", reason="no zarr")
    for data in ([250.0, 300.0], [0.0, 9.0], [-1.0, 9.0]):
        ds = xarray.Dataset({"t": ("x", np.array(data, np.float32), {}, {"_Unsigned": unsigned} if unsigned else {})})
        fastq.xarray.pack(ds, dtype).to_zarr(tmp_path, mode="w", zarr_format=3, consolidated=False)
        zarr.open_array(tmp_path / "t", mode="a").resize(5)
        read = xarray.load_dataset(tmp_path, engine="zarr", consolidated=False).t.values
        np.testing.assert_allclose(read[:2], data, atol=0.2)
        assert np.isnan(read[2:]).all()


def test_numbers_at_the_ends_of_float32_give_no_warning():
    x = xarray.Dataset({"t": ("n", np.array([-3.4e38, 0, 3.4e38], np.float32))})
    packed = fastq.xarray.pack(x).t
    assert packed.values.tolist() == [-32767, 0, 32767]
    assert packed.attrs["scale_factor"] == np.float32(2 * 3.4e38 / 65534)


@pytest.mark.parametrize("code", ["int16", "uint16"])
@pytest.mark.parametrize("value", [0.0, 1e-3, 5e-5, 1e-9, 273.15, -1e30, np.nan])
def test_fields_of_one_value_are_exact(value, code):
    # contract 25.4
    x = np.array([value, np.nan, value], np.float32)
    packed = fastq.xarray.pack(xarray.Dataset({"t": ("x", x)}), code, max_error={"t": 0.0})
    assert packed.t.dtype.itemsize == 1
    same_bytes(xarray.decode_cf(packed).t.values.astype(np.float32), x)


@pytest.mark.parametrize("ends", [(0, 1), (0, 100), (0, 255)])
@pytest.mark.parametrize("code", FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mask_is_its_two_values_again(ends, code, dtype):
    mask = np.random.default_rng(3).choice(np.array(ends, dtype), (40, 50))
    packed = fastq.xarray.pack(xarray.Dataset({"mask": (("y", "x"), mask)}), dtype=code)
    for decoded in (xarray.decode_cf(packed), fastq.xarray.unpack(packed)):
        assert np.array_equal(decoded["mask"].values, mask)


def test_ranges_too_small_to_divide_are_their_minimum():
    # contract 25.4
    x = np.array([0, 1, 2], np.float32) * np.float32(1e-45)
    decoded = xarray.decode_cf(fastq.xarray.pack(xarray.Dataset({"t": ("x", x)}))).t.values
    assert decoded.tolist() == [0, 0, 0]


def test_names_that_are_no_words():
    ds = xarray.Dataset({1: ("x", np.linspace(0, 1, 1000))})
    assert fastq.xarray.pack(ds, max_error={1: 1e-2})[1].dtype == np.int8
    with pytest.raises(ValueError, match="max_error of 1 is 1e-12"):
        fastq.xarray.pack(ds, max_error={1: 1e-12})


def test_lazy():
    pytest.importorskip("dask", reason="no dask")
    ds = seasons()
    lazy = ds.chunk({"time": 13, "lat": 4})
    packed = fastq.xarray.pack(lazy)
    assert packed.t.chunks == lazy.t.chunks
    assert packed.t.dtype == np.int16
    assert type(packed.t.data).__module__.startswith("dask")
    xarray.testing.assert_identical(packed.compute(), fastq.xarray.pack(ds))


@pytest.mark.parametrize("lazy", [False, True])
def test_any_floating_point_mode_of_the_thread(lazy):
    """Flush-to-zero, as libraries linked with -ffast-math set it; tasks of dask run in threads that have it."""
    ds = xarray.Dataset(
        {"t": ("x", np.float32([1e-40, 0, 2e-41, 3e-42]), {"valid_min": 1e-41, "missing_value": 1e-40})}
    )
    if lazy:
        pytest.importorskip("dask", reason="no dask")
        ds = ds.chunk({"x": 2})
    expected = fastq.xarray.pack(ds, ranges={"t": (0, 1)}, out_of_range="clamp").load()
    exchange = boundary._exchange()
    before = exchange(0x9FC0 if cpu.MACHINE == "x86_64" else 1 << 24)
    try:
        packed = fastq.xarray.pack(ds, ranges={"t": (0, 1)}, out_of_range="clamp").load(scheduler="synchronous")
    finally:
        exchange(before)
    same_bytes(packed.t.values, expected.t.values)
    assert (packed.t.values == packed.t.attrs["_FillValue"]).tolist() == [True, True, False, True]


def test_max_error():
    # contract 25.7
    ds = seasons()
    packed = fastq.xarray.pack(ds, max_error={"t": 0.2, "rain": 1e-3})
    assert (packed.t.dtype, packed.rain.dtype) == (np.int8, np.int16)
    decoded = xarray.decode_cf(packed)
    assert np.nanmax(np.abs(decoded.t.values - ds.t.values)) <= 0.2
    assert np.nanmax(np.abs(decoded.rain.values - ds.rain.values)) <= 1e-3
    with pytest.raises(ValueError, match=r"max_error of 't' is 1e-05, but int16 from 2\S+ to 3\S+ may be off by.*bitr"):
        fastq.xarray.pack(ds, max_error={"t": 1e-5})


def test_max_error_where_the_rounding_of_floats_counts():
    # contract 25.7
    """A pressure near 1e5 Pa, where floats of float32 are 0.0078 apart: what is promised holds, and is not far off."""
    x = np.linspace(99_000, 102_000, 5000, dtype=np.float32)
    ds = xarray.Dataset({"sp": ("x", x)})
    half = float(fastq.xarray.pack(ds).sp.attrs["scale_factor"]) / 2
    for variable, most in (("float32", half + 0.013), ("float64", half + 1e-9)):
        packed = fastq.xarray.pack(ds.astype(variable), max_error={"sp": most})
        assert packed.sp.dtype == np.int16
        assert np.abs(xarray.decode_cf(packed).sp.values.astype(np.float64) - x).max() <= most
    with pytest.raises(ValueError, match=r"the rounding of float32, which astype\('float64'\) avoids"):
        fastq.xarray.pack(ds, max_error={"sp": half + 1e-9})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_no_value_is_further_off_than_the_bound(kind, dtype):
    # contract 25.7
    """Ranges of any width around any number, and what NumPy decodes in their type and in float64."""
    rng = np.random.default_rng(4)
    for _ in range(300):
        center = kind(rng.choice([0, 1e5, -1e5, 65536, 1e6, 273.15, 1, -7, 3e-5]) * (1 + 0.1 * rng.random()))
        x = center + kind(10 ** rng.uniform(-4, 6)) * (rng.random(500) - rng.choice([0, 0.5, 1])).astype(kind)
        way = scale_offset_fill.packing_of_range(np.array([x.min(), x.max()]), as_qtype(dtype), False)
        codes = way.encode(x, None).view(way.dtype)
        for type_of in (kind, np.float64):
            decoded = codes.astype(type_of) * type_of(way.scale) + type_of(way.offset)
            assert np.abs(x.astype(np.float64) - decoded.astype(np.float64)).max() <= way.max_error


def test_a_number_whose_code_is_the_fill_value_is_up_to_a_step_off():
    # contract 25.7, 25.8
    attributes = {"scale_factor": np.float32(0.5), "add_offset": np.float32(20), "_FillValue": np.int8(5)}
    like = xarray.Dataset({"t": ("x", np.zeros(3, np.int8), attributes)})
    ds = xarray.Dataset({"t": ("x", np.linspace(-10, 50, 997, dtype=np.float32))})
    with pytest.raises(ValueError, match=r"may be off by 0\.5; like has its fill value among the codes of numbers"):
        fastq.xarray.pack(ds, like=like, max_error={"t": 0.3})
    decoded = xarray.decode_cf(fastq.xarray.pack(ds, like=like, max_error={"t": 0.5001}))
    assert 0.25 < np.abs(decoded.t.values - ds.t.values).max() <= 0.5


def test_without_xarray(monkeypatch):
    monkeypatch.setitem(importlib.sys.modules, "xarray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install xarray"):
        fastq.xarray.pack(seasons())


def test_the_check_tells_wrong_codes():
    ds = seasons()
    packed = fastq.xarray.pack(ds)
    for wrong in (packed.t.values + np.int16(1), np.zeros_like(packed.t.values)):
        other = packed.assign(t=packed.t.copy(data=wrong))
        with pytest.raises(AssertionError):
            check(ds, other, xarray.decode_cf(other))


class Counted(xarray.backends.BackendArray):
    """An array of a file, which counts how often it is read."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.reads = values, values.shape, values.dtype, 0

    read_before = staticmethod(lambda: None)

    def __getitem__(self, key):
        assert Counted.read_before() is None, "two variables are in memory"
        self.reads += 1
        read = self.values[key.tuple] + 0
        Counted.read_before = weakref.ref(read)
        return read


@pytest.mark.parametrize("options", [{}, {"out_of_range": "clamp"}, {"max_error": 1.0}, {"ranges": (200.0, 400.0)}])
def test_what_is_not_cached_is_read_once(options):
    """As of `xarray.open_dataset(path, cache=False)`."""
    values = seasons().t.values
    files = {name: Counted(values + k) for k, name in enumerate("ab")}
    lazily = {name: xarray.core.indexing.LazilyIndexedArray(file) for name, file in files.items()}
    ds = xarray.Dataset({name: (("time", "lat", "lon"), array) for name, array in lazily.items()})
    options = {key: value if isinstance(value, str) else {"a": value} for key, value in options.items()}
    packed = fastq.xarray.pack(ds, **options)
    assert [file.reads for file in files.values()] == [1, 1]
    plain = xarray.Dataset({name: (ds[name].dims, file.values) for name, file in files.items()})
    xarray.testing.assert_identical(packed, fastq.xarray.pack(plain, **options))
