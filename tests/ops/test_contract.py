"""The reference against independent truth: exact rational arithmetic and Python loops.

Every check takes the implementation as its first argument, so that it holds for any module with the public functions.
"""

import functools
import itertools
import math
import re
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from catalogue import FEW, LAYOUTS, PatchedNumPy, mixed, same_bytes
from fuzzing import exact
from hypothesis import given, settings
from hypothesis import strategies as st

import fastq
from fastq import reference
from fastq.formats.qtypes import QTYPES
from fastq.results import QParams, QuantizedArray

IMPLEMENTATIONS = [reference, fastq]
FTYPES = [np.float32, np.float64]
INTEGER_CODES = [name for name, qtype in QTYPES.items() if not (qtype.element or qtype.block_size)]
PACKED = [name for name in INTEGER_CODES if QTYPES[name].packed]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__, scope="session")
def impl(request):
    return request.param


def dequantized(impl, q, **options):
    return impl.dequantize(q, **options) if hasattr(impl, "dequantize") else q.dequantize(**options)


def assert_same(actual, expected):
    """Same dtype, shape and bits."""
    assert isinstance(actual, np.ndarray)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


def schemes(dtype):
    """Asymmetric and symmetric; a symmetric scheme of 1 bit has no codes except the middle."""
    return (False,) if QTYPES[dtype].bits == 1 else (False, True)


# Exact arithmetic, each operation rounded once

ONNX = fastq.CONVENTIONS["onnx"]
UNBOUNDED = -(2**1100), 2**1100  # beyond all float64 numbers


def exact_position(x, scale, zero_point, ftype):
    """The code of x before it is clamped, of an infinite one an end beyond all codes."""
    name = np.dtype(ftype).name
    x = exact.rounded(exact.number(x), name)
    return exact.integer_code(x, exact.number(scale), Fraction(int(zero_point)), ONNX, UNBOUNDED, name)


def exact_code(x, scale, zero_point, first, last, ftype):
    return int(exact.clamped(exact_position(x, scale, zero_point, ftype), first, last))


def exact_qparams(x, qtype, symmetric, ftype):
    name, row = np.dtype(ftype).name, ONNX.under(symmetric, "array")
    values = [exact.rounded(exact.number(v), name) for v in x.tolist()]
    codes = tuple(map(Fraction, row.parameter_range(qtype, symmetric)))
    scale, zero_point = exact.range_parameters(min(values), max(values), row, codes, symmetric, name)
    return float(scale), int(zero_point)


# Codes of fewer than 8 bits, bit by bit along the last axis


def bitwise_packed(codes, bits):
    packed = np.zeros((*codes.shape[:-1], math.ceil(codes.shape[-1] * bits / 8)), np.uint8)
    for index in np.ndindex(codes.shape):
        for bit in range(bits):
            position = index[-1] * bits + bit
            packed[(*index[:-1], position // 8)] |= (int(codes[index]) >> bit & 1) << position % 8
    return packed


def bitwise_unpacked(packed, qtype, shape):
    codes = np.zeros(shape or (1,), np.int64)
    for index in np.ndindex(codes.shape):
        positions = range(index[-1] * qtype.bits, (index[-1] + 1) * qtype.bits)
        bits = [int(packed[(*index[:-1], p // 8)]) >> p % 8 & 1 for p in positions]
        weights = [2**i for i in range(qtype.bits)]
        weights[-1] *= -1 if qtype.signed else 1
        codes[index] = sum(b * w for b, w in zip(bits, weights, strict=True))
    return codes.reshape(shape).astype(qtype.storage)


def one_each(codes, qtype, shape):
    """Stored codes as one per element, checking how they are stored."""
    if qtype.packed:
        assert codes.dtype == np.uint8
        return bitwise_unpacked(codes, qtype, shape)
    assert (codes.dtype, codes.shape) == (qtype.storage, shape)
    return codes


# Quantizing with given parameters


def scales(ftype):
    info = np.finfo(ftype)
    plain = [1, 0.1, 1 / 3, 0.0237, 0.00214854861, 2**-5, 77.7]
    extreme = [info.tiny, info.smallest_subnormal, 3 * info.smallest_subnormal, info.max, info.max / 1000]
    return [ftype(s) for s in plain + extreme]


def adversarial(scale, qtype, ftype, seed=0):
    """Ties, integers and their neighbours on and beyond the code range; zeros, subnormals, the largest, infinity."""
    info, reach = np.finfo(ftype), 2**qtype.bits + 3
    ks = np.unique(np.r_[-reach:reach] if reach < 32 else np.random.default_rng(seed).integers(-reach, reach, 40))
    with np.errstate(over="ignore", under="ignore"):
        centres = (np.r_[ks, ks + 0.5, qtype.qmin - 0.5, qtype.qmax + 0.5].astype(ftype) * scale).astype(ftype)
        near = [centres, np.nextafter(centres, ftype(np.inf)), np.nextafter(centres, ftype(-np.inf))]
    special = [0.0, info.smallest_subnormal, info.tiny, info.tiny / 2, 1.0, 2.0**24, 2.0**31, info.max, np.inf]
    return np.concatenate([*near, np.array(special, ftype), -np.array(special, ftype)])


@functools.cache
def exact_cases(dtype, ftype):
    """Scales, zero points and arrays, with the codes by exact arithmetic, which takes longer than all else."""
    qtype, cases = QTYPES[dtype], []
    zero_points = sorted({qtype.qmin, 0, min(1, qtype.qmax), qtype.qmax})
    for seed, (scale, zero_point) in enumerate(itertools.product(scales(ftype), zero_points)):
        x = adversarial(scale, qtype, ftype, seed)
        expected = [exact_code(v, float(scale), zero_point, qtype.qmin, qtype.qmax, ftype) for v in x.tolist()]
        cases.append((scale, zero_point, x, expected))
    return cases


def check_codes(impl, dtype, ftype):
    for scale, zero_point, x, expected in exact_cases(dtype, ftype):
        codes = one_each(impl.quantize_linear(x, scale, zero_point, dtype), QTYPES[dtype], x.shape)
        np.testing.assert_array_equal(codes, expected, err_msg=f"{scale=} {zero_point=}")


@pytest.mark.slow(
    "compiles kernels for each format and dtype",
    quick=lambda impl, dtype, ftype: ftype is np.float32 and dtype in FEW,
)
@pytest.mark.parametrize("ftype", FTYPES)
@pytest.mark.parametrize("dtype", INTEGER_CODES)
def test_codes_are_exact(impl, dtype, ftype):
    # contract 7.1
    check_codes(impl, dtype, ftype)


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl, width: impl is reference)
@pytest.mark.parametrize("width", [32, 64])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_codes_of_any_floats_are_exact(impl, width, data):
    ftype = FTYPES[width // 64]
    qtype = QTYPES[data.draw(st.sampled_from(["int8", "uint8", "int16", "uint16"]))]
    x = data.draw(st.lists(st.floats(width=width, allow_nan=False), max_size=8))
    scale = data.draw(st.floats(width=width, min_value=float(np.finfo(ftype).smallest_subnormal), allow_infinity=False))
    zero_point = data.draw(st.integers(qtype.qmin, qtype.qmax))
    expected = [exact_code(v, scale, zero_point, qtype.qmin, qtype.qmax, ftype) for v in x]
    codes = impl.quantize_linear(np.array(x, ftype), ftype(scale), zero_point, qtype)
    assert_same(codes, np.array(expected, qtype.storage))


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def integers(dtype, seed=0):
    info = np.iinfo(dtype)
    ends = [info.min, info.max, 0, 1, info.max // 2 + 1, info.max - 1]
    sample = np.random.default_rng(seed).integers(info.min, info.max, 50, dtype=dtype, endpoint=True)
    return np.concatenate([np.array(ends, dtype), sample, sample // dtype.type(64)])


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda impl, name: impl is reference or name == "int16")
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_input_is_first_rounded_to_the_compute_type(impl, name):
    # contract 1.1
    x = integers(np.dtype(name))
    ftype = np.float32 if x.itemsize <= 2 else np.float64
    for scale in (ftype(0.3), ftype(x.max()) / ftype(200)):
        codes = impl.quantize_linear(x, scale, 3, "int8")
        expected = [exact_code(v, float(scale), 3, -128, 127, ftype) for v in x.tolist()]
        np.testing.assert_array_equal(codes, expected)


def test_compute_type_follows_the_input_and_not_the_scale(impl):
    # contract 1.1
    x, scale = np.array([0.35, 0.25, 1.05]), 0.1
    expected = [
        exact_code(v, float(np.float32(scale)), 0, -128, 127, np.float32) for v in x.astype(np.float32).tolist()
    ]
    assert impl.quantize_linear(x.astype(np.float32), scale, dtype="int8").tolist() == expected
    expected = [exact_code(v, scale, 0, -128, 127, np.float64) for v in x.tolist()]
    assert impl.quantize_linear(x, scale, dtype="int8").tolist() == expected
    p = impl.choose_qparams(x, "int8")
    assert p.scale.dtype == np.float64
    assert impl.quantize(x.astype(np.float32), qparams=p).scale.dtype == np.float32


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl, dtype: impl is reference or dtype in FEW)
@pytest.mark.parametrize("dtype", INTEGER_CODES)
def test_given_qparams_clamp_to_their_own_code_range(impl, dtype):
    # contract 7.2
    qtype, x = QTYPES[dtype], np.array([-np.inf, -1e30, 0, 1e30, np.inf], np.float32)
    for symmetric in schemes(dtype):
        p = impl.choose_qparams(np.array([-1, 1], np.float32), dtype, symmetric=symmetric)
        first, last = qtype.qmin + (symmetric and 1), qtype.qmax
        codes = one_each(impl.quantize(x, qparams=p).codes, qtype, x.shape)
        assert codes.tolist() == [first, first, int(p.zero_point), last, last]
        codes = one_each(impl.quantize_linear(x, p.scale, p.zero_point, dtype), qtype, x.shape)
        assert codes.tolist() == [qtype.qmin, qtype.qmin, int(p.zero_point), last, last]


def test_code_format_defaults_to_that_of_zero_point_then_out_then_uint8(impl):
    x = np.array([-3, 3], np.float32)
    assert impl.quantize_linear(x, 1.0).dtype == np.uint8
    assert impl.quantize_linear(x, 1.0, 2).dtype == np.uint8
    assert impl.quantize_linear(x, 1.0, np.int16(2)).dtype == np.int16
    assert impl.quantize_linear(x, 1.0, np.array(2, ">i2")).tolist() == [-1, 5]
    assert impl.quantize_linear(x, 1.0, out=np.empty(2, np.int8)).dtype == np.int8
    assert impl.quantize_linear(x, 1.0, np.int64(2), out=np.empty(2, np.int8)).dtype == np.int8
    assert_same(impl.quantize_linear(x, 1.0, np.uint8(7), "int8"), np.array([4, 10], np.int8))


def test_one_element_scale_of_any_shape_is_for_the_whole_array(impl):
    # contract 14.3
    for shape in ((), (1,), (1, 1, 1)):
        for x in (np.float32(3), np.arange(4, dtype=np.float32), np.ones((2, 3), np.float32)):
            codes = impl.quantize_linear(x, np.full(shape, 0.5), np.full(shape, 1))
            assert_same(codes, np.asarray(np.asarray(x) * 2 + 1).astype(np.uint8))
            for zero_point in (np.full(shape, 1), 1, [1]):
                values = impl.dequantize_linear(codes, np.full(shape, 0.5), zero_point)
                assert_same(values, np.asarray(x, np.float64))


# Parameters from a range


def ranges(ftype, seed=0):
    info, rng = np.finfo(ftype), np.random.default_rng(seed)
    ends = [0.0, 1.0, 0.1, info.tiny, info.smallest_subnormal, info.max, info.max / 2, 255 * info.tiny, 3e-5]
    pairs = [(-a, b) for a in ends for b in ends] + [(0.5, 7), (-7, -0.5), (-0.0, -0.0), (0.3, 0.3)]
    spread = rng.standard_normal((60, 2)) * 10.0 ** rng.integers(-30, 30, (60, 1))
    return [np.array(pair, ftype) for pair in [*pairs, *spread]]


def check_qparams(impl, dtype, ftype, arrays):
    qtype = QTYPES[dtype]
    for x, symmetric in itertools.product(arrays, schemes(dtype)):
        p = impl.choose_qparams(x, dtype, symmetric=symmetric)
        scale, zero_point = exact_qparams(x, qtype, symmetric, ftype)
        assert_same(p.scale, np.array(scale, ftype))
        assert_same(p.zero_point, np.array(zero_point, qtype.storage))
        assert (p.dtype, p.axis, p.block_size, p.symmetric, p.convention) == (qtype, None, 0, symmetric, "onnx")


@pytest.mark.parametrize(
    ("scale", "zero_point", "dtype"),
    [
        (0.5, 3, "int8"),
        ([0.5], [3], np.int8),
        (np.float32(0.5), np.int8(3), "int8"),
        (np.array(0.5, np.float32), 3, QTYPES["int8"]),
    ],
    ids=["numbers", "lists", "scalars", "mixed"],
)
def test_qparams_made_by_hand(impl, scale, zero_point, dtype):
    x, codes = np.array([-1, 0.2, 0.3, 99], np.float32), np.array([1, 3, 4, 127], np.int8)
    p = QParams(scale, zero_point, dtype)
    assert p.dtype is QTYPES["int8"]
    assert all(isinstance(array, np.ndarray) for array in (p.scale, p.zero_point))
    q = impl.quantize(x, qparams=p)
    assert_same(q.codes, codes)
    assert dequantized(impl, q).tolist() == impl.fake_quantize(x, qparams=p).tolist() == [-1, 0, 0.5, 62]
    assert impl.compare(x, QuantizedArray(codes, p, x.shape)).max_abs_error == 37


def test_qparams_of_a_whole_number(impl):
    assert impl.quantize(X, qparams=QParams(2, 0, "int8")).codes.tolist() == impl.quantize_linear(X, 2, 0).tolist()


@pytest.mark.parametrize("given", [None, "0.5", [None], True], ids=str)
@pytest.mark.parametrize("name", ["scale", "zero_point"])
def test_qparams_that_are_no_numbers(name, given):
    with pytest.raises(TypeError, match=f"{name} must be an array of numbers, not"):
        QParams(**{"scale": 0.5, "zero_point": 0, "dtype": "int8", name: given})


def test_qparams_of_no_format():
    with pytest.raises(TypeError, match=r"dtype must be one of .*int1 to int8, .* not 'int9'"):
        QParams(0.5, 3, "int9")


@pytest.mark.slow(
    "compiles kernels for each format and dtype",
    quick=lambda impl, dtype, ftype: ftype is np.float32 and (impl is reference or dtype in FEW),
)
@pytest.mark.parametrize("ftype", FTYPES)
@pytest.mark.parametrize("dtype", INTEGER_CODES)
def test_qparams_are_exact(impl, dtype, ftype):
    # contract 1.4, 5.1 and 5.2
    check_qparams(impl, dtype, ftype, ranges(ftype))


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda impl, name: impl is reference)
@pytest.mark.parametrize("name", INTEGERS)
def test_qparams_of_integers_are_exact(impl, name):
    x = integers(np.dtype(name))
    arrays = [x, x[:1], x[1:2], x[2:3], x[3:5]]
    check_qparams(impl, "int8", np.float32 if x.itemsize <= 2 else np.float64, arrays)


@pytest.mark.slow(
    "compiles kernels for each format and dtype",
    quick=lambda impl, dtype, ftype: ftype is np.float32 and (impl is reference or dtype in FEW),
)
@pytest.mark.parametrize("ftype", FTYPES)
@pytest.mark.parametrize("dtype", INTEGER_CODES)
def test_quantize_uses_its_own_range(impl, dtype, ftype):
    qtype, x = QTYPES[dtype], np.random.default_rng(1).standard_normal(200).astype(ftype)
    for symmetric in schemes(dtype):
        scale, zero_point = exact_qparams(x, qtype, symmetric, ftype)
        q = impl.quantize(x, dtype, symmetric=symmetric)
        codes = [exact_code(v, scale, zero_point, *qtype.code_range(symmetric), ftype) for v in x.tolist()]
        np.testing.assert_array_equal(one_each(q.codes, qtype, x.shape), codes)
        assert (float(q.scale), int(q.zero_point), q.symmetric, q.shape) == (scale, zero_point, symmetric, x.shape)


def test_floating_point_errors_stay_inside(impl):
    x = np.array([3e38, -3e38, 1e-45, 0], np.float32)
    with np.errstate(all="raise"):
        for symmetric in (False, True):
            q = impl.quantize(x, "int8", symmetric=symmetric)
            dequantized(impl, q)
            impl.compare(x, q)
        impl.quantize_linear(x, 1e-30)
        impl.quantize_linear(x, 1e30)
        impl.dequantize_linear(np.array([200], np.uint8), np.float32(3e38))
        impl.dequantize_linear(np.array([200], np.uint8), np.float64(1e300), dtype=np.float32)


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl, dtype: impl is reference and dtype == "nvfp4")
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "nf4", "mxfp4", "nvfp4"])
def test_underflow_and_overflow_stay_inside(impl, dtype):
    # contract 5.1
    for x in (np.full(32, 1e-43, np.float32), np.array([3e38, -3e38, 1e-45, 0] * 8, np.float32)):
        with np.errstate(all="raise"):
            q = impl.quantize(x, dtype)
            dequantized(impl, q)
            impl.compare(x, q)
            impl.fake_quantize(x, dtype)
            impl.quantize(x, dtype, range="mse")
            if dtype == "int8":
                calibrator = impl.Calibrator(dtype)
                calibrator.update(x)
                for method in ("minmax", "percentile", "mse", "entropy"):
                    calibrator.qparams(method)


# Dequantizing


@pytest.mark.slow(
    "compiles kernels for each pair of dtypes",
    quick=lambda impl, name, ftype, out_type: (name, ftype) == ("int8", out_type),
)
@pytest.mark.parametrize("out_type", FTYPES)
@pytest.mark.parametrize("ftype", FTYPES)
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_values_are_exact(impl, name, ftype, out_type):
    # contract 7.3
    qtype = QTYPES[name]
    codes = np.unique(np.linspace(qtype.qmin, qtype.qmax, 200).astype(qtype.storage))
    for scale, zero_point in itertools.product(scales(ftype), (qtype.qmin, 0, 77, qtype.qmax)):
        names = np.dtype(ftype).name, np.dtype(out_type).name
        exact_values = [exact.rounded((c - zero_point) * Fraction(float(scale)), names[0]) for c in codes.tolist()]
        expected = np.array([float(exact.rounded(v, names[1])) for v in exact_values], out_type)
        values = impl.dequantize_linear(codes, scale, zero_point, dtype=out_type)
        # + 0.0, because a Fraction has no sign of zero
        assert_same(values + out_type(0), expected + out_type(0))
        q = QuantizedArray(codes, QParams(np.asarray(scale), np.array(zero_point, name), qtype), codes.shape)
        assert_same(dequantized(impl, q, dtype=out_type), values)


def test_dequantized_dtype_is_given_or_that_of_out_or_of_the_scale(impl):
    # contract 1.5
    codes = np.array([-3, 4], np.int8)
    for scale, expected in [(1, np.float32), (0.5, np.float32), (np.float64(0.5), np.float64), ([0.5], np.float32)]:
        assert impl.dequantize_linear(codes, scale).dtype == expected
    assert impl.dequantize_linear(codes, 0.5, dtype="float64").dtype == np.float64
    assert impl.dequantize_linear(codes, 0.5, out=np.empty(2)).dtype == np.float64
    assert impl.dequantize_linear(codes.astype(">i2"), np.array(0.5, ">f8")).dtype == np.dtype("=f8")


@pytest.mark.slow(
    "compiles kernels for each format and dtype",
    quick=lambda impl, dtype, x_type, size: impl is reference or (dtype in FEW and (x_type, size) == ("float32", 3)),
)
@pytest.mark.parametrize("dtype", INTEGER_CODES)
@pytest.mark.parametrize("x_type", ["float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("size", [3, 4])
def test_fake_quantize_is_quantize_and_dequantize(impl, dtype, x_type, size):
    # contract 7.4
    x = (np.random.default_rng(2).standard_normal((4, 6)) * 40).astype(x_type)
    ftype = np.float32 if x_type in ("float32", "int8") else np.float64
    for options in ({}, {"axis": 0}, {"axis": 1, "block_size": size, "symmetric": schemes(dtype)[-1]}):
        q = impl.quantize(x, dtype, **options)
        codes = one_each(q.codes, QTYPES[dtype], x.shape)
        expected = impl.dequantize_linear(codes, q.scale, q.zero_point, axis=q.axis, block_size=q.block_size)
        assert expected.dtype == ftype
        for values in (impl.fake_quantize(x, dtype, **options), impl.fake_quantize(x, qparams=q.qparams)):
            assert_same(values, expected)
        assert_same(dequantized(impl, q), expected)


# Granularity: each slice on its own


def slices(shape, axis, block_size):
    """The index of each parameter and the slice of the array that it belongs to."""
    whole = [slice(None)] * len(shape)
    if block_size:
        axis %= len(shape)
        counts = [math.ceil(n / block_size) if a == axis else n for a, n in enumerate(shape)]
        for index in np.ndindex(*counts):
            block = slice(index[axis] * block_size, (index[axis] + 1) * block_size)
            yield index, tuple(block if a == axis else i for a, i in enumerate(index))
        return
    kept = () if axis is None else sorted(a % len(shape) for a in np.atleast_1d(axis))
    for index in np.ndindex(*(shape[a] for a in kept)):
        where = list(whole)
        for a, i in zip(kept, index, strict=True):
            where[a] = i
        yield index, tuple(where)


GRANULARITIES = [
    *(((3, 5, 7), axis, 0) for axis in (None, 0, 1, 2, -1, -3, (0, 1), (1, 0), (2,), (-1, 0), (0, 1, 2), ())),
    *(((3, 5, 7), axis, block) for axis in (0, 1, -1) for block in (1, 2, 3, 4, 5, 7, 100)),
    *(((13,), axis, block) for axis in (0, -1) for block in (0, 4, 13, 14)),
    *(((2, 1, 3, 4), axis, block) for axis, block in ((1, 0), (1, 2), (2, 2), ((1, 3), 0))),
    ((), None, 0),
    ((), (), 0),
]


def granular_input(shape, dtype=np.float32):
    rng = np.random.default_rng(3)
    return (rng.standard_normal(shape) * 100.0 ** rng.uniform(-1, 1, shape) - 1).astype(dtype)


def check_granularity(impl, shape, axis, block_size, dtype="int8", symmetric=False):
    x, qtype = granular_input(shape), QTYPES[dtype]
    options = {"axis": axis, "block_size": block_size}
    p = impl.choose_qparams(x, dtype, symmetric=symmetric, **options)
    q = impl.quantize(x, dtype, symmetric=symmetric, **options)
    assert_same(q.scale, p.scale)
    assert_same(q.zero_point, p.zero_point)
    lo, hi = impl.minmax(x, **options)
    linear = impl.quantize_linear(x, p.scale, p.zero_point, dtype, **options)
    again = impl.quantize(x, qparams=p)
    codes, linear, again = (one_each(c, qtype, shape) for c in (q.codes, linear, again.codes))
    values = impl.dequantize_linear(codes, p.scale, p.zero_point, **options)
    indices = []
    for index, where in slices(shape, axis, block_size):
        part = x[where]
        own = impl.choose_qparams(part, dtype, symmetric=symmetric)
        assert (p.scale[index], p.zero_point[index]) == (own.scale, own.zero_point)
        assert (lo[index], hi[index]) == (part.min(), part.max())
        own_codes = impl.quantize_linear(part, own.scale, own.zero_point, dtype)
        np.testing.assert_array_equal(linear[where], one_each(own_codes, qtype, part.shape))
        np.testing.assert_array_equal(codes[where], one_each(impl.quantize(part, qparams=own).codes, qtype, part.shape))
        np.testing.assert_array_equal(again[where], codes[where])
        np.testing.assert_array_equal(
            values[where], impl.dequantize_linear(codes[where], own.scale, own.zero_point), strict=True
        )
        indices.append(index)
    assert {a.shape for a in (p.scale, p.zero_point, lo, hi)} == {tuple(np.max(indices, axis=0, initial=-1) + 1)}


@pytest.mark.parametrize(("shape", "axis", "block_size"), GRANULARITIES)
def test_each_slice_is_quantized_on_its_own(impl, shape, axis, block_size):
    # contract 3.1
    check_granularity(impl, shape, axis, block_size)
    check_granularity(impl, shape, axis, block_size, "uint8" if impl is reference else "int8", symmetric=True)


@pytest.mark.slow(
    "compiles kernels for each format",
    quick=lambda impl, dtype, axis, block_size: dtype in FEW or (impl is reference and block_size == 3),
)
@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize(("axis", "block_size"), [(None, 0), (0, 0), (-1, 0), (-1, 3), (0, 2), ((0, 2), 0)])
def test_each_slice_of_a_packed_format_is_quantized_on_its_own(impl, dtype, axis, block_size):
    check_granularity(impl, (3, 5, 7), axis, block_size, dtype)


def test_axis_and_block_size_are_kept(impl):
    # contract 3.1
    x = granular_input((2, 3, 4))
    q = impl.quantize(x, "int8", axis=np.int64(1), block_size=np.int32(2), symmetric=True)
    assert (q.axis, q.block_size, q.symmetric, q.convention, q.shape) == (1, 2, True, "onnx", (2, 3, 4))
    assert impl.choose_qparams(x, "int8", axis=(0, 2)).axis == (0, 2)


GIVEN = LAYOUTS | {"mixed": mixed, "nested list": lambda x: x.tolist(), "subclass": lambda x: x.view(np.memmap)}


@pytest.mark.slow(
    "compiles kernels for each dtype",
    quick=lambda impl, layout, dtype: impl is reference,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int64"])
@pytest.mark.parametrize("layout", GIVEN)
def test_layout_and_byte_order_do_not_matter(impl, layout, dtype):
    # contract 1.2
    x = GIVEN[layout](granular_input((3, 4, 5), dtype))
    plain = np.array(x, dtype=np.asarray(x).dtype.newbyteorder("="), order="C")
    for options in ({}, {"axis": 1}, {"axis": (0, 2)}, {"axis": -1, "block_size": 3}):
        for actual, expected in zip(impl.minmax(x, **options), impl.minmax(plain, **options), strict=True):
            assert_same(actual, expected)
        for code_dtype in ("int8", "uint4"):
            q, expected = (impl.quantize(a, code_dtype, **options) for a in (x, plain))
            assert_same(q.codes, expected.codes)
            assert_same(q.scale, expected.scale)
            assert_same(impl.fake_quantize(x, code_dtype, **options), impl.fake_quantize(plain, code_dtype, **options))
        assert impl.compare(x, q).clipped == impl.compare(plain, expected).clipped


def test_codes_have_the_memory_order_of_the_input(impl):
    x = granular_input((3, 4, 5))
    for a in (x, np.asfortranarray(x), x.transpose(1, 2, 0)):
        codes = impl.quantize(a, "int8", axis=0).codes
        assert codes.strides == tuple(s // x.itemsize for s in a.strides)


# NaN and empty input


def test_nan_is_counted_or_taken_as_zero(impl):
    # contract 14.1
    x = granular_input((3, 5, 7))
    x[0, 1, 2] = x[2, :, 6] = np.nan
    zeroed = np.nan_to_num(x)
    for options in ({}, {"axis": 1}, {"axis": 2, "block_size": 3}):
        for call in (impl.quantize, impl.choose_qparams, impl.fake_quantize):
            with pytest.raises(ValueError, match=r"x has 6 NaN"):
                call(x, "int8", **options)
        with pytest.raises(ValueError, match=r"x has 6 NaN"):
            impl.minmax(x, **options)
        q, expected = impl.quantize(x, "int8", nan="zero", **options), impl.quantize(zeroed, "int8", **options)
        assert_same(q.codes, expected.codes)
        assert_same(q.scale, expected.scale)
        assert_same(impl.choose_qparams(x, "int8", nan="zero", **options).zero_point, expected.zero_point)
        for actual, zero in zip(impl.minmax(x, nan="zero", **options), impl.minmax(zeroed, **options), strict=True):
            assert_same(actual, zero)
        fake = impl.fake_quantize(x, qparams=q.qparams, nan="zero")
        assert_same(fake, dequantized(impl, q))
    with pytest.raises(ValueError, match=r"x has 6 NaN"):
        impl.quantize_linear(x, 0.1)
    assert impl.quantize_linear([np.nan, 1], 0.5, 3, nan="zero").tolist() == [3, 5]


@pytest.mark.parametrize("dtype", ["int8", "uint4"])
def test_empty_input_with_given_parameters_is_empty(impl, dtype):
    # contract 14.6
    p = impl.choose_qparams(np.float32(1), dtype)
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 4)):
        x = np.empty(shape, np.float32)
        q = impl.quantize(x, qparams=p)
        assert (q.codes.size, q.shape, dequantized(impl, q).shape) == (0, shape, shape)
        assert impl.quantize_linear(x, 0.1).shape == shape
        assert impl.dequantize_linear(x.astype(np.int8), 0.1).shape == shape
        assert impl.fake_quantize(x, qparams=p).shape == shape


def test_no_ranges_is_not_a_range_of_nothing(impl):
    # contract 5.5
    x = np.empty((0, 3), np.float32)
    for options, shape in [({"axis": 0}, (0,)), ({"axis": (0, 1)}, (0, 3)), ({"axis": 1, "block_size": 2}, (0, 2))]:
        q = impl.quantize(x, "int8", **options)
        assert (q.scale.shape, q.zero_point.shape, q.codes.shape) == (shape, shape, (0, 3))
        assert [a.shape for a in impl.minmax(x, **options)] == [shape, shape]
    for options in ({}, {"axis": 1}):
        for call in (impl.minmax, lambda *a, **k: impl.choose_qparams(*a, "int8", **k)):
            with pytest.raises(ValueError, match=r"zero-size|empty|no elements"):
                call(x, **options)


# minmax


def numbers(name):
    ftype = np.float64 if name == "float64" else np.float32
    return integers(np.dtype(name)) if name in INTEGERS else adversarial(ftype(1), QTYPES["int8"], ftype)


def check_minmax(impl):
    for name in [*INTEGERS, "float32", "float64"]:
        x = numbers(name)
        for part in (x, x[:3], x[-3:]):
            zero = np.zeros((), name)
            for actual, expected in zip(impl.minmax(part), (min(part.tolist()), max(part.tolist())), strict=True):
                assert_same(actual, np.asarray(np.array(expected, name) + zero))


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda impl: impl is reference)
def test_minmax_is_that_of_python(impl):
    check_minmax(impl)


def test_minmax_of_infinities_and_zeros(impl):
    assert [a.item() for a in impl.minmax([-np.inf, 1, np.inf])] == [-np.inf, np.inf]
    for x in ([-0.0], [-0.0, 0.0], [0.0, -0.0], [[-0.0, 0.0]]):
        for extreme in impl.minmax(x):
            assert_same(extreme, np.zeros(()))
    lo, hi = impl.minmax(np.array([[-0.0, 1], [-1, -0.0]]), axis=1, block_size=1)
    assert not (np.signbit(lo) ^ (lo < 0)).any()
    assert not (np.signbit(hi) ^ (hi < 0)).any()


# compare


def exact_measures(x, approximation):
    x, approximation = ([float(v) for v in a.ravel().tolist()] for a in (x, approximation))
    errors = [abs(a - b) for a, b in zip(x, approximation, strict=True)]
    relative = [e / abs(v) for e, v in zip(errors, x, strict=True) if v != 0]
    signal, noise = math.fsum(v * v for v in x), math.fsum(e * e for e in errors)
    with np.errstate(divide="ignore", invalid="ignore"):
        sqnr = 10 * np.log10(np.float64(signal) / noise)
    return {
        "mse": noise / len(x),
        "sqnr_db": float(sqnr),
        "max_abs_error": max(errors),
        "mean_abs_error": math.fsum(errors) / len(x),
        "max_relative_error": max(relative, default=0.0),
        "mean_relative_error": math.fsum(relative) / len(relative) if relative else 0.0,
    }


def check_compare(impl):
    for dtype, name in itertools.product(["int8", "uint16", "int4"], ["float32", "float64", "int16", "int64"]):
        x = (granular_input((6, 50)) * 3).astype(name)
        x[0, :10] = 0
        for options in ({}, {"axis": 0}, {"axis": 1, "block_size": 7, "symmetric": True}):
            q = impl.quantize(x, dtype, **options)
            approximation = dequantized(impl, q)
            for other in (q, approximation):
                result = impl.compare(x, other)
                for measure, expected in exact_measures(x, approximation).items():
                    assert getattr(result, measure) == pytest.approx(expected, rel=1e-12), measure


@pytest.mark.slow("compiles kernels for each format and dtype", quick=lambda impl: impl is reference)
def test_measures_are_those_of_exact_sums(impl):
    # contract 16.1 and 16.2
    check_compare(impl)


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl, dtype: impl is reference)
@pytest.mark.parametrize("dtype", INTEGER_CODES)
def test_clipped_counts_what_lies_outside_the_code_range(impl, dtype):
    # contract 16.5
    qtype = QTYPES[dtype]
    for symmetric, ftype in itertools.product(schemes(dtype), FTYPES):
        p = impl.choose_qparams(np.array([-1, 2], ftype), dtype, symmetric=symmetric)
        scale, zero_point = float(p.scale), int(p.zero_point)
        first, last = qtype.code_range(symmetric)
        ks = np.array([first - 1, first - 0.5, first, last, last + 0.5, last + 1, last + 7]) - zero_point
        x = np.array([*(ks * scale), 1e30, -1e30, 0], ftype)
        positions = [exact_position(v, scale, zero_point, ftype) for v in x.tolist()]
        clipped = impl.compare(x, impl.quantize(x, qparams=p)).clipped
        assert clipped == sum(not first <= position <= last for position in positions)
        assert isinstance(clipped, int)


def test_compare_at_its_edges(impl):
    # contract 16.3
    x = np.array([0, 1, 2], np.float32)
    same = impl.compare(x, x)
    assert (same.mse, same.sqnr_db, same.max_abs_error, same.mean_relative_error) == (0, math.inf, 0, 0)
    assert same.clipped is None
    nothing = impl.compare(x * 0, x * 0)
    assert (nothing.sqnr_db, nothing.max_relative_error, nothing.mean_relative_error) == (math.inf, 0, 0)
    lost = impl.compare(x * 0, x)
    assert (lost.sqnr_db, lost.max_relative_error) == (-math.inf, 0)
    tiny = impl.compare(x * np.float64(1e-200), x * np.float64(2e-200))  # whose squares are 0
    assert (tiny.mse, tiny.max_abs_error) == (0, 2e-200)
    assert tiny.sqnr_db == pytest.approx(0, abs=1e-12)
    assert impl.compare(np.float32(3), np.float64(2)).mse == 1
    assert impl.compare(np.uint8([0]), np.float32([255])).max_abs_error == 255
    assert all(isinstance(getattr(lost, name), float) for name in ("mse", "sqnr_db", "max_abs_error"))


def exact_decibels(x, approximation):
    """The SQNR in decibels by fractions, whose logarithms are those of whole numbers."""
    x, approximation = (np.ravel(each).astype(np.float64).tolist() for each in (x, approximation))
    signal = sum(Fraction(v) ** 2 for v in x)
    noise = sum(Fraction(abs(v - w)) ** 2 for v, w in zip(x, approximation, strict=True))
    if not noise or not signal:
        return math.inf if not noise else -math.inf
    ratio = signal / noise
    return 10 * (math.log10(ratio.numerator) - math.log10(ratio.denominator))


TINY, HUGE = 5e-324, 1.7e308
BEYOND = {  # x and approximation
    "far errors beside lost squares": ([1e-200, 2e-200], [1e200, 2e-200]),
    "lost errors beside far squares": ([1e200, 1e-200], [1e200, 3e-200]),
    "the smallest error beside the largest number": ([HUGE, TINY], [HUGE, 0.0]),
    "the largest error beside the smallest number": ([TINY, TINY], [HUGE, 0.0]),
    "numbers with subnormal squares": ([3e-160, 1e-161], [2e-160, 0.0]),
    "squares of which some are lost": ([3e-156, 5e-162], [3e-156, 2e-162]),
    "sums beyond float64": ([1.2e154] * 9, [1.1e154] * 9),
    "errors alone beyond float64": ([1.0, 2.0], [1e160, 3e155]),
    "zeros with far errors": ([0.0, 0.0], [1e200, 0.0]),
    "far numbers without errors": ([1e200, 1e-200], [1e200, 1e-200]),
    "ordinary numbers": ([0.1, 3.0], [0.25, 2.5]),
}


@pytest.mark.parametrize("about", BEYOND)
def test_squares_that_float64_does_not_hold(impl, about):
    # contract 16.3
    x, approximation = map(np.array, BEYOND[about])
    expected = exact_decibels(x, approximation)
    for copies in (1, 100):
        found = impl.compare(np.repeat(x, copies), np.repeat(approximation, copies))
        assert found.sqnr_db == pytest.approx(expected, rel=1e-13, abs=1e-12)
        mse = sum(Fraction(abs(v - w)) ** 2 for v, w in zip(x.tolist(), approximation.tolist(), strict=True)) / x.size
        assert found.mse == pytest.approx(float(mse) if mse < HUGE else math.inf, rel=1e-13, abs=TINY)


def test_codes_with_errors_whose_squares_float64_does_not_hold(impl):
    # contract 16.3
    for scale, dtype in ((1e-200, np.float64), (1e200, np.float64), (3e-39, np.float32)):
        params = impl.choose_qparams(np.array([-scale, scale], dtype), "int4")
        x = (np.linspace(-0.3, 1.8, 30).reshape(5, 6) * scale).astype(dtype)
        q = impl.quantize(x, qparams=params)
        found = impl.compare(x, q)
        assert found.sqnr_db == pytest.approx(exact_decibels(x, dequantized(impl, q)), rel=1e-13, abs=1e-12)


def test_compare_with_errors_that_are_nan(impl):
    # contract 16.4
    measures = ("mse", "sqnr_db", "max_abs_error", "mean_abs_error", "max_relative_error", "mean_relative_error")
    x, approximation = np.array([1.0, 4, 2, 8]), np.array([1.5, math.nan, 1.75, 7])
    zero = np.array([1.0, 0, 2, 8])  # without a relative error where the approximation is NaN
    for order in ([0, 1, 2, 3], [1, 0, 2, 3], [3, 2, 0, 1]):  # NaN in the middle, first and last
        for dtype in (np.float32, np.float64):
            found = impl.compare(x[order].astype(dtype), approximation[order].astype(dtype))
            assert [name for name in measures if not math.isnan(getattr(found, name))] == []
            found = impl.compare(zero[order].astype(dtype), approximation[order].astype(dtype))
            assert [name for name in measures if not math.isnan(getattr(found, name))] == list(measures[4:])
            assert (found.max_relative_error, found.mean_relative_error) == (0.5, 0.25)
    found = impl.compare(x, np.array([1.5, math.inf, 1.75, 7]))
    assert (found.max_abs_error, found.max_relative_error, found.mse) == (math.inf, math.inf, math.inf)


# Packing


def check_packing(impl):
    rng = np.random.default_rng(4)
    for dtype, length in itertools.product(PACKED, (1, 2, 3, 4, 5, 8, 13)):
        qtype = QTYPES[dtype]
        for shape in ((length,), (3, length), (2, 1, length), (2, 0, length), (0, 0)):
            codes = rng.integers(qtype.qmin, qtype.qmax, shape, endpoint=True).astype(qtype.storage)
            packed = impl.pack(codes, dtype)
            assert_same(packed, bitwise_packed(codes, qtype.bits))
            assert_same(impl.unpack(packed, dtype, shape=shape), codes)
            assert_same(impl.pack(codes.astype(">i8"), dtype), packed)
            for axis in range(-len(shape), len(shape)):
                packed = impl.pack(codes, dtype, axis=axis)
                assert_same(packed, np.moveaxis(bitwise_packed(np.moveaxis(codes, axis, -1), qtype.bits), -1, axis))
                assert_same(impl.unpack(packed, dtype, shape=shape, axis=axis), codes)


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl: impl is reference)
def test_packing_is_that_of_a_bit_by_bit_loop(impl):
    # contract 1.9
    check_packing(impl)


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl, dtype: impl is reference or dtype in FEW)
@pytest.mark.parametrize("dtype", PACKED)
def test_every_byte_unpacks_to_codes_that_pack_to_it(impl, dtype):
    qtype, packed = QTYPES[dtype], np.tile(np.arange(256, dtype=np.uint8), 1 if 8 % QTYPES[dtype].bits == 0 else 105)
    shape = (packed.size * 8 // qtype.bits,)
    codes = impl.unpack(packed, dtype, shape=shape)
    assert_same(codes, bitwise_unpacked(packed, qtype, shape))
    assert sorted(set(codes.tolist())) == list(range(qtype.qmin, qtype.qmax + 1))
    assert_same(impl.pack(codes, dtype), packed)


def test_first_code_takes_the_low_bits_and_the_last_byte_is_padded_with_zeros(impl):
    # contract 1.9
    assert impl.pack([1, 2, 3], "uint4").tolist() == [0x21, 0x03]
    assert impl.pack([-1, -8, 7], "int4").tolist() == [0x8F, 0x07]
    assert impl.pack([1, 2, 3, 0, 3], "uint2").tolist() == [0b00111001, 0b11]
    assert impl.unpack(np.array([0x21, 0xF3], np.uint8), "uint4", shape=(3,)).tolist() == [1, 2, 3]


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl, dtype: impl is reference or dtype in FEW)
@pytest.mark.parametrize("dtype", PACKED)
def test_zero_dimensional_codes_take_one_byte(impl, dtype):
    code = QTYPES[dtype].qmax or QTYPES[dtype].qmin  # the one code of int1 that is not zero
    byte = np.array([code % 2 ** QTYPES[dtype].bits], np.uint8)
    assert_same(impl.pack(np.int64(code), dtype), byte)
    assert_same(impl.unpack(byte, dtype, shape=()), np.array(code, QTYPES[dtype].storage))
    q = impl.quantize(np.float32(0.7), dtype)
    assert (q.codes.shape, q.shape, q.ndim, q.size) == ((1,), (), 0, 1)
    assert_same(dequantized(impl, q), impl.fake_quantize(np.float32(0.7), dtype))


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl, dtype: impl is reference or dtype in FEW)
@pytest.mark.parametrize("dtype", INTEGER_CODES)
def test_zero_dimensions_in_and_out(impl, dtype):
    # contract 14.6
    x = np.float32(0.7)
    assert {a.shape for a in (*impl.minmax(x), impl.fake_quantize(x, dtype), impl.quantize(x, dtype).scale)} == {()}
    if dtype not in PACKED:
        codes = impl.quantize_linear(x, 0.1, dtype=dtype)
        assert_same(codes, np.array(7, dtype))
        assert_same(impl.dequantize_linear(codes, np.float32(0.5)), np.array(3.5, np.float32))


# out=


@pytest.mark.slow("compiles kernels for each format", quick=lambda impl, dtype: impl is reference or dtype in FEW)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int4"])
def test_out_takes_the_result_and_is_returned(impl, dtype):
    x = granular_input((4, 6))
    q = impl.quantize(x, dtype, axis=0)
    linear = {"scale": q.scale, "zero_point": q.zero_point, "axis": 0}
    plain = one_each(q.codes, QTYPES[dtype], x.shape)
    calls = [
        (q.codes, lambda out: impl.quantize(x, dtype, axis=0, out=out).codes),
        (q.codes, lambda out: impl.quantize(x, qparams=q.qparams, out=out).codes),
        (q.codes, lambda out: impl.quantize_linear(x, dtype=dtype, out=out, **linear)),
        (dequantized(impl, q), lambda out: dequantized(impl, q, out=out)),
        (dequantized(impl, q, dtype=np.float64), lambda out: dequantized(impl, q, out=out)),
        (dequantized(impl, q), lambda out: impl.dequantize_linear(plain, out=out, **linear)),
        (dequantized(impl, q), lambda out: impl.fake_quantize(x, dtype, axis=0, out=out)),
    ]
    for expected, call in calls:
        rows, columns = expected.shape
        strided = np.empty((rows, 2 * columns), expected.dtype)[::-1, ::2]
        for out in (np.empty_like(expected), np.empty_like(expected, order="F"), strided):
            assert call(out) is out
            assert_same(out, expected)


def test_out_may_overlap_the_input(impl):
    # contract 14.5
    memory = np.concatenate([granular_input((64,)), np.zeros(4, np.float32)])
    x = memory[:64].copy()
    for out in (memory[:64], memory[4:], memory[:64][::-1]):
        memory[:64] = x
        impl.fake_quantize(memory[:64], "int8", out=out)
        assert_same(out, impl.fake_quantize(x, "int8"))
    memory[:64] = x
    out = memory.view(np.int8)[1:65]
    impl.quantize_linear(memory[:64], 0.1, dtype="int8", out=out)
    assert_same(out, impl.quantize_linear(x, 0.1, dtype="int8"))


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": -1, "block_size": 16}, {"given": True}])
@pytest.mark.parametrize(("value", "message"), [(np.nan, "x has 2 NaN"), (np.inf, "x has (2 )?infinite values")])
def test_what_is_refused_is_counted_in_the_input_though_it_was_written_over(impl, options, value, message):
    wrong = granular_input((4, 32))
    if "given" in options:
        options, message = {"qparams": impl.choose_qparams(wrong, "int8")}, "x has 2 NaN"
        value = np.nan  # infinities saturate
    else:
        options = {"dtype": "int8"} | options
    wrong[1, 3] = wrong[2, 5] = value
    for reverse in (1, -1):
        x = wrong.copy()
        with pytest.raises(ValueError, match=f"^{message}"):
            impl.fake_quantize(x, **options, out=x[::reverse])


def test_what_gguf_refuses_is_found_in_the_input_though_it_was_written_over():
    x = np.ones((2, 64), np.float32)
    x[1, 40] = np.nan
    memory = x.view(np.uint8)[:, :68]
    with pytest.raises(ValueError, match=r"^row 1 of data has NaN or infinity in elements 32\.\.63$"):
        fastq.gguf.quantize(x, "Q8_0", out=memory)


IN_PLACE = {
    "C": lambda x: x.copy("C"),
    "Fortran": lambda x: x.copy("F"),
    "permuted": lambda x: x.transpose(1, 2, 0).copy().transpose(2, 0, 1),
    "reversed": lambda x: x[::-1, :, ::-1].copy()[::-1, :, ::-1],
    "gaps": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 2)[::2, :, ::3],
    "gaps, transposed": lambda x: np.repeat(x.transpose(2, 1, 0), 2, 2).transpose(2, 1, 0)[::2],
    "swapped": lambda x: x.astype(x.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", IN_PLACE)
def test_out_may_be_the_input_in_any_layout(impl, layout):
    x = granular_input((6, 70, 65))
    for axis in (None, 0, 2):
        for options in ({"dtype": "int8", "axis": axis}, {"qparams": impl.choose_qparams(x, "int8", axis=axis)}):
            expected = impl.fake_quantize(x, **options)
            out = IN_PLACE[layout](x)
            assert impl.fake_quantize(out, **options, out=out) is out
            assert_same(out.astype(np.float32), expected)


def test_zero_dimensional_out(impl):
    out = np.empty((), np.int8)
    assert impl.quantize(np.float32(1), "int8", out=out).codes is out
    assert out == 127
    assert impl.quantize_linear(np.float32(1), 0.1, out=out) is out
    assert out == 10
    qparams = fastq.QParams(np.float32(0.25), np.int8(0), "int8")
    assert impl.quantize(np.float32(1), qparams=qparams, out=out).codes is out
    assert out == 4


# Errors

X = np.arange(12, dtype=np.float32).reshape(3, 4)
CODES = X.astype(np.int8)
P = QParams(np.array(0.1, np.float32), np.array(0, np.int8), QTYPES["int8"])
P3 = QParams(np.ones(3, np.float32), np.zeros(3, np.int8), QTYPES["int8"], axis=1)
MXFP4 = QTYPES["mxfp4"]
IN_FLOAT32 = QParams(np.ones((3, 1), np.float32), np.zeros((3, 1), MXFP4.storage), MXFP4, axis=1, block_size=32)
Q = QuantizedArray(CODES, P, CODES.shape)
AXIS_ERROR = np.exceptions.AxisError

OPTIONED = {
    "quantize": lambda impl, **k: impl.quantize(X, "int8", **k),
    "choose_qparams": lambda impl, **k: impl.choose_qparams(X, "int8", **k),
    "fake_quantize": lambda impl, **k: impl.fake_quantize(X, "int8", **k),
    "minmax": lambda impl, **k: impl.minmax(X, **k),
    "quantize_linear": lambda impl, **k: impl.quantize_linear(X, [0.1, 0.2, 0.3], **({"axis": 0} | k)),
    "dequantize_linear": lambda impl, **k: impl.dequantize_linear(CODES, [0.1, 0.2, 0.3], **({"axis": 0} | k)),
}
BAD_GRANULARITY = [
    ({"axis": 2}, AXIS_ERROR, "axis 2"),
    ({"axis": -3}, AXIS_ERROR, "axis -3"),
    ({"axis": (0, 5)}, AXIS_ERROR, "axis 5"),
    ({"axis": (0, 0)}, ValueError, "axis must name each axis once"),
    ({"axis": (1, -1)}, ValueError, "axis must name each axis once"),
    ({"axis": 1.0}, TypeError, "axis must be an int"),
    ({"axis": True}, TypeError, "axis must be an int.*, not True"),
    ({"axis": "0"}, TypeError, "axis must be an int, a tuple of int or None, not '0'"),
    ({"axis": [0]}, TypeError, "axis must be an int"),
    ({"axis": (0, 1.0)}, TypeError, "axis must be an int"),
    ({"axis": (False,)}, TypeError, "axis must be an int"),
    ({"axis": 2, "block_size": 2}, AXIS_ERROR, "axis 2"),
    ({"axis": None, "block_size": 2}, TypeError, "block_size=2 needs axis"),
    ({"axis": (0, 1), "block_size": 2}, TypeError, "block_size"),
    ({"axis": (0,), "block_size": 2}, TypeError, "block_size"),
    ({"axis": 0, "block_size": -1}, ValueError, "block_size must be 0"),
    ({"axis": 0, "block_size": 2.0}, TypeError, "block_size"),
    ({"axis": 0, "block_size": True}, TypeError, "block_size"),
    ({"axis": 0, "block_size": None}, TypeError, "block_size"),
    ({"axis": 0, "block_size": "2"}, TypeError, "block_size"),
]


@pytest.mark.parametrize(("options", "error", "match"), BAD_GRANULARITY, ids=str)
@pytest.mark.parametrize("function", OPTIONED)
def test_wrong_axis_or_block_size(impl, function, options, error, match):
    # contract 14.4
    with pytest.raises(error, match=match):
        OPTIONED[function](impl, **options)


@pytest.mark.parametrize("function", sorted(set(OPTIONED) - {"dequantize_linear"}))
def test_wrong_nan(impl, function):
    for nan in ("ignore", "", None, True):
        with pytest.raises(ValueError, match="nan"):
            OPTIONED[function](impl, nan=nan)


@pytest.mark.parametrize("function", sorted(set(OPTIONED) - {"dequantize_linear", "minmax"}))
def test_wrong_convention(impl, function):
    with pytest.raises(ValueError, match="convention"):
        OPTIONED[function](impl, convention="excel")


@pytest.mark.parametrize("function", sorted(OPTIONED))
def test_options_are_keyword_only(impl, function):
    call = getattr(impl, function)
    positional = {"quantize_linear": 4, "dequantize_linear": 3, "minmax": 1}.get(function, 2)
    with pytest.raises(TypeError, match="positional"):
        call(*[X] * (positional + 1))


BAD_INPUTS = {
    "bool": np.ones(3, bool),
    "complex64": np.ones(3, np.complex64),
    "complex128": [1j],
    "object": np.array([1, None], object),
    "<U1": ["a"],
    "S1": np.array([b"a"]),
    "datetime64": np.array(["2020"], "M8[Y]"),
    "timedelta64": np.array([1], "m8[s]"),
    r"\[\('a'": np.zeros(2, [("a", "f4")]),
    np.dtype(np.longdouble).name: np.ones(3, np.longdouble),
    "masked": np.ma.masked_array([1.0, 2], [0, 1]),
}
TAKES_INPUT = {
    "quantize": lambda impl, x: impl.quantize(x, "int8"),
    "quantize qparams": lambda impl, x: impl.quantize(x, qparams=P),
    "choose_qparams": lambda impl, x: impl.choose_qparams(x, "int8"),
    "quantize_linear": lambda impl, x: impl.quantize_linear(x, 0.1),
    "fake_quantize": lambda impl, x: impl.fake_quantize(x, "int8"),
    "minmax": lambda impl, x: impl.minmax(x),
    "compare": lambda impl, x: impl.compare(x, X),
    "compare with": lambda impl, x: impl.compare(np.ones(np.shape(x), np.float32), x),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
@pytest.mark.parametrize("function", TAKES_INPUT)
def test_wrong_input_dtype(impl, function, name):
    # contract 1.3
    with pytest.raises(TypeError, match=name):
        TAKES_INPUT[function](impl, BAD_INPUTS[name])


TAKES_CODES = {
    "codes": lambda impl, a: impl.dequantize_linear(a, 0.1),
    "codes to pack": lambda impl, a: impl.pack(a, "int4"),
    "packed": lambda impl, a: impl.unpack(a, "int4", shape=(6,)),
    "scale": lambda impl, a: impl.quantize_linear(np.ones((len(a), 4), np.float32), a, axis=0),
    "scale of codes": lambda impl, a: impl.dequantize_linear(np.ones((len(a), 4), np.int8), a, axis=0),
    "zero_point": lambda impl, a: impl.quantize_linear(np.ones((len(a), 4)), np.ones(len(a)), a, "uint8", axis=0),
    "zero_point of codes": lambda impl, a: impl.dequantize_linear(
        np.ones((len(a), 4), np.int8), np.ones(len(a)), a, axis=0
    ),
}
MASKED = {"scale": np.float32, "packed": np.uint8}


@pytest.mark.parametrize("name", BAD_INPUTS)
@pytest.mark.parametrize("function", TAKES_CODES)
def test_wrong_dtype_of_codes_or_parameters(impl, function, name):
    argument, array = function.split()[0], BAD_INPUTS[name]
    if name == "masked":
        array = array.astype(MASKED.get(argument, np.int8))
    with pytest.raises(TypeError, match=argument):
        TAKES_CODES[function](impl, array)


NO_ERROR = r"^x has 2 NaN, whose errors cannot be measured; leave them out of both arrays, as x\[~np\.isnan\(x\)\]$"
ERRORS = [
    # dtype and qparams
    (lambda i: i.quantize(X, "int9"), TypeError, "dtype .*int9"),
    (lambda i: i.quantize(X, np.float32), TypeError, "dtype .*float32"),
    (lambda i: i.quantize(X, 8), TypeError, "dtype .*8"),
    (lambda i: i.choose_qparams(X, "float8"), TypeError, "dtype .*float8"),
    (lambda i: i.fake_quantize(X, np.int32), TypeError, "dtype .*int32"),
    (lambda i: i.quantize_linear(X, 0.1, dtype="int64"), TypeError, "dtype .*int64"),
    (lambda i: i.quantize(X), TypeError, "qparams"),
    (lambda i: i.fake_quantize(X), TypeError, "qparams"),
    (lambda i: i.quantize(X, "int8", qparams=P), TypeError, "qparams"),
    (lambda i: i.fake_quantize(X, "int8", qparams=P), TypeError, "qparams"),
    (lambda i: i.quantize(X, qparams=(0.1, 0)), TypeError, "qparams"),
    (lambda i: i.quantize(X, qparams=P, axis=0), TypeError, "axis"),
    (lambda i: i.quantize(X, qparams=P, block_size=2), TypeError, "block_size"),
    (lambda i: i.quantize(X, qparams=P, symmetric=True), TypeError, "symmetric"),
    (lambda i: i.quantize(X, qparams=P, convention="torch"), TypeError, "convention"),
    (lambda i: i.fake_quantize(X, qparams=P, axis=0), TypeError, "axis"),
    (lambda i: i.quantize(X, qparams=P3), ValueError, r"scale .*\(3,\).*\(4,\)"),
    (lambda i: i.fake_quantize(X, qparams=P3), ValueError, r"scale .*\(3,\).*\(4,\)"),
    (lambda i: i.quantize(X, qparams=IN_FLOAT32), TypeError, "scale must be float8_e8m0fnu for mxfp4, not float32"),
    (lambda i: i.quantize(X, qparams=replace(P, scale=np.array(0.0))), ValueError, r"scale .*\b1\b"),
    (lambda i: i.quantize(X, qparams=replace(P, scale=np.array(1e-50))), ValueError, r"scale .*\b1\b"),
    (lambda i: i.quantize(X, qparams=replace(P, zero_point=np.array(128))), ValueError, "zero_point"),
    # scale
    (lambda i: i.quantize_linear(X, 0.0), ValueError, r"scale .*\b1\b.*0\.0"),
    (lambda i: i.quantize_linear(X, -1), ValueError, r"scale .*\b1\b.*-1"),
    (lambda i: i.quantize_linear(X, np.nan), ValueError, r"scale .*\b1\b.*nan"),
    (lambda i: i.quantize_linear(X, [1, np.inf, -2, 1]), ValueError, r"scale .*\b2\b.*inf"),
    (lambda i: i.quantize_linear(X, 1e-50), ValueError, r"scale .*\b1\b"),
    (lambda i: i.quantize_linear(X, 1e50), ValueError, r"scale .*\b1\b"),
    (lambda i: i.dequantize_linear(CODES, 1e50), ValueError, r"scale .*\b1\b"),
    (lambda i: i.dequantize_linear(CODES, [0.0, -1.0, np.nan], axis=0), ValueError, r"scale .*\b2\b"),
    (lambda i: i.quantize_linear(X, [1.0, 2, 3], axis=1), ValueError, r"scale .*\(3,\).*\(4,\)"),
    (lambda i: i.quantize_linear(X, [1.0, 2, 3], axis=None), ValueError, r"scale .*\(3,\).*pass axis=0, of length 3"),
    (lambda i: i.quantize_linear(X, np.ones((3, 1, 1, 4)), axis=1), ValueError, r"scale .*\(3, 1, 1, 4\).*\(4,\)"),
    (lambda i: i.quantize_linear(X, np.ones(4), axis=(0, 1)), ValueError, r"scale .*\(4,\).*\(3, 4\)"),
    (lambda i: i.quantize_linear(X, np.ones((3, 3)), axis=1, block_size=2), ValueError, r"scale .*\(3, 3\).*\(3, 2\)"),
    (lambda i: i.dequantize_linear(CODES, [1.0, 2, 3], axis=1), ValueError, r"scale .*\(3,\).*\(4,\)"),
    (
        lambda i: i.dequantize_linear(CODES, np.ones((2, 4)), axis=1, block_size=2),
        ValueError,
        r"scale .*\(2, 4\).*\(3, 2\)",
    ),
    (lambda i: i.dequantize_linear(CODES, np.longdouble(1)), TypeError, "scale .*(float|longdouble)"),
    (lambda i: i.dequantize_linear(CODES, np.int64(1)), TypeError, "scale .*int64"),
    (lambda i: i.dequantize_linear(CODES, True), TypeError, "scale .*bool"),
    (lambda i: i.dequantize_linear(CODES, "1"), TypeError, "scale"),
    # zero_point
    (lambda i: i.quantize_linear(X, 0.1, 1.0), TypeError, "zero_point .*float64"),
    (lambda i: i.quantize_linear(X, 0.1, nan=[]), ValueError, "nan must be"),
    (lambda i: i.quantize_linear(X, 0.1, True), TypeError, "zero_point .*bool"),
    (lambda i: i.quantize_linear(X, 0.1, 256), ValueError, "zero_point"),
    (lambda i: i.quantize_linear(X, 0.1, -1), ValueError, "zero_point"),
    (lambda i: i.quantize_linear(X, 0.1, np.uint8(128), "int8"), ValueError, "zero_point"),
    (lambda i: i.quantize_linear(X, 0.1, np.uint64(2**64 - 1), "int8"), ValueError, "zero_point"),
    (lambda i: i.quantize_linear(X, 0.1, 8, "int4"), ValueError, "zero_point"),
    (lambda i: i.quantize_linear(X, np.ones(4), [0, 0, 0, 300]), ValueError, "zero_point"),
    (lambda i: i.quantize_linear(X, np.ones(4), [0]), ValueError, r"zero_point .*\(1,\).*\(4,\)"),
    (lambda i: i.quantize_linear(X, np.ones(4), [1, 2, 3]), ValueError, r"zero_point .*\(3,\).*\(4,\)"),
    (lambda i: i.dequantize_linear(CODES, 0.1, 1.0), TypeError, "zero_point"),
    (lambda i: i.dequantize_linear(CODES, 0.1, 128), ValueError, "zero_point"),
    (lambda i: i.dequantize_linear(CODES, np.ones(4), [0]), ValueError, r"zero_point .*\(1,\).*\(4,\)"),
    # codes and the output dtype
    (lambda i: i.dequantize_linear(X, 0.1), TypeError, "codes .*float32"),
    (lambda i: i.dequantize_linear(CODES.astype(np.int64), 0.1), TypeError, "codes .*int64"),
    (lambda i: i.dequantize_linear(CODES.astype(np.int32), 0.1, 1), ValueError, "zero_point must be 0 for int32"),
    (lambda i: i.quantize_linear(X, 0.1, dtype="int64"), TypeError, "dtype must be one of the formats"),
    (
        lambda i: i.quantize_linear(X, 0.1, dtype="int32"),
        ValueError,
        "must be 'nibabel' or 'cdo' or 'fits' for dtype int32",
    ),
    (lambda i: i.quantize_linear(X, np.int64(2)), TypeError, "scale must be .*int32, not int64"),
    (
        lambda i: i.quantize_linear(X, np.ones(3), axis=1),
        ValueError,
        r"axis=1 needs \(4,\); pass axis=0, of length 3 in x, of shape \(3, 4\)",
    ),
    (lambda i: i.dequantize_linear([1, 2], 0.1), TypeError, "codes .*int64"),
    (lambda i: i.dequantize_linear(CODES, 0.1, dtype=np.longdouble), TypeError, "dtype .*(float|longdouble)"),
    (lambda i: i.dequantize_linear(CODES, 0.1, dtype=np.int8), TypeError, "dtype .*int8"),
    (lambda i: dequantized(i, Q, dtype=np.int32), TypeError, "dtype .*int32"),
    # ranges
    (lambda i: i.quantize(np.float32([1, np.inf]), "int8"), ValueError, "x .*inf"),
    (lambda i: i.choose_qparams(np.float32([-np.inf, 0]), "int8"), ValueError, "x .*inf"),
    (lambda i: i.fake_quantize(np.float32([[1, 2], [np.inf, 0]]), "int8", axis=0), ValueError, "x .*inf"),
    # compare
    (lambda i: i.compare(X, X[:2]), ValueError, r"\(3, 4\).*\(2, 4\)"),
    (lambda i: i.compare(X[0], Q), ValueError, r"\(4,\).*\(3, 4\)"),
    (lambda i: i.compare([np.nan, 1, np.nan], np.ones(3)), ValueError, NO_ERROR),
    (lambda i: i.compare([[np.nan] * 4] * 3, Q), ValueError, NO_ERROR.replace(" 2 ", " 12 ")),
    (lambda i: i.compare(np.empty((0, 3)), np.empty((0, 3))), ValueError, "x"),
    # the first of two wrong arguments
    (lambda i: i.minmax(np.ones(3), axis=1.5, block_size=-1), TypeError, "axis must be an int"),
    (lambda i: i.quantize_linear(X, -1.0, 0, "float6_e3m2fn", convention="tflite"), ValueError, "convention must be"),
    # pack and unpack
    (lambda i: i.pack([1], "int8"), TypeError, "dtype .*int8"),
    (lambda i: i.pack([1], "int9"), TypeError, "dtype .*int9"),
    (lambda i: i.pack([8], "int4"), ValueError, "codes"),
    (lambda i: i.pack([-1], "uint2"), ValueError, "codes"),
    (lambda i: i.pack(np.uint64([2**63]), "uint4"), ValueError, "codes"),
    (lambda i: i.pack(CODES.astype(float), "int4"), TypeError, "codes .*float64"),
    (lambda i: i.pack([[1]], "int4", axis=2), AXIS_ERROR, "axis 2"),
    (lambda i: i.pack([1], "int4", axis=0.0), TypeError, "axis must be an int"),
    (lambda i: i.pack([1], "int4", axis=None), TypeError, "axis must be an int"),
    (lambda i: i.pack([1], "int4", axis=True), TypeError, "axis must be an int"),
    (lambda i: i.unpack(CODES, "int4", shape=(3, 8)), TypeError, "packed .*int8"),
    (lambda i: i.unpack(np.uint8([1]), "uint8", shape=(1,)), TypeError, "dtype .*uint8"),
    (lambda i: i.unpack(np.uint8([1]), "uint4", shape=(3,)), ValueError, r"packed .*\(1,\).*\(3,\)"),
    (lambda i: i.unpack(np.uint8([[1]]), "uint4", shape=(2,)), ValueError, r"packed .*\(1, 1\).*\(2,\)"),
    (lambda i: i.unpack(np.uint8([]), "uint4", shape=(-1,)), ValueError, "shape must not have negative"),
    (lambda i: i.unpack(np.uint8([1]), "uint4", shape=(2,), axis=1), AXIS_ERROR, "axis 1"),
    (lambda i: i.unpack(np.uint8([1]), "uint4", shape=(2,), axis=None), TypeError, "axis must be an int"),
]


@pytest.mark.parametrize(("call", "error", "match"), ERRORS)
def test_wrong_argument(impl, call, error, match):
    with pytest.raises(error, match=match):
        call(impl)


def test_dequantize_takes_a_quantized_array_alone():
    with pytest.raises(TypeError, match="q must be a QuantizedArray, not ndarray"):
        reference.dequantize(CODES)


WRITERS = {
    "quantize": (np.int8, lambda impl, out: impl.quantize(X, "int8", out=out)),
    "quantize qparams": (np.int8, lambda impl, out: impl.quantize(X, qparams=P, out=out)),
    "quantize_linear": (np.int8, lambda impl, out: impl.quantize_linear(X, 0.1, dtype="int8", out=out)),
    "dequantize_linear": (np.float32, lambda impl, out: impl.dequantize_linear(CODES, 0.1, out=out)),
    "dequantize": (np.float32, lambda impl, out: dequantized(impl, Q, out=out)),
    "fake_quantize": (np.float32, lambda impl, out: impl.fake_quantize(X, "int8", out=out)),
}


@pytest.mark.parametrize("function", WRITERS)
def test_wrong_out(impl, function):
    # contract 14.5
    dtype, call = WRITERS[function]
    read_only = np.empty(X.shape, dtype)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        call(impl, read_only)
    for shape in ((4, 3), (12,), (3, 4, 1)):
        with pytest.raises(ValueError, match=f"out .*{re.escape(str(shape))}.*{re.escape('(3, 4)')}"):
            call(impl, np.empty(shape, dtype))
    for wrong in (np.int32, bool, np.complex64):
        with pytest.raises(TypeError, match=np.dtype(wrong).name):
            call(impl, np.empty(X.shape, wrong))
    for other in (X.tolist(), "out", np.ma.masked_array(np.empty(X.shape, dtype))):
        with pytest.raises(TypeError, match="out"):
            call(impl, other)


def test_wrong_out_names_both_dtypes(impl):
    with pytest.raises(TypeError, match=r"out .*uint8.*int8"):
        impl.quantize(X, "int8", out=np.empty(X.shape, np.uint8))
    with pytest.raises(TypeError, match=r"out .*int8.*uint8"):
        impl.quantize(X, "int4", out=np.empty((3, 2), np.int8))
    with pytest.raises(TypeError, match=r"out .*float64.*float32"):
        impl.fake_quantize(X, "int8", out=np.empty(X.shape, np.float64))
    with pytest.raises(TypeError, match=r"out .*float64.*float32"):
        impl.dequantize_linear(CODES, 0.1, dtype=np.float32, out=np.empty(X.shape))
    with pytest.raises(ValueError, match=r"out .*\(3, 4\).*\(3, 2\)"):
        impl.quantize(X, "int4", out=np.empty((3, 4), np.uint8))


# The checks can fail: each of these mutants is wrong in one way, and is caught


# where the reference computes; float formats and formats with scales of their own have mutants of their own
COMPUTING = ["codes", "compare", "granularity", "operations", "packing", "parameters"]
PATCHED = [import_module(f"fastq.reference.{name}") for name in COMPUTING]


def half_away(x):
    return np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)


def codes_int8(impl):
    check_codes(impl, "int8", np.float32)


def qparams_int8(impl):
    check_qparams(impl, "int8", np.float32, ranges(np.float32))


def granularity(impl):
    check_granularity(impl, (3, 5, 7), -1, 3)


NUMPY_MUTANTS = {
    "codes floored": ({"rint": np.floor}, codes_int8),
    "codes truncated": ({"rint": np.trunc}, codes_int8),
    "codes half away": ({"rint": half_away}, codes_int8),
    "codes narrow": ({"clip": lambda a, lo, hi: np.clip(a, lo + 1, hi)}, codes_int8),
    "zero points floored": ({"rint": np.floor}, qparams_int8),
    "zero points half away": ({"rint": half_away}, qparams_int8),
    "overflow missed": ({"isinf": lambda a: np.zeros(np.shape(a), bool)}, qparams_int8),
    "subnormal scales to the nearest": (
        {"finfo": lambda t: SimpleNamespace(tiny=0.0, smallest_subnormal=0.0, eps=np.finfo(t).eps)},
        qparams_int8,
    ),
    "subnormal scales of two units": (
        {"finfo": lambda t: SimpleNamespace(tiny=np.finfo(t).tiny, smallest_subnormal=2.0**-148, eps=np.finfo(t).eps)},
        qparams_int8,
    ),
    "blocks shifted": ({"arange": lambda *a, **k: np.maximum(np.arange(*a, **k) - 1, 0)}, granularity),
    "maxima of minima": ({"maximum": np.minimum}, check_minmax),
    "medians": ({"mean": np.median}, check_compare),
    "last code first": ({"arange": lambda *a, **k: np.arange(*a, **k)[::-1]}, check_packing),
}


@pytest.mark.slow("a second each", quick=lambda mutant: mutant == "codes floored")
@pytest.mark.parametrize("mutant", NUMPY_MUTANTS)
def test_checks_catch_a_reference_with_another_numpy_function(monkeypatch, mutant):
    changed, check = NUMPY_MUTANTS[mutant]
    check(reference)
    for module in PATCHED:
        monkeypatch.setattr(module, "np", PatchedNumPy(**changed))
    with pytest.raises(AssertionError):
        check(reference)


def saturated(codes):
    return np.clip(codes, -128, 127).astype(np.int8)


FORMULA_MUTANTS = {
    "reciprocal": lambda x, s, z: saturated(np.rint(x * (np.float32(1) / s)) + z),
    "wider quotient": lambda x, s, z: saturated(np.rint(x.astype(np.float64) / np.float64(s)) + z),
    "zero point inside the rounding": lambda x, s, z: saturated(np.rint(x / s + z)),
    "zero point after the clamp": lambda x, s, z: np.clip(np.rint(x / s), -128, 127).astype(np.int64).astype(np.int8),
    "wraps": lambda x, s, z: np.nan_to_num(np.clip(np.rint(x / s) + z, -1e9, 1e9)).astype(np.int64).astype(np.int8),
    "cast before the clamp": lambda x, s, z: saturated(np.rint(x / s).astype(np.int32) + z),
    "half up": lambda x, s, z: saturated(np.floor(x / s + np.float32(0.5)) + z),
}


def with_formula(formula):
    def quantize_linear(x, scale, zero_point, dtype):
        with np.errstate(all="ignore"):
            return formula(x, scale, np.float32(zero_point))

    return SimpleNamespace(quantize_linear=quantize_linear)


@pytest.mark.slow("a second each", quick=lambda mutant: mutant == "half up")
@pytest.mark.parametrize("mutant", FORMULA_MUTANTS)
def test_checks_catch_another_formula(mutant):
    codes_int8(with_formula(lambda x, s, z: saturated(np.rint(x / s) + z)))
    with pytest.raises(AssertionError):
        codes_int8(with_formula(FORMULA_MUTANTS[mutant]))


def test_out_is_a_file_mapped_into_memory(tmp_path):
    """An array of a subclass, which is written to and returned as it is."""
    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(1, 64)
    codes = reference.quantize_linear(x, 0.1, 3, "int8")
    blocks = fastq.gguf.quantize(x, "Q8_0")
    q = reference.quantize(x, "int8")
    calls = (
        (lambda out: fastq.quantize(x, "int8", out=out).codes, q.codes),
        (lambda out: fastq.quantize(x, qparams=q.qparams, out=out).codes, q.codes),
        (lambda out: fastq.quantize_linear(x, 0.1, 3, "int8", out=out), codes),
        (lambda out: fastq.fake_quantize(x, "int8", out=out), reference.dequantize(q)),
        (lambda out: fastq.dequantize_linear(codes, 0.1, 3, out=out), reference.dequantize_linear(codes, 0.1, 3)),
        (lambda out: q.dequantize(out=out), reference.dequantize(q)),
        (lambda out: fastq.gguf.quantize(x, "Q8_0", out=out), blocks),
        (lambda out: fastq.gguf.dequantize(blocks, "Q8_0", out=out), fastq.gguf.dequantize(blocks, "Q8_0")),
    )
    for k, (call, expected) in enumerate(calls):
        out = np.memmap(tmp_path / str(k), expected.dtype, "w+", shape=expected.shape)
        for _ in range(4):
            out[...] = 0
            assert call(out) is out
            same_bytes(np.array(out), expected)


@pytest.mark.parametrize("shape", [(0,), (0, 2)])
def test_minmax_of_blocks_of_nothing_is_in_native_order(shape):
    lo, hi = fastq.minmax(np.zeros(shape, ">u4"), axis=-1, block_size=8)
    assert lo.dtype.isnative
    assert hi.dtype.isnative


def test_blocks_of_nothing_along_an_axis_that_is_longer_than_memory(impl):
    x = np.zeros((0, 2**40), np.float32)
    q = impl.quantize(x, "mxfp4")
    assert (q.codes.shape, q.scale.shape) == ((0, 2**39), (0, 2**35))
    assert dequantized(impl, q).shape == x.shape
    assert impl.fake_quantize(x, "int8", axis=1, block_size=32).shape == x.shape
