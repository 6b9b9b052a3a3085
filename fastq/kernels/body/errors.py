"""Sum the errors of an approximation in float64, in an order that does not depend on threads."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, njit, specialize
from fastq.formats.codebooks import Codebook
from fastq.kernels.apply import float_ratio
from fastq.kernels.body import BODIES, Body
from fastq.kernels.formulas import compute_type, computes_in, dequantize_value, prepare_scale, unclamped_code
from fastq.kernels.load_store import PREFETCH, load_elements, prefetch_lanes
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.parameters import load_scale, load_zero_point
from fastq.kernels.spec import status_of
from fastq.kernels.traversal.geometry import (
    blocks_left,
    left_after_run,
    row_end_of,
    runs_until,
    size_of_run,
    tail_size,
)

# numbers of one chunk: sums of error**2, x**2, |error|, |error| / |x|; largest |error| and |error| / |x|; how many x
# are 0, how many codes were clamped; each of them lane by lane, so that short runs need not add up lanes
SUMS = 8
# all stay in registers, 16 of AVX2, 32 of AVX-512: on a Zen 4 8 lanes are 1.3 times as fast as 4, compiled for a Zen 3
# 0.85 times
SUM_LANES = 8 if TARGET.has("avx512f") else 4
AT_A_TIME = 8  # elements, which sums of either number of lanes take as one Vec or two

_SUM = v.Vec(types.float64, SUM_LANES)


@specialize
def _parameters_at(spec, operands, args, parameters, k, kind):
    """Return scale and zero point for lanes k onwards, from a pair for all lanes or the index of that of lane 0."""
    if isinstance(parameters, types.BaseTuple):
        return lambda spec, operands, args, parameters, k, kind: parameters
    return lambda spec, operands, args, parameters, k, kind: (
        load_scale(spec, operands, parameters + k, kind),
        load_zero_point(spec, operands, args, parameters + k, kind),
    )


def _float_code(where):
    """Return the format of float codes, None of integer codes and of floats that are values."""
    return where.dtype.row if isinstance(where.dtype, Minifloat) and where.dtype.row.bits <= 8 else None


def _next_tie(row):
    """Return what is half way from the largest number of a format to the one that would be next."""
    return row.max + 2.0 ** (row.emax - row.mantissa - 1)


@specialize
def approximated(spec, code, s, where):
    """Dequantize codes; values are returned as they are."""
    if v.is_float(code) and _float_code(where) is None:
        return lambda spec, code, s, where: code
    return lambda spec, code, s, where: dequantize_value(spec, v.convert(code, compute_type(spec, s.scale)), s)


@specialize
def clamped(spec, x, s, args, where):
    """Mask of the values whose codes were clamped."""
    row = _float_code(where)
    first, last = row.bounds if isinstance(row, Codebook) else (0.0, 0.0)

    def outside(spec, x, s, args, where):
        ratio = float_ratio(spec, x, s)
        return (ratio < v.constant(first, x)) | (ratio > v.constant(last, x))

    def integer(spec, x, s, args, where):
        code, dtype = unclamped_code(spec, x, s), compute_type(spec, s.scale)
        return (code < v.convert(args.lowest, dtype)) | (code > v.convert(args.highest, dtype))

    def above(spec, x, s, args, where):
        return v.absolute(float_ratio(spec, x, s)) > v.constant(bound, x)

    def from_tie(spec, x, s, args, where):
        return v.absolute(float_ratio(spec, x, s)) >= v.constant(bound, x)

    if row is None:
        return integer
    if isinstance(row, Codebook):
        return outside
    bound = _next_tie(row)
    return from_tie if row.largest % 2 else above


@specialize
def perhaps_clamped(spec, x, s, args, where):
    """Mask of the values that may have been clamped, found without a division; NaN among them.

    All others are a quarter of a step inside of what rounds to a code, which covers the rounding of quotients below
    2**16. A zero point inside the rounding adds its own, and a reciprocal must not overflow where the products here do
    not. The ends of the range of a block, one of each in it, are no such values.
    """
    rule, row = spec.rule, _float_code(where)
    inside, offset, multiplies = rule.zero == "inside", rule.zero == "offset", rule.quotient != "divide"
    beyond = 0.25 if rule.rounding in ("half_even", "half_away") else -0.25

    def integer(spec, x, s, args, where):
        reach, dtype = v.constant(beyond, s.scale), compute_type(spec, s.scale)
        low, high = v.convert(args.lowest, dtype) - s.base, v.convert(args.highest, dtype) - s.base
        if inside:
            reach = reach - v.absolute(s.zero_point) * v.constant(2.0**-21, s.zero_point)
            low, high = low - s.zero_point, high - s.zero_point
        if offset:
            x = x - s.zero_point
        within = (x > (low - reach) * s.scale) & (x < (high + reach) * s.scale)
        if multiplies:
            within = within & (v.absolute(s.factor) < v.constant(float("inf"), s.factor))
        return within ^ True

    def float_(spec, x, s, args, where):
        return (v.absolute(x) < v.constant(most, x) * s.scale) ^ True

    def in_units_of_tensor(spec, x, s, args, where):
        return (v.absolute(x) < v.constant(most, x) * s.scale * s.zero_point) ^ True

    if row is None:
        by_range = rule.quotient == "range"  # a division either way
        return (lambda spec, x, s, args, where: clamped(spec, x, s, args, where)) if by_range else integer
    most = min(map(abs, row.bounds)) if isinstance(row, Codebook) else (row.max + _next_tie(row)) / 2
    return in_units_of_tensor if spec.scale_kind == "tensor" else float_


class ErrorOperands(NamedTuple):
    """Pointers of a comparison, `approximation` being codes or values; sums of errors are added to `errors`."""

    src: Any
    approximation: Any
    scale: Any
    zero_point: Any
    errors: Any


class Total(NamedTuple):
    """Sums and maxima of errors so far, lane by lane, as in `SUMS`; then how many x are 0 and codes were clamped."""

    error2: Any
    x2: Any
    error: Any
    relative: Any
    largest: Any
    largest_relative: Any
    zeros: Any
    clipped: Any


@njit
def _load_total(sums, kind):
    """Load the sums of a chunk: all lanes of each, or the first one."""
    n = SUM_LANES
    return Total(
        v.load(sums, 0, kind),
        v.load(sums, n, kind),
        v.load(sums, 2 * n, kind),
        v.load(sums, 3 * n, kind),
        v.load(sums, 4 * n, kind),
        v.load(sums, 5 * n, kind),
        v.load(sums, 6 * n, kind),
        v.load(sums, 7 * n, kind),
    )


@njit
def _store_total(sums, total):
    n = SUM_LANES
    v.store(sums, 0, total.error2)
    v.store(sums, n, total.x2)
    v.store(sums, 2 * n, total.error)
    v.store(sums, 3 * n, total.relative)
    v.store(sums, 4 * n, total.largest)
    v.store(sums, 5 * n, total.largest_relative)
    v.store(sums, 6 * n, total.zeros)
    v.store(sums, 7 * n, total.clipped)


@specialize
def _by_halves(total, x, error, ratio):
    """Add errors, of one half of the lanes after the other where they are more than a sum has."""
    if v.lane_count(x) == v.lane_count(total.types[0]):
        return _add_errors

    def halves(total, x, error, ratio):
        above, below = ratio
        total = _by_halves(total, v.lower(x), v.lower(error), (v.lower(above), v.lower(below)))
        return _by_halves(total, v.upper(x), v.upper(error), (v.upper(above), v.upper(below)))

    return halves


@njit
def _add_errors(total, x, error, ratio):
    relative = ratio[0] / ratio[1]
    return Total(
        total.error2 + error * error,
        total.x2 + x * x,
        total.error + error,
        total.relative + relative,
        v.maximum(error, total.largest),
        v.maximum(relative, total.largest_relative),
        total.zeros,
        total.clipped,
    )


@specialize
def _count(counts, mask):
    """Add 1 where a mask is true, which may have more lanes than counts."""
    if v.lane_count(mask) > v.lane_count(counts):
        return lambda counts, mask: _count(_count(counts, v.lower(mask)), v.upper(mask))
    return lambda counts, mask: v.select(mask, counts + v.constant(1, counts), counts)


@njit
def _add(spec, total, x, code, parameters, args, where):
    scale, zero_point = parameters
    s = prepare_scale(spec, scale, zero_point, args.lowest, args.highest)
    compute, wide, zero = v.convert(x, compute_type(spec, s.scale)), v.convert(x, types.float64), x == v.constant(0, x)
    error = v.absolute(wide - v.convert(approximated(spec, code, s, where), types.float64))
    above, below, zeros, clipped = error, v.absolute(wide), total.zeros, total.clipped
    # few are, mostly, and a test of all lanes takes less time than to count them
    if v.any_lane(zero | perhaps_clamped(spec, compute, s, args, where)):
        above, below = v.select(zero, v.constant(0, error), error), v.select(zero, v.constant(1, below), below)
        zeros, clipped = _count(zeros, zero), _count(clipped, clamped(spec, compute, s, args, where))
    sums = _by_halves(total, wide, error, (above, below))
    return Total(sums.error2, sums.x2, sums.error, sums.relative, sums.largest, sums.largest_relative, zeros, clipped)


@specialize
def _lanes(spec, scale):
    """Vec type of the type to compute in, of as many lanes as elements are taken at a time."""
    return v.Vec(computes_in(spec, scale), AT_A_TIME)


@njit
def _add_vecs(spec, operands, args, parameters, i, end, total):
    """Add the errors of whole Vecs from i on, up to `end`; return the total and where the rest begins."""
    src, approximation, k = v.advance(operands.src, i), v.advance(operands.approximation, i), 0
    vec = v.lanes_like(_lanes(spec, operands.scale), src)
    while k <= end - i - v.count(vec):
        prefetch_lanes(src, k + PREFETCH, vec)
        prefetch_lanes(approximation, k + PREFETCH, v.lanes_like(vec, approximation))
        x, code = load_elements(src, k, vec), load_elements(approximation, k, v.lanes_like(vec, approximation))
        at = _parameters_at(spec, operands, args, parameters, k, vec)
        total = _add(spec, total, x, code, at, args, approximation)
        k += v.count(vec)
    return total, i + k


@njit
def add_errors_of_blocks(spec, operands, args, p, i, row_end, limit):
    """Add the errors of runs from i on, with parameters from p on, to `limit`; see `Body`.

    Sums stay in registers from run to run, as long as these are whole Vecs.
    """
    if args.block % AT_A_TIME:
        return 0, i, row_end, 0
    if args.length % AT_A_TIME:
        limit = min(limit, row_end - tail_size(args))
    left = blocks_left(args, i, row_end)
    many = runs_until(args, i, left, limit)
    one, sums = v.dtype_of(operands.scale), _sums_of(operands, args, i)
    total = _load_total(sums, _SUM)
    for k in range(p, p + many):
        parameters = _parameters_at(spec, operands, args, k, 0, one)
        total, i = _add_vecs(spec, operands, args, parameters, i, i + size_of_run(args, left), total)
        left = left_after_run(args, left)
    _store_total(sums, total)
    return many, i, row_end_of(args, i, left), status_of(_has_nan(total), False)


@njit
def _sums_of(operands, args, i):
    """Return where the sums of the chunk of element i are."""
    return v.advance(operands.errors, i // args.chunk * SUMS * SUM_LANES)


@njit
def _has_nan(total):
    """Return whether a value was NaN: a sum of squares is, then."""
    return v.any_lane(v.is_nan(total.x2))


@njit
def add_errors(spec, operands, args, parameters, i, end):
    """Add the errors of elements i..end to the sums of their chunk.

    `parameters` is the scale and zero point of all of them, or the index of the parameter of the first one.
    """
    src, approximation, one = operands.src, operands.approximation, v.dtype_of(operands.scale)
    sums, k, found = _sums_of(operands, args, i), i, False
    if end - i >= AT_A_TIME:
        total, k = _add_vecs(spec, operands, args, parameters, i, end, _load_total(sums, _SUM))
        found = _has_nan(total)
        _store_total(sums, total)
    if k < end:
        rest = _load_total(sums, types.float64)
        while k < end:
            x, code = load_elements(src, k, v.dtype_of(src)), load_elements(approximation, k, v.dtype_of(approximation))
            at = _parameters_at(spec, operands, args, parameters, k - i, one)
            rest = _add(spec, rest, x, code, at, args, approximation)
            k += 1
        found |= _has_nan(rest)
        _store_total(sums, rest)
    return status_of(found, False)


@njit
def _of_run(spec, operands, args, p, i, end):
    one = v.dtype_of(operands.scale)
    scale, zero_point = load_scale(spec, operands, p, one), load_zero_point(spec, operands, args, p, one)
    return add_errors(spec, operands, args, (scale, zero_point), i, end)


@njit
def _of_row(spec, operands, args, p, i, end):
    return add_errors(spec, operands, args, p + i, i, end)


@njit
def _rebase(operands, args, units):
    src, approximation = v.advance(operands.src, -units.origin), v.advance(operands.approximation, -units.origin)
    return ErrorOperands(src, approximation, operands.scale, operands.zero_point, operands.errors)


@njit
def _with_parameters(operands, scale, zero_point):
    return ErrorOperands(operands.src, operands.approximation, scale, zero_point, operands.errors)


BODIES[ErrorOperands] = Body(
    _rebase, _of_run, batch=add_errors_of_blocks, row=_of_row, with_parameters=_with_parameters
)
