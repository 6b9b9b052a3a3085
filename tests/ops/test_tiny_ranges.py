"""Ranges so small that their scales are subnormal: what multiples of the smallest number are, stays exact."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_quantized

import fastq
from fastq import reference

ONNX = fastq.CONVENTIONS["onnx"]
STORED = dataclasses.replace(ONNX, stored_type="input")
FLOATS = ["float32", "float64", "float16", np.dtype(ml_dtypes.bfloat16)]
# the largest magnitude of a row, in multiples of the smallest number
LARGEST = [0, 1, 2, 17, 63, 64, 100, *range(126, 130), *range(190, 193), *range(254, 257), 300, 381, 382]
LARGEST += [5000, 65535, 10**6]
SCHEMES = [("int8", True), ("uint8", False), ("int4", True), ("float8_e4m3fn", True)]


def smallest(dtype):
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)


def rows(dtype, ends=(-1, 1)):
    """Whole multiples of the smallest number, the largest of a row being at one end."""
    rng, low = np.random.default_rng(42), ends[0]
    x = [np.concatenate([[k, low * k], np.rint(rng.uniform(low * k, k, 30))]) for k in LARGEST]
    finite = np.array(x) * smallest(dtype)
    return finite[np.abs(finite).max(1) < float(ml_dtypes.finfo(dtype).max)].astype(dtype)


def kept_in(dtype, row):
    """The smallest number of the type in which the scales of an array are kept."""
    if row is STORED or dtype == "float64":
        return smallest(dtype)
    return smallest("float32")


def check(api, dtype, row, name, symmetric, **options):
    x = rows(dtype)
    q = api.quantize(x, name, axis=0, symmetric=symmetric, convention=row, **options)
    values, exact = reference.dequantize(q).astype(np.float64), x.astype(np.float64)
    scale = q.scale.astype(np.float64)[:, None]
    size, unit = np.abs(exact).max(1, keepdims=True), kept_in(dtype, row)
    assert np.array_equal(scale[0], [1])  # of zeros
    assert not (scale[1:] % unit).any()
    codes = q.dtype.code_range(symmetric)[1] if symmetric else q.dtype.qmax / 2
    assert (scale[1:] <= np.maximum(size[1:] / codes * 1.004, unit) + unit).all()  # no larger than they have to be
    if q.dtype.element:
        assert (np.abs(values - exact) <= np.maximum(np.abs(exact) / 16, scale * 2.0**-10) * 1.001).all()
    else:
        # half a step, for asymmetric ones that of the zero point too
        assert (np.abs(values - exact)[1:] <= scale[1:] * (0.502 if symmetric else 1.002)).all()
    same = scale[:, 0] == smallest(dtype)
    if not q.dtype.element and symmetric:
        assert same[1:].any() or unit < smallest(dtype)
        assert np.array_equal(values[same], exact[same])
    return q


@pytest.mark.parametrize(("name", "symmetric"), SCHEMES)
@pytest.mark.parametrize("row", [ONNX, STORED], ids=["computed", "stored"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_no_range_is_lost(dtype, row, name, symmetric):
    # contract 5.4
    check(reference, dtype, row, name, symmetric)


@pytest.mark.slow(
    "a kernel or two each",
    quick=lambda dtype, row, name, symmetric: (dtype, row, name) == ("float32", ONNX, "int8"),
)
@pytest.mark.parametrize(("name", "symmetric"), SCHEMES)
@pytest.mark.parametrize("row", [ONNX, STORED], ids=["computed", "stored"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_kernels_keep_the_same(dtype, row, name, symmetric):
    same_quantized(check(fastq, dtype, row, name, symmetric), check(reference, dtype, row, name, symmetric))
    options = {"symmetric": symmetric, "convention": row}
    for where in ({"axis": 1, "block_size": 8}, {"axis": 1}, {}, {"axis": 0, "range": "mse"}):
        for x in (rows(dtype), rows(dtype, (0, 1)), rows(dtype, (0.5, 1))[1:4]):
            same_quantized(*(api.quantize(x, name, **options, **where) for api in (fastq, reference)))
            same_quantized(*(api.quantize(-x, name, **options, **where) for api in (fastq, reference)))


def test_a_row_of_half_precision_is_exact():
    x = (np.arange(-17, 18) * 2.0**-24).astype(np.float16)[None]
    for api in (fastq, reference):
        q = api.quantize(x, "int8", axis=0, symmetric=True, convention=STORED)
        assert q.scale.tolist() == [2.0**-24]
        assert q.codes.tolist() == [list(range(-17, 18))]


def test_a_calibrator_keeps_tiny_ranges_too():
    seen, x = fastq.Calibrator("int8", symmetric=True), (np.arange(-17, 18) * 2.0**-149).astype(np.float32)
    seen.update(x)
    assert seen.qparams().scale == np.float32(2.0**-149)
    assert fastq.quantize(x, qparams=seen.qparams()).codes.tolist() == list(range(-17, 18))
