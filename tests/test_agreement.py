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


@pytest.mark.parametrize("convention", fastq.CONVENTIONS)
def test_ranges_near_the_largest_number(convention):
    """A scale that is infinite is refused, whose range the message tells; none but finite ones are returned."""
    refused = set()
    ends = [(-1, 1), (-1, -0.5), (0, 1), (-0.5, 0.5), (-0.6, 0.6), (-1e-3, 1)]
    for dtype, code, (lo, hi) in itertools.product(("float32", "float64"), ("uint8", "uint4", "uint1"), ends):
        x = (np.array([[lo, hi, 0]]) * np.finfo(dtype).max).astype(dtype)
        scale = both(lambda i, x=x, c=code: i.choose_qparams(x, c, convention=convention).scale)
        if isinstance(scale, type):
            refused.add((code, hi - lo))
            continue
        assert np.isfinite(scale)
    has = fastq.CONVENTIONS[convention].formats or ("uint8", "uint4")
    assert {width for code, width in refused if code in has} == ({2, 1.2, 1.001} if convention == "faiss" else set())


def test_the_message_tells_a_range_too_wide(threads):
    x = np.zeros((4, 300), np.float32)
    x[2, 299], x[2, 1] = 3e38, -2e38
    for impl, axis in itertools.product((fastq, reference), (None, 0, 1)):
        for operation in (impl.quantize, impl.fake_quantize, impl.choose_qparams):
            if axis == 1:  # no column has both
                operation(x, "uint8", convention="faiss", axis=axis)
                continue
            with pytest.raises(ValueError, match="x has a range too wide for a finite scale"):
                operation(x, "uint8", convention="faiss", axis=axis)
    with pytest.raises(ValueError, match=r"in -1\.99\d*e\+38\.\.3\.0\d*e\+38; clip x"):
        fastq.quantize(x, "uint8", convention="faiss")
    x[0, 0] = np.inf
    with pytest.raises(ValueError, match="x has 1 infinite values"):
        fastq.quantize(x, "uint8", convention="faiss")


@pytest.mark.parametrize("convention", ["faiss", "cf", "textbook"])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.bfloat16, np.float16, np.longdouble, bool, "U1"])
def test_zero_points_that_are_floats(convention, dtype):
    for shape in ((), (1,)):
        both(lambda i, s=shape: i.quantize_linear(X, 0.5, np.ones(s).astype(dtype), "uint8", convention=convention))
