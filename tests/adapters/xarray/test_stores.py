"""Packed Datasets through every store and reader that is here, and what is appended to them."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

xarray = pytest.importorskip("xarray", reason="no xarray")
F32, N = np.float32, 40


def weather(dtype=F32, months=(0,)):
    """Rain with dry days, temperatures around 0 and pressure, with gaps, a flag and bounds; a part of it a month."""
    rng = np.random.default_rng(5)
    rain = np.maximum(0, rng.gamma(0.5, 4, (3, N)) - 2)
    celsius = 30 * rng.random((3, N)) - 11
    celsius[:, ::9] = 0
    pressure = 101325 + 900 * rng.standard_normal((3, N))
    for each in (rain, celsius, pressure):
        each[rng.random(each.shape) < 0.1] = np.nan
    parts = {"rain": rain, "celsius": celsius, "pressure": pressure}
    x = np.arange(N) * 0.1
    return xarray.Dataset(
        {name: (("time", "x"), each[list(months)].astype(dtype), {"units": "1"}) for name, each in parts.items()}
        | {"x_bnds": (("x", "nv"), np.stack([x, x + 0.1], 1)), "flag": ("x", np.zeros(N), {"flag_values": [0.0, 1.0]})},
        {"time": list(months), "x": ("x", x, {"bounds": "x_bnds"})},
        {"title": "weather"},
    )


NAMES = ("rain", "celsius", "pressure")


# --- zeros ------------------------------------------------------------------------------------------------------------

RANGES = [
    (0, 31.7),
    (-31.7, 0),
    (-11.3, 29.1),
    (-1e-3, 40),
    (-40, 1e-3),
    (0, 1e-30),
    (-2e38, 1e38),
    (0, 3.4e38),
    (-5, 5),
]
RANGES += [(-1, 1e6), (0, 255), (-7e-5, 1)]


RANDOM = np.random.default_rng(8)
ANY = list(itertools.product(-(10 ** RANDOM.uniform(-6, 6, 8)), 10 ** RANDOM.uniform(-6, 6, 8)))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow("the same"))])
@pytest.mark.parametrize("code", ["int16", "uint16", "int8", "uint8"])
def test_zeros_are_read_as_zeros(code, dtype):
    # contract 25.3
    """In float32, in float64, and in exact arithmetic: then in fused and in any wider one too, and any range."""
    for low, high in RANGES + ANY:
        x = np.array([low, 0, high, *np.random.default_rng(0).uniform(low, high, 20), 0.3 * low, 0.7 * high], dtype)
        packed = fastq.xarray.pack(xarray.Dataset({"t": ("x", x)}), code).t
        zero, scale, offset = packed.values[1], packed.attrs["scale_factor"], packed.attrs["add_offset"]
        assert Fraction(int(zero)) * Fraction(float(scale)) + Fraction(float(offset)) == 0, (low, high)
        for reader in (F32, np.float64):
            assert reader(zero) * reader(scale) + reader(offset) == 0
        decoded = packed.values * np.float64(scale) + np.float64(offset)
        step = (high - low) / (254 if "8" in code else 65534)
        assert np.abs(decoded - x).max() <= step * 0.5005 + 4 * np.finfo(dtype).eps * max(high, -low), (low, high)
        assert "8" in code or scale <= step * 1.0008


@pytest.mark.parametrize("code", ["int16", "uint16", "int8", "uint8"])
def test_fractions_keep_their_ends(code):
    # contract 25.3
    """Values from 0 to 1, or 100, stay so after unpacking, except for a rounding: half a step beyond would be seen."""
    for high in (1, 100, 0.7):
        x = np.linspace(0, high, 1000, dtype=F32)
        decoded = xarray.decode_cf(fastq.xarray.pack(xarray.Dataset({"t": ("x", x)}), code)).t.values
        assert (decoded[0], decoded.min()) == (0, 0)
        assert decoded.max() == pytest.approx(high, rel=3e-7)


# --- stores and readers -----------------------------------------------------------------------------------------------


def netcdf(engine, **options):
    def write(ds, path):
        pytest.importorskip("netCDF4" if engine == "netcdf4" else engine, reason=f"no {engine}")
        ds.to_netcdf(path, engine=engine, **options)
        return {"engine": engine}

    return write


def zarr(version):
    def write(ds, path):
        pytest.importorskip("zarr", reason="no zarr")
        ds.to_zarr(path, zarr_format=version, consolidated=False)
        return {"engine": "zarr", "consolidated": False}

    return write


STORES = {
    "netcdf3 classic of scipy": netcdf("scipy", format="NETCDF3_CLASSIC"),
    "netcdf3 64 bit of scipy": netcdf("scipy", format="NETCDF3_64BIT"),
    "netcdf3 classic of netCDF4": netcdf("netcdf4", format="NETCDF3_CLASSIC"),
    "netcdf3 64 bit of netCDF4": netcdf("netcdf4", format="NETCDF3_64BIT"),
    "netcdf4 classic": netcdf("netcdf4", format="NETCDF4_CLASSIC"),
    "netcdf4": netcdf("netcdf4"),
    "netcdf4 of h5netcdf": netcdf("h5netcdf"),
    "zarr 2": zarr(2),
    "zarr 3": zarr(3),
}
LACK_UNSIGNED = [name for name in STORES if "netcdf3" in name or "classic" in name]


def by_xarray(path, options):
    return {name: each.values for name, each in xarray.load_dataset(path, **options).variables.items()}


def by_xarray_undecoded(path, options):
    raw = xarray.load_dataset(path, mask_and_scale=False, **options)
    return {name: each.values for name, each in xarray.decode_cf(raw).variables.items()}


def by_netcdf4(path, options):
    """As netCDF4-python masks and scales by itself; valid limits too."""
    netcdf4 = pytest.importorskip("netCDF4", reason="no netCDF4")
    with netcdf4.Dataset(path) as file:
        read = {name: file[name][:] for name in (*NAMES, "x_bnds", "flag")}
    return {name: np.ma.filled(each.astype(np.result_type(each, F32)), np.nan) for name, each in read.items()}


def by_formula(raw):
    """As the text of CF says it, from raw codes and attributes, by name."""
    fields = {}
    for name, (codes, attributes) in raw.items():
        scale, offset, fill = (
            np.ravel(attributes.get(key, [None]))[0] for key in ("scale_factor", "add_offset", "_FillValue")
        )
        if attributes.get("_Unsigned") in ("true", b"true"):
            codes, fill = (
                codes.view(f"{codes.dtype.byteorder}u{codes.dtype.itemsize}"),
                int(fill) % 256**codes.dtype.itemsize,
            )
        fields[name] = codes if scale is None else np.where(codes == fill, np.nan, codes * scale + offset)
    return fields


def by_scipy(path, options):
    io = pytest.importorskip("scipy.io", reason="no scipy")
    with io.netcdf_file(path, mmap=False) as file:
        raw = {name: (each[:].copy(), each._attributes) for name, each in file.variables.items()}
    return by_formula(raw)


def by_h5py(path, options):
    h5py = pytest.importorskip("h5py", reason="no h5py")
    with h5py.File(path) as file:
        return by_formula({name: (file[name][:], dict(file[name].attrs)) for name in (*NAMES, "x_bnds", "flag")})


def by_zarr(path, options):
    group = pytest.importorskip("zarr", reason="no zarr").open_group(path, mode="r")
    raw = {name: (group[name][:], dict(group[name].attrs)) for name in (*NAMES, "x_bnds", "flag")}
    for name in NAMES:  # xarray writes it in a way of its own
        raw[name][1]["_FillValue"] = xarray.open_zarr(path, consolidated=False, mask_and_scale=False)[name].attrs[
            "_FillValue"
        ]
    return by_formula(raw)


READERS = {
    "zarr": (by_xarray, by_xarray_undecoded, by_zarr),
    "netcdf3": (by_xarray, by_xarray_undecoded, by_netcdf4, by_scipy),
    "netcdf4": (by_xarray, by_xarray_undecoded, by_netcdf4, by_h5py),
}
ROUND_TRIPS = [
    (store, code, reader) for store in STORES for code in ("int16", "uint8") for reader in READERS[store.split()[0]]
]


@pytest.mark.parametrize(("store", "code", "reader"), ROUND_TRIPS, ids=lambda each: getattr(each, "__name__", each))
def test_round_trips(store, code, reader, tmp_path):
    """Half a step of error, gaps where they were, zeros exactly, other variables unchanged: for any reader."""
    ds = weather()
    if store in LACK_UNSIGNED and code[0] == "u":
        for name in NAMES:
            ds[name].encoding["_Unsigned"] = "true"
    ds.rain.attrs["valid_range"] = [0, 500]
    packed = fastq.xarray.pack(ds, code)
    path = str(tmp_path / "store")
    read = reader(path, STORES[store](packed, path))
    for name in NAMES:
        x, values, step = ds[name].values, read[name], (254 if "8" in code else 65534)
        assert np.array_equal(np.isnan(values), np.isnan(x)), name
        extent = np.nanmax(x) - np.nanmin(x)
        assert np.nanmax(np.abs(values - x)) <= 0.5005 * extent / step + 1e-6 * np.nanmax(np.abs(x)), name
        assert (values[x == 0] == 0).all()
    for name in ("x_bnds", "flag"):
        assert np.array_equal(read[name], ds[name].values)


def test_unsigned_codes_in_signed_ones():
    """What is stored has the bits of the unsigned codes, and xarray reads the same."""
    plain, ds = weather(), weather()
    ds.rain.encoding["_Unsigned"] = "true"
    one, other = (fastq.xarray.pack(each, "uint8") for each in (plain, ds))
    same_bytes(one.rain.values, other.rain.values.view(np.uint8))
    assert other.rain.dtype == np.int8
    assert (other.rain.attrs["_Unsigned"], other.rain.attrs["_FillValue"]) == ("true", np.int8(-1))
    xarray.testing.assert_equal(xarray.decode_cf(one), xarray.decode_cf(other))
    assert "_Unsigned" not in fastq.xarray.pack(ds, "int8").rain.attrs


def test_encodings_of_the_store_are_kept(tmp_path):
    """Chunks, compression and unlimited dimensions of a file that was read are those of the written one."""
    pytest.importorskip("netCDF4", reason="no netCDF4")
    options = {"rain": {"zlib": True, "complevel": 3, "shuffle": True, "chunksizes": (1, 10), "fletcher32": True}}
    weather(months=range(3)).to_netcdf(tmp_path / "a.nc", engine="netcdf4", encoding=options, unlimited_dims=["time"])
    with xarray.open_dataset(tmp_path / "a.nc", engine="netcdf4") as ds:
        fastq.xarray.pack(ds).to_netcdf(tmp_path / "b.nc", engine="netcdf4")
    with xarray.open_dataset(tmp_path / "b.nc", engine="netcdf4") as ds:
        assert options["rain"].items() <= ds.rain.encoding.items()
        assert (ds.rain.encoding["dtype"], ds.encoding["unlimited_dims"]) == (np.int16, {"time"})
        assert (ds.attrs["title"], ds.rain.attrs) == ("weather", {"units": "1"})


# --- what is appended -------------------------------------------------------------------------------------------------

REACH = {"rain": (0, 90), "celsius": (-60, 60), "pressure": (85000, 110000)}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
def test_appended_to_zarr(lazy, version, tmp_path):
    """xarray encodes what it appends by the attributes in the store: decoded codes become the same codes."""
    pytest.importorskip("zarr", reason="no zarr")
    path, options = tmp_path / "store", {"consolidated": False}
    first = fastq.xarray.pack(weather(), ranges=REACH)
    first.to_zarr(path, zarr_format=version, **options)
    for month in (1, 2):
        ds = weather(months=[month])
        if lazy:
            pytest.importorskip("dask", reason="no dask")
            ds = ds.chunk({"time": 1})
        packed = fastq.xarray.pack(ds, like=xarray.open_zarr(path, chunks=None, **options))
        xarray.decode_cf(packed).to_zarr(path, append_dim="time", **options)
    ds = weather(months=range(3))
    raw = xarray.open_zarr(path, mask_and_scale=False, **options)
    read = xarray.open_zarr(path, **options)
    for name in NAMES:
        same_bytes(raw[name].values[:1], first[name].values)
        same_bytes(raw[name].values, fastq.xarray.pack(ds, like=first)[name].values)
        assert np.nanmax(np.abs(read[name].values - ds[name].values)) <= first[name].attrs["scale_factor"] * 0.51


def test_appended_to_netcdf(tmp_path):
    """Codes go into a file as they are; packed Datasets with the same attributes are one."""
    netcdf4 = pytest.importorskip("netCDF4", reason="no netCDF4")
    first = fastq.xarray.pack(weather(), ranges=REACH)
    first.to_netcdf(tmp_path / "a.nc", engine="netcdf4", unlimited_dims=["time"])
    with xarray.open_dataset(tmp_path / "a.nc", engine="netcdf4") as like:
        second = fastq.xarray.pack(weather(months=[1, 2]), like=like)
    with netcdf4.Dataset(tmp_path / "a.nc", "a") as file:
        file.set_auto_maskandscale(False)
        for name in (*NAMES, "time"):
            file[name][1:] = second[name].values
    joined = xarray.concat([first, second], "time", data_vars="minimal", combine_attrs="identical")
    with xarray.open_dataset(tmp_path / "a.nc", engine="netcdf4") as read:
        xarray.testing.assert_equal(read.load(), xarray.decode_cf(joined))


def packed_by(x, dtype="int16", decoded=False, **attributes):
    """A Dataset as another tool packed it: codes and attributes, or the result of xarray for them."""
    raw = xarray.Dataset({"t": ("x", np.asarray(x, dtype), attributes)})
    return xarray.decode_cf(raw) if decoded else raw


# codes of the first file, its attributes, values that are appended, and their codes
LIKE = [
    (
        "int16",
        {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16(-32768)},
        [10, 11, np.nan],
        [0, 2, -32768],
    ),
    ("int16", {"scale_factor": F32(0.5), "add_offset": F32(10), "missing_value": np.int16(-1)}, [9, np.nan], [-2, -1]),
    ("int16", {"scale_factor": 0.5, "_FillValue": np.int16(-9)}, [-4.5, -4.4, -4.6, -4], [-10, -8, -10, -8]),
    ("int16", {"scale_factor": -0.5, "_FillValue": np.int16(9)}, [-4.6, -4.4, 4], [10, 8, -8]),
    ("int16", {"scale_factor": 2}, [4, 5, 6], [2, 2, 3]),
    ("int16", {"add_offset": 100.0}, [101, 99], [1, -1]),
    ("int16", {"scale_factor": [0.5], "_FillValue": [np.int16(7)]}, [1, np.nan], [2, 7]),
    ("uint8", {"scale_factor": 1.0, "_FillValue": np.uint8(255)}, [0, 254, np.nan], [0, 254, 255]),
    ("uint8", {"scale_factor": 1.0, "_FillValue": np.uint8(0)}, [1, 254, np.nan], [1, 254, 0]),
    ("int8", {"scale_factor": 1.0, "_Unsigned": "true", "_FillValue": np.int8(-1)}, [0, 254, np.nan], [0, -2, -1]),
    (
        "uint8",
        {"scale_factor": 1.0, "_Unsigned": "false", "_FillValue": np.uint8(128)},
        [-127, 127, np.nan],
        [129, 127, 128],
    ),
    ("int32", {"scale_factor": 1e-6, "add_offset": 0.0, "_FillValue": np.int32(-1)}, [1.234567, np.nan], [1234567, -1]),
    (">i2", {"scale_factor": 0.5, "_FillValue": np.int16(-5)}, [2, np.nan], [4, -5]),
    (
        "int16",
        {"scale_factor": 1.0, "_FillValue": np.int16(-1), "valid_range": np.int16([0, 9])},
        [0, 9, np.nan],
        [0, 9, -1],
    ),
    ("int16", {"scale_factor": 1.0, "_FillValue": np.int16(-1), "valid_max": np.int16(9)}, [9], [9]),
    ("int16", {"scale_factor": 0.01, "valid_range": F32([0, 50])}, [0, 20, 50], [0, 2000, 5000]),
    ("int16", {"scale_factor": -0.5, "valid_min": -2.0, "valid_max": np.nan}, [-2, 5], [4, -10]),
    ("int16", {"scale_factor": 0.5, "_FillValue": -999.0}, [1, np.nan], [2, -999]),
]


OF_T = {"scale_factor": 1.0, "_FillValue": np.int16(-1)}


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize(("dtype", "attributes", "values", "codes"), LIKE)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
def test_packed_as_another_one_is(dtype, attributes, values, codes, decoded):
    # contract 25.8
    like = packed_by([1, 2], dtype, decoded, **attributes)
    packed = fastq.xarray.pack(packed_by(values, "float64"), like=like).t
    same_bytes(packed.values, np.array(codes, np.dtype(dtype).newbyteorder("=")))
    expected = packed_by(packed.values, dtype, **attributes)
    assert str(packed.attrs) == str({key: packed.attrs[key] for key in packed.attrs} | expected.t.attrs)
    assert set(packed.attrs) == set(attributes)


@pytest.mark.parametrize("code", ["int16", "uint8"])
@pytest.mark.parametrize("name", NAMES)
def test_like_itself(name, code):
    """What was packed is packed the same way again, also at the ends of its range."""
    ds = weather()[[name]]
    packed = fastq.xarray.pack(ds, code)
    for like in (packed, xarray.decode_cf(packed)):
        xarray.testing.assert_identical(fastq.xarray.pack(ds, like=like), packed)
    same_bytes(fastq.xarray.pack(xarray.decode_cf(packed), like=packed)[name].values, packed[name].values)
    narrow = xarray.Dataset({"t": ("x", np.nextafter(F32(300), [F32(300), F32(301), F32(400)]))})
    xarray.testing.assert_identical(
        fastq.xarray.pack(narrow, like=fastq.xarray.pack(narrow)), fastq.xarray.pack(narrow)
    )


def test_what_like_has_not_is_packed_by_its_range():
    like = xarray.Dataset({"a": ("x", [1.0, 2.0]), "b": ("x", [1, 2])})
    ds = xarray.Dataset({name: ("x", [0.3, 0.7]) for name in "abc"})
    packed = fastq.xarray.pack(ds, "uint8", like=like)
    assert [packed[name].dtype for name in "abc"] == [np.float64, np.float64, np.uint8]
    with pytest.raises(TypeError, match="max_error names 'a', which stays as it is: it is not packed in like"):
        fastq.xarray.pack(ds, like=like, max_error={"a": 1})


@pytest.mark.parametrize("lazy", [False, True])
def test_values_out_of_range(lazy):
    # contract 25.8
    ds, first = weather(months=[1]), fastq.xarray.pack(weather())
    ds["rain"] = ds.rain * 100
    if lazy:
        pytest.importorskip("dask", reason="no dask")
        ds = ds.chunk({"x": 16})
    message = r"ds has values from 0.0 to \S+ in 'rain', but its codes are for \S+ to \d\S+; out_of_range='clamp'"
    for options in ({"like": first[["rain"]]}, {"ranges": {"rain": (0, 20)}}):
        with pytest.raises(ValueError, match=message):
            fastq.xarray.pack(ds, **options)
        packed = fastq.xarray.pack(ds, **options, out_of_range="clamp")
        ends = xarray.decode_cf(packed).rain
        most = {"like": float(weather().rain.max()), "ranges": 20}[next(iter(options))]
        assert abs(float(ends.max()) - most) < 0.02
        assert np.array_equal(ends.isnull(), ds.rain.isnull())


def test_what_is_clamped_is_not_read():
    """With like and "clamp" nothing has to be known of lazy arrays; the codes come when they are asked for."""
    array = pytest.importorskip("dask.array", reason="no dask")

    def fail(block):
        raise AssertionError("read")

    lazy = array.from_array(np.ones(4), chunks=2).map_blocks(fail, dtype=float, meta=np.empty(0))
    like = packed_by([1, 2], scale_factor=1.0, _FillValue=np.int16(-1))
    packed = fastq.xarray.pack(xarray.Dataset({"t": ("x", lazy)}), like=like, out_of_range="clamp")
    with pytest.raises(AssertionError, match="read"):
        packed.load()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("by", ["like", "ranges"])
@pytest.mark.parametrize(
    ("value", "message"), [(-np.inf, "ds has infinite values in 't'"), (9.969209968386869e36, "ds has 9.96.* in 't'")]
)
def test_what_is_no_data_is_not_clamped(value, message, by, lazy):
    ds = packed_by([0.5, value], "float32")
    if lazy:
        pytest.importorskip("dask", reason="no dask")
        ds = ds.chunk({"x": 1})
    options = {"like": packed_by([1], **OF_T)} if by == "like" else {"ranges": {"t": (0, 1)}}
    with pytest.raises(ValueError, match=message):
        fastq.xarray.pack(ds, **options, out_of_range="clamp").load()
    ds.t.attrs["missing_value"] = value
    codes = fastq.xarray.pack(ds, **options, out_of_range="clamp").t
    assert codes.values[1] == codes.attrs["_FillValue"]


def test_ranges_beyond_the_dtype():
    with pytest.raises(ValueError, match=r"ranges of 't' must be .*, but finite numbers of float32, the first below"):
        fastq.xarray.pack(packed_by([1.0], "float32"), ranges={"t": (0, 1e39)})


def test_limits_are_those_of_like():
    ds = xarray.Dataset({"t": ("x", [1.0, 9.0], {"valid_min": 2.0})})
    packed = fastq.xarray.pack(ds, like=packed_by([1], **OF_T, valid_range=np.int16([0, 9]))).t
    assert packed.values.tolist() == [-1, 9]
    assert set(packed.attrs) == {"scale_factor", "_FillValue", "valid_range"}
    assert set(fastq.xarray.pack(ds, like=packed_by([1], **OF_T)).t.attrs) == set(OF_T)


def test_ranges():
    # contract 25.8
    """The scale is that of the range, whatever the data; of nothing but gaps too."""
    for x in ([1.0, 2.0], [np.nan, np.nan], [0.0, 100.0]):
        packed = fastq.xarray.pack(packed_by(x, "float32"), ranges={"t": (0, 100)}, max_error={"t": 1.0}).t
        assert packed.dtype == np.int8
        assert packed.attrs["scale_factor"] == pytest.approx(100 / 254, 1e-3)
    assert fastq.xarray.pack(packed_by([300.0], "float32"), ranges={"t": (200, 400)}).t.attrs["add_offset"] == 300


def like(**changes):
    return {"like": packed_by([1], **OF_T | changes)}


DTYPE = "dtype must be one of 'int8', 'uint8', 'int16', 'uint16', not"
REFUSED = [
    ({"ds": np.ones(3)}, TypeError, "ds must be a Dataset, not ndarray$"),
    ({"ds": xarray.DataArray([1.0])}, TypeError, r"ds must be a Dataset, not DataArray: to_dataset\(\) makes one$"),
    ({"dtype": "int4"}, ValueError, f"{DTYPE} 'int4'"),
    ({"dtype": {"t": "uint8"}}, ValueError, f"{DTYPE} {{'t': 'uint8'}}"),
    ({"dtype": np.void}, ValueError, f"{DTYPE} <class 'numpy.void'>"),
    ({"max_error": {"count": 1}}, TypeError, "max_error names 'count', which is not a float variable"),
    ({"max_error": {"t": -1}}, ValueError, "max_error of 't' must be from 0.0 to inf, not -1"),
    ({"max_error": {"t": True}}, TypeError, "max_error of 't' must be a number, not True"),
    ({"max_error": 0.5}, TypeError, "max_error must be a dict of numbers by the names of variables, not 0.5"),
    ({"ds": xarray.Dataset({"v": ("x", [1.0, np.inf])})}, ValueError, "ds has infinite values in 'v'"),
    ({"like": 3}, TypeError, "like must be a Dataset, not int"),
    ({"out_of_range": "wrap"}, ValueError, "out_of_range must be one of 'clamp'"),
    ({"ranges": [1]}, TypeError, "ranges must be a dict of pairs of numbers by the names of variables"),
    ({"ranges": {"u": (0, 1)}}, TypeError, "ranges names 'u', which is not a float variable"),
    ({"ranges": {"t": (1, 0)}}, ValueError, r"ranges of 't' must be the smallest and the largest value, not \(1, 0\)"),
    ({"ranges": {"t": 5}}, ValueError, "ranges of 't' must be the smallest and the largest value, not 5"),
    ({"ranges": {"t": (0, np.inf)}}, ValueError, "ranges of 't' must be the smallest"),
    ({"ranges": {"t": (0, 1e309)}}, ValueError, "ranges of 't' must be the smallest and the largest value, not"),
    ({"ranges": {"t": (0, "1")}}, TypeError, "ranges of 't' must be a number, not '1'"),
    ({"ranges": {"t": (0, 1)}} | like(), TypeError, "ranges names 't', whose range is that of like"),
    *(
        (
            {"like": packed_by([1], dtype, **OF_T | {key: value})},
            ValueError,
            f"like has {key} {value} of 't', which must",
        )
        for dtype, key, value in (
            *(("int8", "_FillValue", -999), ("uint8", "_FillValue", -1), ("int16", "_FillValue", np.nan)),
            *(("int16", "_FillValue", 0.5), ("int16", "valid_max", 40000)),
        )
    ),
    ({"like": packed_by([1], "int64", **OF_T)}, ValueError, "like has int64 codes in 't', which must have"),
    (like(scale_factor=0.0), ValueError, "like has scale_factor 0.0 and add_offset 0.0"),
    (like(add_offset=np.nan), ValueError, "like has scale_factor 1.0 and add_offset nan"),
    (like(missing_value=5), ValueError, r"like has several fill values in 't': \[-1, 5\]"),
    (like(scale_factor="1"), TypeError, "like has scale_factor '1' of 't', which must be"),
    (
        {"like": packed_by([1], scale_factor=1.0)},
        ValueError,
        "ds has missing values in 't', for which like has no _FillValue",
    ),
    (like() | {"max_error": {"t": 0.1}}, ValueError, "max_error of 't' is 0.1, but int16 from -32768"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_refusals(options, error, message):
    ds = packed_by([0.5, np.nan], "float64").assign(count=("time", np.arange(3)))
    with pytest.raises(error, match=message):
        fastq.xarray.pack(**({"ds": ds} | options))
