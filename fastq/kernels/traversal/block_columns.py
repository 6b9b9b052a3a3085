"""The loop over the columns of a block: range, parameters and values of some columns in one pass."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import body, load_store, parameters
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.formulas import is_infinite
from fastq.kernels.nan import count_nan_as_zero, first_min_max, mark_nan, nan_mask, parameter_nan_mask
from fastq.kernels.operands import fewest_lanes, quarter_lanes
from fastq.kernels.scales_of_ranges import range_parameters
from fastq.kernels.sizes import COLUMN_REGISTERS
from fastq.kernels.spec import compute_lanes, status_of
from fastq.kernels.traversal.streaming import can_stream, elements_to_line


@traced
def block_columns(spec, operands, args, units):
    """Quantize (or fake quantize) units start..stop, each some columns of one block; the first block's come first.

    Of 20 columns, 8 a unit, a block has three units: unit 4 is the second one of block 1, its columns 8 to 15.
    """
    operands = body.rebase(operands, args, units)
    vec = v.lanes_like(compute_lanes(spec, operands.scale, COLUMN_REGISTERS), operands.src)
    quarter = quarter_lanes(operands, vec)
    few = fewest_lanes(operands)
    n = v.count(vec)
    across = (args.inner + n - 1) // n
    infinite = False
    nan = False
    for unit in range(units.start, units.stop):
        p = unit // across
        outer = p // args.blocks
        first = outer * args.length + (p - outer * args.blocks) * args.block
        rows = min(args.block, (outer + 1) * args.length - first)
        column = (unit - p * across) * n
        end = min(column + n, args.inner)
        if args.inner >= n:
            reported = _quantize_piece(spec, operands, args, p, first, rows, column, end, vec)
        elif args.inner >= v.count(quarter):
            reported = _quantize_piece(spec, operands, args, p, first, rows, column, end, quarter)
        else:
            reported = _quantize_piece(spec, operands, args, p, first, rows, column, end, few)
        nan = nan | reported[0]
        infinite = infinite | reported[1]
    return status_of(nan=nan, infinite=infinite)


@traced
def _quantize_piece(spec, operands, args, p, first, rows, column, end, vec):
    """Quantize the columns up to `end`, as many at a time as `vec` has lanes; the last ones may be done twice."""
    nan = False
    infinite = False
    while column < end:
        column = min(column, end - v.count(vec))
        reported = _quantize_columns(spec, operands, args, p, first, rows, column, vec)
        nan = nan | reported[0]
        infinite = infinite | reported[1]
        column += v.count(vec)
    return nan, infinite


@traced
def store_piece(spec, dst, i, y, streaming):
    """Store y to dst[i] onwards, past the cache if asked for and they are whole lines of their own."""
    whole_lines = can_stream(spec, dst) and y.n * dst.dtype.bitwidth % (8 * v.LINE) == 0
    if whole_lines:
        _store_either(dst, i, y, streaming)
    else:
        load_store.store_elements(dst, i, y)


@traced
def _store_either(dst, i, y, streaming):
    """Store y past the cache or into it, as is known only at run time."""
    if streaming:
        load_store.stream_elements(dst, i, y)
    else:
        load_store.store_elements(dst, i, y)


@traced
def _quantize_columns(spec, operands, args, p, first, rows, column, vec):
    """Take the parameters of columns of a block from their ranges, store them, and convert the columns by them.

    The block has `rows` rows from row `first` on, the columns are as many as `vec` has lanes. Return whether there was
    a NaN to report, and whether a range was infinite.
    """
    src = operands.src
    dst = operands.dst
    i = first * args.inner + column
    x = load_store.load_elements(src, i, vec)
    los, his = first_min_max(x)
    nans = parameter_nan_mask(spec, x)
    for _ in range(rows):
        x = load_store.load_elements(src, i, vec)
        los = v.minimum(x, los)
        his = v.maximum(x, his)
        nans = nans | parameter_nan_mask(spec, x)
        i += args.inner
    los, his = count_nan_as_zero(spec, los, his, nans)
    scales, zero_points = range_parameters(spec, los, his, args, operands.scale)
    infinite = v.any_lane(is_infinite(scales))
    scales = mark_nan(spec, scales, nans)
    parameters.store_parameters(spec, operands, p * args.inner + column, scales, zero_points)
    i = first * args.inner + column
    nans = nan_mask(spec, x)
    # two rows on lines: then all are
    streaming = args.streaming and elements_to_line(dst, i) == 0 and elements_to_line(dst, i + args.inner) == 0
    for _ in range(rows):
        x = load_store.load_elements(src, i, vec)
        load_store.prefetch_lanes(
            src, i + v.count(vec), vec
        )  # the columns of the next unit: else memory idles meanwhile
        nans = nans | nan_mask(spec, x)
        y = apply_op(spec, to_compute(spec, x, operands.scale), scales, zero_points, args, dst)
        store_piece(spec, dst, i, y, streaming)
        i += args.inner
    return v.any_lane(nans), infinite
