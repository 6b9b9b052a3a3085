"""Copies of strided matrices between memory and the buffers of tiles: transposed in registers, gaps left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import types

from fastq.engine import jit
from fastq.engine import simd as v
from fastq.engine.jit import Constants, traced

# bytes of as many lines as there are lanes at most
_LINE = v.Vec(types.uint8, v.LINE)
_LINES = 16 * v.LINE


@dataclass(eq=False, repr=False)
class Copy(Constants):
    """Type of the first argument of `copy`, which chooses the code."""

    size: int  # bytes of an element
    swapped: bool = False  # whether their order is reversed
    infinity: int = 0  # bits of infinity if the copy is of whether elements are NaN; 0: of elements themselves

    def __post_init__(self) -> None:
        """Set what follows from the fields; the name has the fields alone."""
        self.element = types.Integer.from_bitwidth(8 * self.size, False)
        self.is_plain = not (self.swapped or self.marks_nan)
        self.result_size = 1 if self.marks_nan else self.size
        super().__post_init__()

    @property
    def marks_nan(self) -> bool:
        """Whether the copy of an element is a byte, 1 where it is NaN, else 0; no float has 0 as its infinity."""
        return self.infinity != 0


@v.instruction(lambda value: value(value))
def _reversed_bytes(context: Any, builder: Any, sig: Any, value: Any) -> Any:
    """Reverse the bytes of an element, whose dtype is not in the byte order of this CPU."""
    return builder.bswap(value)


@traced
def _copy_element(kind, src, k, dst, j):  # type: ignore[no-untyped-def]
    """Copy element k from address `src` to element j at address `dst`; or whether it is NaN, as 1 or 0.

    NaN has a magnitude, the bits without the sign, above that of infinity.
    """
    value = v.load(v.pointer(src, kind.element), k, kind.element)
    if kind.swapped:
        value = _reversed_bytes(value)
    if not kind.marks_nan:
        v.store(v.pointer(dst, kind.element), j, value)
    else:
        magnitude = value & v.constant((1 << kind.element.bitwidth - 1) - 1, value)
        v.store(v.pointer(dst, types.uint8), j, v.convert(magnitude > v.constant(kind.infinity, value), types.uint8))


@traced
def _lanes(kind):  # type: ignore[no-untyped-def]
    """Return the Vec type of as many elements as rows are transposed in registers at once."""
    return v.square_lanes(kind.element)


@traced
def _at(kind, where):  # type: ignore[no-untyped-def]
    """Return a pointer to elements from an address."""
    return v.pointer(where, kind.element)


@traced
def _transpose(kind, src, dst, src_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose a square of `_lanes` each way, from rows `src_row` bytes apart to rows `dst_step` bytes apart."""
    if not kind.is_plain:
        _transpose_elements(kind, src, dst, src_row, dst_step)
        return
    rows = v.transpose(v.load_square(_at(kind, src), src_row, _lanes(kind)))
    for r in v.unrolled(len(rows)):  # the next lines, with which the next square begins
        v.prefetch(v.pointer(src, types.uint8), r * src_row + v.LINE)
    v.store_rows(_at(kind, dst), dst_step, rows)


@traced
def _transpose_elements(kind, src, dst, src_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose a square of `_lanes` each way, element by element, as those have to be converted."""
    for r in range(v.count(_lanes(kind))):
        for c in range(v.count(_lanes(kind))):
            _copy_element(kind, src + r * src_row, c, dst + c * dst_step, r)


@traced
def _transpose_lines(kind, src, dst, rows, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose as many columns as there are lanes, and at least as many rows, line by line: decision D46.

    Squares go to a buffer of a cache line for each column, until its lines are whole; each is then written at once.
    Rows that do not fill a line go by squares, the last of which begins earlier, so that it ends with the last row.
    """
    n = v.count(_lanes(kind))
    line = v.LINE // kind.result_size  # elements in a line
    r = 0
    lines = v.address_of(v.scratch(_LINES, types.uint8))
    while r <= rows - line and line > n:
        for k in range(0, line, n):
            _transpose(kind, src + (r + k) * src_row, lines + k * dst_row, src_row, v.LINE)
        for c in range(n):
            whole = v.load(v.pointer(lines + c * v.LINE, types.uint8), 0, _LINE)
            v.store(v.pointer(dst + r * dst_row + c * dst_step, types.uint8), 0, whole)
        r += line
    while r < rows:
        r = min(r, rows - n)
        _transpose(kind, src + r * src_row, dst + r * dst_row, src_row, dst_step)
        r += n


# --- few columns or rows, such as the channels of pixels --------------------------------------------------------------


def _if_plain(function: Any) -> Any:
    """Make a function that copies in registers, and returns how many, copy none of elements to be converted."""

    @traced
    def copy_if_plain(kind, *arguments):  # type: ignore[no-untyped-def]
        return function(kind, *arguments) if kind.is_plain else 0

    return copy_if_plain


def _make_choice_of_two_to_four(make: Callable[[int], Any]) -> Any:
    """Make a function of a number n and more arguments, which calls what `make(n)` made with them.

    n may be 2, 3 or 4; for any other number nothing is called, and 0 returned: nothing was copied.
    """
    of_two, of_three, of_four = map(make, (2, 3, 4))

    @traced
    def copy_by_number(n, *arguments):  # type: ignore[no-untyped-def]
        if n == 2:
            return of_two(*arguments)
        if n == 3:
            return of_three(*arguments)
        return of_four(*arguments) if n == 4 else 0

    return copy_by_number


def _make_transpose_dense(length: int) -> Any:
    """Make a function that transposes rows of `length` elements, one after the other: of the channels of a pixel."""

    @traced
    def columns_at(kind, src):  # type: ignore[no-untyped-def]
        """Load one row for each lane; return the columns."""
        return v.load_columns(_at(kind, src), _lanes(kind), length)

    @traced
    def transpose_rows(kind, src, dst, rows, dst_row, dst_step):  # type: ignore[no-untyped-def]
        """Transpose as many rows as lanes at a time; return how many rows, from the first on."""
        n = v.count(_lanes(kind))
        r = 0
        while r <= rows - n:
            v.store_rows(_at(kind, dst + r * dst_row), dst_step, columns_at(kind, src + r * length * kind.size))
            r += n
        return r

    return transpose_rows


_transpose_channels = _make_choice_of_two_to_four(_make_transpose_dense)


@_if_plain
@traced
def _transpose_narrow(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose rows of fewer columns than there are lanes; return how many rows, from the first on.

    Vecs are loaded that reach into the rows behind, so not the last ones.
    """
    n = v.count(_lanes(kind))
    r = 0
    if src_row == columns * kind.size and 2 <= columns <= 4:
        return _transpose_channels(columns, kind, src, dst, rows, dst_row, dst_step)
    square = v.address_of(v.scratch(_LINES, types.uint8))
    # the Vec of the last of n rows has to end within the last row of the matrix
    while r <= rows - n and (r + n - 1) * src_row + n * kind.size <= (rows - 1) * src_row + columns * kind.size:
        _transpose(kind, src + r * src_row, square, src_row, v.LINE)
        for c in range(columns):
            row = v.load(_at(kind, square + c * v.LINE), 0, _lanes(kind))
            v.store(_at(kind, dst + r * dst_row + c * dst_step), 0, row)
        r += n
    return r


@traced
def _granule(kind):  # type: ignore[no-untyped-def]
    """Vec type of the elements of a granule."""
    return v.Vec(kind.element, 8 * v.GRANULE // kind.element.bitwidth)


@_if_plain
@traced
def _transpose_granules(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Transpose fewer rows than there are lanes, by squares of a granule; return how many rows, from the first on."""
    n = v.count(_granule(kind))
    r = 0
    while r <= rows - n and n <= columns:
        for k in range(0, columns, n):
            c = min(k, columns - n)
            square = v.load_square(_at(kind, src + r * src_row + c * kind.size), src_row, _granule(kind))
            v.store_rows(_at(kind, dst + r * dst_row + c * dst_step), dst_step, v.transpose(square))
        r += n
    return r


# --- a matrix ---------------------------------------------------------------------------------------------------------


@traced
def _copy_rest(kind, src, dst, rows, columns, src_row, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy contiguous rows to columns, the longer axis in the inner loop."""
    if columns < v.count(_lanes(kind)):
        _copy(kind, src, dst, columns, rows, kind.size, src_row, dst_step, dst_row)
    else:
        _copy(kind, src, dst, rows, columns, src_row, kind.size, dst_row, dst_step)


@traced
def _copy_transposed(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy a matrix whose rows are contiguous to one whose columns are, by squares of lanes.

    The last square of a row or column may overlap the one before.
    """
    n = v.count(_lanes(kind))
    if columns < n or rows < n:
        if columns < n:
            done = _transpose_narrow(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
        else:
            done = _transpose_granules(kind, src, dst, rows, columns, src_row, dst_row, dst_step)
        _copy_rest(kind, src + done * src_row, dst + done * dst_row, rows - done, columns, src_row, dst_row, dst_step)
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


def _make_pick_every(step: int) -> Any:
    """Make a function that copies the first of every `step` elements, through registers of all of them.

    The function returns how many it copied, which are not all: decision D47.
    """

    @traced
    def first_of(kind, src):  # type: ignore[no-untyped-def]
        """Load `step` Vecs that follow each other; return the first of every `step` elements."""
        return v.load_columns(_at(kind, src), _lanes(kind), step)[0]

    @traced
    def pick_every(kind, src, dst, columns):  # type: ignore[no-untyped-def]
        """Copy the first of every `step` elements; return how many, from the first on."""
        n = v.count(_lanes(kind))
        c = 0
        while c + n < columns:  # what lies behind the last element may not be memory
            v.store(_at(kind, dst), c, first_of(kind, src + c * step * kind.size))
            c += n
        return c

    return pick_every


_pick_apart = _make_choice_of_two_to_four(_make_pick_every)


@_if_plain
@traced
def _pick(kind, src, dst, columns, src_step):  # type: ignore[no-untyped-def]
    """Copy elements that lie 2 to 4 elements apart, in registers; return how many: 0 of others."""
    return _pick_apart(src_step // kind.size, kind, src, dst, columns) if src_step % kind.size == 0 else 0


@traced
def _copy_with_gaps(kind, src, dst, columns, src_step):  # type: ignore[no-untyped-def]
    """Copy elements that lie `src_step` bytes apart to neighbours."""
    for c in range(_pick(kind, src, dst, columns, src_step), columns):
        _copy_element(kind, src + c * src_step, 0, dst, c)


@traced
def _copy(kind, src, dst, rows, columns, src_row, src_step, dst_row, dst_step):  # type: ignore[no-untyped-def]
    """Copy a matrix row by row, with a loop that LLVM vectorizes where elements are neighbours in the result."""
    if dst_step < 0:  # from the other end, so that loops that store to neighbours are vectorized
        src = src + (columns - 1) * src_step
        dst = dst + (columns - 1) * dst_step
        src_step = -src_step
        dst_step = -dst_step
    for r in range(rows):
        s = src + r * src_row
        d = dst + r * dst_row
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
    """Compile `copy` for the elements that `Copy` describes, or load it; return its address."""
    return jit.kernel(copy, types.int64, Copy(size, swapped, infinity), *[types.int64] * 8)
