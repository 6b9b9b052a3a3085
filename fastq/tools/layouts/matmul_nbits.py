"""The layout of ONNX Runtime's MatMulNBits: blocks of codes in bytes."""

from __future__ import annotations

import numpy as np

from fastq.ops.packing import pack, unpack
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.layouts.layout import BlockedWeight, Layout, Reading, Writing, stored_scale, weight_of


def write(q: QuantizedArray, writing: Writing) -> dict[str, Array]:
    """Return the tensors B, scales and, unless the scheme is symmetric, zero_points of a weight."""
    weight = weight_of(q, writing.layout)
    outputs, inputs = q.shape
    size = weight.block_size
    if size < 16 or size & size - 1:
        raise ValueError(f"block_size must be a power of two from 16 on for layout {writing.layout.name!r}, not {size}")
    blocks = -(-inputs // size)
    codes = np.pad(weight.codes, ((0, 0), (0, blocks * size - inputs))).reshape(outputs, blocks, size)
    tensors = {
        "B": pack(codes, weight.qtype) if weight.bits < 8 else codes,
        "scales": stored_scale(weight.scale, writing.scale_dtype),
    }
    middle = 1 << (weight.bits - 1)
    if not (q.symmetric and (weight.zero_point == middle).all()):
        padding = -blocks % (8 // weight.bits)  # the zero points of a row fill whole bytes
        zeros = np.pad(weight.zero_point, ((0, 0), (0, padding)), constant_values=middle)
        tensors["zero_points"] = pack(zeros, weight.qtype) if weight.bits < 8 else zeros
    return tensors


def read(reading: Reading) -> QuantizedArray:
    """Return the weight in B, scales and zero_points; without these zero lies in the middle of the codes."""
    packed = reading.get("B", "uint8")
    bits = reading.qtype.bits
    unsigned = f"uint{bits}"
    if packed.ndim != 3 or not packed.size:
        raise ValueError(f"B must have 3 dimensions with elements, not shape {packed.shape}")
    outputs, blocks, nbytes = packed.shape
    block_size = nbytes * 8 // bits
    in_blocks = unpack(packed, unsigned, shape=(outputs, blocks, block_size)) if bits < 8 else packed
    shape = reading.shape or (outputs, blocks * block_size)
    if len(shape) != 2 or shape[0] != outputs or -(-shape[1] // block_size) != blocks:
        raise ValueError(f"shape {shape} does not fit B of shape {packed.shape}")
    scales = reading.scales("scales")
    if scales.size != outputs * blocks:
        raise ValueError(f"scales has shape {scales.shape}, but B needs shape {(outputs, blocks)}")
    if "zero_points" in reading.tensors:
        # ONNX models have them as a vector, too; the check of the shape is for a row for each output
        stored = reading.get("zero_points", "uint8").reshape(outputs, -1)
        reading.tensors["zero_points"] = stored
        reading.of_shape("zero_points", "uint8", outputs, -(-blocks * bits // 8))
        zeros = unpack(stored, unsigned, shape=(outputs, blocks)) if bits < 8 else stored
    else:
        zeros = np.full((outputs, blocks), 1 << (bits - 1), np.uint8)
    weight = BlockedWeight(
        codes=np.ascontiguousarray(in_blocks.reshape(outputs, -1)[:, : shape[1]]),
        scale=scales.reshape(outputs, blocks),
        zero_point=zeros,
        bits=bits,
        block_size=block_size,
    )
    return weight.as_array()


MATMUL_NBITS = Layout(
    name="matmul_nbits",
    system="ONNX Runtime: MatMulNBits",
    formats=("uint4", "uint8", "uint2"),
    write=write,
    read=read,
)
