"""Rounded Datasets: which variables, by which options, missing values, attributes of CF, and through files and back."""

import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference

xarray = pytest.importorskip("xarray", reason="no xarray")


def weather(dtype=np.float32):
    """Temperature and rain with gaps, next to variables that are not data."""
    rng, days = np.random.default_rng(3), 40
    t = (283 + 10 * np.sin(np.arange(days) / 6)[:, None] + rng.normal(size=(days, 12))).astype(dtype)
    t[:, 3] = np.nan
    raw = np.where(rng.random(t.shape) < 0.2, -999.25, rng.gamma(0.5, 3, t.shape)).astype(dtype)
    dims = ("time", "lon")
    return xarray.Dataset(
        {
            "t": (dims, t, {"units": "K", "actual_range": np.array([np.nanmin(t), np.nanmax(t)], dtype)}),
            "rain": (dims, raw, {"_FillValue": dtype(-999.25), "valid_max": 100.0, "quantization_nsd": 3}),
            "flag": (dims, t, {"flag_values": [1.0, 2.0]}),
            "codes": (dims, t, {}, {"dtype": "int16", "scale_factor": 0.1}),
            "count": ("time", np.arange(days)),
        },
        {"lon": np.linspace(0, 330, 12)},
    )


def test_variables_without_neighbours_are_named_and_stay():
    ds = weather().assign(scalar=20.5, profile=("lon", np.arange(12.0)))
    with pytest.warns(UserWarning, match="'scalar' stays as it is: it is a scalar, without neighbours to compare"):
        rounded = fastq.xarray.bitround(ds, information=0.99)
    assert rounded.scalar.identical(ds.scalar)
    assert rounded.profile.attrs["quantization_nsb"] >= 1
    with pytest.warns(UserWarning, match="stays as it is") as seen:
        rounded = fastq.xarray.bitround(ds, information=0.99, dim="time", keepbits={"rain": 7})
    assert [str(each.message) for each in seen] == [
        "'scalar' stays as it is: it is a scalar, without neighbours to compare",
        "'profile' stays as it is: it has no dimension time",
    ]
    assert all(each.filename == __file__ for each in seen)
    assert rounded.profile.identical(ds.profile)
    values = ds.t.values
    assert rounded.t.attrs["quantization_nsb"] == fastq.bit_information(values, axis=0).keepbits(0.99)
    with pytest.raises(ValueError, match="dim must be a dimension of 't', one of time, lon, not 'times'"):
        fastq.xarray.bitround(ds, information=0.99, dim="times")
    with pytest.raises(ValueError, match="dim must be a dimension of 'profile', one of lon, not 'time'"):
        fastq.xarray.bitround(ds, information={"profile": 0.99}, dim="time")


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("options", [{"keepbits": 6}, {"digits": 2}, {"max_error": 0.25}])
def test_what_is_rounded_and_what_is_told(options, lazy):
    # contract 25.9
    ds = weather()
    if lazy:
        pytest.importorskip("dask", reason="no dask")
    rounded = fastq.xarray.bitround(ds.chunk({"time": 7}) if lazy else ds, **options)
    assert (rounded.t.chunks is not None) == lazy
    attribute, algorithm = ("nsd", "granular_bitround") if "digits" in options else ("nsb", "bitround")
    holder = f"quantization_{algorithm}"
    assert rounded[holder].attrs["algorithm"] == algorithm
    assert "fastq version" in rounded[holder].attrs["implementation"]
    for name in ("t", "rain"):
        told, x = rounded[name].attrs, ds[name].values
        gaps = np.isnan(x) | (x == -999.25)
        assert told["quantization"] == holder
        kept = {"digits": 2} if "digits" in options else {"keepbits": int(told["quantization_nsb"])}
        assert f"quantization_{attribute}" in told
        assert ("quantization_nsb" in told) == (attribute == "nsb")
        same_bytes(rounded[name].values, np.where(gaps, x, reference.bitround(x, **kept)))
        if "max_error" in options:
            same_bytes(rounded[name].values[~gaps], fastq.bitround(x[~gaps], **options))
    ends = rounded.t.attrs["actual_range"]
    assert (ends == [np.nanmin(rounded.t), np.nanmax(rounded.t)]).all()
    for name in ("flag", "codes", "count", "lon"):
        assert rounded[name].identical(ds[name])


def test_variables_by_their_names_and_all_others():
    ds = weather()
    rounded = fastq.xarray.bitround(ds, keepbits={"t": 5}, digits=4)
    assert rounded.t.attrs["quantization_nsb"] == 5
    assert rounded.rain.attrs["quantization_nsd"] == 4
    assert {"quantization_bitround", "quantization_granular_bitround"} <= set(rounded.data_vars)
    alone = fastq.xarray.bitround(ds, digits={"rain": 1}, convention="netcdf")
    assert alone.t.identical(ds.t)
    known = ds.rain.values != -999.25
    same_bytes(alone.rain.values[known], reference.bitround(ds.rain.values[known], digits=1, convention="netcdf"))


def test_information():
    pytest.importorskip("dask", reason="no dask")
    ds = weather()
    found = {dim: fastq.bit_information(ds.t.values, axis=k) for k, dim in enumerate(ds.t.dims)}
    for each in (ds, ds.chunk({"time": 7, "lon": 5})):
        for options in ({}, {"dim": "time"}):
            told = fastq.xarray.bitround(each, information=0.95, **options).t.attrs
            assert told["quantization_nsb"] == found[options.get("dim", "lon")].keepbits(0.95)


def test_what_would_become_missing_stays():
    # contract 25.9
    x = np.float32([99.9, 101.0, 3.3, -999.25, -998.9])
    ds = xarray.Dataset({"v": ("x", x, {"valid_max": 100.0, "_FillValue": np.float32(-1000.0)})})
    found = fastq.xarray.bitround(ds, keepbits=7).v.values
    same_bytes(found, np.float32([100.0, 101.0, 3.296875, -999.25, -998.9]))  # the last ones would be the fill value
    low = ds.assign(v=ds.v.assign_attrs(valid_max=99.9))
    assert fastq.xarray.bitround(low, keepbits=7).v.values[0] == x[0]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_default_fill_value_of_netcdf_stays(dtype, lazy):
    # contract 25.9
    if lazy:
        pytest.importorskip("dask", reason="no dask")
    with np.errstate(over="ignore"):
        x = np.array([3.3, 9.969209968386869e36, -7.7, 1e3], dtype)
    x[3] = 9.97e36 if dtype is not np.float16 else 9.97
    fill = x == x[1]
    ds = xarray.Dataset({"v": ("x", x)})
    for options in ({"keepbits": 1}, {"keepbits": 2}, {"digits": 1}, {"information": 0.01}):
        found = fastq.xarray.bitround(ds.chunk() if lazy else ds, **options).v
        kept = {"digits": 1} if "digits" in options else {"keepbits": int(found.attrs["quantization_nsb"])}
        same_bytes(found.values, np.where(fill, x, reference.bitround(x, **kept)))
    named = ds.assign(v=ds.v.assign_attrs(_FillValue=dtype(-1)))
    same_bytes(fastq.xarray.bitround(named, keepbits=1).v.values, reference.bitround(x, keepbits=1))


def test_an_error_within_the_default_fill_value_of_netcdf_is_refused():
    ds = xarray.Dataset({"v": ("x", np.float32([3.3, 9.969209968386869e36]))})
    with pytest.raises(ValueError, match=r"ds has 9\.96\d*e\+36 in 'v', netCDF's own fill value: name it"):
        fastq.xarray.bitround(ds, max_error=0.1)
    named = ds.assign(v=ds.v.assign_attrs(_FillValue=ds.v.values[1]))
    same_bytes(fastq.xarray.bitround(named, max_error=0.1).v.values, np.float32([3.25, ds.v.values[1]]))


def test_the_actual_range_has_what_stays():
    x = np.float32([-3.0, 15.0, 15.72])
    told = {"valid_max": x[2], "actual_range": x[[0, 2]]}
    rounded = fastq.xarray.bitround(xarray.Dataset({"v": ("x", x, told)}), digits=3).v
    same_bytes(rounded.attrs["actual_range"], rounded.values[[0, 2]])
    assert rounded.values[2] == x[2]


@pytest.mark.parametrize("engine", ["netcdf4", "zarr"])
def test_files(engine, tmp_path):
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
    rounded = fastq.xarray.bitround(weather().drop_vars("codes"), keepbits=4)
    path = tmp_path / "x"
    rounded.to_netcdf(path, engine="netcdf4") if engine == "netcdf4" else rounded.to_zarr(path, consolidated=False)
    with xarray.open_dataset(path, engine=engine, **{"zarr": {"consolidated": False}}.get(engine, {})) as back:
        assert (back.t.attrs["quantization_nsb"], back.t.attrs["quantization"]) == (4, "quantization_bitround")
        assert back.quantization_bitround.attrs["algorithm"] == "bitround"
        same_bytes(back.t.values, rounded.t.values)
        again = fastq.xarray.bitround(back.load(), keepbits=4)
        same_bytes(again.t.values, back.t.values)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "one of keepbits, digits, max_error and information must be a number for all variables"),
        ({"keepbits": 3, "digits": 2}, TypeError, "digits must be given by .* since keepbits is a number for all"),
        ({"keepbits": {"t": 3}, "digits": {"t": 2}}, TypeError, "digits names 't', as keepbits does"),
        ({"keepbits": {"flag": 3}}, TypeError, "keepbits names 'flag', which stays as it is: by its flag_values"),
        ({"keepbits": {"codes": 3}}, TypeError, "'codes', which stays as it is: by its encoding it is packed"),
        ({"keepbits": {"count": 3}}, TypeError, "'count', which is not a float variable"),
        ({"keepbits": {"lon": 3}}, TypeError, "'lon', which stays as it is: it is a coordinate"),
        ({"keepbits": 0}, ValueError, "keepbits of 't' must be from 1 to 23 for float32, not 0"),
        ({"digits": 8}, ValueError, "digits of 't' must be from 1 to 7"),
        ({"digits": 2.0}, TypeError, "digits of 't' must be an int"),
        ({"max_error": -1}, ValueError, "max_error of 't' must be from 0.0 to inf"),
        ({"information": 1.5}, ValueError, "information of 't' must be from 0.0 to 1.0"),
        ({"information": 0.9, "dim": "lat"}, ValueError, "dim must be a dimension of 't', one of time, lon, not 'lat'"),
        ({"keepbits": 3, "convention": "cf"}, ValueError, "convention must be one of"),
    ],
)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        fastq.xarray.bitround(weather(), **options)


def test_what_is_no_dataset_is_refused():
    with pytest.raises(TypeError, match=r"ds must be a Dataset, not DataArray: to_dataset\(\) makes one"):
        fastq.xarray.bitround(weather().t, keepbits=3)
