"""Layouts of integers: words of int32 as GPTQ and AWQ have them, bytes as MatMulNBits does.

GPTQ packs along the inputs, and in its first version has zero points less one; AWQ packs along the outputs, in an order
of its own.
"""

from __future__ import annotations

import numpy as np

from fastq.layouts.tensors import (
    BlockedWeight,
    Reading,
    Writing,
    checked_block_size,
    from_words,
    stored_scale,
    to_words,
    weight_of,
)
from fastq.operations.packing import pack, unpack
from fastq.results import QuantizedArray
from fastq.system.arguments import as_array
from fastq.system.dtypes import Array

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs is in the lowest four bits of a word, in the next, ..


def _write_words(q: QuantizedArray, how: Writing) -> dict[str, Array]:
    weight, row, inputs = weight_of(q, how.row), how.row, q.shape[1]
    codes, indices = weight.codes, np.arange(inputs, dtype=np.int32) // weight.block_size
    if row.zero_points_less and not weight.zero_point.all():
        raise ValueError("layout 'gptq' stores zero_point - 1 and cannot hold zero_point 0: use 'gptq_v2'")
    if how.g_idx is not None:
        given = as_array(how.g_idx, "g_idx")
        if given.dtype.kind not in "iu":
            raise TypeError(f"g_idx must be integers, not {given.dtype}")
        if given.shape != (inputs,) or not np.array_equal(np.sort(given), indices):
            raise ValueError(f"g_idx must name each block of q as often as it has inputs, in shape ({inputs},)")
        codes, indices = np.empty_like(codes), given.astype(np.int32)
        codes[:, np.argsort(indices, kind="stable")] = weight.codes
    zeros = weight.zero_point.T - np.uint8(row.zero_points_less)
    return {
        "qweight": to_words(codes.T, weight.bits, 1 if row.order else 0, "qweight", row.order),
        "qzeros": to_words(zeros, weight.bits, 1, "qzeros", row.order),
        "scales": stored_scale(weight.scale.T, how.scale_dtype, "float16"),
        **({"g_idx": indices} if row.has_g_idx else {}),
    }


def _read_words(given: Reading) -> QuantizedArray:
    bits, row = given.qtype.bits, given.row
    codes = from_words(given.matrix("qweight", "int32"), bits, 1 if row.order else 0, row.order)
    (inputs, outputs), scales = codes.shape, given.scales("scales")
    if scales.ndim != 2 or scales.shape[1] != outputs or not scales.size:
        raise ValueError(f"scales has shape {scales.shape}, but the other tensors need shape (blocks, {outputs})")
    zeros = from_words(given.of_shape("qzeros", "int32", len(scales), outputs * bits // 32), bits, 1, row.order)
    if row.zero_points_less and (zeros == (1 << bits) - 1).any():
        raise ValueError(
            f"qzeros has zero points of which all bits are set: readers of 'gptq' take them for 0 or for {1 << bits}"
        )
    indexed = row.has_g_idx and "g_idx" in given.tensors
    g_idx = given.of_shape("g_idx", "int32", inputs) if indexed else None
    block_size = checked_block_size(given.block_size or _inputs_of_a_block(g_idx, len(scales)), inputs, len(scales))
    in_order = np.arange(inputs) // block_size
    if g_idx is not None and not np.array_equal(g_idx, in_order):
        if not np.array_equal(np.sort(g_idx), in_order):
            raise ValueError("g_idx must name every block as often as it has inputs")
        if not given.sort_inputs:
            raise ValueError(
                "g_idx orders inputs by activation: pass sort_inputs=True to get them in the order of their blocks"
            )
        codes = codes[np.argsort(g_idx, kind="stable")]
    zeros = zeros.T + np.uint8(row.zero_points_less)
    return BlockedWeight(np.ascontiguousarray(codes.T), scales.T, zeros, bits, block_size).quantized()


def _inputs_of_a_block(g_idx: Array | None, blocks: int) -> int:
    """Return how many inputs the largest block has, which only the last may fall short of; 0 if unknown."""
    if g_idx is None or not g_idx.size or g_idx.min() < 0 or g_idx.max() >= blocks:
        return 0
    largest = int(np.bincount(g_idx).max())
    return largest if -(-g_idx.size // largest) == blocks else 0


def _write_blocks(q: QuantizedArray, how: Writing) -> dict[str, Array]:
    weight = weight_of(q, how.row)
    (outputs, inputs), size = q.shape, weight.block_size
    if size < 16 or size & size - 1:
        raise ValueError(f"block_size must be a power of two from 16 on for layout {how.row.name!r}, not {size}")
    blocks = -(-inputs // size)
    codes = np.pad(weight.codes, ((0, 0), (0, blocks * size - inputs))).reshape(outputs, blocks, size)
    tensors = {
        "B": pack(codes, weight.qtype) if weight.bits < 8 else codes,
        "scales": stored_scale(weight.scale, how.scale_dtype),
    }
    middle = 1 << (weight.bits - 1)
    if not (q.symmetric and (weight.zero_point == middle).all()):
        padding = -blocks % (8 // weight.bits)
        zeros = np.pad(weight.zero_point, ((0, 0), (0, padding)), constant_values=middle)
        tensors["zero_points"] = pack(zeros, weight.qtype) if weight.bits < 8 else zeros
    return tensors


def _read_blocks(given: Reading) -> QuantizedArray:
    packed, bits = given.get("B", "uint8"), given.qtype.bits
    unsigned = f"uint{bits}"
    if packed.ndim != 3 or not packed.size:
        raise ValueError(f"B must have 3 dimensions with elements, not shape {packed.shape}")
    outputs, blocks, size = *packed.shape[:2], packed.shape[-1] * 8 // bits
    codes = unpack(packed, unsigned, shape=(outputs, blocks, size)) if bits < 8 else packed
    whole = given.shape or (outputs, blocks * size)
    if len(whole) != 2 or whole[0] != outputs or -(-whole[1] // size) != blocks:
        raise ValueError(f"shape {whole} does not fit B of shape {packed.shape}")
    scales = given.scales("scales")
    if scales.size != outputs * blocks:
        raise ValueError(f"scales has shape {scales.shape}, but B needs shape {(outputs, blocks)}")
    zeros = np.full((outputs, blocks), 1 << (bits - 1), np.uint8)
    if "zero_points" in given.tensors:
        stored = given.get("zero_points", "uint8").reshape(outputs, -1)
        given.tensors["zero_points"] = stored
        given.of_shape("zero_points", "uint8", outputs, -(-blocks * bits // 8))
        zeros = unpack(stored, unsigned, shape=(outputs, blocks)) if bits < 8 else stored
    codes = np.ascontiguousarray(codes.reshape(outputs, -1)[:, : whole[1]])
    return BlockedWeight(codes, scales.reshape(outputs, blocks), zeros, bits, size).quantized("matmul-nbits")


WORDS, BLOCKS = (_write_words, _read_words), (_write_blocks, _read_blocks)
