"""Loops over contiguous runs with one scale and zero point each (inner == 1)."""

from __future__ import annotations

from fastq.kernels.actions import (
    identities,
    nan_in_pair,
    nan_lanes,
    parameters,
    put_parameters,
    result,
    result_in_span,
    saw,
    suits,
    value_of,
)
from fastq.kernels.errors import add_errors
from fastq.kernels.formulas import Span, compute_type, is_infinite, span
from fastq.kernels.plan import AHEAD, localize
from fastq.kernels.simd import (
    REGISTER_BITS,
    Vec,
    absolute,
    advance,
    any_lane,
    by_type,
    constant,
    convert,
    count,
    dtype_of,
    either_nan,
    inline,
    is_float,
    lanes,
    lanes_in,
    lanes_like,
    load,
    lower,
    maximum,
    minimum,
    misalignment,
    prefetch,
    reduce_max,
    reduce_min,
    scratch,
    store,
    stream,
    upper,
)


def spans(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Do `action` to elements start..stop, run by run; src and dst hold the elements from `origin` on."""
    src, dst, plan = advance(src, -origin), advance(dst, -origin), localize(plan, scale)
    i, seen = start, 0
    while i < stop:
        outer = i // plan.length
        first = outer * plan.length
        block = (i - first) // plan.block
        p = (outer // plan.cycle * plan.kept + outer % plan.kept) * plan.blocks + block
        line, end = min(first + plan.length, stop), first + (block + 1) * plan.block
        while i < line:
            end = min(end, line)
            seen |= visit(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot)
            i, end, p = end, end + plan.block, p + 1
    return seen


@by_type
def visit(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    """Do `action` to the run i..end, whose parameters have index p."""
    if action.scheme:
        return _by_range
    return {"minmax": _merge_extent, "compare": _compare}.get(action.does, _by_parameters)


# --- range ------------------------------------------------------------------------------------------------------------


@by_type
def nan_in_halves(action, x):
    """Mask, half as long, of the lanes that may be NaN: one comparison looks at two registers."""
    if is_float(x):
        return lambda action, x: either_nan(lower(x), upper(x))
    return lambda action, x: False


@inline
def extent(action, src, i, end):
    """Smallest and largest element of src[i:end], NaN passed over, and whether there was one."""
    wide, narrow = lanes_in(4, src), lanes_in(1, src)
    # four registers are enough independent chains to hide the latency of a minimum
    if end - i >= count(wide):
        return _extent(action, src, i, end, wide)
    if end - i >= count(narrow):
        return _extent(action, src, i, end, narrow)
    lo, hi = identities(src[i])
    nan = False
    while i < end:
        x = src[i]
        lo, hi, nan = minimum(x, lo), maximum(x, hi), nan | (x != x)
        i += 1
    return lo, hi, nan


@by_type
def prefetch_lanes(src, i, vec):
    """Prefetch a register, or four."""
    step = REGISTER_BITS // src.dtype.bitwidth
    if vec.instance_type.n == step:
        return lambda src, i, vec: prefetch(src, i)

    def four(src, i, vec):
        prefetch(src, i)
        prefetch(src, i + step)
        prefetch(src, i + 2 * step)
        prefetch(src, i + 3 * step)

    return four


@inline
def _extent(action, src, i, end, vec):
    n = count(vec)
    last = end - n
    x = load(src, i, vec)
    los, his = identities(x)
    los, his, nans = minimum(x, los), maximum(x, his), nan_in_halves(action, x)
    i = min(i + n - misalignment(src, i, vec), last)
    while True:
        prefetch_lanes(src, i + AHEAD, vec)
        x = load(src, i, vec)
        los, his = minimum(x, los), maximum(x, his)
        nans = nans | nan_in_halves(action, x)
        if i == last:
            return reduce_min(los), reduce_max(his), any_lane(nans)
        i = min(i + n, last)


@inline
def _merge_extent(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    lo, hi, nan = extent(action, src, i, end)
    if nan:  # counted as 0.0; where NaN is refused the range is not used
        lo, hi = minimum(lo, constant(0, lo)), maximum(hi, constant(0, hi))
    lo, hi = lo + constant(0, lo), hi + constant(0, hi)  # -0.0 becomes 0.0: which is found depends on the order
    p += slot * plan.parameters
    scale[p], zero_point[p] = minimum(lo, scale[p]), maximum(hi, zero_point[p])
    return saw(nan, False)


# --- values -----------------------------------------------------------------------------------------------------------


@by_type
def wider(src, dst):
    """The one of two pointers that has the wider elements, dst where they are the same."""
    if src.dtype.bitwidth > dst.dtype.bitwidth:
        return lambda src, dst: src
    return lambda src, dst: dst


@inline
def _lanes_at(action, src, dst, s, like, vec, i):
    """What the Vec at src[i] becomes, and which lanes have a NaN to report."""
    prefetch(src, i + AHEAD)
    x = load(src, i, vec)
    return result_in_span(action, value_of(action, x, like), s, dst), nan_lanes(action, x)


@inline
def _apply(action, src, dst, plan, scale, zero_point, i, end, like):
    """Write what src[i:end] becomes to dst[i:end]; return whether there was a NaN to report."""
    vec = lanes(src, like, dst)
    n = count(vec)
    if end - i >= n and suits(action, scale):
        s = span(action, scale, zero_point, plan.lowest, plan.highest)
        last = end - n
        y, nans = _lanes_at(action, src, dst, s, like, vec, i)
        store(dst, i, y)
        # whole cache lines from here on: NumPy's arrays begin 16 bytes after one, and lines cut in two cost double
        i += n - misalignment(wider(src, dst), i, lanes_like(vec, wider(src, dst)))
        if plan.streaming:
            while i <= last:
                y, nan = _lanes_at(action, src, dst, s, like, vec, i)
                nans = nans | nan
                stream(dst, i, y)
                i += n
        while i <= last - n:  # two registers a turn share the test for NaN
            x, x2 = load(src, i, vec), load(src, i + n, vec)
            nans = nans | nan_in_pair(action, x, x2)
            prefetch(src, i + AHEAD)
            prefetch(src, i + n + AHEAD)
            store(dst, i, result_in_span(action, value_of(action, x, like), s, dst))
            store(dst, i + n, result_in_span(action, value_of(action, x2, like), s, dst))
            i += 2 * n
        i = min(i, last)
        while True:
            y, nan = _lanes_at(action, src, dst, s, like, vec, i)
            nans = nans | nan
            store(dst, i, y)
            if i == last:
                break
            i = min(i + n, last)
        return any_lane(nans)
    nan = False
    while i < end:
        x = src[i]
        nan |= any_lane(nan_lanes(action, x))
        dst[i] = result(action, value_of(action, x, like), scale, zero_point, plan.lowest, plan.highest, dst)
        i += 1
    return nan


@inline
def _by_parameters(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    zero = convert(zero_point[p], dtype_of(scale))
    return saw(_apply(action, src, dst, plan, scale[p], zero, i, end, scale), False)


# --- range and values in one pass -------------------------------------------------------------------------------------


@inline
def _by_range(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    lo, hi, _ = extent(action, src, i, end)
    step, zero = parameters(action, lo, hi, plan, scale)
    put_parameters(action, scale, zero_point, p, step, zero)
    return saw(_apply(action, src, dst, plan, step, zero, i, end, scale), is_infinite(step))


# --- the same for blocks that fill registers --------------------------------------------------------------------------


def blocks(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Do `action` to blocks start..stop, all of the size that the action names; ranges are taken from them."""
    src, dst, plan = advance(src, -origin), advance(dst, -origin), localize(plan, scale)
    n = count(lanes(scale))
    memory = scratch(6 * 16, dtype_of(scale))
    p, seen = start, 0
    while p <= stop - n:
        seen |= _several_blocks(action, src, dst, scale, zero_point, plan, p, memory)
        p += n
    while p < stop:
        seen |= _one_block(action, src, dst, scale, zero_point, plan, p)
        p += 1
    return seen


@by_type
def block_lanes(action, src):
    """Vec type of a whole block."""
    vec = Vec(src.dtype, action.block)
    return lambda action, src: vec


@by_type
def extent_of(action, x):
    """A range with the parameters of that of the lanes: for a symmetric scheme any that has their largest magnitude."""
    if action.scheme == "symmetric" and is_float(x) and not action.rule.range.signed:

        def magnitude(action, x):
            most = reduce_max(absolute(x))
            return -most, most

        return magnitude
    return lambda action, x: (reduce_min(x), reduce_max(x))


@inline
def _several_blocks(action, src, dst, scale, zero_point, plan, p, memory):
    """As many blocks as a register has lanes: their parameters are computed side by side, 1.6 times faster for 32."""
    vec, several = block_lanes(action, src), lanes(scale)
    size, n = count(vec), count(several)
    nans = nan_lanes(action, load(src, p * size, vec))
    for k in range(n):
        i = (p + k) * size
        prefetch_lanes(src, i + AHEAD, lanes_in(1, src))
        prefetch_lanes(src, i + AHEAD + size // 2, lanes_in(1, src))
        x = load(src, i, vec)
        nans = nans | nan_lanes(action, x)
        memory[k], memory[n + k] = extent_of(action, value_of(action, x, scale))
    steps, zeros = parameters(action, load(memory, 0, several), load(memory, n, several), plan, scale)
    if not (suits(action, reduce_min(steps)) and suits(action, reduce_max(steps))):
        seen = 0
        for k in range(n):
            seen |= _one_block(action, src, dst, scale, zero_point, plan, p + k)
        return seen
    put_parameters(action, scale, zero_point, p, steps, zeros)
    s, compute = span(action, steps, zeros, plan.lowest, plan.highest), compute_type(action, scale)
    for k in range(6):
        store(memory, k * n, convert(s[k], dtype_of(scale)))
    for k in range(n):
        one = Span(
            convert(memory[k], compute),
            convert(memory[n + k], compute),
            convert(memory[2 * n + k], compute),
            convert(memory[3 * n + k], compute),
            convert(memory[4 * n + k], compute),
            convert(memory[5 * n + k], compute),
        )
        i = (p + k) * size
        store(dst, i, result_in_span(action, value_of(action, load(src, i, vec), scale), one, dst))
    return saw(any_lane(nans), False)


@inline
def _one_block(action, src, dst, scale, zero_point, plan, p):
    vec = block_lanes(action, src)
    i = p * count(vec)
    x = load(src, i, vec)
    nan = any_lane(nan_lanes(action, x))
    lo, hi = extent_of(action, value_of(action, x, scale))
    step, zero = parameters(action, lo, hi, plan, scale)
    put_parameters(action, scale, zero_point, p, step, zero)
    _apply(action, src, dst, plan, step, zero, i, i + count(vec), scale)
    return saw(nan, is_infinite(step))


# --- errors -----------------------------------------------------------------------------------------------------------


@inline
def _compare(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    zero = convert(zero_point[p], dtype_of(scale))
    return add_errors(action, advance(src, i), advance(dst, i), scale[p], zero, sums, plan, i // plan.chunk, end - i)
