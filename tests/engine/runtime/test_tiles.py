"""Tiles: copies of strided matrices, and operations on memory that kernels cannot work on in place."""

import ctypes
import itertools
import signal
import sys

import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes, same_quantized, values
from gguf_blocks import check_memory
from subprocesses import BEFORE_A_PAGE, run

import fastq
from fastq import reference
from fastq.engine.runtime import shared_records, tiling
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import QTYPES
from fastq.plan.arrange import memory_of
from fastq.plan.cache import plans

DTYPES = ["u1", "<u2", ">u2", "<u4", ">u4", "<u8", ">u8"]
# rows, columns: squares of lanes with and without a rest, one row, one column, few columns
SHAPES = [(1, 1), (1, 40), (40, 1), (16, 16), (33, 70), (70, 33), (128, 64), (3, 70), *((83, n) for n in (2, 4, 5, 11))]


def copied(x, dtype, result, transposed=False, copies_isnan=False):
    """Copy a matrix to another one of the same shape by `copy`, along rows or along columns."""
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 9)(
        tiling.Operand(0, dtype=np.dtype(dtype), copies_isnan=copies_isnan).copy
    )
    src, dst = (x.T, result.T) if transposed else (x, result)
    where = (each.__array_interface__["data"][0] for each in (src, dst))
    function(0, *where, *src.shape, *src.strides, *dst.strides)
    return result


def apart(x, step):
    """The same matrix with other elements between its rows and columns."""
    memory = np.full((2 * len(x), step * x.shape[1]), 119, x.dtype)
    memory[::2, ::step] = x
    return memory[::2, ::step]


def memories(x):
    """The same matrix in many kinds of memory."""
    yield x.copy()
    yield x.copy("F")
    yield x[:, ::-1].copy()[:, ::-1]
    for step in (2, 3, 4, 5):
        yield apart(x, step)
    yield apart(x.T, 2).T
    unaligned = np.ndarray(x.shape, x.dtype, np.zeros(x.nbytes + 1, np.uint8).data, 1)
    unaligned[...] = x
    yield unaligned


@pytest.mark.parametrize("dtype", [np.dtype(name) for name in DTYPES], ids=DTYPES)
def test_copy(dtype):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x = np.frombuffer(rng.bytes(shape[0] * shape[1] * dtype.itemsize), dtype).reshape(shape)
        for source in memories(x):
            for result in memories(np.zeros(shape, dtype.newbyteorder("="))):
                for transposed in (False, True):
                    np.testing.assert_array_equal(copied(source, dtype, result, transposed), x)


# Matrices before a page that nothing may read, in C order, copied column by column
AT_A_PAGE = (
    BEFORE_A_PAGE
    + """
from fastq.engine.runtime.tiling import Operand
memory, end = pages_before(15)

def copied(rows, columns, step, dtype, beyond):
    size, result = np.dtype(dtype).itemsize, np.zeros((columns, rows + beyond), dtype)
    begin = end - ((rows - 1) * step + columns) * size
    first = np.frombuffer(memory, dtype, 1, begin - end + 15 * page)
    source = np.lib.stride_tricks.as_strided(first, (rows, columns), (step * size, size))
    source[...] = np.arange(1, source.size + 1).reshape(source.shape)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 9)(Operand(0, dtype=np.dtype(dtype)).copy)
    where = source.ctypes.data, result.ctypes.data
    function(0, *where, rows + beyond, columns, step * size, size, size, result.strides[0])
    np.testing.assert_array_equal(result, source.T)

"""
)
# Vecs that reach into the rows behind, of whole squares of rows; squares of a granule, of fewer rows than there are
# lanes; rows of elements that lie apart, the last of which ends there
EACH_AT_A_PAGE = (
    AT_A_PAGE
    + """
def picked(columns, step, dtype):
    size, result = np.dtype(dtype).itemsize, np.zeros(columns, dtype)
    begin = end - ((columns - 1) * step + 1) * size
    source = np.frombuffer(memory, dtype, (end - begin) // size, begin - end + 15 * page)[::step]
    source[...] = np.arange(1, columns + 1)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 9)(Operand(0, dtype=np.dtype(dtype)).copy)
    function(0, source.ctypes.data, result.ctypes.data, 1, columns, 0, step * size, 0, size)
    np.testing.assert_array_equal(result, source)

for dtype in ("u1", "u2", "u4", "u8"):
    for columns, step in ((2, 2), (3, 3), (4, 4), (5, 5), (3, 4), (15, 15), (19, 19)):
        copied(48, columns, step, dtype, 0)
    for rows in range(1, 16):
        copied(rows, 41, 41, dtype, 0), copied(rows, 40, 43, dtype, 0)
    for step in range(1, 6):
        for n in range(1, 70):
            picked(n, step, dtype)
"""
)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as on Linux")
def test_nothing_behind_a_matrix_is_read():
    run(EACH_AT_A_PAGE)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as on Linux")
def test_a_read_behind_a_matrix_is_found():
    """One row more than there is lies in the protected page."""
    with pytest.raises(AssertionError, match=f"exit code -{int(signal.SIGSEGV)}"):
        run(AT_A_PAGE + "copied(48, 3, 3, 'u4', 1)")


@pytest.mark.slow("compiles 9 kernels a dtype", quick=lambda dtype, channels: dtype == "float32")
@pytest.mark.parametrize("channels", [2, 3, 4, 7, 20])
@pytest.mark.parametrize("dtype", ["float32", "uint8", ">i2"])
def test_channels_of_pixels(threads, dtype, channels):
    """Images whose channels come last in memory and first for the caller, of which a tile has not all pixels."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((2, 120, 160, channels)) * 50).astype(dtype).transpose(0, 3, 1, 2)
    for count in (1, 2):
        threads(count)
        for options in ({}, {"axis": 1}, {"axis": 3, "block_size": 32}):
            expected = reference.quantize(x, "int8", **options)
            for out in (np.zeros(x.shape, np.int8), np.zeros_like(x, np.int8)):
                same_bytes(fastq.quantize(x, "int8", **options, out=out).codes.copy(), expected.codes)
                same_bytes(fastq.quantize(x, qparams=expected.qparams, out=out).codes.copy(), expected.codes)
            found, right = (module.compare(x, expected) for module in (fastq, reference))
            np.testing.assert_allclose((found.mse, found.max_abs_error), (right.mse, right.max_abs_error), 1e-6)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: np.broadcast_to(x[:, None], (900, 64)),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 64),
        lambda x: np.lib.stride_tricks.as_strided(x, (60, 64), (-4, 8)),
    ],
    ids=["repeated", "windows", "every other"],
)
def test_rows_that_share_memory(threads, view):
    """Elements that are seen several times: no square is made of them."""
    x = view(np.random.default_rng(6).standard_normal(1000).astype(np.float32)[100:])
    expected = reference.quantize(x, "int8", axis=0)
    for count in (1, 2):
        threads(count)
        same_quantized(fastq.quantize(x, "int8", axis=0), expected)
        np.testing.assert_allclose(fastq.compare(x, expected).mse, reference.compare(x, expected).mse, 1e-6)


@pytest.mark.slow("compiles a copy each", quick=lambda dtype: dtype == ">f2")
@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f8", "bfloat16"])
def test_marks_of_nan(dtype):
    dtype = np.dtype(dtype) if dtype != "bfloat16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    x = np.array([0, -1, np.inf, -np.inf, np.nan, -np.nan, 1e-5] * 60, np.float32).reshape(20, 21).astype(dtype)
    for source in memories(x):
        for transposed in (False, True):
            result = np.full(x.shape, 7, np.uint8)
            copied(source, x.dtype, result, transposed, copies_isnan=True)
            np.testing.assert_array_equal(result, np.isnan(x.astype(np.float32)))


def test_a_copy_of_other_bytes_is_found(monkeypatch):
    """Elements whose bytes are not in this CPU's order, copied as if they were."""
    right = tiling._address_of_copy
    monkeypatch.setattr(tiling, "_address_of_copy", lambda size, swapped, infinity: right(size, False, infinity))
    with pytest.raises(AssertionError):
        test_copy(np.dtype(">u4"))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
@pytest.mark.parametrize("code", ["int8", "uint4"])
def test_transposed_memory(threads, code, order, count):
    """Squares with a rest along both axes, whichever of the two arrays is transposed, and of more than one chunk."""
    threads(count)
    x = np.random.default_rng(1).standard_normal((3, 530, 514)).astype(np.float32)
    source = x.transpose(order).copy().transpose(np.argsort(order))
    for axis in (None, 1, 2):
        qparams = reference.choose_qparams(x, code, axis=axis)
        expected = reference.quantize(x, qparams=qparams)
        for memory in (x, source):
            for out in (
                np.empty_like(expected.codes),
                np.empty_like(expected.codes.transpose(order)).transpose(np.argsort(order)),
            ):
                assert fastq.quantize(memory, qparams=qparams, out=out).codes.tobytes() == expected.codes.tobytes()
        values = np.empty_like(source)
        np.testing.assert_array_equal(expected.dequantize(out=values), reference.dequantize(expected))


BLOCKS = [
    ("int8", {"axis": -1, "block_size": 32}),
    ("int4", {"axis": -1, "block_size": 32}),
    ("uint8", {"axis": -1, "block_size": 96}),
    ("uint4", {"axis": -1, "block_size": 20}),
    ("mxfp4", {}),
    ("nvfp4", {}),
    ("int8", {"axis": (0, 1)}),
    ("float8_e4m3fn", {"axis": (0, 1)}),
]
ORDERS = [(2, 1, 0), (1, 2, 0), (0, 2, 1)]


def in_order(x, order):
    """A copy of an array whose axes are in some order in memory."""
    return x.transpose(order).copy().transpose(np.argsort(order))


# rows of several squares with a rest; rows that are one square; rows that are not whole blocks
@pytest.mark.slow("compiles 3 kernels a format", quick=lambda code, options, length, order: code == "int8")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", [2080, 480, 990])
@pytest.mark.parametrize(("code", "options"), BLOCKS)
def test_blocks_of_transposed_memory(threads, code, options, length, order):
    """Squares that part no block and no row, of memory that is read or written so."""
    x = np.random.default_rng(2).standard_normal((3, 37, length)).astype(np.float32)
    source, expected = in_order(x, order), reference.quantize(x, code, **options)
    lo, hi = reference.minmax(x, **{"axis": -1} | options)
    for count in (1, 2):
        threads(count)
        same_quantized(fastq.quantize(source, code, **options, out=np.empty_like(expected.codes)), expected)
        for one, other in zip(fastq.minmax(source, **{"axis": -1} | options), (lo, hi), strict=True):
            np.testing.assert_array_equal(one, other)
        for memory in (x, source):
            out = in_order(np.zeros_like(x), order)
            np.testing.assert_array_equal(
                fastq.fake_quantize(memory, code, **options, out=out), reference.fake_quantize(x, code, **options)
            )


@pytest.mark.parametrize("out", ["c", "like x", "reversed", "apart"])
@pytest.mark.parametrize("x", ["whole", "reversed", "apart"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_short_axis_that_is_the_fastest(threads, dtype, x, out):
    """In memory that lies backwards or apart, too, of one array or of both."""
    shape, kinds = (
        (4, 36, 80),
        {
            "whole": lambda a: np.asfortranarray(a),
            "like x": lambda a: np.asfortranarray(a),
            "c": lambda a: a.copy(),
            "reversed": lambda a: np.flip(np.asfortranarray(np.flip(a, (0, 1))), (0, 1)),
            "apart": lambda a: apart_along_the_first(a),
        },
    )
    values = np.random.default_rng(9).integers(0, 99, shape).astype(dtype)
    source = kinds[x](values)
    same_bytes(source, values)
    for count, options in itertools.product((1, 2), ({}, {"axis": 2, "block_size": 16})):
        threads(count)
        expected = reference.quantize(values, "int8", **options)
        target = kinds[out](np.zeros(shape, np.int8))
        same_bytes(fastq.quantize(source, qparams=expected.qparams, out=target).codes, expected.codes)
        target = kinds[out](np.zeros(shape, np.float32))
        codes = kinds[x](expected.codes)
        same_bytes(fastq.QuantizedArray(codes, expected.qparams, shape).dequantize(out=target), expected.dequantize())


# shape; whether the columns of a square are of two axes, and its rows follow each other; with a rest along each axis
SQUARES = {
    "rows of one axis": ((700, 64), (False, True)),
    "rows of two axes": ((70, 12, 40), (True, True)),
    "some of the last axis but one": ((70, 136, 24), (True, False)),
    "long rows": ((70, 1100), (False, False)),
}


@pytest.mark.parametrize("name", SQUARES)
def test_rows_of_squares_that_are_short(name):
    """They are of two axes, and the kernel gets those that follow each other at once."""
    shape, expected = SQUARES[name]
    x = np.zeros(shape, np.float32, order="F")
    elements = tiling.Elements(shape, tiling.Operand(32, *memory_of(x)), tiling.Operand(8))
    (tile,) = tiling.in_tiles(elements, tiling.NO_DEMANDS).tiles.tile
    assert (tile["span"] > 0, tile["following"] > 0) == expected


def test_squares_fit_their_buffers():
    """Of one operand or both, each in an order of its own, of any width, in shapes of any remainder."""
    rng = np.random.default_rng(3)
    squares = 0
    for _ in range(4000):
        shape = tuple(rng.integers(1, rng.choice([5, 70, 2000], rng.integers(2, 5))).tolist())
        both = [operand(shape, rng.permutation(len(shape)), rng.choice([1, 2, 4, 8])) for _ in range(2)]
        operands = [both, [both[0], tiling.Operand(8)], [tiling.Operand(8), both[1]]][rng.integers(3)]
        demands = tiling.Demands(whole=int(rng.choice([1, 32, shape[-1]])))
        cut = tiling.in_tiles(tiling.Elements(shape, *operands), demands)
        if cut is None or cut.tiler != "tile_squares":
            continue
        (tile,), squares = cut.tiles.tile, squares + 1
        x_bytes, y_bytes = (int(tile["rows"] * tile[pitch]) for pitch in ("pitch_x", "pitch_y"))
        assert x_bytes <= tile["y_buffer"]
        assert tile["y_buffer"] + y_bytes <= shared_records.BUFFER
        assert all(tile[pitch] > 0 for pitch, each in zip(("pitch_x", "pitch_y"), operands, strict=True) if each.dtype)
    assert squares > 500


def operand(shape, order, itemsize):
    """An array in an order of axes in memory."""
    strides = [0] * len(shape)
    for k, axis in enumerate(order):
        strides[axis] = int(itemsize * np.prod([shape[other] for other in order[k + 1 :]]))
    return tiling.Operand(8 * int(itemsize), tuple(strides), np.dtype(f"u{itemsize}"))


@pytest.mark.parametrize(
    "order", [(1, 3, 2, 0), (3, 0, 2, 1), (3, 2, 1, 0), (1, 0, 3, 2), (2, 0, 3, 1), (3, 1, 0, 2), (0, 3, 2, 1)]
)
@pytest.mark.parametrize("shape", [(4, 3, 5, 64), (3, 64, 5, 4), (20, 6, 7, 17), (40, 5, 3, 33), (2, 70, 9, 24)])
def test_squares_of_four_axes(threads, shape, order):
    """Whichever axis the rows of squares are of, and which one comes before the last."""
    x = in_order(np.random.default_rng(4).standard_normal(shape).astype(np.float32), order)
    for count, options in itertools.product((1, 2), ({}, {"axis": 3}, {"axis": -1, "block_size": 16})):
        threads(count)
        expected = reference.quantize(x, "int8", **options)
        for out in (None, np.empty(shape, np.int8)):
            same_quantized(fastq.quantize(x, "int8", **options, out=out), expected)
            found = fastq.quantize(x, qparams=expected.qparams, out=out)
            same_bytes(found.codes.copy(), expected.codes.copy())
        values = np.empty(shape, np.float32)
        same_bytes(fastq.fake_quantize(x, "int8", **options, out=values), reference.fake_quantize(x, "int8", **options))
        assert fastq.compare(x, expected).max_abs_error == reference.compare(x, expected).max_abs_error
        for found, wanted in zip(fastq.minmax(x, **options), reference.minmax(x, **options), strict=True):
            same_bytes(found, wanted)


@pytest.mark.slow("compiles 30 kernels a format")
@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64"])
@pytest.mark.parametrize("code", ["int8", "uint4", "int16", "mxfp4"])
def test_results_by_squares_of_short_rows(threads, code, dtype):
    for name, (shape, _) in SQUARES.items():
        x = values("float32", np.prod(shape), 6).clip(0, 250).reshape(shape).astype(dtype)
        last = {"axis": -1, "block_size": 32 if code == "mxfp4" else 8}
        for options, memory in itertools.product(
            (last,) if code == "mxfp4" else ({}, {"axis": 0}, {"axis": -1}, last), ("fortran", "permuted", "reversed")
        ):
            source = np.asfortranarray(x) if memory == "permuted" and x.ndim == 2 else WRITABLE[memory](x)
            expected = reference.quantize(x, code, **options)
            fake, of_codes = reference.fake_quantize(x, code, **options), reference.dequantize(expected)
            errors = reference.compare(x, expected)
            for count, to_c_order in itertools.product((1, 2), (True, False)):
                threads(count)
                target = (lambda a: a) if to_c_order else WRITABLE["reversed"]
                out = used(expected.codes) if to_c_order else target(used(expected.codes))
                same_quantized(fastq.quantize(source, qparams=expected.qparams, out=out), expected)
                same_bytes(fastq.fake_quantize(source, qparams=expected.qparams, out=target(used(fake))), fake)
                same_quantized(fastq.quantize(source, code, **options, out=target(used(expected.codes))), expected)
                for lo, hi in zip(fastq.minmax(source, **options), reference.minmax(x, **options), strict=True):
                    same_bytes(lo, hi)
            assert fastq.compare(source, expected).clipped == errors.clipped, name
            out = np.empty_like(of_codes, order="F")
            same_bytes(expected.dequantize(out=out), of_codes)
            same_bytes(fastq.QuantizedArray(expected.codes, expected.qparams, shape).dequantize(out=out), of_codes)


def apart_along_the_first(x):
    """The same array in Fortran order, with other elements between those along the second axis."""
    memory = np.full((x.shape[0], 2 * x.shape[1], x.shape[2]), 119, x.dtype, order="F")
    memory[:, ::2] = x
    return memory[:, ::2]


# Every format, in arrays of more than a tile

WRITABLE = {
    "permuted": lambda x: in_order(x, (0, 2, 1)),
    "reversed": lambda x: np.flip(np.flip(x).copy()),
} | {name: LAYOUTS[name] for name in ("fortran", "transposed", "strided", "unaligned")}
MEMORIES = WRITABLE | {name: LAYOUTS[name] for name in ("swapped", "broadcast")}
GRAINS = [{}, {"axis": (0, 1)}, {"axis": 2}, {"axis": -1, "block_size": 32}, {"axis": 1, "block_size": 8}]
LARGER = [(4, 36, 512), (3, 37, 991)]  # rows that end with a block, a register and a byte, and rows that do not


def grains_of(code):
    """What may share a scale, as arguments; formats with blocks of their own size have no others."""
    own = QTYPES[code].block_size
    return [row | {"block_size": own} for row in GRAINS if "block_size" in row] if own else GRAINS


def in_memory(x, name):
    """The array in some memory, with its values, which broadcasting changes."""
    source = MEMORIES[name](x)
    return source, np.ascontiguousarray(source).astype(x.dtype)


def used(like):
    """Memory for such an array, in which a byte that is left as it was is seen."""
    return np.full(like.nbytes, 0xEE, np.uint8).view(like.dtype).reshape(like.shape)


@pytest.mark.slow("compiles 12 kernels a format", quick=lambda code: code == "int8")
@pytest.mark.parametrize("code", QTYPES)
def test_every_format_in_every_memory(threads, code):
    for shape, options, names in itertools.product(LARGER, grains_of(code), ([*WRITABLE, "swapped"], ["broadcast"])):
        x = values("float32", np.prod(shape), 5).clip(-1000, 1000).reshape(shape)
        _, x = in_memory(x, names[0])
        expected = reference.quantize(x, code, **options)
        of_codes, p = reference.dequantize(expected), expected.qparams
        fake, errors = reference.fake_quantize(x, code, **options), reference.compare(x, expected)
        for name, count in itertools.product(names, (1, 2)):
            threads(count)
            source, memory = MEMORIES[name](x), WRITABLE.get(name)
            for given in ({"dtype": code, **options}, {"qparams": p}):
                same_quantized(fastq.quantize(source, **given), expected)
                same_bytes(fastq.fake_quantize(source, **given), fake)
            found = fastq.compare(source, expected)
            assert (found.clipped, found.max_abs_error) == (errors.clipped, errors.max_abs_error)
            assert found.mse == pytest.approx(errors.mse, rel=1e-11)
            if memory is None:
                continue
            q = fastq.QuantizedArray(memory(expected.codes), p, shape)
            same_bytes(fastq.dequantize(q), of_codes)
            for each in (q, expected):
                same_bytes(fastq.dequantize(each, out=memory(np.zeros_like(x))), of_codes)
            for each, given in itertools.product((x, source), ({"dtype": code, **options}, {"qparams": p})):
                same_quantized(fastq.quantize(each, **given, out=memory(used(expected.codes))), expected)
                same_bytes(fastq.fake_quantize(each, **given, out=memory(np.zeros_like(x))), fake)


@pytest.mark.slow("compiles 2 kernels a format", quick=lambda code: code == "uint4")
@pytest.mark.parametrize("code", [name for name, row in QTYPES.items() if row.packed and not row.block_size])
def test_packed_codes_in_every_memory(threads, code):
    row, rng = QTYPES[code], np.random.default_rng(6)
    for shape, name, count in itertools.product(LARGER, [*WRITABLE, "broadcast"], (1, 2)):
        threads(count)
        bits = rng.integers(0, 1 << row.bits, shape, np.uint8)
        codes = bits.view(row.storage) if row.element else (bits.astype(np.int16) + row.qmin).astype(row.storage)
        source, codes = in_memory(codes, name)
        packed = reference.pack(codes, code)
        same_bytes(fastq.pack(source, code), packed)
        source, packed = in_memory(packed, name)
        same_bytes(fastq.unpack(source, code, shape=shape), codes)


@pytest.mark.slow("compiles a kernel a dtype", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint16", "int64"])
def test_minima_in_every_memory(threads, dtype):
    for shape, options, name, count in itertools.product(LARGER, GRAINS, MEMORIES, (1, 2)):
        threads(count)
        x = values("float32", np.prod(shape), 7).clip(0, 100).reshape(shape).astype(dtype)
        source, plain = in_memory(x, name)
        for one, other in zip(fastq.minmax(source, **options), reference.minmax(plain, **options), strict=True):
            same_bytes(one, other)


@pytest.mark.slow("compiles 2 kernels a format", quick=lambda kind, name: (kind, name) == ("Q8_0", "fortran"))
@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_blocks_of_gguf_in_every_memory(threads, kind, name):
    x = np.random.default_rng(3).standard_normal((3, 37, 2304)).astype(np.float32)
    check_memory(x, kind, threads, {name: MEMORIES[name]})


def test_rows_whose_copy_fits_no_tile():
    """Output that shares memory with rows across: their copy has other strides, in which rows are not whole pieces."""
    base = np.random.default_rng(4).standard_normal((901, 1000)).astype(np.float32)
    x, out = base[:, :8].T, base.reshape(-1)[:7208].reshape(8, 901)
    expected = reference.fake_quantize(x.copy(), "int8", axis=0)
    same_bytes(fastq.fake_quantize(x, "int8", axis=0, out=out), expected)


def test_a_wrong_stride_is_found(monkeypatch, threads):
    right = tiling._join_axes

    def wrong(elements):
        axes = right(elements)
        return axes._replace(x=[step + 4 * (k == 0) for k, step in enumerate(axes.x)])

    monkeypatch.setattr(tiling, "_join_axes", wrong)
    plans.clear()
    with pytest.raises((AssertionError, ValueError)):  # other elements, or memory beyond them, which may hold NaN
        test_transposed_memory(threads, "int8", (2, 1, 0), 1)
    plans.clear()


def test_squares_that_part_blocks_are_found(monkeypatch, threads):
    right = tiling._squares
    monkeypatch.setattr(tiling, "_squares", lambda *where: right(*where[:-1], where[-1]._replace(whole=1)))
    plans.clear()
    with pytest.raises((AssertionError, ValueError)):
        test_blocks_of_transposed_memory(threads, "int8", {"axis": (0, 1)}, 2080, (0, 2, 1))
    plans.clear()
