"""Every threshold of a plan: how many threads, which loop, in which order of axes, and how results are stored.

Each function takes a layout and sizes, looks at no array, and returns a choice. The figures behind a threshold are
those of its decision in docs/decisions.toml, or stand next to its number in `fastq/system/tuning.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fastq.engine.runtime import threadpool
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.kernels.sizes import (
    AT_A_TIME,
    BATCHED_REGISTERS,
    BLOCK_SIZES,
    COLUMN_BYTES,
    COLUMN_REGISTERS,
    DRAWN_TOGETHER,
    LONGEST,
    MOST_ROW,
    PIECE_BYTES,
    RUNS_TOGETHER,
    STAGED,
    STRAIGHT,
    WHOLE_ROWS,
)
from fastq.kernels.storage import ElementType, bits_of, register_elements
from fastq.plan.layout import Layout
from fastq.system import tuning

# --- threads ----------------------------------------------------------------------------------------------------------

PARALLEL_FROM = tuning.current().parallel_from  # elements from which on a second thread works


def threads_for(elements: int) -> int:
    """Return how many threads work on an array, if no other caller has them: one for each half of `PARALLEL_FROM`."""
    if elements < PARALLEL_FROM:
        return 1
    return min(threadpool.get_num_threads(), 2 * elements // PARALLEL_FROM)


def threads_to_reduce(elements: int) -> int:
    """Return how many threads take minima and maxima, which costs less per element than a conversion."""
    return threads_for(elements // tuning.current().reduction_cost)


def enough_for_all(parts: int, threads: int) -> bool:
    """Whether each of the threads can have parts of its own, in about equal shares."""
    return parts >= 4 * threads


# --- the order of axes ------------------------------------------------------------------------------------------------

SHORT_ROW = 32  # elements of a row, below which transposing rows is faster than a loop over them (decision D36)
SHORT_MERGED_ROW = 8  # the same for rows that are merged before the loop
MERGED_ELEMENTS = 256  # number of elements sharing parameters at which merging of short rows starts
MANY_ROWS = 16  # rows with the same parameters, from which on even the shortest ones are merged
SHORT_CONVERTED_ROW = 8  # elements of a row that is long enough to be converted
SHORT_REDUCED_ROW = 16  # elements of a row that is long enough to be reduced


def prefers_memory_order(
    in_memory_order: Layout,
    in_c_order: Layout,
    *,
    block_size: int,
    itemsize: int,
    is_direct: bool,
    has_given_parameters: bool,
    scales_are_in_order: bool,
    only_reads: bool,
) -> bool:
    """Whether a loop in the order of memory is faster than one in C order (decisions D36 and D54).

    `is_direct` says that kernels can work in place in the order of memory; in C order they work tile by tile.
    `scales_are_in_order` says that given scales lie in the order of memory, too.
    """
    if not block_size or in_c_order.inner > 1:
        has_short_rows_in_memory = has_short_rows(in_memory_order, itemsize, only_reads=only_reads)
        return not has_short_rows_in_memory or has_short_rows(in_c_order, itemsize, only_reads=only_reads)
    if in_memory_order.inner == 1:
        # transposing given parameters of blocks of 32 takes as long as copying the runs of these blocks to tiles
        return is_direct and (not has_given_parameters or scales_are_in_order)
    shared = in_memory_order.inner * in_memory_order.block  # elements that share parameters
    is_long = in_memory_order.inner >= SHORT_ROW or (
        in_memory_order.inner >= SHORT_MERGED_ROW and shared >= MERGED_ELEMENTS
    )
    return is_long and (is_direct or has_given_parameters)


def has_short_rows(layout: Layout, itemsize: int, *, only_reads: bool) -> bool:
    """Whether rows with parameters of their own are too short for a loop over them, and too few are alike.

    Rows are short in elements and in bytes, which are those of as many float32: a row of 7 float64 is not.
    """
    if layout.block >= MANY_ROWS:
        return False
    if layout.outer == 1 and layout.blocks == 1:  # all rows share their parameters
        return False
    least = SHORT_REDUCED_ROW if only_reads else SHORT_CONVERTED_ROW
    return 1 < layout.inner < least and layout.inner * itemsize < 4 * least


def has_long_rows(length: int) -> bool:
    """Whether rows of a number of elements are so long that none have to be merged."""
    return length >= MOST_ROW


# --- the loop ---------------------------------------------------------------------------------------------------------

FEWEST = 32  # elements of rows that are merged


class RowLimits(NamedTuple):
    """When the rows of an operation are merged: visited as one longer row."""

    too_wide: int  # from this number of registers in a row on, rows are not merged
    many: int  # least number of rows with the same parameters if a row fills a register


_ROW_LIMITS = {
    "minmax": RowLimits(too_wide=2, many=32),
    "dequantize": RowLimits(too_wide=1, many=16),
    "quantize": RowLimits(too_wide=8, many=16),
    "fake": RowLimits(too_wide=8, many=16),
    "compare": RowLimits(too_wide=8, many=16),
    "requantize": RowLimits(too_wide=8, many=16),
}

RUNS = "traversal.runs.runs"


class Loop(NamedTuple):
    """A loop over a layout."""

    function: str  # its name below `fastq.kernels`
    merged: int = 1  # rows or short runs that it visits as one
    row: int = 0  # elements of such a row; 0 if it visits runs
    together: bool = True  # whether it may prepare the parameters of several runs at once


def loop_of(layout: Layout, op: str, *kinds: ElementType) -> Loop:
    """Return the loop for a layout, an operation, and the types of elements that its pointers point to."""
    lanes = register_elements(*kinds)
    if layout.inner > 1:
        rows = rows_as_one(layout, op, lanes)
        return Loop("traversal.columns.columns", merged=rows, row=rows * layout.inner)
    if has_short_runs(layout, op, lanes):
        return Loop("traversal.short_runs.short_runs", merged=RUNS_TOGETHER, row=RUNS_TOGETHER * layout.block)
    return Loop(RUNS, together=runs_together(layout, lanes))


def runs_together(layout: Layout, lanes: int) -> bool:
    """Whether the parameters of several runs may be prepared at once, by the sizes of runs.

    A kernel that does not compiles sooner (decisions D26 and D73).
    """
    return layout.parameters > 1 and layout.block <= BATCHED_REGISTERS * lanes


def has_short_runs(layout: Layout, op: str, lanes: int) -> bool:
    """Whether runs of a few elements, all of one length, have parameters of their own (decisions D27 and D28).

    Runs that fill a register are faster one by one. `compare` takes blocks of 8 elements as they are, and the body of
    minima and maxima takes short runs itself.
    """
    is_in_runs = layout.inner == 1 and layout.outer == 1 and layout.parameters > 1
    if not is_in_runs or not 1 < layout.block <= LONGEST:
        return False
    if op == "compare":
        return layout.block != AT_A_TIME
    return op in ("quantize", "dequantize", "fake") and layout.block < lanes


def rows_as_one(layout: Layout, op: str, lanes: int) -> int:
    """Return how many short rows with the same parameters a loop merges, for the elements of a register.

    A loop over rows of three elements would spend its time between rows. As many as fill whole registers are merged if
    possible, and few compared with all of them: parameters are repeated for each, minima and maxima merged (decisions
    D34, D35, D37 and D38).

    To quantize 1000 rows of 3 elements: 3000 elements share parameters, so a merged row has 3000 / 16 = 187 or more.
    32 rows have 96 elements, which fill registers of any size, and twice as many are the first to reach 187: 64. With
    20 rows a merged row has 32 elements. 32 rows are more than that, so any number will do: 11, the first to reach it.
    """
    rows = layout.block
    shared = rows * layout.inner  # elements that share parameters
    limits = _ROW_LIMITS[op]
    # elements of the merged row: up to 64 where that is a quarter of all, more where it is a sixteenth
    width = min(MOST_ROW, max(FEWEST, min(64, shared // 4), shared // 16))
    if layout.inner == 1 or 2 * layout.inner > width or layout.inner >= limits.too_wide * lanes:
        return 1
    if layout.inner >= lanes and rows < limits.many:
        return 1
    step = math.lcm(layout.inner, FEWEST) // layout.inner  # rows that fill whole registers together
    if step * layout.inner > width:
        step = 1
    return min(-(-width // (step * layout.inner)) * step, rows)


# --- one pass or two --------------------------------------------------------------------------------------------------


def columns_together(layout: Layout, compute_size: int) -> int:
    """Return how many columns one pass takes at a time, for the bytes of a number that the kernel computes in."""
    return 1 if layout.inner == 1 else COLUMN_BYTES // compute_size


def fits_one_pass(layout: Layout, columns: int, threads: int) -> bool:
    """Whether parts stay in the cache between reduction and conversion, and are enough for the threads.

    `columns` are those of `columns_together`. Rows that fill no register are merged in two passes (decision D29),
    unless there are fewer elements in all than half such a row.
    """
    if threads > 1 and not enough_for_all(layout.parameters, threads):
        return False
    are_narrow = layout.inner < columns // COLUMN_REGISTERS and layout.block * layout.inner >= FEWEST // 2
    if are_narrow or not layout.chunk_unit:
        return False
    return layout.block * columns <= tuning.current().fused_block


def can_draw_in_one_pass(layout: Layout) -> bool:
    """Whether one pass can round at random: the numbers of a run stay in the cache until its second visit."""
    return layout.inner == 1 and layout.chunk_unit <= DRAWN_TOGETHER


def columns_stay_in_cache(layout: Layout, row_bytes: int, size: int, src: ElementType) -> bool:
    """Whether the rows of a few columns stay in the cache until they are visited again.

    Many rows that are a multiple of `aliased_stride` apart share few places of a cache. Others stay if they are few, or
    if the array is less than a quarter of what outgrows the cache.
    """
    tuned = tuning.current()
    if layout.block > tuned.aliased_rows and row_bytes % tuned.aliased_stride == 0:
        return False
    return layout.block <= tuned.fused_rows or not outgrows_cache(4 * size, src)


def has_loop_over_blocks(layout: Layout) -> bool:
    """Whether blocks have a size for which there is a loop, and are enough for it to be worth compiling."""
    is_whole = layout.length % layout.block == 0
    return layout.block in BLOCK_SIZES and is_whole and layout.parameters >= tuning.current().batched_blocks


# --- reductions -------------------------------------------------------------------------------------------------------


class DividedReduction(NamedTuple):
    """How threads divide a reduction of the parts of an array to a result for each."""

    threads: int
    chunk_multiple: int = 1  # elements that one thread has together: those of whole parts, or any
    partials: int = 1  # results of each part that are merged afterwards: one, or one for each thread
    has_columns: bool = False  # whether a thread has columns, from the first row to the last, instead of rows
    chunk: int = 0  # columns in a chunk; 0: as suits the number of threads


def divided_reduction(layout: Layout, size: int, threads: int, *, merged: int, is_strided: bool) -> DividedReduction:
    """Return how at most this many threads divide the reduction of `size` elements.

    The best is that each has parts of its own, since no results have to be merged. Where parts are too few for that,
    each has elements of all parts, and a result for each part; where that would be too many results, each has columns
    of its own. These have to be wide, so not if `merged` rows are visited as one, and to follow each other in memory,
    so not if it `is_strided`. Else one thread has all.
    """
    if threads == 1:
        return DividedReduction(threads=1)
    if layout.chunk_unit > 0 and enough_for_all(size // layout.chunk_unit, threads):
        return DividedReduction(threads=threads, chunk_multiple=layout.chunk_unit)
    tuned = tuning.current()
    if threads * layout.parameters <= tuned.merged_partials:
        return DividedReduction(threads=threads, partials=threads)
    if layout.inner > tuned.merged_partials // threads and merged == 1 and not is_strided:
        columns_each = -(-layout.inner // threads)
        return DividedReduction(threads=threads, has_columns=True, chunk=min(tuned.range_columns, columns_each))
    return DividedReduction(threads=1)


# --- stores past the cache --------------------------------------------------------------------------------------------
#
# The one place for all loops. `can_stream` in fastq/kernels/traversal/streaming.py has the formats that a kernel can
# store like this. The numbers are those of fastq/system/tuning.py, each with its measurement.


def outgrows_cache(size: int, *kinds: ElementType) -> bool:
    """Whether `size` elements of each type together outgrow the cache."""
    return size * sum(map(bits_of, kinds)) // 8 >= tuning.current().stream_from


def stores_past_cache(codes: bool) -> bool:
    """Whether results that outgrow the cache are stored past it: values are, codes where that is faster."""
    return tuning.current().stream_codes or not codes


def store_mode(
    size: int,
    src: ElementType,
    dst: ElementType,
    layout: Layout | None = None,
    unit: int = WHOLE_BYTES,
    row: int = 0,
    *,
    codes: bool,
) -> int:
    """Return how results of `size` elements are stored: 0 is into the cache, the others are past it.

    The first and the last line of a run, which neighbours store in the ordinary way, cost a stall each. So runs go
    straight from registers (`STRAIGHT`) if they are long, else by way of the stack (`STAGED`). Rows of columns can't be
    staged: short ones go straight where they share no line, which the kernel sees (`WHOLE_ROWS`).

    Parameters
    ----------
    size : int
        Number of elements of the result.
    src, dst : element type
        The types of source and result.
    layout : Layout, optional
        Without a layout the loops see to it themselves that no line is shared: `repack` has one run, `blocks` stages as
        many blocks as it computes side by side, `block_columns` asks for each unit whether rows begin on lines.
    unit : int
        Elements that a kernel needs together. If they are more than a piece, they can't be staged, and fewer are long
        enough to go straight.
    row : int
        How many elements the kernel visits as a row of columns; 0 if it visits runs.
    codes : bool
        Whether results are codes.
    """
    if not (outgrows_cache(size, src, dst) and stores_past_cache(codes)):
        return 0
    if layout is None:
        return STRAIGHT
    tuned = tuning.current()
    bits = bits_of(dst)
    run = row or (layout.block if layout.parameters > 1 else size)
    can_stage = not row and unit * bits <= 8 * PIECE_BYTES
    if run * bits >= 8 * (tuned.staged_run if can_stage else tuned.stream_run):
        return STRAIGHT
    if can_stage:
        return STAGED
    return WHOLE_ROWS if row else 0
