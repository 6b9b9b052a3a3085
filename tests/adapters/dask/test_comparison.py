"""`fastq.compare` of dask arrays: the measures of the whole array, whatever the chunks and what is lazy."""

import pickle

import dask.array as da
import numpy as np
import pytest

import fastq

pytest.importorskip("dask")
SHAPE = 64, 96
X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
X[3, 5] = 0
SCHEMES = [
    {"dtype": "uint8"},
    {"dtype": "int8", "axis": 0},
    {"dtype": "int4", "axis": -1, "block_size": 32},
    {"dtype": "uint3", "axis": 1},
    {"dtype": "mxfp4"},
    {"dtype": "nvfp4"},
]
CHUNKS = [(64, 96), (16, 32), (7, 64), ((0, 64), 32)]


def same(found, expected):
    """All measures are those of the whole array except for the last bits of sums; what is counted is equal."""
    assert (found.clipped, found.max_abs_error) == (expected.clipped, expected.max_abs_error)
    names = [name for name in expected.to_dict() if name != "clipped"]
    assert [getattr(found, name) for name in names] == pytest.approx([getattr(expected, name) for name in names], 1e-13)


@pytest.mark.slow("compiles kernels for each format", quick=lambda scheme, chunks: scheme["dtype"] in ("int8", "int4"))
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme["dtype"])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_codes(scheme, chunks):
    x, q = da.from_array(X, chunks=chunks), fastq.quantize(X, **scheme)
    clipping = fastq.quantize(X / 3, **scheme).qparams
    for one in (q, fastq.quantize(X, qparams=clipping)):
        same(fastq.compare(x, one).compute(), fastq.compare(X, one))
    lazy = fastq.quantize(x, qparams=q.qparams)
    same(fastq.dask.compare(x, lazy).compute(), fastq.compare(X, q))
    same(fastq.dask.compare(x.rechunk((32, 96)), lazy).compute(), fastq.compare(X, q))


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_values(chunks):
    near = X + np.float32(0.125)
    x = da.from_array(X, chunks=chunks)
    for q in (near, da.from_array(near, chunks=(10, 10))):
        same(fastq.compare(x, q).compute(), fastq.compare(X, near))


def test_nan_is_nan_whatever_the_order():
    near = X.copy()
    near[40, 40] = np.nan
    found = fastq.compare(da.from_array(X, chunks=16), near).compute()
    assert np.isnan([found.mse, found.max_abs_error, found.mean_relative_error]).all()


def test_nan_is_counted_in_all_chunks():
    # contract 18.2
    x = X.copy()
    x[::9, 7] = x[:, 90] = np.nan
    for q in (X, fastq.quantize(X, "int8")):
        with pytest.raises(ValueError, match=r"^x has 72 NaN, whose errors cannot be measured; leave them out") as told:
            fastq.compare(da.from_array(x, chunks=16), q).compute()
        assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)  # as it comes from another process
    with pytest.raises(ValueError, match=r"^x has 72 NaN, whose errors cannot be measured; leave them out"):
        fastq.compare(x, X)


def test_one_number_and_labels():
    xarray = pytest.importorskip("xarray", reason="no xarray")
    x = da.from_array(X[0, 0], chunks=())
    assert fastq.compare(x, fastq.quantize(x, "int8")).compute().mse == 0
    labelled = xarray.DataArray(da.from_array(X, chunks=32), dims=("a", "b"))
    same(
        fastq.compare(labelled, fastq.quantize(labelled, "int8")).compute(), fastq.compare(X, fastq.quantize(X, "int8"))
    )


def test_unknown_sizes():
    x = da.from_array(X, chunks=32)
    some = x[x[:, 0] > 0]
    q = fastq.quantize(some, "int8", axis=1)
    same(fastq.compare(some, q).compute(), fastq.compare(some.compute(), q.compute()))
    with pytest.raises(ValueError, match=r"chunk sizes of q are unknown: call q\.compute_chunk_sizes\(\) first"):
        fastq.compare(some, q.dequantize().rechunk({1: 96}))
    nothing = x[x[:, 0] > 100]
    with pytest.raises(ValueError, match="x is empty: there is no error to measure"):
        fastq.compare(nothing, nothing).compute()
