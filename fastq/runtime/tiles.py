"""Tiles: kernels on strided memory, through buffers that stay in the cache, on all threads.

Kernels work on contiguous memory. A launch of strided arrays is one of a *tiler*, a function with the same arguments as
a kernel: it copies a tile into a buffer on its stack, calls the kernel there by its address, and copies the results
back. What it needs to know stands in the words of a descriptor, whose address is the last word of a launch.

Two tilers visit the elements of an array in C order:

- `tile_runs` goes along the last axes, a piece of as many elements as fit the buffers at a time.
- `tile_squares` takes some columns of as many rows as cache lines of a transposed array have elements, or of all that
  there are, so that each line is read, or written, once. Where the last axis is short, columns are of two axes; rows
  that follow each other go to the kernel at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core.extending import models, register_model
from numpy.typing import NDArray

from fastq import jit
from fastq.jit import intrinsic, njit, specialize
from fastq.runtime.cpython import words_at
from fastq.runtime.driver import INNER, LAUNCH_ARGS, LAUNCH_DESCRIPTOR
from fastq.runtime.threadpool import call_address
from fastq.simd import (
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
from fastq.system import tuning

Array = NDArray[Any]

BUFFER = tuning.current().tile_bytes  # of both buffers
TOGETHER = 8  # squares whose errors are added up together: about as many elements as in other memory

# words of a descriptor, after that of the kernel:
UNIT = 1  # elements of a unit of the kernel
FILL_X, FILL_Y, EMPTY_Y = 2, 3, 4  # functions that copy to the buffers of the operands, and back; 0: none
BITS_X, BITS_Y = 5, 6  # of elements as the kernel has them
Y_BUFFER = 7  # bytes before the second buffer
PIECE = 8  # elements of a piece
ACROSS, ROWS, COLUMNS = 9, 10, 11  # the axis of the rows of a square, its rows and its columns
DOWN, ALONG = 12, 13  # how many squares lie along that axis, and along the last one, or that before it: see SPAN
SPAN = 14  # indices of the last axis but one that the columns of a square are of; 0: they are of the last axis alone
FOLLOWING = 15  # whether the rows of a square follow each other in C order
PITCH_X, PITCH_Y = 16, 17  # bytes from row to row of a square in the buffers
SUM_BYTES = 18  # of the sums that the kernel adds to, of which each `TOGETHER` squares have some of their own; or 0
UNIT_BITS_X, UNIT_BITS_Y = 19, 20  # of a unit of the kernel, in operands that are not copied
ORIGIN_UNIT = 21  # elements of what the kernel counts its origin in
PERIOD, PERIOD_STRIDE = 22, 23  # rows of the axis of rows before it goes on with another axis; elements to the next
NDIM, AXES = 24, 25  # how many axes there are; then the words of each:
LENGTH, STRIDE_X, STRIDE_Y, STRIDE = range(4)  # strides of the operands in bytes, and of the kernel in elements
AXIS = 4  # words of an axis


_LINE, _LINES = Vec(types.uint8, LINE), 16 * LINE  # bytes of as many lines as there are lanes at most

# --- copies -----------------------------------------------------------------------------------------------------------


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
def _copy_few(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy rows of fewer columns than there are lanes, to contiguous columns."""
    done = _transpose_narrow(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
    src, dst = src + done * src_row, dst + done * dst_row
    _copy(kind, src, dst, columns, rows - done, _itemsizes(kind)[0], src_row, dst_step, dst_row)


@njit
def _copy_transposed(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy a matrix whose rows are contiguous to one whose columns are, by squares of lanes.

    The last square of a row or column may overlap the one before.
    """
    n = count(_lanes(kind))
    if columns < n:
        _copy_few(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
    elif rows < n:
        _copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step)
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
    """Copy a matrix between addresses, strides in bytes: what C calls."""
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


# --- tilers -----------------------------------------------------------------------------------------------------------


@njit
def _copy_elements(words, function, which, fills, array, buffer, bits, start, count):  # type: ignore[no-untyped-def]
    """Copy elements start..start+count, in C order, of a strided array to a buffer, or from there."""
    last = AXES + (words[NDIM] - 1) * AXIS
    size, columns, step = bits >> 3, words[last + LENGTH], words[last + which]
    row_step = words[last - AXIS + which]
    while count > 0:
        row, j = start // columns, start % columns
        where, rows, width, rest = array + j * step, 1, min(columns - j, count), row
        if j == 0:
            rows = min(max(count // columns, 1), words[last - AXIS + LENGTH] - row % words[last - AXIS + LENGTH])
        axis = last - AXIS
        while rest > 0:
            where += rest % words[axis + LENGTH] * words[axis + which]
            rest //= words[axis + LENGTH]
            axis -= AXIS
        _copy_matrix(function, fills, where, buffer, rows, width, row_step, step, width * size, size)
        buffer += rows * width * size
        start += rows * width
        count -= rows * width
    return 0


@njit
def _copy_matrix(function, fills, array, buffer, rows, columns, row, step, buffer_row, buffer_step):  # type: ignore[no-untyped-def]
    """Copy a matrix of an array to a buffer, or from there, the longer axis in the inner loop."""
    if rows > columns:
        rows, columns, row, step, buffer_row, buffer_step = columns, rows, step, row, buffer_step, buffer_row
    _copy_as_it_is(function, fills, array, buffer, rows, columns, row, step, buffer_row, buffer_step)


@njit
def _copy_as_it_is(function, fills, array, buffer, rows, columns, row, step, buffer_row, buffer_step):  # type: ignore[no-untyped-def]
    if fills:
        call_address(function, (array, buffer, rows, columns, row, step, buffer_row, buffer_step))
    else:
        call_address(function, (buffer, array, rows, columns, buffer_row, buffer_step, row, step))


@njit
def _run(words, x, y, others, args, origin, count, slot):  # type: ignore[no-untyped-def]
    """Call the kernel on `count` elements from `origin` on, with which x and y begin."""
    c, d, e = others
    unit = words[UNIT]
    units = origin // words[ORIGIN_UNIT], origin // unit, -(-(origin + count) // unit), slot
    return call_address(words[INNER], (x, y, c, d, e, args, *units))


def tile_runs(_, a, b, c, d, e, args, origin, start, stop, slot):  # type: ignore[no-untyped-def]
    """Run a kernel on elements start..stop, piece by piece: what C calls."""
    words = words_at(words_at(args)[LAUNCH_DESCRIPTOR - LAUNCH_ARGS])
    x_buffer = address_of(scratch(BUFFER, types.uint8))
    y_buffer = x_buffer + words[Y_BUFFER]
    fill_x, fill_y, empty_y = words[FILL_X], words[FILL_Y], words[EMPTY_Y]
    bits_x, bits_y, status = words[BITS_X], words[BITS_Y], 0
    while start < stop:
        count, unit = min(words[PIECE] - start % words[PIECE], stop - start), start // words[UNIT]
        x, y = a + (unit * words[UNIT_BITS_X] >> 3), b + (unit * words[UNIT_BITS_Y] >> 3)
        if fill_x:
            x = x_buffer
            _copy_elements(words, fill_x, STRIDE_X, True, a, x, bits_x, start, count)
        if fill_y or empty_y:
            y = y_buffer
        if fill_y:
            _copy_elements(words, fill_y, STRIDE_Y, True, b, y, bits_y, start, count)
        status |= _run(words, x, y, (c, d, e), args, start, count, slot)
        if empty_y:
            _copy_elements(words, empty_y, STRIDE_Y, False, b, y, bits_y, start, count)
        start += count
    return status


@njit
def _move_square(words, function, which, fills, array, buffer, size, pitch, rows, columns):  # type: ignore[no-untyped-def]
    """Copy some columns of some rows of a strided array to a buffer, or from there, along the lines of the array."""
    last = AXES + (words[NDIM] - 1) * AXIS
    down, along, next_span = words[AXES + words[ACROSS] * AXIS + which], words[last + which], words[last - AXIS + which]
    length = words[last + LENGTH] if words[SPAN] else columns
    for _ in range(columns // length):
        if abs(down) < abs(along):
            _copy_as_it_is(function, fills, array, buffer, length, rows, along, down, size, pitch)
        else:
            _copy_as_it_is(function, fills, array, buffer, rows, length, down, along, pitch, size)
        array, buffer = array + next_span, buffer + length * size


def tile_squares(_, a, b, c, d, e, args, origin, start, stop, slot):  # type: ignore[no-untyped-def]
    """Run a kernel on squares start..stop, row by row of each unless they follow each other: what C calls."""
    words = words_at(words_at(args)[LAUNCH_DESCRIPTOR - LAUNCH_ARGS])
    x_buffer = address_of(scratch(BUFFER, types.uint8))
    y_buffer = x_buffer + words[Y_BUFFER]
    fill_x, fill_y, empty_y, bits_x, bits_y = words[FILL_X], words[FILL_Y], words[EMPTY_Y], words[BITS_X], words[BITS_Y]
    e += start // TOGETHER * words[SUM_BYTES]
    down, last = AXES + words[ACROSS] * AXIS, AXES + (words[NDIM] - 1) * AXIS
    span, following = words[SPAN], words[FOLLOWING]
    along, step, width = (last - AXIS, span, words[last + LENGTH]) if span else (last, words[COLUMNS], 1)
    pitch_x, pitch_y, status = words[PITCH_X], words[PITCH_Y], 0
    for square in range(start, stop):
        if fill_x:
            i, rest = square % words[DOWN] * words[ROWS], square // words[DOWN]
            j, rest = rest % words[ALONG] * step, rest // words[ALONG]
        else:  # which kernels prefetch along its rows
            j, rest = square % words[ALONG] * step, square // words[ALONG]
            i, rest = rest % words[DOWN] * words[ROWS], rest // words[DOWN]
        columns, rows = min(step, words[along + LENGTH] - j) * width, min(words[ROWS], words[down + LENGTH] - i)
        x = a + j * words[along + STRIDE_X] + i * words[down + STRIDE_X]
        y = b + j * words[along + STRIDE_Y] + i * words[down + STRIDE_Y]
        first, axis = j * width, last
        while rest > 0:
            axis -= AXIS
            if axis != down and axis != along:
                k, rest = rest % words[axis + LENGTH], rest // words[axis + LENGTH]
                x += k * words[axis + STRIDE_X]
                y += k * words[axis + STRIDE_Y]
                first += k * words[axis + STRIDE]
        if fill_x:
            _move_square(words, fill_x, STRIDE_X, True, x, x_buffer, bits_x >> 3, pitch_x, rows, columns)
        if fill_y:
            _move_square(words, fill_y, STRIDE_Y, True, y, y_buffer, bits_y >> 3, pitch_y, rows, columns)
        period, r_in_period = i // words[PERIOD], i % words[PERIOD]
        calls, count = (1, rows * columns) if following else (rows, columns)
        for r in range(calls):
            k = first + r_in_period * words[down + STRIDE] + period * words[PERIOD_STRIDE]
            r_in_period += 1
            if r_in_period == words[PERIOD]:
                period, r_in_period = period + 1, 0
            unit = k // words[UNIT]
            at_x = x_buffer + r * pitch_x if fill_x else a + (unit * words[UNIT_BITS_X] >> 3)
            at_y = y_buffer + r * pitch_y if fill_y or empty_y else b + (unit * words[UNIT_BITS_Y] >> 3)
            status |= _run(words, at_x, at_y, (c, d, e), args, k, count, slot)
        if empty_y:
            _move_square(words, empty_y, STRIDE_Y, False, y, y_buffer, bits_y >> 3, pitch_y, rows, columns)
    return status
