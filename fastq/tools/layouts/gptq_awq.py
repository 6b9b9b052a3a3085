"""The layouts of GPTQ and AWQ: codes and zero points in words of int32, GPTQ's zero points less 1."""

from __future__ import annotations

import numpy as np

from fastq.results import QuantizedArray
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import Array
from fastq.tools.layouts.int32_words import from_words, to_words
from fastq.tools.layouts.layout import (
    BlockedWeight,
    Layout,
    Reading,
    Writing,
    checked_block_size,
    stored_scale,
    weight_of,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # index of the output in the lowest four bits of a word, in the next, ..


def write(q: QuantizedArray, writing: Writing) -> dict[str, Array]:
    """Return the tensors qweight, qzeros and scales of a weight, for GPTQ also g_idx.

    All have outputs along their last axis, and inputs or blocks along the first. A word of qweight has neighbouring
    outputs in AWQ, the layout with an `order`, and neighbouring inputs in GPTQ.
    """
    weight = weight_of(q, writing.layout)
    layout = writing.layout
    packed_axis = 1 if layout.order else 0
    inputs = q.shape[1]
    codes = weight.codes
    indices = np.arange(inputs, dtype=np.int32) // weight.block_size
    if layout.zero_points_less and not weight.zero_point.all():
        raise ValueError("layout 'gptq' stores zero_point - 1 and cannot hold zero_point 0: use 'gptq_v2'")
    if writing.g_idx is not None:
        blocks = as_array(writing.g_idx, "g_idx")
        if blocks.dtype.kind not in "iu":
            raise TypeError(f"g_idx must be integers, not {blocks.dtype}")
        if blocks.shape != (inputs,) or not np.array_equal(np.sort(blocks), indices):
            raise ValueError(f"g_idx must name each block of q as often as it has inputs, in shape ({inputs},)")
        # columns of q are in the order of their blocks: for g_idx 1 0 1 0 they are the inputs 1 3 0 2
        codes = np.empty_like(codes)
        indices = blocks.astype(np.int32)
        codes[:, np.argsort(indices, kind="stable")] = weight.codes
    zeros = weight.zero_point.T - np.uint8(layout.zero_points_less)
    return {
        "qweight": to_words(codes.T, weight.bits, packed_axis, "qweight", layout.order),
        "qzeros": to_words(zeros, weight.bits, 1, "qzeros", layout.order),
        "scales": stored_scale(weight.scale.T, writing.scale_dtype, "float16"),
        **({"g_idx": indices} if layout.has_g_idx else {}),
    }


def read(reading: Reading) -> QuantizedArray:
    """Return the weight in qweight, qzeros, scales and, for GPTQ, g_idx; their axes are those of `write`."""
    bits = reading.qtype.bits
    layout = reading.layout
    packed_axis = 1 if layout.order else 0
    codes = from_words(reading.matrix("qweight", "int32"), bits, packed_axis, layout.order)
    inputs, outputs = codes.shape
    scales = reading.scales("scales")
    if scales.ndim != 2 or scales.shape[1] != outputs or not scales.size:
        raise ValueError(f"scales has shape {scales.shape}, but the other tensors need shape (blocks, {outputs})")
    zeros = from_words(reading.of_shape("qzeros", "int32", len(scales), outputs * bits // 32), bits, 1, layout.order)
    if layout.zero_points_less and (zeros == (1 << bits) - 1).any():
        ambiguity = f"readers of 'gptq' read them as 0 or as {1 << bits}"
        raise ValueError(f"qzeros has zero points of which all bits are set: {ambiguity}")
    has_g_idx = layout.has_g_idx and "g_idx" in reading.tensors
    g_idx = reading.of_shape("g_idx", "int32", inputs) if has_g_idx else None
    block_size = checked_block_size(_block_size_in(reading, g_idx, len(scales)), inputs, len(scales))
    in_order = np.arange(inputs) // block_size
    if g_idx is not None and not np.array_equal(g_idx, in_order):
        if not np.array_equal(np.sort(g_idx), in_order):
            raise ValueError("g_idx must name every block as often as it has inputs")
        if not reading.sort_inputs:
            advice = "pass sort_inputs=True to get them in the order of their blocks"
            raise ValueError(f"g_idx orders inputs by activation: {advice}")
        codes = codes[np.argsort(g_idx, kind="stable")]
    zeros = zeros.T + np.uint8(layout.zero_points_less)
    weight = BlockedWeight(
        codes=np.ascontiguousarray(codes.T),
        scale=scales.T,
        zero_point=zeros,
        bits=bits,
        block_size=block_size,
    )
    return weight.as_array()


def _block_size_in(reading: Reading, g_idx: Array | None, blocks: int) -> int:
    """Return the number of inputs of a block, which a caller passes or g_idx, the block of each, tells; else 0.

    Only the last block may be shorter, so the largest one has this number. With 0 the number of blocks tells the size;
    an unfit g_idx is refused by `read`.
    """
    if reading.block_size or g_idx is None or not g_idx.size:
        return reading.block_size
    if g_idx.min() < 0 or g_idx.max() >= blocks:
        return 0
    largest = int(np.bincount(g_idx).max())
    return largest if -(-g_idx.size // largest) == blocks else 0


GPTQ_FORMATS = ("uint4", "uint8", "uint2", "uint3")
GPTQ = Layout(
    name="gptq",
    system="AutoGPTQ: QuantLinear",
    formats=GPTQ_FORMATS,
    write=write,
    read=read,
    has_g_idx=True,
    zero_points_less=1,
)
GPTQ_V2 = Layout(
    name="gptq_v2",
    system="GPTQModel: checkpoint_format gptq_v2",
    formats=GPTQ_FORMATS,
    write=write,
    read=read,
    has_g_idx=True,
)
AWQ = Layout(
    name="awq",
    system="AutoAWQ: WQLinear_GEMM",
    formats=("uint4",),
    write=write,
    read=read,
    order=AWQ_ORDER,
)
