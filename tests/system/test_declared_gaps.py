"""Numbers that an array's own attributes call missing are no numbers: each reader that leaves them is refused.

The oracles are netCDF4, which masks them in the same file, and xarray, which makes them NaN.
"""

import warnings

import numpy as np
import pytest

import fastq

netCDF4 = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
h5py = pytest.importorskip("h5py", reason="h5py is not installed")
h5netcdf = pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")
zarr = pytest.importorskip("zarr", reason="zarr is not installed")
xarray = pytest.importorskip("xarray", reason="xarray is not installed")

X = np.arange(12, dtype=np.float32).reshape(3, 4) + np.float32(0.5)
GAP = (1, 2)
# by name: dtype, the value of the gap, and the attributes
VARIABLES = {
    "fill": ("f4", 1e20, {"_FillValue": np.float32(1e20)}),
    "wide": ("f8", -1e308, {"_FillValue": -1e308}),
    "missing": ("f4", -999, {"missing_value": np.float32(-999)}),
    "several": ("f4", -998, {"missing_value": np.array([-999, -998], "f4")}),
    "double": ("f4", 1e20, {"missing_value": np.float64(1e20)}),
    "packed": ("i2", -999, {"_FillValue": np.int16(-999), "scale_factor": 0.5, "add_offset": 10.0}),
    "bytes": ("i1", -1, {"_FillValue": np.int8(-1), "_Unsigned": "true"}),
    "default": ("f4", 9.969209968386869e36, {}),
    "default ints": ("i2", -32767, {}),
}
WITHOUT = {
    "no gap": ("f4", None, {"_FillValue": np.float32(1e20)}),
    "nan": ("f4", None, {"_FillValue": np.float32(np.nan)}),
    "no attribute": ("f4", 1e20, {}),
    "a text": ("f4", 1e20, {"missing_value": "1e20"}),
}


def stored(name):
    dtype, gap, attributes = {**VARIABLES, **WITHOUT}[name]
    x = X.astype(dtype)
    if gap is not None:
        x[GAP] = gap
    return x, attributes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("gaps")
    with netCDF4.Dataset(path / "a.nc", "w") as file:
        file.createDimension("y", 3)
        file.createDimension("x", 4)
        for name in (*VARIABLES, *WITHOUT):
            x, attributes = stored(name)
            of_netcdf = {key: value for key, value in attributes.items() if key != "_FillValue"}
            variable = file.createVariable(name, x.dtype, ("y", "x"), fill_value=attributes.get("_FillValue"))
            variable.set_auto_maskandscale(False)
            variable.setncatts(of_netcdf)
            variable[:] = x
    for form in (2, 3):
        group = zarr.open_group(path / f"{form}.zarr", mode="w", zarr_format=form)
        for name in (*VARIABLES, *WITHOUT):
            x, attributes = stored(name)
            array = group.create_array(name, shape=x.shape, dtype=x.dtype)
            array[:] = x
            array.attrs.update({k: v if isinstance(v, (str, float)) else v.tolist() for k, v in attributes.items()})
        ds = xarray.Dataset({"fill": (("y", "x"), stored("fill")[0], {"_FillValue": np.float32(1e20)})})
        ds.to_zarr(path / f"xarray{form}.zarr", mode="w", zarr_format=form, consolidated=False)
    return path


OPEN = []  # files, of which variables hold weak references only


@pytest.fixture(autouse=True, scope="module")
def _closed():
    yield
    for file in OPEN:
        file.close()


def opened(file):
    OPEN.append(file)
    return file


def undecoded(folder, name):
    return xarray.open_dataset(folder / "a.nc", mask_and_scale=False)[name]


READERS = {
    "h5netcdf": lambda folder, name: opened(h5netcdf.File(folder / "a.nc")).variables[name],
    "h5netcdf as netCDF4": lambda folder, name: opened(h5netcdf.legacyapi.Dataset(folder / "a.nc")).variables[name],
    "h5py": lambda folder, name: h5py.File(folder / "a.nc")[name],
    "zarr 2": lambda folder, name: zarr.open_group(folder / "2.zarr", mode="r")[name],
    "zarr 3": lambda folder, name: zarr.open_group(folder / "3.zarr", mode="r")[name],
    "xarray": undecoded,
    "Variable": lambda folder, name: undecoded(folder, name).variable,
    "list": lambda folder, name: [h5py.File(folder / "a.nc")[name]],
    "dask": lambda folder, name: undecoded(folder, name).chunk({"y": 1}),
}


def computed(result):
    return result.compute() if hasattr(result, "compute") else result


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.filterwarnings("ignore:.*is not applied")
def test_gaps_that_others_decode_are_refused(folder, reader, name):
    if not VARIABLES[name][2] and "h5netcdf" not in reader:
        pytest.skip("the default is netCDF's own: other readers may hold any number")
    with warnings.catch_warnings(action="ignore"), netCDF4.Dataset(folder / "a.nc") as file:
        masked = np.ma.getmaskarray(file[name][:])
        decoded = np.isnan(xarray.open_dataset(folder / "a.nc")[name].values)
    if name != "double":  # which is another number than a float32 of the same digits, and meant all the same
        assert np.argwhere(masked | decoded).tolist() == [list(GAP)]
    x = READERS[reader](folder, name)
    with pytest.raises(ValueError, match=r"x.* has 1 missing value, ") as caught:
        computed(fastq.quantize(x, "int8"))
    if reader != "list":
        advice = str(caught.value).partition("pass ")[2]
        call, _, as_it_is = advice.removesuffix(" to take it as a number").partition(" to have NaN there, or ")
        scope = {"numpy": np, "x": x}
        decoded = np.asarray(eval(call, scope))
        assert np.argwhere(np.isnan(decoded)).tolist() == [list(GAP)]
        assert fastq.quantize(computed(eval(as_it_is, scope)), "int8").shape == X.shape


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("function", ["minmax", "bitround", "compare", "fake_quantize", "choose_qparams", "Calibrator"])
def test_every_function_refuses_them(folder, reader, function):
    if (reader, function) == ("dask", "Calibrator"):
        pytest.skip("it takes arrays in memory")
    x = READERS[reader](folder, "fill")
    calls = {
        "minmax": lambda: fastq.minmax(x),
        "bitround": lambda: fastq.bitround(x, keepbits=4),
        "compare": lambda: fastq.compare(x, X[None] if reader == "list" else X),
        "fake_quantize": lambda: fastq.fake_quantize(x, "int8"),
        "choose_qparams": lambda: fastq.choose_qparams(x, "int8"),
        "Calibrator": lambda: fastq.Calibrator("int8").update(x),
    }

    def compute():
        result = calls[function]()
        return [computed(each) for each in (result if isinstance(result, tuple) else (result,))]

    with pytest.raises(ValueError, match=r"has 1 missing value, 1e\+20 by _FillValue"):
        compute()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", WITHOUT)
def test_others_are_taken_as_they_are(folder, reader, name):
    x = READERS[reader](folder, name)
    values = stored(name)[0]
    q = fastq.quantize(x, "int8")
    expected = fastq.quantize(values[None] if reader == "list" else values, "int8")
    np.testing.assert_array_equal(np.asarray(computed(q.codes)), expected.codes)


@pytest.mark.parametrize("form", [2, 3])
def test_gaps_of_xarrays_stores_are_found(folder, form):
    """By fill_value in version 2, by a text with the bytes of a float in version 3."""
    array = zarr.open_group(folder / f"xarray{form}.zarr", mode="r")["fill"]
    with pytest.raises(ValueError, match=r"x has 1 missing value, 1e\+20 by "):
        fastq.quantize(array, "int8")


@pytest.mark.parametrize("reader", READERS)
def test_a_scale_that_is_not_applied_is_warned_of(folder, reader):
    x = READERS[reader](folder, "packed")
    warned = pytest.warns(UserWarning, match=r"has the scale_factor 0\.5, which is not applied: fastq\.xarray\.unpack_")
    with warned as caught, pytest.raises(ValueError, match="missing value, -999"):
        computed(fastq.quantize(x, "int8"))
    assert {each.filename for each in caught} == {__file__}
    if reader == "dask":
        return  # unpack_array takes arrays in memory
    with warnings.catch_warnings(action="error"):
        x = READERS[reader](folder, "packed")
        values = fastq.xarray.unpack_array(x, 0.5, 10.0, fill_value=-999)
    with warnings.catch_warnings(action="ignore"):
        expected = xarray.open_dataset(folder / "a.nc")["packed"].values
    np.testing.assert_array_equal(np.asarray(values).reshape(expected.shape), expected)


def test_netcdf4_has_gaps_as_numbers_on_demand_alone(folder):
    with warnings.catch_warnings(action="error"), netCDF4.Dataset(folder / "a.nc") as file:
        with pytest.raises(TypeError, match="masked array"):
            fastq.quantize(file["packed"], "int8")
        file["packed"].set_auto_maskandscale(False)
        assert fastq.minmax(file["packed"])[0] == -999


@pytest.mark.parametrize("dtype", ["i1", "u1", ">i2", ">f4", "f8"])
def test_variables_of_any_dtype_without_attributes(tmp_path, dtype):
    """Bytes have no value for what was never written; that of others does not depend on the order of bytes."""
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"x": 4}
        variable = file.create_variable("v", ("x",), dtype)
        variable[:] = [1, 2, 3, 4]
        assert [int(end) for end in fastq.minmax(variable)] == [1, 4]
        if dtype != "i1" and dtype != "u1":
            variable[1] = {"i": -32767, "f": 9.969209968386869e36}[np.dtype(dtype).kind]
            with pytest.raises(ValueError, match=r"x has 1 missing value, .* by netCDF's own _FillValue"):
                fastq.minmax(variable)


@pytest.mark.parametrize("chunks", [None, 2])
def test_results_have_no_gaps_and_no_attributes_of_gaps(chunks):
    """Else a code, or a value that is rounded to the number of a gap, would be one."""
    x = xarray.DataArray(
        np.float32([0.001, 0.7, 1, 0.5]), dims="x", attrs={"_FillValue": -1.0, "missing_value": 0.0, "units": "K"}
    )
    x = x.chunk(chunks) if chunks else x
    q = fastq.quantize(x, "int8")
    for result in (q.codes, q.dequantize(), fastq.fake_quantize(x, "int8"), fastq.bitround(x, keepbits=3)):
        assert result.attrs == {"units": "K"}
    assert computed(fastq.compare(x, q)).max_abs_error < 0.01
    assert computed(fastq.compare(x, fastq.fake_quantize(x, "int8"))).max_abs_error < 0.01


@pytest.mark.parametrize("chunks", [None, 2])
def test_gaps_of_an_approximation_are_refused(chunks):
    x = xarray.DataArray(np.float32([0, 1, 2, 3]), dims="x")
    q = xarray.DataArray(np.float32([0, 1, 2, -999]), dims="x", attrs={"_FillValue": -999.0})
    if chunks:
        x, q = x.chunk(chunks), q.chunk(chunks)
    with pytest.raises(ValueError, match=r"q has 1 missing value, -999\.0 by _FillValue"):
        computed(fastq.compare(x, q))


def test_the_fill_value_of_zarr_3_is_no_gap_for_xarray():
    array = zarr.create_array({}, data=np.float32([0, 1, 2]), zarr_format=3)
    array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    assert fastq.minmax(array)[0] == 0


@pytest.mark.parametrize("noted", [[[1], [2, 3]], {"a": 1}, "one", [], None, True])
def test_attributes_that_are_no_numbers_are_ignored(noted):
    array = zarr.create_array({}, data=np.float32([0, 1, 2]))
    array.attrs["_FillValue"] = noted
    assert fastq.minmax(array)[1] == 2


def test_a_gap_that_a_dtype_lacks_is_none_of_its_numbers():
    x = xarray.DataArray(np.float16([1, np.inf]), dims="x", attrs={"_FillValue": 1e20})
    assert fastq.minmax(x)[1] == np.inf
    x = xarray.DataArray(np.array([1, 2], bool), dims="x", attrs={"_FillValue": 1})
    with pytest.raises(TypeError, match="bool"):
        fastq.minmax(x)
