"""Blocks of GGUF are those of ggml's C code, and decode to its values."""

import ggml
import numpy as np
import pytest
from catalogue import same_bytes
from gguf_data import COLUMNS, KINDS, comparable, importance, rows_of

import fastq
from fastq.formats.gguf import BLOCK_FORMATS, LEAST_ERROR

VALUES = 10_000_000
ROWS = -(-VALUES // len(KINDS) // COLUMNS)
CASES = [
    (name, weighted)
    for name, row in BLOCK_FORMATS.items()
    for weighted in (False, True)
    if (row.weighted if weighted else not row.needs_importance)
]


def _skip_unless_known(name):
    if ggml.library() is None:
        pytest.skip("not installed: llama-cpp-python or xllamacpp; blocks of GGUF are not compared with ggml")
    if not ggml.has(name):
        pytest.skip(f"{ggml.version()} does not know {name}")


def differing(name, kind, weights, rows):
    """Blocks that differ from ggml's, and the number of all."""
    x, width = comparable(rows_of(kind, rows, seed=1), name), BLOCK_FORMATS[name].nbytes
    if name in ("Q4_0", "Q5_0"):
        x += 0  # of zeros of which the first is -0.0 the scale is 0.0, as in the gguf package; in ggml it is -0.0
    expected = ggml.quantize(x, name, weights).reshape(-1, width)
    actual = fastq.gguf.quantize(x, name, importance=weights).reshape(-1, width)
    return np.flatnonzero((actual != expected).any(axis=1)), len(expected)


@pytest.mark.parametrize(("name", "weighted"), CASES)
def test_no_block_differs(name, weighted):
    # contract 20.1, 20.7 and 20.8
    """With a library that is built from its source: of 10^7 values in Q4_1 a wheel of xllamacpp has another block."""
    _skip_unless_known(name)
    if not ggml.is_built_here():
        pytest.skip("not installed: llama-cpp-python; the bytes of blocks are not compared with ggml")
    weights = importance(1) if weighted else None
    found = {kind: differing(name, kind, weights, ROWS)[0] for kind in KINDS}
    assert ROWS * COLUMNS * len(KINDS) >= VALUES
    assert not any(blocks.size for blocks in found.values()), {kind: blocks[:9] for kind, blocks in found.items()}


@pytest.mark.parametrize("name", [name for name, row in BLOCK_FORMATS.items() if row.weighted])
def test_no_block_differs_by_the_largest_importance(name):
    # contract 20.9
    _skip_unless_known(name)
    for kind in ("normal", "heavy tails", "magnitudes"):
        x = rows_of(kind, 40, seed=3)
        mean = (x.astype(np.float64) ** 2).reshape(-1, 32).mean(axis=1).max()
        weights = importance(3)
        weights *= np.float32(2.0**89.9 / (1 + mean) / weights.max())
        expected = ggml.quantize(comparable(x, name), name, weights)
        same_bytes(fastq.gguf.quantize(comparable(x, name), name, importance=weights), expected)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_values_are_the_same(name):
    _skip_unless_known(name)
    blocks = np.random.default_rng(2).integers(0, 256, (4000, BLOCK_FORMATS[name].nbytes), np.uint8)
    actual, expected = fastq.gguf.dequantize(blocks, name), ggml.dequantize(blocks, name)
    same_bytes(np.where(np.isnan(actual), np.float32(7), actual), np.where(np.isnan(expected), np.float32(7), expected))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LEAST_ERROR)
def test_least_error_by_the_decoder_of_ggml(name, weighted):
    _skip_unless_known(name)
    weights, counts = (importance(2), importance(2).astype(np.float64)) if weighted else (None, 1)
    for kind in KINDS:
        x = rows_of(kind, 40, seed=2)
        blocks = fastq.gguf.quantize(x, name, range="mse", importance=weights)
        values, own = (ggml.dequantize(each, name) for each in (blocks, ggml.quantize(x, name, weights)))
        same_bytes(values, fastq.gguf.dequantize(blocks, name))
        least, found = (((each.astype(np.float64) - x) ** 2 * counts) for each in (values, own))
        assert not (of_blocks(least, name) > of_blocks(found, name)).any(), kind


def of_blocks(errors, name):
    return errors.reshape(-1, BLOCK_FORMATS[name].size).sum(axis=1)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_other_weights_are_seen_to_differ(name):
    _skip_unless_known(name)
    x, weights = rows_of("normal", 8), importance()
    other = np.where(weights == weights.max(), np.float32(0), weights)
    assert (fastq.gguf.quantize(x, name, importance=other) != ggml.quantize(x, name, weights)).any()
