"""The layout of optimum-quanto: codes of 8 bits in the shape of the weight, those of 4 and 2 bits in bytes."""

from __future__ import annotations

import math

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
    check_format,
    parameters_of,
    stored_scale,
    without_zero_scales,
)
from fastq.tools.layouts.row_parts import from_row_parts, to_row_parts

CODES = "_data"
PACKED = "_data._data"
SCALE = "_scale"
SHIFT = "_shift"  # is subtracted from products of codes and scales


def write(q: QuantizedArray, writing: Writing) -> dict[str, Array]:
    """Return the tensors of a weight by their names in the state of a module, after the name of the weight.

    Codes of fewer than 8 bits have a row for each group and a shift; others have the shape of the weight and none.
    """
    check_format(q.dtype, writing.layout, "the dtype of q")
    convention = as_convention(q.convention)
    kept = granularity(q.axis, q.block_size, q.ndim).kept
    packed = q.dtype.packed
    in_blocks = bool(q.block_size)
    has_whole_blocks = in_blocks and packed and kept == (q.ndim - 1,) and q.shape[-1] % q.block_size == 0
    has_scale_for_each_row = not in_blocks and kept == (0,)
    if not (has_whole_blocks or has_scale_for_each_row):
        where = "blocks along its last axis that fill it, or a scale for each row" if packed else "a scale for each row"
        raise ValueError(f"q must have {where} for layout 'quanto' and {q.dtype}")
    if convention.decode != "point" or convention.divides_steps or (convention.zero_point == "offset") != packed:
        formula = "code * scale + offset" if packed else "code * scale"
        raise ValueError(
            f"convention {convention.name!r} does not decode as {formula}, as layout 'quanto' has {q.dtype}"
        )
    scale, zero_point = parameters_of(q)
    shape = (scale.size, -1) if in_blocks else q.shape
    codes = q.unpacked().reshape(shape)
    column = (-1, *(1,) * (codes.ndim - 1))  # a number for each row of codes, with as many axes
    scales = {SCALE: stored_scale(scale.reshape(column), writing.scale_dtype, "float32")}
    if packed:
        bits = q.dtype.bits
        # code * scale + offset in the array is code * scale - shift in quanto
        shift = np.ascontiguousarray(-zero_point.reshape(column), scales[SCALE].dtype)
        packed_codes = to_row_parts(codes, bits, 8 // bits, "uint8", is_first_highest=False)
        return {PACKED: packed_codes, **scales, SHIFT: shift}
    if zero_point.astype(np.float32).any():
        raise ValueError(f"q must be symmetric for layout 'quanto' and {q.dtype}: quanto has no zero points of 8 bits")
    return {CODES: codes, **scales}


def read(reading: Reading) -> QuantizedArray:
    """Return the weight in codes and scales, and shifts of fewer bits."""
    if PACKED in reading.tensors and not reading.qtype.packed:
        raise ValueError(f"{PACKED} has codes of fewer than 8 bits: pass dtype='uint4' or 'uint2'")
    if CODES in reading.tensors:
        return _read_plain(reading)
    return _read_packed(reading)


def _read_plain(reading: Reading) -> QuantizedArray:
    """Return a weight of 8 bits, which has the shape of its codes."""
    codes = reading.get(CODES)
    qtype = reading.qtype
    if codes.dtype != qtype.storage:
        raise ValueError(f"{CODES} is {codes.dtype}: pass dtype={codes.dtype.name!r}")
    scale = reading.scales(SCALE)
    if not codes.size or scale.shape != (len(codes), *(1,) * (codes.ndim - 1)):
        raise ValueError(f"{SCALE} has shape {scale.shape}, which must be one number for each row of {codes.shape}")
    if reading.shape not in (None, codes.shape):
        raise ValueError(f"shape {reading.shape} is not that of {CODES}, {codes.shape}")
    params = QParams(
        scale=scale.reshape(-1),
        zero_point=np.zeros(len(codes), qtype.storage),
        dtype=qtype,
        axis=0,
        symmetric=True,
        convention="quanto",
    )
    return without_zero_scales(QuantizedArray(codes, params, codes.shape), SCALE)


def _read_packed(reading: Reading) -> QuantizedArray:
    """Return a weight of 4 or 2 bits. Its tensors do not say how many groups a row has.

    A row of words has a row of codes for each of several groups: see row_parts.py. A group for each index of the first
    axis, with all axes after it, is no block, but a scale for each row.
    """
    bits = reading.qtype.bits
    words = reading.get(PACKED, "uint8")
    scale = reading.scales(SCALE)
    shift = reading.scales(SHIFT)
    count = scale.size
    if reading.shape is None:
        raise TypeError("from_tensors needs the shape of the weight for layout 'quanto' and fewer than 8 bits")
    shape = reading.shape
    if not count or scale.shape != (count, *(1,) * (words.ndim - 1)) or shift.shape != scale.shape:
        raise ValueError(
            f"{SCALE} and {SHIFT} have shapes {scale.shape} and {shift.shape}, which must be (groups, 1): groups of"
            " columns (axis -1) are not read"
        )
    codes = from_row_parts(words, bits, 8 // bits, is_first_highest=False)[:count]
    if len(words) != -(-count * bits // 8) or codes.size != math.prod(shape):
        raise ValueError(f"{PACKED} of shape {words.shape} does not have {count} groups of a weight of shape {shape}")
    size = codes.size // count
    is_whole_row = count == shape[0]
    if not is_whole_row and shape[-1] % size:
        folded = shape[0], math.prod(shape[1:])
        raise ValueError(
            f"groups of {size} do not fill the rows of shape {shape}: read it with shape={folded}, and reshape its"
            f" values to {shape}"
        )
    parameters = (count,) if is_whole_row else (*shape[:-1], shape[-1] // size)
    params = QParams(
        scale=scale.reshape(parameters),
        zero_point=-shift.reshape(parameters),
        dtype=reading.qtype,
        axis=0 if is_whole_row else len(shape) - 1,
        block_size=0 if is_whole_row else size,
        convention="quanto-bits",
    )
    codes = np.ascontiguousarray(codes.reshape(shape))
    return without_zero_scales(QuantizedArray(pack(codes, reading.qtype), params, shape), SCALE)


QUANTO = Layout(
    name="quanto",
    system="optimum-quanto: WeightQBitsTensor, WeightQBytesTensor",
    formats=("uint4", "uint2", "int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"),
    write=write,
    read=read,
)
