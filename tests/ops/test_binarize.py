"""Binarize: the bytes of np.packbits, and so of sentence-transformers, whatever the layout, threads and output."""

import ml_dtypes
import numpy as np
import pytest
from catalogue import INPUTS, LAYOUTS, same_bytes, values

import fastq
from fastq import reference

SHAPES = [(), (0,), (7,), (8,), (1, 64), (5, 100), (3, 0, 8), (4, 2, 65), (33, 384)]


def packed(x, dtype="uint8", axis=-1, bitorder="big", threshold=0.0, inclusive=False):
    """The bytes by NumPy alone: "ubinary", and as int8 "binary" of sentence-transformers."""
    x = np.atleast_1d(x)
    numbers = (x if x.dtype.kind in "iu" else x.astype(np.float64)).astype(
        object
    )  # Python compares numbers as they are
    bits = np.packbits((numbers >= threshold if inclusive else numbers > threshold).astype(bool), axis, bitorder)
    return bits if dtype == "uint8" else (bits - 128).astype(np.int8)


def check(x, **options):
    expected = packed(x, **options)
    same_bytes(fastq.binarize(x, **options), expected)
    same_bytes(reference.binarize(x, **options), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape):
    # contract 1.12
    x = values("float32", int(np.prod(shape)), 3).reshape(shape)
    check(x)
    check(x, dtype="int8", bitorder="little")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [-1, 0])
def test_layouts(layout, axis):
    check(LAYOUTS[layout](values("float32", 40 * 77, 4).reshape(40, 77)), axis=axis)


@pytest.mark.slow("compiles two kernels for each dtype")
@pytest.mark.parametrize("dtype", [*INPUTS, "float16", ml_dtypes.bfloat16])
def test_dtypes(dtype):
    known = values("float32" if np.dtype(dtype).kind not in "iu" else dtype, 3 * 203, 5)
    with np.errstate(over="ignore"):
        x = known.astype(dtype).reshape(3, 203)
    for layout in ("c", "strided", "swapped"):
        check(LAYOUTS[layout](x))


def test_zeros_subnormals_and_infinities():
    # contract 1.11
    x = np.array([0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, np.finfo(np.float32).max, -1], np.float32)
    assert fastq.binarize(x).tolist() == [0b00101010]
    assert fastq.binarize(x, bitorder="little").tolist() == [0b01010100]
    assert fastq.binarize(x, dtype="int8").tolist() == [0b00101010 - 128]


EDGES = {
    "float32": [0.0, -0.0, 0.1, -0.1, 1e-45, 5e-324, -5e-324, 0.5, 65504.0, 3.4028234663852886e38, 1e300, -1e300],
    "float64": [0.0, 0.1, -0.1, 5e-324, -5e-324, 2.0, 1.7976931348623157e308, -1.7976931348623157e308],
    "int8": [0, 0.5, -0.5, 1, -128, 127, 126.5],
    "uint8": [0, 0.5, 1, 255, np.float32(3.5)],
    "int64": [0, 0.5, 2.0**53, 2.0**62, -(2.0**63), np.int8(-3)],
    "uint64": [0, 2.0**53, 2.0**63],
}
EDGES |= {"float16": EDGES["float32"], "bfloat16": EDGES["float32"]}


def beside(dtype, thresholds):
    """Numbers that are equal to thresholds, or as near to them as a dtype has any; zeros and infinities too."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        near = [int(number) + step for number in thresholds for step in (-1, 0, 1, 2)]
        return np.array([number for number in near if info.min <= number <= info.max], dtype)
    with np.errstate(over="ignore", under="ignore"):
        near = np.array(thresholds, np.float64).astype(dtype)
        steps = [np.nextafter(near, dtype.type(end)) for end in (-np.inf, np.inf)]
    return np.concatenate([near, *steps, np.array([0.0, -0.0, np.inf, -np.inf, 1, -1], dtype)])


def check_thresholds(dtype, shape):
    thresholds = [float(each) for each in EDGES[dtype]]
    near = beside(dtype, thresholds)
    x = near[np.random.default_rng(9).integers(0, near.size, shape)]
    for threshold in EDGES[dtype]:
        for inclusive in (False, True):
            check(x, threshold=threshold, inclusive=inclusive)
    check(x, threshold=1, inclusive=True, bitorder="little", dtype="int8", axis=0)
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    check(strided, threshold=1, inclusive=True)


@pytest.mark.slow("compiles four kernels for each dtype", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", EDGES)
def test_thresholds_are_compared_as_they_are(dtype):
    # contract 1.11: rows that end within a byte, too, whose last bits are 0
    check_thresholds(dtype, (33, 77))
    check_thresholds(dtype, (3, 192))


def test_nan_counts_as_zero_also_beside_a_threshold():
    # contract 1.11
    x = np.full((2, 200), np.nan, np.float32)
    x[1] = 1.0
    for api in (fastq, reference):
        for options in ({"threshold": -1.0}, {"inclusive": True}, {"threshold": 1.0, "inclusive": True}):
            with pytest.raises(ValueError, match="x has 200 NaN"):
                api.binarize(x, **options)
            same_bytes(api.binarize(x, nan="zero", **options), packed(np.nan_to_num(x), **options))


def test_a_center_that_is_subtracted_is_a_threshold_for_each_column():
    x = values("float32", 50 * 96, 10).reshape(50, 96)
    center = values("float32", 96, 11)
    with np.errstate(over="ignore"):
        same_bytes(fastq.binarize(x - center), np.packbits(x > center, axis=1))


@pytest.mark.parametrize("at", [0, 63, 64, 131, 199])
def test_nan_is_refused_wherever_it_is_or_not_positive(at):
    # contract 1.11
    x = np.ones((2, 200), np.float32)
    x[1, at] = np.nan
    for api in (fastq, reference):
        with pytest.raises(ValueError, match="x has 1 NaN; pass nan='zero'"):
            api.binarize(x)
        same_bytes(api.binarize(x, nan="zero"), packed(np.nan_to_num(x)))


def test_out():
    x = values("float32", 40 * 100, 6).reshape(40, 100)
    for dtype in ("uint8", "int8"):
        for out in (np.full((40, 13), 7, dtype), np.full((40, 26), 7, dtype)[:, ::2], np.full((13, 40), 7, dtype).T):
            assert fastq.binarize(x, dtype=dtype, out=out) is out
            same_bytes(np.ascontiguousarray(out), packed(x, dtype))
    mapped = np.zeros((40, 13), np.uint8).view(np.memmap)
    assert fastq.binarize(x, out=mapped) is mapped
    same_bytes(np.asarray(mapped), packed(x))
    memory = x.copy()
    out = memory.view(np.uint8)[:, 3:16]  # over the values themselves
    same_bytes(np.ascontiguousarray(fastq.binarize(memory, out=out)), packed(x))


@pytest.mark.parametrize("n", [1, 4])
def test_threads(n, threads):
    threads(n)
    for shape in ((300, 768), (1000, 101)):
        check(values("float32", shape[0] * shape[1], 7).reshape(shape))


@pytest.mark.parametrize("api", [fastq, reference])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "uint16"}, TypeError, "dtype must be uint8 or int8, not uint16"),
        ({"dtype": None}, TypeError, "dtype must be uint8 or int8"),
        ({"bitorder": "middle"}, ValueError, "bitorder must be one of"),
        ({"threshold": np.nan}, ValueError, "threshold must be from"),
        ({"threshold": np.inf}, ValueError, "threshold must be from"),
        ({"threshold": "0"}, TypeError, "threshold must be a number, not '0'"),
        ({"threshold": True}, TypeError, "threshold must be a number, not True"),
        ({"inclusive": 1}, TypeError, "inclusive must be a bool, not 1"),
        ({"nan": "keep"}, ValueError, "nan must be one of 'raise', 'zero'"),
        ({"axis": 2}, np.exceptions.AxisError, "axis 2"),
        ({"axis": True}, TypeError, "axis must be an int"),
        ({"out": np.zeros((2, 9), np.uint8)}, ValueError, "out"),
        ({"out": np.zeros((2, 1), np.int8)}, TypeError, "out"),
    ],
)
def test_refusals(api, options, error, message):
    with pytest.raises(error, match=message):
        api.binarize(np.ones((2, 8), np.float32), **options)


@pytest.mark.parametrize("api", [fastq, reference])
def test_thresholds_beyond_all_integers_are_refused(api):
    with pytest.raises(ValueError, match="threshold must be from 0 to 255, not -1"):
        api.binarize(np.ones(8, np.uint8), threshold=-1)


def test_complex_numbers_are_refused():
    with pytest.raises(TypeError, match="x must be float16"):
        fastq.binarize(np.ones(8, np.complex64))


def test_the_oracle_tells_wrong_bytes():
    x = values("float32", 5 * 100, 8).reshape(5, 100)
    right = packed(x)
    for wrong in (np.packbits(x >= 0, axis=-1), np.packbits(x > 0, axis=-1, bitorder="little"), right ^ 1):
        with pytest.raises(AssertionError):
            same_bytes(wrong, right)
