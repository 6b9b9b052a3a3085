"""Plans of strided arrays: a launch on contiguous memory is cut into tiles, and a record tells a tiler how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.code import shipped_or_compiled
from fastq.engine.runtime.driver import LaunchPlan, Tiles, plan_launch
from fastq.engine.runtime.layout import AXIS, BUFFER, TILE, TOGETHER
from fastq.system.cpu import LINE

Array = NDArray[Any]
# Chunks and pieces are multiples of this many elements: elements of any width begin and end on whole bytes there, as
# kernels may assume, and no two threads write to the same byte
WHOLE_BYTES = 64
_address_of_tiler = shipped_or_compiled("fastq.engine.runtime.tiles", "address_of_tiler")
_address_of_copy = shipped_or_compiled("fastq.engine.runtime.matrix_copies", "address_of_copy")
_NO_FIELDS: Mapping[str, int] = MappingProxyType({})
_ALL = 1 << 62  # elements, which are more than any array has
_LANES = 16  # columns that are transposed in registers; fewer, of two axes, are copied 0.4 to 1.5 times as fast
_SHORT_ROW = 1024  # elements of a row of a square, below which to call the kernel takes half as long as what it does
_SIDE_BY_SIDE = (
    16  # units that a kernel computes side by side: blocks of 32 in rows of such blocks are 1.2 to 1.4 times as fast
)
_MANY_SQUARES = 16  # along an axis, from which on one more, of few rows, costs less than lines that are shared
_LINES_TOGETHER = BUFFER // 2  # bytes of a square of several lines at most


class Operand(NamedTuple):
    """The access of a launch to the elements of one of its first two operands."""

    # bytes of an element in the kernel; 0: the operand has no elements, and its address does not move
    bits: int
    # of an array that kernels cannot work on, in bytes; empty: they work on it where it is
    strides: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None  # of that array
    is_result: bool = False  # whether the kernel writes it
    copies_isnan: bool = False  # whether the kernel gets not its elements but 1 where they are NaN, else 0

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


class Axes(NamedTuple):
    """The axes of a launch, whose elements kernels see in C order."""

    sizes: list[int]  # elements along each
    x: list[int]  # strides of the first two operands in bytes, 0 of those that kernels can work on
    y: list[int]
    elements: list[int]  # strides of the kernel in elements
    # after how many rows of a square one axis ends and another goes on, and the stride of that one in elements
    period: tuple[int, int] = (_ALL, 0)


class Cut(NamedTuple):
    """The tiles of a launch: the tiler, its units, and the fields of its record."""

    tiler: str
    units: int  # units of the tiler: elements, or squares
    unit_size: int  # elements of such a unit
    multiple: int  # units of which a thread gets a multiple
    fields: dict[str, int]  # fields of `TILE`


class Demands(NamedTuple):
    """The requirements of a kernel for its operands."""

    unit: int  # elements of a unit of the kernel
    multiple: int  # elements that follow each other in C order of which it, and a thread, has to get a multiple
    packed: bool  # whether it has elements of an operand packed in bytes
    refuse_rereads: bool  # whether lines of transposed memory must be read once
    # whether it adds errors to sums of float64, whose order must not depend on where in memory an operand begins
    adds: bool


def _pieces(size: int, bits_x: int, bits_y: int, multiple: int, chunk_multiple: int) -> Cut | None:
    """Cut `size` elements into pieces that fit the buffers; None where not even `multiple` elements do."""
    piece = 8 * BUFFER // ((bits_x + bits_y) * multiple) * multiple
    fields = {"y_buffer": piece * bits_x >> 3, "piece": piece}
    return Cut("tile_runs", size, 1, math.lcm(multiple, chunk_multiple), fields) if piece else None


def _squares(axes: Axes, axis: int, step: int, bits_x: int, bits_y: int, demands: Demands) -> Cut | None:
    """Cut into squares of as many rows along an axis as a line has elements at most, each `step` bytes from the next.

    Squares have fewer rows where the buffers have no room for `multiple` elements of each line, and as many as several
    lines have elements where rows follow each other and are short: decisions D48 and D49. None where `multiple`
    elements, which follow each other in C order, would be in several squares, and where the kernel would be called for
    too few.
    """
    sizes = axes.sizes
    bits = bits_x + bits_y
    copied = sum(each > 0 for each in (bits_x, bits_y))
    most = min(LINE // step, sizes[axis])
    for rows in (most >> k for k in range(1 if demands.refuse_rereads else most.bit_length())):
        room = ((BUFFER - LINE) // rows - 2 * LINE * copied) * 8 // bits
        span, width, columns = _columns(axes, axis, room, demands)
        if columns:
            break
    following = axes.elements[axis] == columns and axes.period[0] == _ALL
    if not columns or width % demands.multiple or (columns < WHOLE_BYTES and not following):
        return None
    if following:
        rows *= max(1, min(sizes[axis] // rows, 8 * _LINES_TOGETHER // (rows * columns * bits)))
    pitches = [columns * bits >> 3 for bits in (bits_x, bits_y)]
    if not following:
        pitches = [_padded(pitch) for pitch in pitches]
    down = -(-sizes[axis] // rows)
    along = -(-width // columns)
    lines = (0, 0) if demands.adds else _line_steps(axes, axis, rows)
    down += any(lines)
    units = math.prod(sizes) // sizes[axis] // width * down * along
    fields = {"across": axis, "rows": rows, "columns": columns, "down": down, "along": along, "span": span}
    fields |= {"following": following, "y_buffer": -(-rows * pitches[0] // LINE) * LINE if bits_x else 0}
    fields |= {"pitch_x": pitches[0], "pitch_y": pitches[1], "line_step_x": lines[0], "line_step_y": lines[1]}
    return Cut("tile_squares", units, rows * columns, 1, fields)


def _line_steps(axes: Axes, axis: int, rows: int) -> tuple[int, int]:
    """Return the bytes from row to row of x, or of y, if squares of `rows` rows are to begin with its lines, else 0.

    Memory of NumPy begins 16 bytes after a line, so that squares from the first row on would share their lines with the
    next ones; and where columns are a multiple of 4 KiB apart, as of (1024, 1024) float32, few of these stay in a cache
    until then: decision D50.
    """
    if axes.sizes[axis] < _MANY_SQUARES * rows or axes.period[0] != _ALL:
        return 0, 0
    step_x, step_y = (
        steps[axis] if steps[axis] > 0 and _fills_lines(steps, axis, rows) else 0 for steps in (axes.x, axes.y)
    )
    return step_x, 0 if step_x else step_y


def _fills_lines(steps: list[int], axis: int, rows: int) -> bool:
    """Whether rows along an axis fill lines, and squares of `rows`, and columns, are whole lines apart."""
    apart = [step * rows if k == axis else step for k, step in enumerate(steps)]
    return LINE % steps[axis] == 0 and not any(step % LINE for step in apart)


def _columns(axes: Axes, axis: int, room: int, demands: Demands) -> tuple[int, int, int]:
    """Choose the row of a square, which has room for `room` elements.

    Return the indices of the last axis but one that a row covers, 0 if it is part of the last axis; the elements that
    rows are cut from; and those of a row, 0 where `demands.multiple` does not fit.
    """
    multiple = demands.multiple
    sizes = axes.sizes
    last = axes.sizes[-1]
    if last < _SHORT_ROW and axis < len(sizes) - 2 and axes.elements[-2] == last:
        span = _even_part(sizes[-2], room // last, math.lcm(multiple, last) // last)
        if span:
            return span, sizes[-2] * last, span * last
    lines = math.lcm(WHOLE_BYTES, multiple)
    several = math.lcm(lines, _SIDE_BY_SIDE * demands.unit), lines, lines if demands.packed else multiple
    return 0, last, next(filter(None, (_even_part(last, room, each) for each in several)), 0)


def _padded(nbytes: int) -> int:
    """Return bytes from row to row of a buffer, 0 of none: a line more, as caches hold few lines some KiB apart."""
    return -(-nbytes // LINE) * LINE + LINE if nbytes else 0


def _even_part(size: int, most: int, multiple: int) -> int:
    """Return the size of a part when `size` is cut into the fewest about equal parts of at most `most`.

    What is not cut has any size. Else parts are a multiple of `multiple`, except the last one, which may be smaller; 0
    where `multiple` exceeds `most`.
    """
    if size <= most:
        return size
    parts = -(-size // max(most - most % multiple, 1))
    return -(-size // (parts * multiple)) * multiple if most >= multiple else 0


def in_tiles(
    plan: LaunchPlan,  # for contiguous arrays
    shape: tuple[int, ...],  # of the elements, which kernels see in C order
    x: Operand,  # the first two operands
    y: Operand,
    *,
    unit: int = 1,  # elements of a unit of the kernel
    whole: int = 1,  # elements that the kernel has to get together
    chunk_multiple: int = 1,  # elements that a thread has to get together
    sum_bytes: int = 0,  # bytes of the sums that the kernel adds the elements of a chunk to; 0: it adds none
    # bits of a unit in each operand, whole bytes, where they have not as many elements, and the kernel counts its
    # origin in units; then only one of the operands is strided, whose elements all others are
    unit_bits: tuple[int, int] | None = None,
    # whether a buffer is also too small where lines of transposed memory would be read again for each of a few rows:
    # decision D53
    refuse_rereads: bool = False,
    # fields of the numeric arguments of the kernel that are other ones in a tile, and in squares of one that adds
    args: Mapping[str, int] = _NO_FIELDS,
    args_in_squares: Mapping[str, int] = _NO_FIELDS,
) -> LaunchPlan | None:
    """Return a plan of one launch for strided arrays; None where a buffer is too small."""
    axes = _joined(shape, x.strides, y.strides)
    bits_x, bits_y = (each.bits if each.dtype else 0 for each in (x, y))
    packed = any(each.bits % 8 for each in (x, y))
    multiple = math.lcm(whole, chunk_multiple)
    demands = Demands(unit, multiple, packed, refuse_rereads, adds=sum_bytes > 0)
    together = whole if unit_bits else math.lcm(WHOLE_BYTES, whole)
    axes, cut = _cut(axes, math.prod(shape), bits_x, bits_y, demands, together, chunk_multiple)
    if cut is None:
        return None
    units = {"unit": unit, "origin_unit": unit if unit_bits else 1, "sum_bytes": sum_bytes}
    units["unit_bits_x"], units["unit_bits_y"] = unit_bits or (x.bits * unit, y.bits * unit)
    in_squares = sum_bytes > 0 and cut.tiler == "tile_squares"
    inner = plan.with_args(**(args_in_squares if in_squares else args))
    return _replanned(inner, cut, _tiles(axes, cut, x, y, units), TOGETHER if in_squares else 0)


def _cut(
    axes: Axes, size: int, bits_x: int, bits_y: int, demands: Demands, together: int, chunk_multiple: int
) -> tuple[Axes, Cut | None]:
    """Choose between squares, where an array is transposed and they fit, and pieces of multiples of `together`.

    Return the axes that the cut is of, too: squares may have two of them as one. None where buffers are too small for
    either, or for squares alone if rereads are refused.
    """
    transposed = _transposed_axis(axes)
    if transposed:
        folded, axis = _folded(axes, *transposed)
        squares = _squares(folded, axis, transposed[1], bits_x, bits_y, demands)
        if squares or demands.refuse_rereads:
            return folded, squares
    return axes, _pieces(size, bits_x, bits_y, together, chunk_multiple)


def _tiles(axes: Axes, cut: Cut, x: Operand, y: Operand, units: dict[str, int]) -> Tiles:
    """Return what a tiler gets, but the kernel and its arguments."""
    tile = np.zeros(1, TILE)
    records = np.array([*zip(axes.sizes, axes.x, axes.y, axes.elements, strict=True)], AXIS)
    fill_y, empty_y = (0, y.copy) if y.is_result else (y.copy, 0)
    operands = {"fill_x": x.copy, "fill_y": fill_y, "empty_y": empty_y, "bits_x": x.bits, "bits_y": y.bits}
    periods = dict(zip(("period", "period_stride"), axes.period, strict=True))
    fields = operands | units | cut.fields | periods | {"ndim": records.size, "axes": records.ctypes.data}
    for name, number in fields.items():
        tile[name] = number
    return Tiles(tile, records)


def _replanned(plan: LaunchPlan, cut: Cut, tiles: Tiles, chunk: int) -> LaunchPlan:
    """Return the plan of a launch of contiguous memory for a tiler, which calls the kernel.

    A chunk has `chunk` units; 0: as suits the number of threads, or as in the plan where it adds to sums.
    """
    (launch,), (args,) = plan.launches, plan.args
    tiles.tile["kernel"] = launch["kernel"]
    return plan_launch(
        _address_of_tiler(cut.tiler),
        tuple(launch["operands"].tolist()),
        args,
        cut.units,
        int(launch["threads"]),
        size=cut.unit_size,
        chunk_multiple=cut.multiple,
        chunk=chunk or (int(launch["chunk"]) if tiles.tile["sum_bytes"][0] else 0),
        backward=bool(launch["backward"]),
        wake_workers=bool(launch["wake_workers"]),
        status_mask=int(launch["status_mask"]),
        tiles=tiles.around(args),
    )


def _joined(shape: tuple[int, ...], *strides: tuple[int, ...]) -> Axes:
    """Join neighbouring axes that all arrays go through in one step; there are two axes at least."""
    sizes = [1]
    steps = [[0, 0]]
    for axis, size in enumerate(shape):
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


def _transposed_axis(axes: Axes) -> tuple[int, int] | None:
    """Find the axis other than the last along which an array is nearly contiguous; return it and its step in bytes.

    None where neither array has one, or what follows that axis is too short for rows of their own.
    """
    sizes = axes.sizes
    for each in (axes.x, axes.y):
        steps = [abs(step) for step in each]
        if any(steps):
            axis = min((k for k, step in enumerate(steps) if step), key=lambda k: steps[k])
            step = steps[axis]
            last = sizes[-1]
            alone = axis == len(sizes) - 2 or sizes[axis] * step < LINE or last < min(_LANES, LINE // step)
            follow = last if alone else sizes[-2] * last
            if axis != len(sizes) - 1 and step * 4 <= LINE and step < steps[-1] and follow >= WHOLE_BYTES:
                return axis, step
    return None


def _folded(axes: Axes, axis: int, step: int) -> tuple[Axes, int]:
    """Join an axis that fills no line with the one that goes on where it ends, in all arrays; return its index, too.

    Squares then have rows of two axes: decision D51.
    """
    size = axes.sizes[axis]
    go_on = range(len(axes.sizes) - 1)
    other = next((k for k in go_on if all(each[k] == size * each[axis] for each in (axes.x, axes.y))), None)
    if other is None or size * step >= LINE:
        return axes, axis
    sizes = [each * axes.sizes[other] if k == axis else each for k, each in enumerate(axes.sizes)]
    kept = [k for k in range(len(sizes)) if k != other]
    sizes, x, y, elements = ([each[k] for k in kept] for each in (sizes, axes.x, axes.y, axes.elements))
    return Axes(sizes, x, y, elements, (size, axes.elements[other])), axis - (other < axis)
