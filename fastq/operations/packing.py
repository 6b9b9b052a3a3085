"""Codes of fewer than 8 bits: dense, first element in the low bits, as ONNX and compressed-tensors pack them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.dispatch import known
from fastq.dispatch.granularity import kept_axes
from fastq.dispatch.validation import as_array
from fastq.formats.qtypes import QType, as_qtype
from fastq.kernels.status import OUT_OF_RANGE
from fastq.kernels.storage import StorageFormat
from fastq.runtime.result_pool import empty
from fastq.system import lazy


def packed_shape(shape: tuple[int, ...], qtype: QType, axis: int = -1) -> tuple[int, ...]:
    """Return the shape of packed codes: ``ceil(D * bits / 8)`` bytes along the axis; (1,) for rank 0."""
    sizes = list(shape) or [1]
    sizes[axis] = -(-sizes[axis] * qtype.bits // 8)
    return tuple(sizes)


def _qtype(dtype: object, bitorder: str) -> QType:
    qtype = as_qtype(dtype)
    if not qtype.packed:
        raise TypeError(f"dtype must be a format of fewer than 8 bits, not {qtype}")
    if bitorder not in ("little", "big"):
        raise ValueError(f"bitorder must be 'little' or 'big', not {bitorder!r}")
    if bitorder == "big" and qtype.bits > 1:
        raise ValueError(f"bitorder='big' is defined for formats of one bit, not for {qtype}")
    return qtype


def _axis(axis: int, ndim: int) -> int:
    axes = kept_axes(axis, ndim)
    if axes is None or len(axes) != 1:
        raise TypeError(f"axis must be an int, not {axis!r}")
    return axes[0]


# the module that needs Numba, imported by the first call
_packed = functools.partial(lazy.module, "fastq.dispatch.subbyte")


def _form(qtype: QType, bitorder: str) -> StorageFormat:
    return StorageFormat(qtype.bits, qtype.signed and not qtype.element, highest_first=bitorder == "big")


def _as_integers(codes: ArrayLike, qtype: QType) -> NDArray[Any]:
    """Return codes as integers; float codes as their bits."""
    array = as_array(codes, "codes")
    if array.dtype.kind in "iu" and not qtype.element:
        return array
    if array.dtype.name != (qtype.element or qtype.name):
        raise TypeError(f"codes must be {qtype.element or 'integers'}, not {array.dtype}")
    return array.view(np.uint8) if qtype.element else array.astype(qtype.storage)


def pack(
    codes: ArrayLike, dtype: str | QType | DTypeLike, *, axis: int = -1, bitorder: str = "little"
) -> NDArray[np.uint8]:
    """Pack codes along an axis without gaps, the last byte of each row padded with zeros.

    Code k of a row has the bits from ``k * bits`` on of the row's bytes, counted from the lowest bit of the first byte:
    what ONNX does for 4 and 2 bits, compressed-tensors for any width, and `numpy.packbits` with the same bit order
    for 1.

    Parameters
    ----------
    codes : array_like of integers
        Codes of the format, one an element; for float formats of fewer than 8 bits arrays of ml_dtypes.
    dtype : str, QType or dtype
        A format of fewer than 8 bits: "int4", "uint4", "int2", "float4_e2m1fn", ...
    axis : int
        The axis along which neighbours share a byte.
    bitorder : {"little", "big"}
        For formats of one bit, whether the first of eight is in the lowest or the highest bit.

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
    what = (codes, None, None, None, "pack", dtype, axis, bitorder)
    key = known.facts(*what)
    if (again := known.again(key, codes)) is not None:
        return again
    qtype = _qtype(dtype, bitorder)
    given = np.atleast_1d(_as_integers(codes, qtype))
    axis = _axis(axis, given.ndim)
    packed = empty(packed_shape(given.shape, qtype, axis), np.dtype(np.uint8))
    seen = _packed().pack(np.moveaxis(given, axis, -1), np.moveaxis(packed, axis, -1), _form(qtype, bitorder))
    if seen & OUT_OF_RANGE:
        raise ValueError(
            f"codes must be from {qtype.qmin} to {qtype.qmax} for {qtype}, not {given.min()}..{given.max()}"
        )
    as_it_is = given is codes or (qtype.element and np.shape(codes) == given.shape)
    plain = axis == given.ndim - 1 and as_it_is and given.dtype.isnative
    if given.size and plain and (generation := known.is_new(key)):
        form = _form(qtype, bitorder)
        known.remember(key, generation, what, _packed().repacking(given.shape, form, (given.dtype, form)), packed)
    return packed


def unpack(
    packed: ArrayLike,
    dtype: str | QType | DTypeLike,
    *,
    shape: tuple[int, ...],
    axis: int = -1,
    bitorder: str = "little",
) -> NDArray[Any]:
    """Return packed codes one an element: the inverse of `pack`.

    Parameters
    ----------
    packed : array_like of uint8
        What `pack` returns.
    dtype, axis, bitorder
        As in `pack`.
    shape : tuple of int
        Shape of the codes.

    Returns
    -------
    ndarray of int8 or uint8
        Shape `shape`; for float formats an array of ml_dtypes.

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
    what = (packed, None, None, None, "unpack", dtype, axis, bitorder, shape)
    key = known.facts(*what)
    if (again := known.again(key, packed)) is not None:
        return again
    qtype, packed = _qtype(dtype, bitorder), as_array(packed, "packed")
    if packed.dtype != np.uint8:
        raise TypeError(f"packed must be uint8, not {packed.dtype}")
    if any(size < 0 for size in shape):
        raise ValueError(f"shape must not have negative sizes: {shape}")
    axis = _axis(axis, max(len(shape), 1))
    if packed.shape != (wanted := packed_shape(shape, qtype, axis)):
        raise ValueError(f"packed has shape {packed.shape}, but {qtype} codes of shape {tuple(shape)} pack to {wanted}")
    codes = empty(shape or (1,), np.dtype(np.uint8) if qtype.element else qtype.storage)
    _packed().unpack(np.moveaxis(packed, axis, -1), np.moveaxis(codes, axis, -1), _form(qtype, bitorder))
    result = codes.reshape(shape).view(qtype.storage)
    if codes.size and axis == codes.ndim - 1 and (generation := known.is_new(key)):
        form = _form(qtype, bitorder)
        known.remember(key, generation, what, _packed().repacking(codes.shape, form, (form, codes.dtype)), result)
    return result
