"""Codes of int32 and uint32, by parameters that are given: fastq's are those of the reference, and of plain NumPy."""

import dask.array
import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference

GRANULARITIES = [((1000,), None), ((64, 129), 0), ((64, 129), 1), ((5, 3, 77), 2), ((64, 256), None)]
LIMITS = [0, -0.0, 1e30, -1e30, np.inf, -np.inf, 2**31 - 1, -(2**31), 2**31 - 0.5, 0.5, -0.5, 1.5, -2.5]


def expected(x, scale, offset):
    steps = (x.astype(np.float64) - offset) / scale
    return np.clip(np.trunc(steps + np.copysign(0.5, steps)), -(2**31), 2**31 - 1).astype(np.int32)


def values(dtype, shape):
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3e4 if dtype == "float16" else 3e8, shape)
    x = x.clip(-6e4, 6e4).astype(dtype) if dtype == "float16" else x.astype(dtype)
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x.flat[: len(LIMITS)] = np.array(LIMITS).astype(dtype)
    return x


@pytest.mark.slow("compiles 4 kernels a case", quick=lambda dtype, shape, axis: (dtype, axis) == ("float32", 0))
@pytest.mark.parametrize(("shape", "axis"), GRANULARITIES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32"])
def test_codes_and_values(dtype, shape, axis):
    # contract 7.8
    x, rng = values(dtype, shape), np.random.default_rng(1)
    parameters = () if axis is None else (shape[axis],)
    offset = 100 * rng.normal(size=parameters)
    options = {"axis": axis, "convention": "fits"}
    kept = [-1 if a == axis else 1 for a in range(len(shape))]
    for scale in (np.ones(parameters), 0.05 + 0.3 * rng.random(parameters)):
        codes = fastq.quantize_linear(x, scale, offset, "int32", **options)
        same_bytes(codes, reference.quantize_linear(x, scale, offset, "int32", **options))
        spread = (scale, offset) if axis is None else (scale.reshape(kept), offset.reshape(kept))
        same_bytes(codes, expected(x, *spread))
        lazy = fastq.dask.quantize_linear(dask.array.from_array(x), scale, offset, "int32", **options)
        same_bytes(codes, lazy.compute())
        out = np.empty(shape, np.int32)
        fastq.quantize_linear(x, scale, offset, "int32", out=out, **options)
        same_bytes(codes, out)
        for result in (None, "float32"):
            found = fastq.dequantize_linear(codes, scale, offset, dtype=result, **options)
            same_bytes(found, reference.dequantize_linear(codes, scale, offset, dtype=result, **options))


LAST = {("int32", "float32"): 2147483520, ("uint32", "float32"): 4294967040}  # of float32


@np.errstate(over="ignore")
def expected_of_nibabel(x, scale, offset, code):
    steps = np.rint((x - offset) / scale)
    first = np.iinfo(code).min
    last = LAST.get((code, steps.dtype.name), np.iinfo(code).max)
    return np.clip(steps, steps.dtype.type(first), steps.dtype.type(last)).astype(code)


@pytest.mark.parametrize("code", ["int32", "uint32"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1.0, 1 + 2.0**-23, 0.37, 2.0**-100, 2.0**99])
def test_codes_that_have_more_digits_than_values(dtype, scale, code):
    # contract 7.8
    rng, scale = np.random.default_rng(2), np.dtype(dtype).type(scale)
    ends = np.array([2147483392, 2147483519, 2147483520, 2147483583, 2147483584, 2147483647, 2**31, 8388608.5, 1e30])
    ends = np.append(ends, [2**31 + 128, 4294966784, 4294966912, 4294967039, 4294967040, 4294967168, 2**32 - 1, 2**32])
    near = np.concatenate([ends, -ends, LIMITS, rng.integers(-(2**31), 2**32, 4000), rng.integers(-99, 99, 4000) + 0.5])
    for offset in (0.0, -3.25):
        with np.errstate(over="ignore"):
            x = (near * np.float64(scale) + offset).astype(dtype)
        offset = scale.dtype.type(offset)
        options = {"dtype": code, "convention": "nibabel"}
        codes = fastq.quantize_linear(x, scale, offset, **options)
        same_bytes(codes, expected_of_nibabel(x, scale, offset, code))
        same_bytes(codes, reference.quantize_linear(x, scale, offset, **options))
        assert codes.max() == LAST.get((code, dtype), np.iinfo(code).max)
        values = fastq.dequantize_linear(codes, scale, offset, convention="nibabel")
        same_bytes(values, reference.dequantize_linear(codes, scale, offset, convention="nibabel"))
        with np.errstate(over="ignore"):
            same_bytes(values, codes.astype(dtype) * scale + offset)


@pytest.mark.slow("compiles 3 kernels a case", quick=lambda dtype, shape, axis: (dtype, axis) == ("float32", 0))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), GRANULARITIES)
def test_codes_of_uint32_in_every_layout(dtype, shape, axis, threads):
    """Rows, columns and the whole array, by one thread and two, of memory in both orders, and through dask."""
    # contract 7.8
    rng = np.random.default_rng(3)
    x = rng.uniform(-1e8, 5e9, shape).astype(dtype)
    parameters = () if axis is None else (shape[axis],)
    scale, offset = 0.7 + rng.random(parameters), rng.normal(size=parameters)
    options = {"dtype": "uint32", "axis": axis, "convention": "grib"}
    kept = [-1 if a == axis else 1 for a in range(len(shape))]
    steps = (x.astype(np.float64) - offset.reshape(kept)) / scale.reshape(kept)
    expected = np.clip(np.floor(steps + 0.5), 0, 2**32 - 1).astype(np.uint32)
    assert np.count_nonzero(expected > 2**31) > x.size / 10
    for count in (1, 2):
        threads(count)
        same_bytes(fastq.quantize_linear(x, scale, offset, **options), expected)
        in_columns = fastq.quantize_linear(np.asfortranarray(x), scale, offset, **options)
        same_bytes(np.ascontiguousarray(in_columns), expected)
    lazy = fastq.dask.quantize_linear(dask.array.from_array(x, chunks=40), scale, offset, **options)
    same_bytes(lazy.compute(), expected)
    same_bytes(reference.quantize_linear(x, scale, offset, **options), expected)


@pytest.mark.parametrize("api", [fastq, reference])
def test_what_has_no_such_codes(api):
    x = np.ones(3)
    with pytest.raises(ValueError, match="dtype must be one of int16, int32 for convention 'fits', not uint32"):
        api.quantize_linear(x, 1.0, None, "uint32", convention="fits")
    with pytest.raises(ValueError, match="must be 'nibabel' or 'grib' or 'cdo' for dtype uint32, not 'onnx'"):
        api.dequantize_linear(np.ones(3, np.uint32), 1.0)
    with pytest.raises(ValueError, match="must be 'nibabel' or 'cdo' or 'fits' for dtype int32, not 'onnx'"):
        api.quantize_linear(x, 1.0, None, "int32")
    with pytest.raises(TypeError, match="dtype must be one of the formats"):
        api.quantize(x, "int32", convention="fits")
    with pytest.raises(ValueError, match="rounding must be None for int32"):
        api.quantize_linear(x, 1.0, None, "int32", convention="fits", rounding="stochastic", rng=0)
