"""What goes past the cache, straight from registers or by way of the stack: as if the cache were of one byte, at every
place next to the start of a line; and arrays that outgrow the cache of this CPU.
"""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes, same_quantized, values
from gguf_blocks import needed_importance, some_blocks
from ml_dtypes import bfloat16

import fastq
from fastq import reference
from fastq.engine.runtime import threadpool
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import QTYPES
from fastq.system import tuning


@pytest.fixture(params=[1, 1 << 40], ids=["straight", "staged"])
def streaming(request, monkeypatch):
    """Stores go past the cache, whatever the size: of all runs straight, or of all that can be by way of the stack.

    With the second of rows of columns those go straight that share no line with their neighbours.
    """
    from fastq.plan import cache, policy

    row = dataclasses.replace(
        tuning.current(), stream_codes=True, stream_from=1, stream_run=request.param, staged_run=request.param
    )
    monkeypatch.setattr(tuning, "current", lambda: row)
    monkeypatch.setattr(threadpool, "CHUNK", (600, 600))  # several lines, several in the larger arrays
    assert policy.outgrows_cache(1, np.dtype(np.uint8))
    cache.plans.clear()
    yield
    cache.plans.clear()


def in_between(dtype, shape, offset):
    """An array that begins a number of elements after a line, in memory of sevens; both ends of the memory."""
    size, lines = math.prod(shape), 512 // np.dtype(dtype).itemsize
    memory = np.full(size + offset + 2 * lines, 7, np.uint8).astype(dtype)
    first = -memory.ctypes.data % 64 // memory.itemsize + offset
    assert (memory.ctypes.data + (first - offset) * memory.itemsize) % 64 == 0
    return memory[first : first + size].reshape(shape), (memory[:first], memory[first + size :])


def untouched(ends):
    return all((end.astype(np.float32) == 7).all() for end in ends)


# --- every format, granularity and place next to a line ---------------------------------------------------------------


class Grain(NamedTuple):
    """What shares a scale, and arrays of it; `any_size` where formats may have blocks of their own size instead."""

    options: dict[str, Any]
    shapes: list[tuple[int, ...]]
    any_size: bool = False

    def fits(self, code):
        """Whether a format has such scales."""
        own = QTYPES[code].block_size
        return not own or self.any_size or self.options.get("block_size") == own

    def of(self, code):
        """The options for a format."""
        row = QTYPES[code]
        if row.block_size:
            return self.options | {"block_size": row.block_size}
        # of int8 other tests have the asymmetric kernels
        return self.options | {"symmetric": row.signed and row.bits not in (1, 8)}


LENGTHS = (1, 17, 63, 64, 65, 128, 192, 257, 1500)
GRAINS = {
    "array": Grain({}, [(n,) for n in (*LENGTHS, 4500, 20_001)]),
    "rows": Grain({"axis": 0}, [(3, n) for n in (*LENGTHS, 9000)] + [(40, 200)]),
    "short rows": Grain({"axis": 0}, [(90, 16), (70, 24), (41, 17), (37, 32), (300, 3)]),
    "ragged blocks": Grain({"axis": -1, "block_size": 24}, [(9, 200), (5, 1000)], any_size=True),
    "columns": Grain({"axis": 1}, [(3, n) for n in (*LENGTHS, 9000)] + [(11, 640)]),
    "blocks of rows": Grain({"axis": 0, "block_size": 30}, [(70, n) for n in (1, 24, 64, 65, 192, 500)], any_size=True),
} | {
    f"blocks of {size}": Grain({"axis": -1, "block_size": size}, [(count, 128) for count in (15, 17, 33, 80)])
    for size in (16, 32, 64, 128)
}
LOOPS = {
    "runs": ("array", "rows", "short rows", "ragged blocks"),
    "columns": ("columns", "blocks of rows"),
    "blocks": ("blocks of 32",),
    "other blocks": ("blocks of 16", "blocks of 64", "blocks of 128"),
}
OF_ALL = ("runs", "columns", "blocks")
CASES = [("float32", code, loop) for code in QTYPES for loop in OF_ALL if (code, loop) != ("nvfp4", "blocks")]
CASES += [("float32", code, "other blocks") for code in ("int8", "uint4", "int3", "float4_e2m1fn", "nvfp4")]
CASES += [
    (dtype, code, loop)
    for dtype, code in [("float64", "uint8"), ("float16", "int8"), (bfloat16, "uint4"), ("int16", "int8")]
    for loop in OF_ALL
]
PLACES = list(zip((0, 1, 4, 15, 16), (0, 1, 4, 16, 63), strict=True))  # of values and of codes, in elements


class Expected(NamedTuple):
    """What the reference makes of an array: its codes, and the values of these; those of fake_quantize are the same."""

    x: np.ndarray
    q: fastq.QuantizedArray
    values: np.ndarray
    fake: np.ndarray


def expected_of(x, code, options):
    q = reference.quantize(x, code, **options)
    values_dtype = x.dtype if x.dtype.kind not in "iu" else None
    return Expected(x, q, reference.dequantize(q, dtype=values_dtype), reference.fake_quantize(x, code, **options))


def check(expected, code, options, place):
    """Every operation that writes codes or values, at a number of elements after a line; some from an odd address."""
    x, q, of_codes, fake = expected
    x = LAYOUTS["unaligned"](x) if place[0] % 2 else x
    out, ends = in_between(q.codes.dtype, q.codes.shape, place[1])
    for given in ({"dtype": code, **options}, {"qparams": q.qparams}):
        out.view(np.uint8)[...] = 0xEE  # the bits after the last code become 0
        same_quantized(fastq.quantize(x, **given, out=out), q)
    assert untouched(ends)
    for values_, work in (
        (of_codes, lambda out: fastq.dequantize(q, out=out)),
        (fake, lambda out: fastq.fake_quantize(x, code, **options, out=out)),
        (fake, lambda out: fastq.fake_quantize(x, qparams=q.qparams, out=out)),
    ):
        out, ends = in_between(values_.dtype, x.shape, place[0])
        same_bytes(work(out), values_)
        assert untouched(ends)


@pytest.mark.slow(
    "compiles 2 to 6 kernels a case",
    quick=lambda dtype, code, loop, **_: (dtype, code) == ("float32", "int8") and loop == "columns",
)
@pytest.mark.parametrize(("dtype", "code", "loop"), CASES)
def test_every_format_and_granularity(dtype, code, loop, threads, streaming, monkeypatch):
    if "blocks" in loop:
        monkeypatch.setattr(threadpool, "CHUNK", (2500, 2500))  # groups of sixteen blocks of 128 and some more
    cases = []
    for grain in (GRAINS[name] for name in LOOPS[loop] if GRAINS[name].fits(code)):
        for shape in grain.shapes:
            x = values("float32", math.prod(shape), 12).clip(-1000, 1000).reshape(shape).astype(dtype)
            cases.append((expected_of(x, code, grain.of(code)), code, grain.of(code)))
    for n, case, place in itertools.product((1, 2, 4), cases, PLACES):
        threads(n)
        check(*case, place)


def test_odd_codes_of_4_bits_that_go_past_the_cache(streaming):
    """The last code has half a byte, in the last staged piece."""
    for size in (1, 63, 2001, 20_001):
        x = values("float32", size, 31).clip(-1000, 1000)
        expected = reference.quantize(x, "uint4")
        for options in ({"dtype": "uint4"}, {"qparams": expected.qparams}):
            out = np.full(expected.codes.shape, 0xEE, np.uint8)
            same_bytes(fastq.quantize(x, **options, out=out).codes, expected.codes)


def codes_of(code, size):
    """`n` codes of a format, one per element."""
    row = QTYPES[code]
    bits = np.random.default_rng(15).integers(0, 1 << row.bits, size, np.uint8)
    return bits.view(row.storage) if row.element else (bits.astype(np.int16) + row.qmin).astype(row.storage)


@pytest.mark.slow("compiles 2 kernels a format")
@pytest.mark.parametrize("code", [name for name, row in QTYPES.items() if row.packed and not row.block_size])
def test_packed_codes_that_go_past_the_cache(code, threads, streaming):
    qtype = QTYPES[code]
    for size, n in itertools.product((1, 127, 128, 129, 512, 777, 40_000), (1, 2)):
        threads(n)
        codes = codes_of(code, size)
        packed = reference.pack(codes, code)
        same_bytes(fastq.pack(codes, code), packed)
        same_bytes(fastq.unpack(packed, code, shape=codes.shape), codes)
        for at in range(0, 0 if qtype.element else size, 1 + size // 50):  # every code of floats is one
            codes[at], before = qtype.qmax + 1, codes[at]
            with pytest.raises(ValueError, match="codes must be from"):
                fastq.pack(codes, code)
            codes[at] = before


@pytest.mark.slow("compiles kernels that stream", quick=lambda options, **_: not options)
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": 32}])
def test_nan_is_seen_in_what_goes_past_the_cache(options, streaming):
    x = values("float32", 3 * 320, 16).reshape(3, 320)
    qparams = reference.quantize(x, "int8", **options).qparams
    out, _ = in_between(np.dtype("float32"), x.shape, 4)  # rows of values that are whole lines from a granule on
    for at in range(0, x.size, 7):
        x.ravel()[at], before = np.nan, x.ravel()[at]
        for given in ({"dtype": "int8", **options}, {"qparams": qparams}):
            with pytest.raises(ValueError, match="NaN"):
                fastq.quantize(x, **given)
            with pytest.raises(ValueError, match="NaN"):
                fastq.fake_quantize(x, **given, out=out)
        x.ravel()[at] = before


def test_unaligned_arrays_do_not_go_past_the_cache(streaming):
    x = values("float32", 1000, 17)
    memory = np.zeros(4 * x.size + 1, np.uint8)
    for code in ("int8", "int16"):
        expected = reference.quantize(x, code, symmetric=True)
        out = memory[1 : 1 + expected.codes.nbytes].view(expected.codes.dtype)
        same_quantized(fastq.quantize(x, code, symmetric=True, out=out), expected)
        same_bytes(expected.dequantize(out=memory[1:].view(np.float32)), reference.dequantize(expected))


# --- arrays that outgrow the cache ------------------------------------------------------------------------------------


class Large(NamedTuple):
    """What shares a scale, an array by the tuning of this CPU large enough, and the piece of which it is made.

    The piece is repeated, so that the results of the reference, repeated, are expected.
    """

    options: dict[str, Any]
    shape: tuple[int, ...]
    piece: tuple[int, ...]


SIZE = (1 << 24) + 17  # 27 * 621_379


def rows_of(columns, multiple=1):
    """The shape of rows of `columns` columns with `SIZE` elements or some more."""
    return multiple * -(-SIZE // (columns * multiple)), columns


LARGE = {
    "array": Large({}, (SIZE,), (65_521,)),
    "long rows": Large({"axis": 0}, (27, SIZE // 27), (27, 8191)),
    "rows": Large({"axis": 0}, rows_of(1000), (56, 1000)),
    "short rows": Large({"axis": 0}, rows_of(24), (1001, 24)),
    "odd rows": Large({"axis": 0}, rows_of(27), (1001, 27)),
    "columns": Large({"axis": 1}, rows_of(16_384), (9, 16_384)),
    "odd columns": Large({"axis": 1}, rows_of(4099), (19, 4099)),
    "few columns": Large({"axis": 1}, rows_of(27), (1001, 27)),
    "blocks": Large({"axis": -1, "block_size": 32}, rows_of(1024), (65, 1024)),
    "ragged blocks": Large({"axis": -1, "block_size": 32}, rows_of(1000), (65, 1000)),
    "long blocks": Large({"axis": -1, "block_size": 40_000}, rows_of(120_000), (3, 120_000)),
    "blocks of rows": Large({"axis": 0, "block_size": 32}, rows_of(640, 32), (96, 640)),
    "blocks of odd rows": Large({"axis": 0, "block_size": 32}, rows_of(999, 32), (96, 999)),
}
LARGE_CODES = ("int8", "int16", "uint4", "int3", "float8_e4m3fn", "mxfp4")


def repeated(piece, shape):
    """The piece, repeated along the axis in which the shape is another one and cut off there."""
    if piece.shape[0] != shape[0]:
        return np.resize(piece, shape)
    return piece if piece.shape == shape else np.take(piece, np.arange(shape[1]) % piece.shape[1], 1)


def check_large(code, name):
    """Every operation on a large array whose results begin on a line, and next to one."""
    row = LARGE[name]
    options, shape = Grain(row.options, []).of(code), row.shape
    piece = expected_of(values("float32", math.prod(row.piece), 12).clip(-1000, 1000).reshape(row.piece), code, options)
    p, codes = piece.q.qparams, piece.q.codes
    packed = p.dtype.packed
    codes = repeated(reference.unpack(codes, code, shape=row.piece) if packed else codes, shape)
    if options.get("axis") in (0, -1):  # scales are repeated with the rows
        rows = len(p.scale) * shape[0] // row.piece[0]
        p = p.with_values(*(np.resize(each, (rows, *each.shape[1:])) for each in (p.scale, p.zero_point)))
    q = fastq.QuantizedArray(reference.pack(codes, code) if packed else codes, p, shape)
    made = Expected(repeated(piece.x, shape), q, repeated(piece.values, shape), repeated(piece.fake, shape))
    for place in ((0, 0), (1, 1)):
        check(made, code, options, place)


@pytest.mark.slow("2**24 elements a case")
@pytest.mark.parametrize(
    ("code", "name"),
    [(code, name) for code in LARGE_CODES for name, row in LARGE.items() if Grain(row.options, []).fits(code)],
)
def test_large_arrays(code, name):
    check_large(code, name)


@pytest.mark.slow("2**24 elements a case")
@pytest.mark.parametrize("code", ["int4", "uint2", "int6", "float4_e2m1fn"])
def test_large_arrays_that_are_packed(code):
    codes = np.resize(codes_of(code, 65_521), SIZE)
    packed = reference.pack(codes, code)
    same_bytes(fastq.pack(codes, code), packed)
    same_bytes(fastq.unpack(packed, code, shape=codes.shape), codes)


@pytest.mark.slow("2**24 elements")
def test_large_arrays_of_which_a_bit_is_kept():
    x = np.resize(values("float32", 65_521, 12), SIZE)
    for dtype, offset in itertools.product(("uint8", "int8"), (0, 1)):
        expected = reference.binarize(x, dtype=dtype)
        out, ends = in_between(expected.dtype, expected.shape, offset)
        same_bytes(fastq.binarize(x, dtype=dtype, out=out), expected)
        assert untouched(ends)


# --- blocks of GGUF ---------------------------------------------------------------------------------------------------


def check_gguf(kind, x, blocks, expected, places):
    """Both works on blocks, whose results begin a number of values, and of bytes, after a line."""
    for of_values, of_codes in places:
        out, ends = in_between(np.float32, x.shape, of_values)
        same_bytes(fastq.gguf.dequantize(blocks, kind, out=out), expected)
        assert untouched(ends)
        out, ends = in_between(np.uint8, blocks.shape, of_codes)
        importance = needed_importance(kind, x.shape[-1])
        same_bytes(fastq.gguf.quantize(x, kind, out=out, importance=importance), blocks)
        assert untouched(ends)


def rows_of_blocks(kind, blocks):
    """`n` blocks, one per row, with the results of the reference."""
    x = np.random.default_rng(9).standard_normal((blocks, BLOCK_FORMATS[kind].size)).astype(np.float32)
    made = some_blocks(x, kind)
    return x, made, reference.gguf.dequantize(made, kind)


@pytest.mark.slow("compiles 3 kernels a case", quick=lambda kind, **_: kind == "Q4_0")
@pytest.mark.parametrize("streaming", [0], indirect=True, ids=["past the cache"])
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_blocks_of_gguf(kind, threads, streaming, monkeypatch):
    width = BLOCK_FORMATS[kind].size
    monkeypatch.setattr(threadpool, "CHUNK", (1, 40 * width))  # of more than two groups of sixteen blocks
    whole = rows_of_blocks(kind, 300)
    for n, rows in itertools.product((1, 2, 4), (1, 15, 16, 17, 48, 300)):
        threads(n)
        check_gguf(kind, *(each[:rows] for each in whole), PLACES)


def check_large_gguf(kind):
    width = BLOCK_FORMATS[kind].size
    blocks = -(-SIZE // width)
    made = (np.resize(each, (blocks, each.shape[1])) for each in rows_of_blocks(kind, 8191 * 32 // width))
    check_gguf(kind, *made, ((0, 0), (1, 1)))


@pytest.mark.slow("2**24 elements a case")
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_large_arrays_of_gguf(kind):
    check_large_gguf(kind)
