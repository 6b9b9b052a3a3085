"""The layout of HQQ: a matrix of groups, whose codes lie in words with those of distant groups."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fastq.formats.conventions.table import as_convention
from fastq.formats.granularity import granularity
from fastq.ops.packing import pack
from fastq.results import QParams, QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.layouts.layout import (
    Layout,
    Reading,
    Writing,
    as_unsigned,
    check_format,
    parameters_of,
    stored_scale,
)
from fastq.tools.layouts.row_parts import from_row_parts, to_row_parts


class HqqPacking(NamedTuple):
    """How HQQ packs codes of some width."""

    name: str  # in HQQ
    dtype: str  # of words
    width: int  # bits that a code takes
    parts: int  # codes in a word, the first in the highest bits


PACKINGS = {
    8: HqqPacking(name="8bit_u8", dtype="uint8", width=8, parts=1),
    6: HqqPacking(name="8bit_u8", dtype="uint8", width=8, parts=1),
    5: HqqPacking(name="8bit_u8", dtype="uint8", width=8, parts=1),
    4: HqqPacking(name="4bit_u8", dtype="uint8", width=4, parts=2),
    3: HqqPacking(name="3bit_32", dtype="int32", width=3, parts=10),
    2: HqqPacking(name="2bit_u8", dtype="uint8", width=2, parts=4),
    1: HqqPacking(name="1bit_u8", dtype="uint8", width=1, parts=8),
}


def _text(text: str) -> Array:
    """Return a text as HQQ stores it: a tensor of its bytes."""
    return np.frombuffer(text.encode(), np.uint8)


def write(q: QuantizedArray, writing: Writing) -> dict[str, Array]:
    """Return the tensors of a weight by their names in the state of an HQQLinear, which reads them.

    Codes are a matrix with a row for each group. Tensors of one 0 are options that are off; HQQ wants them to be there.
    """
    check_format(q.dtype, writing.layout, "the dtype of q")
    convention = as_convention(q.convention)
    if convention.zero_point == "offset" or convention.decode != "point":
        raise ValueError(f"convention {convention.name!r} does not decode as (code - zero_point) * scale, as HQQ does")
    kept = granularity(q.axis, q.block_size, q.ndim).kept
    if q.ndim != 2 or kept != ((1,) if q.block_size else (0,)) or q.shape[1] % (q.block_size or 1):
        raise ValueError("q must be a matrix in blocks that fill its rows, or with a scale for each row, for HQQ")
    scale, zero_point = parameters_of(q)
    packing = PACKINGS[q.dtype.bits]
    codes = as_unsigned(q.unpacked(), q.dtype).reshape(scale.size, -1)
    if packing.dtype == "uint8" and len(codes) % packing.parts:
        raise ValueError(f"q has {len(codes)} groups, which must be a multiple of {packing.parts} for {packing.name}")
    # zero points move with the codes, which become unsigned
    zeros = zero_point.reshape(-1, 1).astype(np.float32) - np.float32(q.dtype.qmin)
    scales = stored_scale(scale.reshape(-1, 1), writing.scale_dtype, "float32")
    return {
        "W_q": to_row_parts(codes, packing.width, packing.parts, packing.dtype, is_first_highest=True),
        "scale": scales,
        "zero": np.ascontiguousarray(zeros, scales.dtype),
        "nbits": np.array(q.dtype.bits, np.int32),
        "group_size": np.array(codes.shape[1], np.int32),
        "shape": np.array(q.shape, np.int64),
        "axis": np.array(1, np.int32),
        "packing": _text(packing.name),
        "unpack_view_dtype": _text(f"torch.{packing.dtype}"),
        "compute_dtype": _text(f"torch.{scales.dtype}"),
        **{name: np.array(0, np.uint8) for name in ("view_as_float", "quant_scale", "quant_zero", "offload_meta")},
        "encoded_state_dict": np.array(1, np.uint8),
    }


def read(reading: Reading) -> QuantizedArray:
    """Return the weight in W_q, scale and zero.

    The matrix of codes has a row for each group, with scales of shape (groups, 1), or for HQQ's axis 0 a column for
    each, with scales of shape (1, groups).
    """
    bits = reading.qtype.bits
    stored_bits = int(reading.tensors.get("nbits", np.array(bits)).reshape(-1)[0])
    if stored_bits != bits:
        raise ValueError(f"nbits is {stored_bits}: pass dtype='uint{stored_bits}'")
    packing = PACKINGS[bits]
    words = reading.matrix("W_q", packing.dtype)
    scale = reading.scales("scale")
    zero = reading.scales("zero")
    if scale.ndim != 2 or 1 not in scale.shape or not scale.size or zero.shape != scale.shape:
        raise ValueError(
            f"scale and zero have shapes {scale.shape} and {zero.shape}, which must be (groups, 1) or (1, groups)"
        )
    if not (scale > 0).all():
        raise ValueError(f"scale has {scale.min()}, which must be positive")
    are_groups_columns = scale.shape[1] > 1  # of the matrix of codes, else they are its rows
    columns = words.shape[1]
    rows = _rows_without_padding(
        reading, len(words) * packing.parts, packing, None if are_groups_columns else scale.size
    )
    groups = from_row_parts(words, packing.width, packing.parts, is_first_highest=True)[:rows]
    shape = _shape_of(reading, groups.shape, are_groups_columns)
    if scale.size != (columns if are_groups_columns else rows) or math.prod(shape) != groups.size:
        raise ValueError(f"W_q of shape {words.shape} does not have {scale.size} groups of a weight of shape {shape}")
    codes = np.ascontiguousarray(groups.reshape(shape))
    parameter_shape = (-1,) if are_groups_columns else (*shape[:-1], shape[-1] // columns)
    # parameters are in float64, the stored type of convention "hqq", and values are still those of float32
    params = QParams(
        scale=scale.reshape(parameter_shape).astype(np.float64),
        zero_point=zero.reshape(parameter_shape).astype(np.float64),
        dtype=reading.qtype,
        axis=len(shape) - 1,
        block_size=0 if are_groups_columns else columns,
        convention="hqq",
        computed=np.float32,
    )
    return QuantizedArray(pack(codes, reading.qtype) if reading.qtype.packed else codes, params, shape)


def _rows_without_padding(reading: Reading, rows: int, packing: HqqPacking, groups: int | None) -> int:
    """Return the rows of the matrix of codes, without those that fill the last part of words.

    `rows` are those that the words hold. Without padding they are as many as `groups` if groups are rows; `groups` is
    None if they are columns: then only words of int32 have padding, and the size of a group tells.
    """
    if groups is not None:
        return min(rows, groups)
    if packing.dtype == "int32" and "group_size" in reading.tensors:
        return min(rows, int(reading.tensors["group_size"].reshape(-1)[0]))
    return rows


def _shape_of(reading: Reading, groups: tuple[int, ...], are_groups_columns: bool) -> tuple[int, ...]:
    """Return the shape of a weight, which its tensors have, given that of the matrix of its groups.

    Raise ValueError if no axis of the weight has its groups.
    """
    if reading.shape is None and "shape" not in reading.tensors:
        raise TypeError("from_tensors needs the shape of the weight for layout 'hqq': the tensors do not have it")
    shape = reading.shape or tuple(map(int, reading.tensors["shape"].reshape(-1)))
    if are_groups_columns and shape != groups:
        raise ValueError(
            f"its groups have elements of distant rows (axis 0), which no axis has: read it with shape={groups}, and"
            f" reshape its values to {shape}"
        )
    if not are_groups_columns and shape[-1] % groups[1]:
        raise ValueError(
            f"groups of {groups[1]} do not fill the rows of shape {shape}: read it with shape={(math.prod(shape),)},"
            f" and reshape its values to {shape}"
        )
    return shape


HQQ = Layout(
    name="hqq",
    system="HQQ: HQQLinear",
    formats=("uint4", "uint8", "uint6", "uint5", "uint3", "uint2", "uint1"),
    write=write,
    read=read,
)
