"""xarray's own data of packed variables, and the attributes that it knows of CF."""

import warnings

import numpy as np
import pytest

import fastq

xarray = pytest.importorskip("xarray", reason="xarray is not installed")
conventions = pytest.importorskip("xarray.conventions")

KINDS = ("unsigned", "bad_unsigned", "signed", "unsigned_false", "and_scaled")
ENGINES = [("scipy", "NETCDF3_CLASSIC"), ("netcdf4", "NETCDF3_64BIT"), ("netcdf4", "NETCDF4"), ("h5netcdf", "NETCDF4")]
SHAPES = {"time": 20, "dim1": 8, "dim2": 9, "dim3": 10}


@pytest.fixture(scope="module")
def backends():
    """Return xarray's own tests, which take a second to import, in one of two workers."""
    return pytest.importorskip("xarray.tests.test_backends", reason="xarray's tests are not installed")


@pytest.fixture
def pair(backends, kind):
    """Return the functions that make decoded and packed data of a kind."""
    made = [getattr(each, "values", each) for each in backends.MASK_AND_SCALE_DATA]
    return dict(zip(KINDS, made, strict=True))[kind]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_what_xarray_packs(pair, dtype):
    """Codes are those that xarray stores, however the packed Dataset is given; or no reader would find them."""
    decoded, encoded = (make(np.dtype(dtype)) for make in pair)
    plain = xarray.Dataset({"x": ("t", decoded.x.values)})
    if not isinstance(encoded.x.attrs.get("_Unsigned", "true"), str):  # xarray's own test of it is expected to fail
        with pytest.raises(ValueError, match="its codes are for"):
            fastq.xarray.pack(plain, like=encoded)
        return
    can_decode = encoded.x.dtype.kind == "i"  # xarray overflows where _Unsigned is "false" and the fill value 255
    for like in (encoded, decoded, *([xarray.decode_cf(encoded)] if can_decode else [])):
        packed = fastq.xarray.pack(plain, like=like)
        xarray.testing.assert_equal(packed, encoded)
        assert packed.x.dtype == encoded.x.dtype
        if can_decode:
            xarray.testing.assert_allclose(xarray.decode_cf(packed), plain)


@pytest.mark.parametrize("kind", KINDS)
def test_what_xarray_unpacks(pair):
    """Its own packed data: decoded as it does, attributes and encodings among it."""
    _, encoded = (make(np.dtype(np.float64)) for make in pair)
    try:
        expected = xarray.decode_cf(encoded).load()
    except OverflowError as error:
        with pytest.raises(OverflowError, match=str(error)):
            fastq.xarray.unpack(encoded)
        return
    found = fastq.xarray.unpack(encoded).load()
    xarray.testing.assert_identical(found, expected)
    assert found.x.values.tobytes() == expected.x.values.tobytes()
    assert found.x.dtype == expected.x.dtype


@pytest.mark.parametrize(("engine", "form"), ENGINES)
@pytest.mark.parametrize("code", ["i1", "i2", "i4"])
def test_what_is_unpacked_is_what_others_read(engine, form, code, tmp_path):
    """Files of each format: the bits of xarray, and the values of netCDF4, which masks what both take for a gap."""
    netcdf4 = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    pytest.importorskip(engine.replace("netcdf4", "netCDF4"), reason=f"{engine} is not installed")
    rng, info = np.random.default_rng(5), np.iinfo(code)
    codes = rng.integers(info.min, info.max, (7, 50), code, endpoint=True)
    codes[rng.random(codes.shape) < 0.2] = rng.choice(np.array([info.min, 5], code))
    kinds = {"single": np.float32, "double": np.float64}
    noted = {name: {"scale_factor": kind(0.013), "add_offset": kind(-4)} for name, kind in kinds.items()}
    ds = xarray.Dataset({name: (("y", "x"), codes, each) for name, each in noted.items()})
    ds.double.attrs |= {"_FillValue": codes.dtype.type(info.min), "missing_value": codes.dtype.type(5)}
    path = tmp_path / "packed.nc"
    with warnings.catch_warnings(action="ignore"):
        ds.to_netcdf(path, engine=engine, format=form)
        expected = xarray.load_dataset(path, engine=engine)
        with xarray.open_dataset(path, engine=engine, mask_and_scale=False) as raw:
            found = fastq.xarray.unpack(raw).load()
    for name in noted:
        assert found[name].values.tobytes() == expected[name].values.tobytes()
        assert found[name].dtype == expected[name].dtype
    if engine == "netcdf4":
        with netcdf4.Dataset(path) as file:
            values = np.ma.filled(file["double"][:].astype(float), np.nan)
        np.testing.assert_array_equal(found.double.values, values)


@pytest.mark.parametrize("key", conventions.CF_RELATED_DATA)
def test_what_xarray_takes_as_a_coordinate_stays(key):
    """Every attribute that xarray decodes to coordinates."""
    text = "area: v" if key in conventions.CF_RELATED_DATA_NEEDS_PARSING and key != "grid_mapping" else "v"
    ds = xarray.Dataset({"t": ("x", [1.5, 2.5], {key: text}), "v": ("x", [0.25, 0.5])})
    assert "v" in xarray.decode_cf(ds, decode_coords="all").coords
    for each in (ds, xarray.decode_cf(ds, decode_coords="all")):
        packed = fastq.xarray.pack(each)
        xarray.testing.assert_identical(packed.v.variable, ds.v.variable)
        assert packed.t.dtype == np.int16


@pytest.mark.parametrize(("engine", "form"), ENGINES)
def test_round_trips_of_its_test_data(backends, engine, form, tmp_path):
    """Its Dataset of many kinds of variables: floats are within half a step, all others are what they would be."""
    pytest.importorskip("netCDF4" if engine == "netcdf4" else engine, reason=f"{engine} is not installed")
    ds = backends.create_test_data(dim_sizes=tuple(SHAPES.values())[1:], use_extension_array=False)
    packed = fastq.xarray.pack(ds)
    packed.to_netcdf(tmp_path / "packed.nc", engine=engine, format=form)
    ds.to_netcdf(tmp_path / "plain.nc", engine=engine, format=form)
    read, plain = (xarray.load_dataset(tmp_path / f"{name}.nc", engine=engine) for name in ("packed", "plain"))
    floats = [name for name in ds.data_vars if packed[name].dtype == np.int16]
    assert len(floats) >= 3
    for name in floats:
        xarray.testing.assert_allclose(read[name], plain[name], rtol=0, atol=0.51 * packed[name].attrs["scale_factor"])
    xarray.testing.assert_identical(read.drop_vars(floats), plain.drop_vars(floats))


def _noted(rng):
    """Attributes of missing values and limits as CF allows them together, of the variable's dtype."""
    attributes = {}
    if rng.random() < 0.5:
        attributes["missing_value"] = rng.choice([-9999, 1e20, -1, 0, 7], rng.integers(1, 4), replace=False)
    kind = rng.integers(4)
    ends = np.sort(rng.choice([-50, -10, 0, 3, 20, 60], 2, replace=False))
    attributes |= ({"valid_range": ends}, {"valid_min": ends[0]}, {"valid_max": ends[1]}, {})[kind]
    return attributes


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_netcdf4_masks_is_a_gap(dtype, tmp_path):
    """Before packing and after, netCDF4 finds the same values missing, by attributes of the data and of the codes."""
    netcdf4 = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    rng, masks = np.random.default_rng(17), {}
    with netcdf4.Dataset(tmp_path / "raw.nc", "w") as file:
        file.createDimension("x", 60)
        for number in range(40):
            fill = rng.choice([-9999, 1e20, 0, np.nan])
            variable = file.createVariable(f"v{number}", dtype, "x", fill_value=fill)
            for key, value in _noted(rng).items():
                variable.setncattr(key, np.asarray(value, dtype))
            x = rng.uniform(-40, 40, 60)
            x[rng.random(60) < 0.4] = np.nan
            x[::3] = rng.choice([fill, -9999, 1e20, -1, 0, 7, 60, -50], 20)
            variable.set_auto_mask(False)
            variable[:] = x
            variable.set_auto_mask(True)
            masked = variable[:]
            masks[variable.name] = np.ma.getmaskarray(masked) | np.isnan(np.ma.filled(masked, np.nan)), masked
    packed = fastq.xarray.pack(xarray.load_dataset(tmp_path / "raw.nc", engine="netcdf4", mask_and_scale=False))
    packed.to_netcdf(tmp_path / "packed.nc", engine="netcdf4")
    read = xarray.load_dataset(tmp_path / "packed.nc", engine="netcdf4")
    with netcdf4.Dataset(tmp_path / "packed.nc") as file:
        for name, (mask, values) in masks.items():
            assert np.array_equal(np.ma.getmaskarray(file[name][:]), mask), name
            assert np.array_equal(np.isnan(read[name].values), mask), name
            error = np.abs(read[name].values - np.ma.getdata(values))[~mask]
            assert error.max(initial=0) <= 0.51 * packed[name].attrs["scale_factor"], name
