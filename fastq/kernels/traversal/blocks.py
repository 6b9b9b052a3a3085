"""The loop over blocks that fill registers: range, parameters and values in one pass, many blocks side by side."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.apply import apply_op_prepared, to_compute
from fastq.kernels.body import rebase
from fastq.kernels.body.convert import PREPARED, convert_run, load_prepared, prepare_lanes
from fastq.kernels.formulas import compute_type, computes_in, is_infinite
from fastq.kernels.load_store import load_elements, prefetch_ahead, prefetch_lanes, store_elements
from fastq.kernels.nan import mark_nan, nan_mask
from fastq.kernels.operands import with_results, without_streaming
from fastq.kernels.parameters import store_parameters
from fastq.kernels.scales_of_ranges import range_parameters
from fastq.kernels.sizes import BLOCK_SIZES
from fastq.kernels.spec import compute_lanes, status_of
from fastq.kernels.stochastic_rounding import random_numbers_of
from fastq.kernels.traversal.block_extremes import ends_of, magnitudes_of, make_block_extremes
from fastq.kernels.traversal.streaming import flush, stage_at, store_tail, streaming_if_possible, write_pointer

_STAGE_BYTES = 16 * max(BLOCK_SIZES) * 4 + 2 * v.LINE  # of as many blocks of float32 as are computed side by side


@traced
def blocks(spec, operands, args, units):
    """Visit blocks start..stop, all of the size that the spec names; parameters are taken from their ranges.

    The parameters of as many blocks as a register has lanes are computed side by side. Those of the next blocks are
    computed before the values of these blocks are converted: a CPU does one while it waits for the divisions of the
    other.
    """
    operands = rebase(operands, args, units)
    src = operands.src
    dst = operands.dst
    scale = operands.scale
    n = v.count(compute_lanes(spec, scale, 1))
    size = v.count(block_lanes(spec, src))
    now = v.scratch(PREPARED, compute_type(spec, scale))
    following = v.scratch(PREPARED, compute_type(spec, scale))
    streaming = streaming_if_possible(spec, dst, args.streaming)
    args = without_streaming(args)
    stage = stage_at(v.scratch(_STAGE_BYTES, types.uint8), v.advance(dst, units.start * size))
    p = units.start
    stop = units.stop
    status = 0
    following_are_prepared = False  # if they are not, they are converted one by one
    out = operands
    if p <= stop - n:
        following_are_prepared, status = _prepare_blocks(spec, operands, args, p, now)
    while p <= stop - n:
        are_prepared = following_are_prepared
        if p + n <= stop - n:
            following_are_prepared, reported = _prepare_blocks(spec, operands, args, p + n, following)
            status |= reported
        if streaming:
            staged = v.advance(v.cast_pointer(write_pointer(stage), v.dtype_of(dst)), -p * size)
            out = with_results(operands, staged)
        if are_prepared:
            _convert_blocks(spec, out, p, now)
        else:
            for k in range(n):
                status |= _one_block(spec, out, args, p + k)
        if streaming:
            stage = flush(stage, n * size * v.bits_of(dst) >> 3)
        now, following = following, now
        p += n
    store_tail(stage)
    while p < stop:
        status |= _one_block(spec, operands, args, p)
        p += 1
    return status


@traced
def block_lanes(spec, src):
    """Vec type of a whole block."""
    return v.Vec(src.dtype, spec.block)


def _needs_magnitude_only(spec):
    """Return whether the largest magnitude is all that the scheme needs of a range."""
    return spec.range_scheme in ("microscaling", "nvfp4") or (
        spec.range_scheme == "symmetric" and not spec.rule.range.symmetric_extreme
    )


@traced
def value_in_range(spec, x, scale):
    """Convert input lanes for the range, in which NaN that is kept counts as 0.0."""
    if v.is_float(x) and spec.nan == "keep":
        x = v.select(v.is_nan(x), v.constant(0, x), x)
    return to_compute(spec, x, scale)


# --- as many as a register has lanes ----------------------------------------------------------------------------------


@traced
def _extremes_of_block(context, k):
    """Reduce block k to `BlockExtremes` in a register."""
    spec, src, scale = context
    vec = block_lanes(spec, src)
    convert_lanes = to_compute if spec.keeps_nan_in_scale else value_in_range  # NaN must be found in such blocks
    x = convert_lanes(spec, load_elements(src, k * vec.n, vec), scale)
    return (magnitudes_of if _needs_magnitude_only(spec) else ends_of)(x, compute_lanes(spec, scale, 1).n)


_block_extremes = make_block_extremes(_extremes_of_block)


@traced
def min_max_of_blocks(spec, src, scale, p):
    """Return minima and maxima of the blocks from p on, one block a lane, and a mask of those with NaN."""
    extremes = _block_extremes((spec, src, scale), p, compute_lanes(spec, scale, 1).n)
    if not _needs_magnitude_only(spec):
        return extremes.low, extremes.high, extremes.nan
    # the bits of the largest magnitude as an integer, see `BlockExtremes`: NaN is larger than everything
    most = v.bitcast(extremes.high, computes_in(spec, scale))
    return -most, most, v.is_nan(most)


@traced
def _prepare_blocks(spec, operands, args, p, memory):
    """Take the parameters of blocks from p on from their ranges and write the `PreparedScale` of each to memory.

    Return whether all of them can be used so, and the status.
    """
    n = v.count(compute_lanes(spec, operands.scale, 1))
    lo, hi, nans = min_max_of_blocks(spec, operands.src, operands.scale, p)
    scales, zero_points = range_parameters(spec, lo, hi, args, operands.scale)
    marks = spec.keeps_nan_in_scale and v.any_lane(nans)
    if marks or not prepare_lanes(spec, scales, zero_points, args, memory, n):
        return False, 0
    store_parameters(spec, operands, p, scales, zero_points)
    return True, status_of(nan=spec.refuses_nan and v.any_lane(nans))


@traced
def _convert_blocks(spec, operands, p, memory):
    """Convert the values of blocks from p on by the prepared scales in memory."""
    src = operands.src
    dst = operands.dst
    scale = operands.scale
    vec = block_lanes(spec, src)
    n = v.count(compute_lanes(spec, scale, 1))
    # at least the blocks whose ranges are taken next, as those of the blocks from p + n on have been: decision D21
    ahead = max(2 * n * v.count(vec), prefetch_ahead())
    for k in range(n):
        s = load_prepared(spec, memory, n, k)
        i = (p + k) * v.count(vec)
        prefetch_lanes(src, i + ahead, vec)
        x = to_compute(spec, load_elements(src, i, vec), scale)
        store_elements(dst, i, apply_op_prepared(spec, x, s, dst, random_numbers_of(spec, operands, i, x)))


# --- one --------------------------------------------------------------------------------------------------------------


@traced
def min_max_of_lanes(spec, x):
    """Return the ends of a range that gives the same parameters as the range of the lanes."""
    if _needs_magnitude_only(spec):
        most = v.reduce_max(v.absolute(x))
        return -most, most
    return v.reduce_min(x), v.reduce_max(x)


@traced
def _one_block(spec, operands, args, p):
    """Take the parameters of block p from its range, store them, and convert the block; return the status."""
    vec = block_lanes(spec, operands.src)
    i = p * v.count(vec)
    x = load_elements(operands.src, i, vec)
    nan = v.any_lane(nan_mask(spec, x))
    lo, hi = min_max_of_lanes(spec, value_in_range(spec, x, operands.scale))
    scale, zero_point = range_parameters(spec, lo, hi, args, operands.scale)
    infinite = is_infinite(scale)
    scale = mark_nan(spec, scale, v.any_lane(x != x))
    store_parameters(spec, operands, p, scale, zero_point)
    convert_run(spec, operands, args, scale, zero_point, i, i + v.count(vec), prefetch_ahead())
    return status_of(nan=nan, infinite=infinite)
