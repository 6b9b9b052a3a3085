"""Tensors of GPTQ: words along the inputs, zero points less one in the first version."""

from __future__ import annotations

import numpy as np

from fastq.layouts.tensors import (
    BlockedWeight,
    Reading,
    Writing,
    checked_block_size,
    from_words,
    matrix,
    scales_of,
    stored_scale,
    to_words,
    weight_of,
)
from fastq.results import QuantizedArray
from fastq.system.arguments import as_array
from fastq.system.dtypes import Array


def write(q: QuantizedArray, how: Writing) -> dict[str, Array]:
    """Return the tensors of a weight."""
    weight, less = weight_of(q, how.row), how.row.zero_points_less
    inputs = q.shape[1]
    if less and not weight.zero_point.all():
        raise ValueError("layout 'gptq' stores zero_point - 1 and cannot hold zero_point 0: use 'gptq_v2'")
    g_idx = np.arange(inputs, dtype=np.int32) // weight.block_size
    codes = weight.codes
    if how.g_idx is not None:
        given = as_array(how.g_idx, "g_idx")
        if given.dtype.kind not in "iu":
            raise TypeError(f"g_idx must be integers, not {given.dtype}")
        if given.shape != (inputs,) or not np.array_equal(np.sort(given), g_idx):
            raise ValueError(f"g_idx must name each block of q as often as it has inputs, in shape ({inputs},)")
        codes, g_idx = np.empty_like(codes), given.astype(np.int32)
        codes[:, np.argsort(g_idx, kind="stable")] = weight.codes
    return {
        "qweight": to_words(codes.T, weight.bits, 0, "qweight"),
        "qzeros": to_words(weight.zero_point.T - np.uint8(less), weight.bits, 1, "qzeros"),
        "scales": stored_scale(weight.scale.T, how.scale_dtype, "float16"),
        "g_idx": g_idx,
    }


def read(given: Reading) -> QuantizedArray:
    """Return the weight of some tensors."""
    bits, less = given.qtype.bits, given.row.zero_points_less
    codes = from_words(matrix(given, "qweight", "int32"), bits, 0)
    inputs, outputs = codes.shape
    scales = scales_of(given, outputs)
    zeros = from_words(given.of_shape("qzeros", "int32", len(scales), outputs * bits // 32), bits, 1)
    if less and (zeros == (1 << bits) - 1).any():
        raise ValueError(
            f"qzeros has zero points of which all bits are set: readers of 'gptq' take them for 0 or for {1 << bits}"
        )
    g_idx = given.of_shape("g_idx", "int32", inputs) if "g_idx" in given.tensors else None
    block_size = checked_block_size(given.block_size or _inputs_of_a_block(g_idx, len(scales)), inputs, len(scales))
    if g_idx is not None:
        in_order = np.arange(inputs) // block_size
        if not np.array_equal(g_idx, in_order):
            codes = codes[_input_order(g_idx, in_order, given.sort_inputs)]
    return BlockedWeight(
        np.ascontiguousarray(codes.T), scales.T, zeros.T + np.uint8(less), bits, block_size
    ).quantized()


def _inputs_of_a_block(g_idx: Array | None, blocks: int) -> int:
    """Return how many inputs the largest block has, which only the last may fall short of; 0 if unknown."""
    if g_idx is None or not g_idx.size or g_idx.min() < 0 or g_idx.max() >= blocks:
        return 0
    largest = int(np.bincount(g_idx).max())
    return largest if -(-g_idx.size // largest) == blocks else 0


def _input_order(g_idx: Array, in_order: Array, sort_inputs: bool) -> Array:
    """Return the inputs in the order of their blocks."""
    if not np.array_equal(np.sort(g_idx), in_order):
        raise ValueError("g_idx must name every block as often as it has inputs")
    if not sort_inputs:
        raise ValueError(
            "g_idx orders inputs by activation: pass sort_inputs=True to get them in the order of their blocks"
        )
    return np.argsort(g_idx, kind="stable")
