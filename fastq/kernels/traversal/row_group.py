"""Groups of several rows whose elements in one column share their parameters, which are loaded once for all of them."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.body import add_to_state, body_of, finish_state, load_state, reduction_of
from fastq.kernels.load_store import load_elements, prefetch_ahead, prefetch_lanes, store_elements
from fastq.kernels.nan import nan_mask, nan_mask_of_two
from fastq.kernels.operands import register_lanes
from fastq.kernels.parameters import load_parameters
from fastq.kernels.stochastic_rounding import random_numbers_of
from fastq.kernels.traversal.streaming import streams_row

GROUP = 4  # rows
# of each row; four rows 2048 elements ahead do not fit a cache of the first level: decisions D31 and D32
_wide_row = v.tuned("wide_row")


@traced
def rows_at_a_time(spec, operands, args, elements, width):
    """Return how many rows to visit together, 1 or `GROUP`.

    The rows have `elements` elements in all, and `width` of each are visited.

    In cache several pay where the CPU would wait for loads, which is not so where it divides. Memory gives rows one by
    one faster, unless the scales, or minima and maxima, of the columns outgrow a cache of the first level: these are
    read once for a group. Rows that are streamed come one by one.
    """
    if body_of(operands).row:
        return 1
    reduces = reduction_of(operands) is not None
    of_columns = operands.src if reduces else operands.scale  # results, or parameters
    is_wide = width * of_columns.dtype.bitwidth >= 8 * _wide_row()
    wide = is_wide & (streams_row(spec, operands, args, 0, width) ^ True)
    in_cache = reduces or spec.op == "dequantize"
    pays = v.select(args.outgrows_cache, wide, in_cache)
    enough = (elements >= GROUP * width) & (width >= register_lanes(operands).n)
    return v.select(pays & enough, GROUP, 1)


@traced
def visit_group(spec, operands, args, p, i, end, step):
    """Visit `GROUP` rows, each `step` elements from the one before.

    The first has elements i..end; element j of it has parameter p + j. Return whether there was a NaN to report.
    """
    return False if body_of(operands).row else _visit(spec, operands, args, p, i, end, step)


@traced
def _visit(spec, operands, args, p, i, end, step):
    """Visit `GROUP` rows as `visit_group`, in registers, the last of which may overlap the one before."""
    vec = register_lanes(operands)
    nan = False
    while i < end:
        i = min(i, end - v.count(vec))
        nan |= v.any_lane(_piece(spec, operands, args, p, i, vec, step))
        i += v.count(vec)
    return nan


@traced
def _piece(spec, operands, args, p, i, vec, step):
    """Visit the lanes from i on of all rows; return a mask of those with a NaN to report."""
    for r in v.unrolled(GROUP):
        prefetch_lanes(operands.src, i + r * step + prefetch_ahead() // GROUP, vec)
    if not reduction_of(operands):
        return _by_parameters(spec, operands, args, p, i, vec, step)
    state = load_state(operands, p + i, vec)
    nans = False
    for r in v.unrolled(GROUP)[::2]:
        k = i + r * step
        x, y = load_elements(operands.src, k, vec), load_elements(operands.src, k + step, vec)
        state = add_to_state(operands, y, add_to_state(operands, x, state))
        nans = nans | nan_mask_of_two(spec, x, y) if r else nan_mask_of_two(spec, x, y)
    finish_state(operands, p + i, state, nans)
    return nans


@traced
def _by_parameters(spec, operands, args, p, i, vec, step):
    """Convert the lanes from i on of all rows by the parameters of their columns."""
    scale, zero_point = load_parameters(spec, operands, args, p + i, vec)
    nans = False
    for r in v.unrolled(GROUP):
        k = i + r * step
        y, nans_of_row = convert_lanes(spec, operands, args, k, load_elements(operands.src, k, vec), scale, zero_point)
        store_elements(operands.dst, k, y)
        nans = nans | nans_of_row if r else nans_of_row
    return nans


@traced
def convert_lanes(spec, operands, args, i, x, scale, zero_point):
    """Convert lanes, elements from i on, by the parameters of their columns; also return which have a NaN to report."""
    value = to_compute(spec, x, operands.scale)
    y = apply_op(spec, value, scale, zero_point, args, operands.dst, random_numbers_of(spec, operands, i, value))
    return y, nan_mask(spec, x)
