"""Choose the loop for a view, over runs or rows of columns, and whether it stores past the cache."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fastq.dispatch.strides import Layout
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.kernels.args import STAGED, STRAIGHT, WHOLE_ROWS
from fastq.kernels.build import element_type, register_elements
from fastq.kernels.storage import ElementType
from fastq.kernels.traversal import columns
from fastq.kernels.traversal.runs import PIECE_BYTES, runs
from fastq.system import tuning

FEWEST = 32  # elements of rows that are taken as one


class RowLimits(NamedTuple):
    """When the rows of an operation are taken as one.

    Attributes
    ----------
    too_wide : int
        Registers that a row fills, from which on it is not.
    many : int
        Rows with the same parameters that there are at least if a row fills a register.
    """

    too_wide: int
    many: int


_ROWS = {
    "minmax": RowLimits(too_wide=2, many=32),
    "dequantize": RowLimits(too_wide=1, many=16),
    "quantize": RowLimits(too_wide=8, many=16),
    "fake": RowLimits(too_wide=8, many=16),
    "compare": RowLimits(too_wide=8, many=16),
}


class Loop(NamedTuple):
    """A loop over a view: the function, how many rows it takes as one, and the elements of such a row.

    Those are 0 where it visits runs one by one.
    """

    function: Any
    repeat: int = 1
    row: int = 0


def loop_of(layout: Layout, op: str, *kinds: ElementType) -> Loop:
    """Return the loop for a view and what its pointers are to."""
    if layout.inner > 1:
        rows = rows_as_one(layout, op, *kinds)
        return Loop(columns.columns, rows, rows * layout.inner)
    return Loop(runs)


def rows_as_one(layout: Layout, op: str, *kinds: ElementType) -> int:
    """Return how many short rows with the same parameters a loop had better take as one, from what its pointers are to.

    Over rows of three elements it would spend its time between rows. As many as fill whole registers, if possible, and
    few beside all: parameters are repeated for each of them, minima and maxima merged. One thread of a Zen 5, beside
    rows one by one: rows of 2 float32, 16 of them alike, minima 2.1 times as fast, decoded 2.3, by own ranges 0.94; 64
    alike 5.6, 5.0 and 1.9; rows of 4, 512 alike 15, 6.6 and 7.3, of uint8 44, 6.3 and 8.3; rows of 32, 512 alike
    decoded 0.8, minima of uint8 6; rows of 100 quantized 1.1, minima of uint8 2.3; rows of 16, 4 alike minima 0.57.
    A row of 32 elements beside one of 64, rows of 4, 32 alike: minima 1.5, decoded 1.5; 128 alike given 0.85.
    """
    rows, lanes, alike = layout.block, register_elements(*kinds), layout.block * layout.inner
    limits = _ROWS[op]
    width = min(tuning.current().narrow_row, max(FEWEST, min(64, alike // 4), alike // 16))
    if layout.inner == 1 or 2 * layout.inner > width or layout.inner >= limits.too_wide * lanes:
        return 1
    if layout.inner >= lanes and rows < limits.many:
        return 1
    step = math.lcm(layout.inner, FEWEST) // layout.inner
    step = step if step * layout.inner <= width else 1
    return min(-(-width // (step * layout.inner)) * step, rows)


# --- stores past the cache --------------------------------------------------------------------------------------------
#
# The one place for all loops. Formats that a kernel can store so are those of `can_stream` in
# fastq/kernels/traversal/stores.py; whether codes go past it at all says `stores_past_cache` in fastq/kernels/build.py.
# The numbers are those of fastq/system/tuning.py, each with its measurement.


def outgrows_cache(nbytes: int) -> bool:
    """Return whether operands of this many bytes in all outgrow the cache."""
    return nbytes >= tuning.current().stream_from


def bytes_of(size: int, *kinds: ElementType) -> int:
    """Return the whole bytes that `size` elements of each type take together."""
    return size * sum(int(element_type(kind).bitwidth) for kind in kinds) // 8


def store_mode(
    size: int, src: ElementType, dst: ElementType, layout: Layout | None = None, unit: int = WHOLE_BYTES, row: int = 0
) -> int:
    """Return how results of `size` elements are stored: 0 into the cache, past it `STRAIGHT`, `STAGED`, `WHOLE_ROWS`.

    The first and the last line of a run, which neighbours store in the ordinary way, cost a stall each. So runs go
    straight from registers if they are long, else by way of the stack. Rows of columns can't be staged: short ones go
    straight where they share no line, which the kernel sees. Nor can elements be that a kernel needs together and are
    more than a piece: of these fewer are long enough to go straight.

    Parameters
    ----------
    size : int
        Elements of the call.
    src, dst : ElementType
        What is read and written.
    layout : Layout, optional
        Of the runs. None for loops that see to it themselves that no line is shared: `repack` has one run, `blocks`
        stages as many blocks as it computes side by side, `block_columns` asks for each unit whether rows begin on
        lines.
    unit : int
        Elements that the kernel needs together.
    row : int
        Elements that the kernel visits as a row of columns, 0: it visits runs.
    """
    if not outgrows_cache(bytes_of(size, src, dst)):
        return 0
    if layout is None:
        return STRAIGHT
    bits, tuned = element_type(dst).bitwidth, tuning.current()
    run = row or (layout.block if layout.parameters > 1 else size)
    can_stage = not row and unit * bits <= 8 * PIECE_BYTES
    if run * bits >= 8 * (tuned.staged_run if can_stage else tuned.stream_run):
        return STRAIGHT
    return STAGED if can_stage else WHOLE_ROWS if row else 0
