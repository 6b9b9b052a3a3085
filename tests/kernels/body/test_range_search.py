"""range="mse": the part of each range with the least error of the round trip, against fractions and the reference."""

import re
from fractions import Fraction

import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes
from fuzzing import exact

import fastq
from fastq import Convention, MSERange, reference
from fastq.formats.qtypes import QTYPES
from fastq.requests.values import as_range_method

COARSE = MSERange(grid=12, shrink=0.9)
RNG = np.random.default_rng(5)
X = RNG.standard_t(3, (6, 5, 70)).astype(np.float32)


def same_parameters(actual, expected):
    same_bytes(actual.scale, expected.scale)
    same_bytes(np.asarray(actual.zero_point), np.asarray(expected.zero_point))
    assert (actual.tensor_scale is None) == (expected.tensor_scale is None)


def check(x, dtype, **options):
    """Fast and reference give the same parameters, which the codes have too."""
    options = {"range": COARSE} | options
    expected = reference.choose_qparams(x, dtype, **options)
    same_parameters(fastq.choose_qparams(x, dtype, **options), expected)
    return expected


# --- an oracle in whole numbers ---------------------------------------------------------------------------------------


def searched(part, dtype, method, place=0, **options):
    """Parameters of one part by the contract: all candidates through `reference.fake_quantize`, errors as fractions."""
    ends = np.array([part.min(), part.max()])
    best = None
    for i in range(method.grid):
        if not i / method.grid < method.shrink:
            break
        p = reference.choose_qparams(ends * np.float32((method.grid - i) / method.grid), dtype, **options)
        if best is None:
            step = Fraction(float(np.abs(p.scale))) * Fraction(2) ** place
            unit = Fraction(2) ** (exact.exponent(step) - 10)
        values = reference.fake_quantize(part, qparams=p)
        error = 0
        for x, y in zip(part.tolist(), values.tolist(), strict=True):
            missed = Fraction(float(np.float32(x) - np.float32(y)))
            error += abs(round(missed / unit)) ** int(method.norm)  # ties to even
        if best is None or error < best[0]:
            best = error, p
    return best[1]


ORACLE = [
    ("int8", 0, {"symmetric": True}, COARSE),
    ("uint4", 0, {}, MSERange()),
    ("int4", 0, {"symmetric": True}, MSERange(norm=1)),
    ("int2", 0, {"symmetric": True}, MSERange(grid=30, shrink=1)),
    ("uint8", 0, {"convention": "torch"}, COARSE),
    ("float8_e4m3fn", 5, {}, COARSE),
    ("float4_e2m1fn", 1, {}, MSERange()),
]
BY_ORACLE = {dtype: (place, options, method) for dtype, place, options, method in ORACLE}


@pytest.mark.parametrize("dtype", BY_ORACLE)
def test_the_reference_is_what_fractions_say(dtype):
    place, options, method = BY_ORACLE[dtype]
    for part in X.reshape(30, 70)[:4]:
        same_parameters(
            reference.choose_qparams(part, dtype, range=method, **options),
            searched(part, dtype, method, place, **options),
        )


def test_the_oracle_notices_another_candidate(monkeypatch):
    def largest(x, lo, hi, *_):
        return lo, hi

    monkeypatch.setattr(reference.operations, "least_error", largest)
    with pytest.raises(AssertionError):
        test_the_reference_is_what_fractions_say("uint4")


def squared_error(x, q):
    return np.sum((x.astype(np.float64) - reference.fake_quantize(x, qparams=q)) ** 2)


@pytest.mark.parametrize("dtype", ["int4", "uint3", "float4_e2m1fn", "nvfp4", "mxfp4"])
def test_no_candidate_has_a_smaller_error(dtype):
    """In float64, without units: to a millionth of it."""
    own, method = QTYPES[dtype].block_size, MSERange(grid=50, shrink=0.7)
    for row in X.reshape(30, 70)[:6, :16]:
        best = squared_error(row, reference.choose_qparams(row, dtype, range=method))
        if not own:
            for ratio in method.ratios.astype(np.float32):
                ends = np.array([min(row.min(), 0), max(row.max(), 0)]) * ratio
                assert best <= squared_error(row, reference.choose_qparams(ends, dtype)) * (1 + 1e-6)
        assert best <= squared_error(row, reference.choose_qparams(row, dtype)) * (1 + 1e-6)


# --- fast and reference -----------------------------------------------------------------------------------------------

GRANULARITIES = [
    {},
    {"axis": 0},
    {"axis": 1},
    {"axis": 2},
    {"axis": (0, 2)},
    {"axis": (0, 1, 2)},
    {"axis": 2, "block_size": 32},
    {"axis": -1, "block_size": 23},
    {"axis": 1, "block_size": 3},
    {"axis": 0, "block_size": 6},
]


@pytest.mark.parametrize("options", GRANULARITIES, ids=str)
def test_every_granularity_and_layout(options):
    for layout in LAYOUTS.values():
        check(layout(X), "int8", **options)


@pytest.mark.slow("compiles two kernels each")
@pytest.mark.parametrize("dtype", QTYPES)
def test_every_format(dtype):
    for options in [{}] if QTYPES[dtype].block_size else [{}, {"axis": 0}, {"axis": 2, "block_size": 32}]:
        check(X, dtype, **options)
        check(X * np.float32(1e-38), dtype, **options)
        check(X.astype(np.float64), dtype, **options)


@pytest.mark.slow("compiles two kernels each")
@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int16", "uint16", "int32", "int64"])
def test_every_input(dtype):
    x = (X * 20).astype(dtype)
    for options in ({}, {"axis": 1}, {"axis": 2, "block_size": 32}):
        check(x, "int8", **options)


@pytest.mark.slow("compiles two kernels each")
@pytest.mark.parametrize("convention", fastq.CONVENTIONS)
def test_every_convention(convention):
    row = fastq.CONVENTIONS[convention]
    for scheme in row.schemes:
        options = {"symmetric": scheme == "symmetric", "convention": convention}
        check(X, (row.formats or ("int8",))[0], axis=1, **options)
        check(X, (row.formats or ("int8",))[0], **options)


def test_the_norm_counts():
    other = check(X, "int8", range=MSERange(grid=12, shrink=0.9, norm=1), axis=1, bits=3)
    assert not np.array_equal(other.scale, check(X, "int8", axis=1, bits=3).scale)


@pytest.mark.parametrize("exponent", [-140, -120, -99, 99, 120])
def test_scales_that_need_divisions(exponent):
    x = np.ldexp(X, exponent).clip(-1e38, 1e38)
    for options in ({}, {"axis": 1}, {"axis": 2, "block_size": 32}):
        check(x, "int8", **options)


@pytest.mark.slow("compiles two kernels")
def test_sums_beyond_all_units_count_alike():
    """A floor may make a step so small beside the range that no sum of errors is exact: order must not show."""
    row = Convention("own", scale_floor=0.5, degenerate=1e-10)
    for options in ({}, {"axis": 1}):
        check(X * 50, "int8", convention=row, **options)


# --- threads and pieces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1, "block_size": 32}], ids=str)
def test_threads_and_order_do_not_show(threads, options):
    """Also of parts that several threads share."""
    x = RNG.standard_t(3, (3, 9000)).astype(np.float32)
    expected = fastq.choose_qparams(x, "int8", range=COARSE, **options)
    for n in (1, 2, 3, 4):
        threads(n)
        same_parameters(fastq.choose_qparams(x, "int8", range=COARSE, **options), expected)
        same_parameters(fastq.choose_qparams(np.asfortranarray(x), "int8", range=COARSE, **options), expected)
    if not options:
        shuffled = RNG.permutation(x.reshape(-1))
        same_parameters(fastq.choose_qparams(shuffled, "int8", range=COARSE), expected)


# --- operations -------------------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles four kernels each", quick=lambda dtype: dtype == "uint4")
@pytest.mark.parametrize("dtype", ["int8", "uint4", "mxfp4"])
def test_codes_and_values(dtype):
    axis = {} if QTYPES[dtype].block_size else {"axis": 0}
    for x in (X, X[::-1, :, ::2]):
        actual, expected = (api.quantize(x, dtype, range="mse", **axis) for api in (fastq, reference))
        same_parameters(actual.qparams, expected.qparams)
        same_bytes(actual.codes, expected.codes)
        same_parameters(actual.qparams, fastq.choose_qparams(x, dtype, range="mse", **axis))
        values = fastq.fake_quantize(x, dtype, range="mse", **axis)
        same_bytes(values, actual.dequantize())
    out = np.empty_like(actual.codes)
    assert fastq.quantize(x, dtype, range="mse", out=out, **axis).codes is out
    same_bytes(out, actual.codes)


def test_codes_of_fewer_bits():
    check(X, "int8", bits=3, axis=0)


@pytest.mark.slow("compiles two kernels each", quick=lambda dtype: dtype == "int8")
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "mxfp4", "nvfp4"])
def test_nan(dtype):
    x = X.copy()
    x[0, 0, 3] = x[4, 2, 69] = np.nan
    for nan in ["zero"] if dtype == "int8" else ["zero", "keep"]:
        check(x, dtype, nan=nan, **({"axis": 0} if dtype[0] in "if" else {}))
    for api in (fastq, reference):
        with pytest.raises(ValueError, match="x has 2 NaN"):
            api.choose_qparams(x, dtype, range="mse")


def test_infinite_and_empty_ranges():
    for api in (fastq, reference):
        with pytest.raises(ValueError, match=r"x has .*infinite values"):
            api.quantize(np.array([1, np.inf], np.float32), "int8", range="mse")
        with pytest.raises(ValueError, match="the range of no elements"):
            api.choose_qparams(np.empty(0, np.float32), "int8", range="mse")
        assert api.choose_qparams(np.empty((0, 3), np.float32), "int8", axis=0, range="mse").scale.shape == (0,)


@pytest.mark.parametrize("x", [np.zeros(40), np.full(40, 3.0), np.array([-1.0, 0, 1])], ids=["0", "3", "few"])
def test_of_equal_errors_the_largest_range(x):
    x = x.astype(np.float32)
    same_parameters(check(x, "int8", range="mse"), reference.choose_qparams(x, "int8"))


def test_a_range_without_candidates_is_that_of_minimum_and_maximum():
    for method in (MSERange(shrink=0), MSERange(grid=1, shrink=1)):
        same_parameters(check(X, "int4", range=method), reference.choose_qparams(X, "int4"))


# --- options ----------------------------------------------------------------------------------------------------------


def test_ratios_are_those_of_llm_compressor():
    assert MSERange(100, 0.2).ratios.tolist() == pytest.approx([1 - i / 100 for i in range(20)], abs=1e-15)
    assert as_range_method("mse") == MSERange() == MSERange(np.int64(100), np.float64(0.8), 2)
    assert as_range_method("minmax") is None


REFUSED = [
    ({"range": "max"}, ValueError, "range must be one of minmax, mse, or a fastq.MSERange, not 'max'"),
    ({"range": MSERange}, ValueError, "range must be one of minmax, mse, or a fastq.MSERange, not <class"),
    ({"range": "mse", "saturate": False}, ValueError, "saturate must be True where range is searched for"),
]


@pytest.mark.parametrize(("options", "error", "match"), REFUSED, ids=[match for *_, match in REFUSED])
def test_refusals(options, error, match):
    for api in (fastq, reference):
        with pytest.raises(error, match=re.escape(match)):
            api.quantize(X, "float8_e4m3fn", **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"grid": 0}, "grid must be from 1 to 10000, not 0"),
        ({"shrink": 1.5}, r"shrink must be from 0\.0 to 1\.0, not 1\.5"),
        ({"norm": 3}, r"norm must be from 1\.0 to 2\.0, not 3"),
        ({"norm": 1.5}, r"norm must be one of 1\.0, 2\.0, not 1\.5"),
    ],
)
def test_refused_options(options, match):
    with pytest.raises(ValueError, match=match):
        MSERange(**options)


def test_parameters_that_are_given_have_their_range():
    for api in (fastq, reference):
        p = api.choose_qparams(X, "int8")
        with pytest.raises(TypeError, match="range"):
            api.quantize(X, qparams=p, range="mse")
