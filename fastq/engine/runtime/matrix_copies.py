"""Copies of strided matrices between memory and the buffers of tiles: transposed in registers, gaps left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core.extending import models, register_model

from fastq.engine import jit
from fastq.engine.jit import intrinsic, njit, specialize
from fastq.engine.simd import (
    GRANULE,
    LINE,
    Vec,
    address_of,
    count,
    load,
    load_columns,
    load_square,
    pointer,
    prefetch,
    scratch,
    square_lanes,
    store,
    store_rows,
    transpose,
)

_LINE, _LINES = Vec(types.uint8, LINE), 16 * LINE  # bytes of as many lines as there are lanes at most


class Copy(types.Opaque):  # type: ignore[misc]
    """Type of the first argument of `copy`, which is nothing at run time and chooses the code.

    Parameters
    ----------
    itemsize : int
        Bytes of an element.
    swapped : bool
        Whether their order is to be reversed.
    infinity : int
        Bits of infinity if what is copied is whether an element is NaN; 0: elements themselves.
    """

    def __init__(self, itemsize: int, swapped: bool = False, infinity: int = 0) -> None:
        self.element = types.Integer.from_bitwidth(8 * itemsize, signed=False)
        self.result, self.swapped, self.infinity = types.uint8 if infinity else self.element, swapped, infinity
        super().__init__(name=f"Copy({itemsize}, {swapped}, {infinity})")


register_model(Copy)(models.OpaqueModel)


@intrinsic
def _reversed_bytes(typingctx: Any, value: Any) -> Any:
    return value(value), lambda context, builder, sig, args: builder.bswap(args[0])


@specialize
def _in_native_order(kind, value):  # type: ignore[no-untyped-def]
    """Reverse the bytes of an element where they are to be."""
    return (lambda kind, value: _reversed_bytes(value)) if kind.swapped else (lambda kind, value: value)


@specialize
def _isnan_or_value(kind, value):  # type: ignore[no-untyped-def]
    """Return an element, or 1 where it is NaN, else 0."""
    infinity, magnitude = kind.infinity, (1 << kind.element.bitwidth - 1) - 1

    def mark(kind, value):  # type: ignore[no-untyped-def]
        return types.uint8((value & magnitude) > infinity)

    return mark if infinity else lambda kind, value: value


@specialize
def _load_converted(kind, where, index):  # type: ignore[no-untyped-def]
    """Load what becomes of the element at an index from an address."""
    element = kind.element
    return lambda kind, where, index: _isnan_or_value(
        kind, _in_native_order(kind, load(pointer(where, element), index, element))
    )


@specialize
def _itemsizes(kind):  # type: ignore[no-untyped-def]
    """Return the bytes of a source and of a result element."""
    sizes = kind.element.bitwidth // 8, kind.result.bitwidth // 8
    return lambda kind: sizes


@specialize
def _lanes(kind):  # type: ignore[no-untyped-def]
    """Vec type of elements of which as many are transposed in registers."""
    vec = square_lanes(kind.element)
    return lambda kind: vec


@specialize
def _transpose(kind, src, dst, src_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose a square of `_lanes` each way."""
    element, swapped = kind.element, kind.swapped

    def plain(kind, src, dst, src_row, dst_step):  # type: ignore[no-untyped-def]
        rows = transpose(load_square(pointer(src, element), src_row, _lanes(kind)))
        for r in range(count(_lanes(kind))):  # the lines beside these, which the next square begins with
            prefetch(pointer(src, types.uint8), r * src_row + LINE)
        store_rows(pointer(dst, element), dst_step, rows)

    def other(kind, src, dst, src_row, dst_step):  # type: ignore[no-untyped-def]
        n, result_size = count(_lanes(kind)), _itemsizes(kind)[1]
        for r in range(n):
            for c in range(n):
                _store_result(
                    kind, dst + c * dst_step + r * result_size, 0, _load_converted(kind, src + r * src_row, c)
                )

    return other if swapped or kind.infinity else plain


@specialize
def _store_result(kind, where, index, value):  # type: ignore[no-untyped-def]
    """Store what became of an element."""
    result = kind.result
    return lambda kind, where, index, value: store(pointer(where, result), index, value)


@njit
def _transpose_lines(kind, src, dst, rows, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose as many columns as there are lanes, and at least as many rows, line by line.

    One core of a Zen 4, bytes, 2**24 and 2**18, Gelem/s: stores of 16 bytes 4.2 and 14, of lines 8.4 and 13.
    """
    n, line, r = count(_lanes(kind)), LINE // _itemsizes(kind)[1], 0
    lines = address_of(scratch(_LINES, types.uint8))
    while r <= rows - line and line > n:
        for k in range(0, line, n):
            _transpose(kind, src + (r + k) * src_row, lines + k * dst_row, src_row, LINE)
        for c in range(n):
            whole = load(pointer(lines + c * LINE, types.uint8), 0, _LINE)
            store(pointer(dst + r * dst_row + c * dst_step, types.uint8), 0, whole)
        r += line
    while r < rows:
        r = min(r, rows - n)
        _transpose(kind, src + r * src_row, dst + r * dst_row, src_row, dst_step)
        r += n


def _transpose_dense(length: int) -> Any:
    """Make a function that transposes rows of so many elements, one after the other: of the channels of a pixel."""

    @specialize
    def by_columns(kind, src, dst, rows, dst_row, dst_step):  # type: ignore[no-untyped-def]
        element = kind.element

        def transposed(kind, src, dst, rows, dst_row, dst_step):  # type: ignore[no-untyped-def]
            n, size, r = count(_lanes(kind)), _itemsizes(kind)[0], 0
            while r <= rows - n:
                columns = load_columns(pointer(src + r * length * size, element), _lanes(kind), length)
                store_rows(pointer(dst + r * dst_row, element), dst_step, columns)
                r += n
            return r

        return transposed

    return by_columns


_transpose_pairs, _transpose_threes, _transpose_fours = map(_transpose_dense, (2, 3, 4))


@specialize
def _transpose_narrow(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose rows of fewer columns than there are lanes; return how many rows, from the first on.

    Vecs are loaded that reach into the rows behind, so not the last ones.
    """
    element = kind.element

    def narrow(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
        n, size, r = count(_lanes(kind)), _itemsizes(kind)[0], 0
        if src_row == columns * size:
            if columns == 2:
                return _transpose_pairs(kind, src, dst, rows, dst_row, dst_step)
            if columns == 3:
                return _transpose_threes(kind, src, dst, rows, dst_row, dst_step)
            if columns == 4:
                return _transpose_fours(kind, src, dst, rows, dst_row, dst_step)
        square = address_of(scratch(_LINES, types.uint8))
        while r <= rows - n and (r + n - 1) * src_row + n * size <= (rows - 1) * src_row + columns * size:
            _transpose(kind, src + r * src_row, square, src_row, LINE)
            for c in range(columns):
                row = load(pointer(square + c * LINE, element), 0, _lanes(kind))
                store(pointer(dst + r * dst_row + c * dst_step, element), 0, row)
            r += n
        return r

    none = kind.swapped or kind.infinity
    return (lambda kind, src, dst, rows, columns, src_row, dst_row, dst_step: 0) if none else narrow


@njit
def _copy_few_columns(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy rows of fewer columns than there are lanes, to contiguous columns."""
    done = _transpose_narrow(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
    src, dst = src + done * src_row, dst + done * dst_row
    _copy(kind, src, dst, columns, rows - done, _itemsizes(kind)[0], src_row, dst_step, dst_row)


@specialize
def _transpose_granules(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose fewer rows than there are lanes, by squares of a granule; return how many rows, from the first on."""
    element, lanes = kind.element, Vec(kind.element, 8 * GRANULE // kind.element.bitwidth)

    def granules(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
        n, size, r = count(lanes), _itemsizes(kind)[0], 0
        while r <= rows - n and n <= columns:
            for k in range(0, columns, n):
                c = min(k, columns - n)
                square = load_square(pointer(src + r * src_row + c * size, element), src_row, lanes)
                store_rows(pointer(dst + r * dst_row + c * dst_step, element), dst_step, transpose(square))
            r += n
        return r

    none = kind.swapped or kind.infinity
    return (lambda kind, src, dst, rows, columns, src_row, dst_row, dst_step: 0) if none else granules


@njit
def _copy_few_rows(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy fewer contiguous rows than there are lanes to columns."""
    done = _transpose_granules(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
    src, dst = src + done * src_row, dst + done * dst_row
    _copy(kind, src, dst, rows - done, columns, src_row, _itemsizes(kind)[0], dst_row, dst_step)


@njit
def _copy_transposed(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy a matrix whose rows are contiguous to one whose columns are, by squares of lanes.

    The last square of a row or column may overlap the one before.
    """
    n = count(_lanes(kind))
    if columns < n:
        _copy_few_columns(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
    elif rows < n:
        _copy_few_rows(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
    elif abs(src_row) < abs(dst_step):  # to the lines of an array
        for k in range(0, columns, n):
            c = min(k, columns - n)
            _transpose_lines(kind, src + c * src_step, dst + c * dst_step, rows, src_row, dst_row, dst_step)
    else:
        for j in range(0, rows, n):
            r = min(j, rows - n)
            for k in range(0, columns, n):
                c = min(k, columns - n)
                _transpose(kind, src + r * src_row + c * src_step, dst + r * dst_row + c * dst_step, src_row, dst_step)


def copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy a matrix between addresses, strides in bytes; a C entry point."""
    size, result_size = _itemsizes(kind)
    if src_step == size and dst_row == result_size and dst_step != result_size:
        _copy_transposed(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step)
    elif src_row == size and dst_step == result_size and src_step != size and src_step != 0:
        _copy_transposed(kind, src, dst, columns, rows, src_step, src_row, dst_step, dst_row)
    else:
        _copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step)
    return 0


def _pick_every(step: int) -> Any:
    """Make a function that copies the first of every so many elements, through registers of all of them.

    It returns how many, which are not all. One core of a Zen 4, minima of every second element, 2**18 elements, beside
    loads one by one: bytes 4.8 times as fast, int16 2.6, float32 1.5, float64 1.0.
    """

    @specialize
    def pick(kind, src, dst, columns):  # type: ignore[no-untyped-def]
        element = kind.element

        def picked(kind, src, dst, columns):  # type: ignore[no-untyped-def]
            n, size, c = count(_lanes(kind)), _itemsizes(kind)[0], 0
            while c + n < columns:  # what lies behind the last element may not be memory
                parted = load_columns(pointer(src + c * step * size, element), _lanes(kind), step)
                store(pointer(dst, element), c, parted[0])
                c += n
            return c

        none = kind.swapped or kind.infinity
        return (lambda kind, src, dst, columns: 0) if none else picked

    return pick


_pick_every_second, _pick_every_third, _pick_every_fourth = map(_pick_every, (2, 3, 4))


@njit
def _copy_with_gaps(kind, src, dst, columns, src_step):  # type: ignore[no-untyped-def]
    """Copy elements that lie apart to neighbours."""
    size, done = _itemsizes(kind)[0], 0
    if src_step == 2 * size:
        done = _pick_every_second(kind, src, dst, columns)
    elif src_step == 3 * size:
        done = _pick_every_third(kind, src, dst, columns)
    elif src_step == 4 * size:
        done = _pick_every_fourth(kind, src, dst, columns)
    for c in range(done, columns):
        _store_result(kind, dst, c, _load_converted(kind, src + c * src_step, 0))


@njit
def _copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    size, result_size = _itemsizes(kind)
    if dst_step < 0:  # from the other end, so that loops that store to neighbours are vectorized
        src, dst = src + (columns - 1) * src_step, dst + (columns - 1) * dst_step
        src_step, dst_step = -src_step, -dst_step
    for r in range(rows):
        s, d = src + r * src_row, dst + r * dst_row
        if dst_step == result_size and src_step == size:
            for c in range(columns):
                _store_result(kind, d, c, _load_converted(kind, s, c))
        elif dst_step == result_size and src_step == 0:
            value = _load_converted(kind, s, 0)
            for c in range(columns):
                _store_result(kind, d, c, value)
        elif dst_step == result_size and src_step == -size:
            for c in range(columns):
                _store_result(kind, d, c, _load_converted(kind, s, -c))
        elif dst_step == result_size:
            _copy_with_gaps(kind, s, d, columns, src_step)
        else:
            for c in range(columns):
                _store_result(kind, d + c * dst_step, 0, _load_converted(kind, s + c * src_step, 0))


def address_of_copy(dtype: np.dtype[Any], copies_isnan: bool = False) -> int:
    """Return the address of `copy` for elements of a dtype, which become native, or native ones that become of it."""
    infinity = int(np.array(np.inf, dtype.newbyteorder("=")).view(f"u{dtype.itemsize}")) if copies_isnan else 0
    return jit.kernel(copy, types.int64, Copy(dtype.itemsize, not dtype.isnative, infinity), *[types.int64] * 8)
