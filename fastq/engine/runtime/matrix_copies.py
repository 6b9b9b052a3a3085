"""Copies of strided matrices between memory and the buffers of tiles: transposed in registers, gaps left out."""

from __future__ import annotations

from typing import Any

from numba import types

from fastq.engine import jit
from fastq.engine.jit import Constants, intrinsic, njit, traced
from fastq.engine.simd import (
    GRANULE,
    LINE,
    Vec,
    address_of,
    constant,
    convert,
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


@traced
def _at(kind, where):  # type: ignore[no-untyped-def]
    """Return a pointer to elements from an address."""
    return pointer(where, kind.element)


@njit
def _transpose_lines(kind, src, dst, rows, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose as many columns as there are lanes, and at least as many rows, line by line.

    One core of a Zen 4, bytes, 2**24 and 2**18, Gelem/s: stores of 16 bytes 4.2 and 14, of lines 8.4 and 13.
    """
    n, line, r = count(_lanes(kind)), LINE // kind.result_size, 0
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


# --- few columns or rows, such as the channels of pixels --------------------------------------------------------------


def _transpose_dense(length: int) -> Any:
    """Make a function that transposes rows of so many elements, one after the other: of the channels of a pixel."""

    @traced
    def columns_at(kind, src):  # type: ignore[no-untyped-def]
        return load_columns(pointer(src, kind.element), square_lanes(kind.element), length)

    @njit
    def transposed(kind, src, dst, rows, dst_row, dst_step):  # type: ignore[no-untyped-def]
        n, r = count(_lanes(kind)), 0
        while r <= rows - n:
            store_rows(_at(kind, dst + r * dst_row), dst_step, columns_at(kind, src + r * length * kind.size))
            r += n
        return r

    return transposed


_transpose_pairs, _transpose_threes, _transpose_fours = map(_transpose_dense, (2, 3, 4))


@njit
def _transpose_narrow(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose rows of fewer columns than there are lanes; return how many rows, from the first on.

    Vecs are loaded that reach into the rows behind, so not the last ones.
    """
    n, r = count(_lanes(kind)), 0
    if src_row == columns * kind.size:
        if columns == 2:
            return _transpose_pairs(kind, src, dst, rows, dst_row, dst_step)
        if columns == 3:
            return _transpose_threes(kind, src, dst, rows, dst_row, dst_step)
        if columns == 4:
            return _transpose_fours(kind, src, dst, rows, dst_row, dst_step)
    square = address_of(scratch(_LINES, types.uint8))
    while r <= rows - n and (r + n - 1) * src_row + n * kind.size <= (rows - 1) * src_row + columns * kind.size:
        _transpose(kind, src + r * src_row, square, src_row, LINE)
        for c in range(columns):
            row = load(_at(kind, square + c * LINE), 0, _lanes(kind))
            store(_at(kind, dst + r * dst_row + c * dst_step), 0, row)
        r += n
    return r


@traced
def _granule(kind):  # type: ignore[no-untyped-def]
    """Vec type of the elements of a granule."""
    return Vec(kind.element, 8 * GRANULE // kind.element.bitwidth)


@njit
def _transpose_granules(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose fewer rows than there are lanes, by squares of a granule; return how many rows, from the first on."""
    n, r = count(_granule(kind)), 0
    while r <= rows - n and n <= columns:
        for k in range(0, columns, n):
            c = min(k, columns - n)
            square = load_square(_at(kind, src + r * src_row + c * kind.size), src_row, _granule(kind))
            store_rows(_at(kind, dst + r * dst_row + c * dst_step), dst_step, transpose(square))
        r += n
    return r


@njit
def _copy_few_columns(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy rows of fewer columns than there are lanes, to contiguous columns."""
    done = _narrow_done(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
    src, dst = src + done * src_row, dst + done * dst_row
    _copy(kind, src, dst, columns, rows - done, kind.size, src_row, dst_step, dst_row)


@njit
def _copy_few_rows(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy fewer contiguous rows than there are lanes to columns."""
    done = _granules_done(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
    src, dst = src + done * src_row, dst + done * dst_row
    _copy(kind, src, dst, rows - done, columns, src_row, kind.size, dst_row, dst_step)


@traced
def _narrow_done(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose in registers what is copied as it is; return how many rows."""
    return _transpose_narrow(kind, src, dst, rows, columns, src_row, dst_row, dst_step) if kind.is_plain else 0


@traced
def _granules_done(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose in registers what is copied as it is; return how many rows."""
    return _transpose_granules(kind, src, dst, rows, columns, src_row, dst_row, dst_step) if kind.is_plain else 0


# --- a matrix ---------------------------------------------------------------------------------------------------------


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
    if src_step == kind.size and dst_row == kind.result_size and dst_step != kind.result_size:
        _copy_transposed(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step)
    elif src_row == kind.size and dst_step == kind.result_size and src_step != kind.size and src_step != 0:
        _copy_transposed(kind, src, dst, columns, rows, src_step, src_row, dst_step, dst_row)
    else:
        _copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step)
    return 0


def _pick_every(step: int) -> Any:
    """Make a function that copies the first of every so many elements, through registers of all of them.

    It returns how many, which are not all. One core of a Zen 4, minima of every second element, 2**18 elements, beside
    loads one by one: bytes 4.8 times as fast, int16 2.6, float32 1.5, float64 1.0.
    """

    @traced
    def first_of(kind, src):  # type: ignore[no-untyped-def]
        return load_columns(pointer(src, kind.element), square_lanes(kind.element), step)[0]

    @njit
    def picked(kind, src, dst, columns):  # type: ignore[no-untyped-def]
        n, c = count(_lanes(kind)), 0
        while c + n < columns:  # what lies behind the last element may not be memory
            store(_at(kind, dst), c, first_of(kind, src + c * step * kind.size))
            c += n
        return c

    return picked


_pick_every_second, _pick_every_third, _pick_every_fourth = map(_pick_every, (2, 3, 4))


@njit
def _pick(kind, src, dst, columns, src_step):  # type: ignore[no-untyped-def]
    """Copy elements that lie a little apart in registers; return how many."""
    if src_step == 2 * kind.size:
        return _pick_every_second(kind, src, dst, columns)
    if src_step == 3 * kind.size:
        return _pick_every_third(kind, src, dst, columns)
    if src_step == 4 * kind.size:
        return _pick_every_fourth(kind, src, dst, columns)
    return 0


@traced
def _picked(kind, src, dst, columns, src_step):  # type: ignore[no-untyped-def]
    """Copy in registers what is copied as it is; return how many elements."""
    return _pick(kind, src, dst, columns, src_step) if kind.is_plain else 0


@njit
def _copy_with_gaps(kind, src, dst, columns, src_step):  # type: ignore[no-untyped-def]
    """Copy elements that lie apart to neighbours."""
    for c in range(_picked(kind, src, dst, columns, src_step), columns):
        _copy_element(kind, src + c * src_step, 0, dst, c)


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
        elif dst_step == kind.result_size:
            _copy_with_gaps(kind, s, d, columns, src_step)
        else:
            for c in range(columns):
                _copy_element(kind, s + c * src_step, 0, d + c * dst_step, 0)


def address_of_copy(size: int, swapped: bool, infinity: int) -> int:
    """Compile `copy` for elements of what `Copy` says, or load it; return its address."""
    return jit.kernel(copy, types.int64, Copy(size, swapped, infinity), *[types.int64] * 8)
