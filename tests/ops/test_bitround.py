"""`fastq.bitround`: the bits that the reference keeps, in every memory layout and in place; bounds of errors."""

import math
import threading

import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes, values

import fastq
from fastq import reference
from fastq.formats.bitrounding import most_digits, of_width
from fastq.requests import bitrounding
from fastq.requests.bitrounding import BitRoundOptions

DTYPES = ["float16", "float32", "float64"]


def all_kinds(dtype, size, seed=0):
    """Any bits, NaN with payloads among them, powers of two and ten with their neighbours, subnormal numbers."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    info, unsigned = np.finfo(dtype), np.dtype(f"u{dtype.itemsize}")
    powers = [2.0**k for k in range(info.minexp - info.nmant, info.maxexp)]
    powers += [float(f"1e{k}") for k in range(int(np.log10(info.tiny)) - 5, int(np.log10(info.max)) + 1)]
    with np.errstate(over="ignore", under="ignore"):
        known = np.array(powers).astype(dtype).view(unsigned)
    near = np.concatenate([known + np.array(step).astype(unsigned) for step in (-3, -2, -1, 0, 1, 2, 900)])
    drawn = rng.integers(0, np.iinfo(unsigned).max, size, unsigned, endpoint=True)
    picked = np.where(rng.random(size) < 0.4, rng.choice(near, size), drawn)
    picked = np.where(rng.random(size) < 0.2, rng.normal(size=size).astype(dtype).view(unsigned), picked)
    ends = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, info.max, -info.max], dtype).view(unsigned)
    picked[: len(ends)] = ends[:size]
    return picked.view(dtype)


def cases(dtype):
    bits = 8 * np.dtype(dtype).itemsize
    mantissa = of_width(bits)[0]
    for convention in ("numcodecs", "netcdf"):
        yield from ({"keepbits": k, "convention": convention} for k in (0, 1, mantissa // 2, mantissa - 1, mantissa))
        yield from ({"digits": k, "convention": convention} for k in (1, 2, most_digits(bits)))


@pytest.mark.slow("compiles four kernels for each dtype", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_the_reference(dtype, threads):
    # contract 23.1
    x = all_kinds(dtype, 100_003)
    for options in cases(dtype):
        expected = reference.bitround(x, **options)
        for n in (1, 2):
            threads(n)
            same_bytes(fastq.bitround(x, **options), expected)


def test_every_number_of_float16():
    x = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    for convention in ("numcodecs", "netcdf"):
        for options in (*({"keepbits": k} for k in range(11)), *({"digits": k} for k in (1, 2, 3))):
            found = fastq.bitround(x, convention=convention, **options)
            same_bytes(found, reference.bitround(x, convention=convention, **options))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{"keepbits": 5}, {"digits": 3}, {"max_error": 0.25}])
def test_layouts_and_outputs(layout, options):
    x = LAYOUTS[layout](all_kinds("float32", 40 * 77, 4).reshape(40, 77).clip(-1e6, 1e6))
    expected = reference.bitround(x, **options)
    same_bytes(fastq.bitround(x, **options), expected)
    assert fastq.bitround(x, **options).strides == np.empty_like(x, expected.dtype).strides
    for out in (np.zeros((40, 77), np.float32), np.zeros((77, 40), np.float32).T, np.zeros((40, 154), ">f4")[:, ::2]):
        assert fastq.bitround(x, out=out, **options) is out
        same_bytes(out.astype(np.float32), expected)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("broadcast", "read_only")])
@pytest.mark.parametrize("options", [{"keepbits": 5}, {"digits": 1}, {"max_error": 0.25}])
def test_in_place(layout, options):
    x = LAYOUTS[layout](all_kinds("float32", 40 * 77, 5).reshape(40, 77).clip(-1e6, 1e6))
    expected = reference.bitround(x, **options)
    assert fastq.bitround(x, out=x, **options) is x
    same_bytes(x.astype(np.float32), expected)


def test_an_output_that_overlaps():
    memory = all_kinds("float32", 5000, 6).clip(-1e6, 1e6)
    expected = reference.bitround(memory[:4000], digits=2)
    same_bytes(fastq.bitround(memory[:4000], digits=2, out=memory[7:4007]), expected)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (7, 1, 5)])
def test_shapes(shape):
    x = values("float32", math.prod(shape), 3).reshape(shape)
    for options in ({"keepbits": 3}, {"digits": 3}, {"max_error": 1e-3}):
        same_bytes(fastq.bitround(x, **options), reference.bitround(x, **options))
        same_bytes(fastq.bitround(x, out=np.empty_like(x), **options), reference.bitround(x, **options))


def test_past_the_cache(small_cache):
    small_cache(stream_from=1 << 12)
    x = all_kinds("float32", 70_001, 7)
    for options in ({"keepbits": 9}, {"digits": 4}):
        expected = reference.bitround(x, **options)
        for begin in (0, 1, 5):
            out = np.zeros(len(x) + 16, np.float32)[begin : begin + len(x)]
            same_bytes(fastq.bitround(x, out=out, **options), expected)


def test_what_is_kept():
    # contract 23.3
    """The published definition, number by number: the nearest of those with this many bits, ties to the even one."""
    x = all_kinds("float16", 4000, 8)
    x = x[np.isfinite(x)]
    for kept in (1, 4, 9):
        step = 2.0 ** (np.maximum(np.frexp(x.astype(np.float64))[1] - 1, -14) - kept)
        with np.errstate(over="ignore"):
            expected = (np.rint(x / step) * step).astype(np.float16)
        same_bytes(fastq.bitround(x, keepbits=kept), expected)
        away = np.copysign(np.floor(np.abs(x) / step + 0.5) * step, x)
        with np.errstate(over="ignore"):
            same_bytes(fastq.bitround(x, keepbits=kept, convention="netcdf"), away.astype(np.float16))


def test_nan_keeps_its_bits_and_infinities_stay():
    # contract 23.2
    bits = np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001, 0x7F800000, 0xFF800000], np.uint32)
    for options in ({"keepbits": 1}, {"keepbits": 22}, {"digits": 2}, {"max_error": 3.0}):
        for convention in ("numcodecs", "netcdf"):
            same_bytes(fastq.bitround(bits.view(np.float32), convention=convention, **options).view(np.uint32), bits)


def test_what_rounds_up_beyond_the_largest_number_is_infinite():
    # contract 23.1
    most = np.finfo(np.float32).max
    assert fastq.bitround(np.float32([most, -most]), keepbits=7).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("dtype", DTYPES)
def test_digits_are_kept(dtype):
    # contract 23.4
    """No number is off by more than half of a unit of its last digit, as the CF conventions have it."""
    x = np.random.default_rng(9).uniform(1.0, 10.0, 5000).astype(dtype)
    for digits in range(1, most_digits(8 * x.itemsize) + 1):
        found = fastq.bitround(x, digits=digits)
        assert np.abs(found.astype(np.float64) - x.astype(np.float64)).max() <= 0.5 * 10.0 ** (1 - digits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bound", [0.0, 1e-5, 2.0**-6, 0.1, 700.0, math.inf])
def test_errors_are_within_the_bound_by_as_few_bits_as_that_needs(dtype, bound):
    # contract 23.5
    x = np.random.default_rng(10).uniform(-1000, 1000, 3000).astype(dtype)
    x[:3] = np.nan, np.inf, 999.5
    found, finite = fastq.bitround(x, max_error=bound), np.isfinite(x)
    assert np.abs(found[finite].astype(np.float64) - x[finite].astype(np.float64)).max() <= bound
    kept = bitrounding.bitround_request(x.dtype, BitRoundOptions(max_error=bound)).keepbits_within(999.5)
    same_bytes(found, reference.bitround(x, keepbits=kept))
    assert kept in (0, of_width(8 * x.itemsize)[0]) or 2.0 ** (9 - kept - 1) <= bound < 2.0 ** (9 - kept)


def test_the_largest_number_stays_finite_within_any_bound():
    # contract 23.5
    x = np.array([np.finfo(np.float32).max, 1.0], np.float32)
    assert np.isfinite(fastq.bitround(x, max_error=math.inf)).all()
    assert fastq.bitround(np.zeros(3, np.float32), max_error=1.0).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("api", [fastq, reference])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "one of keepbits, digits and max_error must be given, not none"),
        ({"keepbits": 3, "digits": 2}, TypeError, "must be given, not keepbits, digits"),
        ({"keepbits": 24}, ValueError, "keepbits must be from 0 to 23 for float32, not 24"),
        ({"keepbits": -1}, ValueError, "keepbits must be from 0 to 23"),
        ({"keepbits": 7.0}, TypeError, "keepbits must be an int, not 7.0"),
        ({"digits": 0}, ValueError, "digits must be from 1 to 7 for float32, not 0"),
        ({"digits": True}, TypeError, "digits must be an int"),
        ({"max_error": -1.0}, ValueError, "max_error must be from 0.0 to inf"),
        ({"max_error": math.nan}, ValueError, "max_error must be from"),
        ({"max_error": "0.1"}, TypeError, "max_error must be a number"),
        ({"keepbits": 7, "convention": "onnx"}, ValueError, "convention must be one of 'numcodecs', 'netcdf'"),
        ({"keepbits": 7, "out": np.zeros((2, 9), np.float32)}, ValueError, "out has shape"),
        ({"keepbits": 7, "out": np.zeros((2, 8))}, TypeError, "out has dtype float64"),
    ],
)
def test_refusals(api, options, error, message):
    with pytest.raises(error, match=message):
        api.bitround(np.ones((2, 8), np.float32), **options)


@pytest.mark.parametrize("api", [fastq, reference])
@pytest.mark.parametrize("dtype", ["int16", "complex64", "longdouble", "bool"])
def test_what_is_no_float_of_up_to_64_bits_is_refused(api, dtype):
    with pytest.raises(TypeError, match="x must be float16, float32 or float64, not"):
        api.bitround(np.ones(3, dtype), keepbits=3)


def test_dask_rounds_chunks_as_the_whole_array():
    da = pytest.importorskip("dask.array", reason="no dask")
    x = all_kinds("float32", 60 * 50, 11).reshape(60, 50).clip(-1e6, 1e6)
    lazy = da.from_array(x, chunks=(17, 20))
    for options in ({"keepbits": 4}, {"digits": 3}, {"max_error": 0.5}):
        found = fastq.bitround(lazy, **options)
        assert (found.chunks, found.dtype) == (lazy.chunks, x.dtype)
        same_bytes(found.compute(), reference.bitround(x, **options))
    with pytest.raises(TypeError, match="out must be None for a dask array"):
        fastq.bitround(lazy, keepbits=4, out=x)
    with pytest.raises(ValueError, match="keepbits must be from 0 to 23"):
        fastq.bitround(lazy, keepbits=40)


def test_a_dataarray_keeps_its_labels():
    xarray = pytest.importorskip("xarray", reason="no xarray")
    x = xarray.DataArray(np.float32([1.1, 2.2]), dims="t", coords={"t": [5, 6]}, name="v", attrs={"units": "K"})
    found = fastq.bitround(x, keepbits=2)
    xarray.testing.assert_identical(found, x.copy(data=reference.bitround(x.values, keepbits=2)))


def test_threads_of_the_caller():
    x, results = all_kinds("float32", 5000, 12), {}
    workers = [
        threading.Thread(target=lambda k=k: results.update({k: fastq.bitround(x, keepbits=k)})) for k in range(8)
    ]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    for k, found in results.items():
        same_bytes(found, reference.bitround(x, keepbits=k))
