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

STEP_BITS = 7  # a unit is 2**-7 steps between codes, or the next power of two below
PIECE = 64  # elements whose errors are summed in float32 first, which is exact below 2**24
LARGEST = {types.float32: 2.0**128 - 2.0**104, types.float64: 1.7976931348623157e308}
LANES = v.REGISTER_BITS // 32  # candidates of a group at most


@njit
def search_range(spec, operands, args, p, i, end):
    """Replace range p by the candidate with the least error of the elements i..end, of equal ones the first."""
    lo, hi, dtype = operands.lo[p], operands.hi[p], formulas.compute_type(spec, operands.scale)
    around, moved = v.constant(0, lo), 0
    for stage in range(args.stages):
        tried = _Tried(lo, hi, stage * args.table_stride, around)
        chosen = _least(spec, operands, args, tried, i, end)
        moved |= chosen
        around += v.pointer(args.table, dtype)[tried.place + chosen]
        if moved > 0:  # the whole range stays, which may be infinite
            operands.lo[p], operands.hi[p] = _ends(spec, args, tried, chosen, dtype)
    return 0


@njit
def _least(spec, operands, args, tried, i, end):
    """Return the number of the candidate with the least error of the elements i..end."""
    group = _first_group(spec, operands, args, tried)
    least, chosen, first, n = MOST_ERROR, 0, 0, _lanes(spec, operands)
    while group.unit > 0 and least > 0.0:
        errors = _errors_below(spec, operands, args, group, i, end, least)
        best = v.reduce_min(errors)
        if best < least:
            least, chosen = best, first + v.first_lane(errors <= best)
        first += n
        if first >= args.candidates:
            break
        group = _next_group(spec, operands, args, tried, group, first)
    return chosen


@njit
def _errors_below(spec, operands, args, group, i, end, least):
    """Sum the errors of the elements i..end, as long as that of a candidate may be below the least one."""
    errors = _no_errors(spec, operands)
    while i < end and v.any_lane(v.maximum(group.bound, errors) < least):
        stop = _end_of_piece(args, i, end)
        errors = _add_errors(spec, operands, args, group, i, stop, errors)
        i = stop
    errors = v.maximum(group.bound, errors)
    return v.minimum(errors, v.full_like(MOST_ERROR, errors))  # of NaN that, in this order


@njit
def add_candidates(spec, operands, args, p, i, end):
    """Add the errors of the elements i..end to the sums of all candidates of range p."""
    tried, sums = _Tried(operands.lo[p], operands.hi[p], 0, _found(spec, operands, args, p)), p * args.candidates
    errors = v.scratch(LANES, types.float64)
    group, first, n = _first_group(spec, operands, args, tried), 0, _lanes(spec, operands)
    while group.unit > 0:
        total, at = _no_errors(spec, operands), i
        while at < end:
            stop = _end_of_piece(args, at, end)
            total = _add_errors(spec, operands, args, group, at, stop, total)
            at = stop
        v.store(errors, 0, total)
        for k in range(min(n, args.candidates - first)):
            operands.errors[sums + first + k] += errors[k]
        first += n
        if first >= args.candidates:
            break
        group = _next_group(spec, operands, args, tried, group, first)
    return 0


@njit
def _found(spec, operands, args, p):
    """Return the share of range p that the candidates are around, 0 where they are shares themselves."""
    share = v.constant(0, operands.lo[p])
    if not spec.scale_kind and args.is_around > 0:  # formats with scales of their own have none
        share = v.convert(operands.scale[p], formulas.compute_type(spec, operands.scale))
    return share


@njit
def _end_of_piece(args, i, end):
    """Return where the piece from i on ends: at the latest where the weights repeat."""
    end = min(i + PIECE, end)
    return min(end, i + args.period - i % args.period) if args.period > 0 else end


# --- candidates -------------------------------------------------------------------------------------------------------


class _Tried(NamedTuple):
    """Which candidates are tried of a range."""

    lo: Any  # the range
    hi: Any
    place: Any  # where their shares of it begin in the table
    around: Any  # what is added to these


class _Group(NamedTuple):
    """As many candidates as a register has lanes, a lane each; past the last one it is repeated."""

    scale: Any  # their parameters
    zero_point: Any
    prepared: Any  # the prepared scales
    ready: Any  # whether all of these can be used
    unit: Any  # how many units an error of 1 has, by the step of the whole range; 0 if that is infinite
    bound: Any  # what the errors are at least: that of either end of the range, which is an element


@njit
def _lanes(spec, operands):
    return v.count(compute_lanes(spec, operands.scale, 1))


@traced
def _no_errors(spec, operands):
    lanes = compute_lanes(spec, operands.scale, 1)
    return v.full(0.0, v.lanes_like(lanes, v.pointer(0, types.float64)))


@njit
def _first_group(spec, operands, args, tried):
    """Compute the parameters of the first candidates of a range, of which one is the whole range, or what was found."""
    lo, hi = tried.lo, tried.hi
    group = _group(spec, operands, args, tried, 0, lo)
    unit, zero = _units_of_one(spec, args, v.first(group.scale), lo), v.constant(0, lo)
    return _with(group, zero if lo - lo != zero or hi - hi != zero else unit, group.bound)


@njit
def _next_group(spec, operands, args, tried, group, first):
    """Compute the parameters of the candidates from `first` on, and what their errors are at least.

    Where importance counts nothing is known of that.
    """
    group = _group(spec, operands, args, tried, first, group.unit)
    if not group.ready or args.period > 0:
        return group
    lanes = compute_lanes(spec, operands.scale, 1)
    at_low = _units(spec, v.full(tried.lo, lanes), group.prepared, group.unit)
    at_high = _units(spec, v.full(tried.hi, lanes), group.prepared, group.unit)
    one = types.float32(1)
    at_low, at_high = _add_power(spec, at_low, one, group.bound), _add_power(spec, at_high, one, group.bound)
    return _with(group, group.unit, v.maximum(at_low, at_high))


@traced
def _with(group, unit, bound):
    return group._replace(unit=unit, bound=bound)


@njit
def _group(spec, operands, args, tried, first, unit):
    """Compute the parameters of the candidates of a range from `first` on."""
    low, high = _ends(spec, args, tried, first, compute_lanes(spec, operands.scale, 1))
    scale, zero_point = range_parameters(spec, low, high, args, operands.scale)
    s = _prepared_for_search(spec, formulas.prepare_scale(spec, scale, zero_point, args.lowest, args.highest))
    ready = not v.any_lane(formulas.needs_division(spec, scale))
    return _Group(scale, zero_point, s, ready, unit, _no_errors(spec, operands))


@traced
def _ends(spec, args, tried, first, kind):
    """Return the ends of the candidates of a range from `first` on, as many as `kind` has lanes."""
    lo, hi, table = tried.lo, tried.hi, v.pointer(args.table, v.lane_type(kind))
    if _ends_apart(spec):
        rows = [v.load(table, row * args.table_stride + first, kind) for row in range(4)]
        return _finite(rows[0] * lo + rows[1] * hi), _finite(rows[2] * hi + rows[3] * lo)
    shares = v.load(table, tried.place + first, kind) + tried.around
    return _finite(shares * lo), _finite(shares * hi)


@traced
def _finite(ends):
    """Return ends of ranges, those that are infinite as the largest number."""
    most = v.constant(LARGEST[v.lane_type(ends)], ends)
    return v.minimum(v.maximum(ends, -most), most)


def _ends_apart(spec: Any) -> bool:
    """Return whether both ends are searched for: where a zero point may be any number."""
    return spec.range_scheme == "asymmetric" and (spec.rule.zero == "offset" or not spec.rule.range.rounding)


@traced
def _units_of_one(spec, args, scale, like):
    """Return how many units an error of 1 has, by the scale of the whole range; 0 if that is infinite.

    For float codes the step is that between the largest ones.
    """
    dtype = v.lane_type(like)
    place = spec.code.row.place if spec.code is not None else 0
    word, mantissa, bias = (types.int32, 23, 127) if dtype == types.float32 else (types.int64, 52, 1023)
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
    """Add the errors of the elements i..end, a piece, under each candidate of a group."""
    if not group.ready:
        return _add_errors_by_division(spec, operands, args, group, i, end, errors)
    if args.period == 0:
        even, odd = _short_sums(spec, operands, group, i, end)
        if not v.any_lane(v.maximum(even, odd) >= v.constant(2.0**24, even)):
            return errors + v.convert(even, types.float64) + v.convert(odd, types.float64)
    weights, step, first = _weights(args, i)
    for k in range(end - i):
        units = _units(spec, _element(spec, operands, i + k), group.prepared, group.unit)
        errors = _add_power(spec, units, weights[step * (first + k)], errors)
    return errors


@njit
def _weights(args, i):
    """Return the weights of elements, how far one is from the next, and the place of the one of element i."""
    weights = v.pointer(args.weights, types.float32)
    return (weights, 1, i % args.period) if args.period > 0 else (weights, 0, 0)


@njit
def _short_sums(spec, operands, group, i, end):
    """Sum errors in float32: those of every second element, so that no sum waits for the one before."""
    s, unit = group.prepared, group.unit
    even = odd = v.full_like(v.constant(0, unit), _element(spec, operands, i))
    while i + 2 <= end:
        x, y = _element(spec, operands, i), _element(spec, operands, i + 1)
        even = _add_short(spec, _units(spec, x, s, unit), even)
        odd = _add_short(spec, _units(spec, y, s, unit), odd)
        i += 2
    if i < end:
        even = _add_short(spec, _units(spec, _element(spec, operands, i), s, unit), even)
    return even, odd


@njit
def _element(spec, operands, i):
    x = to_compute(spec, load_elements(operands.src, i, v.dtype_of(operands.src)), operands.scale)
    return v.full(x, compute_lanes(spec, operands.scale, 1))


@njit
def _add_errors_by_division(spec, operands, args, group, i, end, errors):
    like = v.pointer(0, formulas.compute_type(spec, operands.scale))
    weights, step, first = _weights(args, i)
    for k in range(end - i):
        x = _element(spec, operands, i + k)
        value = apply_op(spec, x, group.scale, group.zero_point, args, like)
        units = v.rint((x - value) * group.unit)
        errors = _add_power(spec, units, weights[step * (first + k)], errors)
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
def _add_short(spec, units, total):
    """Add a power of whole numbers to a sum of float32; exactly, where that stays below 2**24."""
    return total + v.absolute(units) if spec.norm == 1.0 else _multiplied_and_added(units, units, total)


@traced
def _add_power(spec, units, weight, total):
    """Add the weighed power of whole numbers to a sum of float64; exactly, where that stays below 2**53."""
    number, weight = v.convert(units, types.float64), v.convert(weight, types.float64)
    if spec.norm == 1.0:
        return total + v.absolute(number) * weight
    return _multiplied_and_added(number * weight, number, total)


@traced
def _multiplied_and_added(a, b, total):
    return v.fma(a, b, total) if formulas.HAS_FMA else a * b + total


BODIES[SearchOperands] = Body(search_range)
BODIES[CandidateOperands] = Body(add_candidates, partials={"errors": ""})
