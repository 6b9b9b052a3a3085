"""Search for the part of a range with the least error of the round trip: quantized, dequantized, compared.

Errors are counted in whole units, powers of two that depend on the range alone. Sums of whole numbers below 2**53 are
exact in float64, and larger ones count as that: so no order of elements, number of threads or chunks shows in them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.kernels import formulas
from fastq.kernels.apply import apply_op, float_ratio_prepared, to_compute
from fastq.kernels.args import MOST_ERROR, CandidateOperands, SearchOperands
from fastq.kernels.body import BODIES, Body
from fastq.kernels.load_store import load_elements
from fastq.kernels.minifloat import decode, encode, in_half, round_magnitude
from fastq.kernels.parameters import range_parameters
from fastq.kernels.spec import compute_lanes

STEP_BITS = 10  # a unit is 2**-10 steps between codes, or the next power of two below
# Elements after which a group of candidates is given up whose errors are too large already, from the L1 cache.
PIECE = 1 << 11
LANES = v.REGISTER_BITS // 32  # candidates of a group at most


@njit
def shrink_range(spec, operands, args, p, i, end):
    """Shrink range p to the candidate with the least error of the elements i..end, of equal ones the largest."""
    lo, hi = operands.lo[p], operands.hi[p]
    errors = v.scratch(LANES, types.float64)
    unit, least, chosen, first = _units_of_one(spec, operands, args, lo, hi), MOST_ERROR, 0, 0
    while unit > 0 and first < args.candidates and least > 0.0:
        group = _group(spec, operands, args, lo, hi, unit, first)
        v.store(errors, 0, _errors_below(spec, operands, args, group, i, end, least))
        for k in range(min(_lanes(spec, operands), args.candidates - first)):
            if errors[k] < least:
                least, chosen = errors[k], first + k
        first += _lanes(spec, operands)
    ratio = v.convert((args.grid - chosen) / args.grid, formulas.compute_type(spec, operands.scale))
    operands.lo[p], operands.hi[p] = lo * ratio, hi * ratio
    return 0


@njit
def _errors_below(spec, operands, args, group, i, end, least):
    """Sum the errors of the elements i..end, as long as that of a candidate may be below the least one."""
    errors, bound = v.full_like(0.0, group.bound), group.bound
    while i < end and v.any_lane(bound < least):
        stop = min(i + PIECE, end)
        errors = _add_errors(spec, operands, args, group, i, stop, errors)
        bound = v.maximum(group.bound, errors)
        i = stop
    return v.maximum(group.bound, errors)


@njit
def add_candidates(spec, operands, args, p, i, end):
    """Add the errors of the elements i..end to the sums of all candidates of range p."""
    lo, hi, sums = operands.lo[p], operands.hi[p], p * args.candidates
    errors = v.scratch(LANES, types.float64)
    unit, n = _units_of_one(spec, operands, args, lo, hi), _lanes(spec, operands)
    while i < end and unit > 0:
        stop = min(i + PIECE, end)
        for first in range(0, args.candidates, n):
            group = _group(spec, operands, args, lo, hi, unit, first)
            v.store(errors, 0, _add_errors(spec, operands, args, group, i, stop, v.full_like(0.0, group.bound)))
            for k in range(min(n, args.candidates - first)):
                operands.errors[sums + first + k] += errors[k]
        i = stop
    return 0


# --- candidates -------------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """As many candidates as a register has lanes, a lane each; past the last one it is repeated."""

    scale: Any  # their parameters
    zero_point: Any
    prepared: Any  # the prepared scales
    ready: Any  # whether all of these can be used
    bound: Any  # what their errors are at least: that of either end of the range, which is an element
    unit: Any  # how many units an error of 1 has


@njit
def _lanes(spec, operands):
    return v.count(compute_lanes(spec, operands.scale, 1))


@njit
def _group(spec, operands, args, lo, hi, unit, first):
    """Compute parameters and bounds of the candidates of the range lo..hi from `first` on."""
    ratios = _ratios(spec, operands, args, first)
    low, high = ratios * lo, ratios * hi
    scale, zero_point = range_parameters(spec, low, high, args, operands.scale)
    s = _prepared_for_search(spec, formulas.prepare_scale(spec, scale, zero_point, args.lowest, args.highest))
    ready = not v.any_lane(formulas.needs_division(spec, scale))
    bound = v.full(0.0, v.lanes_like(compute_lanes(spec, operands.scale, 1), v.pointer(0, types.float64)))
    if ready:
        at_low = _add_power(spec, _units(spec, v.full_like(lo, ratios), s, unit), bound)
        at_high = _add_power(spec, _units(spec, v.full_like(hi, ratios), s, unit), bound)
        bound = v.maximum(at_low, at_high)
    return _Group(scale, zero_point, s, ready, bound, unit)


@njit
def _ratios(spec, operands, args, first):
    """Return by what the candidates from `first` on multiply both ends of the range."""
    dtype = formulas.compute_type(spec, operands.scale)
    parts = v.scratch(LANES, types.float64)
    for k in range(_lanes(spec, operands)):
        parts[k] = args.grid - min(first + k, args.candidates - 1)
    of_grid = v.load(parts, 0, v.lanes_like(compute_lanes(spec, operands.scale, 1), parts))
    return v.convert(of_grid / v.convert(args.grid, types.float64), dtype)


@traced
def _units_of_one(spec, operands, args, lo, hi):
    """Return how many units an error of 1 has, by the step between codes of the whole range; 0 if that is infinite.

    Of float codes the step is that between the largest ones.
    """
    dtype = formulas.computes_in(spec, operands.scale)
    place = spec.code.row.place if spec.code is not None else 0
    word, mantissa, bias = (types.int32, 23, 127) if dtype == types.float32 else (types.int64, 52, 1023)
    scale, _ = range_parameters(spec, lo, hi, args, operands.scale)
    step = v.absolute(v.convert(scale, dtype))
    if spec.scale_kind == "tensor":
        step = step * args.tensor
    exponent = STEP_BITS - place - ((v.bitcast(step, word) >> mantissa) - bias)
    bounded = v.minimum(v.maximum(exponent, v.constant(1 - bias, exponent)), v.constant(bias, exponent))
    units = v.bitcast(v.convert((bounded + bias) << mantissa, word), dtype)
    return v.select(formulas.is_infinite(scale), v.constant(0, step), units)


# --- errors -----------------------------------------------------------------------------------------------------------


@njit
def _add_errors(spec, operands, args, group, i, end, errors):
    """Add the errors of the elements i..end under each candidate of a group."""
    if not group.ready:
        return _add_errors_by_division(spec, operands, args, group, i, end, errors)
    s, unit = group.prepared, group.unit
    while i + 2 <= end:
        x, y = _element(spec, operands, i), _element(spec, operands, i + 1)
        first, second = _units(spec, x, s, unit), _units(spec, y, s, unit)
        errors = _add_power(spec, second, _add_power(spec, first, errors))
        i += 2
    if i < end:
        errors = _add_power(spec, _units(spec, _element(spec, operands, i), s, unit), errors)
    return errors


@njit
def _element(spec, operands, i):
    x = to_compute(spec, load_elements(operands.src, i, v.dtype_of(operands.src)), operands.scale)
    return v.full(x, compute_lanes(spec, operands.scale, 1))


@njit
def _add_errors_by_division(spec, operands, args, group, i, end, errors):
    like = v.pointer(0, formulas.compute_type(spec, operands.scale))
    while i < end:
        x = _element(spec, operands, i)
        value = apply_op(spec, x, group.scale, group.zero_point, args, like)
        errors = _add_power(spec, v.rint((x - value) * group.unit), errors)
        i += 1
    return errors


@traced
def _units(spec, x, s, unit):
    """Return the errors of the round trip of `x` in whole units, without regard to their sign."""
    if spec.code is None:
        return v.rint((formulas.value_of_steps(spec, formulas.scaled_round_to_float(spec, x, s), s) - x) * unit)
    if formulas.is_by_table(spec):
        number = v.convert(decode(encode(float_ratio_prepared(spec, x, s), spec.code), spec.code), v.lane_type(x))
    else:  # the error of a magnitude is that of the number
        x = v.absolute(x)
        number = round_magnitude(_magnitude_ratio(spec, x, s), spec.code)
    return v.rint((v.convert(formulas.dequantize_value(spec, number, s), v.lane_type(x)) - x) * unit)


@traced
def _magnitude_ratio(spec, x, s):
    """Divide magnitudes by a prepared scale, to be rounded to float codes."""
    if spec.scale_kind:
        return x * s.factor
    return in_half(spec, formulas.quotient(v.minimum(x, v.constant(spec.code.row.max, x) * s.scale), s))


@traced
def _prepared_for_search(spec, s):
    """Return prepared scales whose factor is that of the format, where scales are in units of one for the array."""
    return s._replace(factor=formulas.nvfp4_factor(s.scale, s.zero_point)) if spec.scale_kind == "tensor" else s


@traced
def _add_power(spec, units, total):
    """Add a power of whole numbers to a sum of float64, exactly."""
    if spec.norm == 1.0:
        return total + v.convert(v.absolute(units), types.float64)
    number = v.convert(units, types.float64)
    return v.fma(number, number, total) if formulas.HAS_FMA else number * number + total


BODIES[SearchOperands] = Body(shrink_range)
BODIES[CandidateOperands] = Body(add_candidates, partials={"errors": ""})
