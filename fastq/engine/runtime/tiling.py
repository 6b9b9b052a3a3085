"""Plans of strided arrays: a launch on contiguous memory is cut into tiles, and a record tells a tiler how."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.code.shipped import Compile, shipped_or_compiled
from fastq.engine.runtime.driver import LaunchPlan, Tiles, plan_launch
from fastq.engine.runtime.shared_records import AXIS, BUFFER, TILE, TOGETHER
from fastq.system.cpu import LINE

Array = NDArray[Any]
# Chunks and pieces are multiples of this many elements: elements of any width begin and end on whole bytes there, as
# kernels may assume, and no two threads write to the same byte
WHOLE_BYTES = 64
_LANES = 16  # columns that are transposed in registers; fewer, of two axes, are copied 0.4 to 1.5 times as fast
_SHORT_ROW = 1024  # elements of a row of a square, below which to call the kernel takes half as long as what it does
# units that a kernel computes side by side: blocks of 32 in rows of such blocks are 1.2 to 1.4 times as fast
_SIDE_BY_SIDE = 16
_MANY_SQUARES = 16  # along an axis, from which on one more, of few rows, costs less than lines that are shared
_LINES_TOGETHER = BUFFER // 2  # bytes of a square of several lines at most


def _import_address_of_tiler() -> Compile:
    """Import what compiles tilers, only where there is no machine code of one."""
    from fastq.engine.runtime.tiles import address_of_tiler

    return address_of_tiler


def _import_address_of_copy() -> Compile:
    """Import what compiles copies, only where there is no machine code of one."""
    from fastq.engine.runtime.matrix_copies import address_of_copy

    return address_of_copy


_address_of_tiler = shipped_or_compiled(_import_address_of_tiler)
_address_of_copy = shipped_or_compiled(_import_address_of_copy)


class Operand(NamedTuple):
    """The access of a launch to the elements of one of its first two operands."""

    # of an element in the kernel; 0: the operand has no elements, and its address does not move
    bits: int
    # of an array that kernels cannot work on, in bytes; empty: they work on it where it is
    strides: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None  # of that array
    is_result: bool = False  # whether the kernel writes it
    copies_isnan: bool = False  # whether the kernel gets not its elements but 1 where they are NaN, else 0

    @property
    def copied_bits(self) -> int:
        """Bits of an element in a buffer; 0: the operand is not copied."""
        return self.bits if self.dtype else 0

    @property
    def copy(self) -> int:
        """Address of the function that copies it, 0 where it is not copied."""
        if self.dtype is None:
            return 0
        size = self.dtype.itemsize
        infinity = 0
        if self.copies_isnan:
            infinity = int(np.array(np.inf, self.dtype.newbyteorder("=")).view(f"u{size}"))
        return _address_of_copy(size, not self.dtype.isnative, infinity)


class Elements(NamedTuple):
    """The elements of a launch, which kernels see in C order, in its first two operands."""

    shape: tuple[int, ...]
    x: Operand
    y: Operand = Operand(0)

    @property
    def copied_bits(self) -> tuple[int, int]:
        """Bits of an element of each operand in its buffer."""
        return self.x.copied_bits, self.y.copied_bits


class Demands(NamedTuple):
    """The requirements of a kernel for its tiles."""

    unit: int = 1  # elements of a unit of the kernel
    whole: int = 1  # elements, which follow each other in C order, that the kernel has to get together
    chunk_multiple: int = 1  # elements, likewise, that a thread has to get together
    # bits of a unit in each operand, whole bytes, where they have not as many elements, and the kernel counts its
    # origin in units; then only one of the operands is strided, whose elements all others are
    unit_bits: tuple[int, int] | None = None
    # bytes of the sums of float64 that the kernel adds the elements of a chunk to, whose order must not depend on where
    # in memory an operand begins; 0: it adds none
    sum_bytes: int = 0
    # whether a buffer is also too small where lines of transposed memory would be read again for each of a few rows:
    # decision D53
    refuse_rereads: bool = False

    @property
    def multiple(self) -> int:
        """Elements of which the kernel, and a thread, has to get a multiple."""
        return math.lcm(self.whole, self.chunk_multiple)

    @property
    def piece_multiple(self) -> int:
        """Elements of which a piece has a multiple."""
        return self.whole if self.unit_bits else math.lcm(WHOLE_BYTES, self.whole)


NO_DEMANDS = Demands()


class Cut(NamedTuple):
    """The tiles of a launch: the tiler, its units, and its record without the kernel."""

    tiler: str
    units: int  # units of the tiler: elements, or squares
    unit_size: int  # elements of such a unit
    chunk_multiple: int  # units of which a thread gets a multiple
    tiles: Tiles
    sums_squares: bool  # whether the kernel adds the elements of squares to sums, some squares to the same ones

    def plan(self, launch: LaunchPlan) -> LaunchPlan:
        """Return the plan of a launch of contiguous memory for the tiler, which calls the kernel."""
        (record,), (args,) = launch.launches, launch.args
        tiles = self.tiles.around(args)
        tiles.tile["kernel"] = record["kernel"]
        chunk = int(record["chunk"]) if tiles.tile["sum_bytes"][0] else 0  # 0: as suits the number of threads
        return plan_launch(
            _address_of_tiler(self.tiler),
            tuple(record["operands"].tolist()),
            args,
            self.units,
            int(record["threads"]),
            size=self.unit_size,
            chunk_multiple=self.chunk_multiple,
            chunk=TOGETHER if self.sums_squares else chunk,
            backward=bool(record["backward"]),
            wake_workers=bool(record["wake_workers"]),
            status_mask=int(record["status_mask"]),
            tiles=tiles,
        )


def in_tiles(elements: Elements, demands: Demands) -> Cut | None:
    """Choose the tiles of strided arrays: squares where one is transposed, else pieces; None if those don't fit."""
    axes = _join_axes(elements)
    transposed = _transposed_axis(axes)
    if transposed:
        squares = _squares(axes, transposed, elements, demands)
        if squares or demands.refuse_rereads:
            return squares  # with `refuse_rereads` None, too, as pieces would read lines again
    return _pieces(axes, elements, demands)


# --- axes -------------------------------------------------------------------------------------------------------------


class Axes(NamedTuple):
    """The axes of a launch, whose elements kernels see in C order."""

    sizes: list[int]  # elements along each
    x: list[int]  # strides of the first two operands in bytes, 0 of those that kernels can work on
    y: list[int]
    elements: list[int]  # strides of the kernel in elements


class TransposedAxis(NamedTuple):
    """An axis other than the last one along which an array is nearly contiguous."""

    axis: int
    step: int  # bytes from element to element


def _join_axes(elements: Elements) -> Axes:
    """Join neighbouring axes that all arrays go through in one step; there are two axes at least.

    An array of shape (2, 3, 4) with strides of 480, 160 and 8 bytes has steps of 160 along the first two axes, and so
    the sizes 6 and 4.
    """
    strides = elements.x.strides, elements.y.strides
    sizes = [1]
    steps = [[0, 0]]
    for axis, size in enumerate(elements.shape):
        step = [each[axis] if each else 0 for each in strides]
        if size > 1:
            if sizes[-1] > 1 and all(old == size * new for old, new in zip(steps[-1], step, strict=True)):
                sizes[-1] = sizes[-1] * size
                steps[-1] = step
            else:
                sizes.append(size)
                steps.append(step)
    if len(sizes) > 2:
        sizes = sizes[1:]
        steps = steps[1:]
    if len(sizes) == 1:
        sizes = [1, *sizes]
        steps = [[0, 0], *steps]
    x, y = zip(*steps, strict=True)
    return Axes(sizes, list(x), list(y), [math.prod(sizes[k + 1 :]) for k in range(len(sizes))])


def _transposed_axis(axes: Axes) -> TransposedAxis | None:
    """Find the axis of transposed memory; None where neither array has one, or what follows is too short for rows.

    Memory is transposed if its elements lie closest along another axis than the last one, which kernels go along.
    """
    sizes = axes.sizes
    last_axis = len(sizes) - 1
    for strides in (axes.x, axes.y):
        steps = [abs(stride) for stride in strides]
        if any(steps):
            axis = min((k for k, step in enumerate(steps) if step), key=lambda k: steps[k])
            step = steps[axis]
            last = sizes[-1]
            # columns are of the last two axes, but of the last one alone if rows are the other, or end within a line,
            # or if it is too short to be transposed in registers (see `_LANES`)
            is_short = last < min(_LANES, LINE // step)
            of_last_alone = axis == last_axis - 1 or sizes[axis] * step < LINE or is_short
            columns = last if of_last_alone else sizes[-2] * last
            is_transposed = axis != last_axis and step < steps[-1]
            if is_transposed and step * 4 <= LINE and columns >= WHOLE_BYTES:
                return TransposedAxis(axis, step)
    return None


# --- pieces and squares -----------------------------------------------------------------------------------------------


def _pieces(axes: Axes, elements: Elements, demands: Demands) -> Cut | None:
    """Cut into pieces that fit the buffers; None where not even the elements do that have to be together.

    Of two float32 operands with buffers of 64 KiB together, a piece has 8192 elements.
    """
    bits_x, bits_y = elements.copied_bits
    multiple = demands.piece_multiple
    piece = 8 * BUFFER // ((bits_x + bits_y) * multiple) * multiple
    if not piece:
        return None
    size = math.prod(elements.shape)
    chunk_multiple = math.lcm(multiple, demands.chunk_multiple)
    tiles = _tiles(axes, elements, demands, y_buffer=piece * bits_x >> 3, piece=piece)
    return Cut("tile_runs", size, 1, chunk_multiple, tiles, sums_squares=False)


def _squares(axes: Axes, transposed: TransposedAxis, elements: Elements, demands: Demands) -> Cut | None:
    """Cut into squares of as many rows along the transposed axis as a line has elements at most.

    Squares have fewer rows where the buffers have no room for the elements of each line that have to be together, and
    as many as several lines have elements where rows follow each other and are short: decisions D48 and D49. None where
    elements that have to be together would be in several squares, and where the kernel would be called for too few.
    """
    sizes = axes.sizes
    across = transposed.axis
    bits_x, bits_y = elements.copied_bits
    bits = bits_x + bits_y
    copied = sum(each > 0 for each in (bits_x, bits_y))
    most = min(LINE // transposed.step, sizes[across])
    # as many rows as a line has elements, or half as many again and again, of 16 also 8, 4, 2 and 1, until columns fit
    for rows in (most >> k for k in range(1 if demands.refuse_rereads else most.bit_length())):
        room = ((BUFFER - LINE) // rows - 2 * LINE * copied) * 8 // bits
        columns = _columns(axes, across, room, elements, demands)
        if columns.size:
            break
    following = axes.elements[across] == columns.size
    if not columns.size or columns.row_size % demands.multiple or (columns.size < WHOLE_BYTES and not following):
        return None
    if following:
        rows *= max(1, min(sizes[across] // rows, 8 * _LINES_TOGETHER // (rows * columns.size * bits)))
    pitch_x, pitch_y = (columns.size * each >> 3 for each in (bits_x, bits_y))
    if not following:
        pitch_x = _pitch_of(pitch_x)
        pitch_y = _pitch_of(pitch_y)
    line_step_x, line_step_y = (0, 0) if demands.sum_bytes else _line_steps(axes, across, rows)
    begins_with_line = line_step_x > 0 or line_step_y > 0
    down = -(-sizes[across] // rows) + begins_with_line  # one more, as the first rows may be part of a square
    along = -(-columns.row_size // columns.size)
    tiles = _tiles(
        axes,
        elements,
        demands,
        across=across,
        rows=rows,
        columns=columns.size,
        down=down,
        along=along,
        span=columns.span,
        following=following,
        y_buffer=-(-rows * pitch_x // LINE) * LINE if bits_x else 0,
        pitch_x=pitch_x,
        pitch_y=pitch_y,
        line_step_x=line_step_x,
        line_step_y=line_step_y,
    )
    units = math.prod(sizes) // sizes[across] // columns.row_size * down * along
    return Cut("tile_squares", units, rows * columns.size, 1, tiles, sums_squares=demands.sum_bytes > 0)


def _line_steps(axes: Axes, axis: int, rows: int) -> tuple[int, int]:
    """Return (step of x, 0) or (0, step of y): the bytes from row to row of the array whose lines squares begin with.

    The tiler then makes the first square shorter, so that all others begin on a line of the cache. It is x if both
    could be. With (0, 0) squares begin at the first row: there are few of them, or they do not fill whole lines.

    Memory of NumPy begins 16 bytes after a line, so each square of `rows` rows would share lines with the next one. A
    cache does not keep these until the next square is visited if columns are a multiple of 4 KiB apart, as those of
    (1024, 1024) float32 are: decision D50.
    """
    if axes.sizes[axis] < _MANY_SQUARES * rows:
        return 0, 0
    step_x, step_y = (
        steps[axis] if steps[axis] > 0 and _fills_lines(steps, axis, rows) else 0 for steps in (axes.x, axes.y)
    )
    return step_x, 0 if step_x else step_y


def _fills_lines(steps: list[int], axis: int, rows: int) -> bool:
    """Return whether squares can begin with lines: no line has elements of two squares, or of two columns.

    `steps` are strides in bytes, and `axis` is that of the rows: a line has a whole number of elements along it, and
    squares of `rows` rows, and indices of all other axes, are whole lines apart.
    """
    apart = [step * rows if k == axis else step for k, step in enumerate(steps)]
    return LINE % steps[axis] == 0 and not any(step % LINE for step in apart)


class _Columns(NamedTuple):
    """The columns of a square."""

    span: int  # indices of the last axis but one that they are of; 0: they are part of the last axis
    row_size: int  # elements that they are cut from
    size: int  # how many they are; 0: the elements that have to be together do not fit


def _columns(axes: Axes, axis: int, room: int, elements: Elements, demands: Demands) -> _Columns:
    """Choose the columns of a square with rows along an axis, which has room for `room` of them."""
    multiple = demands.multiple
    packed = any(operand.bits % 8 for operand in (elements.x, elements.y))
    sizes = axes.sizes
    last = axes.sizes[-1]
    if last < _SHORT_ROW and axis < len(sizes) - 2 and axes.elements[-2] == last:
        span = _even_part(sizes[-2], room // last, math.lcm(multiple, last) // last)
        if span:
            return _Columns(span, sizes[-2] * last, span * last)
    lines = math.lcm(WHOLE_BYTES, multiple)
    # of what columns are a multiple, the best first: units side by side, whole lines, or what has to be together
    multiples = math.lcm(lines, _SIDE_BY_SIDE * demands.unit), lines, lines if packed else multiple
    return _Columns(0, last, next(filter(None, (_even_part(last, room, number) for number in multiples)), 0))


def _pitch_of(nbytes: int) -> int:
    """Return bytes from row to row of a buffer, 0 of none: a line more, as caches hold few lines some KiB apart."""
    return -(-nbytes // LINE) * LINE + LINE if nbytes else 0


def _even_part(size: int, most: int, multiple: int) -> int:
    """Return the size of a part when `size` is cut into the fewest about equal parts of at most `most`.

    What is not cut has any size. Else parts are a multiple of `multiple`, except the last one, which may be smaller; 0
    where `multiple` exceeds `most`. Of 100, at most 64 and multiples of 16, the size is 64, and the second part has 36;
    of multiples of 10 it is 50.
    """
    if size <= most:
        return size
    parts = -(-size // max(most - most % multiple, 1))
    return -(-size // (parts * multiple)) * multiple if most >= multiple else 0


def _tiles(axes: Axes, elements: Elements, demands: Demands, **fields: int) -> Tiles:
    """Return what a tiler gets, but the kernel and its arguments; `fields` are those of the tiler's own kind."""
    x, y = elements.x, elements.y
    unit_bits_x, unit_bits_y = demands.unit_bits or (x.bits * demands.unit, y.bits * demands.unit)
    records = np.array([*zip(axes.sizes, axes.x, axes.y, axes.elements, strict=True)], AXIS)
    fields |= {
        "fill_x": x.copy,
        "fill_y": 0 if y.is_result else y.copy,
        "empty_y": y.copy if y.is_result else 0,
        "bits_x": x.bits,
        "bits_y": y.bits,
        "unit": demands.unit,
        "origin_unit": demands.unit if demands.unit_bits else 1,
        "unit_bits_x": unit_bits_x,
        "unit_bits_y": unit_bits_y,
        "sum_bytes": demands.sum_bytes,
        "ndim": records.size,
        "axes": records.ctypes.data,
    }
    tile = np.zeros(1, TILE)
    for name, number in fields.items():
        tile[name] = number
    return Tiles(tile, records)
