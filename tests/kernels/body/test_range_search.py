"""range="mse": the range with the least error of the round trip, against fractions and the reference."""

import dataclasses
import re
from fractions import Fraction

import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes
from fuzzing import exact

import fastq
from fastq import Convention, MSERange, reference
from fastq.formats.granularity import ARRAY, Granularity
from fastq.formats.qtypes import QTYPES
from fastq.formats.range_methods import METHODS, default_of
from fastq.requests.importance import bits_of_weights
from fastq.requests.quantization import as_range_method

COARSE = MSERange(grid=12, shrink=0.9, grow=0.2)
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


def shares(method):
    """The p of a method, by its definition."""
    if method.shares is not None:
        return [1, *method.shares]
    some = [Fraction(j, method.grid) for j in range(-method.grid + 1, 3 * method.grid + 1) if j]
    some = [p for p in some if Fraction(-method.shrink) <= p <= Fraction(method.grow) or float(p) == -method.shrink]
    return [1, *(float(1 + p) for p in sorted(some, reverse=True))]


def around(method):
    """What is added to the best p."""
    if method.shares is not None:
        return [0]
    parts = method.finer or 1
    some = [Fraction(k, method.grid * parts) for k in range(1 - parts, parts) if k]
    return [0, *map(float, sorted(some, reverse=True))]


def tried(ends, method, apart, share=None):
    """The ranges of a method, in order, each with its share; of the first search, or around a share."""
    lo, hi = ends
    if not apart:
        some = shares(method) if share is None else [share + np.float32(d) for d in around(method)]
        return [(np.float32(p), ends * np.float32(p)) for p in some]
    moves = [(1 - p, 1 - q) for p in shares(method) for q in shares(method)]
    part, rest = np.float32, lambda a: np.float32(1 - a)
    return [(1, np.array([rest(a) * lo + part(a) * hi, rest(b) * hi + part(b) * lo])) for a, b in moves]


def row_of(options):
    row = options.get("convention", "onnx")
    return fastq.CONVENTIONS[row] if isinstance(row, str) else row


def searched(part, dtype, method, emax, weights=None, **options):
    """Parameters of one part by the contract: all candidates through `reference.fake_quantize`, errors as fractions."""
    row = row_of(options)
    apart, signed = row.zero_point != "integer", dtype in row.searched_signed and method.signs != 1
    counted, whole, share = [1] * part.size, np.array([part.min(), part.max()]), None
    if weights is not None:
        most = 2 ** min(16, 33 - (part.size - 1).bit_length()) - 1
        counted = [round(Fraction(float(w / max(weights)) * most)) for w in weights]
    for _ in range(2 if len(around(method)) > 1 else 1):
        best = None
        for p_of_range, ends in tried(whole, method, apart, share):
            p = reference.choose_qparams(ends, dtype, **options)
            if signed and ends[1] > -ends[0]:
                p = p.with_values(-p.scale, p.zero_point)
            if best is None:
                unit = Fraction(2) ** (exact.exponent(Fraction(float(np.abs(p.scale)))) + emax - 10)
            error = error_in_units(part, reference.fake_quantize(part, qparams=p), counted, unit, method)
            if best is None or error < best[0]:
                best = error, p_of_range, p
        share = best[1]
    return best[2]


def error_in_units(part, values, counted, unit, method):
    error = 0
    for x, y, w in zip(part.tolist(), values.tolist(), counted, strict=True):
        missed = Fraction(float(np.float32(x) - np.float32(y)))
        error += w * abs(round(missed / unit)) ** int(method.norm)  # ties to even
    return error


FLOAT_ZERO = Convention("hqq", zero_point="float", zero_point_inside=True, schemes=("asymmetric",))
ORACLE = [
    ("int8", 6, {"symmetric": True}, COARSE),
    ("uint4", 3, {}, MSERange(grid=50, shrink=0.14, grow=0.16)),
    ("int4", 3, {"symmetric": True}, MSERange(grid=40, shrink=0.5, grow=0.05, norm=1)),
    ("int2", 1, {"symmetric": True}, MSERange(grid=30, shrink=1, grow=0)),
    ("uint8", 6, {"convention": "torch"}, COARSE),
    ("int4", 3, {"symmetric": True}, MSERange(shares=(0.7, 1.1, 0.9, 0.65, 0.95, 0.6))),
    ("float8_e4m3fn", 8, {}, MSERange(grid=8, shrink=0, grow=1)),
    ("float4_e2m1fn", 2, {}, MSERange(grid=20, shrink=0.15, grow=0.6)),
    ("uint3", 2, {"convention": FLOAT_ZERO}, MSERange(grid=20, shrink=0.2, grow=0.1)),
    ("int4", 3, {"symmetric": True, "convention": "compressed-tensors"}, MSERange(grid=30, shrink=0.3, grow=0.1)),
    (
        "int4",
        3,
        {"symmetric": True, "convention": "compressed-tensors"},
        MSERange(grid=30, shrink=0.3, grow=0.1, signs=1),
    ),
    ("int8", 6, {"symmetric": True, "convention": "compressed-tensors"}, COARSE),
    ("int3", 2, {"symmetric": True}, MSERange(grid=12, shrink=0.75, grow=0.2, finer=5)),
    ("uint8", 6, {"convention": "torch"}, MSERange(grid=7, shrink=0.5, grow=0.2, finer=3, norm=1)),
    ("float4_e2m1fn", 2, {}, MSERange(grid=9, shrink=0.7, grow=0.2, finer=4)),
]


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("dtype", "emax", "options", "method"), ORACLE)
def test_the_reference_is_what_fractions_say(dtype, emax, options, method, weighed):
    # contract 6.1, 6.5 and 6.6
    weights = np.random.default_rng(1).random(70) ** 6 if weighed else None
    for part in X.reshape(30, 70)[:4]:
        same_parameters(
            reference.choose_qparams(part, dtype, range=method, importance=weights, **options),
            searched(part, dtype, method, emax, weights, **options),
        )


def test_the_oracle_notices_another_candidate(monkeypatch):
    def largest(x, lo, hi, *_):
        return lo, hi

    monkeypatch.setattr(reference.operations, "least_error", largest)
    with pytest.raises(AssertionError):
        test_the_reference_is_what_fractions_say(*ORACLE[1], False)


def squared_error(x, q):
    return np.sum((x.astype(np.float64) - reference.fake_quantize(x, qparams=q)) ** 2)


@pytest.mark.parametrize("dtype", ["int4", "uint3", "float4_e2m1fn", "nvfp4", "mxfp4"])
def test_no_candidate_has_a_smaller_error(dtype):
    """In float64, without units: to a hundredth of it, by which errors in units may be off for few elements."""
    own, method = QTYPES[dtype].block_size, MSERange(grid=50, shrink=0.7, grow=0.3)
    for row in X.reshape(30, 70)[:6, :16]:
        best = squared_error(row, reference.choose_qparams(row, dtype, range=method))
        if not own:
            for ratio in shares(method):
                ends = np.array([min(row.min(), 0), max(row.max(), 0)]) * np.float32(ratio)
                assert best <= squared_error(row, reference.choose_qparams(ends, dtype)) * 1.01
        assert best <= squared_error(row, reference.choose_qparams(row, dtype)) * 1.01


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
    # contract 6.10
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


WEIGHED = [
    ("int4", {"axis": 2, "block_size": 32, "symmetric": True}, 2),
    ("int8", {"axis": 0}, 2),
    ("int8", {"axis": (0, 2)}, 1),
    ("int8", {"axis": 1}, 2),
    ("int8", {"axis": (0, 1, 2)}, 2),
    ("int8", {}, 2),
    ("uint4", {"axis": 1, "block_size": 3}, 1),
    ("uint4", {"axis": 0, "block_size": 4, "convention": FLOAT_ZERO}, 0),
    ("mxfp4", {}, 2),
    ("nvfp4", {"axis": 0}, 0),
    ("nf4", {"axis": 0}, 2),
]


@pytest.mark.slow(
    "compiles kernels for each format",
    quick=lambda dtype, options, axis: dtype in ("int4", "int8", "mxfp4") or "convention" in options,
)
@pytest.mark.parametrize(("dtype", "options", "axis"), WEIGHED)
def test_importance_of_columns_and_elements(dtype, options, axis):
    # contract 6.7
    of_columns, of_all = RNG.random(X.shape[axis]) ** 5, RNG.random(X.shape) ** 5
    of_all[:, :2, ::3] = 0
    for x in (X, np.asfortranarray(X), X[::-1, :, ::2]):
        columns = of_columns[::2] if axis == 2 and x.shape != X.shape else of_columns
        everywhere = of_all[:, :, : x.shape[2]]
        expected = check(x, dtype, importance=columns, range="mse", **options)
        spread_out = np.broadcast_to(columns.reshape([-1 if k == axis else 1 for k in range(3)]), x.shape)
        same_parameters(check(x, dtype, importance=spread_out, range="mse", **options), expected)
        same_parameters(check(x, dtype, importance=columns * 1e-200, range="mse", **options), expected)
        check(x, dtype, importance=everywhere.astype(np.float32), range="mse", **options)


BITS = [
    ((), ARRAY, 16),
    ((1 << 17,), ARRAY, 16),
    (((1 << 17) + 1,), ARRAY, 15),
    ((1 << 31,), ARRAY, 2),
    ((1 << 40,), ARRAY, 1),
    ((4, 1 << 18), Granularity((0,)), 15),
    ((8, 100), Granularity((1,), 1 << 20), 13),
    ((0, 3), Granularity((0,)), 16),
]


@pytest.mark.parametrize(("shape", "where", "bits"), BITS)
def test_bits_of_weights(shape, where, bits):
    # contract 6.7 and 6.8
    """As many as keep sums below 2**53; blocks count as whole ones."""
    assert bits_of_weights(shape, where) == bits


def test_importance_of_another_dtype_is_that_of_its_float64():
    # contract 6.7
    half = (RNG.random(X.shape[2]) ** 5).astype(np.float16)
    for weights in (half, half.astype(np.float32), (half * 1000).astype(np.uint8)):
        options = {"axis": 2, "block_size": 32, "symmetric": True, "range": "mse"}
        expected = check(X, "int4", importance=weights.astype(np.float64), **options)
        same_parameters(check(X, "int4", importance=weights, **options), expected)


def test_importance_lessens_the_weighed_error():
    weights = np.where(np.arange(70) % 7, 0.01, 1.0)
    options = {"axis": 2, "block_size": 35, "symmetric": True, "range": "mse"}
    plain, weighed = (fastq.fake_quantize(X, "int3", importance=w, **options) for w in (None, weights))
    assert np.sum(weights * (X - weighed) ** 2) < 0.9 * np.sum(weights * (X - plain) ** 2)
    same = fastq.fake_quantize(X, "int3", importance=np.full(70, 7), **options)
    same_bytes(same, plain)
    same_bytes(
        fastq.fake_quantize(X, "int3", importance=np.zeros(70), **options),
        reference.fake_quantize(X, "int3", **options | {"range": "minmax"}),
    )


def test_threads_and_chunks_do_not_show_in_weighed_sums(threads):
    x, weights = RNG.standard_t(3, (3, 9000)).astype(np.float32), RNG.random(9000) ** 4
    for options in ({}, {"axis": 0}, {"axis": 1, "block_size": 32}):
        expected = check(x, "int4", importance=weights, range="mse", **options)
        for n in (1, 2, 3):
            threads(n)
            actual = fastq.choose_qparams(np.asfortranarray(x), "int4", importance=weights, range="mse", **options)
            same_parameters(actual, expected)


NO_IMPORTANCE = [
    (
        {"importance": np.ones(3)},
        ValueError,
        "importance has shape (3,), but for x of shape (6, 5, 70) it must have that, or (70,)",
    ),
    *(
        ({"importance": np.append(np.ones(69), wrong)}, ValueError, "importance must be finite and not negative")
        for wrong in (-1, np.inf, np.nan)
    ),
    ({"importance": [None] * 70}, TypeError, "importance must be an array of numbers"),
    (
        {"importance": np.ones(70, complex)},
        TypeError,
        "importance must be float16, bfloat16, float32, float64, int8 to int64 or uint8 to uint64, not complex128",
    ),
    ({"importance": np.ones(70), "range": "minmax"}, ValueError, "importance needs a search for ranges"),
]


@pytest.mark.parametrize(("options", "error", "match"), NO_IMPORTANCE, ids=[match for *_, match in NO_IMPORTANCE])
def test_importance_that_is_none(options, error, match):
    for api in (fastq, reference):
        for operation in (api.quantize, api.choose_qparams, api.fake_quantize):
            with pytest.raises(error, match=re.escape(match)):
                operation(X, "int8", axis=0, **{"range": "mse"} | options)


@pytest.mark.slow("compiles two kernels each", quick=lambda compute, dtype: (dtype, compute) == ("int4", np.float32))
@pytest.mark.parametrize("compute", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
def test_elements_without_importance_whose_values_overflow(dtype, compute):
    """The error of the whole range is NaN, an infinity times 0: any that is smaller than 2**53 is less."""
    rng = np.random.default_rng(3)
    x = (rng.uniform(-1, 1, (8, 32)) * np.finfo(compute).max).astype(compute)
    weights = np.where(rng.random(x.shape) < 0.5, 0, rng.random(x.shape))
    weights[np.arange(8), np.abs(x).argmax(axis=1)] = 0
    check(x, dtype, axis=0, importance=weights)


def test_shares_of_importance_that_underflow():
    """They are 0, whatever NumPy is told to do where numbers underflow."""
    weights = np.where(np.arange(70) % 3, 1e-300, 1e300)
    with np.errstate(all="raise"):
        check(X, "int4", axis=2, block_size=35, importance=weights)


OF_EITHER_SIGN = {"axis": 1, "block_size": 32, "symmetric": True, "convention": "compressed-tensors"}


@pytest.mark.parametrize("dtype", ["int4", "int2"])
def test_signs(dtype):
    """The end that is farther from 0 has the lowest code, of formats that have such scales where they are searched."""
    # contract 6.2
    x = X.reshape(-1, 70)[:, :64]
    largest, positive = x.reshape(-1, 2, 32), MSERange(grid=10, shrink=0.3, grow=0.2, signs=1)
    either = check(x, dtype, range=dataclasses.replace(positive, signs=None), **OF_EITHER_SIGN)
    np.testing.assert_array_equal(either.scale < 0, largest.max(-1) > -largest.min(-1))
    same_parameters(check(x, dtype, range=dataclasses.replace(positive, signs=2), **OF_EITHER_SIGN), either)
    one = check(x, dtype, range=positive, **OF_EITHER_SIGN)
    assert (one.scale > 0).all()
    assert squared_error(x, either) < squared_error(x, one)


@pytest.mark.parametrize("dtype", ["int4", "int2"])
def test_scales_of_either_sign_are_never_worse_than_those_of_all_of_the_range(dtype):
    x, tried = X.reshape(-1, 70)[:, :64], (MSERange(grid=10, shrink=0.3, grow=0.2), "minmax")
    found, whole = (fastq.choose_qparams(x, dtype, range=each, **OF_EITHER_SIGN) for each in tried)
    assert (whole.scale > 0).all()
    errors = [(x.astype(np.float64) - reference.fake_quantize(x, qparams=p)).reshape(-1, 2, 32) for p in (found, whole)]
    mine, theirs = (np.square(error).sum(-1) for error in errors)
    assert np.all(mine <= theirs * (1 + 1e-3))  # errors are counted in steps / 128


NOT_BELOW_0 = [
    ("int4", {"symmetric": True, "convention": "onnx"}),
    ("int4", {"convention": "compressed-tensors"}),
    ("int8", {"symmetric": True, "convention": "compressed-tensors"}),
    ("float8_e4m3fn", {"convention": "compressed-tensors"}),
]


@pytest.mark.slow("compiles a kernel each", quick=lambda dtype, options: dtype == "int4")
@pytest.mark.parametrize(("dtype", "options"), NOT_BELOW_0)
def test_scales_of_others_are_not_below_0(dtype, options):
    assert (check(X, dtype, range="mse", **options).scale > 0).all()
    for api in (fastq, reference):
        wanted = f"signs must be 1: convention {options['convention']!r} has no symmetric scales of {dtype} below 0"
        with pytest.raises(ValueError, match=wanted):
            api.quantize(X, dtype, range=MSERange(signs=2), **options)


def test_both_ends_where_a_zero_point_may_be_any_number():
    # contract 6.3
    options = {"axis": 2, "block_size": 35, "convention": FLOAT_ZERO}
    both, all_of_it = check(X, "uint4", range="mse", **options), fastq.choose_qparams(X, "uint4", **options)
    assert squared_error(X, both) < 0.85 * squared_error(X, all_of_it)
    for api in (fastq, reference):
        with pytest.raises(ValueError, match="range gives 251 places for each end of a range, and at most 100"):
            api.quantize(X, "uint4", range=MSERange(grid=500, shrink=0.5, grow=0), **options)


WIDE = np.array([[-3e38, 2e38, 1e38, 3.3e38], [3.4e38, 1e38, -1e38, 0]], np.float32)
OVERFLOWING = [("int4", "onnx"), ("float8_e4m3fn", "onnx"), ("mxfp4", "onnx"), ("uint4", "onnx"), ("uint4", "faiss")]


@pytest.mark.slow("compiles two kernels each", quick=lambda dtype, x, **_: dtype == "int4" and x is WIDE)
@pytest.mark.parametrize("x", [WIDE, WIDE.astype(np.float64) * 5e269], ids=["float32", "float64"])
@pytest.mark.parametrize(("dtype", "convention"), OVERFLOWING)
def test_ranges_that_overflow_are_not_taken(dtype, convention, x):
    # contract 6.4
    where = {"axis": 1 if dtype == "mxfp4" else 0, "convention": convention}
    check(x / x.dtype.type(1 if convention == "onnx" else 2), dtype, range=MSERange(2, 0.5, 1), **where)


def test_the_norm_counts():
    # contract 6.5
    other = check(X, "int8", range=MSERange(grid=12, shrink=0.9, grow=0.2, norm=1), axis=1, bits=3)
    assert not np.array_equal(other.scale, check(X, "int8", axis=1, bits=3).scale)


@pytest.mark.parametrize("exponent", [-140, -120, -99, 99, 120])
def test_scales_that_need_divisions(exponent):
    x = np.ldexp(X, exponent).clip(-1e38, 1e38)
    for options in ({}, {"axis": 1}, {"axis": 2, "block_size": 32}):
        check(x, "int8", **options)


@pytest.mark.parametrize("convention", ["hdf5-scaleoffset", "faiss"])
def test_constants_whose_scale_is_replaced_by_a_far_smaller_one(convention):
    """They have more units than there are numbers of their type; parts of a range of rounded ends are no constants."""
    x = np.random.default_rng(3).uniform(-3e38, 3e38, (60, 1)).astype(np.float32)
    check(np.repeat(x, 5, axis=1), "uint8", axis=0, bits=3, range="mse", convention=convention)


@pytest.mark.slow("compiles two kernels")
def test_sums_beyond_all_units_count_alike():
    """A floor may make a step so small compared with the range that no sum of errors is exact: order must not show."""
    row = Convention("own", scale_floor=0.5, degenerate=1e-10)
    for options in ({}, {"axis": 1}):
        check(X * 50, "int8", convention=row, **options)


# --- threads and pieces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1, "block_size": 32}], ids=str)
def test_threads_and_order_do_not_show(threads, options):
    # contract 6.8
    """Also of parts that several threads share, and of more ranges than registers have lanes."""
    x = 1000 * RNG.standard_t(3, (3, 9000)).astype(np.float32)  # steps are more than 128, the unit is less than 1
    for method in (COARSE, MSERange(grid=40, shrink=0.9, grow=0.3)):
        of = {"range": method, "bits": 3} | options  # the best range is not the whole one
        threads(1)
        expected = check(x, "int8", **of)
        for n in (1, 2, 3, 4):
            threads(n)
            same_parameters(fastq.choose_qparams(x, "int8", **of), expected)
            same_parameters(fastq.choose_qparams(np.asfortranarray(x), "int8", **of), expected)
        if not options:
            shuffled = RNG.permutation(x.reshape(-1))
            same_parameters(fastq.choose_qparams(shuffled, "int8", **of), expected)


# --- operations -------------------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles four kernels each", quick=lambda dtype: dtype == "int8")
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
    # contract 6.11
    for api in (fastq, reference):
        with pytest.raises(ValueError, match=r"x has .*infinite values"):
            api.quantize(np.array([1, np.inf], np.float32), "int8", range="mse")
        with pytest.raises(ValueError, match="the range of no elements"):
            api.choose_qparams(np.empty(0, np.float32), "int8", range="mse")
        assert api.choose_qparams(np.empty((0, 3), np.float32), "int8", axis=0, range="mse").scale.shape == (0,)


@pytest.mark.parametrize("x", [np.zeros(40), np.full(40, 3.0), np.array([-1.0, 0, 1])], ids=["0", "3", "few"])
def test_of_equal_errors_the_whole_range(x):
    # contract 6.5
    x, symmetric = x.astype(np.float32), {"symmetric": True}
    same_parameters(check(x, "int8", range="mse", **symmetric), reference.choose_qparams(x, "int8", **symmetric))


def test_a_range_without_candidates_is_that_of_minimum_and_maximum():
    for method in (MSERange(shrink=0, grow=0), MSERange(grid=1, shrink=1, grow=0)):
        same_parameters(check(X, "int4", range=method), reference.choose_qparams(X, "int4"))


# --- options ----------------------------------------------------------------------------------------------------------


def test_ratios():
    assert METHODS["mse-llm-compressor"].ratios.tolist() == pytest.approx([1 - i / 100 for i in range(20)], abs=1e-15)
    assert MSERange(4, 0.5, 0.6).ratios.tolist() == [1, 1.5, 1.25, 0.75, 0.5]
    assert MSERange(4, 0.5, 0.6, 3).around.tolist() == [0, 2 / 12, 1 / 12, -1 / 12, -2 / 12]
    assert as_range_method("mse") == MSERange() == MSERange(None, None, None, None, None, 2)
    assert MSERange(np.int64(3), np.float64(0.5), 1, np.int8(4), np.int8(1)) == MSERange(3, 0.5, 1.0, 4, 1)
    assert as_range_method("minmax") is None


# each part by one thread; sums of pieces, by kernels that other tests compile
@pytest.mark.slow(
    "compiles two kernels each",
    quick=lambda dtype, options, shape, norm: norm == 2 and (shape == (2, 70_000)) == (dtype == "int8"),
)
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("shape", [(6, 350), (2, 70_000)])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [("int3", {"axis": 0, "symmetric": True}), ("uint8", {"convention": "torch-pt2e"}), ("int8", {"axis": 0})],
)
def test_ranges_between_the_best_and_its_neighbours(dtype, options, shape, norm):
    """The best of both searches, by parts of which some have their best range in the middle of another distance."""
    rng = np.random.default_rng(2)
    x = rng.standard_t(3, shape).astype(np.float32)
    method = MSERange(grid=6, shrink=0.8, grow=0.2, finer=6, norm=norm)
    for more in ({}, {"importance": rng.random(shape[1])}):
        found = check(x, dtype, range=method, **options, **more)
        coarse = check(x, dtype, range=dataclasses.replace(method, finer=1), **options, **more)
        if dtype != "uint8":
            assert np.any(found.scale != coarse.scale)
            assert more or norm == 1 or squared_error(x, found) < squared_error(x, coarse)


@pytest.mark.parametrize(("dtype", "options"), [("mxfp4", {}), ("nvfp4", {}), ("uint4", {"convention": FLOAT_ZERO})])
def test_formats_with_scales_of_their_own_have_none_between(dtype, options):
    for api in (fastq, reference):
        with pytest.raises(ValueError, match=r"finer must be 1 for (a zero point that is any number|mxfp4|nvfp4)"):
            api.choose_qparams(X, dtype, range=MSERange(finer=2), **options)


def test_shares_are_tried_in_their_order():
    """Those of a table, too, unless ranges that lie equally far apart are asked for."""
    # contract 6.2
    x = X.reshape(3, 700)
    some = 1.04, 0.9, 0.7, 0.96, 0.8
    found = check(x, "int8", axis=0, symmetric=True, range=MSERange(shares=some)).scale
    whole = fastq.choose_qparams(x, "int8", axis=0, symmetric=True).scale
    assert all(np.isclose(p, (1, *some), 1e-6).any() for p in found / whole)
    for dtype in ("int8", "uint8"):
        method = default_of(QTYPES[dtype], False, "channels", 0, False)
        assert method.shares
        same_parameters(check(x, dtype, axis=0, range=method), check(x, dtype, axis=0, range="mse"))
        assert default_of(QTYPES[dtype], False, "channels", 0, False, spaced=True).shares is None


@pytest.mark.parametrize("length", [1, 255, 257, 3000])
def test_a_few_candidates_first(length):
    """Of more than a register has lanes, where runs are long; with a rest that does not fill the lanes of one."""
    x = np.random.default_rng(length).standard_t(2, (5, length)).astype(np.float32)
    for grid in (2, 4, 8, 30):
        for importance in (None, np.random.default_rng(0).random(length)):
            check(x, "int8", axis=0, range=MSERange(grid=grid, shrink=0.9, grow=0.3), importance=importance)


def test_a_grid_that_is_given_is_all():
    same_parameters(
        check(X, "int3", axis=0, range=MSERange(grid=16, shrink=0.79, grow=0.2)),
        check(X, "int3", axis=0, range=MSERange(grid=16, shrink=0.79, grow=0.2, finer=1)),
    )
    same_parameters(check(X, "int3", axis=0, range="mse"), check(X, "int3", axis=0, range=MSERange(16, 0.79, 0.2, 8)))


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("dtype", QTYPES)
def test_every_format_has_ranges_to_try(dtype, weighed):
    # contract 6.9
    for kind, block_size in (("array", 0), ("channels", 0), ("blocks", 32), ("blocks", 128), ("blocks", 5000)):
        for apart in (False, not (QTYPES[dtype].element or QTYPES[dtype].block_size)):
            ratios = default_of(QTYPES[dtype], apart, kind, block_size, weighed).ratios
            assert ratios[0] == 1
            assert 1 < ratios.size <= (16 if 0 < block_size < 5000 else 80)


REFUSED = [
    (
        {"range": "max"},
        ValueError,
        "range must be one of minmax, mse, mse-llm-compressor, or a fastq.MSERange, not 'max'",
    ),
    (
        {"range": MSERange},
        ValueError,
        "range must be one of minmax, mse, mse-llm-compressor, or a fastq.MSERange, not <class",
    ),
    (
        {"range": (-1, 1)},
        ValueError,
        "for given ends pass qparams=fastq.choose_qparams(np.array([lo, hi], x.dtype), dtype)",
    ),
    ({"range": "mse", "saturate": False}, ValueError, "saturate must be True for a search for ranges"),
]


@pytest.mark.parametrize(("options", "error", "match"), REFUSED, ids=[match for *_, match in REFUSED])
def test_refusals(options, error, match):
    # contract 6.11
    for api in (fastq, reference):
        with pytest.raises(error, match=re.escape(match)):
            api.quantize(X, "float8_e4m3fn", **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"shares": (0.5, 0)}, r"shares must be from 0\.0001 to 4\.0, not 0"),
        ({"shares": [1] * 65}, "shares must be a sequence of numbers, at most 64"),
        ({"shares": (0.5,), "shrink": 0.1}, "shares can't be given with grid, shrink, grow or finer"),
        ({"grid": 0}, "grid must be from 1 to 10000, not 0"),
        ({"shrink": 1.5}, r"shrink must be from 0\.0 to 1\.0, not 1\.5"),
        ({"grow": -0.5}, r"grow must be from 0\.0 to 3\.0, not -0\.5"),
        ({"signs": 3}, "signs must be from 1 to 2, not 3"),
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
