"""Squares of transposed memory that begin with its lines, wherever in a line an array begins."""

import itertools

import numpy as np
import pytest
from catalogue import same_bytes, same_quantized, values

import fastq
from fastq import reference
from fastq.dispatch import strides
from fastq.runtime import driver, tiles, tiling
from fastq.simd import LINE


def fortran(shape, dtype, offset, fill=None):
    """A matrix in Fortran order that begins so many bytes after a line, and the memory around it, filled with 7."""
    dtype = np.dtype(dtype)
    size = shape[0] * shape[1] * dtype.itemsize
    memory = np.full(size + 4 * LINE, 7, np.uint8)
    first = -memory.ctypes.data % LINE + LINE + offset
    matrix = memory[first : first + size].view(dtype).reshape(shape[::-1]).T
    if fill is not None:
        matrix[...] = fill
    return matrix, memory, (first, first + size)


def untouched(memory, inside):
    """Whether nothing was written around a matrix."""
    return (memory[: inside[0]] == 7).all() and (memory[inside[1] :] == 7).all()


# rows of squares that are many enough, a multiple of a line, and others that are not
ROWS = {"float32": (256, 272, 500), "float64": (128, 200), "float16": (512, 544), "int8": (1024, 1088)}


@pytest.mark.slow("compiles 4 kernels a case", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ROWS)
def test_memory_that_begins_anywhere_in_a_line(dtype, threads):
    size = np.dtype(dtype).itemsize
    offsets = sorted({0, size, 16, 32 + size, LINE - size})
    for rows, offset, n in itertools.product(ROWS[dtype], offsets, (1, 3)):
        threads(n)
        x = values("float32", rows * 96, rows).clip(-100, 100).astype(dtype).reshape(rows, 96)
        source, _, _ = fortran(x.shape, dtype, offset, x)
        for where in ({"axis": 1, "block_size": 32}, {"axis": 0}):
            q = reference.quantize(x, "int8", **where)
            same_quantized(fastq.quantize(source, "int8", out=np.empty(x.shape, np.int8), **where), q)
            same_measures_of(source, q, x)
            wanted = np.dtype(dtype) if dtype != "int8" else np.dtype("f4")
            out, memory, inside = fortran(x.shape, wanted, offset // wanted.itemsize * wanted.itemsize)
            same_bytes(fastq.dequantize(q, dtype=wanted, out=out), reference.dequantize(q, dtype=wanted))
            assert untouched(memory, inside)


def same_measures_of(source, q, x):
    """Sums are the same bits wherever an array lies."""
    elsewhere, _, _ = fortran(x.shape, x.dtype, 0, x)
    assert fastq.compare(source, q) == fastq.compare(elsewhere, q)


def test_blocks_of_gguf_at_every_offset(threads):
    for rows, offset, n in itertools.product((256, 288), range(0, LINE, 4), (1, 2)):
        threads(n)
        x = values("float32", rows * 256, 5).clip(-100, 100).reshape(rows, 256)
        blocks = fastq.gguf.quantize(x, "Q5_1")
        out, memory, inside = fortran(x.shape, "float32", offset)
        same_bytes(fastq.gguf.dequantize(blocks, "Q5_1", out=out), fastq.gguf.dequantize(blocks, "Q5_1"))
        assert untouched(memory, inside)
        source, _, _ = fortran(x.shape, "float32", offset, x)
        same_bytes(fastq.gguf.quantize(source, "Q5_1"), blocks)


# shape, strides in elements of float32, and which of x and y begins with lines
CASES = [
    ((512, 2048), (1, 512), "x", True),
    ((512, 2048), (1, 512), "y", True),
    ((512, 2048), (1, 520), "x", False),
    ((240, 2048), (1, 240), "x", False),
    ((512, 2048), (-1, 512), "x", False),
    ((512, 64), (1, 512), "x", False),
    ((4, 512, 64), (512, 1, 2048), "x", True),
    ((512, 8, 64), (1, 32768, 512), "y", True),
]


@pytest.mark.parametrize(("shape", "steps", "which", "begins"), CASES)
@pytest.mark.parametrize("sums", [0, 64])
def test_which_squares_begin_with_lines(shape, steps, which, begins, sums):
    memory = np.zeros(1 << 21, np.float32)
    x = np.lib.stride_tricks.as_strided(memory[1 << 10 :], shape, [4 * step for step in steps])
    launch = driver.plan_launch(0, driver.VALUES, None, x.size, 1)
    strided, plain = tiling.Operand(32, *strides.memory_of(x)), tiling.Operand(8)
    operands = (strided, plain) if which == "x" else (plain, strided._replace(is_result=True))
    (words,) = tiling.in_tiles(launch, shape, *operands, sum_bytes=sums).descriptors
    assert words[tiles.ROWS]
    steps_of_lines = words[tiles.LINE_STEP_X], words[tiles.LINE_STEP_Y]
    expected = (4, 0) if which == "x" else (0, 4)
    assert steps_of_lines == (expected if begins and not sums else (0, 0))
