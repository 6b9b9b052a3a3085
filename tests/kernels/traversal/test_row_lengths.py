"""Runs of one or two registers, narrow rows of which several are taken as one, and wide rows that are read together."""

import itertools
import sys

import ml_dtypes
import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes, same_quantized, values
from comparing import (
    Work,
    dequantize,
    fake_quantize,
    fake_quantize_given,
    measures,
    minmax,
    quantize,
    quantize_given,
    refuse_nan_given,
    refuse_nan_in_minmax,
)
from hard_rows import parameters
from subprocesses import BEFORE_A_PAGE, finish, start

import fastq
from fastq import reference
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.shared_records import BUFFER
from fastq.formats.granularity import Granularity
from fastq.formats.qtypes import QTYPES
from fastq.kernels.storage import register_elements
from fastq.kernels.traversal import merged_rows
from fastq.plan import policy
from fastq.plan.layout import make_layout
from fastq.system import tuning


@pytest.mark.parametrize("length", [32, 48, 64, 256])
@pytest.mark.parametrize("place", [0, 15, 16, 31, 47, 32 * 5 + 20, 32 * 79, 32 * 80 - 1, -1])
def test_nan_is_reported_wherever_it_is_in_short_runs(place, length):
    x = np.ones(length * 80, np.float32)
    x[place] = np.nan
    p = parameters("int8", 80, length, axis=0, block_size=length)
    for call in (fastq.quantize, fastq.fake_quantize):
        with pytest.raises(ValueError, match="x has 1 NaN"):
            call(x, qparams=p)


def test_short_runs_write_nothing_beside_their_result():
    for length, offset in itertools.product((2, 3, 7, 12, 16, 24, 32, 48, 256), range(4)):
        q = reference.quantize(values("float32", 9 * length, 3).reshape(9, length), "int8", axis=0)
        memory = np.full(9 * length + 64, 7, np.float32)
        out = memory[offset : offset + 9 * length].reshape(9, length)
        same_bytes(fastq.dequantize(q, out=out), reference.dequantize(q))
        assert (memory[:offset] == 7).all()
        assert (memory[offset + 9 * length :] == 7).all()


# code: elements of runs, of which packed ones fill whole bytes
FEW = {"int8": (2, 3, 5, 8, 12, 15), "uint16": (2, 7), "uint4": (2, 6, 14), "int3": (8,), "float8_e4m3fn": (3, 10)}


@pytest.mark.slow(
    "compiles kernels of its own", quick=lambda code, nan: code == "int8" or (code, nan) == ("uint4", "raise")
)
@pytest.mark.parametrize("nan", ["raise", "zero"])
@pytest.mark.parametrize("code", FEW)
def test_runs_of_a_few_elements(code, nan, compare, chunks):
    chunks(320, 320)
    compare_runs_of_a_few_elements(compare, code, nan)


def compare_runs_of_a_few_elements(compare, code, nan):
    """Parameters are spread over elements; threads end within runs, and the last run may be shorter."""
    for length in FEW[code]:
        x = values("float32", 301 * length, length).clip(-900, 900)
        if nan == "zero":
            x[::7] = x[-1] = np.nan
        works = [(x.reshape(301, length), {"axis": 0}), (x.reshape(7, 43, length), {"axis": (0, 1)})]
        works.append((x.reshape(43, 7 * length), {"axis": 1, "block_size": length}))
        if code in ("int8", "uint16"):
            works.append((x[:-1], {"axis": 0, "block_size": length}))
        for data, where in works:
            options = where | {"nan": nan}
            sources = np.asfortranarray(data), np.repeat(data, 2, axis=-1)[..., ::2]
            compare(Work(data, code, options, sources=sources, threads=(1, 3)), quantize, quantize_given)
            compare(Work(data, code, options, threads=(1, 3)), dequantize, fake_quantize_given)
            if nan == "raise":
                compare(Work(data, code, options, threads=(1, 3)), measures)


@pytest.mark.slow("compiles kernels of its own", quick=lambda code, nan: code == "int8")
@pytest.mark.parametrize("nan", ["raise", "zero"])
@pytest.mark.parametrize("code", FEW)
def test_runs_of_a_few_elements_past_the_cache(code, nan, compare, chunks, small_cache):
    chunks(320, 320)
    small_cache(stream_from=1, stream_codes=True)
    assert policy.store_mode(64, np.dtype("f4"), np.dtype("i1"), codes=True)
    compare_runs_of_a_few_elements(compare, code, nan)


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype: dtype in ("float32", "uint8"))
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "uint8", "int16", "int64"])
def test_minima_of_runs_of_a_few_elements(dtype, compare, chunks):
    """Squares of runs are transposed, two that overlap where a run has more elements than a square, and those left."""
    chunks(320, 320)
    for length, runs in itertools.product((2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64), (1, 17, 130)):
        x = values("float32", runs * length, length + runs).clip(-100, 100).reshape(runs, length)
        x = (np.abs(x) if dtype == "uint8" else x).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        cases = [(x, {"axis": 0}), (x.T, {"axis": 1}), (x.reshape(-1)[:-1], {"axis": 0, "block_size": length})]
        for (data, where), nan in itertools.product(cases, ("raise", "zero")):
            if data.dtype.kind not in "iu":
                data = data.copy("K")
                if nan == "zero":
                    data[..., -1] = np.nan
            compare(Work(data, options=where | {"nan": nan}, threads=(1, 3)), minmax)
        if x.dtype.kind not in "iu":
            x[runs // 2, length // 2] = np.nan
            compare(Work(x, options={"axis": 0}, threads=(1, 3)), refuse_nan_in_minmax)


# code, elements of rows: packed ones fill whole bytes
NARROW = [("int8", n) for n in (2, 3, 5, 8, 17, 40)] + [("uint4", 2), ("uint4", 6), ("int3", 8), ("float8_e4m3fn", 3)]
NARROW += [("mxfp8_e4m3", 3), ("mxfp4", 2), ("mxint8", 12), ("nvfp4", 4), ("uint16", 3)]


@pytest.mark.slow("compiles kernels of its own", quick=lambda code, n, nan: (code, n) == ("int8", 3))
@pytest.mark.parametrize(("code", "n", "nan"), [(*case, nan) for case in NARROW for nan in ("raise", "zero")])
def test_rows_of_blocks_and_of_outer_channels_that_are_taken_as_one(code, n, nan, compare, chunks):
    """Runs of rows with the same parameters, the last ones shorter; chunks of threads end within them."""
    chunks(64, 64)
    own = QTYPES[code].block_size
    counts = (own or 7, 2), (40, 2), (64, 2), (1500, 1), (1500, 3)
    for (rows, threads), block in itertools.product(counts, (own,) if own else (0, 2, 16, 48)):
        x = values("float32", 5 * rows * n, rows).clip(-900, 900).reshape(5, rows, n)
        if nan == "zero":
            x[1, ::7, 0] = x[:, -1, -1] = x[3, 0, 1:] = np.nan
        where = {"axis": 1, "block_size": block} if block else {"axis": (0, 2)}
        compare(
            Work(x, code, where | {"nan": nan}, threads=(threads,)),
            quantize,
            quantize_given,
            dequantize,
            fake_quantize_given,
            minmax,
        )
        if nan == "raise":
            q, holey = reference.quantize(x, code, **where), x.copy()
            holey[4, rows // 2, n - 1] = np.nan
            compare(Work(x, q=q, threads=(threads,)), measures)
            compare(Work(holey, code, where, q=q, threads=(threads,)), refuse_nan_in_minmax, refuse_nan_given)


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16"])
def test_minima_of_wide_rows_that_outgrow_the_cache(dtype, compare, small_cache):
    """Eight rows at a time, those that are left, and rows that are not wide enough; each column has its own ends."""
    small_cache(stream_from=1)
    wide = -(-tuning.current().wide_row // np.dtype(dtype).itemsize)
    for rows, columns in [(8, wide), (23, wide + 3), (16, wide - 1), (31, wide)]:
        x = values("float32", rows * columns, 23).clip(-100, 100).reshape(rows, columns).astype(dtype)
        for options in ({"axis": 1}, {"axis": 0, "block_size": 9}):
            compare(Work(x, options=options, threads=(1, 3)), minmax)
        if x.dtype.kind == "f":
            (holey := x.copy())[rows - 1, ::5] = holey[3, 7] = np.nan
            compare(Work(holey, options={"axis": 1, "nan": "zero"}, threads=(1, 3)), minmax)
            compare(Work(holey, options={"axis": 1}, threads=(1, 3)), refuse_nan_in_minmax)


@pytest.mark.slow("compiles kernels of its own")
def test_floats_of_wide_rows_that_do_not_saturate(compare, small_cache):
    small_cache(stream_from=1, stream_run=1 << 40)
    x = values("float32", 9 * 3100, 26).reshape(9, 3100)
    qparams = fastq.QParams(np.full(3100, 0.25, np.float32), np.zeros(3100, np.int8), "float8_e4m3fn", axis=1)
    compare(Work(x, options={"saturate": False}, qparams=qparams), quantize, fake_quantize)


# Scales and zero points that end before a page that nothing may read
PARAMETERS_AT_A_PAGE = (
    BEFORE_A_PAGE
    + """
from fastq.plan.layout import make_layout
from fastq.plan.policy import rows_as_one
from fastq.formats.granularity import Granularity
from fastq.kernels.storage import register_elements

joined = 0
for n in (2, 3, 8, 15, 16, 17, 31, 40):
    x = np.random.default_rng(n).standard_normal((3, 64, n))
    q = reference.quantize(x.astype(np.float32), "int8", axis=(0, 2))
    scale, zero_point = before_a_page(q.scale), before_a_page(q.zero_point)
    expected = reference.dequantize_linear(q.codes, q.scale, q.zero_point, axis=(0, 2))
    found = fastq.dequantize_linear(q.codes, scale, zero_point, axis=(0, 2))
    np.testing.assert_array_equal(found, expected)
    for dtype in (np.float32, np.float64):
        x = x.astype(dtype)
        layout, kinds = make_layout(x.shape, Granularity((0, 2))), (x.dtype, np.dtype("i1"), x.dtype)
        joined += rows_as_one(layout, "quantize", register_elements(*kinds)) > 1 and n > 16
        q = reference.quantize(x, "int8", axis=(0, 2))
        scale, zero_point = before_a_page(q.scale), before_a_page(q.zero_point)
        found = fastq.quantize_linear(x, scale, zero_point, axis=(0, 2))
        np.testing.assert_array_equal(found, q.codes)
assert joined == 6, joined
"""
)


# Runs of a few elements that end there, and their parameters
RUNS_AT_A_PAGE = (
    BEFORE_A_PAGE
    + """
for dtype in ("uint8", "int16", "float32", "float64"):
    for n in (2, 3, 7, 8, 15, 17, 31, 63):
        x = np.random.default_rng(n).integers(0, 99, (73, n)).astype(dtype)
        q = reference.quantize(x, "int8", axis=0)
        at_end = before_a_page(x)
        for found, expected in zip(fastq.minmax(at_end, axis=0), reference.minmax(x, axis=0)):
            np.testing.assert_array_equal(found, expected)
        if dtype in QUANTIZED:
            np.testing.assert_array_equal(fastq.quantize(at_end, "int8", axis=0).codes, q.codes)
            scale, zero_point = before_a_page(q.scale), before_a_page(q.zero_point)
            np.testing.assert_array_equal(fastq.quantize_linear(at_end, scale, zero_point, axis=0), q.codes)
"""
)


@pytest.mark.parametrize("op", ["minmax", "dequantize", "quantize", "compare"])
def test_rows_taken_as_one_fit_their_memory(op):
    for dtype, inner, rows in itertools.product(
        ("int8", "float32", "float64"), range(2, 1100), (2, 15, 16, 100, 10**6)
    ):
        layout = make_layout((rows, inner), Granularity((1,)))
        lanes = register_elements(np.dtype(dtype), np.dtype("f4"), np.dtype("f4"))
        joined = policy.rows_as_one(layout, op, lanes)
        assert joined == 1 or joined * inner <= merged_rows._MOST_JOINED, (dtype, inner, rows)


WIDE = [("float32", code) for code in ("int8", "uint4", "int3", "float8_e4m3fn", "nf4", "mxfp4", "mxint8", "nvfp4")]
WIDE += [("float16", "int8"), ("float64", "uint8"), ("int16", "int8")]


@pytest.mark.slow("compiles 3 kernels a case", quick=lambda dtype, code, streams: (dtype, code) == ("float32", "int8"))
@pytest.mark.parametrize(("dtype", "code"), WIDE)
@pytest.mark.parametrize("streams", [False, True])
def test_codes_and_values_of_wide_rows_that_outgrow_the_cache(dtype, code, streams, threads, small_cache):
    """Four rows at a time where the scales of a row outgrow the first cache, unless rows are streamed."""
    small_cache(stream_from=1, stream_run=1 if streams else 1 << 40, stream_codes=False)
    blocks = QTYPES[code].block_size
    scale = reference.quantize(np.ones((1, blocks or 1), dtype), code).scale
    wide = tuning.current().wide_row // scale.itemsize
    for (rows, columns), n in itertools.product([(8, wide), (7, wide + 3), (9, wide - 1), (13, 40)], (1, 3)):
        threads(n)
        x = values("float32", rows * columns, 25).clip(-100, 100).reshape(rows, columns).astype(dtype)
        for options in ({"axis": 1}, {"axis": 0, "block_size": 5}) if not blocks else ({"axis": 0},):
            q = reference.quantize(x, code, **options)
            expected = reference.dequantize(q, dtype=dtype if x.dtype.kind == "f" else None)
            for source in (x, np.repeat(x, 2, axis=1)[:, ::2]):
                same_quantized(fastq.quantize(source, qparams=q.qparams), q)
                same_bytes(fastq.fake_quantize(source, qparams=q.qparams), expected)
            same_bytes(
                fastq.fake_quantize(again := x.copy(), qparams=q.qparams, out=again if x.dtype.kind == "f" else None),
                expected,
            )
            same_bytes(fastq.dequantize(q, dtype=expected.dtype), expected)
            if x.dtype.kind == "i":
                continue
            for at in [(0, 0), (rows - 1, columns - 1), (5, columns // 2)]:
                (holey := x.copy())[at] = np.nan
                with pytest.raises(ValueError, match="x has 1 NaN"):
                    fastq.quantize(holey, qparams=q.qparams)
                same_quantized(*(i.quantize(holey, qparams=q.qparams, nan="zero") for i in (fastq, reference)))


@pytest.mark.parametrize("place", [0, 23, 24 * 5 + 20, 24 * 79, 24 * 80 - 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_range_is_reported_wherever_it_is_in_short_runs(place, bad):
    x = np.arange(24 * 80, dtype=np.float32)
    x[place] = bad
    for call in (fastq.quantize, fastq.fake_quantize):
        with pytest.raises(ValueError, match=r"x has 1 (NaN|infinite)"):
            call(x, "int8", axis=0, block_size=24)


CODEBOOK_CODES = ["nf4", "fp4", "dynamic8"]


@pytest.mark.slow("compiles 3 kernels a codebook", quick=lambda code, **_: code == "nf4")
@pytest.mark.parametrize("code", CODEBOOK_CODES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
@pytest.mark.parametrize("where", [{"axis": 0, "block_size": 64}, {"axis": 0, "block_size": 24}])
def test_infinity_in_many_blocks_of_a_codebook_is_refused(code, bad, where):
    for place in (0, 63, 700, 1535):
        x = np.ones(1536, np.float32)
        x[place] = bad
        for call in (fastq.quantize, fastq.fake_quantize, reference.quantize):
            with pytest.raises(ValueError, match=r"x has (1 )?infinite"):
                call(x, code, **where)


@pytest.mark.slow("compiles a kernel a format", quick=lambda code: code == "mxfp4")
@pytest.mark.parametrize("code", ["mxfp4", "nvfp4"])
def test_blocks_of_memory_with_gaps_beside_their_result(code):
    base = np.ones(512_000, np.float32)
    x, out = base.reshape(1000, 64, 8)[:, :, 0].T, base[:64_000].reshape(64, 1000)
    right = reference.fake_quantize(x.copy(), code, nan="keep")
    same_bytes(fastq.fake_quantize(x, code, nan="keep", out=out), right)


# --- packed rows that end within a byte, several of which are copied as one -------------------------------------------

PACKED = ("uint1", "int2", "uint3", "int3", "int4", "uint5", "int6", "float6_e3m2fn", "uint7")


def packed_rows(codes, bits):
    """Rows packed by NumPy alone, each in bytes of its own."""
    every = np.unpackbits(codes.view(np.uint8)[..., None], axis=-1, bitorder="little")
    return np.packbits(every[..., :bits].reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


@pytest.mark.slow("compiles 3 kernels a case", quick=lambda code: code == "int4")
@pytest.mark.parametrize("code", PACKED)
def test_packed_rows_that_end_within_a_byte(code, threads, monkeypatch):
    monkeypatch.setattr(threadpool, "CHUNK", (320, 320))
    qtype, random = QTYPES[code], np.random.default_rng(9)
    for length, n in itertools.product((1, 2, 3, 5, 7, 9, 15, 17, 33, 63, 65, 127, 129), (1, 2)):
        threads(n)
        for rows in (1, 2, 70, 1001):
            codes = random.integers(qtype.qmin, qtype.qmax + 1, (rows, length)).astype(qtype.storage)
            packed = packed_rows(codes, qtype.bits)
            same_bytes(fastq.pack(codes, code), packed)
            same_bytes(fastq.unpack(packed, code, shape=codes.shape), codes)
        if not qtype.element:
            same_bytes(fastq.pack(codes.astype(np.int64), code), packed)
            for place in (0, codes.size // 2, -1):
                wrong = codes.astype(np.int64)
                wrong.reshape(-1)[place] = qtype.qmax + 1
                with pytest.raises(ValueError, match="codes must be from"):
                    fastq.pack(wrong, code)


@pytest.mark.slow("compiles 2 kernels a case", quick=lambda dtype: dtype == "float64")
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_signs_of_rows_that_end_within_a_byte(dtype, threads, monkeypatch):
    monkeypatch.setattr(threadpool, "CHUNK", (320, 320))
    for length, n in itertools.product((1, 2, 3, 5, 7, 9, 17, 33, 65, 127), (1, 2)):
        threads(n)
        x = np.random.default_rng(length).integers(-1, 2, (701, length)).astype(dtype)
        same_bytes(fastq.binarize(x), np.packbits(x > 0, axis=-1))
        for place in () if dtype == "int8" else (0, x.size // 2, -1):
            bad = x.copy()
            bad.reshape(-1)[place] = np.nan
            with pytest.raises(ValueError, match="x has 1 NaN"):
                fastq.binarize(bad)


LONG = 8 * BUFFER + 3  # elements of a row, of which no buffer has room for one


@pytest.mark.parametrize(
    "layout", ["fortran", "transposed", "strided", "negative", "broadcast", "unaligned", "swapped"]
)
@pytest.mark.parametrize("shape", [(1001, 3), (70, 33), (40, 129), (9, 5, 3), (64, 1999), (3, LONG), (2, 2, LONG)])
def test_rows_that_end_within_a_byte_in_memory_with_gaps(layout, shape, threads, monkeypatch):
    """Rows go through buffers, one by one where these have no room for one; packed along the first axis, too."""
    monkeypatch.setattr(threadpool, "CHUNK", (320, 320))
    x = LAYOUTS[layout](np.random.default_rng(10).integers(-2, 2, shape).astype(np.float64))
    codes = LAYOUTS[layout](np.ascontiguousarray(x).astype(np.int8))
    axes = (-1,) if LONG in shape else (-1, 0)
    for axis, n in itertools.product(axes, (1, 2)):
        threads(n)
        same_bytes(fastq.binarize(x, axis=axis), np.packbits(x > 0, axis=axis))
        packed = np.moveaxis(packed_rows(np.moveaxis(codes, axis, -1), 3), -1, axis)
        same_bytes(fastq.pack(codes, "int3", axis=axis), packed)
        same_bytes(fastq.unpack(packed, "int3", axis=axis, shape=shape), np.ascontiguousarray(codes))
    bad, place = np.ascontiguousarray(x), (0,) + (-1,) * (len(shape) - 1)
    bad[place] = 4
    with pytest.raises(ValueError, match="codes must be from -4 to 3 for int3, not"):
        fastq.pack(LAYOUTS[layout](bad.astype(np.int8)), "int3")
    bad[place] = np.nan
    with pytest.raises(ValueError, match=r"x has \d+ NaN"):
        fastq.binarize(LAYOUTS[layout](bad))


# Rows of codes, packed and one per byte, that end before a page that nothing may read
ROWS_AT_A_PAGE = (
    BEFORE_A_PAGE
    + """
for code, bits in (("int4", 4), ("uint3", 3), ("uint1", 1)):
    for n in (1, 3, 5, 17, 33, 127):
        codes = np.random.default_rng(n).integers(0, 1 << bits - (code[0] == "i"), (31, n)).astype(f"{code[:-1]}8")
        packed = reference.pack(codes, code)
        np.testing.assert_array_equal(fastq.pack(before_a_page(codes), code), packed)
        np.testing.assert_array_equal(fastq.unpack(before_a_page(packed), code, shape=codes.shape), codes)
"""
)


EVERY_DTYPE = "QUANTIZED = ('uint8', 'int16', 'float32', 'float64')"
AT_A_PAGE = {  # in one process, which takes longer to start than they do
    "parameters": PARAMETERS_AT_A_PAGE,
    "runs": "QUANTIZED = ('float32',)" + RUNS_AT_A_PAGE,
    "codes": ROWS_AT_A_PAGE,
}


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as on Linux")
@pytest.mark.slow("compiles 6 kernels", quick=lambda parts: parts == AT_A_PAGE)
@pytest.mark.parametrize("parts", [AT_A_PAGE, {"runs": EVERY_DTYPE + RUNS_AT_A_PAGE}], ids=["float32", "every dtype"])
def test_nothing_behind_an_operand_is_read(parts):
    """Parameters are copied some at a time for rows taken as one, runs read by squares, rows of codes by registers.

    The last name in the output is that of the part that failed.
    """
    code = "".join(f"print({name!r}, flush=True)\n{part}\n" for name, part in parts.items())
    assert finish(start(code), timeout=300).split() == [*parts]
