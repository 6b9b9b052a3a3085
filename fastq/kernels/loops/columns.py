"""Loops over rows whose neighbouring elements have different parameters (inner > 1)."""

from __future__ import annotations

from fastq.kernels.formulas import is_infinite
from fastq.kernels.load_store import fetch, group_size, prefetch_lanes, put, put_streaming
from fastq.kernels.loops.compare import add_errors
from fastq.kernels.loops.nontemporal import goes_in_lines, in_lines, to_line
from fastq.kernels.loops.row_tile import go_abreast, rows_abreast
from fastq.kernels.spec import (
    compute_lanes,
    for_nan,
    identities,
    nan_lanes,
    parameter_type,
    parameters,
    put_extents,
    put_parameters,
    result,
    saw,
    step_at,
    value_of,
    zero_at,
)
from fastq.runtime.plan import AHEAD, ahead, localize
from fastq.simd.vec import (
    LINE,
    REGISTER_BITS,
    Vec,
    advance,
    any_lane,
    by_type,
    count,
    inline,
    is_float,
    is_nan,
    lanes_like,
    load,
    maximum,
    minimum,
    prefetch,
)
from fastq.simd.vec import lanes as lanes_of


@by_type
def fewest_lanes(src, dst):
    """Vec type of as few elements of src as fill whole bytes, there and in dst."""
    vec = Vec(src.dtype, max(group_size(src), group_size(dst)))
    return lambda src, dst: vec


# --- rows -------------------------------------------------------------------------------------------------------------


def lanes(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Do `action` to elements start..stop, row by row; src and dst hold the elements from `origin` on."""
    src, dst, plan = advance(src, -origin), advance(dst, -origin), localize(plan, parameter_type(action, scale))
    i, seen = start, 0
    while i < stop:
        row = i // plan.inner
        p, end = _parameters_of(plan, row), min((row + 1) * plan.inner, stop)
        rows = rows_abreast(action, src, scale, dst, plan, row, end - i)
        if rows > 1 and i == row * plan.inner and i + rows * plan.inner <= stop:
            seen |= saw(go_abreast(action, src, dst, scale, zero_point, plan, p, i, end, slot), False)
            i += rows * plan.inner
        else:
            seen |= visit(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot)
            i = end
    return seen


@inline
def _parameters_of(plan, row):
    """p, so that element j of this row has parameter p + j."""
    outer = row // plan.length
    block = (row - outer * plan.length) // plan.block
    return ((outer // plan.cycle * plan.kept + outer % plan.kept) * plan.blocks + block - row) * plan.inner


def columns(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Do `action` to columns start..stop of every row; src and dst hold all elements."""
    plan, seen, row = localize(plan, parameter_type(action, scale)), 0, 0
    while row < plan.outer * plan.length:
        p, i, end = _parameters_of(plan, row), row * plan.inner + start, row * plan.inner + stop
        rows = rows_abreast(action, src, scale, dst, plan, row, stop - start)
        if rows > 1:
            seen |= saw(go_abreast(action, src, dst, scale, zero_point, plan, p, i, end, slot), False)
        else:
            seen |= visit(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot)
        row += rows
    return seen


@by_type
def visit(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    """Do `action` to i..end, a piece of one row; element j has parameter p + j."""
    return _compare if action.does == "compare" else _row


@inline
def _row(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    vec = lanes_of(src, scale, dst)
    n = count(vec)
    if end - i < n:
        few, nan = fewest_lanes(src, dst), False
        while i < end:
            nan |= any_lane(piece(action, src, dst, scale, zero_point, plan, p, i, few, slot))
            i += count(few)
        return saw(nan, False)
    last, seen = end - n, False
    nans = piece(action, src, dst, scale, zero_point, plan, p, i, vec, slot)
    if plan.streaming:
        stop, seen = _stream_lines(action, (action, src, dst, scale, zero_point, plan, p), src, dst, i, end, vec)
        i = max(i, stop - n)
    while i < last:
        i = min(i + n, last)
        nans = nans | piece(action, src, dst, scale, zero_point, plan, p, i, vec, slot)
    return saw(seen | any_lane(nans), False)


@by_type
def piece(action, src, dst, scale, zero_point, plan, p, i, vec, slot):
    """Do `action` to the lanes from i on; a mask of those with a NaN to report."""
    return _merge_extents if action.does == "minmax" else _by_parameters


@inline
def _merge_extents(action, src, dst, scale, zero_point, plan, p, i, vec, slot):
    prefetch(src, i + AHEAD)
    x = fetch(src, i, vec)
    p += slot * plan.parameters + i
    los, his = load(scale, p, lanes_like(vec, scale)), load(zero_point, p, lanes_like(vec, scale))
    put_extents(scale, zero_point, p, minimum(x, los), maximum(x, his), nan_lanes(action, x))
    return nan_lanes(action, x)


@inline
def _by_parameters(action, src, dst, scale, zero_point, plan, p, i, vec, slot):
    y, nans = _values_at((action, src, dst, scale, zero_point, plan, p), i, vec)
    put(dst, i, y)
    return nans


@inline
def _values_at(context, i, vec):
    """What the Vec at src[i] becomes, and which lanes have a NaN to report."""
    action, src, dst, scale, zero_point, plan, p = context
    prefetch_lanes(src, i + ahead(src), vec)
    x = fetch(src, i, vec)
    step = step_at(action, scale, p + i, lanes_like(vec, scale))
    zero = zero_at(action, zero_point, p + i, lanes_like(vec, zero_point), plan, scale)
    return result(action, value_of(action, x, scale), step, zero, plan.lowest, plan.highest, dst), nan_lanes(action, x)


_stream_lines = in_lines(_values_at)


@inline
def _compare(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    steps, zeros = advance(scale, p + i), advance(zero_point, p + i)
    return add_errors(action, advance(src, i), advance(dst, i), steps, zeros, sums, plan, i // plan.chunk, end - i)


# --- range and values in one pass: stripes of a block -----------------------------------------------------------------

STRIPE = 4  # registers side by side: rows are read 256 bytes at a time, which keeps the prefetchers going
STRIPE_BYTES = STRIPE * REGISTER_BITS // 8


def stripes(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Quantize (or fake quantize) stripes start..stop, each some columns of one block; the first block's come first."""
    src, dst, plan = advance(src, -origin), advance(dst, -origin), localize(plan, parameter_type(action, scale))
    vec, few = compute_lanes(action, scale, STRIPE), fewest_lanes(src, dst)
    n = count(vec)
    across = (plan.inner + n - 1) // n
    infinite, nan = False, False
    for unit in range(start, stop):
        p = unit // across
        outer = p // plan.blocks
        first = outer * plan.length + (p - outer * plan.blocks) * plan.block
        rows = min(plan.block, (outer + 1) * plan.length - first)
        column = (unit - p * across) * n
        if column + n <= plan.inner or plan.inner >= n:
            column = min(column, plan.inner - n)
            seen = _stripe(action, src, dst, scale, zero_point, plan, p, first, rows, column, lanes_like(vec, src))
            nan, infinite = nan | seen[0], infinite | seen[1]
            continue
        while column < plan.inner:
            seen = _stripe(action, src, dst, scale, zero_point, plan, p, first, rows, column, few)
            nan, infinite = nan | seen[0], infinite | seen[1]
            column += count(few)
    return saw(nan, infinite)


@by_type
def nan_to_keep(action, x):
    """Mask of the lanes whose NaN makes a scale NaN."""
    if is_float(x) and action.nan == "keep" and action.own:
        return lambda action, x: is_nan(x)
    return lambda action, x: False


@by_type
def put_piece(action, dst, i, y, streaming):
    """Write y to dst[i] onwards, past the cache if asked for and they are whole lines of their own."""
    if not goes_in_lines(action, dst) or y.n * dst.dtype.bitwidth % (8 * LINE):
        return lambda action, dst, i, y, streaming: put(dst, i, y)

    def put_either(action, dst, i, y, streaming):
        if streaming:
            put_streaming(dst, i, y)
        else:
            put(dst, i, y)

    return put_either


@inline
def _stripe(action, src, dst, scale, zero_point, plan, p, first, rows, column, vec):
    x = fetch(src, first * plan.inner + column, vec)
    los, his = identities(x)
    missing = nan_to_keep(action, x)
    i = first * plan.inner + column
    for _ in range(rows):
        x = fetch(src, i, vec)
        los, his = minimum(x, los), maximum(x, his)
        missing = missing | nan_to_keep(action, x)
        i += plan.inner
    steps, zeros = parameters(action, los, his, plan, scale)
    steps = for_nan(action, steps, missing)
    put_parameters(action, scale, zero_point, p * plan.inner + column, steps, zeros)
    i = first * plan.inner + column
    nans = nan_lanes(action, x)
    # two rows on lines: then all are
    streaming = plan.streaming and to_line(dst, i) == 0 and to_line(dst, i + plan.inner) == 0
    for _ in range(rows):
        x = fetch(src, i, vec)
        nans = nans | nan_lanes(action, x)
        y = result(action, value_of(action, x, scale), steps, zeros, plan.lowest, plan.highest, dst)
        put_piece(action, dst, i, y, streaming)
        i += plan.inner
    return any_lane(nans), any_lane(is_infinite(steps))


# --- parameters alone -------------------------------------------------------------------------------------------------


def ranges(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Turn ranges start..stop, lowest values in src and highest in dst, into scale and zero point by the scheme."""
    vec, infinite, plan = fewest_lanes(src, dst), False, localize(plan, parameter_type(action, scale))
    for p in range(start, stop):
        steps, zeros = parameters(action, load(src, p, vec), load(dst, p, vec), plan, scale)
        put_parameters(action, scale, zero_point, p, steps, zeros)
        infinite |= any_lane(is_infinite(steps))
    return saw(False, infinite)


def fold(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Bring minima and maxima of `origin` parts, `stop` of each one after the other, together in the first part."""
    for p in range(start, stop):
        lo, hi = scale[p], zero_point[p]
        for part in range(1, origin):
            lo, hi = minimum(scale[part * stop + p], lo), maximum(zero_point[part * stop + p], hi)
        scale[p], zero_point[p] = lo, hi
    return 0
