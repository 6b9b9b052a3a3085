"""Casts to bfloat16 and float16: those of ml_dtypes and NumPy over all patterns, at random, and their statistics."""

import math
from fractions import Fraction

import dask.array
import ml_dtypes
import numba
import numpy as np
import pytest
import xarray
from catalogue import LAYOUTS, same_bytes

import fastq
from fastq import reference
from fastq.formats.floats import FLOAT_FORMATS
from fastq.reference.stochastic_rounding import numbers
from fastq.requests.stochastic_rounding import noise_of

TARGETS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
AT_RANDOM = {"rounding": "stochastic", "rng": 5}
BOTH = pytest.mark.parametrize("name", TARGETS)
# around ties of the 16 bits that bfloat16 drops, and of the 13 of float16
LOW = (0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
PATTERNS = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | np.array(LOW, np.uint32)).view(np.float32)


def cast(x, name, **options):
    """The cast as ml_dtypes and NumPy know it: nothing saturates, NaN stays."""
    return fastq.quantize_linear(x, 1.0, dtype=name, saturate=False, nan="keep", **options)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def theirs(x, name):
    """What ml_dtypes or NumPy make of numbers; of NaN the quiet one without payload, with its sign."""
    form, result = FLOAT_FORMATS[name], x.astype(TARGETS[name])
    nan = np.where(np.signbit(x), form.nan | 0x8000, form.nan).astype(np.uint16)
    return np.where(np.isnan(x), nan, result.view(np.uint16)).view(result.dtype)


@pytest.mark.slow("compiles a kernel each", quick=lambda name, dtype: name == "bfloat16" or dtype == "float32")
@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_patterns_around_ties_are_cast_as_by_ml_dtypes_and_numpy(name, dtype):
    # contract 8.7
    with np.errstate(invalid="ignore"):  # signalling NaN
        x = PATTERNS.astype(dtype)
    same_bytes(cast(x, name), theirs(x, name))


@pytest.mark.slow("all of float32, a minute each", quick=lambda name: False)
@BOTH
def test_every_float32_is_cast_as_by_ml_dtypes_and_numpy(name):
    # contract 8.7
    for first in range(0, 1 << 32, 1 << 26):
        x = np.arange(first, first + (1 << 26), dtype=np.uint32).view(np.float32)
        same_bytes(cast(x, name), theirs(x, name))


def test_float64_is_rounded_once():
    # contract 8.7; ml_dtypes rounds to float32 first
    tie = 1 + 2.0**-8
    x = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, 2.0**-133 * 1.5 + 2.0**-180])
    expected = np.array([1, 1 + 2.0**-7, 1, 2.0**-132]).astype(ml_dtypes.bfloat16)
    same_bytes(cast(x, "bfloat16"), expected)


@pytest.mark.slow("compiles four kernels each", quick=lambda name, random: name == "bfloat16" and random)
@BOTH
@pytest.mark.parametrize("random", [{}, AT_RANDOM], ids=["nearest", "at random"])
def test_overflow_nan_and_zeros(name, random):
    # contract 8.2, 8.5 and 9.1
    largest = FLOAT_FORMATS[name].max
    x = np.array([np.inf, -np.inf, 3.4e38, -3.4e38, -0.0, 0.0, largest], np.float32)
    given = {"dtype": name} | random
    saturated = [largest, -largest, largest, -largest, -0.0, 0.0, largest]
    beyond = [np.inf, -np.inf, np.inf, -np.inf, -0.0, 0.0, largest]
    for api in (fastq, reference):
        same_bytes(api.quantize_linear(x, 1.0, **given), np.array(saturated, np.float32).astype(TARGETS[name]))
        found = api.quantize_linear(x, 1.0, saturate=False, **given)
        same_bytes(found, np.array(beyond, np.float32).astype(TARGETS[name]))
        spoiled = np.array([1.5, np.nan, -np.nan], np.float32)
        with pytest.raises(ValueError, match="x has 2 NaN"):
            api.quantize_linear(spoiled, 1.0, **given)
        zeros = api.quantize_linear(spoiled, 1.0, nan="zero", **given)
        same_bytes(zeros, np.array([1.5, 0, 0], np.float32).astype(TARGETS[name]))
        kept = api.quantize_linear(spoiled, 1.0, nan="keep", **given)
        nan = FLOAT_FORMATS[name].nan
        assert kept.view(np.uint16).tolist()[1:] == [nan | 0x8000 * bool(s) for s in np.signbit(spoiled[1:])]


KINDS = ["float32", "float64", "float16", "bfloat16", "int32", "uint8"]
SCALES = {"1": 1.0, "other": 0.37, "tiny": 2.0**-140, "huge": 1e38}


@pytest.mark.slow(
    "compiles a kernel each", quick=lambda name, dtype, length: (name, dtype, length) == ("bfloat16", "float32", 8)
)
@BOTH
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("length", [8, 96])
def test_fast_equals_reference(name, dtype, length):
    # contract 8.7 and 9.2
    rng, rows = np.random.default_rng(3), 2304 // length
    bits = rng.integers(0, 1 << 32, (rows, length), np.uint32)
    with np.errstate(all="ignore"):
        x = bits.view(np.float32).astype(TARGETS.get(dtype, dtype)) if dtype in (*TARGETS, "float32") else bits
        x = bits.view(np.float32) * rng.standard_normal(bits.shape) if dtype == "float64" else x.astype(x.dtype)
    x = x.astype(dtype) if dtype in ("int32", "uint8") else x
    per_row = np.exp2(rng.integers(-40, 40, rows) * 0.7).astype(np.float32)
    places = [(scale, {}) for scale in SCALES.values()]
    places += [(per_row, {"axis": 0}), (np.where(per_row > 1, 1, per_row), {"axis": 0})]
    for scale, where in places:
        for options in ({"saturate": True}, {"saturate": False}, {"saturate": False} | AT_RANDOM, AT_RANDOM):
            given = {"dtype": name, "nan": "keep"} | where | options
            same_bytes(*(api.quantize_linear(x, scale, **given) for api in (fastq, reference)))


def by_fractions(x, name, r):
    """The code of a finite number rounded at random by the bits r: contract 9.2 in fractions."""
    form, size = FLOAT_FORMATS[name], Fraction(abs(float(x)))
    exponent = max(math.frexp(float(size))[1] - 1, 1 - form.bias) if size else 1 - form.bias
    units = size / Fraction(2) ** (exponent - form.mantissa)
    whole = math.floor(Fraction(round(units * 2**15) + r, 2**15))  # round() takes ties to even
    code = (exponent - 1 + form.bias << form.mantissa) + whole
    return min(code, form.infinity) | 0x8000 * bool(np.signbit(x))


@BOTH
def test_numbers_at_random_by_fractions(name):
    # contract 9.2
    rng = np.random.default_rng(8)
    low = np.float32(2.0) ** rng.integers(-149, -120, 300).astype(np.float32)
    usual = np.float32(2.0) ** rng.integers(-25, 16, 300).astype(np.float32)
    x = np.concatenate([low, usual]) * rng.uniform(-2, 2, 600).astype(np.float32)
    r = numbers(noise_of("stochastic", 5), x.shape)
    expected = [by_fractions(number, name, int(bits)) for number, bits in zip(x, r, strict=True)]
    found = fastq.quantize_linear(x, 1.0, dtype=name, saturate=False, **AT_RANDOM)
    assert found.view(np.uint16).tolist() == expected


@pytest.mark.slow("compiles two kernels each", quick=lambda name: name == "bfloat16")
@BOTH
def test_the_least_number_that_goes_up(name):
    # contract 9.2
    r = numbers(noise_of("stochastic", 5), (4096,)).astype(np.int64)
    unit, base = 2.0 ** -FLOAT_FORMATS[name].mantissa, np.arange(4096) % 64
    for less in (0, 0.25, 0.5, 0.75, 1):  # 2**-15 units from going up; ties go to even
        parts = 2**15 - r - less
        x = 1 + base * unit + parts * 2.0**-15 * unit
        expected = 1 + base * unit + (np.rint(parts) + r >= 2**15) * unit
        found = fastq.quantize_linear(x.astype(np.float32), 1.0, dtype=name, **AT_RANDOM)
        if name == "bfloat16" and less % 0.5 == 0:  # what float32 holds
            same_bytes(found.astype(np.float64), expected)
        found = fastq.quantize_linear(x, 1.0, dtype=name, **AT_RANDOM)
        same_bytes(found.astype(np.float64), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_belong_to_places_whatever_the_memory_and_the_threads(layout, threads):
    # contract 9.3
    x = LAYOUTS[layout](np.random.default_rng(2).standard_normal((300, 700)).astype(np.float32))
    expected = reference.quantize_linear(np.ascontiguousarray(x), 1.0, dtype="bfloat16", **AT_RANDOM)
    for n in (1, 2):
        threads(n)
        out = np.empty(x.shape, ml_dtypes.bfloat16)
        assert fastq.quantize_linear(x, 1.0, out=out, **AT_RANDOM) is out  # the format is that of out
        same_bytes(out, expected)


@BOTH
def test_lazy_labelled_and_compiled(name):
    x = np.random.default_rng(0).standard_normal((20, 48)).astype(np.float32)
    whole = fastq.quantize_linear(x, 1.0, dtype=name, **AT_RANDOM)
    lazily = fastq.quantize_linear(dask.array.from_array(x, chunks=(7, 16)), 1.0, dtype=name, **AT_RANDOM)
    assert lazily.dtype == whole.dtype
    same_bytes(lazily.compute(), whole)
    labelled = fastq.quantize_linear(xarray.DataArray(x, dims=("a", "b")), 1.0, dtype=name, **AT_RANDOM)
    assert labelled.dims == ("a", "b")
    same_bytes(labelled.values, whole)
    compiled = numba.njit(lambda x: fastq.quantize_linear(x, 1.0, dtype=name))
    same_bytes(compiled(x), fastq.quantize_linear(x, 1.0, dtype=name).view(np.uint16))


@BOTH
def test_how_a_cast_is_asked_for(name):
    x, expected = np.array([1.0, 2.5], np.float32), np.array([1.0, 2.5], TARGETS[name])
    for api in (fastq, reference):
        for dtype in (name, TARGETS[name], np.dtype(TARGETS[name])):
            same_bytes(api.quantize_linear(x, 1.0, dtype=dtype), expected)
        same_bytes(api.quantize_linear(x, 1.0, 0, name), expected)
        for wrong in (lambda: api.quantize(x, name), lambda: api.fake_quantize(x, name)):  # noqa: B023
            with pytest.raises(TypeError, match=rf"^dtype must be .*, not '{name}'; fastq.quantize_linear casts to it"):
                wrong()
        with pytest.raises(ValueError, match=f"^zero_point must be 0 for {name}"):
            api.quantize_linear(x, 1.0, 1, name)
        with pytest.raises(ValueError, match=f"^convention must be 'onnx' for dtype {name}, not 'torch'"):
            api.quantize_linear(x, 1.0, dtype=name, convention="torch")
        kinds = "int8, uint8, int16, uint16, int32, uint32, or integers of up to 4 bits or floats of up to 8 bits of "
        kinds += "ml_dtypes"
        with pytest.raises(TypeError, match=f"^codes must be {kinds}"):
            api.dequantize_linear(expected.astype(np.float16), 1.0)


# --- statistics, of fixed seeds ---------------------------------------------------------------------------------------


@BOTH
def test_each_neighbour_is_as_frequent_as_it_is_near(name):
    # contract 9.2 and 9.8
    many, rng = 1 << 16, np.random.default_rng(1)
    for number in (1 + 2.0**-15, 1.003, -2.7183, 300.001, 1e-3, 2.0**-14 * 0.7331, 65503.0, 5.0 + 2.0**-9):
        number = np.float32(number)
        nearest = np.float32(number).astype(TARGETS[name])
        towards = np.nextafter(nearest, np.array(np.inf if number > nearest else -np.inf).astype(nearest.dtype))
        step = abs(float(towards) - float(nearest))
        part = abs(float(number) - float(nearest)) / step
        seed = int(rng.integers(1 << 30))
        found = fastq.quantize_linear(np.full(many, number), 1.0, dtype=name, rounding="stochastic", rng=seed)
        other = found == towards
        assert ((found == nearest) | other).all()
        assert abs(other.mean() - part) < 5 * math.sqrt(part * (1 - part) / many) + 2.0**-16


def test_means_are_unbiased():
    # contract 9.8
    x = np.random.default_rng(3).uniform(-3, 3, 1 << 20).astype(np.float32)
    values = fastq.quantize_linear(x, 1.0, dtype="bfloat16", **AT_RANDOM).astype(np.float64)
    unit = np.exp2(np.floor(np.log2(np.abs(x))) - 7)
    errors = (values - x) / unit
    assert abs(errors.mean()) < 5 * math.sqrt(1 / 6 / x.size)
    assert errors.var() == pytest.approx(1 / 6, rel=0.01)
    assert abs(np.corrcoef(errors[1:], errors[:-1])[0, 1]) < 5 / math.sqrt(x.size)


def test_weights_in_bfloat16_learn_from_small_steps():
    nearest = np.ones(4000, ml_dtypes.bfloat16)
    at_random, seeds = nearest.copy(), np.random.default_rng(0)
    for _ in range(100):
        fastq.quantize_linear(nearest + np.float32(1e-3), 1.0, out=nearest)
        fastq.quantize_linear(at_random + np.float32(1e-3), 1.0, out=at_random, rounding="stochastic", rng=seeds)
    assert (nearest == 1).all()
    assert at_random.astype(np.float64).mean() == pytest.approx(1.1, abs=1e-3)
