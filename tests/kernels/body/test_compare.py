"""Errors of an approximation that holds NaN or infinities: the same measures by every path, fast and reference."""

import dataclasses
import itertools
import math

import dask.array as da
import numpy as np
import pytest
from catalogue import LAYOUTS, same_measures, values

import fastq
from fastq import reference
from fastq.engine.runtime import tiling
from fastq.engine.runtime.shared_records import BUFFER, TOGETHER
from fastq.ops.compare import ERRORS_CHUNK
from fastq.plan.cache import plans

ABSOLUTE = ("mse", "sqnr_db", "max_abs_error", "mean_abs_error")
RELATIVE = ("max_relative_error", "mean_relative_error")


def measured(x, q):
    """Measures of both, which agree."""
    actual = fastq.compare(x, q)
    same_measures(actual, reference.compare(x, q))
    return actual


def nan_among(measures):
    return {name for name in ABSOLUTE + RELATIVE if math.isnan(getattr(measures, name))}


def test_other_measures_of_errors_of_any_size_are_noticed():
    x = np.linspace(1, 2, 9) * 1e-30
    right = reference.compare(x, x * 1.01)
    for name in ABSOLUTE + RELATIVE:
        other = dataclasses.replace(right, **{name: getattr(right, name) * (1 + 1e-9)})
        with pytest.raises(AssertionError, match=f"different: {name} is "):
            same_measures(other, right)


def approximation(x, dtype="float32"):
    with np.errstate(over="ignore"):
        return (x * 0.75).astype(dtype)


@pytest.mark.slow(
    "compiles a kernel for each pair of dtypes", quick=lambda dtypes, size: dtypes == ("float32", "float32")
)
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float64", "float32"), ("int16", "float64")], ids="-".join)
@pytest.mark.parametrize("size", [1, 5, 70])
def test_nan_at_every_place(dtypes, size):
    """In the tail, in each lane, in the first and in the last vector."""
    x = np.arange(1, size + 1).astype(dtypes[0])
    for place in range(size):
        other = approximation(x, dtypes[1])
        other[place] = np.nan
        assert nan_among(measured(x, other)) == {*ABSOLUTE, *RELATIVE}, place
        x[place] = 0
        assert nan_among(measured(x, other)) == {*ABSOLUTE}, place  # what is 0 has no relative error
        x[place] = place + 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_in_every_layout(layout, threads):
    x = np.abs(values("float32", 6 * 70, 3).reshape(6, 70)) + 1
    for place, n in ((0, 1), (69, 2), (5 * 70 + 66, 4), (5 * 70 + 69, 1)):
        threads(n)
        other = approximation(x)
        other.flat[place] = np.nan
        for given in ((LAYOUTS[layout](x), other), (x, LAYOUTS[layout](other))):
            present = np.isnan(given[1]).any()  # a broadcast array repeats its first row
            assert nan_among(measured(*given)) == ({*ABSOLUTE, *RELATIVE} if present else set())


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0)])
def test_both_in_the_same_order_in_memory(order):
    """Which is not C order: kernels read both as they lie."""
    x = values("float32", 5 * 4 * 70, 3).reshape([(5, 4, 70)[axis] for axis in np.argsort(order)]).transpose(order)
    assert not x.flags.c_contiguous
    measured(x, approximation(x))
    measured(x, fastq.quantize(x, "int8", axis=1))


def test_nan_in_every_chunk_by_every_number_of_threads(threads):
    x = np.linspace(1, 2, 3 * ERRORS_CHUNK + 77, dtype=np.float32)
    for place in (0, ERRORS_CHUNK - 1, ERRORS_CHUNK, 2 * ERRORS_CHUNK + 5, x.size - 1):
        other = approximation(x)
        other[place] = np.nan
        for n in (1, 2, 3, 4):
            threads(n)
            assert nan_among(fastq.compare(x, other)) == {*ABSOLUTE, *RELATIVE}


@pytest.mark.parametrize("layout", ["strided", "negative", "transposed", "swapped"])
def test_nan_in_every_tile(layout, threads):
    """In the first and the last element of pieces and squares, by every number of threads: the same sums to the bit."""
    shape = (16 * TOGETHER + 3, 2 * BUFFER // 64 + 70)
    x = np.linspace(1, 2, math.prod(shape), dtype=np.float32).reshape(shape)
    other, apart = approximation(x), LAYOUTS[layout]
    found = []
    for n in (1, 2, 3):
        threads(n)
        found += [measured(apart(x), other), measured(apart(x), apart(other))]
    assert found[2:] == found[:2] * 2
    for place in (
        0,
        BUFFER // 8 - 1,
        BUFFER // 8,
        ERRORS_CHUNK - 1,
        ERRORS_CHUNK,
        16 * TOGETHER * shape[1],
        x.size - 1,
    ):
        spoiled = other.copy()
        spoiled.flat[place] = np.nan
        for given in ((apart(x), spoiled), (x, apart(spoiled))):
            assert nan_among(fastq.compare(*given)) == {*ABSOLUTE, *RELATIVE}


@pytest.mark.parametrize("layout", ["strided", "transposed"])
@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"axis": 0}, {"axis": 1, "block_size": 32}], ids=str)
def test_codes_in_every_memory(layout, options, threads):
    # contract 26.2
    """Parameters go with their elements where x, codes or both lie in tiles."""
    x = np.random.default_rng(2).standard_normal((150, 544)).astype(np.float32)
    q, apart = reference.quantize(x, "int8", **options), LAYOUTS[layout]
    moved = dataclasses.replace(q, codes=apart(q.codes))
    for n in (1, 2):
        threads(n)
        for given in ((apart(x), q), (x, moved), (apart(x), moved)):
            measured(*given)


def with_the_same_sums(plan):
    """Return a plan in tiles, all of which add to the same sums."""
    plan.tiles[0].tile["sum_bytes"] = 0
    return plan


def test_a_square_beside_its_sums_is_found(monkeypatch, threads):
    """Squares that all threads add to the same sums, of which some are lost or counted in another order."""
    right = tiling.Cut.plan
    monkeypatch.setattr(tiling.Cut, "plan", lambda cut, launch: with_the_same_sums(right(cut, launch)))
    plans.clear()

    def repeated():  # a thread may come so late that another one has done all squares
        for _ in range(100):
            test_nan_in_every_tile("transposed", threads)

    with pytest.raises(AssertionError):
        repeated()
    plans.clear()


@pytest.mark.parametrize("width", [1, 2, 7, 9, 40])
def test_short_rows(width):
    """Of parameters of their own, and of parameters that are repeated side by side."""
    x = values("float32", 700 * width, 3).reshape(700, width)
    for axis in (0, 1):
        measured(x, fastq.quantize(x, "int8", axis=axis))


@pytest.mark.slow("compiles kernels for each format")
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "mxfp4", "mxint8", "nvfp4"])
def test_nan_among_codes_and_scales(dtype):
    x = values("float32", 3 * 70, 5).reshape(3, 70)
    x[1, 68] = 2
    spoiled = x.copy()
    spoiled[1, 68] = np.nan
    for options in ({}, {"axis": 0}):
        q = reference.quantize(spoiled, dtype, nan="keep", **options)
        for layout in ("c", "fortran", "strided"):
            assert nan_among(measured(LAYOUTS[layout](x), q)) == {*ABSOLUTE, *RELATIVE}


@pytest.mark.slow("compiles kernels for each convention")
@pytest.mark.parametrize("convention", fastq.CONVENTIONS)
def test_every_convention(convention):
    row, x = fastq.CONVENTIONS[convention], values("float32", 4 * 70, 5).reshape(4, 70).clip(-1000, 1000)
    options = {"convention": convention, "symmetric": "asymmetric" not in row.schemes}
    q = reference.quantize(x, (row.formats or ("uint8",))[0], **options)
    measured(x * np.float32(1.1), q)


def test_infinities():
    """An infinite error; an error of infinity less itself, which is NaN."""
    x, other = np.ones((2, 70), np.float32)
    for place in (0, 40, 69):
        other[place] = np.inf
        assert nan_among(measured(x, other)) == set()
        x[place] = np.inf
        assert nan_among(measured(x, other)) == {*ABSOLUTE, *RELATIVE}
        other[place] = 1
        assert nan_among(measured(x, other)) == {"sqnr_db", *RELATIVE}
        x[place] = 1


def test_sums_beyond_float64():
    x = np.full(3 * ERRORS_CHUNK, 4.5e151)  # the squares of one chunk still have a sum
    assert measured(x, x * 0.999).sqnr_db == pytest.approx(60)
    assert measured(x, x * 0).sqnr_db == pytest.approx(0, abs=1e-9)
    far, tiny = np.full(9, 1e150), np.full(9, 1e-160)
    assert measured(np.append(far, tiny[:1]), np.append(far, tiny[1:2] * 0)).sqnr_db > 6000  # no quotient overflows
    assert measured(tiny, far).sqnr_db < -6000


SCALES = (1e200, 1e-200, 1.0, 0.0)


@pytest.mark.parametrize(("of_x", "of_error"), [*itertools.product(SCALES, SCALES)])
def test_squares_beyond_float64_in_every_layout_and_in_chunks(of_x, of_error):
    drawn = np.random.default_rng(5).standard_normal((3, 3, 70))
    x = drawn[0] * of_x
    other = x + drawn[1] * of_error
    expected = measured(x, other)
    for layout in ("fortran", "strided", "negative", "swapped"):
        measured(LAYOUTS[layout](x), other)
    lazy, lazy_other = (da.from_array(each, chunks=(2, 32)) for each in (x, other))
    same_measures(fastq.compare(lazy, lazy_other).compute(scheduler="sync"), expected)
    mixed = np.concatenate([x, drawn[2]]), np.concatenate([other, drawn[2] * 1.01])
    lazy, lazy_other = (da.from_array(each, chunks=(1, 70)) for each in mixed)
    same_measures(fastq.compare(lazy, lazy_other).compute(scheduler="sync"), reference.compare(*mixed))
