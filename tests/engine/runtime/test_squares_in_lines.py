"""Squares of transposed memory that begin with its lines, wherever in a line an array begins."""

import ctypes
import itertools

import numpy as np
import pytest
from catalogue import same_bytes, same_quantized, values

import fastq
from fastq import reference
from fastq.engine.runtime import tiling
from fastq.engine.simd import LINE
from fastq.plan import cache
from fastq.plan.arrange import memory_of


@pytest.fixture
def steps_of_lines(monkeypatch):
    """What squares were planned to begin with: bytes from row to row in x and in y, 0 of any row."""
    found, right = [], tiling._line_steps
    monkeypatch.setattr(tiling, "_line_steps", lambda *where: found.append(right(*where)) or found[-1])
    cache.plans.clear()
    return found


def fortran(shape, dtype, offset, fill=None):
    """A matrix in Fortran order that begins a number of bytes after a line, and the memory around it, filled with 7."""
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
def test_input_that_begins_anywhere_in_a_line(dtype, threads, steps_of_lines):
    size = np.dtype(dtype).itemsize
    for shape in SHAPES[dtype]:
        x = values("float32", shape[0] * shape[1], 3).clip(-100, 100).astype(dtype).reshape(shape)
        q = reference.quantize(x, "int8", axis=1, block_size=32)
        measures = []
        for offset, n in itertools.product(sorted({0, size, 16, 32 + size, LINE - size}), (1, 3)):
            threads(n)
            source, _, _ = fortran(shape, dtype, offset, x)
            steps_of_lines.clear()
            cache.plans.clear()
            out = np.empty(shape, np.int8)
            same_quantized(fastq.quantize(source, "int8", axis=1, block_size=32, out=out), q)
            assert (size, 0) in steps_of_lines
            measures.append(fastq.compare(source, q))
        assert all(each == measures[0] for each in measures)  # sums are the same bits wherever an array lies


@pytest.mark.parametrize("shape", [(256, 1024), (272, 1024), (1296, 96)])
def test_results_that_begin_anywhere_in_a_line(shape, threads, steps_of_lines):
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
            steps_of_lines.clear()
            cache.plans.clear()
            same_bytes(call(out), wanted)
            assert (0, 4) in steps_of_lines
            assert is_alone(memory, inside)


# shape, strides in elements of float32, and which of x and y begins with lines
CASES = [
    ((512, 2048), (1, 512), "x", True),
    ((512, 2048), (1, 512), "y", True),
    ((512, 2048), (1, 520), "x", False),
    ((240, 2048), (1, 240), "x", False),
    ((512, 2048), (-1, 512), "x", False),
    ((512, 2048), (3, 1536), "x", False),
    ((512, 64), (1, 512), "x", False),
    ((4, 512, 64), (512, 1, 2048), "x", True),
    ((512, 8, 64), (1, 32768, 512), "y", True),
]


def planned(shape, steps, which, sums=0):
    """What the tiler of squares of float32 gets."""
    memory = np.zeros(1 << 22, np.float32)
    x = np.lib.stride_tricks.as_strided(memory[1 << 10 :], shape, [4 * step for step in steps])
    strided, plain = tiling.Operand(32, *memory_of(x)), tiling.Operand(8)
    operands = (strided, plain) if which == "x" else (plain, strided._replace(is_result=True))
    return tiling.in_tiles(tiling.Elements(shape, *operands), tiling.Demands(sum_bytes=sums)).tiles


@pytest.mark.parametrize(("shape", "steps", "which", "begins"), CASES)
@pytest.mark.parametrize("sums", [0, 64])
def test_which_squares_begin_with_lines(shape, steps, which, begins, sums):
    (tile,) = planned(shape, steps, which, sums).tile
    assert tile["rows"]
    expected = (4, 0) if which == "x" else (0, 4)
    assert (tile["line_step_x"], tile["line_step_y"]) == (expected if begins and not sums else (0, 0))


@pytest.mark.parametrize("offset", range(0, LINE, 4))
def test_where_squares_begin(offset):
    """The tiler calls functions of ours in place of the copy and the kernel: all rows once, each from a line on."""
    tiled, word = planned((272, 2048), (1, 272), "x"), ctypes.c_int64
    (tile,) = record = tiled.tile
    begun, seen = [], np.zeros((272, 2048), int)

    def copy(_, array, buffer, rows, columns, *steps):
        begun.append((array - start, rows, columns))
        return 0

    def kernel(_, x, y, c, d, e, args, origin, first, stop, slot):
        seen.reshape(-1)[first:stop] += 1
        return 0

    callbacks = ctypes.CFUNCTYPE(word, *[word] * 9)(copy), ctypes.CFUNCTYPE(word, *[word] * 11)(kernel)
    tile["fill_x"], tile["kernel"] = (ctypes.cast(each, ctypes.c_void_p).value for each in callbacks)
    start, squares = LINE * 1000 + offset, int(tile["down"] * tile["along"])
    tiler = ctypes.CFUNCTYPE(word, *[word] * 11)(tiling._address_of_tiler("tile_squares"))
    tiler(0, start, 0, 0, 0, 0, record.ctypes.data, 0, 0, squares, 0)
    assert (seen == 1).all()
    in_columns = {where // (272 * 4) for where, _, _ in begun}
    firsts = sorted(where % (272 * 4) for where, _, _ in begun if where // (272 * 4) == min(in_columns))
    assert firsts == [0, *range((LINE - offset - 1) % LINE + 1, 272 * 4, LINE)]


@pytest.mark.parametrize(("refuse_rereads", "rows"), [(False, 2), (True, None)])
def test_rows_that_are_to_be_read_once(refuse_rereads, rows):
    """Two rows of 4096 elements fit a buffer, which are an eighth of the lines that they lie in."""
    x = np.zeros((4096, 1024), np.float32).T
    elements = tiling.Elements(x.shape, tiling.Operand(32, *memory_of(x)), tiling.Operand(8))
    cut = tiling.in_tiles(elements, tiling.Demands(whole=4096, refuse_rereads=refuse_rereads))
    assert (cut and cut.tiles.tile["rows"][0]) == rows
