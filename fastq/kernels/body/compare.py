"""Sum the errors of an approximation in float64, in an order that does not depend on threads."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, traced
from fastq.formats.codebooks import Codebook
from fastq.kernels.apply import float_ratio
from fastq.kernels.body import BODIES, Body
from fastq.kernels.formulas import compute_type, computes_in, dequantize_value, prepare_scale, unclamped_code
from fastq.kernels.load_store import load_elements, prefetch_ahead, prefetch_lanes
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.parameters import load_parameters
from fastq.kernels.pointers import ErrorOperands
from fastq.kernels.sizes import AT_A_TIME, SUM_LANES, TOTALS
from fastq.kernels.spec import status_of
from fastq.kernels.traversal import geometry

# lanes of sums, all of which stay in registers, 16 of AVX2, 32 of AVX-512: decision D65
_LANES = SUM_LANES if TARGET.has("avx512f") else 4
_SUM = v.Vec(types.float64, _LANES)


@traced
def _parameters_at(spec, operands, args, parameters, k, kind):
    """Return scale and zero point of the lanes from k on: one pair for all, or one for each lane."""
    if isinstance(parameters, tuple):
        return parameters
    return load_parameters(spec, operands, args, parameters + k, kind)


def _float_code(pointer):
    """Return the format of float codes, None of integer codes and of floats that are values."""
    return pointer.dtype.format if isinstance(pointer.dtype, Minifloat) and pointer.dtype.format.bits <= 8 else None


def _next_tie(row):
    """Return the tie between the largest number of a format and the number that would come next."""
    return row.max + 2.0 ** (row.emax - row.mantissa - 1)


@traced
def values_of_approximation(spec, code, s, pointer):
    """Dequantize codes; values are returned as they are."""
    if v.is_float(code) and _float_code(pointer) is None:
        return code
    return dequantize_value(spec, v.convert(code, computes_in(spec, s.scale)), s)


@traced
def clamp_mask(spec, x, s, args, pointer):
    """Mask of the values whose codes were clamped."""
    row = _float_code(pointer)
    if row is None:
        code = unclamped_code(spec, x, s)
        dtype = computes_in(spec, s.scale)
        return (code < v.convert(args.lowest, dtype)) | (code > v.convert(args.highest, dtype))
    ratio = float_ratio(spec, x, s)
    if isinstance(row, Codebook):
        first, last = row.bounds
        return (ratio < v.constant(first, x)) | (ratio > v.constant(last, x))
    size = v.absolute(ratio)
    tie = v.constant(_next_tie(row), x)
    return size >= tie if row.largest % 2 else size > tie  # a tie goes to the even code: beyond an odd last one


@traced
def perhaps_clamped(spec, x, s, args, pointer):
    """Mask of the values that may have been clamped, found without a division; NaN among them.

    All others are at least a quarter of a step inside the range that rounds to a code, which covers the rounding of
    quotients below 2**16. A zero point inside the rounding adds its own, and a reciprocal must not overflow where the
    products here do not. The ends of the range of a block, one of each in it, do not have this property.
    """
    rule = spec.rule
    row = _float_code(pointer)
    if row is not None:
        most = min(map(abs, row.bounds)) if isinstance(row, Codebook) else (row.max + _next_tie(row)) / 2
        limit = v.constant(most, x) * s.scale
        return (v.absolute(x) < (limit * s.tensor if spec.scale_kind == "tensor" else limit)) ^ True
    if rule.divides_steps:  # a division either way
        return clamp_mask(spec, x, s, args, pointer)
    reach = v.constant(0.25 if rule.is_nearest else -0.25, s.scale)
    dtype = computes_in(spec, s.scale)
    low, high = v.convert(args.lowest, dtype) - s.base, v.convert(args.highest, dtype) - s.base
    if rule.zero == "inside":
        reach = reach - v.absolute(s.zero_point) * v.constant(2.0**-21, s.zero_point)
        low, high = low - s.zero_point, high - s.zero_point
    if rule.zero == "offset":
        x = x - s.zero_point
    within = (x > (low - reach) * s.scale) & (x < (high + reach) * s.scale)
    if rule.quotient != "divide":
        within = within & (v.absolute(s.factor) < v.constant(float("inf"), s.factor))
    return within ^ True


class Total(NamedTuple):
    """Sums and maxima of errors so far, lane by lane, as in `TOTALS`; then how many x are 0 and codes were clamped."""

    error2: Any
    x2: Any
    error: Any
    relative: Any
    largest: Any
    largest_relative: Any
    zeros: Any
    clipped: Any


@traced
def _load_total(sums, kind):
    """Load the sums of a chunk: all lanes of each, or the first one."""
    return Total(*(v.load(sums, k * SUM_LANES, kind) for k in range(TOTALS)))


@traced
def _store_total(sums, total):
    """Store the sums that `_load_total` loaded."""
    for k, each in enumerate(total):
        v.store(sums, k * SUM_LANES, each)


@traced
def _by_halves(total, x, error, ratio):
    """Add errors; if there are more lanes than a sum has, one half after the other.

    `ratio` has numerator and denominator of relative errors.
    """
    if v.lane_count(x) == v.lane_count(total.error2):
        return _add_errors(total, x, error, ratio)
    above, below = ratio
    total = _by_halves(total, v.lower(x), v.lower(error), (v.lower(above), v.lower(below)))
    return _by_halves(total, v.upper(x), v.upper(error), (v.upper(above), v.upper(below)))


@traced
def _add_errors(total, x, error, ratio):
    """Add errors, of as many lanes as the sums have; `ratio` as in `_by_halves`."""
    relative = ratio[0] / ratio[1]
    return total._replace(
        error2=total.error2 + error * error,
        x2=total.x2 + x * x,
        error=total.error + error,
        relative=total.relative + relative,
        largest=v.maximum(error, total.largest),
        largest_relative=v.maximum(relative, total.largest_relative),
    )


@traced
def _count(counts, mask):
    """Add 1 where a mask is true, which may have more lanes than counts."""
    if v.lane_count(mask) > v.lane_count(counts):
        return _count(_count(counts, v.lower(mask)), v.upper(mask))
    return v.select(mask, counts + v.constant(1, counts), counts)


@traced
def _add(spec, total, x, code, parameters, args, pointer):
    """Add the errors of lanes of x, `code` being their codes or the values that approximate them.

    `parameters` is a pair of scale and zero point. Where x is 0 the relative error counts as 0: it is 0 divided by 1.
    """
    scale, zero_point = parameters
    s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
    compute = v.convert(x, compute_type(spec, s.scale))
    wide = v.convert(x, types.float64)
    zero = x == v.constant(0, x)
    error = v.absolute(wide - v.convert(values_of_approximation(spec, code, s, pointer), types.float64))
    above = error
    below = v.absolute(wide)
    zeros = total.zeros
    clipped = total.clipped
    # few are, mostly, and a test of all lanes takes less time than to count them
    if v.any_lane(zero | perhaps_clamped(spec, compute, s, args, pointer)):
        above, below = v.select(zero, v.constant(0, error), error), v.select(zero, v.constant(1, below), below)
        zeros = _count(zeros, zero)
        clipped = _count(clipped, clamp_mask(spec, compute, s, args, pointer))
    sums = _by_halves(total, wide, error, (above, below))
    return Total(sums.error2, sums.x2, sums.error, sums.relative, sums.largest, sums.largest_relative, zeros, clipped)


@traced
def _lanes(spec, scale):
    """Vec type of the type to compute in, of as many lanes as elements are taken at a time."""
    return v.Vec(computes_in(spec, scale), AT_A_TIME)


@traced
def _add_vecs(spec, operands, args, parameters, i, end, total):
    """Add the errors of whole Vecs from i on, up to `end`; return the total and where the rest begins."""
    src = v.advance(operands.src, i)
    approximation = v.advance(operands.approximation, i)
    k = 0
    vec = v.lanes_like(_lanes(spec, operands.scale), src)
    while k <= end - i - v.count(vec):
        prefetch_lanes(src, k + prefetch_ahead(), vec)
        prefetch_lanes(approximation, k + prefetch_ahead(), v.lanes_like(vec, approximation))
        x = load_elements(src, k, vec)
        code = load_elements(approximation, k, v.lanes_like(vec, approximation))
        at = _parameters_at(spec, operands, args, parameters, k, vec)
        total = _add(spec, total, x, code, at, args, approximation)
        k += v.count(vec)
    return total, i + k


@traced
def add_errors_of_blocks(spec, operands, args, p, i, row_end, limit):
    """Add the errors of runs from i on, with parameters from p on, to `limit`; see `Body`.

    Sums stay in registers from run to run, as long as these are whole Vecs.
    """
    if args.block % AT_A_TIME:
        return 0, i, row_end, 0
    if args.length % AT_A_TIME:
        limit = min(limit, row_end - geometry.tail_size(args))
    left = geometry.blocks_left(args, i, row_end)
    many = geometry.runs_until(args, i, left, limit)
    one = v.dtype_of(operands.scale)
    sums = _sums_of(operands, args, i)
    total = _load_total(sums, _SUM)
    for k in range(p, p + many):
        parameters = _parameters_at(spec, operands, args, k, 0, one)
        total, i = _add_vecs(spec, operands, args, parameters, i, i + geometry.size_of_run(args, left), total)
        left = geometry.left_after_run(args, left)
    _store_total(sums, total)
    return many, i, geometry.row_end_of(args, i, left), status_of(nan=_has_nan(total))


@traced
def _sums_of(operands, args, i):
    """Return where the sums of the chunk of element i are."""
    return v.advance(operands.errors, i // args.chunk * TOTALS * SUM_LANES)


@traced
def _has_nan(total):
    """Return whether a value was NaN: a sum of squares is, then."""
    return v.any_lane(v.is_nan(total.x2))


@traced
def add_errors(spec, operands, args, parameters, i, end):
    """Add the errors of elements i..end to the sums of their chunk.

    `parameters` is the scale and zero point of all of them, or the index of the parameter of the first one.
    """
    src = operands.src
    approximation = operands.approximation
    one = v.dtype_of(operands.scale)
    sums = _sums_of(operands, args, i)
    k = i
    nan = False
    if end - i >= AT_A_TIME:
        total, k = _add_vecs(spec, operands, args, parameters, i, end, _load_total(sums, _SUM))
        nan = _has_nan(total)
        _store_total(sums, total)
    if k < end:
        rest = _load_total(sums, types.float64)
        while k < end:
            x = load_elements(src, k, v.dtype_of(src))
            code = load_elements(approximation, k, v.dtype_of(approximation))
            at = _parameters_at(spec, operands, args, parameters, k - i, one)
            rest = _add(spec, rest, x, code, at, args, approximation)
            k += 1
        nan |= _has_nan(rest)
        _store_total(sums, rest)
    return status_of(nan=nan)


@traced
def _of_run(spec, operands, args, p, i, end):
    """Add the errors of a run, whose parameters have index p; return the status."""
    parameters = load_parameters(spec, operands, args, p, operands.scale.dtype)
    return add_errors(spec, operands, args, parameters, i, end)


@traced
def _of_row(spec, operands, args, p, i, end):
    """Add the errors of a piece of a row, in which element j has parameter p + j; return the status."""
    return add_errors(spec, operands, args, p + i, i, end)


BODIES[ErrorOperands] = Body(_of_run, batch=add_errors_of_blocks, row=_of_row)
