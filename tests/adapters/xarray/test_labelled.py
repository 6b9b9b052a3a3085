"""DataArrays of xarray: the bytes of the reference, with the coordinates, the name and the attributes of the input."""

import numpy as np
import pytest
from catalogue import same_bytes
from chunkings import SHAPE, array

import fastq
from fastq import reference

xarray = pytest.importorskip("xarray", reason="no xarray")

X = array()


def labelled():
    coords = {
        "time": np.arange(SHAPE[0]),
        "lat": np.linspace(-80, 80, SHAPE[1]),
        "zone": ("lat", np.arange(SHAPE[1]) // 9),
    }
    x = xarray.DataArray(X, coords=coords, dims=("time", "lat"), name="temperature", attrs={"units": "K"})
    x.encoding["scale_factor"] = 0.5
    return x


@pytest.fixture(params=["in memory", "of dask"])
def x(request):
    if request.param == "in memory":
        return labelled()
    pytest.importorskip("dask", reason="no dask")
    return labelled().chunk({"time": 40, "lat": 64})


def same_labels(actual, x):
    assert (actual.dims, actual.name, actual.attrs, actual.encoding) == (x.dims, x.name, x.attrs, {})
    xarray.testing.assert_equal(actual.coords.to_dataset(), x.coords.to_dataset())
    assert (actual.chunks is None) == (x.chunks is None)


def test_codes_and_values(x):
    q, expected = fastq.quantize(x, "int8", axis=0), reference.quantize(X, "int8", axis=0)
    for codes in (q.codes, fastq.quantize(x, qparams=expected.qparams).codes):
        same_labels(codes, x)
        same_bytes(codes.values, expected.codes)
    same_labels(q.dequantize(), x)
    same_bytes(q.dequantize().values, reference.dequantize(expected))
    linear = fastq.quantize_linear(x, expected.scale, expected.zero_point, axis=0)
    same_labels(linear, x)
    same_bytes(linear.values, expected.codes)
    values = fastq.dequantize_linear(linear, expected.scale, expected.zero_point, axis=0)
    same_labels(values, x)
    same_bytes(values.values, reference.dequantize(expected))
    fake = fastq.fake_quantize(x, "int8", axis=1)
    same_labels(fake, x)
    same_bytes(fake.values, reference.fake_quantize(X, "int8", axis=1))
    same_bytes(np.asarray(fastq.choose_qparams(x, "int8", axis=0).scale), expected.scale)


def test_computed_in_memory():
    pytest.importorskip("dask", reason="no dask")
    x = labelled().chunk({"time": 40, "lat": 64})
    for q in (fastq.quantize(x, "int8").compute(), fastq.quantize(x, "int8").persist().compute()):
        assert type(q) is fastq.QuantizedArray
        same_labels(q.codes, labelled())
        same_bytes(np.asarray(q), reference.dequantize(reference.quantize(X, "int8")))
        assert fastq.compare(X, q) == fastq.compare(X, fastq.quantize(X, "int8"))


def test_extremes(x):
    lo, hi = fastq.minmax(x, axis=1)
    same_bytes(np.stack([lo.values, hi.values]), np.stack(reference.minmax(X, axis=1)))
    assert (lo.dims, hi.name, set(lo.coords)) == (("lat",), "temperature", {"lat", "zone"})
    lo, _ = fastq.minmax(x, axis=1, block_size=32)
    same_bytes(lo.values, reference.minmax(X, axis=1, block_size=32)[0])
    same_bytes(lo.lat.values, x.lat.values[::32])
    lo, _ = fastq.minmax(x)
    assert (lo.shape, lo.dims, dict(lo.coords)) == ((), (), {})


def test_refused(x):
    with pytest.raises(TypeError, match="x is a DataArray, and codes of fewer than 8 bits share bytes"):
        fastq.quantize(x, "uint4")
    q = fastq.quantize(x, "int8", bits=4)
    same_labels(q.codes, x)
    with pytest.raises(TypeError, match=r"q\.codes has named dimensions"):
        q.reshape(-1)


def test_a_dataset_is_told_from_its_variables(x):
    ds = x.rename("t").to_dataset()
    for call in (lambda: fastq.quantize(ds, "int8"), lambda: fastq.bitround(ds, keepbits=3), lambda: fastq.minmax(ds)):
        with pytest.raises(TypeError, match=r"^x is a Dataset: pass a variable of it, as x\['t'\]; fastq\.xarray has"):
            call()
    with pytest.raises(TypeError, match=r"^q is a Dataset: pass a variable of it"):
        fastq.compare(ds["t"].compute(), ds)


@pytest.mark.parametrize("axis", ["lat", ("time", "lat"), ["lat"]])
def test_axes_are_numbers(x, axis):
    for call in (fastq.minmax, lambda x, axis: fastq.quantize(x, "int8", axis=axis)):
        with pytest.raises(
            TypeError, match=r"^axis must be numbers of axes, not names: pass axis=x\.get_axis_num"
        ) as told:
            call(x, axis=axis)
        named = eval(str(told.value).partition("pass axis=")[2], {"x": x})
        assert fastq.minmax(x, axis=named)[0].dims == ((axis,) if axis == "lat" else tuple(axis))


def test_what_is_lazy_is_not_loaded():
    pytest.importorskip("dask", reason="no dask")
    x = labelled().chunk({"time": 40})
    with pytest.raises(TypeError, match=r"x is a dask array, which binarize can't process by chunks"):
        fastq.binarize(x)
    for q in (X, x, x.chunk({"lat": 9})):
        assert fastq.compare(x, q).compute().max_abs_error == 0
    with pytest.raises(TypeError, match=r"x has yet to be computed by dask"):
        fastq.reference.quantize(x, "int8")
