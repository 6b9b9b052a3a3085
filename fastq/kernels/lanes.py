"""Loops over rows whose neighbouring elements have different parameters (inner > 1)."""

from __future__ import annotations

from fastq.kernels.actions import identities, nan_lanes, parameters, put_parameters, result, saw, value_of
from fastq.kernels.errors import add_errors
from fastq.kernels.formulas import is_infinite
from fastq.kernels.plan import AHEAD, localize
from fastq.kernels.simd import (
    REGISTER_BITS,
    Vec,
    advance,
    any_lane,
    by_type,
    constant,
    convert,
    count,
    dtype_of,
    inline,
    is_float,
    is_nan,
    lanes_in,
    lanes_like,
    load,
    maximum,
    minimum,
    prefetch,
    select,
    store,
)
from fastq.kernels.simd import lanes as lanes_of


@by_type
def one_lane(where):
    """Vec type of one element of `where`."""
    vec = Vec(where.dtype, 1)
    return lambda where: vec


# --- rows -------------------------------------------------------------------------------------------------------------


def lanes(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Do `action` to elements start..stop, row by row; src and dst hold the elements from `origin` on."""
    src, dst, plan = advance(src, -origin), advance(dst, -origin), localize(plan, scale)
    i, seen = start, 0
    while i < stop:
        row = i // plan.inner
        p = _parameters_of(plan, row)
        end = min((row + 1) * plan.inner, stop)
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
    plan, seen = localize(plan, scale), 0
    for row in range(plan.outer * plan.length):
        p, first = _parameters_of(plan, row), row * plan.inner
        seen |= visit(action, src, dst, scale, zero_point, sums, plan, p, first + start, first + stop, slot)
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
        vec_1, nan = one_lane(src), False
        while i < end:
            nan |= any_lane(piece(action, src, dst, scale, zero_point, plan, p, i, vec_1, slot))
            i += 1
        return saw(nan, False)
    last = end - n
    nans = piece(action, src, dst, scale, zero_point, plan, p, i, vec, slot)
    while i < last:
        i = min(i + n, last)
        nans = nans | piece(action, src, dst, scale, zero_point, plan, p, i, vec, slot)
    return saw(any_lane(nans), False)


@by_type
def piece(action, src, dst, scale, zero_point, plan, p, i, vec, slot):
    """Do `action` to the lanes from i on; a mask of those with a NaN to report."""
    return _merge_extents if action.does == "minmax" else _by_parameters


@by_type
def nan_as_zero(x):
    """The lanes with NaN as 0.0, and which they are."""
    if is_float(x):
        return lambda x: (select(is_nan(x), constant(0, x), x), is_nan(x))
    return lambda x: (x, False)


@inline
def _merge_extents(action, src, dst, scale, zero_point, plan, p, i, vec, slot):
    prefetch(src, i + AHEAD)
    x, nans = nan_as_zero(load(src, i, vec))
    x = x + constant(0, x)  # -0.0 becomes 0.0, or which of the two is found would depend on the order
    p += slot * plan.parameters + i
    store(scale, p, minimum(x, load(scale, p, vec)))
    store(zero_point, p, maximum(x, load(zero_point, p, vec)))
    return nans


@inline
def _by_parameters(action, src, dst, scale, zero_point, plan, p, i, vec, slot):
    compute = dtype_of(scale)
    prefetch(src, i + AHEAD)
    x = load(src, i, vec)
    step = load(scale, p + i, lanes_like(vec, scale))
    zero = convert(load(zero_point, p + i, lanes_like(vec, zero_point)), compute)
    store(dst, i, result(action, value_of(action, x, scale), step, zero, plan.lowest, plan.highest, dst))
    return nan_lanes(action, x)


@inline
def _compare(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    steps, zeros = advance(scale, p + i), advance(zero_point, p + i)
    return add_errors(advance(src, i), advance(dst, i), steps, zeros, sums, plan, i // plan.chunk, end - i)


# --- range and values in one pass: stripes of a block -----------------------------------------------------------------

STRIPE = 4  # registers side by side: rows are read 256 bytes at a time, which keeps the prefetchers going
STRIPE_BYTES = STRIPE * REGISTER_BITS // 8


def stripes(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Quantize (or fake quantize) stripes start..stop, each some columns of one block; the first block's come first."""
    src, dst, plan = advance(src, -origin), advance(dst, -origin), localize(plan, scale)
    vec, vec_1 = lanes_in(STRIPE, scale), one_lane(src)
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
            seen = _stripe(action, src, dst, scale, zero_point, plan, p, first, rows, column, vec_1)
            nan, infinite = nan | seen[0], infinite | seen[1]
            column += 1
    return saw(nan, infinite)


@inline
def _stripe(action, src, dst, scale, zero_point, plan, p, first, rows, column, vec):
    x = load(src, first * plan.inner + column, vec)
    los, his = identities(x)
    i = first * plan.inner + column
    for _ in range(rows):
        x = load(src, i, vec)
        los, his = minimum(x, los), maximum(x, his)
        i += plan.inner
    steps, zeros = parameters(action, los, his, plan, scale)
    put_parameters(action, scale, zero_point, p * plan.inner + column, steps, zeros)
    i = first * plan.inner + column
    nans = nan_lanes(action, x)
    for _ in range(rows):
        x = load(src, i, vec)
        nans = nans | nan_lanes(action, x)
        store(dst, i, result(action, value_of(action, x, scale), steps, zeros, plan.lowest, plan.highest, dst))
        i += plan.inner
    return any_lane(nans), any_lane(is_infinite(steps))


# --- parameters alone -------------------------------------------------------------------------------------------------


def ranges(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Turn ranges start..stop, lowest values in src and highest in dst, into scale and zero point by the scheme."""
    vec, infinite, plan = one_lane(src), False, localize(plan, scale)
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
