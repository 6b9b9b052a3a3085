"""`fastq.bit_information`: counts of bits of neighbours, those of the reference, however an array is cut in pieces."""

import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes

import fastq
from fastq import reference


def field(shape, dtype="float32", seed=0):
    """A smooth field with noise, gaps, zeros, infinities and subnormal numbers."""
    rng = np.random.default_rng(seed)
    waves = sum(np.sin(np.indices(shape)[k] / (5 + k)) for k in range(len(shape)))
    x = (10 * waves + rng.normal(size=shape)).astype(dtype)
    spoiled = rng.random(shape)
    x[spoiled < 0.05], x[(spoiled > 0.05) & (spoiled < 0.1)] = np.nan, 0.0
    x[(spoiled > 0.1) & (spoiled < 0.12)] = np.finfo(x.dtype).smallest_subnormal * 5
    x[(spoiled > 0.12) & (spoiled < 0.13)] = -np.inf
    return x


@pytest.mark.slow("compiles a kernel for each dtype", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_counts_are_those_of_the_reference(dtype, threads):
    # contract 23.6
    x = field((17, 41, 77), dtype)
    for axis in range(3):
        expected = reference.bit_information(x, axis=axis)
        for n in (1, 2):
            threads(n)
            found = fastq.bit_information(x, axis=axis)
            assert found.dtype == expected.dtype
            same_bytes(found.counts, expected.counts)
    assert (fastq.bit_information(x).counts == expected.counts).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, -1])
def test_layouts(layout, axis):
    x = LAYOUTS[layout](field((40, 77)))
    same_bytes(fastq.bit_information(x, axis=axis).counts, reference.bit_information(x, axis=axis).counts)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 255, 256, 257, 300_001])
def test_sizes(size, threads):
    threads(2)
    x = field((size,), seed=1)
    found = fastq.bit_information(x)
    same_bytes(found.counts, reference.bit_information(x).counts)
    known = ~np.isnan(x)
    assert found.pairs == (known[:-1] & known[1:]).sum() if size else found.pairs == 0


def test_more_pairs_than_lanes_can_count():
    x = np.full(1 << 21, np.float16(-1.0))
    assert (fastq.bit_information(x).counts[0] == [[0, 0], [0, (1 << 21) - 1]]).all()


def test_information_is_the_mutual_information_of_neighbours():
    # contract 23.6
    found = fastq.bit_information(field((300, 50)))
    for k, counts in enumerate(found.counts):
        p, expected = counts / counts.sum(), 0.0
        for a in (0, 1):
            for b in (0, 1):
                if p[a, b]:
                    expected += p[a, b] * np.log2(p[a, b] / (p[a].sum() * p[:, b].sum()))
        assert found.information[k] == pytest.approx(expected, abs=1e-14)


def test_what_is_known_of_bits():
    # contract 23.7
    alternating = fastq.bit_information(np.resize(np.float32([1.0, -1.0]), 1001))
    assert alternating.information[0] == pytest.approx(1.0, abs=1e-5)
    assert (alternating.information[1:] == 0).all()
    assert alternating.keepbits() == 0
    assert alternating.keepbits(1.0) == 23
    noise = fastq.bit_information(np.random.default_rng(2).integers(0, 1 << 15, 100_000).astype(np.uint16).view("f2"))
    assert noise.information.max() < 1e-3
    assert fastq.bit_information(np.ones(1)).keepbits() == 52
    assert fastq.bit_information(np.full(100, np.float32(0.1))).keepbits() == 23
    assert alternating.names[:2] + alternating.names[8:10] + alternating.names[-1:] == ["sign", "e1", "e8", "m1", "m23"]
    assert repr(alternating) == "<BitInformation: 1,000 pairs of float32, keepbits(0.99) = 0>"


def test_a_sum_is_of_all_pairs():
    x = field((60, 31))
    a, b, c = (fastq.bit_information(part) for part in (x[:20], x[20:], x))
    same_bytes((a + b).counts, c.counts)
    with pytest.raises(ValueError, match="other has bits of float64, but this has bits of float32"):
        a + fastq.bit_information(np.ones(3))
    with pytest.raises(TypeError, match="unsupported operand"):
        a + 1


def test_dask_counts_pairs_across_chunks():
    da = pytest.importorskip("dask.array", reason="no dask")
    x = field((50, 47, 9))
    for axis in (0, 1, -1):
        lazy = da.from_array(x, chunks=((20, 0, 30), 10, 4))
        same_bytes(fastq.bit_information(lazy, axis=axis).counts, fastq.bit_information(x, axis=axis).counts)
    row = x[:, 0, 0]
    same_bytes(fastq.bit_information(da.from_array(row, chunks=7)).counts, fastq.bit_information(row).counts)


@pytest.mark.parametrize("api", [fastq, reference])
def test_refusals(api):
    with pytest.raises(TypeError, match="x must be float16, float32 or float64, not int32"):
        api.bit_information(np.ones(3, np.int32))
    with pytest.raises(np.exceptions.AxisError):
        api.bit_information(np.ones(3), axis=1)
    with pytest.raises(TypeError, match="axis must be an int"):
        api.bit_information(np.ones(3), axis=None)
    with pytest.raises(np.exceptions.AxisError):
        api.bit_information(np.float32(1))


@pytest.mark.parametrize(("level", "error"), [(1.5, ValueError), (-0.1, ValueError), ("0.99", TypeError)])
def test_levels_that_are_refused(level, error):
    with pytest.raises(error, match="level must be"):
        fastq.bit_information(np.ones(3)).keepbits(level)


@pytest.mark.parametrize(
    ("dtype", "counts"),
    [("int32", np.zeros((32, 2, 2), int)), ("float32", np.zeros((16, 2, 2), int)), ("float32", np.zeros((32, 2, 2)))],
)
def test_counts_of_another_kind_are_refused(dtype, counts):
    with pytest.raises(TypeError, match=r"counts of \w+ must be integers of shape \(32, 2, 2\), not "):
        fastq.BitInformation(np.dtype(dtype), counts)
