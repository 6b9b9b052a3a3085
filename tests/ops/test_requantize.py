"""`fastq.requantize`: the codes of accumulators, which integers of Python tell step by step."""

import itertools

import numpy as np
import pytest
from catalogue import LAYOUTS, mixed, same_bytes
from requantized import CONVENTIONS, codes, quantized_multiplier

import fastq
from fastq import reference
from fastq.formats.requantization import REQUANTIZATIONS

FLOATS = "xnnpack", "onnxruntime", "torch"
DTYPES = "int8", "uint8", "int16"
SUMS = [-(2**31), -(2**31) + 1, -(2**30), -(2**24) - 1, -1, 0, 1, 2**24 + 1, 2**30, 2**31 - 1]
# 1 and its neighbours, shifts to both sides, one too many, units that round to 2**31, what is flushed to 0
MULTIPLIERS = [0.0, 1.0, 0.5, 0.75, 3.0, 1000.3, 2.0**29.5, 2.0**-8, 0.0123, 2.0**-31, 2.0**-32, 1.7 * 2.0**-33]
MULTIPLIERS += [0.75 * 2.0**-31, 1.0 - 2.0**-40, 1.0 - 2.0**-33, 1.0 + 2.0**-31, 2.0**-1060, 5e-324, 1 / 3]


def test_conventions_are_those_of_the_table():
    # contract 13.3
    assert set(CONVENTIONS) == set(REQUANTIZATIONS)


def sums(rng, shape, multiplier):
    """Accumulators whose codes are spread over those of 16 bits, others of all sizes, and the ends."""
    size = int(np.prod(shape))
    spread = rng.integers(-70000, 70000, size) / max(multiplier, 2.0**-15)
    any_size = rng.integers(-(2**31), 2**31, size) >> rng.integers(0, 32, size)
    acc = np.where(rng.random(size) < 0.7, spread, any_size)
    acc[rng.random(size) < 0.1] = rng.choice(SUMS)
    return acc.clip(-(2**31), 2**31 - 1).astype(np.int32).reshape(shape)


def check(acc, *numbers, **options):
    expected = codes(acc, *numbers, **options)
    same_bytes(reference.requantize(acc, *numbers, **options), expected)
    same_bytes(fastq.requantize(acc, *numbers, **options), expected)
    same_bytes(fastq.requantize(acc, *numbers, **options, out=~expected), expected)  # each element is written


# --- codes ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow(
    "compiles kernels for each dtype",
    quick=lambda convention, dtype: dtype == "int8",
)
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_multiplier(convention, dtype):
    rng, info = np.random.default_rng(1), np.iinfo(dtype)
    for multiplier in MULTIPLIERS:
        acc = sums(rng, 121, multiplier)
        zero_point = int(rng.choice([info.min, info.max, 0, rng.integers(info.min, info.max)]))
        check(acc, multiplier, zero_point, dtype, convention=convention)
        check(acc, np.float32(multiplier), zero_point, dtype, convention=convention, bias=int(rng.choice(SUMS)))


@pytest.mark.slow("compiles kernels for each convention", quick=lambda convention, axis: convention == "tflite")
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2)])
def test_channels(convention, axis):
    # contract 13.5
    rng, shape = np.random.default_rng(2), (3, 21, 5)
    kept = tuple(shape[a] for a in (axis if isinstance(axis, tuple) else (axis,)))
    for _ in range(3):
        multiplier = np.exp2(rng.uniform(-12, 6, kept))
        acc, bias = sums(rng, shape, 2.0**-4), sums(rng, kept, 2.0**-4)
        check(acc, multiplier, -3, "int8", axis=axis, convention=convention)
        check(acc, multiplier, 7, "int16", axis=axis, bias=bias, clamp=(0, 2000), convention=convention)
        check(acc, 0.37, 130, "uint8", axis=axis, bias=bias, convention=convention)
        check(acc, multiplier, 130, "uint8", axis=axis, bias=-12345, convention=convention)


def ties(dtype=np.int64):
    """Sums that a power of two takes to the middle between two codes, and their neighbours."""
    middles = np.arange(-300, 300)[:, None] * 512 + 256
    return (middles + np.array([-1, 0, 1])).astype(dtype)


@pytest.mark.parametrize(
    ("convention", "of_ties"),
    [
        ("tflite", [-2, -1, 1, 2]),
        ("tflite-single", [-1, 0, 1, 2]),
        ("ruy-x86", [-1, 0, 1, 2]),
        *((convention, [-2, 0, 0, 2]) for convention in FLOATS),
    ],
)
def test_ties(convention, of_ties):
    # contract 13.3
    found = fastq.requantize(np.int32([-6, -2, 2, 6]), 0.25, 0, "int8", convention=convention)
    assert found.tolist() == of_ties
    check(ties(np.int32), 2.0**-9, 0, "int16", convention=convention)


def test_tensorflow_lite_rounds_twice():
    """A product just below a tie, which the first rounding takes to it: 127.4999 units of 2**-8 become 127.5."""
    acc = np.int32([1271, -1271, 158068, -224776])
    multiplier = [0.45 * k for k in (1, 2)]
    for convention in CONVENTIONS:
        for factor in (*multiplier, 0.000345, 0.0988):
            check(acc, factor, 0, "int16", convention=convention)


def test_a_bias_that_is_a_float_is_added_in_float32():
    # contract 13.4
    rng = np.random.default_rng(3)
    acc, multiplier = sums(rng, (40, 9), 2.0**-6), np.exp2(rng.uniform(-9, -3, 9)).astype(np.float32)
    bias = (rng.standard_normal(9) * 1000).astype(np.float32)
    check(acc, multiplier, -3, "int8", axis=1, bias=bias, convention="torch")
    same_bytes(
        fastq.requantize(acc, multiplier, -3, "int8", axis=1, bias=bias.astype(np.float64), convention="torch"),
        fastq.requantize(acc, multiplier, -3, "int8", axis=1, bias=bias, convention="torch"),
    )


# --- memory -----------------------------------------------------------------------------------------------------------


MEMORY = LAYOUTS | {"mixed": mixed, "broadcast inside": lambda x: np.broadcast_to(x[:, :1], x.shape)}


@pytest.mark.parametrize("layout", MEMORY)
@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 2)])
def test_memory(layout, axis, threads):
    rng, shape = np.random.default_rng(4), (6, 70, 130)
    acc = MEMORY[layout](sums(rng, shape, 0.01))
    kept = () if axis is None else tuple(shape[a] for a in (axis if isinstance(axis, tuple) else (axis,)))
    multiplier, bias = np.exp2(rng.uniform(-9, -5, kept)), sums(rng, kept, 0.01)
    expected = reference.requantize(acc, multiplier, 5, "int8", axis=axis, bias=bias)
    for n in (1, 2):
        threads(n)
        same_bytes(fastq.requantize(acc, multiplier, 5, "int8", axis=axis, bias=bias), expected)
        for out in (
            np.empty(shape, np.int8),
            np.empty(shape[::-1], np.int8).T,
            np.empty((6, 70, 260), np.int8)[..., ::2],
        ):
            assert fastq.requantize(acc, multiplier, 5, "int8", axis=axis, bias=bias, out=out) is out
            same_bytes(np.ascontiguousarray(out), np.ascontiguousarray(expected))


@pytest.mark.slow("half a second each", quick=lambda convention: convention == "torch")
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_many_elements(convention, threads):
    # contract 13.1
    """Past the cache, by several threads, from any element on; every length that does not fill registers."""
    rng = np.random.default_rng(5)
    acc = sums(rng, (1 << 22) + 77, 0.001)
    for n in (1, 2):
        threads(n)
        expected = reference.requantize(acc, 0.00123, -7, "int8", convention=convention)
        same_bytes(fastq.requantize(acc, 0.00123, -7, "int8", convention=convention), expected)
        same_bytes(fastq.requantize(acc[3:], 0.00123, -7, "int8", convention=convention), expected[3:])
    for size in range(140):
        same_bytes(fastq.requantize(acc[:size], 0.00123, -7, "int8", convention=convention), expected[:size])


def test_rows_of_every_width(threads):
    rng = np.random.default_rng(6)
    for width in (*range(1, 70), 127, 128, 129, 511, 513):
        acc, multiplier = sums(rng, (67, width), 0.01), np.exp2(rng.uniform(-9, -5, width))
        bias = sums(rng, width, 0.01)
        for laid, axis in ((acc, 1), (np.ascontiguousarray(acc.T), 0)):
            expected = reference.requantize(laid, multiplier, 5, "uint8", axis=axis, bias=bias)
            same_bytes(fastq.requantize(laid, multiplier, 5, "uint8", axis=axis, bias=bias), expected)


def test_out_may_be_in_the_memory_of_other_operands():
    rng = np.random.default_rng(7)
    memory = sums(rng, (64, 8), 0.01)
    for at in (0, 1):
        acc = memory.copy()
        out = acc.view(np.int8).reshape(-1)[at : at + acc.size].reshape(acc.shape)
        expected = reference.requantize(acc.copy(), 0.01, 1, "int8")
        same_bytes(fastq.requantize(acc, 0.01, 1, "int8", out=out).copy(), expected)
    for name, at in itertools.product(("multiplier", "bias"), (0, 3)):
        given = {"multiplier": np.exp2(rng.uniform(-9, -5, 8)), "bias": sums(rng, 8, 0.01)}
        options = {"zero_point": 1, "dtype": "int8", "axis": 0}
        expected = reference.requantize(memory[0], **given, **options)
        out = given[name].view(np.int8)[at : at + 8]
        same_bytes(fastq.requantize(memory[0], **given, **options, out=out).copy(), expected)
    zero_point = np.int8([3])
    expected = reference.requantize(memory[0, :1], 0.01, 3, "int8")
    same_bytes(fastq.requantize(memory[0, :1], 0.01, zero_point, "int8", out=zero_point), expected)


def test_numbers_of_any_kind():
    rng = np.random.default_rng(8)
    acc, multiplier = sums(rng, (20, 6), 0.01), np.exp2(rng.uniform(-9, -5, 6))
    bias = sums(rng, 6, 0.01)
    expected = reference.requantize(acc, multiplier, 3, "int8", axis=1, bias=bias)
    for factors in (multiplier, multiplier.tolist(), multiplier[::-1].copy()[::-1], multiplier.astype(">f8")):
        for terms in (bias, bias.tolist(), bias.astype(np.int64), bias[::-1].copy()[::-1], bias.astype(">i4")):
            for zero_point in (3, np.int8(3), np.int64(3), np.array(3), np.array([3], np.int8)):
                same_bytes(fastq.requantize(acc, factors, zero_point, "int8", axis=1, bias=terms), expected)
    for factor in (2, 2.0, np.float32(2), np.float16(2), np.array([2.0]), [2], np.int32(2)):
        same_bytes(fastq.requantize(acc, factor, 3, np.int8), reference.requantize(acc, 2.0, 3, "int8"))
    assert fastq.requantize(np.int32(100), 0.5, 1, "int8").shape == ()


def test_a_plan_is_for_any_numbers():
    acc = np.int32([[100, 200], [300, -400]])
    for bias in (np.int32([1, 2]), np.int32([5, 6]), np.array([1, 2]), None):
        for multiplier in (np.array([0.5, 0.25]), np.array([0.75, 3.0]), 0.5, 0.7):
            for zero_point in (3, -3):
                expected = reference.requantize(acc, multiplier, zero_point, "int8", axis=1, bias=bias)
                same_bytes(fastq.requantize(acc, multiplier, zero_point, "int8", axis=1, bias=bias), expected)


def test_nothing_and_labels():
    assert fastq.requantize(np.empty((0, 3), np.int32), 1.0, 0, "int8").shape == (0, 3)
    assert fastq.requantize(np.empty((3, 0), np.int32), np.ones(3), 0, "int8", axis=0).shape == (3, 0)
    xarray = pytest.importorskip("xarray", reason="no xarray")
    x = xarray.DataArray(np.int32([[100, -200]]), dims=("n", "c"), coords={"c": ["a", "b"]})
    assert fastq.requantize(x, 0.5, 0, "int8").sel(c="a").item() == 50


# --- what is refused --------------------------------------------------------------------------------------------------

ACC = np.zeros((2, 3), np.int32)
WRONG = {
    "acc must be an int32 array, such as sums of products, not int64": {"acc": np.zeros(3, np.int64)},
    "acc must be an int32 array, such as sums of products, not float32": {"acc": np.zeros(3, np.float32)},
    "dtype must be one of int8, uint8, int16, not int4": {"dtype": "int4"},
    "convention must be one of 'tflite', .*, not 'onnx'": {"convention": "onnx"},
    "multiplier must be float16, bfloat16, float32, float64, int8 to int64 or uint8 to uint64, not bool": {
        "multiplier": True
    },
    r"multiplier must be finite and not negative; 1 of 3 are not, such as -1.0": {
        "multiplier": [1.0, -1.0, 0],
        "axis": 1,
    },
    "multiplier must be finite and not negative; 1 of 1 are not, such as nan": {"multiplier": np.nan},
    "multiplier must be finite and not negative; 1 of 1 are not, such as inf": {"multiplier": np.float32(np.inf)},
    r"multiplier must be less than 1073741823.75 for convention 'tflite', not 1073741823.75": {
        "multiplier": 2.0**30 - 0.25
    },
    r"multiplier must be less than 3.40\S+ for convention 'torch', not 1e\+300": {
        "multiplier": [1.0, 1e300, 0.0],
        "axis": 1,
        "convention": "torch",
    },
    r"multiplier has shape \(3,\), so it needs an axis: pass axis=1, of length 3 in acc": {"multiplier": np.ones(3)},
    r"multiplier has shape \(2,\), but acc and axis need \(3,\) or one number": {"multiplier": np.ones(2), "axis": 1},
    "zero_point must be from -128 to 127 for int8, not 128": {"zero_point": 128},
    "zero_point must be of an integer dtype, not float64": {"zero_point": 0.0},
    r"zero_point must be one number, not of shape \(2,\)": {"zero_point": [0, 0]},
    r"bias has shape \(2,\), but acc and axis need \(3,\) or one number": {"bias": np.zeros(2, np.int32), "axis": 1},
    "bias must be int8 to int64 or uint8 to uint64 for convention 'tflite', not float64": {"bias": 1.5},
    "bias must be int8 to int64 or uint8 to uint64 for convention 'torch', not bool": {
        "bias": True,
        "convention": "torch",
    },
    "bias must be from -2147483648 to 2147483647, not 2147483648": {"bias": 2**31},
    "bias must be finite in float32": {"bias": 1e39, "convention": "torch"},
    "clamp must be two codes, not 3": {"clamp": 3},
    r"clamp must be two codes, not \[1, 2, 3\]": {"clamp": [1, 2, 3]},
    "clamp must be two codes of int8 in order, from -128 to 127, not 0, 128": {"clamp": (0, 128)},
    "clamp must be two codes of int8 in order, from -128 to 127, not 2, 1": {"clamp": (2, 1)},
    "axis of acc": {"axis": 2},
    "out has dtype uint8, but the result has dtype int8": {"out": np.empty((2, 3), np.uint8)},
    r"out has shape \(3, 2\), but the result has shape \(2, 3\)": {"out": np.empty((3, 2), np.int8)},
}


@pytest.mark.parametrize("api", [fastq, reference])
@pytest.mark.parametrize("message", WRONG)
def test_what_is_refused(api, message):
    given = {"acc": ACC, "multiplier": 0.5, "zero_point": 0, "dtype": "int8"} | WRONG[message]
    numbers = [given.pop(name) for name in ("acc", "multiplier", "zero_point", "dtype")]
    with pytest.raises((TypeError, ValueError), match=message):
        api.requantize(*numbers, **given)


def test_numbers_that_were_right_in_an_earlier_call_are_looked_at():
    for good, bad in ((0.5, -0.5), (0.5, 2.0**30), (np.ones(3), np.full(3, np.nan)), (np.ones(3), np.full(3, 2.0**31))):
        fastq.requantize(ACC, good, 0, "int8", axis=1)
        with pytest.raises(ValueError, match="multiplier must be"):
            fastq.requantize(ACC, bad, 0, "int8", axis=1)
    with pytest.raises(ValueError, match="zero_point must be"):
        fastq.requantize(ACC, 0.5, 200, "int8", axis=1)


def test_multipliers_of_the_oracle_are_those_of_the_definition():
    # contract 13.2
    assert quantized_multiplier(1.0) == (2**30, 1)
    assert quantized_multiplier(1.0 - 2.0**-40) == (2**30, 1)
    assert quantized_multiplier(2.0**-32) == (2**30, -31)
    assert quantized_multiplier(0.9 * 2.0**-32) == (0, 0)
