"""Squares of transposed memory, wherever in a line an array begins."""

import itertools

import numpy as np
import pytest
from catalogue import same_bytes, same_quantized, values

import fastq
from fastq import reference
from fastq.dispatch import strides
from fastq.engine.runtime import driver, tiling
from fastq.engine.simd import LINE


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


def is_alone(memory, inside):
    """Whether nothing was written around a matrix."""
    return (memory[: inside[0]] == 7).all() and (memory[inside[1] :] == 7).all()


# rows and columns of sixteen squares or more: these of one line, of several that follow each other, with and without
# a rest
SHAPES = {
    "float32": [(256, 1024), (272, 1024), (1296, 96)],
    "float64": [(128, 1024), (136, 1024), (712, 96)],
    "float16": [(512, 1024), (544, 1024)],
    "int8": [(1024, 1024), (1088, 1024)],
}


@pytest.mark.slow("compiles 3 kernels a case", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", SHAPES)
def test_input_that_begins_anywhere_in_a_line(dtype, threads):
    size = np.dtype(dtype).itemsize
    for shape in SHAPES[dtype]:
        x = values("float32", shape[0] * shape[1], 3).clip(-100, 100).astype(dtype).reshape(shape)
        q = reference.quantize(x, "int8", axis=1, block_size=32)
        measures = []
        for offset, n in itertools.product(sorted({0, size, 16, 32 + size, LINE - size}), (1, 3)):
            threads(n)
            source, _, _ = fortran(shape, dtype, offset, x)
            out = np.empty(shape, np.int8)
            same_quantized(fastq.quantize(source, "int8", axis=1, block_size=32, out=out), q)
            measures.append(fastq.compare(source, q))
        assert all(each == measures[0] for each in measures)  # sums are the same bits wherever an array lies


@pytest.mark.parametrize("shape", [(256, 1024), (272, 1024), (1296, 96)])
def test_results_that_begin_anywhere_in_a_line(shape, threads):
    x = values("float32", shape[0] * shape[1], 5).clip(-100, 100).reshape(shape)
    blocks = fastq.gguf.quantize(x, "Q4_0")
    expected = fastq.gguf.dequantize(blocks, "Q4_0")
    q = reference.quantize(x, "int4", axis=1, block_size=32)
    for offset, n in itertools.product(range(0, LINE, 12), (1, 3)):
        threads(n)
        for call, wanted in (
            (lambda out: fastq.gguf.dequantize(blocks, "Q4_0", out=out), expected),
            (lambda out: fastq.dequantize(q, out=out), reference.dequantize(q)),
        ):
            out, memory, inside = fortran(shape, "float32", offset)
            same_bytes(call(out), wanted)
            assert is_alone(memory, inside)


@pytest.mark.parametrize(("refuse_rereads", "rows"), [(False, 2), (True, None)])
def test_rows_that_are_to_be_read_once(refuse_rereads, rows):
    """Two rows of 4096 elements fit a buffer, which are an eighth of the lines that they lie in."""
    x = np.zeros((4096, 1024), np.float32).T
    launch = driver.plan_launch(0, driver.VALUES, None, x.size, 1)
    operands = tiling.Operand(32, *strides.memory_of(x)), tiling.Operand(8)
    tiled = tiling.in_tiles(launch, x.shape, *operands, whole=4096, refuse_rereads=refuse_rereads)
    assert (tiled and tiled.tiles[0].tile["rows"][0]) == rows
