"""What fast functions and reference take and refuse: the same."""

import itertools
import warnings
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes, same_quantized

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


@pytest.mark.slow("compiles kernels for each format", quick=lambda name, form: form == "int8")
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("form", ["int8", "uint16", *SMALL, None, "float8_e4m3fn"])
def test_zero_points_of_small_integers_of_ml_dtypes(name, form):
    dtype = getattr(ml_dtypes, name)
    for value, each in itertools.product((0, 1), (False, True)):
        many, scale = np.full(4, value, dtype), np.full(4, 0.5, np.float32) if each else np.float32(0.5)
        for given in [many] if each else [dtype(value), many[:1], many[0, ...]]:
            quantized = both(lambda i, z=given, s=scale: i.quantize_linear(X, s, z, form, axis=1))
            if form == "float8_e4m3fn":  # which has no zero point but 0
                assert (quantized is ValueError) == (value == 1)
                continue
            codes = np.arange(12).reshape(3, 4).astype(getattr(ml_dtypes, form or name, form)) & 1
            values = both(lambda i, c=codes, z=given, s=scale: i.dequantize_linear(c, s, z, axis=1))
            same_bytes(values, (codes.astype(np.float32) - np.float32(value)) * np.float32(0.5))


@pytest.mark.slow("compiles kernels for each convention", quick=lambda convention: convention in ("onnx", "faiss"))
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
    row = fastq.CONVENTIONS[convention]
    has = row.formats or ("uint8", "uint4")
    expected = {2, 1.2, 1.001} if convention == "faiss" else set()
    if row.stored_type == "float16" or row.scale_from == "inverse":
        expected = {hi - lo for lo, hi in ends}
    assert {width for code, width in refused if code in has} == expected


@pytest.mark.slow("compiles 3 kernels")
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


@pytest.mark.slow(
    "compiles a kernel a convention",
    quick=lambda convention, dtype: convention == "textbook" or dtype in (np.longdouble, bool, "U1"),
)
@pytest.mark.parametrize("convention", ["faiss", "cf", "textbook"])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.bfloat16, np.float16, np.longdouble, bool, "U1"])
def test_zero_points_that_are_floats(convention, dtype):
    for shape in ((), (1,)):
        both(lambda i, s=shape: i.quantize_linear(X, 0.5, np.ones(s).astype(dtype), "uint8", convention=convention))


def test_outputs_in_the_other_byte_order():
    """Of codes, values and blocks: bytes are swapped after they were computed."""
    codes, swapped = np.arange(12, dtype=np.int16).reshape(3, 4), np.dtype(np.float32).newbyteorder("S")
    for impl in (fastq, reference):
        out = np.empty(X.shape, swapped)
        assert impl.fake_quantize(X, "int8", out=out) is out
        same_bytes(out.astype(np.float32), reference.fake_quantize(X, "int8"))
        assert impl.dequantize_linear(codes, 0.5, out=out) is out
        np.testing.assert_array_equal(out, codes / 2)
        out = np.empty(X.shape, np.dtype(np.int16).newbyteorder("S"))
        assert impl.quantize_linear(X, 0.5, dtype="int16", out=out) is out
        np.testing.assert_array_equal(out, np.rint(X / 0.5))
        blocks, out = reference.gguf.quantize(np.arange(32.0), "Q8_0"), np.empty(32, swapped)
        assert impl.gguf.dequantize(blocks, "Q8_0", out=out) is out
        np.testing.assert_array_equal(out, reference.gguf.dequantize(blocks, "Q8_0"))


@pytest.mark.slow("compiles 16 kernels")
def test_a_degenerate_scale_that_is_the_value():
    """That of a constant array of either sign, by every row that has it, and 1 for an invalid scale."""
    tiny = np.float32(2.0**-125)
    plain = fastq.CONVENTIONS["textbook"]
    rows = [
        plain,
        replace(plain, includes_zero=True),
        replace(plain, symmetric_extreme="signed"),
        replace(plain, scale_floor=0.0),
    ]
    for row, symmetric in itertools.product(rows, (False, True)):
        for x in ([tiny], [-tiny], [tiny, tiny], [0.0], [-0.0], [tiny / 8]):
            x = np.array(x, np.float32)
            options = {"convention": row, "symmetric": symmetric}
            q, expected = (impl.quantize(x, "uint16", **options) for impl in (fastq, reference))
            same_quantized(q, expected)
            assert q.scale != 0
            if row is plain and symmetric and abs(x[0]) == tiny:
                assert q.scale == x[0]


@pytest.mark.parametrize("impl", [fastq, reference], ids=["fast", "reference"])
def test_rows_that_leave_fewer_than_two_codes(impl):
    reserving = replace(fastq.CONVENTIONS["onnx"], name="own", reserves_fill=True)
    halving = replace(fastq.CONVENTIONS["onnx"], name="own", reduce_range=True)
    in_blocks = replace(fastq.CONVENTIONS["onnx"], name="own", variants=(("blocks", "reserves_fill", True),))
    for row, options in ((reserving, {}), (halving, {}), (in_blocks, {"axis": 1, "block_size": 2})):
        for operation in (impl.quantize, impl.fake_quantize, impl.choose_qparams):
            with pytest.raises(ValueError, match=r"dtype must have two codes or more: .* leaves too few of uint1"):
                operation(X, "uint1", convention=row, **options)
    # what leaves two codes or more
    impl.choose_qparams(X, "uint2", convention=reserving)
    impl.choose_qparams(X, "uint1", convention=in_blocks, axis=0)


@pytest.mark.slow("compiles 10 kernels each")
@pytest.mark.parametrize("field", ["reserves_fill", "reduce_range", "narrow", "clamp"])
def test_variants_with_other_codes(field):
    """Of channels only: the codes that are used there, in ranges, in clamps and in counts of clipped elements."""
    value = {"narrow": (), "clamp": "format"}.get(field, True)
    base = replace(fastq.CONVENTIONS["onnx"], name="own", reduce_range=field == "clamp")
    row, everywhere = replace(base, variants=(("channels", field, value),)), replace(base, **{field: value})
    for symmetric, axis in itertools.product((False, True), (None, 0)):
        options = {"symmetric": symmetric, "axis": axis}
        like = base if axis is None else everywhere
        q, expected = (impl.quantize(X, "int8", convention=row, **options) for impl in (fastq, reference))
        same_quantized(q, expected)
        same_bytes(q.codes, fastq.quantize(X, "int8", convention=like, **options).codes)
        assert fastq.compare(X * 2, q).clipped == reference.compare(X * 2, q).clipped
        same_bytes(*(impl.quantize(X * 2, qparams=q.qparams).codes for impl in (fastq, reference)))


@pytest.mark.slow("compiles 4 kernels for each dtype")
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_signalling_nan_is_no_warning(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    x = np.ones(5, dtype)
    x.view(f"u{x.itemsize}")[2] = np.array([np.inf], dtype).view(f"u{x.itemsize}")[0] + 1
    good = np.ones(5, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for impl in (fastq, reference):
            for refused in (
                lambda impl=impl: impl.quantize(x, "int8"),
                lambda impl=impl: impl.quantize_linear(x, 1.0, dtype="float8_e5m2"),
                lambda impl=impl: impl.minmax(x),
                lambda impl=impl: impl.compare(x, good),
            ):
                with pytest.raises(ValueError, match="x has 1 NaN"):
                    refused()
            assert np.isnan(impl.compare(good, x).mse)


@pytest.mark.slow("compiles 4 kernels")
def test_scales_that_are_infinite_as_float32():
    """Rows that keep scales in float64 take them: values are infinite, or NaN where a code is that of 0.0."""
    codes = np.array([-1, 0, 1], np.int8)
    for convention in ("torch-pt2e", "tflite", "textbook"):
        actual, expected = (
            impl.dequantize_linear(codes, np.array(1e300), dtype="float32", convention=convention)
            for impl in (fastq, reference)
        )
        same_bytes(actual, expected)


@pytest.mark.parametrize("impl", [fastq, reference], ids=["fast", "reference"])
def test_messages_name_the_argument(impl):
    for call, match in (
        (lambda: impl.minmax(np.zeros((0, 3), np.float32)), "x has shape .* no elements"),
        (lambda: impl.gguf.quantize(np.full(32, 1e30, np.float32), "Q8_0"), "data has .*values too large"),
        (lambda: impl.quantize(X, qparams=fastq.QParams(1.0, 0, "int8", axis=2)), "axis"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
