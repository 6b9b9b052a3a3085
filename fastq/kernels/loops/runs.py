"""Loops over contiguous runs with one scale and zero point each (inner == 1)."""

from __future__ import annotations

from numba import types

from fastq.kernels.formulas import Span, base_code, compute_type, computes_in, is_infinite, span
from fastq.kernels.load_store import fetch, group_of, prefetch_lanes, put
from fastq.kernels.loops.block_extremes import ends_of, magnitudes_of, side_by_side
from fastq.kernels.loops.compare import add_errors
from fastq.kernels.loops.nontemporal import finish, flush, in_lines, in_lines_if, place, stage_at
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.spec import (
    compute_lanes,
    for_nan,
    identities,
    nan_in_pair,
    nan_lanes,
    parameter_type,
    parameters,
    put_extents,
    put_parameters,
    result,
    result_in_span,
    saw,
    step_at,
    unsuited,
    value_of,
    zero_at,
)
from fastq.runtime.plan import AHEAD, ahead, in_cache, localize
from fastq.simd.vec import (
    LINE,
    REGISTER_BITS,
    Vec,
    absolute,
    advance,
    any_lane,
    bitcast,
    bits_of,
    by_type,
    cast_pointer,
    constant,
    count,
    dtype_of,
    either_nan,
    inline,
    is_float,
    is_nan,
    lanes,
    lanes_like,
    lower,
    maximum,
    minimum,
    misalignment,
    prefetch,
    reduce_max,
    reduce_min,
    scratch,
    select,
    store,
    upper,
)


def spans(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Do `action` to elements start..stop, run by run; src and dst hold the elements from `origin` on."""
    src, dst, plan = advance(src, -origin), advance(dst, -origin), localize(plan, parameter_type(action, scale))
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
def fetched_in(registers, src):
    """Vec type of elements of src that fill so many registers, a literal, once they are fetched."""
    if not isinstance(registers, types.IntegerLiteral):
        return None
    width = 32 if isinstance(src.dtype, Minifloat) else src.dtype.bitwidth
    vec = Vec(src.dtype, registers.literal_value * REGISTER_BITS // width)
    return lambda registers, src: vec


@by_type
def nan_in_halves(action, x):
    """Mask, half as long, of the lanes that may be NaN: one comparison looks at two registers."""
    if is_float(x):
        return lambda action, x: either_nan(lower(x), upper(x))
    return lambda action, x: False


@inline
def extent(action, src, i, end):
    """Smallest and largest element of src[i:end], NaN passed over, and whether there was one."""
    wide, narrow = fetched_in(4, src), fetched_in(1, src)
    # four registers are enough independent chains to hide the latency of a minimum
    if end - i >= count(wide):
        return _extent(action, src, i, end, wide)
    if end - i >= count(narrow):
        return _extent(action, src, i, end, narrow)
    lo, hi = identities(fetch(src, i, dtype_of(src)))
    nan = False
    while i < end:
        x = fetch(src, i, dtype_of(src))
        lo, hi, nan = minimum(x, lo), maximum(x, hi), nan | (x != x)
        i += 1
    return lo, hi, nan


@inline
def _extent(action, src, i, end, vec):
    n = count(vec)
    last = end - n
    x = fetch(src, i, vec)
    los, his = identities(x)
    los, his, nans = minimum(x, los), maximum(x, his), nan_in_halves(action, x)
    i = min(i + n - misalignment(src, i, vec), last)
    while True:
        prefetch_lanes(src, i + AHEAD, vec)
        x = fetch(src, i, vec)
        los, his = minimum(x, los), maximum(x, his)
        nans = nans | nan_in_halves(action, x)
        if i == last:
            return reduce_min(los), reduce_max(his), any_lane(nans)
        i = min(i + n, last)


@inline
def _merge_extent(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    lo, hi, nan = extent(action, src, i, end)
    p += slot * plan.parameters
    put_extents(scale, zero_point, p, minimum(lo, scale[p]), maximum(hi, zero_point[p]), nan)
    return saw(nan, False)


# --- values -----------------------------------------------------------------------------------------------------------


@by_type
def wider(src, dst):
    """The one of two pointers that has the wider elements, dst where they are the same."""
    if src.dtype.bitwidth > dst.dtype.bitwidth:
        return lambda src, dst: src
    return lambda src, dst: dst


@inline
def _lanes_at(context, i, vec):
    """What the Vec at src[i] becomes, and which lanes have a NaN to report."""
    action, src, dst, s, like = context
    prefetch_lanes(src, i + ahead(src), vec)
    x = fetch(src, i, vec)
    return result_in_span(action, value_of(action, x, like), s, dst), nan_lanes(action, x)


_stream_lines = in_lines(_lanes_at)


@inline
def _apply(action, src, dst, plan, scale, zero_point, i, end, like):
    """Write what src[i:end] becomes to dst[i:end]; return whether there was a NaN to report."""
    vec = lanes(src, like, dst)
    n, nan = count(vec), False
    stop = i + (end - i) // group_of(src) // group_of(dst) * group_of(src) * group_of(dst)
    if stop - i >= n and not unsuited(action, scale):
        s = span(action, scale, zero_point, plan.lowest, plan.highest)
        nan |= _apply_lanes(action, src, dst, plan, s, i, stop, like)
        i = stop
    while i < end:
        x = fetch(src, i, dtype_of(src))
        nan |= any_lane(nan_lanes(action, x))
        put(dst, i, result(action, value_of(action, x, like), scale, zero_point, plan.lowest, plan.highest, dst))
        i += 1
    return nan


@inline
def _apply_lanes(action, src, dst, plan, s, i, end, like):
    vec, context = lanes(src, like, dst), (action, src, dst, s, like)
    n, last = count(vec), end - count(vec)
    y, nans = _lanes_at(context, i, vec)
    put(dst, i, y)
    # whole cache lines from here on: NumPy's arrays begin 16 bytes after one, and lines cut in two cost double
    aligned = n - misalignment(wider(src, dst), i, lanes_like(vec, wider(src, dst)))
    if aligned % group_of(src) == 0 and aligned % group_of(dst) == 0:
        i += aligned
    seen = False
    if plan.streaming:
        i, seen = _stream_lines(action, context, src, dst, i, end, vec)
    while i <= last - n:  # two registers a turn share the test for NaN
        x, x2 = fetch(src, i, vec), fetch(src, i + n, vec)
        nans = nans | nan_in_pair(action, x, x2)
        prefetch(src, i + ahead(src))
        prefetch(src, i + n + ahead(src))
        put(dst, i, result_in_span(action, value_of(action, x, like), s, dst))
        put(dst, i + n, result_in_span(action, value_of(action, x2, like), s, dst))
        i += 2 * n
    i = min(i, last)
    while True:
        y, nan = _lanes_at(context, i, vec)
        nans = nans | nan
        put(dst, i, y)
        if i == last:
            break
        i = min(i + n, last)
    return seen | any_lane(nans)


@inline
def _by_parameters(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    step, zero = (
        step_at(action, scale, p, dtype_of(scale)),
        zero_at(action, zero_point, p, dtype_of(zero_point), plan, scale),
    )
    return saw(_apply(action, src, dst, plan, step, zero, i, end, scale), False)


# --- range and values in one pass -------------------------------------------------------------------------------------


@inline
def _by_range(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    lo, hi, nan = extent(action, src, i, end)
    step, zero = parameters(action, lo, hi, plan, scale)
    step = for_nan(action, step, nan)
    put_parameters(action, scale, zero_point, p, step, zero)
    return saw(_apply(action, src, dst, plan, step, zero, i, end, scale), is_infinite(step))


# --- the same for blocks that fill registers --------------------------------------------------------------------------

WHOLE_BLOCKS = (16, 32, 64, 128)  # sizes of blocks
_STAGED = 16 * max(WHOLE_BLOCKS) * 4 + 2 * LINE  # bytes of as many blocks of float32 as are computed side by side
_SPANS = 6 * 16  # numbers of 32 bits, or half as many of 64, that a `Span` for each of them consists of


def blocks(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
    """Do `action` to blocks start..stop, all of the size that the action names; ranges are taken from them.

    As many blocks as a register has lanes have their parameters computed side by side, and those of the next ones
    before the values of these: a CPU does one while it waits for the divisions of the other.
    """
    src, dst, plan = advance(src, -origin), advance(dst, -origin), localize(plan, parameter_type(action, scale))
    n, size = count(compute_lanes(action, scale, 1)), count(block_lanes(action, src))
    now, following = scratch(_SPANS, compute_type(action, scale)), scratch(_SPANS, compute_type(action, scale))
    streaming, plan = in_lines_if(action, dst, plan.streaming), in_cache(plan)
    stage, out = stage_at(scratch(_STAGED, types.uint8), advance(dst, start * size)), dst
    p, seen, ready = start, 0, False
    if p <= stop - n:
        ready, seen = _several_parameters(action, src, scale, zero_point, plan, p, now)
    while p <= stop - n:
        now_ready = ready
        if p + n <= stop - n:
            ready, reported = _several_parameters(action, src, scale, zero_point, plan, p + n, following)
            seen |= reported
        if streaming:
            out = advance(cast_pointer(place(stage), dtype_of(dst)), -p * size)
        if now_ready:
            _several_values(action, src, out, scale, p, now)
        else:
            for k in range(n):
                seen |= _one_block(action, src, out, scale, zero_point, plan, p + k)
        if streaming:
            stage = flush(stage, n * size * bits_of(dst) >> 3)
        now, following = following, now
        p += n
    finish(stage)
    while p < stop:
        seen |= _one_block(action, src, dst, scale, zero_point, plan, p)
        p += 1
    return seen


@by_type
def block_lanes(action, src):
    """Vec type of a whole block."""
    vec = Vec(src.dtype, action.block)
    return lambda action, src: vec


def _from_magnitude(action):
    """Return whether the largest magnitude is enough to know of a range, as in most symmetric schemes."""
    return action.scheme in ("microscaling", "nvfp4") or (action.scheme == "symmetric" and not action.rule.range.signed)


@by_type
def marks_nan(action):
    """Whether a block with NaN has a scale of NaN."""
    marks = action.nan == "keep" and action.own != ""
    return lambda action: marks


@by_type
def reports_nan(action):
    """Whether NaN is refused."""
    reports = action.nan == "raise"
    return lambda action: reports


@by_type
def value_in_range(action, x, scale):
    """Input lanes as ranges are taken of them: NaN that is neither refused nor marks its block is passed over."""
    if is_float(x) and action.nan == "keep" and not action.own:
        return lambda action, x, scale: value_of(action, select(is_nan(x), constant(0, x), x), scale)
    return lambda action, x, scale: value_of(action, x, scale)


# --- as many as a register has lanes


def _in_register(action, scale):
    """Return how many numbers of the type to compute in fill a register."""
    return REGISTER_BITS // computes_in(action, scale).bitwidth


@by_type
def _sides_of_block(context, k):
    """Sides of block k, in a register."""
    action, _, scale = context.types
    of, n = magnitudes_of if _from_magnitude(action) else ends_of, _in_register(action, scale)

    def of_block(context, k):
        action, src, scale = context
        vec = block_lanes(action, src)
        return of(value_in_range(action, fetch(src, k * count(vec), vec), scale), n)

    return of_block


_sides = side_by_side(_sides_of_block)


@by_type
def extents_of(action, src, scale, p):
    """Lowest and highest values of the ranges of blocks from p on, and a mask of those with NaN."""
    n, dtype = _in_register(action, scale), computes_in(action, scale)

    def ends(action, src, scale, p):
        sides = _sides((action, src, scale), p, n)
        return sides.low, sides.high, sides.nan

    def magnitudes(action, src, scale, p):
        most = bitcast(_sides((action, src, scale), p, n).high, dtype)
        return -most, most, is_nan(most)

    return magnitudes if _from_magnitude(action) else ends


@inline
def _several_parameters(action, src, scale, zero_point, plan, p, memory):
    """Take the parameters of blocks from p on from their ranges; write what `span` makes of them to memory.

    Return whether all of them suit it, and what was seen.
    """
    n = count(compute_lanes(action, scale, 1))
    lo, hi, nans = extents_of(action, src, scale, p)
    steps, zeros = parameters(action, lo, hi, plan, scale)
    if any_lane(unsuited(action, steps)) or (marks_nan(action) and any_lane(nans)):
        return False, 0
    put_parameters(action, scale, zero_point, p, steps, zeros)
    s = span(action, steps, zeros, plan.lowest, plan.highest)
    store(memory, 0, s.scale)
    store(memory, n, s.zero_point)
    store(memory, 2 * n, s.factor)
    store(memory, 3 * n, s.below)
    store(memory, 4 * n, s.above)
    store(_bases(memory, n), 0, base_code(s))
    return True, saw(reports_nan(action) and any_lane(nans), False)


@inline
def _bases(memory, n):
    """Where spans of n blocks in memory have their `base`."""
    return cast_pointer(advance(memory, 5 * n), types.int32)


@inline
def _several_values(action, src, dst, scale, p, memory):
    vec, n = block_lanes(action, src), count(compute_lanes(action, scale, 1))
    bases = _bases(memory, n)
    for k in range(n):
        s = Span(memory[k], memory[n + k], bases[k], memory[2 * n + k], memory[3 * n + k], memory[4 * n + k])
        i = (p + k) * count(vec)
        prefetch_lanes(src, i + AHEAD, vec)
        put(dst, i, result_in_span(action, value_of(action, fetch(src, i, vec), scale), s, dst))


# --- one


@by_type
def extent_of(action, x):
    """A range with the parameters of that of the lanes."""
    if _from_magnitude(action):

        def magnitude(action, x):
            most = reduce_max(absolute(x))
            return -most, most

        return magnitude
    return lambda action, x: (reduce_min(x), reduce_max(x))


@by_type
def has_nan(action, x):
    """Whether a lane is NaN."""
    if is_float(x):
        return lambda action, x: any_lane(is_nan(x))
    return lambda action, x: False


@inline
def _one_block(action, src, dst, scale, zero_point, plan, p):
    vec = block_lanes(action, src)
    i = p * count(vec)
    x = fetch(src, i, vec)
    nan = any_lane(nan_lanes(action, x))
    lo, hi = extent_of(action, value_in_range(action, x, scale))
    step, zero = parameters(action, lo, hi, plan, scale)
    step = for_nan(action, step, has_nan(action, x))
    put_parameters(action, scale, zero_point, p, step, zero)
    _apply(action, src, dst, plan, step, zero, i, i + count(vec), scale)
    return saw(nan, is_infinite(step))


# --- errors -----------------------------------------------------------------------------------------------------------


@inline
def _compare(action, src, dst, scale, zero_point, sums, plan, p, i, end, slot):
    step = step_at(action, scale, p, dtype_of(scale))
    zero = zero_at(action, zero_point, p, dtype_of(zero_point), plan, scale)
    return add_errors(action, advance(src, i), advance(dst, i), step, zero, sums, plan, i // plan.chunk, end - i)
