"""Binarize: the bytes of np.packbits, and so of sentence-transformers, whatever the layout, threads and output."""

import ml_dtypes
import numpy as np
import pytest
from catalogue import INPUTS, LAYOUTS, same_bytes, values

import fastq
from fastq import reference

SHAPES = [(), (0,), (7,), (8,), (1, 64), (5, 100), (3, 0, 8), (4, 2, 65), (33, 384)]


def packed(x, dtype="uint8", axis=-1, bitorder="big"):
    """The bytes by NumPy alone: "ubinary", and as int8 "binary" of sentence-transformers."""
    bits = np.packbits(np.atleast_1d(x) > 0, axis=axis, bitorder=bitorder)
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


def test_complex_numbers_are_refused():
    with pytest.raises(TypeError, match="x must be float16"):
        fastq.binarize(np.ones(8, np.complex64))


def test_the_oracle_tells_wrong_bytes():
    x = values("float32", 5 * 100, 8).reshape(5, 100)
    right = packed(x)
    for wrong in (np.packbits(x >= 0, axis=-1), np.packbits(x > 0, axis=-1, bitorder="little"), right ^ 1):
        with pytest.raises(AssertionError):
            same_bytes(wrong, right)
