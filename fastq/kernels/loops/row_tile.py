"""Several rows at a time, whose elements in one column share their parameters: these are read once for all of them."""

from __future__ import annotations

from fastq.kernels.formulas import span
from fastq.kernels.load_store import fetch, prefetch_lanes, put
from fastq.kernels.spec import nan_in_pair, put_extents, result_in_span, step_at, value_of, zero_at
from fastq.runtime.plan import AHEAD
from fastq.simd.vec import (
    any_lane,
    by_type,
    count,
    inline,
    lanes,
    lanes_like,
    load,
    maximum,
    minimum,
)

ABREAST = 4
# of each row; 2048 elements of four rows do not fit a cache of the first level (minima of columns of 2**22 float32 on
# two cores of a Zen 5: 21 Gelem/s with 2048, 30 with 512)
AHEAD_OF_ROWS = AHEAD // ABREAST


@by_type
def rows_abreast(action, src, scale, dst, plan, row, width):
    """How many rows from this one on are to be done at a time, `width` elements of each: `ABREAST`, or 1.

    It pays where the CPU would wait for loads, and the cache holds the array. To quantize takes as long either way, and
    memory gives rows one by one faster: minima and maxima of 2**26 float32 10.0 Gelem/s, four at a time 9.2.
    """
    if action.does not in _PIECES:
        return lambda action, src, scale, dst, plan, row, width: 1

    def rows(action, src, scale, dst, plan, row, width):
        within = row % plan.length
        alike = min(plan.length - within, plan.block - within % plan.block)
        together = alike >= ABREAST and width >= count(lanes(src, scale, dst)) and not plan.streaming
        return ABREAST if together else 1

    return rows


@by_type
def go_abreast(action, src, dst, scale, zero_point, plan, p, i, end, slot):
    """Do `action` to `ABREAST` rows; the first has elements i..end, j of them with parameter p + j.

    Return whether there was a NaN to report.
    """
    if action.does not in _PIECES:
        return lambda action, src, dst, scale, zero_point, plan, p, i, end, slot: False
    piece = _PIECES[action.does]

    def go(action, src, dst, scale, zero_point, plan, p, i, end, slot):
        vec, seen = lanes(src, scale, dst), False
        while i < end:
            i = min(i, end - count(vec))
            for r in range(ABREAST):
                prefetch_lanes(src, i + r * plan.inner + AHEAD_OF_ROWS, vec)
            seen |= any_lane(piece(action, src, dst, scale, zero_point, plan, p, i, vec, slot))
            i += count(vec)
        return seen

    return go


@inline
def _merge_extents(action, src, dst, scale, zero_point, plan, p, i, vec, slot):
    p += slot * plan.parameters + i
    los, his = load(scale, p, lanes_like(vec, scale)), load(zero_point, p, lanes_like(vec, scale))
    nans = nan_in_pair(action, los, his)
    for r in range(0, ABREAST, 2):
        x, y = fetch(src, i + r * plan.inner, vec), fetch(src, i + (r + 1) * plan.inner, vec)
        los, his = minimum(y, minimum(x, los)), maximum(y, maximum(x, his))
        nans = nans | nan_in_pair(action, x, y)
    put_extents(scale, zero_point, p, los, his, nans)
    return nans


@inline
def _dequantize(action, src, dst, scale, zero_point, plan, p, i, vec, slot):
    step = step_at(action, scale, p + i, lanes_like(vec, scale))
    zero = zero_at(action, zero_point, p + i, lanes_like(vec, zero_point), plan, scale)
    s = span(action, step, zero, plan.lowest, plan.highest)
    for r in range(ABREAST):
        k = i + r * plan.inner
        put(dst, k, result_in_span(action, value_of(action, fetch(src, k, vec), scale), s, dst))
    return False


# what is done to the lanes from i on, of all rows; a mask of those with a NaN to report
_PIECES = {"minmax": _merge_extents, "dequantize": _dequantize}
