"""Codes of int32, under parameters that are given: those of fastq are those of the reference, and of plain NumPy."""

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


@pytest.mark.parametrize("api", [fastq, reference])
def test_what_has_no_such_codes(api):
    x = np.ones(3)
    with pytest.raises(ValueError, match="convention must be 'fits' for dtype int32, not 'onnx'"):
        api.quantize_linear(x, 1.0, None, "int32")
    with pytest.raises(TypeError, match="dtype must be one of the formats"):
        api.quantize(x, "int32", convention="fits")
    with pytest.raises(ValueError, match="rounding must be None for int32"):
        api.quantize_linear(x, 1.0, None, "int32", convention="fits", rounding="stochastic", rng=0)
