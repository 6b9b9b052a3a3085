"""Layouts of codes in words of int32 (GPTQ and AWQ), in bytes (MatMulNBits), and in halves of bytes (bitsandbytes)."""

from __future__ import annotations

import math

import numpy as np

from fastq.formats.granularity import granularity
from fastq.formats.qtypes import QType, as_qtype
from fastq.ops.nest_scale import NestedScale
from fastq.ops.packing import pack, unpack
from fastq.results import QParams, QuantizedArray
from fastq.system.arguments import as_array
from fastq.system.dtypes import Array
from fastq.tools.layouts import tensors as shared
from fastq.tools.layouts.tensors import BlockedWeight, Reading, Writing, check_format, parameters_of, stored_scale

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # index of the output in the lowest four bits of a word, in the next, ..
NESTED_BLOCK = 256  # nested scales that share a scale: readers accept no other number


def _write_words(q: QuantizedArray, how: Writing) -> dict[str, Array]:
    weight = shared.weight_of(q, how.row)
    row = how.row
    inputs = q.shape[1]
    codes = weight.codes
    indices = np.arange(inputs, dtype=np.int32) // weight.block_size
    if row.zero_points_less and not weight.zero_point.all():
        raise ValueError("layout 'gptq' stores zero_point - 1 and cannot hold zero_point 0: use 'gptq_v2'")
    if how.g_idx is not None:
        given = as_array(how.g_idx, "g_idx")
        if given.dtype.kind not in "iu":
            raise TypeError(f"g_idx must be integers, not {given.dtype}")
        if given.shape != (inputs,) or not np.array_equal(np.sort(given), indices):
            raise ValueError(f"g_idx must name each block of q as often as it has inputs, in shape ({inputs},)")
        codes = np.empty_like(codes)
        indices = given.astype(np.int32)
        codes[:, np.argsort(indices, kind="stable")] = weight.codes
    zeros = weight.zero_point.T - np.uint8(row.zero_points_less)
    return {
        "qweight": shared.to_words(codes.T, weight.bits, 1 if row.order else 0, "qweight", row.order),
        "qzeros": shared.to_words(zeros, weight.bits, 1, "qzeros", row.order),
        "scales": stored_scale(weight.scale.T, how.scale_dtype, "float16"),
        **({"g_idx": indices} if row.has_g_idx else {}),
    }


def _read_words(given: Reading) -> QuantizedArray:
    bits = given.qtype.bits
    row = given.row
    codes = shared.from_words(given.matrix("qweight", "int32"), bits, 1 if row.order else 0, row.order)
    (inputs, outputs), scales = codes.shape, given.scales("scales")
    if scales.ndim != 2 or scales.shape[1] != outputs or not scales.size:
        raise ValueError(f"scales has shape {scales.shape}, but the other tensors need shape (blocks, {outputs})")
    zeros = shared.from_words(given.of_shape("qzeros", "int32", len(scales), outputs * bits // 32), bits, 1, row.order)
    if row.zero_points_less and (zeros == (1 << bits) - 1).any():
        why = f"readers of 'gptq' read them as 0 or as {1 << bits}"
        raise ValueError(f"qzeros has zero points of which all bits are set: {why}")
    indexed = row.has_g_idx and "g_idx" in given.tensors
    g_idx = given.of_shape("g_idx", "int32", inputs) if indexed else None
    size = given.block_size
    if not size and g_idx is not None and g_idx.size and g_idx.min() >= 0 and g_idx.max() < len(scales):
        largest = int(np.bincount(g_idx).max())  # inputs of the largest block; only the last may be shorter
        size = largest if -(-inputs // largest) == len(scales) else 0
    block_size = shared.checked_block_size(size, inputs, len(scales))
    in_order = np.arange(inputs) // block_size
    if g_idx is not None and not np.array_equal(g_idx, in_order):
        if not np.array_equal(np.sort(g_idx), in_order):
            raise ValueError("g_idx must name every block as often as it has inputs")
        if not given.sort_inputs:
            way = "pass sort_inputs=True to get them in the order of their blocks"
            raise ValueError(f"g_idx orders inputs by activation: {way}")
        codes = codes[np.argsort(g_idx, kind="stable")]
    zeros = zeros.T + np.uint8(row.zero_points_less)
    return BlockedWeight(np.ascontiguousarray(codes.T), scales.T, zeros, bits, block_size).quantized()


def _write_blocks(q: QuantizedArray, how: Writing) -> dict[str, Array]:
    weight = shared.weight_of(q, how.row)
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
    packed = given.get("B", "uint8")
    bits = given.qtype.bits
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
    return BlockedWeight(codes, scales.reshape(outputs, blocks), zeros, bits, size).quantized()


def _write_halves(q: QuantizedArray, how: Writing) -> dict[str, Array]:
    check_format(q.dtype, how.row, "the dtype of q")
    length = q.shape[-1] if q.shape else 0
    last = granularity(q.axis, q.block_size, q.ndim).kept == (q.ndim - 1,)
    if not (last and q.block_size and (q.ndim == 1 or length % q.block_size == 0)):
        raise ValueError("q must have blocks along its last axis that fill its rows for layout 'bitsandbytes'")
    scale, _ = parameters_of(q)
    codes = q.unpacked().reshape(-1)
    row = q.dtype.codebook
    assert row is not None
    zero = row.order[np.searchsorted(row.thresholds, 0.0)]  # the value in the unused half of the last byte
    codes = np.pad(codes, (0, codes.size % 2), constant_values=zero)
    numbers = np.array(row.values, np.float32)
    tensors = {"weight": (codes[::2] << 4 | codes[1::2]).reshape(-1, 1)}
    if how.nested is None:
        return tensors | {"absmax": stored_scale(scale.reshape(-1), how.scale_dtype, "float32"), "quant_map": numbers}
    inner = how.nested.quantized
    if inner.block_size != NESTED_BLOCK:
        wanted = f"blocks of {NESTED_BLOCK}, as bitsandbytes reads them"
        raise ValueError(f"nested must have {wanted}, not {inner.block_size}")
    if how.nested.shape != scale.shape:
        raise ValueError(f"nested has shape {how.nested.shape}, but q has scales of shape {scale.shape}")
    assert inner.dtype.codebook is not None
    return tensors | {
        "absmax": inner.codes,
        "quant_map": numbers,
        "nested_absmax": inner.scale,
        "nested_quant_map": np.array(inner.dtype.codebook.values, np.float32),
        "nested_offset": np.array(how.nested.offset, np.float32),
    }


def _read_halves(given: Reading) -> QuantizedArray:
    if given.shape is None:
        raise TypeError("from_tensors needs the shape of the weight for layout 'bitsandbytes'")
    shape = given.shape
    size = math.prod(given.shape)
    block_size = given.block_size or 64
    if not size or (len(shape) > 1 and shape[-1] % block_size):
        raise ValueError(f"shape {shape} has rows that blocks of {block_size} don't fill: read it as {(size,)}")
    packed = given.get("weight", "uint8").reshape(-1)
    blocks = -(-size // block_size)
    if packed.size != -(-size // 2):
        raise ValueError(f"weight has {packed.size} bytes, but shape {shape} needs {-(-size // 2)}")
    _check_map(given, "quant_map", given.qtype)
    nested = "nested_absmax" in given.tensors
    absmax = given.get("absmax") if nested else given.scales("absmax")
    if absmax.size != blocks:
        raise ValueError(f"absmax has {absmax.size} scales, but shape {shape} needs {blocks}")
    scale = absmax
    if nested:
        inner = as_qtype("dynamic8")
        _check_map(given, "nested_quant_map", inner)
        scale = given.scales("nested_absmax").reshape(-1)
        offset = given.scales("nested_offset")
        if absmax.dtype != np.uint8 or offset.size != 1 or scale.size != -(-absmax.size // NESTED_BLOCK):
            wanted = f"uint8 in blocks of {NESTED_BLOCK}, with one nested_offset"
            raise ValueError(f"absmax must be {wanted} if it is nested")
        params = QParams(scale, np.zeros(scale.shape, np.uint8), inner, 0, NESTED_BLOCK, symmetric=True)
        quantized = QuantizedArray(absmax.reshape(-1), params, (absmax.size,))
        scale = NestedScale(quantized, float(offset.reshape(-1)[0]), absmax.shape).dequantize()
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:size].reshape(shape)
    places = (*shape[:-1], -(-shape[-1] // block_size))
    zeros = np.zeros(places, np.uint8)
    params = QParams(scale.reshape(places), zeros, given.qtype, len(shape) - 1, block_size, symmetric=True)
    return QuantizedArray(pack(codes, given.qtype), params, shape)


def _check_map(given: Reading, name: str, qtype: QType) -> None:
    row = qtype.codebook
    assert row is not None
    if name in given.tensors and not np.array_equal(given.tensors[name], np.array(row.values, "f4")):
        raise ValueError(f"{name} is not the table of {qtype}")


WORDS = (_write_words, _read_words)
BLOCKS = (_write_blocks, _read_blocks)
HALVES = (_write_halves, _read_halves)
