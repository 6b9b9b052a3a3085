"""Tiles: kernels on strided memory, through buffers that stay in the cache, on all threads.

Kernels work on contiguous memory. A launch of strided arrays is one of a *tiler*, a function with the same arguments as
a kernel: it copies a tile into a buffer on its stack, calls the kernel there by its address, and copies the results
back. What it needs to know is a record `TILE`, which it gets in place of the numeric arguments of the kernel.

Two tilers visit the elements of an array in C order:

- `tile_runs` goes along the last axes, a piece of as many elements as fit the buffers at a time.
- `tile_squares` takes some columns of as many rows as cache lines of a transposed array have elements, or of all that
  there are, so that each line is read, or written, once: where there are many squares, they begin with lines of the
  array, so that the first one has fewer rows, and the last one may be empty. Where the last axis is short, columns are
  of two axes; rows that follow each other go to the kernel at once.
"""

from __future__ import annotations

from numba import from_dtype, types

from fastq.engine import jit
from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.engine.runtime.instructions import call_c
from fastq.engine.runtime.shared_records import AXIS, AXIS_BYTES, BUFFER, TILE, TOGETHER


@traced
def _axis(tile, k):  # type: ignore[no-untyped-def]
    """Return the record of axis k, the first one being 0."""
    return v.record_at(tile.axes + k * AXIS_BYTES, AXIS)


@traced
def _step(axis, of_x):  # type: ignore[no-untyped-def]
    """Return the bytes from index to index of x or of y."""
    return axis.x if of_x else axis.y


@traced
def _copy_elements(tile, function, array, buffer, start, count, of_x, fills):  # type: ignore[no-untyped-def]
    """Copy elements start..start+count, in C order, of x or y to a buffer, which that fills, or from there.

    Each turn copies a matrix: the rest of a row of the last axis, or as many whole rows as there are until the last
    axis but one ends. Of shape (2, 3, 4), elements 6 to 22 are the 2 last ones of row 1, row 2, rows 3 and 4, and the
    first 2 of row 5.

    `array` is the address of the first element of x or y, `buffer` that of the first element copied, and `function`
    that of the compiled `matrix_copies.copy`.
    """
    last = _axis(tile, tile.ndim - 1)
    before = _axis(tile, tile.ndim - 2)
    size = (tile.bits_x if of_x else tile.bits_y) >> 3
    columns = last.length
    step = _step(last, of_x)
    while count > 0:
        row = start // columns
        j = start % columns
        where = array + j * step
        rows = 1
        width = min(columns - j, count)
        # the index along all axes but the last one, of which the loop below takes those of single axes
        rest = row
        if j == 0:
            rows = min(max(count // columns, 1), before.length - row % before.length)
        k = tile.ndim - 2
        while rest > 0:
            axis = _axis(tile, k)
            where += rest % axis.length * _step(axis, of_x)
            rest //= axis.length
            k -= 1
        _copy_matrix(function, fills, where, buffer, rows, width, _step(before, of_x), step, width * size, size)
        buffer += rows * width * size
        start += rows * width
        count -= rows * width
    return 0


@traced
def _copy_matrix(function, fills, array, buffer, rows, columns, row, step, buffer_row, buffer_step):  # type: ignore[no-untyped-def]
    """Copy a matrix of an array to a buffer, or from there, the longer axis in the inner loop."""
    if rows > columns:
        rows, columns, row, step, buffer_row, buffer_step = columns, rows, step, row, buffer_step, buffer_row
    _copy_as_it_is(function, fills, array, buffer, rows, columns, row, step, buffer_row, buffer_step)


@traced
def _copy_as_it_is(function, fills, array, buffer, rows, columns, row, step, buffer_row, buffer_step):  # type: ignore[no-untyped-def]
    """Copy a matrix of an array to a buffer, or from there, by a compiled `matrix_copies.copy`; strides in bytes."""
    if fills:
        call_c(function, (0, array, buffer, rows, columns, row, step, buffer_row, buffer_step))
    else:
        call_c(function, (0, buffer, array, rows, columns, buffer_row, buffer_step, row, step))


@traced
def _run(tile, x, y, others, origin, count, slot):  # type: ignore[no-untyped-def]
    """Call the kernel on `count` elements from `origin` on, with which x and y begin.

    A kernel takes its units as a range, and the first element of its operands as `origin`, in elements or, where
    `Demands.unit_bits` is set, in units.
    """
    c, d, e = others
    unit = tile.unit
    units = origin // tile.origin_unit, origin // unit, -(-(origin + count) // unit), slot
    return call_c(tile.kernel, (0, x, y, c, d, e, tile.args, *units))


def tile_runs(_, a, b, c, d, e, tile, origin, start, stop, slot):  # type: ignore[no-untyped-def]
    """Run a kernel on elements start..stop, piece by piece; a C entry point.

    `a` and `b` are the addresses of x and y, and the others those of the kernel's operands. An operand that is not
    copied is read where it is, from the unit on with which the piece begins; y is copied to its buffer, back from it,
    or both, as the kernel reads or writes it.
    """
    x_buffer = v.address_of(v.scratch(BUFFER, types.uint8))
    y_buffer = x_buffer + tile.y_buffer
    status = 0
    while start < stop:
        count = min(tile.piece - start % tile.piece, stop - start)
        unit = start // tile.unit
        x, y = a + (unit * tile.unit_bits_x >> 3), b + (unit * tile.unit_bits_y >> 3)
        if tile.fill_x:
            x = x_buffer
            _copy_elements(tile, tile.fill_x, a, x, start, count, of_x=True, fills=True)
        if tile.fill_y or tile.empty_y:
            y = y_buffer
        if tile.fill_y:
            _copy_elements(tile, tile.fill_y, b, y, start, count, of_x=False, fills=True)
        status |= _run(tile, x, y, (c, d, e), start, count, slot)
        if tile.empty_y:
            _copy_elements(tile, tile.empty_y, b, y, start, count, of_x=False, fills=False)
        start += count
    return status


@traced
def _copy_square(tile, function, array, buffer, rows, columns, of_x, fills):  # type: ignore[no-untyped-def]
    """Copy some columns of some rows of x or y to a buffer, which that fills, or from there, along lines of the array.

    A line holds rows or columns, whichever lie closer together.
    """
    last = _axis(tile, tile.ndim - 1)
    before = _axis(tile, tile.ndim - 2)
    down = _step(_axis(tile, tile.across), of_x)
    along = _step(last, of_x)
    size, pitch = (tile.bits_x >> 3, tile.pitch_x) if of_x else (tile.bits_y >> 3, tile.pitch_y)
    length = last.length if tile.span else columns
    for _ in range(columns // length):
        if abs(down) < abs(along):
            _copy_as_it_is(function, fills, array, buffer, length, rows, along, down, size, pitch)
        else:
            _copy_as_it_is(function, fills, array, buffer, rows, length, down, along, pitch, size)
        array = array + _step(before, of_x)
        buffer = buffer + length * size


@traced
def _rows_before_line(tile, a, b):  # type: ignore[no-untyped-def]
    """Return how many rows the first line of the operands begins before they do, where squares begin with lines.

    Of rows that are 4 bytes apart, the first of which lies 16 bytes after the beginning of a line, they are 4: the
    first square begins 4 rows before row 0, and has as many fewer.
    """
    if tile.line_step_x:
        return a % v.LINE // tile.line_step_x
    return b % v.LINE // tile.line_step_y if tile.line_step_y else 0


@traced
def _place_of(tile, square):  # type: ignore[no-untyped-def]
    """Return which square this is along the axis of rows and along that of columns, and its index along the others."""
    if tile.fill_x:
        return square % tile.down, square // tile.down % tile.along, square // tile.down // tile.along
    # columns first, as kernels prefetch along the rows of operands that are not copied
    return square // tile.along % tile.down, square % tile.along, square // tile.along // tile.down


def tile_squares(_, a, b, c, d, e, tile, origin, start, stop, slot):  # type: ignore[no-untyped-def]
    """Run a kernel on squares start..stop, row by row of each unless they follow each other; a C entry point.

    Names with `down` are of the axis of the rows of a square, those with `along` of the axis of its columns. `i` is the
    first row of a square, `j` its first index of the columns' axis, each with `width` columns, and `rest` its number
    among the squares of the other axes together. A square may have no rows: see `_rows_before_line`.
    """
    x_buffer = v.address_of(v.scratch(BUFFER, types.uint8))
    y_buffer = x_buffer + tile.y_buffer
    status = 0
    e += start // TOGETHER * tile.sum_bytes
    in_last = 1 if tile.span else 0  # axes of which the columns of a square take all
    down = _axis(tile, tile.across)
    last = _axis(tile, tile.ndim - 1)
    k_along = tile.ndim - 1 - in_last
    along = _axis(tile, k_along)
    step = tile.columns
    width = 1
    if tile.span:
        step = tile.span
        width = last.length
    before = _rows_before_line(tile, a, b)
    for square in range(start, stop):
        i, j, rest = _place_of(tile, square)
        i = i * tile.rows - before
        j = j * step
        columns = min(step, along.length - j) * width
        i, end = max(i, 0), min(i + tile.rows, down.length)
        rows = end - i
        if rows <= 0:
            continue
        x, y = a + j * along.x + i * down.x, b + j * along.y + i * down.y
        first = j * width
        k = tile.ndim - 1
        while rest > 0:
            k -= 1
            if k != tile.across and k != k_along:
                axis = _axis(tile, k)
                index = rest % axis.length
                rest = rest // axis.length
                x += index * axis.x
                y += index * axis.y
                first += index * axis.elements
        if tile.fill_x:
            _copy_square(tile, tile.fill_x, x, x_buffer, rows, columns, of_x=True, fills=True)
        if tile.fill_y:
            _copy_square(tile, tile.fill_y, y, y_buffer, rows, columns, of_x=False, fills=True)
        status |= _run_square(tile, (a, b), (x_buffer, y_buffer), (c, d, e), (i, first), rows, columns, slot)
        if tile.empty_y:
            _copy_square(tile, tile.empty_y, y, y_buffer, rows, columns, of_x=False, fills=False)
    return status


@traced
def _run_square(tile, arrays, buffers, others, begin, rows, columns, slot):  # type: ignore[no-untyped-def]
    """Call the kernel once if rows of the square follow each other in C order (`tile.following`), else once a row.

    `arrays` are the addresses of element 0 of x and y, which the kernel gets where they are not copied to `buffers`;
    `begin` is the first row, and the number of the square's first column in row 0 in C order.
    """
    a, b = arrays
    x_buffer, y_buffer = buffers
    i, first = begin
    status = 0
    down = _axis(tile, tile.across)
    calls, count = (1, rows * columns) if tile.following else (rows, columns)
    for r in range(calls):
        k = first + (i + r) * down.elements
        unit = k // tile.unit
        x = x_buffer + r * tile.pitch_x if tile.fill_x else a + (unit * tile.unit_bits_x >> 3)
        y = y_buffer + r * tile.pitch_y if tile.fill_y or tile.empty_y else b + (unit * tile.unit_bits_y >> 3)
        status |= _run(tile, x, y, others, k, count, slot)
    return status


def address_of_tiler(name: str) -> int:
    """Compile a tiler, which has the arguments of a kernel, or load it; return its address."""
    return jit.kernel(globals()[name], types.int64, *[types.int64] * 6, from_dtype(TILE), *[types.int64] * 4)
