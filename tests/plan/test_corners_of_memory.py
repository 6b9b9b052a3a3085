"""Corners of memory: stores past the cache, results upon what is read, no elements, axes that no view has in rows."""

import dataclasses

import numpy as np
import pytest
from catalogue import same_bytes, same_quantized

import fastq
from fastq import reference
from fastq.system import tuning


@pytest.mark.parametrize("dtype", ["uint1", "int8"])
def test_blocks_of_fewer_bits_than_a_line_has_are_not_stored_past_the_cache(dtype, monkeypatch):
    """Sixteen blocks of sixteen codes of a bit are half a line, of which some may lie in the line before."""
    row = dataclasses.replace(tuning.current(), stream_codes=True, stream_from=1)
    monkeypatch.setattr(tuning, "current", lambda: row)
    x = np.random.default_rng(0).standard_normal((333, 16)).astype(np.float32)
    expected = reference.quantize(x, dtype, axis=1, block_size=16)
    for offset in (0, 5, 60):
        memory = np.empty(expected.codes.nbytes + 128, np.uint8)
        begin = -memory.ctypes.data % 64 + offset
        out = memory[begin : begin + expected.codes.nbytes].view(expected.codes.dtype).reshape(expected.codes.shape)
        same_quantized(fastq.quantize(x, dtype, axis=1, block_size=16, out=out), expected)


@pytest.mark.parametrize("gap", [0, 12])
@pytest.mark.parametrize("rows", [3, 40])
def test_gguf_upon_what_it_is_made_of(rows, gap):
    """If rows have gaps, the tiles of strided memory differ from those of its copy."""
    x = np.random.default_rng(0).standard_normal((rows, 64)).astype(np.float32)
    blocks = reference.gguf.quantize(x, "Q8_0")
    memory = np.zeros((rows, 64 + gap), np.float32)
    memory[:, :64] = x
    out = memory.view(np.uint8).ravel()[: blocks.size].reshape(blocks.shape)
    same_bytes(fastq.gguf.quantize(memory[:, :64], "Q8_0", out=out), blocks)

    width = blocks.shape[1]
    memory = np.zeros(rows * (256 + width + gap), np.uint8)
    data = memory[: rows * (width + gap)].reshape(rows, width + gap)[:, :width]
    data[:] = blocks
    out = memory[: rows * 256].view(np.float32).reshape(rows, 64)
    same_bytes(fastq.gguf.dequantize(data, "Q8_0", out=out), reference.gguf.dequantize(blocks, "Q8_0"))


@pytest.mark.slow("compiles a kernel a format", quick=lambda code: code == "mxfp4")
@pytest.mark.parametrize("code", ["mxfp8_e4m3", "mxfp4"])
def test_a_copy_without_gaps_that_fits_no_tile(code):
    """The input shares memory with the result and is copied; that has no gaps, so tiles are of other rows."""
    rng = np.random.default_rng(0)
    memory = rng.standard_normal((1001, 16, 9)).astype(np.float16)
    x = memory[:, :, :8].T
    x[3, 4, 5] = np.nan
    expected = reference.fake_quantize(x.copy(), code, nan="keep")
    out = memory.reshape(-1)[: x.size].reshape(x.shape)
    same_bytes(fastq.fake_quantize(x, code, nan="keep", out=out), expected)


@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((0, 3), 1), ((3, 0, 2), (0, 1)), ((0,), None)])
def test_a_calibrator_of_nothing(shape, axis):
    """Of no channels, or of channels without elements, whose ranges a later part brings."""
    kept = () if axis is None else np.atleast_1d(axis)
    more = np.ones([n if n or k in kept else 4 for k, n in enumerate(shape)], np.float32)
    found = []
    for module in (fastq, reference):
        seen = module.Calibrator("int8", axis=axis)
        seen.update(np.ones(shape, np.float32))
        seen.update(more)
        found.append(seen.qparams("minmax").scale)
    same_bytes(*found)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)], ids=str)
def test_kept_axes_between_others_that_go_on_both_sides(order):
    """No view of such memory has one index of parameters for a row: kept axes are brought to the front."""
    x = np.random.default_rng(0).standard_normal([(3, 2, 4, 5, 2)[axis] for axis in order], np.float32)
    x = x.transpose(np.argsort(order))
    same_quantized(fastq.quantize(x, "uint8", axis=(1, 3)), reference.quantize(x, "uint8", axis=(1, 3)))
    for found, expected in zip(fastq.minmax(x, axis=(1, 3)), reference.minmax(x, axis=(1, 3)), strict=True):
        same_bytes(found, expected)
