"""Codes of fewer than 8 bits: several a byte, first element in the low bits, as ONNX packs them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.arguments import as_array
from fastq.layout import kept_axes
from fastq.qtypes import QType, as_qtype


def packed_shape(shape: tuple[int, ...], qtype: QType, axis: int = -1) -> tuple[int, ...]:
    """Return the shape of packed codes: ``ceil(D * bits / 8)`` bytes along the axis; (1,) for rank 0."""
    sizes = list(shape) or [1]
    sizes[axis] = -(-sizes[axis] * qtype.bits // 8)
    return tuple(sizes)


def _qtype(dtype: object) -> QType:
    qtype = as_qtype(dtype)
    if not qtype.packed:
        raise TypeError(f"dtype must be a format of fewer than 8 bits, not {qtype}")
    return qtype


def _axis(axis: int, ndim: int) -> int:
    axes = kept_axes(axis, ndim)
    if axes is None or len(axes) != 1:
        raise TypeError(f"axis must be an int, not {axis!r}")
    return axes[0]


def pack(codes: ArrayLike, dtype: str | QType | DTypeLike, *, axis: int = -1) -> NDArray[np.uint8]:
    """Pack codes along an axis, first element in the low bits, the last byte padded with zeros.

    Parameters
    ----------
    codes : array_like of integers
        Codes of the format, one an element.
    dtype : str, QType or dtype
        "int4", "uint4", "int2" or "uint2".
    axis : int
        The axis along which neighbours share a byte.

    Returns
    -------
    ndarray of uint8
        ``ceil(D * bits / 8)`` bytes along the axis; shape (1,) for an array of rank 0.

    Raises
    ------
    TypeError
        If the codes are not integers, or dtype is not a packed format.
    ValueError
        If a code is out of the format's range.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.pack(np.array([1, -1, 7], np.int8), "int4")
    array([241,   7], dtype=uint8)
    """
    qtype, codes = _qtype(dtype), as_array(codes, "codes")
    if codes.dtype.kind not in "iu":
        raise TypeError(f"codes must be integers, not {codes.dtype}")
    if codes.size and (codes.min() < qtype.qmin or codes.max() > qtype.qmax):
        raise ValueError(
            f"codes must be from {qtype.qmin} to {qtype.qmax} for {qtype}, not {codes.min()}..{codes.max()}"
        )
    codes = np.atleast_1d(codes)
    axis = _axis(axis, codes.ndim)
    rows = np.moveaxis(codes, axis, -1)
    packed = np.zeros(packed_shape(rows.shape, qtype), np.uint8)
    per_byte, mask = 8 // qtype.bits, (1 << qtype.bits) - 1
    for place in range(per_byte):
        part = (rows[..., place::per_byte] & mask).astype(np.uint8)
        packed[..., : part.shape[-1]] |= part << np.uint8(place * qtype.bits)
    return np.moveaxis(packed, -1, axis)


def unpack(
    packed: ArrayLike, dtype: str | QType | DTypeLike, *, shape: tuple[int, ...], axis: int = -1
) -> NDArray[np.integer[Any]]:
    """Return packed codes one an element: the inverse of `pack`.

    Parameters
    ----------
    packed : array_like of uint8
        What `pack` returns.
    dtype : str, QType or dtype
        "int4", "uint4", "int2" or "uint2".
    shape : tuple of int
        Shape of the codes.
    axis : int
        The axis along which neighbours share a byte.

    Returns
    -------
    ndarray of int8 or uint8
        Shape `shape`.

    Raises
    ------
    TypeError
        If `packed` is not of dtype uint8, or dtype is not a packed format.
    ValueError
        If `packed` does not have the shape that codes of `shape` pack to.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.unpack(np.array([241, 7], np.uint8), "int4", shape=(3,))
    array([ 1, -1,  7], dtype=int8)
    """
    qtype, packed = _qtype(dtype), as_array(packed, "packed")
    if packed.dtype != np.uint8:
        raise TypeError(f"packed must be uint8, not {packed.dtype}")
    if any(size < 0 for size in shape):
        raise ValueError(f"shape must not have negative sizes: {shape}")
    rank = max(len(shape), 1)
    axis = _axis(axis, rank)
    if packed.shape != (wanted := packed_shape(shape, qtype, axis)):
        raise ValueError(f"packed has shape {packed.shape}, but {qtype} codes of shape {tuple(shape)} pack to {wanted}")
    rows = np.moveaxis(packed, axis, -1)
    per_byte = 8 // qtype.bits
    codes = np.empty((*rows.shape[:-1], rows.shape[-1] * per_byte), qtype.storage)
    for place in range(per_byte):
        high = rows << np.uint8(8 - qtype.bits * (place + 1))  # to the top of the byte, so that a sign comes along
        codes[..., place::per_byte] = high.view(qtype.storage) >> (8 - qtype.bits)
    length = math.prod(shape[axis : axis + 1])
    return np.moveaxis(codes[..., :length], -1, axis).reshape(shape)
