"""Rows of some whole blocks and the rest of one, of which several are prepared together across rows."""

import itertools

import numpy as np
import pytest
from catalogue import same_bytes
from hard_rows import ROWS, ragged_rows

import fastq
from fastq import reference


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
    x, where = ragged_rows("float32", 37, length, block), {"axis": 1, "block_size": block}
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
