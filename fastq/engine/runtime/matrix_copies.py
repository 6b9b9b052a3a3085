"""Copies of strided matrices between memory and the buffers of tiles: transposed in registers, gaps left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from fastq.engine import jit
from fastq.engine.jit import Constants, intrinsic, njit, traced
from fastq.engine.simd import (
    LINE,
    constant,
    convert,
    count,
    load,
    load_square,
    pointer,
    prefetch,
    square_lanes,
    store,
    store_rows,
    transpose,
)


class Copy(Constants):
    """Type of the first argument of `copy`, which is nothing at run time and chooses the code.

    Parameters
    ----------
    size : int
        Bytes of an element.
    swapped : bool
        Whether their order is to be reversed.
    infinity : int
        Bits of infinity if what is copied is whether an element is NaN; 0: elements themselves.
    """

    def __init__(self, size: int, swapped: bool = False, infinity: int = 0) -> None:
        self.size, self.result_size, self.swapped, self.infinity = size, 1 if infinity else size, swapped, infinity
        self.element, self.is_plain = types.Integer.from_bitwidth(8 * size, signed=False), not (swapped or infinity)
        super().__init__(name=f"Copy({size}, {swapped}, {infinity})")


@intrinsic
def _reversed_bytes(typingctx: Any, value: Any) -> Any:
    return value(value), lambda context, builder, sig, args: builder.bswap(args[0])


@traced
def _copy_element(kind, src, k, dst, j):  # type: ignore[no-untyped-def]
    """Copy element k from one address to element j of another; or 1 where it is NaN, else 0."""
    value = load(pointer(src, kind.element), k, kind.element)
    if kind.swapped:
        value = _reversed_bytes(value)
    if not kind.infinity:
        store(pointer(dst, kind.element), j, value)
    else:
        magnitude = value & constant((1 << kind.element.bitwidth - 1) - 1, value)
        store(pointer(dst, types.uint8), j, convert(magnitude > constant(kind.infinity, value), types.uint8))


@traced
def _lanes(kind):  # type: ignore[no-untyped-def]
    """Vec type of elements of which as many are transposed in registers."""
    return square_lanes(kind.element)


@traced
def _transpose(kind, src, dst, src_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose a square of `_lanes` each way."""
    if not kind.is_plain:
        _transpose_elements(kind, src, dst, src_row, dst_step)
        return
    vec = square_lanes(kind.element)
    rows = transpose(load_square(pointer(src, kind.element), src_row, vec))
    for r in range(vec.n):  # the lines beside these, which the next square begins with
        prefetch(pointer(src, types.uint8), r * src_row + LINE)
    store_rows(pointer(dst, kind.element), dst_step, rows)


@njit
def _transpose_elements(kind, src, dst, src_row, dst_step):  # type: ignore[no-untyped-def]
    for r in range(count(_lanes(kind))):
        for c in range(count(_lanes(kind))):
            _copy_element(kind, src + r * src_row, c, dst + c * dst_step, r)


@njit
def _copy_transposed(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy a matrix whose rows are contiguous to one whose columns are, by squares of lanes.

    The last square of a row or column may overlap the one before.
    """
    n = count(_lanes(kind))
    for j in range(0, rows, n):
        r = min(j, rows - n)
        for k in range(0, columns, n):
            c = min(k, columns - n)
            _transpose(kind, src + r * src_row + c * src_step, dst + r * dst_row + c * dst_step, src_row, dst_step)


def copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy a matrix between addresses, strides in bytes; a C entry point."""
    few = min(rows, columns) < count(_lanes(kind))
    if src_step == kind.size and dst_row == kind.result_size and dst_step != kind.result_size and not few:
        _copy_transposed(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step)
    elif src_row == kind.size and dst_step == kind.result_size and src_step != kind.size and src_step != 0 and not few:
        _copy_transposed(kind, src, dst, columns, rows, src_step, src_row, dst_step, dst_row)
    else:
        _copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step)
    return 0


@njit
def _copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    if dst_step < 0:  # from the other end, so that loops that store to neighbours are vectorized
        src, dst = src + (columns - 1) * src_step, dst + (columns - 1) * dst_step
        src_step, dst_step = -src_step, -dst_step
    for r in range(rows):
        s, d = src + r * src_row, dst + r * dst_row
        if dst_step == kind.result_size and src_step == kind.size:
            for c in range(columns):
                _copy_element(kind, s, c, d, c)
        elif dst_step == kind.result_size and src_step == 0:
            for c in range(columns):
                _copy_element(kind, s, 0, d, c)
        elif dst_step == kind.result_size and src_step == -kind.size:
            for c in range(columns):
                _copy_element(kind, s, -c, d, c)
        else:
            for c in range(columns):
                _copy_element(kind, s + c * src_step, 0, d + c * dst_step, 0)


def address_of_copy(dtype: np.dtype[Any], copies_isnan: bool = False) -> int:
    """Return the address of `copy` for elements of a dtype, which become native, or native ones that become of it."""
    infinity = int(np.array(np.inf, dtype.newbyteorder("=")).view(f"u{dtype.itemsize}")) if copies_isnan else 0
    return jit.kernel(copy, types.int64, Copy(dtype.itemsize, not dtype.isnative, infinity), *[types.int64] * 8)
