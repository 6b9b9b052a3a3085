"""Loops over rows whose neighbouring elements have different parameters (inner > 1)."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import body, load_store, parameters
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.args import COLUMN_REGISTERS, MOST_ROW
from fastq.kernels.formulas import is_infinite
from fastq.kernels.operands import parameter_bits, pointer_types, register_lanes
from fastq.kernels.spec import compute_lanes, first_min_max, nan_mask, parameter_nan_mask, status_of
from fastq.kernels.traversal.row_group import converted, rows_at_a_time, visit_group
from fastq.kernels.traversal.streaming import can_stream, elements_to_line, stream_by_lines, streams_row


def _fewest(operands):
    """Return as few elements as fill whole bytes in all operands with elements."""
    pointers = pointer_types(operands)
    return max(load_store.group_size(pointers[name]) for name in ("src", "dst", "lo", "hi") if name in pointers)


@traced
def fewest_lanes(operands):
    """Vec type of as few elements of the first operand as fill whole bytes in all operands with elements."""
    return v.Vec(operands[0].dtype, _fewest(operands))


@traced
def quarter_lanes(operands, vec):
    """Vec type of a quarter of the lanes of a Vec type, or of as many as fill whole bytes, if that is more."""
    return v.Vec(operands[0].dtype, max(vec.n // 4, _fewest(operands)))


# --- rows -------------------------------------------------------------------------------------------------------------

_MOST_JOINED = 2 * MOST_ROW  # elements of rows taken as one: of shorter ones as many as fill it
_COPIED = 16  # parameters that are copied at a time, up to this many too many
_PAGE = 4096  # bytes
_ROOM = (_MOST_JOINED + _COPIED) * 8  # bytes of their scales, or zero points, or minima, or maxima
_MEMORY = _PAGE + 2 * _ROOM


@traced
def columns(spec, operands, args, units):
    """Visit elements start..stop, row by row; src and dst hold the elements from `origin` on.

    Rows of a few elements that have the same parameters are taken as one, of as many as `args.repeat` says.
    """
    # on the stack of this function, which outlives a callee that LLVM does not inline: with NUMBA_DEBUGINFO=1 none is
    memory = v.scratch(_MEMORY, types.uint8)
    page = v.advance(memory, -v.address_of(memory) % _PAGE)
    room = page, v.advance(page, _ROOM)
    operands = body.rebase(operands, args, units)
    i = units.start
    stop = units.stop
    status = 0
    most = args.repeat * args.inner
    row = i // args.inner
    first = row * args.inner
    while i < stop:  # outer indices; the divisions for each take as long as a row of 24 elements
        p = _first_parameter(args, row) + first
        alike = rows_alike(args, row)
        left = args.length - row % args.length
        while left > 0 and i < stop:  # rows with the same parameters, from element `first` and parameter p on
            last = min(first + alike * args.inner, stop)
            rows = args.repeat
            width = most
            if last - first < most:
                rows = -(-(last - first) // args.inner)
                width = rows * args.inner
            beside = side_by_side(spec, operands, args, p, rows, room)
            status |= _visit_rows(spec, beside, args, (p if args.repeat == 1 else 0) - first, i, first, last, width)
            merge_rows(operands, args, p, rows, beside)
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
            status |= status_of(visit_group(spec, operands, args, p, i, end, width), False)
        else:
            rows = 1
            end = min(end, last)
            status |= visit(spec, operands, args, p, i, end)
        i = end + (rows - 1) * width
        end = end + rows * width
        p -= rows * width
    return status


@traced
def side_by_side(spec, operands, args, p, rows, room):
    """Operands with the parameters of the columns, from p on, side by side in a buffer for rows taken as one.

    Results begin with those of no elements, see `merge_rows`.
    """
    place = _results_side_by_side if body.reduction_of(operands) else _parameters_side_by_side
    return place(operands, args, p, rows, room)


@traced
def _results_side_by_side(operands, args, p, rows, room):
    if args.repeat == 1:
        return operands
    placed = body.placed(operands, room)
    nothing = nothing_like(operands, body.load_state(placed, 0, _copied(operands[1]))[0])
    for k in range(0, rows * args.inner, _COPIED):
        body.save_state(placed, k, nothing)
    return placed


@traced
def nothing_like(operands, x):
    """Return the state of no elements, in as many lanes as x has."""
    return body.reduction_of(operands).nothing(x)


@traced
def _parameters_side_by_side(operands, args, p, rows, room):
    if args.repeat == 1:
        return operands
    scale, zero_point = parameter_bits(operands)
    _repeat(v.advance(scale, p), room[0], args.inner, rows)
    _repeat(v.advance(zero_point, p), room[1], args.inner, rows)
    return body.placed(operands, room)


@traced
def _repeat(src, room, n, rows):
    """Store the n elements of src `rows` times in succession; up to `_COPIED` more may be written after them."""
    vec = _copied(src)
    at = src
    dst = v.cast_pointer(room, v.dtype_of(src))
    if _reads_next_page(src, n):
        for k in range(n):
            dst[k] = src[k]
        at = dst
    if n <= _COPIED:  # from a register: decision D38
        some = v.load(at, 0, vec)
        for row in range(rows):
            v.store(dst, row * n, some)
        return
    for row in range(rows):
        for k in range(0, n, _COPIED):
            v.store(dst, row * n + k, v.load(at, k, vec))


@traced
def _reads_next_page(where, n):
    """Return whether loading n elements in groups of `_COPIED` touches a page after the last element's.

    That page may be unmapped.
    """
    size = v.bits_of(where) // 8
    end = v.address_of(where) + n * size
    whole = v.address_of(where) + -(-n // _COPIED) * _COPIED * size
    return (end - 1) // _PAGE != (whole - 1) // _PAGE


@traced
def _copied(where):
    """Vec type of as many elements of a pointer as are copied at a time."""
    return v.Vec(where.dtype, _COPIED)


@traced
def merge_rows(operands, args, p, rows, beside):
    """Merge the results of rows side by side into those from p on."""
    if body.reduction_of(operands):
        _merge_rows(operands, args, p, rows, beside)


@traced
def _merge_rows(operands, args, p, rows, beside):
    if args.repeat == 1:
        return
    n = args.inner
    half = rows // 2
    one = v.dtype_of(operands[1])
    vec = _copied(operands[1])
    while rows == 2 * half and half * n % _COPIED == 0:
        for k in range(0, half * n, _COPIED):
            both = body.load_state(beside, half * n + k, vec), body.load_state(beside, k, vec)
            body.save_state(beside, k, body.merge_states(operands, *both))
        rows = half
        half = half // 2
    for k in range(0, n, _COPIED):
        state = body.load_state(beside, k, vec)
        for row in range(1, rows):
            state = body.merge_states(operands, body.load_state(beside, row * n + k, vec), state)
        body.save_state(beside, k, state)
    for k in range(n):
        body.save_state(
            operands,
            p + k,
            body.merge_states(operands, body.load_state(beside, k, one), body.load_state(operands, p + k, one)),
        )


@traced
def _first_parameter(args, row):
    """Return p, so that element j of this row has parameter p + j."""
    outer = row // args.length
    block = (row - outer * args.length) // args.block
    return ((outer // args.cycle * args.kept + outer % args.kept) * args.blocks + block - row) * args.inner


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
            status |= status_of(visit_group(spec, operands, args, p, i, end, args.inner), False)
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
    i, found = stream_row(spec, operands, args, p, i, end, vec)
    if i == end:
        return status_of(found, False)
    i = min(i, last)
    nans = visit_lanes(spec, operands, args, p, i, vec)
    while i < last:
        i = min(i + n, last)
        nans = nans | visit_lanes(spec, operands, args, p, i, vec)
    return status_of(found | v.any_lane(nans), False)


@traced
def _visit_few(spec, operands, args, p, i, end, vec):
    """Visit i..end, as many at a time as `vec` has lanes; the last ones may be visited twice."""
    nan = False
    while i < end:
        i = min(i, end - v.count(vec))
        nan |= v.any_lane(visit_lanes(spec, operands, args, p, i, vec))
        i += v.count(vec)
    return status_of(nan, False)


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
    return converted(spec, operands, args, i, x, scale, zero_point)


_stream_lines = stream_by_lines(_convert_lanes)


@traced
def stream_row(spec, operands, args, p, i, end, vec):
    """Write i..end past the cache, or up to the last whole line; where that ended, and whether a NaN is reported."""
    return (i, False) if body.reduction_of(operands) else _stream_row(spec, operands, args, p, i, end, vec)


@traced
def _stream_row(spec, operands, args, p, i, end, vec):
    if not streams_row(spec, operands, args, i, end):
        return i, False
    return _stream_lines(spec, (spec, operands, args, p), operands.src, operands.dst, i, end, vec)


# --- range and values in one pass: columns of a block ----------------------------------------------------------------


@traced
def block_columns(spec, operands, args, units):
    """Quantize (or fake quantize) units start..stop, each some columns of one block; the first block's come first."""
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
            found = _quantize_piece(spec, operands, args, p, first, rows, column, end, vec)
        elif args.inner >= v.count(quarter):
            found = _quantize_piece(spec, operands, args, p, first, rows, column, end, quarter)
        else:
            found = _quantize_piece(spec, operands, args, p, first, rows, column, end, few)
        nan = nan | found[0]
        infinite = infinite | found[1]
    return status_of(nan, infinite)


@traced
def _quantize_piece(spec, operands, args, p, first, rows, column, end, vec):
    """Quantize the columns up to `end`, as many at a time as `vec` has lanes; the last ones may be done twice."""
    nan = False
    infinite = False
    while column < end:
        column = min(column, end - v.count(vec))
        found = _quantize_columns(spec, operands, args, p, first, rows, column, vec)
        nan = nan | found[0]
        infinite = infinite | found[1]
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
    if streaming:
        load_store.stream_elements(dst, i, y)
    else:
        load_store.store_elements(dst, i, y)


@traced
def _quantize_columns(spec, operands, args, p, first, rows, column, vec):
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
    los, his = parameters.count_nan_as_zero(spec, los, his, nans)
    scales, zero_points = parameters.range_parameters(spec, los, his, args, operands.scale)
    infinite = v.any_lane(is_infinite(scales))
    scales = parameters.mark_nan(spec, scales, nans)
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


# --- parameters alone -------------------------------------------------------------------------------------------------


@traced
def ranges(spec, operands, args, units):
    """Convert ranges start..stop to scales and zero points by the scheme."""
    return status_of(False, _convert_ranges(spec, operands, args, units.start, units.stop, fewest_lanes(operands)))


@traced
def many_ranges(spec, operands, args, units):
    """Convert ranges start..stop as `ranges`, as many at a time as registers hold.

    It takes twice as long to compile: decision D39.
    """
    vec = register_lanes(operands)
    few = fewest_lanes(operands)
    whole = units.stop - (units.stop - units.start) % v.count(vec)
    infinite = _convert_ranges(spec, operands, args, units.start, whole, vec)
    return status_of(False, infinite | _convert_ranges(spec, operands, args, whole, units.stop, few))


@traced
def _convert_ranges(spec, operands, args, start, stop, vec):
    """Convert ranges start..stop, as many at a time as there are lanes; return whether any scale is infinite."""
    infinite = False
    for p in range(start, stop, v.count(vec)):
        lo, hi = v.load(operands.lo, p, vec), v.load(operands.hi, p, vec)
        scale, zero_point = parameters.range_parameters(spec, lo, hi, args, operands.scale)
        parameters.store_parameters(spec, operands, p, scale, zero_point)
        infinite |= v.any_lane(is_infinite(scale))
    return infinite


@traced
def merge_partials(spec, operands, args, units):
    """Merge results start..stop of all partial results into the first partial result."""
    one = v.dtype_of(operands[0])
    for p in range(units.start, units.stop):
        state = body.load_state(operands, p, one)
        for part in range(1, args.partials):
            state = body.merge_states(operands, body.load_state(operands, part * args.partial_stride + p, one), state)
        body.save_state(operands, p, state)
    return 0
