"""Requests to pack and to unpack codes of fewer than 8 bits, and to keep one bit of each value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.granularity import axes_from_front
from fastq.formats.qtypes import QTYPES, QType, as_qtype, packed_shape
from fastq.requests.quantization import check_input, check_nan
from fastq.system.arguments import as_bool, as_choice, as_dtype, as_float, as_int, as_shape, between

Shape = tuple[int, ...]
DType = np.dtype[Any]


class PackOptions(NamedTuple):
    """Options of `fastq.pack` and `fastq.unpack`."""

    axis: int = -1
    dtype: object = None
    bitorder: str = "little"


class BinarizeOptions(NamedTuple):
    """Options of `fastq.binarize`."""

    axis: int = -1
    threshold: float = 0.0
    inclusive: bool = False
    dtype: object = "uint8"
    bitorder: str = "big"
    nan: str = "raise"


class PackRequest(NamedTuple):
    """Codes of fewer than 8 bits along an axis."""

    qtype: QType  # format of the codes
    shape: Shape  # shape of the codes
    axis: int  # the axis along which neighbours share a byte
    bitorder: str  # whether the first of eight one-bit codes is in the lowest or the highest bit
    dtype: DType = np.dtype(np.uint8)  # dtype of the bytes
    threshold: float = 0.0  # what values are compared with, in the type that they are compared in
    inclusive: bool = False  # whether the bit of a value that is equal to it is 1

    @property
    def packed(self) -> Shape:
        """Shape of the bytes."""
        return packed_shape(self.shape, self.qtype, self.axis)


def _packing(shape: Shape, options: PackOptions, name: str) -> PackRequest:
    """Return the request for codes of a shape, which errors call `name`; a single code has shape (1,), or ()."""
    qtype = as_qtype(options.dtype)
    if not qtype.packed:
        raise TypeError(f"dtype must be a format of fewer than 8 bits, not {qtype}")
    if as_choice(options.bitorder, "bitorder", ("little", "big")) == "big" and qtype.bits > 1:
        raise ValueError(f"bitorder='big' is defined for formats of one bit, not for {qtype}")
    return PackRequest(qtype=qtype, shape=shape, axis=_axis(options.axis, len(shape), name), bitorder=options.bitorder)


def _axis(axis: int, ndim: int, array: str) -> int:
    """Return an axis counted from the front; one number counts as an array of one axis, since it takes a byte."""
    return axes_from_front((as_int(axis, "axis"),), max(ndim, 1), array)[0]


def pack_request(dtype: DType, shape: Shape, options: PackOptions) -> PackRequest:
    """Return the request of `fastq.pack`, for codes of a dtype and shape."""
    request = _packing(shape or (1,), options, "codes")
    qtype = request.qtype
    # the dtype of ml_dtypes for codes of this format; integers may also have any integer dtype of NumPy
    ml_dtype = qtype.storage.name if qtype.element else qtype.name
    if (dtype.kind not in "iu" or qtype.element) and dtype.name != ml_dtype:
        raise TypeError(f"codes must be {ml_dtype if qtype.element else 'integers'} for dtype {qtype}, not {dtype}")
    return request


def check_codes(least: int, most: int, qtype: QType) -> None:
    """Raise an error unless integers are codes of a format."""
    if least < qtype.qmin or most > qtype.qmax:
        raise ValueError(f"codes must be from {qtype.qmin} to {qtype.qmax} for {qtype}, not {between(least, most)}")


def unpack_request(dtype: DType, packed: Shape, shape: Any, options: PackOptions) -> PackRequest:
    """Return the request of `fastq.unpack`, for bytes of a dtype and shape, and a shape of the codes."""
    request = _packing(as_shape(shape), options, "the codes")
    if dtype != np.uint8:
        raise TypeError(f"packed must be uint8, not {dtype}")
    if packed != request.packed:
        raise ValueError(
            f"packed has shape {packed}, but {request.qtype} codes of shape {request.shape} pack to {request.packed} "
            f"along axis {request.axis}"
        )
    return request


def binarize_request(dtype: DType, shape: Shape, options: BinarizeOptions) -> PackRequest:
    """Return the request of `fastq.binarize`, for values of a dtype and shape."""
    check_input(dtype)
    check_nan(options.nan)
    axis = _axis(options.axis, len(shape), "x")
    expected = "uint8 or int8"
    bitorder = as_choice(options.bitorder, "bitorder", ("little", "big"))
    stored = as_dtype(options.dtype, "dtype", expected)
    if stored not in (np.uint8, np.int8):
        raise TypeError(f"dtype must be {expected}, not {stored}")
    threshold, inclusive = _threshold(dtype, options)
    return PackRequest(
        qtype=QTYPES["uint1"],
        shape=shape or (1,),
        axis=axis,
        bitorder=bitorder,
        dtype=stored,
        threshold=threshold,
        inclusive=inclusive,
    )


def _threshold(dtype: DType, options: BinarizeOptions) -> tuple[float, bool]:
    """Return a number of the type that values are compared in, and whether a value that is equal to it gets a 1.

    Where the threshold is none of the numbers of that type, it is the next smaller one, which gets a 0: integers are
    above 2.5, or from 2.5 on, where they are above 2.
    """
    inclusive = as_bool(options.inclusive, "inclusive")
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        number = as_float(options.threshold, "threshold", info.min, info.max)
        below = float(math.floor(number))
    else:
        most = float(np.finfo(np.float64).max)
        number = as_float(options.threshold, "threshold", -most, most)
        below = _next_below(number, check_input(dtype))
    return below, inclusive and below == number


def _next_below(number: float, ftype: DType) -> float:
    """Return the largest number of a float dtype that is not above a number."""
    with np.errstate(all="ignore"):
        nearest = ftype.type(number)
        below = np.nextafter(nearest, ftype.type(-np.inf))
    return float(nearest if float(nearest) <= number else below)
