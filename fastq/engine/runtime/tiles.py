"""Tiles: kernels on strided memory, through buffers that stay in the cache, on all threads.

Kernels work on contiguous memory. A launch of strided arrays is one of a *tiler*, a function with the same arguments as
a kernel: it copies a tile into a buffer on its stack, calls the kernel there by its address, and copies the results
back. What it needs to know stands in the words of a descriptor, whose address is the last word of a launch.

Two tilers visit the elements of an array in C order:

- `tile_runs` goes along the last axes, a piece of as many elements as fit the buffers at a time.
- `tile_squares` takes some columns of as many rows as cache lines of a transposed array have elements, or of all that
  there are, so that each line is read, or written, once: where there are many squares, they begin with lines of the
  array, so that the first one has fewer rows, and the last one may have none. Where the last axis is short, columns are
  of two axes; rows that follow each other go to the kernel at once.
"""

from __future__ import annotations

from numba import types

from fastq.engine.jit import njit
from fastq.engine.runtime.cpython import words_at
from fastq.engine.runtime.driver import INNER, LAUNCH_ARGS, LAUNCH_DESCRIPTOR
from fastq.engine.runtime.threadpool import call_address
from fastq.engine.simd import LINE, address_of, scratch
from fastq.system import tuning

BUFFER = tuning.current().tile_bytes  # of both buffers
TOGETHER = 8  # squares whose errors are added up together: about as many elements as in other memory

# words of a descriptor, after that of the kernel:
UNIT = 1  # elements of a unit of the kernel
FILL_X, FILL_Y, EMPTY_Y = 2, 3, 4  # functions that copy to the buffers of the operands, and back; 0: none
BITS_X, BITS_Y = 5, 6  # of elements as the kernel has them
Y_BUFFER = 7  # bytes before the second buffer
PIECE = 8  # elements of a piece
ACROSS, ROWS, COLUMNS = 9, 10, 11  # the axis of the rows of a square, its rows and its columns
DOWN, ALONG = 12, 13  # how many squares, at most, lie along that axis, and along the last one or that before it: SPAN
SPAN = 14  # indices of the last axis but one that the columns of a square are of; 0: they are of the last axis alone
FOLLOWING = 15  # whether the rows of a square follow each other in C order
PITCH_X, PITCH_Y = 16, 17  # bytes from row to row of a square in the buffers
LINE_STEP_X, LINE_STEP_Y = 18, 19  # bytes from row to row of the operand with whose lines squares begin, 0: any row
SUM_BYTES = 20  # of the sums that the kernel adds to, of which each `TOGETHER` squares have some of their own; or 0
UNIT_BITS_X, UNIT_BITS_Y = 21, 22  # of a unit of the kernel, in operands that are not copied
ORIGIN_UNIT = 23  # elements of what the kernel counts its origin in
PERIOD, PERIOD_STRIDE = 24, 25  # rows of the axis of rows before it goes on with another axis; elements to the next
NDIM, AXES = 26, 27  # how many axes there are; then the words of each:
LENGTH, STRIDE_X, STRIDE_Y, STRIDE = range(4)  # strides of the operands in bytes, and of the kernel in elements
AXIS = 4  # words of an axis


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
    """Run a kernel on elements start..stop, piece by piece; a C entry point."""
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


@njit
def _rows_before_line(words, a, b):  # type: ignore[no-untyped-def]
    """Return how many rows the first line of the operands begins before they do, where squares begin with lines."""
    if words[LINE_STEP_X]:
        return a % LINE // words[LINE_STEP_X]
    return b % LINE // words[LINE_STEP_Y] if words[LINE_STEP_Y] else 0


@njit
def _place_of(words, square):  # type: ignore[no-untyped-def]
    """Return which square this is along the axis of rows and along that of columns, and its index along the others."""
    if words[FILL_X]:
        return square % words[DOWN], square // words[DOWN] % words[ALONG], square // words[DOWN] // words[ALONG]
    # columns first, as kernels prefetch along the rows of what is not copied
    return square // words[ALONG] % words[DOWN], square % words[ALONG], square // words[ALONG] // words[DOWN]


def tile_squares(_, a, b, c, d, e, args, origin, start, stop, slot):  # type: ignore[no-untyped-def]
    """Run a kernel on squares start..stop, row by row of each unless they follow each other; a C entry point."""
    words = words_at(words_at(args)[LAUNCH_DESCRIPTOR - LAUNCH_ARGS])
    x_buffer = address_of(scratch(BUFFER, types.uint8))
    y_buffer = x_buffer + words[Y_BUFFER]
    fill_x, fill_y, empty_y, bits_x, bits_y = words[FILL_X], words[FILL_Y], words[EMPTY_Y], words[BITS_X], words[BITS_Y]
    e += start // TOGETHER * words[SUM_BYTES]
    down, last = AXES + words[ACROSS] * AXIS, AXES + (words[NDIM] - 1) * AXIS
    span, following = words[SPAN], words[FOLLOWING]
    along, step, width = (last - AXIS, span, words[last + LENGTH]) if span else (last, words[COLUMNS], 1)
    pitch_x, pitch_y, before, status = words[PITCH_X], words[PITCH_Y], _rows_before_line(words, a, b), 0
    for square in range(start, stop):
        i, j, rest = _place_of(words, square)
        i, j = i * words[ROWS] - before, j * step
        columns = min(step, words[along + LENGTH] - j) * width
        i, end = max(i, 0), min(i + words[ROWS], words[down + LENGTH])
        rows = end - i
        if rows <= 0:
            continue
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
