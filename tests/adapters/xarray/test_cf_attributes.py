"""What CF says by attributes: parts of coordinates, flags and times stay; gaps and limits are out of the range."""

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

xarray = pytest.importorskip("xarray", reason="no xarray")
N = 5
THIRDS = np.arange(N) / 3


def dataset(owner="t", attribute=None, text=None, in_encoding=False, **of_v):
    """A Dataset of data t and of a variable v of floats that are not multiples of a step, with any attribute."""
    ds = xarray.Dataset(
        {"t": ("x", 280 + np.sin(np.arange(N))), "v": ("x", THIRDS, of_v), "box": ((), 0)}, {"lat": ("x", np.arange(N))}
    )
    if attribute is not None:
        holder = ds if owner == "ds" else ds[owner]
        getattr(holder, "encoding" if in_encoding else "attrs")[attribute] = text
    return ds


# which variable has an attribute, and the text by which v is a part of a coordinate system (appendices A and K of CF)
PARTS = [
    ("lat", "bounds", "v"),
    ("lat", "climatology", "v"),
    ("t", "coordinates", "lat v"),
    ("ds", "coordinates", "v"),
    ("lat", "nodes", "v"),
    ("t", "geometry", "v"),
    ("box", "node_coordinates", "lat v"),
    ("box", "node_count", "v"),
    ("box", "part_node_count", "v"),
    ("box", "interior_ring", "v"),
    ("t", "grid_mapping", "v"),
    ("t", "grid_mapping", "v: lat lon"),
    ("t", "grid_mapping", "crs: x y v: lat lon"),
    ("t", "cell_measures", "area: v"),
    ("t", "cell_measures", "area : box volume : v"),
    ("lat", "formula_terms", "a: box b: v ps: PS"),
    ("lat", "formula_terms", "a:box ps: v"),
    ("t", "coordinate_interpolation", "lat: v: box"),
    ("box", "tie_point_mapping", "x: v tp_x"),
    ("box", "interpolation_parameters", "ce1: v ca2: box"),
    ("t", "mesh", "v"),
    ("t", "location_index_set", "v"),
    ("box", "face_node_connectivity", "v"),
    ("box", "boundary_node_connectivity", "v"),
    ("box", "edge_face_connectivity", "v"),
    ("box", "face_coordinates", "lat v"),
    ("box", "aggregated_data", "location: v shape: box"),
]
KEPT_BY_ITS_OWN = [
    *({"flag_values": np.array([0.0, 1.0])}, {"flag_masks": np.array([1, 2])}, {"flag_meanings": "good bad"}),
    *({"standard_name": name} for name in ("status_flag", "sea_water_salinity status_flag", "spike_test_quality_flag")),
    {"units": "days since 1850-01-01"},
    {"units": "seconds since 1970-01-01T00:00:00Z", "calendar": "noleap"},
    {"calendar": "360_day"},
    *({"units": units} for units in ("days", "hours", "seconds", "nanoseconds")),
    {"dtype": "timedelta64[ns]"},
    *({"units": f"degree{end}"} for end in ("s_north", "_north", "_N", "sN", "E", "s_E")),
    *({"axis": "Y"}, {"cf_role": "timeseries_id"}, {"compress": "lat lon"}),
    *({"sample_dimension": "obs"}, {"instance_dimension": "station"}),
]
PACKED = [  # for which v is data nevertheless
    ("t", "cell_measures", "v: lat"),
    ("lat", "formula_terms", "v: box"),
    ("t", "ancillary_variables", "v"),
    ("t", "comment", "v"),
    ("v", "units", "degrees"),
    ("v", "units", "mm / hours"),
    ("v", "units", "s"),  # also that of a wave's period
    ("v", "standard_name", "air_temperature"),
    ("v", "positive", "up"),
    ("v", "cell_methods", "lat: mean"),
    ("v", "long_name", "flag"),
    ("v", "scale_factor", 1.0),
    ("v", "add_offset", np.array([0.0])),
    ("ds", "geometry", "v"),  # which no CF has for a whole Dataset
]


@pytest.mark.parametrize("in_encoding", [False, True])
@pytest.mark.parametrize(("owner", "attribute", "text"), PARTS)
def test_parts_of_coordinate_systems_stay(owner, attribute, text, in_encoding):
    """As attributes, and as xarray keeps them in encodings once it has decoded them."""
    ds = dataset(owner, attribute, text, in_encoding)
    packed = fastq.xarray.pack(ds)
    xarray.testing.assert_identical(packed.v.variable, ds.v.variable)
    assert packed.t.dtype == np.int16
    with pytest.raises(TypeError, match=rf"max_error names 'v', which stays as it is: '{owner}' has it in {attribute}"):
        fastq.xarray.pack(ds, max_error={"v": 1})


@pytest.mark.parametrize("attributes", KEPT_BY_ITS_OWN, ids=str)
def test_flags_times_and_coordinates_stay(attributes):
    ds = dataset(**attributes)
    xarray.testing.assert_identical(fastq.xarray.pack(ds).v.variable, ds.v.variable)
    with pytest.raises(TypeError, match="ranges names 'v', which stays as it is: by its "):
        fastq.xarray.pack(ds, ranges={"v": (0, 9)})


@pytest.mark.parametrize(("owner", "attribute", "text"), PACKED)
def test_data_are_packed(owner, attribute, text):
    # contract 25.1
    assert fastq.xarray.pack(dataset(owner, attribute, text)).v.dtype == np.int16


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [
        ({"dtype": np.dtype("int32"), "_FillValue": -1}, "float64"),  # integers with gaps, which xarray reads as floats
        ({"dtype": "uint8", "missing_value": 255}, "float64"),
        ({"dtype": bool}, "float64"),
        ({"dtype": "int32", "scale_factor": 0.1}, "int16"),
        ({"dtype": "int16", "add_offset": 5.0}, "int16"),
        ({"dtype": "float32"}, "int16"),
        ({"dtype": None}, "int16"),
    ],
)
def test_encodings_of_integers(encoding, dtype):
    ds = dataset()
    ds.v.encoding = encoding
    assert fastq.xarray.pack(ds).v.dtype == dtype


def test_other_dtypes_stay():
    values = [np.arange(3), np.array([True, False, True]), np.array(list("abc")), np.arange(3).astype("M8[ns]")]
    values += [
        np.arange(3).astype("m8[ns]"),
        np.arange(3) * 1j,
        np.array(["x", None, 2], object),
        np.arange(3, dtype=">i2"),
    ]
    ds = xarray.Dataset({f"v{i}": ("x", each) for i, each in enumerate(values)})
    xarray.testing.assert_identical(fastq.xarray.pack(ds), ds)


def test_what_is_packed_stays():
    packed = fastq.xarray.pack(dataset())
    xarray.testing.assert_identical(fastq.xarray.pack(packed), packed)


F32 = np.float32
# the dtype of the data, attributes, and which of the values are gaps by them
GAPS = [
    ("float32", {"_FillValue": F32(-9999)}, [-9999]),
    ("float32", {"_FillValue": -9999}, [-9999]),
    ("float32", {"_FillValue": np.int16(-9999)}, [-9999]),
    ("float32", {"_FillValue": np.array([-9999.0])}, [-9999]),
    ("float32", {"_FillValue": 1e20}, [1e20]),  # which float32 rounds
    ("float32", {"missing_value": np.float64(1e20)}, [1e20]),
    ("float32", {"missing_value": [-9999, 1e20]}, [-9999, 1e20]),
    ("float32", {"missing_value": np.array([-1e9, -9999], F32), "_FillValue": F32(1e20)}, [-1e9, -9999, 1e20]),
    ("float32", {"_FillValue": np.nan}, []),
    ("float32", {"missing_value": [np.nan, -9999.0]}, [-9999]),
    ("float32", {"_FillValue": np.inf}, [np.inf]),
    ("float32", {"missing_value": [-np.inf, np.inf]}, [-np.inf, np.inf]),
    ("float32", {"_FillValue": 9.969209968386869e36}, [9.969209968386869e36]),
    ("float32", {"_FillValue": 1e300}, []),
    ("float64", {"_FillValue": -9999}, [-9999]),
    ("float64", {"missing_value": np.float64(1e300)}, [1e300]),
    (">f4", {"_FillValue": np.float32(-9999)}, [-9999]),
    (">f8", {"missing_value": [-9999]}, [-9999]),
    ("float16", {"_FillValue": np.float16(-9999)}, [-9999]),
    ("float32", {"valid_min": 100.0}, [-9999, 3]),
    ("float32", {"valid_max": np.float32(400)}, [1e20, 1e6]),
    ("float32", {"valid_range": [100, 400]}, [-9999, 1e20]),
    ("float32", {"valid_range": np.array([260.0, 300.0])}, [-9999, 301]),
    ("float64", {"valid_range": (-np.inf, 300), "missing_value": -1}, [-1, 1e9]),
    ("float32", {"valid_min": np.nan, "valid_max": 300}, [np.inf]),
    ("float32", {"valid_range": [0, 300], "valid_min": 260}, [1e5, 3]),
    ("float16", {"valid_max": 1e9}, []),
]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("dtype", "attributes", "gaps"), GAPS, ids=lambda each: str(each)[:40])
def test_gaps(dtype, attributes, gaps, lazy):
    # contract 25.2
    """The codes are those of the same data with NaN, and so is all that is read."""
    rng = np.random.default_rng(2)
    x = (280 + 20 * rng.random((8, 3))).astype(dtype)
    x.flat[: 2 * len(gaps) : 2] = gaps
    is_gap = np.isin(x, np.array(gaps, dtype))
    x[7, 2], is_gap[7, 2] = np.nan, True
    ds = xarray.Dataset({"t": (("y", "x"), x, attributes)})
    plain = fastq.xarray.pack(xarray.Dataset({"t": (("y", "x"), np.where(is_gap, x.dtype.type(np.nan), x))}))
    if lazy:
        pytest.importorskip("dask", reason="no dask")
        ds = ds.chunk({"y": 3})
    packed = fastq.xarray.pack(ds)
    same_bytes(packed.t.values, plain.t.values)
    assert {key: packed.t.attrs[key] for key in plain.t.attrs} == plain.t.attrs
    assert np.array_equal(np.isnan(xarray.decode_cf(packed).t.values), is_gap)


# limits as a reader has them: attributes and encoding of decoded data, and the values that are valid
LIMITS = [
    ({"valid_max": 0.1}, {}, "float32", [-1, 0.1], [0.11]),  # 0.1 as float32 is above that of float64
    ({"valid_min": 0.7}, {}, "float32", [0.7, 1], [0.69]),
    (
        {"valid_range": np.array([0, 100], np.int16)},
        {"scale_factor": 0.1, "dtype": "int16"},
        "float64",
        [0, 10],
        [10.2],
    ),
    ({"valid_range": [0, 100]}, {"scale_factor": F32(0.1), "add_offset": F32(5)}, "float32", [5, 15], [4.8, 15.2]),
    ({"valid_range": np.array([0.0, 9.0])}, {"scale_factor": 0.1, "dtype": "int16"}, "float64", [0, 9], [9.1]),
    ({"valid_max": np.int8(-2)}, {"scale_factor": 2.0, "dtype": "int8", "_Unsigned": "true"}, "float32", [508], [510]),
    (
        {"valid_max": np.int16(-6)},
        {"scale_factor": 1.0, "dtype": "<i2", "_Unsigned": "true"},
        "float64",
        [65530],
        [65531],
    ),
    (
        {"valid_range": [0, -6]},
        {"scale_factor": 1.0, "dtype": "i2", "_Unsigned": "true"},
        "float64",
        [0, 65530],
        [65531],
    ),
    ({"valid_max": np.int16(9)}, {"scale_factor": -1.0, "dtype": "int16"}, "float64", [-9, 30], [-10.0]),
    ({"valid_min": 7}, {"dtype": "float32"}, "float32", [7], [6.9]),
    ({"valid_min": 7}, {"dtype": None, "scale_factor": None}, "float32", [7], [6.9]),
    ({"valid_max": 9}, {"scale_factor": np.array([-1.0]), "dtype": "int16"}, "float64", [-9, 30], [-10.0]),
]


@pytest.mark.parametrize(("attributes", "encoding", "dtype", "valid", "others"), LIMITS)
def test_limits(attributes, encoding, dtype, valid, others):
    # contract 25.2 and 25.6
    x = np.array([*valid, *others], dtype)
    ds = xarray.Dataset({"t": ("x", x, attributes)})
    ds.t.encoding = encoding
    packed = fastq.xarray.pack(ds)
    decoded = xarray.decode_cf(packed).t.values
    assert np.isnan(decoded).tolist() == [False] * len(valid) + [True] * len(others)
    for key in attributes:  # in codes, and all codes are within
        limits = np.asarray(packed.t.attrs[key])
        assert limits.dtype == np.int16
        codes = packed.t.values[: len(valid)]
        assert codes.max() <= limits.max() if key != "valid_min" else codes.min() >= limits
        assert packed.t.attrs["_FillValue"] not in range(int(limits.min()), int(limits.max()) + 1)


@pytest.mark.parametrize("lazy", [False, True], ids=["array", "dask"])
@pytest.mark.parametrize("limits", [{"valid_min": 4, "valid_max": 2}, {"valid_range": [7500, 65535]}], ids=str)
def test_limits_that_leave_nothing_are_refused(limits, lazy):
    """Of packed values that were computed with, limits in codes stay; others are written the wrong way round."""
    t = np.array([-9, np.nan, 280, 290, 300], F32)
    ds = xarray.Dataset({"t": ("x", t, {**limits, "_FillValue": F32(-9)}), "u": ("x", t + 1, {"valid_min": 0})})
    ds = ds.chunk(x=2) if lazy else ds
    with pytest.raises(
        ValueError, match=r"^ds has no value of 't' within its valid limits: remove them from attrs, or"
    ):
        fastq.xarray.pack(ds)
    ds.t.values[2:] = np.nan  # only missing values are not a mistake
    none = ds.assign(t=ds.t.where(ds.t < 0))
    assert (fastq.xarray.pack(none).t.values == -32768).all()
    some = ds.assign(t=ds.t.copy(data=np.array([-9, np.nan, 8000, 3, 300], F32)))
    if "valid_range" in limits:
        packed = fastq.xarray.pack(some.chunk(x=2) if lazy else some)
        assert (packed.t.values == packed.t.attrs["_FillValue"]).tolist() == [True, True, False, True, True]


def test_actual_range_is_that_of_what_is_read():
    # contract 25.6
    ds = xarray.Dataset(
        {"t": ("x", np.array([0.1, 7.77, -9], F32), {"actual_range": F32([0.1, 7.77]), "valid_min": 0})}
    )
    ds["gaps"] = ("x", np.full(3, np.nan), {"actual_range": [0.0, 1.0]})
    packed = fastq.xarray.pack(ds)
    decoded = xarray.decode_cf(packed).t.values
    same_bytes(packed.t.attrs["actual_range"], np.array([np.nanmin(decoded), np.nanmax(decoded)]))
    assert "actual_range" not in packed.gaps.attrs
    assert "actual_range" not in fastq.xarray.pack(ds, like=packed, out_of_range="clamp").t.attrs


# those of ncks --baa, for each of its algorithms
OF_NCO = [
    *(
        f"Quantize{way}NumberOfSignificantDigits"
        for way in ("BitGroom", "BitShave", "BitSet", "DigitRound", "HalfShave")
    ),
    *(f"Quantize{way}NumberOfSignificantDigits" for way in ("GranularBitRound", "BitGroomRound", "BruteForce")),
    "QuantizeBitRoundNumberOfSignificantBits",
]


def test_what_says_how_floats_were_rounded_is_left_out():
    attributes = {"quantization": "info", "quantization_nsd": 3, "_QuantizeBitRoundNumberOfSignificantBits": 9}
    attributes |= dict.fromkeys([*OF_NCO, "number_of_significant_digits", "number_of_significant_bits"], 3)
    ds = dataset(least_significant_digit=2, long_name="v", **attributes)
    assert set(fastq.xarray.pack(ds).v.attrs) == {"long_name", "scale_factor", "add_offset", "_FillValue"}


@pytest.mark.parametrize(
    ("encoding", "error", "message"),
    [
        ({"dtype": "foo"}, TypeError, "dtype in the encoding of 'v' in {} must be one of NumPy, not 'foo'"),
        ({"scale_factor": "a"}, TypeError, "{} has scale_factor 'a' of 'v', which must be numbers"),
        ({"add_offset": [1, 2]}, ValueError, "{} has 2 numbers in add_offset of 'v', which must have 1"),
        ({"scale_factor": 1.0, "dtype": "int16"}, ValueError, "{} has valid_max 40000 of 'v', which must be a number"),
    ],
)
def test_refused_encodings(encoding, error, message):
    ds, like = dataset(valid_max=40000), dataset()
    like.v.encoding = {"dtype": "int16"} | encoding | {"valid_max": 40000}
    with pytest.raises(error, match=message.format("like")):
        fastq.xarray.pack(dataset(), like=like)
    ds.v.encoding = encoding
    with pytest.raises(error, match=message.format("ds")):
        fastq.xarray.pack(ds)


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"valid_range": [1, 2, 3]}, ValueError, "ds has 3 numbers in valid_range of 'v', which must have 2"),
        ({"valid_max": [1, 2]}, ValueError, "ds has 2 numbers in valid_max of 'v', which must have 1"),
        ({"scale_factor": 0.1}, ValueError, "ds has scale_factor in the attributes of 'v': decode it first"),
        ({"add_offset": 3}, ValueError, "ds has add_offset in the attributes of 'v': decode it first"),
        ({"long_name": "unwritten"}, ValueError, "ds has 9.969209968386869e\\+36 in 'w', netCDF's own fill value"),
    ],
)
def test_refusals(attributes, error, message):
    # contract 25.5
    ds = dataset(**attributes)
    ds["w"] = "x", np.array([1, 9.969209968386869e36, 2, 3, 4], F32)
    with pytest.raises(error, match=message):
        fastq.xarray.pack(ds)


TEXTS = [
    *(
        {key: "-9999"}
        for key in ("_FillValue", "missing_value", "valid_min", "valid_max", "scale_factor", "add_offset")
    ),
    *({key: "0, 100"} for key in ("valid_range", "actual_range")),
    {"_FillValue": True},
    {"missing_value": ["1", "2"]},
    {"missing_value": b"1"},
]


@pytest.mark.parametrize("function", [fastq.xarray.pack, lambda ds: fastq.xarray.bitround(ds, keepbits=3)])
@pytest.mark.parametrize("attributes", TEXTS, ids=str)
def test_a_variable_whose_attributes_are_no_numbers_is_named_and_stays(attributes, function):
    # contract 25.12
    ds, key = dataset(**attributes), next(iter(attributes))
    with pytest.warns(UserWarning, match=f"'v' stays as it is: its {key} is .*, which must be numbers") as seen:
        changed = function(ds)
    assert seen[0].filename == __file__
    xarray.testing.assert_identical(changed.v.variable, ds.v.variable)
    assert not changed.t.identical(ds.t)


def test_variables_that_are_excluded_stay():
    ds = dataset(missing_value="-9999")  # without a warning
    for changed in (fastq.xarray.pack(ds, exclude=["v"]), fastq.xarray.bitround(ds, keepbits=3, exclude={"v"})):
        xarray.testing.assert_identical(changed.v.variable, ds.v.variable)
        assert not changed.t.identical(ds.t)
    with pytest.raises(TypeError, match="max_error names 'v', which stays as it is: exclude names it"):
        fastq.xarray.pack(ds, exclude=["v"], max_error={"v": 1})
    with pytest.raises(TypeError, match="exclude names 'tt', which is not a variable of ds"):
        fastq.xarray.pack(ds, exclude=["tt"])
    with pytest.raises(TypeError, match="exclude must be a list of names of variables, not 'v'"):
        fastq.xarray.bitround(ds, keepbits=3, exclude="v")


def test_arrays_of_arrays_are_named():
    """What xarray takes for floats, and netCDF4 reads as lists."""
    ds = dataset()
    lists = np.empty(2, object)
    lists[:] = [np.arange(2.0), np.arange(3.0)]

    class Lists(xarray.Variable):
        dtype = np.dtype(F32)

    ds = ds._replace({**ds._variables, "lists": Lists("many", lists)})
    for function in (fastq.xarray.pack, lambda ds: fastq.xarray.bitround(ds, keepbits=3)):
        with pytest.raises(TypeError, match=r"ds has arrays in 'lists', .*: exclude=\['lists'\] leaves it"):
            function(ds)
