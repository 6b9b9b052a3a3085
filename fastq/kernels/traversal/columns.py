"""Loops over rows whose neighbouring elements have different parameters (inner > 1)."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import body, load_store, parameters
from fastq.kernels.nan import nan_mask
from fastq.kernels.operands import fewest_lanes, quarter_lanes, register_lanes
from fastq.kernels.spec import status_of
from fastq.kernels.traversal.merged_rows import MEMORY, PAGE, ROOM, merge_rows, place_side_by_side
from fastq.kernels.traversal.row_group import convert_lanes, rows_at_a_time, visit_group
from fastq.kernels.traversal.streaming import stream_by_lines, streams_row

# --- rows -------------------------------------------------------------------------------------------------------------


@traced
def columns(spec, operands, args, units):
    """Visit elements start..stop, row by row; src and dst hold the elements from `origin` on.

    Short rows with the same parameters are visited as one: `args.merged` rows at a time.
    """
    # on the stack of this function, which outlives a callee that LLVM does not inline: with NUMBA_DEBUGINFO=1 none is
    memory = v.scratch(MEMORY, types.uint8)
    page = v.advance(memory, -v.address_of(memory) % PAGE)
    room = page, v.advance(page, ROOM)
    operands = body.rebase(operands, args, units)
    i = units.start
    stop = units.stop
    status = 0
    most = args.merged * args.inner
    row = i // args.inner
    first = row * args.inner
    while i < stop:  # outer indices; the divisions for each take as long as a row of 24 elements
        p = _first_parameter(args, row) + first
        alike = rows_alike(args, row)
        left = args.length - row % args.length
        while left > 0 and i < stop:  # rows with the same parameters, from element `first` and parameter p on
            last = min(first + alike * args.inner, stop)
            rows = args.merged
            width = most
            if last - first < most:
                rows = -(-(last - first) // args.inner)
                width = rows * args.inner
            placed = place_side_by_side(spec, operands, args, p, rows, room)
            # parameters that were placed in a buffer begin with index 0
            status |= _visit_rows(spec, placed, args, (p if args.merged == 1 else 0) - first, i, first, last, width)
            merge_rows(operands, args, p, rows, placed)
            i = last
            first = last
            p = p + args.inner
            row = row + alike
            left = left - alike
            alike = min(args.block, left)
    return status


@traced
def _visit_rows(spec, operands, args, p, i, first, last, width):
    """Visit elements i..last, in rows of `width`; return the status.

    The row of i begins at `first`, and element j of it has parameter p + j.
    """
    end = first + width
    status = 0
    while i < last:
        rows = rows_at_a_time(spec, operands, args, last - i, end - i)
        if rows > 1 and end - i == width:
            status |= status_of(nan=visit_group(spec, operands, args, p, i, end, width))
        else:
            rows = 1
            end = min(end, last)
            status |= visit(spec, operands, args, p, i, end)
        i = end + (rows - 1) * width
        end = end + rows * width
        p -= rows * width
    return status


@traced
def _first_parameter(args, row):
    """Return p, so that element j of this row has parameter p + j.

    In blocks of 4 rows of 3 elements, row 5 is in the second block, which has parameters 3, 4 and 5. Its elements are
    15, 16 and 17, so p is -12.
    """
    outer = row // args.length
    block = (row - outer * args.length) // args.block
    return ((outer // args.cycle * args.kept_outer + outer % args.kept_outer) * args.blocks + block - row) * args.inner


@traced
def rows_alike(args, row):
    """Return how many rows from this one on have the same parameters."""
    within = row % args.length
    return min(args.length - within, args.block - within % args.block)


@traced
def column_ranges(spec, operands, args, units):
    """Visit columns start..stop of every row; src and dst hold all elements."""
    operands = body.rebase(operands, args, units)
    status = 0
    row = 0
    start, stop = units.start, units.stop
    while row < args.outer * args.length:
        p = _first_parameter(args, row)
        i = row * args.inner + start
        end = row * args.inner + stop
        rows = rows_at_a_time(spec, operands, args, rows_alike(args, row) * (stop - start), stop - start)
        if rows > 1:
            status |= status_of(nan=visit_group(spec, operands, args, p, i, end, args.inner))
        else:
            status |= visit(spec, operands, args, p, i, end)
        row += rows
    return status


@traced
def visit(spec, operands, args, p, i, end):
    """Visit i..end, a piece of one row; element j has parameter p + j."""
    return (body.body_of(operands).row or _visit_row)(spec, operands, args, p, i, end)


@traced
def _visit_row(spec, operands, args, p, i, end):
    """Visit i..end in registers, the last of which may overlap the one before; return the status."""
    vec = register_lanes(operands)
    n = v.count(vec)
    quarter = quarter_lanes(operands, vec)
    if end - i < v.count(quarter):
        return _visit_few(spec, operands, args, p, i, end, fewest_lanes(operands))
    if end - i < n:
        return _visit_few(spec, operands, args, p, i, end, quarter)
    last = end - n
    i, nan_in_stream = stream_row(spec, operands, args, p, i, end, vec)
    if i == end:
        return status_of(nan=nan_in_stream)
    i = min(i, last)
    nans = visit_lanes(spec, operands, args, p, i, vec)
    while i < last:
        i = min(i + n, last)
        nans = nans | visit_lanes(spec, operands, args, p, i, vec)
    return status_of(nan=nan_in_stream | v.any_lane(nans))


@traced
def _visit_few(spec, operands, args, p, i, end, vec):
    """Visit i..end, as many at a time as `vec` has lanes; the last ones may be visited twice."""
    nan = False
    while i < end:
        i = min(i, end - v.count(vec))
        nan |= v.any_lane(visit_lanes(spec, operands, args, p, i, vec))
        i += v.count(vec)
    return status_of(nan=nan)


@traced
def visit_lanes(spec, operands, args, p, i, vec):
    """Visit the lanes from i on; return a mask of those with a NaN to report."""
    if not body.reduction_of(operands):
        y, nans = _convert_lanes((spec, operands, args, p), i, vec)
        load_store.store_elements(operands.dst, i, y)
        return nans
    v.prefetch(operands.src, i + load_store.prefetch_ahead())
    x = load_store.load_elements(operands.src, i, vec)
    nans = nan_mask(spec, x)
    body.finish_state(operands, p + i, body.add_to_state(operands, x, body.load_state(operands, p + i, vec)), nans)
    return nans


@traced
def _convert_lanes(context, i, vec):
    """Convert the Vec at src[i]; return it and which lanes have a NaN to report."""
    spec, operands, args, p = context
    src = operands.src
    load_store.prefetch_lanes(src, i + load_store.prefetch_distance(src), vec)
    x = load_store.load_elements(src, i, vec)
    scale, zero_point = parameters.load_parameters(spec, operands, args, p + i, vec)
    return convert_lanes(spec, operands, args, i, x, scale, zero_point)


_stream_lines = stream_by_lines(_convert_lanes)


@traced
def stream_row(spec, operands, args, p, i, end, vec):
    """Write i..end past the cache, or up to the last whole line; where that ended, and whether a NaN is reported."""
    return (i, False) if body.reduction_of(operands) else _stream_row(spec, operands, args, p, i, end, vec)


@traced
def _stream_row(spec, operands, args, p, i, end, vec):
    """Stream a row as `stream_row`, of operands without a reduction, where the call is large enough."""
    if not streams_row(spec, operands, args, i, end):
        return i, False
    return _stream_lines(spec, (spec, operands, args, p), operands.src, operands.dst, i, end, vec)
