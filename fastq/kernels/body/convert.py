"""Convert elements: by given scales and zero points, or by those of their own range; a run, or short runs together."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import formulas, parameters
from fastq.kernels.apply import apply_op, apply_op_prepared, to_compute
from fastq.kernels.body import BODIES, Body, batch_size
from fastq.kernels.body.min_max import min_max, min_max_of_run
from fastq.kernels.load_store import group_of, load_elements, prefetch_distance, prefetch_lanes, store_elements
from fastq.kernels.nan import count_nan_as_zero, mark_nan, nan_mask, nan_mask_of_two
from fastq.kernels.operands import register_lanes
from fastq.kernels.pointers import ElementOperands, NoisyOperands
from fastq.kernels.scales_of_ranges import range_parameters
from fastq.kernels.sizes import BATCHED_REGISTERS
from fastq.kernels.spec import compute_lanes, parameter_type, status_of
from fastq.kernels.stochastic_rounding import random_numbers_of
from fastq.kernels.traversal import geometry
from fastq.kernels.traversal.streaming import stream_by_lines

_prefetch_row = v.tuned("prefetch_row")


@traced
def wider(src, dst):
    """Return the one of two pointers that has the wider elements, dst where they are alike."""
    return src if src.dtype.bitwidth > dst.dtype.bitwidth else dst


@traced
def _convert_lanes(context, i, vec):
    """Convert the Vec at src[i]; return it and which lanes have a NaN to report."""
    spec, operands, s, ahead = context
    src = operands.src
    prefetch_lanes(src, i + ahead, vec)
    x = load_elements(src, i, vec)
    return _convert_prepared(spec, operands, i, x, s), nan_mask(spec, x)


@traced
def _convert_prepared(spec, operands, i, x, s):
    """Convert the lanes of x, elements from i on, by one prepared scale."""
    value = to_compute(spec, x, operands.scale)
    return apply_op_prepared(spec, value, s, operands.dst, random_numbers_of(spec, operands, i, value))


_stream_lines = stream_by_lines(_convert_lanes)


@traced
def convert_run(spec, operands, args, scale, zero_point, i, end, ahead):
    """Write what src[i:end] becomes to dst[i:end]; return whether there was a NaN to report.

    Elements of src are prefetched `ahead` of those that are converted.
    """
    src = operands.src
    dst = operands.dst
    vec = register_lanes(operands)
    nan = False
    stop = i + (end - i) // group_of(src) // group_of(dst) * group_of(src) * group_of(dst)
    if stop - i >= v.count(vec) and not formulas.needs_division(spec, scale):
        s = formulas.prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
        nan |= _convert_run_prepared(spec, operands, args, s, i, stop, ahead)
        i = stop
    while i < end:
        x = load_elements(src, i, v.dtype_of(src))
        nan |= v.any_lane(nan_mask(spec, x))
        value = to_compute(spec, x, operands.scale)
        store_elements(
            dst, i, apply_op(spec, value, scale, zero_point, args, dst, random_numbers_of(spec, operands, i, value))
        )
        i += 1
    return nan


@traced
def _convert_run_prepared(spec, operands, args, s, i, end, ahead):
    """Convert i..end, a register or more, by a prepared scale; return whether there was a NaN to report."""
    src = operands.src
    dst = operands.dst
    context = (spec, operands, s, ahead)
    vec = register_lanes(operands)
    n = v.count(vec)
    last = end - v.count(vec)
    y, nans = _convert_lanes(context, i, vec)
    store_elements(dst, i, y)
    # whole cache lines from here on: NumPy's arrays begin 16 bytes after one, and lines cut in two cost double
    aligned = n - v.misalignment(wider(src, dst), i, v.lanes_like(vec, wider(src, dst)))
    if aligned % group_of(src) == 0 and aligned % group_of(dst) == 0:
        i += aligned
    nan_in_stream = False
    if args.streaming:
        i, nan_in_stream = _stream_lines(spec, context, src, dst, i, end, vec)
    while i <= last - n:  # two registers a turn share the test for NaN
        x = load_elements(src, i, vec)
        x2 = load_elements(src, i + n, vec)
        nans = nans | nan_mask_of_two(spec, x, x2)
        v.prefetch(src, i + ahead)
        v.prefetch(src, i + n + ahead)
        store_elements(dst, i, _convert_prepared(spec, operands, i, x, s))
        store_elements(dst, i + n, _convert_prepared(spec, operands, i + n, x2, s))
        i += 2 * n
    i = min(i, last)
    while True:
        y, nan = _convert_lanes(context, i, vec)
        nans = nans | nan
        store_elements(dst, i, y)
        if i == last:
            break
        i = min(i + n, last)
    return nan_in_stream | v.any_lane(nans)


@traced
def _by_parameters(spec, operands, args, p, i, end):
    """Convert i..end by the parameters with index p; return the status."""
    scale, zero_point = parameters.load_parameters(spec, operands, args, p, v.dtype_of(operands.scale))
    ahead = prefetch_distance(operands.src)
    return status_of(nan=convert_run(spec, operands, args, scale, zero_point, i, end, ahead))


# --- prepared scales in memory: computed side by side in the lanes of a register, used one after the other ------------

FIELD = v.REGISTER_BITS // 32  # numbers of 32 bits, or twice as many as there are of 64, of a field of prepared scales
PREPARED = 6 * FIELD


@traced
def prepare_lanes(spec, scales, zero_points, args, memory, n):
    """Write the prepared scales of n lanes to memory; return False if one is infinite or needs a division."""
    # tables need no division for infinity either
    if v.any_lane(formulas.needs_division(spec, scales)) or v.any_lane(formulas.is_infinite(scales)):
        return False
    store_prepared(memory, n, formulas.prepare_scale(spec, scales, zero_points, args.lowest, args.highest))
    return True


@traced
def store_prepared(memory, n, s):
    """Store n prepared scales, a lane each: the n numbers of one field after those of another, `base` as the last."""
    scale, second, _, *others = s  # second: zero point or tensor scale
    for field, lanes in enumerate((scale, second, *others)):
        v.store(memory, field * n, lanes)
    v.store(_bases(memory, n), 0, formulas.base_code(s))


@traced
def load_prepared(spec, memory, n, k):
    """Load number k of n prepared scales, which `store_prepared` stored field by field."""
    scale, second, *others = [memory[field * n + k] for field in range(5)]
    kind = formulas.PreparedBlockScale if spec.scale_kind == "tensor" else formulas.PreparedScale
    return kind(scale, second, _bases(memory, n)[k], *others)


@traced
def _bases(memory, n):
    """Return where n prepared scales have their `base`."""
    return v.cast_pointer(v.advance(memory, 5 * n), types.int32)


# --- short runs, whose parameters are prepared side by side -----------------------------------------------------------


def _batch_size(spec, operands):
    """Return how many runs are prepared together: as many as a register has lanes, any where nothing is computed."""
    return (
        1 << 62
        if spec.op == "dequantize"
        else v.REGISTER_BITS // formulas.computes_in(spec, operands.types[2]).bitwidth
    )


@traced
def _convert_batch(spec, operands, args, p, i, row_end, limit):
    """Convert consecutive runs from index p on; stop before a group in which a run needs a division.

    If packed runs are more than one, all of them fill whole bytes (see `arrange_packed`).
    """
    src = operands.src
    dst = operands.dst
    n = v.count(register_lanes(operands))
    done = 0
    status = 0
    if args.block < n or args.block > BATCHED_REGISTERS * n or args.block % (group_of(src) * group_of(dst)):
        return 0, i, row_end, 0
    memory = v.scratch(PREPARED, formulas.compute_type(spec, operands.scale))
    left = geometry.blocks_left(args, i, row_end)
    many = geometry.runs_until(args, i, left, limit)
    most = batch_size(spec, operands)
    while done < many:
        if not _prepare_runs(spec, operands, args, p + done, i, left, min(many - done, most), memory):
            break
        runs = geometry.batch_length(args, left, many - done, most)
        if args.block <= 2 * n:
            i, left, nan = _convert_runs_of_two(spec, operands, args, p + done, i, left, runs, memory)
        else:
            i, left, nan = _convert_runs_of_more(spec, operands, args, p + done, i, left, runs, memory)
        done = done + runs
        status = status | status_of(nan=nan)
    return done, i, geometry.row_end_of(args, i, left), status


@traced
def _convert_two(context, i, end, vec):
    """Convert a run of one register, or two, which may overlap; return which lanes have a NaN to report."""
    dst = context[1].dst
    last = end - v.count(vec)
    y, nans = _convert_lanes(context, i, vec)
    if last > i:
        y2, nans2 = _convert_lanes(context, last, vec)
        store_elements(dst, last, y2)
        nans = nans | nans2
    store_elements(dst, i, y)
    return nans


@traced
def _convert_more(context, i, end, vec):
    """Convert a run of some registers, the last of which may overlap; return which lanes have a NaN to report."""
    dst = context[1].dst
    last = end - v.count(vec)
    y, nans = _convert_lanes(context, last, vec)
    store_elements(dst, last, y)
    for j in range(i, last, v.count(vec)):
        y, more = _convert_lanes(context, j, vec)
        store_elements(dst, j, y)
        nans = nans | more
    return nans


def _make_loop_over_runs(convert):
    """Make the loop that converts consecutive runs, each by `convert` with its prepared scale.

    The loop returns three things: where the next run begins, the number of blocks left in its row, and whether there
    was a NaN to report. It writes the tail of a row before its blocks: a tail that fills no register is written by one
    that begins in the block before, and that block then overwrites its own part.
    """

    @traced
    def convert_runs(spec, operands, args, p, i, left, runs, memory):
        vec = register_lanes(operands)
        ahead = _ahead_of_runs(spec, operands, args.block)
        rest = geometry.tail_size(args)
        k = 0
        nan = False
        while k < runs:
            whole = left if rest == args.block else left - 1
            blocks = min(whole, runs - k)
            has_rest = blocks < left and k + blocks < runs
            if has_rest:
                end = i + blocks * args.block + rest
                context = spec, operands, _prepared_scale_of(spec, operands, args, p, k + blocks, memory), ahead
                nan |= v.any_lane(convert(context, end - max(rest, v.count(vec)), end, vec))
            for j in range(blocks):
                context = spec, operands, _prepared_scale_of(spec, operands, args, p, k + j, memory), ahead
                nan |= v.any_lane(convert(context, i, i + args.block, vec))
                i += args.block
            k = k + blocks
            left = left - blocks
            if has_rest:
                i = i + rest
                k = k + 1
                left = 0
            left = left if left else args.blocks
        return i, left, nan

    return convert_runs


# runs of one or two registers, which most blocks are, have a loop of their own: decision D22
_convert_runs_of_two = _make_loop_over_runs(_convert_two)
_convert_runs_of_more = _make_loop_over_runs(_convert_more)


@traced
def _prepared_scale_of(spec, operands, args, p, k, memory):
    """Return the `PreparedScale` of run k: from memory, or of its parameters where there is nothing to compute."""
    if spec.op != "dequantize":
        return load_prepared(spec, memory, batch_size(spec, operands), k)
    scale, zero_point = parameters.load_parameters(spec, operands, args, p + k, operands.scale.dtype)
    return formulas.prepare_scale(spec, scale, zero_point, args.lowest, args.highest)


@traced
def _prepare_runs(spec, operands, args, p, i, left, runs, memory):
    """Write the `PreparedScale` of each run from i on to memory; return whether all of them can be used so."""
    if spec.op == "dequantize":
        return True
    prepare = _prepare_by_ranges if spec.range_scheme else _prepare_given
    return prepare(spec, operands, args, p, i, left, runs, memory)


@traced
def _ahead_of_runs(spec, operands, size):
    """Return how far ahead of the conversion to prefetch: where ranges were taken, beyond the runs of this turn."""
    return size * batch_size(spec, operands) if spec.range_scheme else prefetch_distance(operands.src)


@traced
def _prepare_given(spec, operands, args, p, i, left, runs, memory):
    """Prepare the scales of runs from the parameters in memory, from index p on.

    Of fewer runs than a register has lanes the last one is repeated, since nothing may be loaded beyond it.
    """
    n = batch_size(spec, operands)
    lanes = compute_lanes(spec, operands.scale, 1)
    if runs == n:
        scales, zero_points = parameters.load_parameters(spec, operands, args, p, lanes)
        return prepare_lanes(spec, scales, in_lanes(zero_points, scales), args, memory, n)
    one = v.dtype_of(operands.scale)
    dtype = parameter_type(spec, operands.scale)
    scales = v.scratch(FIELD, dtype)
    zero_points = v.scratch(FIELD, dtype)
    for k in range(n):
        j = p + min(k, runs - 1)
        scales[k], zero_points[k] = parameters.load_parameters(spec, operands, args, j, one)
    vec = v.lanes_like(lanes, scales)
    return prepare_lanes(spec, v.load(scales, 0, vec), v.load(zero_points, 0, vec), args, memory, n)


@traced
def in_lanes(value, like):
    """Return a number in each lane."""
    return value if v.lane_count(value) == v.lane_count(like) else v.full_like(value, like)


@traced
def _prepare_by_ranges(spec, operands, args, p, i, left, runs, memory):
    """Take parameters from ranges and store them, unless a run has NaN, is infinite or needs a division."""
    scale = operands.scale
    n = batch_size(spec, operands)
    any_nan = False
    vec = compute_lanes(spec, scale, 1)
    dtype = formulas.compute_type(spec, scale)
    los = v.scratch(FIELD, dtype)
    his = v.scratch(FIELD, dtype)
    for k in range(runs):
        end = i + geometry.size_of_run(args, left)
        lo, hi, nan = min_max_of_run(operands.src, i, end, register_lanes(operands))
        los[k] = to_compute(spec, lo, scale)
        his[k] = to_compute(spec, hi, scale)
        any_nan = any_nan | nan
        i = end
        left = geometry.left_after_run(args, left)
    for k in range(runs, n):
        los[k], his[k] = los[runs - 1], his[runs - 1]
    scales, zero_points = range_parameters(spec, v.load(los, 0, vec), v.load(his, 0, vec), args, scale)
    if any_nan or not prepare_lanes(spec, scales, zero_points, args, memory, n):
        return False
    if runs == n:
        parameters.store_parameters(spec, operands, p, scales, zero_points)
    else:
        parameters.store_first_parameters(spec, operands, p, scales, zero_points, runs)
    return True


# --- range and values in one pass -------------------------------------------------------------------------------------


@traced
def _by_range(spec, operands, args, p, i, end):
    """Convert i..end by parameters from their own range, which are stored with index p; return the status."""
    lo, hi, nan = min_max(operands.src, i, end)
    lo, hi = count_nan_as_zero(spec, lo, hi, nan)
    scale, zero_point = range_parameters(spec, lo, hi, args, operands.scale)
    infinite = formulas.is_infinite(scale)
    scale = mark_nan(spec, scale, nan)
    parameters.store_parameters(spec, operands, p, scale, zero_point)
    length = end - i  # the run is in the cache, and memory idles: the next one is fetched meanwhile, if it fits too
    ahead = max(length if length <= _prefetch_row() else 0, prefetch_distance(operands.src))
    nan_reported = convert_run(spec, operands, args, scale, zero_point, i, end, ahead)
    return status_of(nan=nan_reported, infinite=infinite)


@traced
def _convert_run_at(spec, operands, args, p, i, end):
    """Convert i..end by the parameters with index p, or by its own range; return the status."""
    return (_by_range if spec.range_scheme else _by_parameters)(spec, operands, args, p, i, end)


BODIES[ElementOperands] = BODIES[NoisyOperands] = Body(_convert_run_at, batch=_convert_batch, batch_size=_batch_size)
