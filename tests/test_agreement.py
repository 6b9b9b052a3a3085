"""What fast functions and reference take and refuse: the same."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference

X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
SMALL = ["int4", "uint4", "int2", "uint2"]


def both(call):
    """Results of fast and reference, of the same bits, or errors of the same type."""
    results = []
    for impl in (fastq, reference):
        try:
            results.append(call(impl))
        except (TypeError, ValueError) as error:
            results.append(type(error))
    if isinstance(results[1], type):
        assert results[0] is results[1]
    else:
        same_bytes(*results)
    return results[1]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("form", ["int8", "uint16", *SMALL, None, "float8_e4m3fn"])
def test_zero_points_of_small_integers_of_ml_dtypes(name, form):
    dtype = getattr(ml_dtypes, name)
    for value, each in itertools.product((0, 1), (False, True)):
        many, scale = np.full(4, value, dtype), np.full(4, 0.5, np.float32) if each else np.float32(0.5)
        for given in [many] if each else [dtype(value), many[:1], many[0, ...]]:
            quantized = both(lambda i, z=given, s=scale: i.quantize_linear(X, s, z, form))
            if form == "float8_e4m3fn":  # which has no zero point but 0
                assert (quantized is ValueError) == (value == 1)
                continue
            codes = np.arange(12).reshape(3, 4).astype(getattr(ml_dtypes, form or name, form)) & 1
            values = both(lambda i, c=codes, z=given, s=scale: i.dequantize_linear(c, s, z))
            same_bytes(values, (codes.astype(np.float32) - np.float32(value)) * np.float32(0.5))


@pytest.mark.parametrize("convention", ["faiss", "cf", "textbook"])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.bfloat16, np.float16, np.longdouble, bool, "U1"])
def test_zero_points_that_are_floats(convention, dtype):
    for shape in ((), (1,)):
        both(lambda i, s=shape: i.quantize_linear(X, 0.5, np.ones(s).astype(dtype), "uint8", convention=convention))
