"""Loops over contiguous runs with one scale and zero point each (inner == 1)."""

from __future__ import annotations

from numba import types

from fastq.jit import njit, specialize
from fastq.kernels.apply import apply_op, apply_op_prepared, to_compute
from fastq.kernels.formulas import compute_type, is_infinite, needs_division, prepare_scale
from fastq.kernels.load_store import (
    group_of,
    load_elements,
    prefetch_distance,
    prefetch_lanes,
    store_elements,
)
from fastq.kernels.loops.compare import add_errors
from fastq.kernels.loops.histogram import count_run
from fastq.kernels.loops.min_max import min_max
from fastq.kernels.loops.nontemporal import ENOUGH, finish, goes_in_lines, grown, in_lines, place, stage_at
from fastq.kernels.loops.prepared import PREPARED, load_prepared, store_prepared
from fastq.kernels.loops.range_search import add_candidates, shrink_range
from fastq.kernels.operands import CandidateOperands, ElementOperands, SearchOperands, rebase, register_lanes
from fastq.kernels.parameters import (
    count_nan_as_zero,
    load_scale,
    load_zero_point,
    mark_nan,
    range_parameters,
    store_min_max,
    store_parameters,
)
from fastq.kernels.spec import compute_lanes, nan_mask, nan_mask_of_two, status_of
from fastq.simd import (
    LINE,
    advance,
    any_lane,
    bits_of,
    cast_pointer,
    count,
    dtype_of,
    full_like,
    lane_count,
    lanes_like,
    load,
    maximum,
    minimum,
    misalignment,
    prefetch,
    scratch,
)
from fastq.system import tuning

PREFETCH_ROW = tuning.current().prefetch_row
PIECE_BYTES = 1 << 13  # of results that are staged at a time: a quarter of the smallest L1 cache
_STAGE_BYTES = PIECE_BYTES + ENOUGH + 2 * LINE


@njit
def runs(spec, operands, args, units):
    """Visit elements start..stop, run by run; src and dst hold the elements from `origin` on."""
    return staged_or_not(spec, rebase(operands, args, units), args, units.start, units.stop)


@specialize
def staged_or_not(spec, operands, args, start, stop):
    """Visit the runs of elements start..stop, by way of the stack where results may go past the cache so."""
    can_stage = operands.instance_class is ElementOperands and goes_in_lines(spec, operands.types[1])
    return _by_way_of_the_stack if can_stage else _visit_runs


@njit
def _by_way_of_the_stack(spec, operands, args, start, stop):
    """Visit runs a piece at a time, whose results are written past the cache if the call outgrows it."""
    if not args.staging:
        return _visit_runs(spec, operands, args, start, stop)
    src, dst, scale, zero_point = operands.src, operands.dst, operands.scale, operands.zero_point
    piece, i, status = _piece(spec, dst, args), start, 0
    stage = stage_at(scratch(_STAGE_BYTES, types.uint8), advance(dst, start))
    while i < stop:
        end = min(i + piece, stop)
        staged = advance(cast_pointer(place(stage), dtype_of(dst)), -i)
        status |= _visit_runs(spec, ElementOperands(src, staged, scale, zero_point), args, i, end)
        stage = grown(stage, (end - i) * bits_of(dst) + 7 >> 3)  # of an odd number of codes the last byte too
        i = end
    finish(stage)
    return status


@specialize
def _piece(spec, dst, args):
    """Return how many elements of dst are staged at a time: whole blocks where their range is taken."""
    most = 8 * PIECE_BYTES // dst.dtype.bitwidth
    if spec.range_scheme:
        return lambda spec, dst, args: most - most % (args.block if args.outer == 1 else args.length)
    return lambda spec, dst, args: most


@njit
def _visit_runs(spec, operands, args, start, stop):
    i, status = start, 0
    while i < stop:
        outer = i // args.length
        first = outer * args.length
        block = (i - first) // args.block
        p = (outer // args.cycle * args.kept + outer % args.kept) * args.blocks + block
        line, end = min(first + args.length, stop), first + (block + 1) * args.block
        while i < line:
            end = min(end, line)
            done, reported = short_runs(spec, operands, args, p, i, line) if end - i == args.block else (0, 0)
            if done:
                i, end, p, status = i + done * args.block, end + done * args.block, p + done, status | reported
                continue
            status |= visit(spec, operands, args, p, i, end)
            i, end, p = end, end + args.block, p + 1
    return status


_SEARCHES = {SearchOperands: shrink_range, CandidateOperands: add_candidates}


@specialize
def visit(spec, operands, args, p, i, end):
    """Visit the run i..end, whose parameters have index p."""
    if operands.instance_class in _SEARCHES:
        return _SEARCHES[operands.instance_class]
    if spec.range_scheme:
        return _by_range
    return {"minmax": _merge_min_max, "histogram": count_run, "compare": _compare}.get(spec.op, _by_parameters)


# --- minimum and maximum ----------------------------------------------------------------------------------------------


@njit
def _merge_min_max(spec, operands, args, p, i, end):
    """Merge i..end into the minimum and maximum with index p; return the status."""
    lo, hi, nan = min_max(operands.src, i, end)
    store_min_max(operands, p, minimum(lo, operands.lo[p]), maximum(hi, operands.hi[p]), nan)
    return status_of(nan, False)


# --- values -----------------------------------------------------------------------------------------------------------


@specialize
def wider(src, dst):
    """Return the one of two pointers that has the wider elements, dst where they are alike."""
    if src.dtype.bitwidth > dst.dtype.bitwidth:
        return lambda src, dst: src
    return lambda src, dst: dst


@njit
def _convert_lanes(context, i, vec):
    """Convert the Vec at src[i]; return it and which lanes have a NaN to report."""
    spec, operands, s, ahead = context
    src = operands.src
    prefetch_lanes(src, i + ahead, vec)
    x = load_elements(src, i, vec)
    return apply_op_prepared(spec, to_compute(spec, x, operands.scale), s, operands.dst), nan_mask(spec, x)


_stream_lines = in_lines(_convert_lanes)


@njit
def convert_run(spec, operands, args, scale, zero_point, i, end, ahead):
    """Write what src[i:end] becomes to dst[i:end]; return whether there was a NaN to report.

    Elements of src are prefetched `ahead` of those that are converted.
    """
    src, dst = operands.src, operands.dst
    vec, nan = register_lanes(operands), False
    stop = i + (end - i) // group_of(src) // group_of(dst) * group_of(src) * group_of(dst)
    if stop - i >= count(vec) and not needs_division(spec, scale):
        s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
        nan |= _convert_run_prepared(spec, operands, args, s, i, stop, ahead)
        i = stop
    while i < end:
        x = load_elements(src, i, dtype_of(src))
        nan |= any_lane(nan_mask(spec, x))
        value = to_compute(spec, x, operands.scale)
        store_elements(dst, i, apply_op(spec, value, scale, zero_point, args, dst))
        i += 1
    return nan


@njit
def _convert_run_prepared(spec, operands, args, s, i, end, ahead):
    """Convert i..end, a register or more, by a prepared scale; return whether there was a NaN to report."""
    src, dst, like, context = operands.src, operands.dst, operands.scale, (spec, operands, s, ahead)
    vec = register_lanes(operands)
    n, last = count(vec), end - count(vec)
    y, nans = _convert_lanes(context, i, vec)
    store_elements(dst, i, y)
    # whole cache lines from here on: NumPy's arrays begin 16 bytes after one, and lines cut in two cost double
    aligned = n - misalignment(wider(src, dst), i, lanes_like(vec, wider(src, dst)))
    if aligned % group_of(src) == 0 and aligned % group_of(dst) == 0:
        i += aligned
    found = False
    if args.streaming:
        i, found = _stream_lines(spec, context, src, dst, i, end, vec)
    while i <= last - n:  # two registers a turn share the test for NaN
        x, x2 = load_elements(src, i, vec), load_elements(src, i + n, vec)
        nans = nans | nan_mask_of_two(spec, x, x2)
        prefetch(src, i + ahead)
        prefetch(src, i + n + ahead)
        store_elements(dst, i, apply_op_prepared(spec, to_compute(spec, x, like), s, dst))
        store_elements(dst, i + n, apply_op_prepared(spec, to_compute(spec, x2, like), s, dst))
        i += 2 * n
    i = min(i, last)
    while True:
        y, nan = _convert_lanes(context, i, vec)
        nans = nans | nan
        store_elements(dst, i, y)
        if i == last:
            break
        i = min(i + n, last)
    return found | any_lane(nans)


@njit
def _by_parameters(spec, operands, args, p, i, end):
    """Convert i..end by the parameters with index p; return the status."""
    one = dtype_of(operands.scale)
    scale, zero_point = load_scale(spec, operands, p, one), load_zero_point(spec, operands, args, p, one)
    ahead = prefetch_distance(operands.src)
    return status_of(convert_run(spec, operands, args, scale, zero_point, i, end, ahead), False)


# --- short runs, whose parameters are computed side by side -----------------------------------------------------------

# registers of a run at most: in longer ones what is decided for each takes no time; where results are staged lines that
# are cut in two cost more (2**26 int8 to float32 in blocks of 128, two threads of a Zen 4: 8.5 Gelem/s for 13)
SHORT, SHORT_STAGED = 8, 2


@specialize
def short_runs(spec, operands, args, p, i, line):
    """Convert whole runs from i on, if they are of a few registers; return how many, and the status."""
    if operands.instance_class is not ElementOperands:
        return lambda spec, operands, args, p, i, line: (0, 0)
    return _short_runs


@njit
def _short_runs(spec, operands, args, p, i, line):
    """Convert whole runs by the parameters with indices p on, as many at a time as a register has lanes.

    Registers, the last of which may overlap the one before, are all that a run takes, and nothing is decided on the
    way. Of a run that needs a division, and of what is left over, the caller takes care.
    """
    src, dst, vec, many = operands.src, operands.dst, register_lanes(operands), compute_lanes(spec, operands.scale, 1)
    n, size, done, status = count(vec), args.block, 0, 0
    most = (SHORT_STAGED if args.staging else SHORT) * n
    if size < n or size > most or size % (group_of(src) * group_of(dst)):
        return 0, 0
    memory = scratch(PREPARED, compute_type(spec, operands.scale))
    while i + count(many) * size <= line:
        usable, reported = _prepare_runs(spec, operands, args, p, i, memory)
        if not usable:
            break
        status |= reported | status_of(_convert_runs(spec, operands, args, p, i, memory), False)
        i, p, done = i + count(many) * size, p + count(many), done + count(many)
    return done, status


@njit
def _convert_runs(spec, operands, args, p, i, memory):
    """Convert runs from i on by the prepared scales in memory; return whether there was a NaN to report."""
    size, n, nan = args.block, count(register_lanes(operands)), False
    many, ahead = count(compute_lanes(spec, operands.scale, 1)), _ahead_of_runs(spec, operands, args.block)
    if size <= 2 * n:
        for k in range(many):
            context = spec, operands, _prepared(spec, operands, args, p, k, memory), ahead
            nan |= any_lane(_convert_ends(context, i + k * size, i + (k + 1) * size - n))
        return nan
    for k in range(many):
        context = spec, operands, _prepared(spec, operands, args, p, k, memory), ahead
        j, last = i + k * size + n, i + (k + 1) * size - n
        nans = _convert_ends(context, j - n, last)
        while j < last:
            y, found = _convert_lanes(context, j, register_lanes(operands))
            store_elements(operands.dst, j, y)
            j, nans = j + n, nans | found
        nan |= any_lane(nans)
    return nan


@njit
def _convert_ends(context, i, last):
    """Convert a register at i and one at `last`, which may overlap; return which lanes have a NaN to report."""
    operands = context[1]
    y, nans = _convert_lanes(context, i, register_lanes(operands))
    y2, nans2 = _convert_lanes(context, last, register_lanes(operands))
    store_elements(operands.dst, i, y)
    store_elements(operands.dst, last, y2)
    return nans | nans2


@specialize
def _prepared(spec, operands, args, p, k, memory):
    """Return the `PreparedScale` of run k: from memory, or of its parameters where there is nothing to compute."""

    def stored(spec, operands, args, p, k, memory):
        return load_prepared(memory, count(compute_lanes(spec, operands.scale, 1)), k)

    def given(spec, operands, args, p, k, memory):
        one = dtype_of(operands.scale)
        scale, zero_point = load_scale(spec, operands, p + k, one), load_zero_point(spec, operands, args, p + k, one)
        return prepare_scale(spec, scale, zero_point, args.lowest, args.highest)

    return given if spec.op == "dequantize" else stored


@specialize
def _prepare_runs(spec, operands, args, p, i, memory):
    """Write the `PreparedScale` of each run from i on to memory; return whether all can be used so, and the status."""
    if spec.op == "dequantize":
        return lambda spec, operands, args, p, i, memory: (True, 0)
    return _prepare_by_ranges if spec.range_scheme else _prepare_given


@specialize
def _ahead_of_runs(spec, operands, size):
    """Return how far ahead of what is converted to prefetch: where ranges were taken, beyond the runs of this turn."""
    if spec.range_scheme:
        return lambda spec, operands, size: size * count(compute_lanes(spec, operands.scale, 1))
    return lambda spec, operands, size: prefetch_distance(operands.src)


@specialize
def _in_lanes(value, like):
    """Return a number in each lane."""
    if lane_count(value) == lane_count(like):
        return lambda value, like: value
    return lambda value, like: full_like(value, like)


@njit
def _prepare_given(spec, operands, args, p, i, memory):
    many = compute_lanes(spec, operands.scale, 1)
    scales = load_scale(spec, operands, p, many)
    if any_lane(needs_division(spec, scales)):
        return False, 0
    zero_points = _in_lanes(load_zero_point(spec, operands, args, p, many), scales)
    store_prepared(memory, count(many), prepare_scale(spec, scales, zero_points, args.lowest, args.highest))
    return True, 0


@njit
def _prepare_by_ranges(spec, operands, args, p, i, memory):
    """Take parameters from ranges and store them, unless a run has NaN or a scale that needs a division."""
    scale, size, found = operands.scale, args.block, False
    many, dtype = compute_lanes(spec, scale, 1), compute_type(spec, scale)
    los, his = scratch(PREPARED, dtype), scratch(PREPARED, dtype)
    for k in range(count(many)):
        lo, hi, nan = min_max(operands.src, i + k * size, i + (k + 1) * size)
        los[k], his[k], found = to_compute(spec, lo, scale), to_compute(spec, hi, scale), found | nan
    scales, zero_points = range_parameters(spec, load(los, 0, many), load(his, 0, many), args, scale)
    if found or any_lane(needs_division(spec, scales) | is_infinite(scales)):
        return False, 0
    store_parameters(spec, operands, p, scales, zero_points)
    store_prepared(memory, count(many), prepare_scale(spec, scales, zero_points, args.lowest, args.highest))
    return True, 0


# --- range and values in one pass -------------------------------------------------------------------------------------


@njit
def _by_range(spec, operands, args, p, i, end):
    """Convert i..end by parameters from their own range, which are stored with index p; return the status."""
    lo, hi, nan = min_max(operands.src, i, end)
    lo, hi = count_nan_as_zero(spec, lo, hi, nan)
    scale, zero_point = range_parameters(spec, lo, hi, args, operands.scale)
    infinite = is_infinite(scale)
    scale = mark_nan(spec, scale, nan)
    store_parameters(spec, operands, p, scale, zero_point)
    length = end - i  # the run is in the cache, and memory idles: the next one is fetched meanwhile, if it fits too
    ahead = max(length if length <= PREFETCH_ROW else 0, prefetch_distance(operands.src))
    found = convert_run(spec, operands, args, scale, zero_point, i, end, ahead)
    return status_of(found, infinite)


# --- errors -----------------------------------------------------------------------------------------------------------


@njit
def _compare(spec, operands, args, p, i, end):
    one = dtype_of(operands.scale)
    scale, zero_point = load_scale(spec, operands, p, one), load_zero_point(spec, operands, args, p, one)
    return add_errors(spec, operands, args, (scale, zero_point), i, end)
