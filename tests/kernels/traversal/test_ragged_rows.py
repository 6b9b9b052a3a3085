"""Rows of some whole blocks and the rest of one, of which several are prepared together across rows."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes, same_measures, same_quantized, values

import fastq
from fastq import reference
from fastq.engine.runtime import threadpool
from fastq.formats.qtypes import QTYPES

# elements of a row and of a block: rests of less than a register, of one, and of more; odd blocks; many and few blocks
ROWS = [(24, 16), (17, 16), (31, 16), (40, 16), (40, 32), (33, 32), (63, 32), (96, 64), (136, 64), (60, 40), (100, 24)]
ROWS += [(1000, 32), (600, 256), (272, 256), (9, 8), (20, 8), (47, 16)]
FORMATS = ["int8", "uint16", "float8_e4m3fn", "nf4", "int4", "uint3", "mxfp4", "nvfp4"]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int16"]


def rows_of(dtype, rows, length, block):
    """Rows of which some have zeros, or a range so small that its scale needs a division."""
    x = values("float32", rows * length, length).clip(-100, 100).reshape(rows, length)
    x[::11] *= np.float32(2.0**-120)
    x[5::17] = 0
    x[7::19, block:] *= 9
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def where_of(code, block):
    """Options of blocks, None where a format has others."""
    own = QTYPES[code].block_size
    return {"axis": 1, "block_size": block} if own in (0, block) else None


def works(code):
    """Rows of which a format has such blocks, and numbers of threads, which end within rows and runs."""
    for (length, block), n in itertools.product(ROWS, (1, 3)):
        if where_of(code, block):
            yield length, block, n


@pytest.mark.slow("compiles 8 kernels a case", quick=lambda code, dtype: (code, dtype) in QUICK)
@pytest.mark.parametrize("code", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation(code, dtype, threads, monkeypatch):
    check_every_operation(code, dtype, threads, monkeypatch)


@pytest.mark.slow("compiles 8 kernels a case")
@pytest.mark.parametrize(("code", "dtype"), [("int8", "float32"), ("int8", "float64"), ("int4", "float32")])
def test_results_that_go_past_the_cache(code, dtype, threads, monkeypatch, small_cache):
    """By way of the stack, where pieces of results end within rows and runs."""
    small_cache(stream_from=1, stream_codes=True)
    check_every_operation(code, dtype, threads, monkeypatch)


def check_every_operation(code, dtype, threads, monkeypatch):
    """Compare what has blocks and rests with the reference."""
    monkeypatch.setattr(threadpool, "CHUNK", (320, 320))
    for length, block, n in works(code):
        threads(n)
        x, where = rows_of(dtype, 53, length, block), where_of(code, block)
        q = reference.quantize(x, code, **where)
        same_quantized(fastq.quantize(x, code, **where), q)
        same_quantized(fastq.quantize(x, qparams=q.qparams), reference.quantize(x, qparams=q.qparams))
        same_bytes(fastq.dequantize(q), reference.dequantize(q))
        for by in ({"qparams": q.qparams}, {"dtype": code, **where}):
            same_bytes(fastq.fake_quantize(x, **by), reference.fake_quantize(x, **by))
        for found, expected in zip(fastq.minmax(x, **where), reference.minmax(x, **where), strict=True):
            same_bytes(found, expected)
        same_measures(fastq.compare(x, q), reference.compare(x, q))


QUICK = [("int8", "float32"), ("int4", "float32")]


@pytest.mark.slow("compiles 3 kernels a case", quick=lambda code: code in ("int8", "int4"))
@pytest.mark.parametrize("code", ["int8", "nf4", "int4", "uint3"])
def test_a_line_that_ends_within_a_byte(code, threads, monkeypatch):
    monkeypatch.setattr(threadpool, "CHUNK", (320, 320))
    for size, n in itertools.product((1001, 1009, 1015, 1023), (1, 3)):
        threads(n)
        x, where = rows_of("float32", 1, size, 16)[0], {"axis": 0, "block_size": 32}
        q = reference.quantize(x, code, **where)
        same_quantized(fastq.quantize(x, code, **where), q)
        same_quantized(fastq.quantize(x, qparams=q.qparams), q)
        same_bytes(fastq.dequantize(q), reference.dequantize(q))


@pytest.mark.parametrize("length", [16, 24, 40, 100])
def test_channels_in_the_middle(length, threads, monkeypatch):
    """Parameters follow each other up to the last channel, then come again; threads begin and end between."""
    monkeypatch.setattr(threadpool, "CHUNK", (320, 320))
    for channels, n in itertools.product((3, 20, 50), (1, 3)):
        threads(n)
        x = rows_of("float32", 7 * channels, length, 16).reshape(7, channels, length)
        q = reference.quantize(x, "int8", axis=1)
        same_quantized(fastq.quantize(x, "int8", axis=1), q)
        same_bytes(fastq.dequantize(q), reference.dequantize(q))
        same_measures(fastq.compare(x, q), reference.compare(x, q))


HOLEY = [(code, "zero") for code in FORMATS] + [(code, "keep") for code in ("float8_e4m3fn", "mxfp4", "nvfp4")]


@pytest.mark.slow(
    "compiles 6 kernels a case", quick=lambda code, nan: code == "int8" or (code, nan) == ("mxfp4", "keep")
)
@pytest.mark.parametrize(("code", "nan"), HOLEY)
def test_nan_in_blocks_and_rests(code, nan, threads, monkeypatch):
    monkeypatch.setattr(threadpool, "CHUNK", (320, 320))
    for length, block, n in works(code):
        threads(n)
        x, where = rows_of("float32", 53, length, block), where_of(code, block)
        x[3::13, length // 2] = x[40, 0] = x[41, -1] = x[42, block - 1] = x[43, block] = np.nan
        q = reference.quantize(x, code, nan=nan, **where)
        same_quantized(fastq.quantize(x, code, nan=nan, **where), q)
        if nan == "keep" and QTYPES[code].block_size:
            continue  # scales that are given are not marked
        by = {"qparams": q.qparams, "nan": nan}
        same_quantized(fastq.quantize(x, **by), reference.quantize(x, **by))
        same_bytes(fastq.fake_quantize(x, **by), reference.fake_quantize(x, **by))


@pytest.mark.parametrize("place", [0, 15, 16, 23, 24, 24 * 8 + 20, 24 * 8 + 15, 24 * 40 + 1, -9, -1])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_code_is_reported_wherever_it_is(place, bad):
    where = {"axis": 1, "block_size": 16}
    x = np.arange(24 * 50, dtype=np.float32).reshape(50, 24)
    q = fastq.quantize(x, "int8", **where)
    x.reshape(-1)[place] = bad
    for call in (fastq.quantize, fastq.fake_quantize):
        with pytest.raises(ValueError, match=r"x has 1 (NaN|infinite)"):
            call(x, "int8", **where)
        if bad != np.inf:
            with pytest.raises(ValueError, match="x has 1 NaN"):
                call(x, qparams=q.qparams)


@pytest.mark.parametrize("offset", range(3))
@pytest.mark.parametrize(("length", "block"), ROWS)
def test_nothing_is_written_beside_the_result(length, block, offset, threads):
    x, where = rows_of("float32", 37, length, block), {"axis": 1, "block_size": block}
    expected = reference.quantize(x, "int8", **where)
    for n, dtype in itertools.product((1, 2), (np.float32, np.int8)):
        threads(n)
        memory = np.full(x.size + 128, 7, dtype)
        out = memory[64 + offset : 64 + offset + x.size].reshape(x.shape)
        if dtype == np.int8:
            same_bytes(fastq.quantize(x, qparams=expected.qparams, out=out).codes, expected.codes)
            same_bytes(fastq.quantize(x, "int8", out=out, **where).codes, expected.codes)
        else:
            same_bytes(fastq.dequantize(expected, out=out), reference.dequantize(expected))
        assert (memory[: 64 + offset] == 7).all()
        assert (memory[64 + offset + x.size :] == 7).all()
