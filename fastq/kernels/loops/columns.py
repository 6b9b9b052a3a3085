"""Loops over rows whose neighbouring elements have different parameters (inner > 1)."""

from __future__ import annotations

from numba import types

from fastq.jit import njit, specialize
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.formulas import is_infinite
from fastq.kernels.load_store import (
    PREFETCH,
    group_size,
    load_elements,
    prefetch_distance,
    prefetch_lanes,
    store_elements,
    stream_elements,
)
from fastq.kernels.loops.compare import add_errors
from fastq.kernels.loops.nontemporal import goes_in_lines, in_lines, streams_row, to_line
from fastq.kernels.loops.row_group import converted, rows_at_a_time, visit_group
from fastq.kernels.operands import pointer_types, rebase, register_lanes, with_parameters
from fastq.kernels.parameters import (
    count_nan_as_zero,
    load_scale,
    load_zero_point,
    mark_nan,
    range_parameters,
    store_min_max,
    store_parameters,
)
from fastq.kernels.spec import compute_lanes, min_max_identities, nan_mask, parameter_nan_mask, status_of
from fastq.simd import (
    LINE,
    REGISTER_BITS,
    Vec,
    any_lane,
    cast_pointer,
    count,
    lane_count,
    lanes_like,
    load,
    maximum,
    minimum,
    prefetch,
    scratch,
    store,
)
from fastq.simd.vector import named_type
from fastq.system import tuning


def _fewest(operands):
    """Return as few elements as fill whole bytes in all operands with elements."""
    pointers = pointer_types(operands)
    return max(group_size(pointers[name]) for name in ("src", "dst", "lo", "hi") if name in pointers)


@specialize
def fewest_lanes(operands):
    """Vec type of as few elements of the first operand as fill whole bytes in all operands with elements."""
    vec = Vec(operands.types[0].dtype, _fewest(operands))
    return lambda operands: vec


@specialize
def quarter_lanes(operands, vec):
    """Vec type of a quarter of the lanes of a Vec type, or of as many as fill whole bytes, if that is more."""
    quarter = Vec(operands.types[0].dtype, max(lane_count(named_type(vec)) // 4, _fewest(operands)))
    return lambda operands, vec: quarter


# --- rows -------------------------------------------------------------------------------------------------------------

_MOST_JOINED = 2 * tuning.current().narrow_row  # elements of rows taken as one: of shorter ones as many as fill it
_ROOM = _MOST_JOINED * 8  # bytes of their scales, or zero points


@specialize
def with_rows_of_parameters(operands, args, scales, zero_points):
    """Operands with the parameters of a row side by side in some room, where several rows are taken as one."""
    pointers = pointer_types(operands)
    if not {"scale", "zero_point"} <= pointers.keys():
        return lambda operands, args, scales, zero_points: operands
    scale_type, zero_type = (pointers[name].dtype for name in ("scale", "zero_point"))
    scale_bits, zero_bits = (types.Integer.from_bitwidth(each.bitwidth, False) for each in (scale_type, zero_type))

    def joined(operands, args, scales, zero_points):
        if args.repeat == 1:
            return operands
        scale, zero_point = cast_pointer(scales, scale_bits), cast_pointer(zero_points, zero_bits)
        of_row = cast_pointer(operands.scale, scale_bits), cast_pointer(operands.zero_point, zero_bits)
        n = args.inner // args.repeat
        for row in range(args.repeat):
            for k in range(n):
                store(scale, row * n + k, load(of_row[0], k, scale_bits))
                store(zero_point, row * n + k, load(of_row[1], k, zero_bits))
        return with_parameters(operands, cast_pointer(scale, scale_type), cast_pointer(zero_point, zero_type))

    return joined


@njit
def columns(spec, operands, args, units):
    """Visit elements start..stop, row by row; src and dst hold the elements from `origin` on."""
    # on the stack of this function, which outlives a callee that LLVM does not inline: with NUMBA_DEBUGINFO=1 none is
    scales, zero_points = scratch(_ROOM, types.uint8), scratch(_ROOM, types.uint8)
    operands = with_rows_of_parameters(rebase(operands, args, units), args, scales, zero_points)
    i, stop, status = units.start, units.stop, 0
    while i < stop:
        row = i // args.inner
        p, alike, end = _first_parameter(args, row), rows_alike(args, row), (row + 1) * args.inner
        last = min((row + alike) * args.inner, stop)
        whole = (last - i) // args.inner
        while i < last:  # rows with the same parameters: the divisions above take as long as a row of 24 elements
            rows = rows_at_a_time(spec, operands, args, whole, end - i)
            if rows > 1 and end - i == args.inner:
                status |= status_of(visit_group(spec, operands, args, p, i, end, rows), False)
            else:
                rows, end = 1, min(end, last)
                status |= visit(spec, operands, args, p, i, end)
            i, end = end + (rows - 1) * args.inner, end + rows * args.inner
            p, whole = p - rows * args.inner, whole - rows
    return status


@njit
def _first_parameter(args, row):
    """Return p, so that element j of this row has parameter p + j."""
    outer = row // args.length
    block = (row - outer * args.length) // args.block
    return ((outer // args.cycle * args.kept + outer % args.kept) * args.blocks + block - row) * args.inner


@njit
def rows_alike(args, row):
    """Return how many rows from this one on have the same parameters."""
    within = row % args.length
    return min(args.length - within, args.block - within % args.block)


@njit
def column_ranges(spec, operands, args, units):
    """Visit columns start..stop of every row; src and dst hold all elements."""
    operands, status, row = rebase(operands, args, units), 0, 0
    start, stop = units.start, units.stop
    while row < args.outer * args.length:
        p, i, end = _first_parameter(args, row), row * args.inner + start, row * args.inner + stop
        rows = rows_at_a_time(spec, operands, args, rows_alike(args, row), stop - start)
        if rows > 1:
            status |= status_of(visit_group(spec, operands, args, p, i, end, rows), False)
        else:
            status |= visit(spec, operands, args, p, i, end)
        row += rows
    return status


@specialize
def visit(spec, operands, args, p, i, end):
    """Visit i..end, a piece of one row; element j has parameter p + j."""
    return _compare if spec.op == "compare" else _visit_row


@njit
def _visit_row(spec, operands, args, p, i, end):
    """Visit i..end in registers, the last of which may overlap the one before; return the status."""
    vec = register_lanes(operands)
    n, quarter = count(vec), quarter_lanes(operands, vec)
    if end - i < count(quarter):
        return _visit_few(spec, operands, args, p, i, end, fewest_lanes(operands))
    if end - i < n:
        return _visit_few(spec, operands, args, p, i, end, quarter)
    last = end - n
    i, found = stream_row(spec, operands, args, p, i, end, vec)
    if i == end:
        return status_of(found, False)
    i = min(i, last)
    nans = visit_lanes(spec, operands, args, p, i, vec)
    while i < last:
        i = min(i + n, last)
        nans = nans | visit_lanes(spec, operands, args, p, i, vec)
    return status_of(found | any_lane(nans), False)


@njit
def _visit_few(spec, operands, args, p, i, end, vec):
    """Visit i..end, as many at a time as `vec` has lanes; the last ones may be visited twice."""
    nan = False
    while i < end:
        i = min(i, end - count(vec))
        nan |= any_lane(visit_lanes(spec, operands, args, p, i, vec))
        i += count(vec)
    return status_of(nan, False)


@specialize
def visit_lanes(spec, operands, args, p, i, vec):
    """Visit the lanes from i on; return a mask of those with a NaN to report."""
    return _merge_min_max if spec.op == "minmax" else _by_parameters


@njit
def _merge_min_max(spec, operands, args, p, i, vec):
    """Merge the lanes from i on into the minima and maxima of their columns."""
    prefetch(operands.src, i + PREFETCH)
    x, p = load_elements(operands.src, i, vec), p + i
    los = load(operands.lo, p, lanes_like(vec, operands.lo))
    his = load(operands.hi, p, lanes_like(vec, operands.hi))
    store_min_max(operands, p, minimum(x, los), maximum(x, his), nan_mask(spec, x))
    return nan_mask(spec, x)


@njit
def _by_parameters(spec, operands, args, p, i, vec):
    """Convert the lanes from i on by the parameters of their columns."""
    y, nans = _convert_lanes((spec, operands, args, p), i, vec)
    store_elements(operands.dst, i, y)
    return nans


@njit
def _convert_lanes(context, i, vec):
    """Convert the Vec at src[i]; return it and which lanes have a NaN to report."""
    spec, operands, args, p = context
    src = operands.src
    prefetch_lanes(src, i + prefetch_distance(src), vec)
    x = load_elements(src, i, vec)
    scale, zero_point = load_scale(spec, operands, p + i, vec), load_zero_point(spec, operands, args, p + i, vec)
    return converted(spec, operands, args, x, scale, zero_point)


_stream_lines = in_lines(_convert_lanes)


@specialize
def stream_row(spec, operands, args, p, i, end, vec):
    """Write i..end past the cache, or up to the last whole line; where that ended, and whether a NaN is reported."""
    if spec.op == "minmax":
        return lambda spec, operands, args, p, i, end, vec: (i, False)

    def stream(spec, operands, args, p, i, end, vec):
        if not streams_row(spec, operands, args, i, end):
            return i, False
        return _stream_lines(spec, (spec, operands, args, p), operands.src, operands.dst, i, end, vec)

    return stream


@njit
def _compare(spec, operands, args, p, i, end):
    return add_errors(spec, operands, args, p + i, i, end)


# --- range and values in one pass: columns of a block ----------------------------------------------------------------

COLUMN_REGISTERS = 4  # registers side by side: rows are read 256 bytes at a time, which keeps the prefetchers going
COLUMN_BYTES = COLUMN_REGISTERS * REGISTER_BITS // 8


@njit
def block_columns(spec, operands, args, units):
    """Quantize (or fake quantize) units start..stop, each some columns of one block; the first block's come first."""
    operands = rebase(operands, args, units)
    vec = lanes_like(compute_lanes(spec, operands.scale, COLUMN_REGISTERS), operands.src)
    quarter, few, n = quarter_lanes(operands, vec), fewest_lanes(operands), count(vec)
    across = (args.inner + n - 1) // n
    infinite, nan = False, False
    for unit in range(units.start, units.stop):
        p = unit // across
        outer = p // args.blocks
        first = outer * args.length + (p - outer * args.blocks) * args.block
        rows = min(args.block, (outer + 1) * args.length - first)
        column = (unit - p * across) * n
        end = min(column + n, args.inner)
        if args.inner >= n:
            found = _quantize_piece(spec, operands, args, p, first, rows, column, end, vec)
        elif args.inner >= count(quarter):
            found = _quantize_piece(spec, operands, args, p, first, rows, column, end, quarter)
        else:
            found = _quantize_piece(spec, operands, args, p, first, rows, column, end, few)
        nan, infinite = nan | found[0], infinite | found[1]
    return status_of(nan, infinite)


@njit
def _quantize_piece(spec, operands, args, p, first, rows, column, end, vec):
    """Quantize the columns up to `end`, as many at a time as `vec` has lanes; the last ones may be done twice."""
    nan, infinite = False, False
    while column < end:
        column = min(column, end - count(vec))
        found = _quantize_columns(spec, operands, args, p, first, rows, column, vec)
        nan, infinite = nan | found[0], infinite | found[1]
        column += count(vec)
    return nan, infinite


@specialize
def store_piece(spec, dst, i, y, streaming):
    """Store y to dst[i] onwards, past the cache if asked for and they are whole lines of their own."""
    if not goes_in_lines(spec, dst) or y.n * dst.dtype.bitwidth % (8 * LINE):
        return lambda spec, dst, i, y, streaming: store_elements(dst, i, y)

    def store_either(spec, dst, i, y, streaming):
        if streaming:
            stream_elements(dst, i, y)
        else:
            store_elements(dst, i, y)

    return store_either


@njit
def _quantize_columns(spec, operands, args, p, first, rows, column, vec):
    src, dst = operands.src, operands.dst
    i = first * args.inner + column
    x = load_elements(src, i, vec)
    los, his = min_max_identities(x)
    nans = parameter_nan_mask(spec, x)
    for _ in range(rows):
        x = load_elements(src, i, vec)
        los, his = minimum(x, los), maximum(x, his)
        nans = nans | parameter_nan_mask(spec, x)
        i += args.inner
    los, his = count_nan_as_zero(spec, los, his, nans)
    scales, zero_points = range_parameters(spec, los, his, args, operands.scale)
    infinite = any_lane(is_infinite(scales))
    scales = mark_nan(spec, scales, nans)
    store_parameters(spec, operands, p * args.inner + column, scales, zero_points)
    i = first * args.inner + column
    nans = nan_mask(spec, x)
    # two rows on lines: then all are
    streaming = args.streaming and to_line(dst, i) == 0 and to_line(dst, i + args.inner) == 0
    for _ in range(rows):
        x = load_elements(src, i, vec)
        prefetch_lanes(src, i + count(vec), vec)  # the columns of the next unit: else memory idles meanwhile
        nans = nans | nan_mask(spec, x)
        y = apply_op(spec, to_compute(spec, x, operands.scale), scales, zero_points, args, dst)
        store_piece(spec, dst, i, y, streaming)
        i += args.inner
    return any_lane(nans), infinite


# --- parameters alone -------------------------------------------------------------------------------------------------


@njit
def ranges(spec, operands, args, units):
    """Convert ranges start..stop to scales and zero points by the scheme."""
    return status_of(False, _convert_ranges(spec, operands, args, units.start, units.stop, fewest_lanes(operands)))


@njit
def many_ranges(spec, operands, args, units):
    """Convert ranges start..stop as `ranges`, as many at a time as registers hold: 4096 take 5 us for 56.

    It takes twice as long to compile.
    """
    vec, few = register_lanes(operands), fewest_lanes(operands)
    whole = units.stop - (units.stop - units.start) % count(vec)
    infinite = _convert_ranges(spec, operands, args, units.start, whole, vec)
    return status_of(False, infinite | _convert_ranges(spec, operands, args, whole, units.stop, few))


@njit
def _convert_ranges(spec, operands, args, start, stop, vec):
    """Convert ranges start..stop, as many at a time as there are lanes; return whether any scale is infinite."""
    infinite = False
    for p in range(start, stop, count(vec)):
        lo, hi = load(operands.lo, p, vec), load(operands.hi, p, vec)
        scale, zero_point = range_parameters(spec, lo, hi, args, operands.scale)
        store_parameters(spec, operands, p, scale, zero_point)
        infinite |= any_lane(is_infinite(scale))
    return infinite


@njit
def merge_partials(spec, operands, args, units):
    """Merge minima and maxima start..stop of all partial results into the first partial result."""
    los, his = operands.lo, operands.hi
    for p in range(units.start, units.stop):
        lo, hi = los[p], his[p]
        for part in range(1, args.partials):
            k = part * args.partial_stride + p
            lo, hi = minimum(los[k], lo), maximum(his[k], hi)
        los[p], his[p] = lo, hi
    return 0
