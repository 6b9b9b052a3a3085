"""Groups of several rows whose elements in one column share their parameters, which are loaded once for all of them."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.body import body_of, reduction_of
from fastq.kernels.load_store import PREFETCH, load_elements, prefetch_lanes, store_elements
from fastq.kernels.operands import pointer_types, register_lanes
from fastq.kernels.parameters import load_scale, load_zero_point
from fastq.kernels.spec import nan_mask, nan_mask_of_two
from fastq.kernels.traversal.stores import streams_row
from fastq.system import tuning

_GROUP_ROWS, _WIDE_GROUP_ROWS = 4, 8
# of each row; four rows 2048 elements ahead do not fit a cache of the first level (minima of columns of 2**22 float32
# on two cores of a Zen 5: 21 Gelem/s with 2048, 30 with 512)
GROUP_PREFETCH = PREFETCH // _GROUP_ROWS
_WIDE_ROW = tuning.current().wide_row


@specialize
def rows_at_a_time(spec, operands, args, elements, width):
    """Return how many rows to visit together, 1 or the size of a group.

    The rows have `elements` elements in all, and `width` of each are visited.

    In cache several pay where the CPU would wait for loads, which is not so where it divides. Memory gives rows one by
    one faster, but for so many columns that their scales, or minima and maxima, outgrow a cache of the first level:
    these are read once for a group. Rows that are streamed come one by one.
    """
    if body_of(operands).row:
        return 1
    reduces = reduction_of(operands) is not None
    in_cache = _GROUP_ROWS if reduces or spec.op == "dequantize" else 1
    wide, kept = (_WIDE_GROUP_ROWS, "src") if reduces else (_GROUP_ROWS, "scale")
    bits = pointer_types(operands)[kept].dtype.bitwidth

    def rows(spec, operands, args, elements, width):
        group = in_cache
        if args.outgrows_cache:
            group = wide if width * bits >= 8 * _WIDE_ROW and not streams_row(spec, operands, args, 0, width) else 1
        return group if elements >= group * width and width >= v.count(register_lanes(operands)) else 1

    return rows


@specialize
def visit_group(spec, operands, args, p, i, end, step, rows):
    """Visit as many rows as `rows_at_a_time` says, each `step` elements from the one before.

    The first has elements i..end; element j of it has parameter p + j. Return whether there was a NaN to report.
    """
    if body_of(operands).row:
        return False
    if not reduction_of(operands):
        return lambda spec, operands, args, p, i, end, step, rows: _visit(
            spec, operands, args, p, i, end, step, _GROUP_ROWS
        )

    def visit(spec, operands, args, p, i, end, step, rows):
        if rows == _WIDE_GROUP_ROWS:  # constants, by which loops over rows are unrolled: 1.2 times as fast in cache
            return _visit(spec, operands, args, p, i, end, step, _WIDE_GROUP_ROWS)
        return _visit(spec, operands, args, p, i, end, step, _GROUP_ROWS)

    return visit


@njit
def _visit(spec, operands, args, p, i, end, step, rows):
    vec, nan = register_lanes(operands), False
    while i < end:
        i = min(i, end - v.count(vec))
        for r in range(rows):
            prefetch_lanes(operands.src, i + r * step + GROUP_PREFETCH, vec)
        nan |= v.any_lane(_piece(spec, operands, args, p, i, vec, step, rows))
        i += v.count(vec)
    return nan


@specialize
def _piece(spec, operands, args, p, i, vec, step, rows):
    """Visit the lanes from i on of all rows; return a mask of those with a NaN to report."""
    reduction = reduction_of(operands)
    if not reduction:
        return _by_parameters
    load, add, finish = reduction.load, reduction.add, reduction.finish

    def reduce(spec, operands, args, p, i, vec, step, rows):
        src, state = operands.src, load(operands, p + i, vec)
        nans = nan_mask_of_two(spec, state[0], state[-1])
        for r in range(0, rows, 2):
            x, y = load_elements(src, i + r * step, vec), load_elements(src, i + (r + 1) * step, vec)
            state = add(y, add(x, state))
            nans = nans | nan_mask_of_two(spec, x, y)
        finish(operands, p + i, state, nans)
        return nans

    return reduce


@njit
def _by_parameters(spec, operands, args, p, i, vec, step, rows):
    """Convert the lanes from i on of all rows by the parameters of their columns."""
    src, dst = operands.src, operands.dst
    scale, zero_point = load_scale(spec, operands, p + i, vec), load_zero_point(spec, operands, args, p + i, vec)
    y, nans = converted(spec, operands, args, load_elements(src, i, vec), scale, zero_point)
    store_elements(dst, i, y)
    for r in range(1, rows):
        k = i + r * step
        y, found = converted(spec, operands, args, load_elements(src, k, vec), scale, zero_point)
        store_elements(dst, k, y)
        nans = nans | found
    return nans


@njit
def converted(spec, operands, args, x, scale, zero_point):
    """Convert lanes by the parameters of their columns; return them and which have a NaN to report."""
    y = apply_op(spec, to_compute(spec, x, operands.scale), scale, zero_point, args, operands.dst)
    return y, nan_mask(spec, x)
