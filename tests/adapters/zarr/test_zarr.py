"""The codecs of zarr: every rounding and treatment of values out of range, as in the reference and other systems."""

import functools
import importlib
import itertools

import cast_values as reference
import numpy as np
import pytest
from catalogue import same_bytes
from fuzzing.combinations import CASTS

import fastq
from fastq.adapters.zarr.casting import ROUNDINGS

zarr = pytest.importorskip("zarr", reason="no zarr")

MODES = (None, "clamp", "wrap")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def near(dtype, source, in_range=False):
    """Halves, the ends of the range with their neighbours, and values far out of range."""
    info, rng = np.iinfo(dtype), np.random.default_rng(5)
    ends = np.array([info.min, info.max], np.float64)[:, None] + np.arange(-4, 5) / 4
    wide = (rng.standard_normal(80) * s for s in (1, 100, 3e4, 1e9, 1e15, 1e30))
    tiny = [0.0, -0.0, 0.49999997, np.nextafter(0.5, 0), -np.nextafter(0.5, 0), 8388609.0, 1e-40]
    x = np.concatenate([np.arange(-40, 40) / 4, ends.ravel(), *wide, tiny]).astype(source)
    return x[(x > float(info.min)) & (x < float(info.max) - 1)] if in_range else x


@pytest.mark.slow(
    "compiles two kernels for each pair of dtypes and rounding",
    quick=lambda source, dtype, mode, **_: (source, dtype) == ("float32", "uint8") and mode != "wrap",
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [*INTEGERS, "uint32"])
@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_pair(source, dtype, rounding, mode):
    # contract 24.2
    """As the reference, and as cast-value-rs where that is installed."""
    x = near(dtype, source, in_range=mode is None)
    expected = reference.cast_value(x, dtype, rounding=rounding, out_of_range=mode)
    same_bytes(fastq.zarr.cast_value(x, dtype, rounding=rounding, out_of_range=mode), expected)
    if importlib.util.find_spec("cast_value_rs"):
        options = {"rounding_mode": rounding, "out_of_range_mode": mode}
        system = importlib.import_module("cast_value_rs")
        same_bytes(system.cast_array(x, target_dtype=np.dtype(dtype), **options), expected)


@pytest.mark.parametrize("source", ["int16", "float16", "int64", "float64"])
def test_pairs_without_a_kernel(source):
    x = np.array([0, 1, 2, 100], source)
    for dtype in ("int64", "uint64", "float32", "float64"):
        same_bytes(fastq.zarr.cast_value(x, dtype), x.astype(dtype))
    assert fastq.zarr.cast_value(np.array([300, -1]), "uint8", out_of_range="wrap").tolist() == [44, 255]
    assert fastq.zarr.cast_value(np.array([2.0**63]), "int64", out_of_range="clamp").tolist() == [2**63 - 1]


@pytest.mark.slow("compiles 4 kernels a pair", quick=lambda source, dtype: dtype[-2:] == "64" or source == "float64")
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "float16", "float64"])
@pytest.mark.parametrize("source", ["int64", "float16", "float64"])
def test_arrays_of_no_axis(source, dtype):
    for rounding, mode in itertools.product(ROUNDINGS, MODES[: 2 if dtype[0] == "f" else 3]):
        x, known = np.array(3, source), {3: 5}
        same_bytes(fastq.zarr.cast_value(x, dtype, rounding=rounding, out_of_range=mode), x.astype(dtype))
        result = fastq.zarr.cast_value(x, dtype, rounding=rounding, out_of_range=mode, scalar_map=known)
        same_bytes(result, np.array(5, dtype))


def test_layouts():
    x = near("uint8", "float32")[:60].reshape(6, 10)
    for each in (x.T, x[::-1, ::2], x.astype(">f4"), x[:0], x[0, 0]):
        result = fastq.zarr.cast_value(each, "uint8", out_of_range="clamp")
        same_bytes(result, reference.cast_value(np.asarray(each), "uint8", out_of_range="clamp"))


def test_scalar_map():
    x = np.array([np.nan, 300, np.inf, 2.5], np.float32)
    known = {np.nan: 7, 300: 1, np.inf: 9}
    assert fastq.zarr.cast_value(x, "uint8", scalar_map=known).tolist() == [7, 1, 9, 2]
    same_bytes(reference.cast_value(x, "uint8", scalar_map=known), np.array([7, 1, 9, 2], np.uint8))


def test_scalars_that_x_has_no_number_for_are_passed_over():
    known = {np.nan: 7, 300: 1, 1.5: 2, 10**5000: 3, 4: 5}
    x = np.array([4, 44, 1], np.int8)
    same_bytes(fastq.zarr.cast_value(x, "uint8", scalar_map=known), np.array([5, 44, 1], np.uint8))
    x = np.full((1,) * 64, np.inf, np.float32)
    assert fastq.zarr.cast_value(x, "float64", scalar_map={10**5000: 3, np.inf: 4}).item() == 4


@pytest.mark.parametrize("key", [0.1, np.float64(0.1), np.float32(0.1)])
def test_scalars_are_numbers_of_the_dtype_of_x(key):
    # contract 24.4
    """Of floats the nearest one; no integer is rounded to the next float."""
    x = np.array([0.1, 0.25], np.float32)
    for cast in (fastq.zarr.cast_value, reference.cast_value):
        assert cast(x, "uint8", scalar_map={key: 7}).tolist() == [7, 0]
        assert cast(np.array([2**53, 2**53 + 1]), "int64", scalar_map={2.0**53: 7}).tolist() == [7, 2**53 + 1]


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        ([1.5, np.nan], {"out_of_range": "clamp"}, ValueError, "x has NaN or infinite values"),
        ([np.inf], {"out_of_range": "wrap"}, ValueError, "x has NaN or infinite values"),
        ([300.0], {}, ValueError, "x has values out of range of uint8"),
        ([300], {}, ValueError, "x has values out of range of uint8; pass out_of_range='clamp' or 'wrap'"),
        ([np.nan], {"dtype": "uint64", "out_of_range": "clamp"}, ValueError, "x has NaN or infinite values"),
        ([2.0**64], {"dtype": "uint64"}, ValueError, "x has values out of range of uint64"),
        ([1e39], {"dtype": "float32"}, ValueError, "x has values out of range of float32"),
        ([0.1], {"dtype": "float32", "out_of_range": "wrap"}, ValueError, "out_of_range must be None or 'clamp'"),
        ([0.1], {"rounding": "half"}, ValueError, "rounding must be one of"),
        ([0.1], {"out_of_range": "error"}, ValueError, "out_of_range must be one of"),
        ([True], {}, TypeError, "x must be float16, float32, float64, int8 to int64"),
        ([1.0], {"dtype": "complex64"}, TypeError, "dtype must be float16, float32, float64, int8 to int64"),
    ],
)
def test_refusals(x, options, error, message):
    with pytest.raises(error, match=message):
        fastq.zarr.cast_value(np.array(x), **({"dtype": "uint8"} | options))


@pytest.mark.parametrize("stream_from", [1 << 40, 1 << 8])
def test_a_wrong_value_is_refused_wherever_it_is(stream_from, small_cache):
    # contract 24.3
    """In registers, after the last one, and in lines that go past the cache."""
    small_cache(stream_from=stream_from)
    for size, wrong in itertools.product((4999, 5056), ((300, "out of range"), (np.nan, "NaN or infinite"))):
        x = np.ones(size, np.float32)
        same_bytes(fastq.zarr.cast_value(x, "uint8"), x.astype(np.uint8))
        for place in (0, 1, 2500, size - 1):
            x[:], x[place] = 1, wrong[0]
            with pytest.raises(ValueError, match=wrong[1]):
                fastq.zarr.cast_value(x, "uint8")


@pytest.mark.parametrize(
    ("value", "message"),
    [(300.0, r"x has 300\.0, which is out of range of uint8"), (np.nan, "x has nan, which integers lack")],
)
def test_what_the_reference_refuses(value, message):
    with pytest.raises(ValueError, match=message):
        reference.cast_value(np.array([value]), "uint8")


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        ([2**53, -(2**63), 2**62], "float32"),
        (np.array([2**63, 0], np.uint64), "float64"),
        (np.array([2048, -2048], ">i8"), "float16"),
        (np.array([0.5, np.nan, -np.inf]), "float16"),
        (np.array([0.1], np.float32), "float64"),
    ],
)
def test_numbers_that_a_float_dtype_has_are_cast_in_any_rounding(x, dtype):
    x = np.asarray(x)
    for rounding in ROUNDINGS:
        same_bytes(fastq.zarr.cast_value(x, dtype, rounding=rounding), x.astype(dtype))


@pytest.mark.parametrize("to", ["float16", "float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_signalling_nan_is_cast_without_a_warning(dtype, to):
    x = np.array([1.0, np.inf, -2.0], dtype)
    x.view(f"u{x.itemsize}")[1] += 1  # the bits after those of infinity
    for rounding in ROUNDINGS:
        np.testing.assert_array_equal(fastq.zarr.cast_value(x, to, rounding=rounding), [1.0, np.nan, -2.0])


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_infinity_is_no_integer(rounding):
    x = np.array([70000, -70000])
    same_bytes(
        fastq.zarr.cast_value(x, "float16", rounding=rounding, out_of_range="clamp"), np.float16([np.inf, -np.inf])
    )


@pytest.mark.slow(
    "compiles 4 kernels a pair",
    quick=lambda source, dtype: dtype[-2:] == "64" or (source == "float32" and dtype not in ("int16", "uint16")),
)
@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
def test_special_values(source, dtype):
    # contract 24.3
    """By the specification NaN, infinities and the sign of 0 are kept by floats, and what integers lack is refused."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], source)
    for rounding, mode in itertools.product(ROUNDINGS, MODES[:2]):
        cast = functools.partial(fastq.zarr.cast_value, dtype=dtype, rounding=rounding, out_of_range=mode)
        if np.dtype(dtype).kind == "f":
            same_bytes(cast(x), x.astype(dtype))
            continue
        for value in x[2:]:
            with pytest.raises(ValueError, match="x has NaN or infinite values, which integers lack"):
                cast(np.array([value]))
            assert cast(np.array([value]), scalar_map={value: 7}).tolist() == [7]


def test_without_zarr(monkeypatch):
    monkeypatch.setitem(importlib.sys.modules, "zarr", None)
    monkeypatch.setitem(importlib.sys.modules, "zarr.registry", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install zarr"):
        fastq.zarr.register()
