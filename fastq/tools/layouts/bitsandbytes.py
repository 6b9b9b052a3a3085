"""The layout of bitsandbytes: two codes of nf4 or fp4 in a byte, scales that may be quantized, too."""

from __future__ import annotations

import math

import numpy as np

from fastq.formats.granularity import granularity
from fastq.formats.qtypes import QType, as_qtype
from fastq.ops.nest_scale import NestedScale
from fastq.ops.packing import pack
from fastq.results import QParams, QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.layouts.layout import Layout, Reading, Writing, check_format, parameters_of, stored_scale

NESTED_BLOCK = 256  # nested scales that share a scale: readers accept no other number


def write(q: QuantizedArray, writing: Writing) -> dict[str, Array]:
    """Return the tensors weight, absmax and quant_map of a weight, and those of nested scales.

    The first of two codes is in the high half of a byte, and a row may end within one. Scales that are nested are codes
    themselves, with their own scales, table and offset.
    """
    check_format(q.dtype, writing.layout, "the dtype of q")
    length = q.shape[-1] if q.shape else 0
    is_along_last = granularity(q.axis, q.block_size, q.ndim).kept == (q.ndim - 1,)
    if not (is_along_last and q.block_size and (q.ndim == 1 or length % q.block_size == 0)):
        raise ValueError("q must have blocks along its last axis that fill its rows for layout 'bitsandbytes'")
    scale, _ = parameters_of(q)
    codes = q.unpacked().reshape(-1)
    codebook = q.dtype.codebook
    assert codebook is not None
    # the code of the number 0, which fills the unused half of the last byte
    zero = codebook.order[np.searchsorted(codebook.thresholds, 0.0)]
    codes = np.pad(codes, (0, codes.size % 2), constant_values=zero)
    table = np.array(codebook.values, np.float32)
    tensors = {"weight": (codes[::2] << 4 | codes[1::2]).reshape(-1, 1)}
    if writing.nested is None:
        return tensors | {
            "absmax": stored_scale(scale.reshape(-1), writing.scale_dtype, "float32"),
            "quant_map": table,
        }
    inner = writing.nested.quantized
    if inner.block_size != NESTED_BLOCK:
        expected = f"blocks of {NESTED_BLOCK}, as bitsandbytes reads them"
        raise ValueError(f"nested must have {expected}, not {inner.block_size}")
    if writing.nested.shape != scale.shape:
        raise ValueError(f"nested has shape {writing.nested.shape}, but q has scales of shape {scale.shape}")
    assert inner.dtype.codebook is not None
    return tensors | {
        "absmax": inner.codes,
        "quant_map": table,
        "nested_absmax": inner.scale,
        "nested_quant_map": np.array(inner.dtype.codebook.values, np.float32),
        "nested_offset": np.array(writing.nested.offset, np.float32),
    }


def read(reading: Reading) -> QuantizedArray:
    """Return the weight in weight and absmax; absmax may be quantized, too.

    The tensors have neither the shape nor the size of blocks, which is 64 unless a caller passes it. Blocks of
    bitsandbytes run through all elements, so they must fill the rows to be blocks along the last axis.
    """
    if reading.shape is None:
        raise TypeError("from_tensors needs the shape of the weight for layout 'bitsandbytes'")
    shape = reading.shape
    size = math.prod(reading.shape)
    block_size = reading.block_size or 64
    if not size or (len(shape) > 1 and shape[-1] % block_size):
        raise ValueError(f"shape {shape} has rows that blocks of {block_size} don't fill: read it as {(size,)}")
    packed = reading.get("weight", "uint8").reshape(-1)
    blocks = -(-size // block_size)
    if packed.size != -(-size // 2):
        raise ValueError(f"weight has {packed.size} bytes, but shape {shape} needs {-(-size // 2)}")
    _check_map(reading, "quant_map", reading.qtype)
    is_nested = "nested_absmax" in reading.tensors
    absmax = reading.get("absmax") if is_nested else reading.scales("absmax")
    if absmax.size != blocks:
        raise ValueError(f"absmax has {absmax.size} scales, but shape {shape} needs {blocks}")
    scale = _scale_of_nested(reading, absmax) if is_nested else absmax
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:size].reshape(shape)
    parameter_shape = (*shape[:-1], -(-shape[-1] // block_size))
    params = QParams(
        scale=scale.reshape(parameter_shape),
        zero_point=np.zeros(parameter_shape, np.uint8),
        dtype=reading.qtype,
        axis=len(shape) - 1,
        block_size=block_size,
        symmetric=True,
    )
    return QuantizedArray(pack(codes, reading.qtype), params, shape)


def _scale_of_nested(reading: Reading, absmax: Array) -> Array:
    """Return the scales of a weight whose scales are quantized: absmax has their codes."""
    qtype = as_qtype("dynamic8")
    _check_map(reading, "nested_quant_map", qtype)
    scale = reading.scales("nested_absmax").reshape(-1)
    offset = reading.scales("nested_offset")
    if absmax.dtype != np.uint8 or offset.size != 1 or scale.size != -(-absmax.size // NESTED_BLOCK):
        expected = f"uint8 in blocks of {NESTED_BLOCK}, with one nested_offset"
        raise ValueError(f"absmax must be {expected} if it is nested")
    params = QParams(
        scale=scale,
        zero_point=np.zeros(scale.shape, np.uint8),
        dtype=qtype,
        axis=0,
        block_size=NESTED_BLOCK,
        symmetric=True,
    )
    quantized = QuantizedArray(absmax.reshape(-1), params, (absmax.size,))
    return NestedScale(quantized, float(offset.reshape(-1)[0]), absmax.shape).dequantize()


def _check_map(reading: Reading, name: str, qtype: QType) -> None:
    """Raise ValueError if a table of values is there and is not that of a format: codes would mean other numbers."""
    codebook = qtype.codebook
    assert codebook is not None
    if name in reading.tensors and not np.array_equal(reading.tensors[name], np.array(codebook.values, "f4")):
        raise ValueError(f"{name} is not the table of {qtype}")


BITSANDBYTES = Layout(
    name="bitsandbytes",
    system="bitsandbytes: Linear4bit",
    formats=("nf4", "fp4"),
    write=write,
    read=read,
    nests_scales=True,
)
