"""Pack and unpack codes of fewer than 8 bits: dense, first element in the low bits, as ONNX packs them; binarize."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.formats.qtypes import QType
from fastq.plan.cache import call
from fastq.system.arguments import as_shape


def pack(
    codes: ArrayLike, dtype: str | QType | DTypeLike, *, axis: int = -1, bitorder: str = "little"
) -> NDArray[np.uint8]:
    """Pack codes along an axis without gaps; the last byte of each row is padded with zeros.

    Code k of a row starts at bit ``k * bits`` of the row's bytes, counted from the lowest bit of the first byte. ONNX
    does the same for 4 and 2 bits, compressed-tensors for any width, and `numpy.packbits` with the same bit order for
    1.

    Parameters
    ----------
    codes : array_like of integers
        Codes of the format, one per element; for float formats of fewer than 8 bits arrays of ml_dtypes.
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
    result: NDArray[np.uint8] = call("pack", codes, None, None, None, None, (axis, dtype, bitorder), (type(axis),))
    return result


def unpack(
    packed: ArrayLike,
    dtype: str | QType | DTypeLike,
    *,
    shape: tuple[int, ...],
    axis: int = -1,
    bitorder: str = "little",
) -> NDArray[Any]:
    """Return packed codes with one code per element: the inverse of `pack`.

    Parameters
    ----------
    packed : array_like of uint8
        Bytes as `pack` returns them.
    dtype : str, QType or dtype
        As in `pack`.
    shape : tuple of int
        Shape of the codes.
    axis, bitorder
        As in `pack`.

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
    if type(shape) is not tuple:
        shape = as_shape(shape)
    types = (type(axis), *map(type, shape))  # True == 1 == 1.0
    result: NDArray[Any] = call("unpack", packed, None, None, None, None, (axis, dtype, bitorder), types, shape)
    return result


def binarize(
    x: ArrayLike,
    *,
    axis: int = -1,
    dtype: str | DTypeLike = "uint8",
    bitorder: str = "big",
    nan: str = "raise",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Keep one bit of each element, whether it is positive, and pack eight bits into a byte.

    This is ``np.packbits(x > 0, axis, bitorder)`` in one pass. The defaults give the "ubinary" bytes of
    sentence-transformers, ``dtype="int8"`` its "binary" bytes. Each row begins on a whole byte.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype, of any shape and memory layout.
    axis : int
        The axis along which neighbours share a byte.
    dtype : {"uint8", "int8"} or dtype
        Dtype of the bytes; int8 bytes are smaller by 128.
    bitorder : {"big", "little"}
        Whether the first of eight elements is in the highest or the lowest bit.
    nan : {"raise", "zero"}
        What to do with NaN: "raise" refuses it, "zero" treats it as 0.0, which is not positive.
    out : ndarray, optional
        Array to write to, with the shape and dtype of the bytes.

    Returns
    -------
    ndarray
        ``ceil(D / 8)`` bytes along the axis, the last one padded with zero bits; shape (1,) for an array of rank 0.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, or x has NaN (unless ``nan="zero"``).

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.binarize(np.array([[0.5, -1.0, 2.0], [0.0, 0.0, 1e-9]], np.float32))
    array([[160],
           [ 32]], dtype=uint8)
    """
    result: NDArray[Any] = call("binarize", x, out, None, None, None, (axis, dtype, bitorder, nan), (type(axis),))
    return result
