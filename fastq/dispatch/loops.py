"""Choose the loop for a view: over runs, short runs, or rows of columns, of which several may be taken as one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fastq.dispatch.layout import Layout
from fastq.kernels.body.errors import AT_A_TIME
from fastq.kernels.build import element_type, register_elements
from fastq.kernels.storage import ElementType
from fastq.kernels.traversal import columns
from fastq.kernels.traversal.runs import runs
from fastq.kernels.traversal.short_runs import LONGEST, LONGEST_BYTES, LONGEST_REDUCED, RUNS_TOGETHER, short_runs
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
    """A loop over a view: the function, how many rows or short runs it takes as one, and the elements of such a row.

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
    if has_short_runs(layout, op, *kinds):
        return Loop(short_runs, RUNS_TOGETHER, RUNS_TOGETHER * layout.block)
    return Loop(runs)


def has_short_runs(layout: Layout, op: str, *kinds: ElementType) -> bool:
    """Whether neighbours have parameters of their own in runs of a few elements, all of one length.

    One thread of a Zen 5, 2**18 float64 in runs of 8, which fill a register, beside runs one by one: given 0.8 times as
    fast, decoded 0.6, by own ranges 1.3, of 2**25 0.6; `compare` takes blocks of 8 elements as they are.
    """
    if op == "minmax":
        longest = LONGEST_BYTES if element_type(kinds[0]).bitwidth == 8 else LONGEST_REDUCED
    else:
        longest = LONGEST if op == "compare" else min(LONGEST, register_elements(*kinds) - 1)
    taken = op == "compare" and layout.block == AT_A_TIME
    return layout.inner == 1 == layout.outer and layout.parameters > 1 and 1 < layout.block <= longest and not taken


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
