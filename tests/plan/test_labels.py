"""Labels of two arrays of xarray decide which elements belong together; where they disagree, that is told."""

import re

import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference
from fastq.system import labels

xarray = pytest.importorskip("xarray", reason="no xarray")

SHAPE = (4, 4, 6)
VALUES = np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)
SUMS = (VALUES * 1000).astype(np.int32)
COORDS = {"lat": np.arange(4.0), "lon": np.arange(4.0) + 100, "level": np.arange(6.0)}
X = xarray.DataArray(VALUES, dims=tuple(COORDS), coords=COORDS)
OTHER_ORDERS = [("lon", "lat", "level"), ("level", "lon", "lat")]
Q = fastq.quantize(X, "int8", axis=0)


def along(*dims, start=1):
    """Positive numbers with labels along some dimensions."""
    numbers = np.arange(start, start + np.prod([X.sizes[dim] for dim in dims]), dtype=np.float32) / 50
    coords = {dim: X[dim] for dim in dims}
    return xarray.DataArray(numbers.reshape([X.sizes[dim] for dim in dims]), dims=dims, coords=coords)


def lazily(*arrays):
    pytest.importorskip("dask", reason="no dask")
    return [each.chunk(2) for each in arrays]


# --- arrays of the same dimensions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", OTHER_ORDERS)
def test_dimensions_in_another_order(dims):
    other = X.transpose(*dims)
    for x, q in ((X, other), (X.variable, other.variable), (X, other.variable), (X.drop_vars(COORDS), other)):
        assert fastq.compare(x, q).sqnr_db == np.inf
    expected = fastq.compare(VALUES, reference.dequantize(reference.quantize(VALUES, "int8", axis=0)))
    assert fastq.compare(other, Q).sqnr_db == pytest.approx(expected.sqnr_db, rel=1e-12)
    lazy, of_lazy = lazily(X, other)
    assert fastq.compare(lazy, of_lazy).compute().sqnr_db == np.inf
    assert fastq.compare(lazy, other).compute().sqnr_db == np.inf
    of_codes = fastq.compare(of_lazy, fastq.quantize(lazy, "int8", axis=0)).compute()
    assert of_codes.sqnr_db == pytest.approx(expected.sqnr_db, rel=1e-12)


def test_arrays_without_labels_are_taken_by_position():
    for x, q in ((X, VALUES), (VALUES, X), (X.variable, VALUES)):
        assert fastq.compare(x, q).sqnr_db == np.inf
    assert fastq.compare(VALUES, Q) == fastq.compare(X, Q)


OTHERS = {  # arrays whose labels disagree with those of X, and how
    "in another order": X.isel(lat=slice(None, None, -1)),
    "in an order of its own": X.isel(lat=[1, 0, 3, 2]),
    "a part": X.isel(lat=[0, 2]),
    "more": xarray.concat([X, X.assign_coords(lat=X.lat + 10)], "lat"),
    "others too": X.assign_coords(lat=X.lat + 2),
    "others": X.assign_coords(lat=X.lat + 10),
    "twice the same": X.assign_coords(lat=[0.0, 0.0, 1.0, 2.0]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_coordinates_that_disagree(name):
    other = OTHERS[name]
    with pytest.raises(ValueError, match=r"^q and x disagree along 'lat': q has ") as raised:
        fastq.compare(X, other)
    advice = re.search(r"pass (?:what )?(.*?)(?: returns)?$", str(raised.value))[1]
    found = eval(advice, {"x": X, "q": other, "xarray": xarray})
    x, q = found if isinstance(found, tuple) else (found, other) if advice.startswith("x.") else (X, found)
    assert (fastq.compare(x, q).sqnr_db == np.inf) == (name != "others too")
    lazy, of_lazy = lazily(X, other)
    with pytest.raises(ValueError, match="disagree along 'lat'"):
        fastq.compare(lazy, of_lazy)
    if other.shape == X.shape:
        with pytest.raises(ValueError, match=r"^x and q\.dequantize\(\) disagree along 'lat'"):
            fastq.compare(other, Q)


def test_labels_of_other_dtypes():
    hours = X.lat.values.astype(int)
    for coordinate in (["a", "b", "c", "d"], np.datetime64("2000-01-01", "ns") + hours * np.timedelta64(1, "h")):
        x = X.assign_coords(lat=coordinate)
        assert fastq.compare(x, x).sqnr_db == np.inf
        with pytest.raises(ValueError, match=r"has the labels of x in another order; pass q\.sel"):
            fastq.compare(x, x[::-1])
    tenths = np.arange(4) / 10
    single = X.assign_coords(lat=tenths.astype(np.float32))
    assert fastq.compare(X.assign_coords(lat=tenths), single).sqnr_db == np.inf
    with pytest.raises(ValueError, match=r"q has 0\.001, 0\.101, 0\.201, \.\. where x has 0\.0, 0\.1, 0\.2, \.\.; by"):
        fastq.compare(single, X.assign_coords(lat=tenths + 0.001))


def test_coordinates_of_several_dimensions():
    places = {"latitude": (("lat", "lon"), np.arange(16.0).reshape(4, 4))}
    x = X.drop_vars(("lat", "lon")).assign_coords(places)
    assert fastq.compare(x, x.transpose("lon", "level", "lat")).sqnr_db == np.inf
    with pytest.raises(ValueError, match=r"^q has other values of the coordinate 'latitude', along 'lat', than x"):
        fastq.compare(x, x[::-1])
    assert fastq.compare(x, x[::-1].drop_vars("latitude")).sqnr_db < 0


def test_other_dimensions():
    with pytest.raises(ValueError, match=r"^q has the dimensions \(y, lon, level\), but x has .* by position q\.data$"):
        fastq.compare(X, X.rename(lat="y"))
    with pytest.raises(ValueError, match=r"as q\.rename gives them other names$"):
        fastq.compare(X, X[0].rename(lon="x"))


@pytest.mark.parametrize("named", ["q", "x"])
def test_more_dimensions(named):
    # what the message says to pass is compared
    longer = X.expand_dims("time").transpose("lat", "lon", "time", "level")
    x, q = (X, longer) if named == "q" else (longer, X)
    advice = rf"pass ({named}\.isel\({{'time': 0}}\)), or another place along \(time\)$"
    with pytest.raises(ValueError, match=advice) as refusal:
        fastq.compare(x, q)
    passed = eval(re.search(advice, str(refusal.value))[1], {"q": q, "x": x})
    assert fastq.compare(*((x, passed) if named == "q" else (passed, q))).sqnr_db == np.inf


def test_pictures():
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="no matplotlib")
    other = X.transpose("level", "lon", "lat")
    assert "inf" in fastq.plot.errors(X, other)[2].get_title()
    for draw in (fastq.plot.histogram, fastq.plot.channels, fastq.plot.errors):
        draw(other, Q)
        with pytest.raises(ValueError, match="disagree along 'lat'"):
            draw(X[::-1], Q)
    drawn = fastq.plot.compare(X, {"itself": other, "codes": Q})
    assert [label.get_text() for label in drawn.get_yticklabels()] == ["itself", "codes"]
    with pytest.raises(ValueError, match=r"^schemes has 'reversed': q and x disagree along 'lat'"):
        fastq.plot.compare(X, {"reversed": X[::-1]})
    pyplot.close("all")


def test_assertions():
    fastq.testing.assert_same_codes(Q, reference.quantize(VALUES, "int8", axis=0))
    with pytest.raises(AssertionError, match=r"^coordinates: .* disagree along 'lat'"):
        fastq.testing.assert_same_codes(Q, fastq.quantize(X.assign_coords(lat=X.lat + 1), "int8", axis=0))
    with pytest.raises(AssertionError, match=r"^dimensions: \('lat', 'lon', 'level'\), not \('lon', 'lat', 'level'\)"):
        fastq.testing.assert_same_codes(Q, fastq.quantize(X.rename(lat="lon", lon="lat"), "int8", axis=0))


# --- parameters -------------------------------------------------------------------------------------------------------


PLACES = {  # dimensions of scales, and the axes that they belong to
    ("lat",): 0,
    ("lon",): 1,
    ("level",): 2,
    ("lat", "level"): (0, 2),
    ("level", "lat"): (0, 2),
}


@pytest.mark.parametrize("dims", PLACES)
def test_scales_belong_to_their_dimensions(dims):
    # contract 3.5
    axis, scale = PLACES[dims], along(*dims)
    in_order = scale.transpose(*(dim for dim in X.dims if dim in dims))
    zero_point = (in_order * 50 % 7).astype("int8")
    wanted = reference.quantize_linear(VALUES, in_order.values, zero_point.values, axis=axis)
    for options in ({}, {"axis": axis}):
        codes = fastq.quantize_linear(X, scale, zero_point, **options)
        same_bytes(codes.values, wanted)
    lazy, of_scale, of_zero = lazily(X, scale, zero_point)
    same_bytes(fastq.quantize_linear(lazy, of_scale, of_zero).values, wanted)
    values = fastq.dequantize_linear(codes, scale, zero_point.transpose(*dims))
    same_bytes(values.values, reference.dequantize_linear(wanted, in_order.values, zero_point.values, axis=axis))
    multiplier, bias = scale / 9, (scale * 50).astype("int32")
    wanted = reference.requantize(
        SUMS,
        multiplier.transpose(*in_order.dims).values,
        0,
        "int8",
        axis=axis,
        bias=bias.transpose(*in_order.dims).values,
    )
    sums = X.copy(data=SUMS)
    same_bytes(fastq.requantize(sums, multiplier, 0, "int8", bias=bias).values, wanted)


def test_scales_of_all_dimensions():
    kept = along("lon").expand_dims({"level": 1, "lat": 1})
    wanted = reference.quantize_linear(VALUES, along("lon").values, axis=1)
    same_bytes(fastq.quantize_linear(X, kept).values, wanted)
    lo, hi = fastq.minmax(X, axis=2, block_size=3)
    scale, options = (hi - lo) / 255, {"axis": 2, "block_size": 3}
    wanted = reference.quantize_linear(VALUES, scale.values, **options)
    for each in (scale, scale.transpose("level", "lon", "lat"), scale.assign_coords(level=scale.level + 1)):
        same_bytes(fastq.quantize_linear(X, each, **options).values, wanted)
    with pytest.raises(ValueError, match=r"scale has the label 3\.0 along 'level' for a block of x from 0\.0 to 2\.0"):
        fastq.quantize_linear(X, scale[..., ::-1], **options)


def test_labels_of_one_array_alone():
    scale, wanted = along("lon"), reference.quantize_linear(VALUES, along("lon").values, axis=1)
    same_bytes(fastq.quantize_linear(VALUES, scale, axis=1), wanted)
    same_bytes(fastq.quantize_linear(X, scale.values, axis=1).values, wanted)
    one = xarray.DataArray(np.float32(0.5), coords={"lat": 77.0})
    same_bytes(fastq.quantize_linear(X, one).values, reference.quantize_linear(VALUES, np.float32(0.5)))
    bias = (scale * 50).astype("int32")
    of_bias = fastq.requantize(X.copy(data=SUMS), 0.1, 0, "int8", bias=bias)
    same_bytes(of_bias.values, reference.requantize(SUMS, 0.1, 0, "int8", axis=1, bias=bias.values))


REFUSED = [
    (lambda: fastq.quantize_linear(X, along("lat"), axis=1), r"^scale has the dimensions 'lat' of x, axis \(0,\), not"),
    (lambda: fastq.quantize_linear(X, along("lat")[::-1]), r"scale and x disagree along 'lat': .* in another order"),
    (lambda: fastq.quantize_linear(X, along("lat").rename(lat="y")), r"^scale has the dimension 'y', but x has \(lat,"),
    (
        lambda: fastq.quantize_linear(X, along("lat"), along("lon").astype("uint8")),
        r"^zero_point has axes \(1,\) of x, by its dimensions, and others have \(0,\)",
    ),
    (lambda: fastq.requantize(X.copy(data=SUMS), along("lat")[::-1], 0, "int8"), r"^multiplier and acc disagree along"),
    (
        lambda: fastq.requantize(X.copy(data=SUMS), 0.5, 0, "int8", bias=along("lat").astype("int32")[::-1]),
        r"^bias and acc disagree along",
    ),
    (
        lambda: fastq.quantize(X, qparams=Q.qparams.with_values(along("lon"), Q.zero_point)),
        r"^qparams\.scale has the dimensions \('lon',\), but its axes are \('lat',\) of x",
    ),
    (
        lambda: fastq.fake_quantize(X, qparams=Q.qparams.with_values(along("lat")[::-1], Q.zero_point)),
        r"^qparams\.scale and x disagree along 'lat'",
    ),
    (lambda: fastq.quantize(X, "int8", axis=0, range="mse", importance=along("level")[::-1]), r"^importance and x dis"),
    (
        lambda: fastq.quantize(X.drop_vars("level"), "int8", range="mse", importance=along("level")[:3]),
        r"^importance has 3 elements along 'level', but x has 6",
    ),
    (
        lambda: fastq.gguf.quantize(xarray.DataArray(np.ones((32, 32)), dims=("r", "c")), "Q4_0", importance=ROWS),
        r"^importance has the dimensions \('r',\), but columns are along 'c' of data",
    ),
]
ROWS = xarray.DataArray(np.ones(32, np.float32), dims="r")


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_numbers_with_labels_in_parameters():
    given = Q.qparams.with_values(along("lat"), Q.zero_point)
    plain = Q.qparams.with_values(along("lat").values, Q.zero_point)
    same_bytes(fastq.quantize(X, qparams=given).codes.values, reference.quantize(VALUES, qparams=plain).codes)


@pytest.mark.parametrize("dims", [("level",), ("lon",), ("level", "lon", "lat"), ("lon", "level")])
def test_importance_belongs_to_its_dimensions(dims):
    importance = along(*dims)
    spread = np.broadcast_to(importance.broadcast_like(X).transpose(*X.dims).values, SHAPE)
    options = {"axis": 0, "range": "mse"}
    wanted = reference.choose_qparams(VALUES, "int8", importance=spread, **options)
    same_bytes(fastq.choose_qparams(X, "int8", importance=importance, **options).scale, wanted.scale)
    same_bytes(fastq.choose_qparams(X.variable, "int8", importance=importance, **options).scale, wanted.scale)


def test_importance_of_columns():
    data = np.random.default_rng(6).standard_normal((3, 64)).astype(np.float32)
    weights = np.arange(1, 193, dtype=np.float32).reshape(3, 64)
    labelled = xarray.DataArray(data, dims=("r", "c"))
    rows, columns = xarray.DataArray(weights, dims=("r", "c")), xarray.DataArray(weights[0], dims="c")
    for imatrix, plain in ((rows.T, weights), (columns, weights[0])):
        found = fastq.gguf.quantize(labelled, "Q4_0", importance=imatrix)
        same_bytes(np.asarray(found), reference.gguf.quantize(data, "Q4_0", importance=plain))


def test_labels_that_are_not_numbers_of_blocks():
    """Labels of blocks that have no order are not looked at."""
    x = X.assign_coords(level=list("abcdef"))
    scale = along("level")[:3].assign_coords(level=list("zyx"))
    labels.check_coordinates(scale, x, "scale", "x", {"level": 2})
    with pytest.raises(ValueError, match="scale has z, y, x where x has a, b, c"):
        labels.check_coordinates(scale, x, "scale", "x")


NUMBERS = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
TABLES = [  # what is done to a table, and whether its elements are in another place then
    (lambda table: table.copy(), False),
    (lambda table: table[::-1], True),
    (lambda table: table[["q", "p", "r", "s"]], True),
    (lambda table: table.rename(columns={"p": "z"}), True),
    (lambda table: table.set_axis([7, 7, 8]), True),
    (lambda table: table.to_numpy(), False),
]


@pytest.mark.parametrize(("change", "moves"), TABLES)
def test_tables_of_pandas(change, moves):
    # contract 3.5
    pandas = pytest.importorskip("pandas", reason="no pandas")
    x = pandas.DataFrame(NUMBERS, index=list("abc"), columns=list("pqrs"))
    q = change(x)
    if not moves:
        assert fastq.compare(x, q).max_abs_error == 0
        return
    with pytest.raises(ValueError, match=r"^q has .* as (index|columns) where x has .*: pass ") as raised:
        fastq.compare(x, q)
    advised = re.search(r"pass (.*), or by position (.*)$", str(raised.value))
    assert fastq.compare(x, eval(advised[2], {"q": q})).mse == fastq.compare(NUMBERS, q.to_numpy()).mse
    if advised[1] != "the same labels":
        assert fastq.compare(x, eval(advised[1], {"q": q, "x": x})).max_abs_error == 0
    assert (advised[1] == "the same labels") == (set(q.index) != set(x.index) or set(q.columns) != set(x.columns))


def test_columns_of_pandas():
    pandas = pytest.importorskip("pandas", reason="no pandas")
    for index in (None, pandas.date_range("2000", periods=12), [*"abcdefghijkl"]):
        x = pandas.Series(NUMBERS.ravel(), index=index)
        assert fastq.compare(x, x.copy()).max_abs_error == 0
        assert fastq.compare(x, fastq.quantize(x, "int8")).max_abs_error < 0.05
        with pytest.raises(ValueError, match=r"pass q\.reindex_like\(x\), or by position q\.to_numpy\(\)$"):
            fastq.compare(x, x[::-1])
        assert fastq.compare(x, x[::-1].reindex_like(x)).max_abs_error == 0


def test_tables_of_polars():
    polars = pytest.importorskip("polars", reason="no polars")
    x = polars.DataFrame({"a": [1.0, 2.0], "b": [3.0, 5.0]})
    assert fastq.compare(x, x.clone()).max_abs_error == 0
    with pytest.raises(ValueError, match=r"q has 'b', 'a' as columns where x has .*: pass q\.select\(x\.columns\), or"):
        fastq.compare(x, x.select("b", "a"))
    assert fastq.compare(x, x.select("b", "a").select(x.columns)).max_abs_error == 0
    pandas = pytest.importorskip("pandas", reason="no pandas")
    other = pandas.DataFrame({"c": [1.0, 2.0], "d": [3.0, 5.0]})
    assert fastq.compare(x, other).max_abs_error == 0  # labels of two libraries are not compared
