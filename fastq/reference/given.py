"""Check scales and zero points that callers pass against the format and the array that they belong to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.conventions import Convention, as_convention
from fastq.formats.qtypes import QType, as_qtype
from fastq.reference import blocks
from fastq.reference.arguments import (
    FLOATS,
    as_integers,
    as_numbers,
    check_shape,
    check_symmetric,
    holds_integers,
    within,
)
from fastq.reference.granularity import normalized, parameter_shape
from fastq.results import Axis, QParams
from fastq.system.arguments import as_array, as_axis, as_block_size, is_python, native

Array = NDArray[Any]


def raw_qparams(
    scale: ArrayLike,
    zero_point: ArrayLike | None,
    qtype: QType,
    axis: Axis,
    block_size: int,
    convention: str | Convention,
    shape: tuple[int, ...],
    ftype: type[np.floating[Any]],
) -> QParams:
    """Return parameters given one by one, checked against an array of shape `shape`."""
    if qtype.block_size:
        raise TypeError(f"dtype must be a format without scales of its own, not {qtype}; see quantize")
    scale = as_scale(scale)
    zero_point = np.zeros(scale.shape, qtype.storage) if zero_point is None else as_array(zero_point, "zero_point")
    axis = as_axis(axis)
    block_size = as_block_size(block_size, axis)
    if scale.size == 1:
        axis, block_size = None, 0
    return checked_qparams(QParams(scale, zero_point, qtype, axis, block_size, False, convention), shape, ftype)


def as_scale(scale: ArrayLike) -> Array:
    """Return `scale` as an array of floats; Python integers are welcome, arrays of integers are not."""
    values = as_array(scale, "scale")
    if is_python(scale) and values.dtype.kind in "iu":
        values = values.astype(np.float64)
    if values.dtype.name not in FLOATS:
        raise TypeError(f"scale must be float16, bfloat16, float32 or float64, not {values.dtype}")
    return values


def checked_qparams(p: QParams, shape: tuple[int, ...], ftype: type[np.floating[Any]]) -> QParams:
    """Return `p` with a scale of type `ftype`, if it fits an array of shape `shape`; own scales stay as they are."""
    qtype, row = as_qtype(p.dtype), as_convention(p.convention)
    check_symmetric(qtype, p.symmetric)
    scale = _own_scale(p, qtype) if qtype.block_size else _usable_scale(p.scale, row, ftype, qtype.codebook is not None)
    if p.tensor_scale is not None and not (qtype.block_size and not blocks.is_microscaling(qtype)):
        raise ValueError(f"tensor_scale must be None for {qtype}")
    wanted = parameter_shape(shape, normalized(p.axis, len(shape), "the values"), p.block_size)
    if scale.size != 1:
        check_shape(scale, "scale", wanted)
    if qtype.element:
        zero_point = _float_zeros(p.zero_point, qtype)
    else:
        zero_point = (as_integers if row.zero_point == "integer" else as_numbers)(p.zero_point, "zero_point")
    # ONNX's own test vectors have a zero point of shape (1,) beside a scale of shape ().
    zero_point = zero_point.reshape(scale.shape) if zero_point.size == scale.size == 1 else zero_point
    check_shape(zero_point, "zero_point", scale.shape)
    if row.zero_point == "integer" and not (qtype.element or within(zero_point, qtype).all()):
        raise ValueError(f"zero_point must lie in {qtype.qmin} .. {qtype.qmax} for {qtype}")
    with np.errstate(over="ignore", under="ignore"):
        zero_point = zero_point.astype(row.zero_point_dtype(qtype, scale.dtype))
    if not (qtype.element or np.isfinite(zero_point).all()):
        raise ValueError("zero_point must be finite")
    computed = None if qtype.block_size or scale.dtype == ftype else np.dtype(ftype)
    return replace(p, scale=scale, zero_point=zero_point, dtype=qtype, computed=computed)


def _usable_scale(given: ArrayLike, row: Convention, ftype: type[np.floating[Any]], of_table: bool) -> Array:
    given = as_scale(given)
    with np.errstate(over="ignore", under="ignore"):
        scale = given.astype(row.scale_dtype(np.dtype(ftype)))
    size = np.abs(scale) if row.signed_scale else scale
    bad = given[~(np.isfinite(scale) if of_table else (size > 0) & (size < np.inf))]
    if bad.size and of_table:
        raise ValueError(f"scale has {bad.size} values that are not finite, the first is {bad[0]}")
    if bad.size:
        raise ValueError(f"scale has {bad.size} values that are not positive and finite, the first is {bad[0]}")
    return scale


def _own_scale(p: QParams, qtype: QType) -> Array:
    """Return the scales of a format that prescribes their dtype; a NaN among them marks a block."""
    if p.block_size != qtype.block_size:
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {p.block_size}")
    scale = as_array(p.scale, "scale")
    if scale.dtype != blocks.scale_dtype(qtype):
        raise TypeError(f"scale must be {blocks.scale_dtype(qtype)} for {qtype}, not {scale.dtype}")
    if (blocks.steps(p) <= 0).any():
        raise ValueError(f"scale must be positive for {qtype}")
    if p.tensor_scale is not None:
        _check_tensor_scale(as_array(p.tensor_scale, "tensor_scale"))
    return scale


def _check_tensor_scale(scale: Array) -> None:
    least, most = blocks.NVFP4_TENSOR_SCALES
    if native(scale.dtype) != np.float32:
        raise TypeError(f"tensor_scale must be float32, not {scale.dtype}")
    check_shape(scale, "tensor_scale", ())
    if not least <= scale <= most:
        raise ValueError(f"tensor_scale must be from {least} to {most}, not {scale}")


def _float_zeros(zero_point: ArrayLike, qtype: QType) -> Array:
    """Return the zero points of a float format, which are all zero."""
    given = as_array(zero_point, "zero_point")
    if given.dtype != qtype.storage and not holds_integers(given):
        raise TypeError(f"zero_point must be {qtype.storage} or integers for {qtype}, not {given.dtype}")
    if np.count_nonzero(given.astype(np.float32)):
        raise ValueError(f"zero_point must be zero for {qtype}")
    return np.zeros(given.shape, qtype.storage)
