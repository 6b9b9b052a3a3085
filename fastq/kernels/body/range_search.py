"""Search for the part of a range with the least error of the round trip: quantized, dequantized, compared.

Errors are counted in whole units, powers of two that depend on the range alone. Sums of whole numbers below 2**53 are
exact in float64, and larger ones count as that: so no order of elements, number of threads or chunks shows in them.

The bound is that of instructions. A register of errors takes two loads and, for integers, ten operations:
two clamp, three divide, two round, one multiplies by the scale, one subtracts, one squares and adds. float8 takes 13, a
codebook of 16 numbers 28 and one of 256 about 100, for the bisection. Blocks of 32 take as long again for parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import formulas
from fastq.kernels.apply import apply_op, float_ratio_prepared, to_compute
from fastq.kernels.body import BODIES, Body
from fastq.kernels.load_store import load_elements
from fastq.kernels.minifloat import decode, encode, in_half, round_magnitude
from fastq.kernels.pointers import CandidateOperands, SearchOperands
from fastq.kernels.scales_of_ranges import range_parameters
from fastq.kernels.sizes import MOST_ERROR
from fastq.kernels.spec import compute_lanes

RANGE_BITS = 10  # the largest number of a format has 2**10 units, or up to twice as many
MOST_BITS = 6  # of steps that count for that, so that a step of 16 bit codes has units, too
PIECE = 64  # elements whose errors are summed in float32 first, which is exact below 2**24
LARGEST = {types.float32: 2.0**128 - 2.0**104, types.float64: 1.7976931348623157e308}
LANES = v.REGISTER_BITS // 32  # candidates of a group at most


@traced
def search_range(spec, operands, args, p, i, end):
    """Replace range p by the candidate with the least error of the elements i..end, of equal ones the first.

    Each stage adds its own factors to the best factor so far, `around`. Candidate 0 of the first stage is the whole
    range.
    """
    lo = operands.lo[p]
    hi = operands.hi[p]
    dtype = formulas.compute_type(spec, operands.scale)
    around = v.constant(0, lo)
    moved = 0
    for stage in range(args.stages):
        tried = _Tried(lo, hi, stage * args.factor_stride, around)
        chosen = _least(spec, operands, args, tried, i, end)
        moved |= chosen
        around += v.pointer(args.factors, dtype)[tried.place + chosen]
        if moved > 0:  # the whole range stays, which may be infinite
            operands.lo[p], operands.hi[p] = _ends(spec, args, tried, chosen, dtype)
    return 0


@traced
def _least(spec, operands, args, tried, i, end):
    """Return the number of the candidate with the least error of the elements i..end."""
    group = _first_group(spec, operands, args, tried)
    least = MOST_ERROR
    chosen = 0
    first = 0
    n = _lanes(spec, operands)
    while group.unit > 0 and least > 0.0:
        errors = _errors_below(spec, operands, args, group, i, end, least)
        best = v.reduce_min(errors)
        if best < least:
            least = best
            chosen = first + v.first_lane(errors <= best)
        first += n
        if first >= args.candidates:
            break
        group = _next_group(spec, operands, args, tried, group.unit, first)
    return chosen


@traced
def _errors_below(spec, operands, args, group, i, end, least):
    """Sum the errors of the elements i..end, as long as a candidate may still have less error than the best one."""
    errors = _no_errors(spec, operands)
    known = group.bound
    while i < end and v.any_lane(known < least):
        stop = _end_of_piece(args, i, end)
        errors = _add_errors(spec, operands, args, group, i, stop, errors)
        known = v.maximum(group.bound, v.sum_neighbours(errors, spec.lanes_each))
        i = stop
    return v.minimum(known, v.full_like(MOST_ERROR, known))  # of NaN that, in this order


@traced
def add_candidates(spec, operands, args, p, i, end):
    """Add the errors of the elements i..end to the sums of all candidates of range p."""
    tried = _Tried(operands.lo[p], operands.hi[p], 0, _best_factor_so_far(spec, operands, args, p))
    sums = p * args.candidates
    errors = v.scratch(LANES, types.float64)
    group = _first_group(spec, operands, args, tried)
    first = 0
    n = _lanes(spec, operands)
    while group.unit > 0:
        total = _no_errors(spec, operands)
        at = i
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
        group = _next_group(spec, operands, args, tried, group.unit, first)
    return 0


@traced
def _best_factor_so_far(spec, operands, args, p):
    """Return the factor of range p that those of the candidates are added to, 0 in the first search."""
    factor = v.constant(0, operands.lo[p])
    if not spec.scale_kind and args.is_around > 0:  # formats with scales of their own have none
        factor = v.convert(operands.scale[p], formulas.compute_type(spec, operands.scale))
    return factor


@traced
def _end_of_piece(args, i, end):
    """Return where the piece from i on ends: at the latest where the weights repeat."""
    end = min(i + PIECE, end)
    return min(end, i + args.period - i % args.period) if args.period > 0 else end


# --- candidates -------------------------------------------------------------------------------------------------------


class _Tried(NamedTuple):
    """Which candidates are tried of a range."""

    lo: Any  # the range
    hi: Any
    place: Any  # where their factors begin in the table
    around: Any  # what is added to these


class _Group(NamedTuple):
    """As many candidates as fill a register with `lanes_each` lanes for each; past the last one it is repeated."""

    scale: Any  # their parameters
    zero_point: Any
    prepared: Any  # the prepared scales
    in_units: Any  # these, so that values are in units
    ready: Any  # whether all of these can be used
    unit: Any  # how many units an error of 1 has, by the step of the whole range; 0 if that is infinite
    bound: Any  # what the errors are at least: that of either end of the range, which is an element


@traced
def _lanes(spec, operands):
    """Return how many lanes the candidates of a group have."""
    return v.count(compute_lanes(spec, operands.scale, 1))


@traced
def _no_errors(spec, operands):
    """Return the sums of errors of a group before the first element, lanes of float64."""
    lanes = compute_lanes(spec, operands.scale, 1)
    return v.full(0.0, v.lanes_like(lanes, v.pointer(0, types.float64)))


@traced
def _first_group(spec, operands, args, tried):
    """Compute the parameters of the first candidates of a range.

    The very first is the whole range, or in a second search the best range of the first. Its step gives the unit in
    which the errors of all candidates are counted; if an end is not finite it is 0, and nothing is searched.
    """
    lo, hi = tried.lo, tried.hi
    scale, zero_point = _parameters(spec, operands, args, tried, 0)
    unit = _units_of_one(spec, args, v.first(scale), lo)
    zero = v.constant(0, lo)
    unit = zero if lo - lo != zero or hi - hi != zero else unit  # infinity minus itself is NaN
    return _group(spec, args, scale, zero_point, tried, unit, _no_errors(spec, operands))


@traced
def _next_group(spec, operands, args, tried, unit, first):
    """Compute the parameters of the candidates from `first` on, and what their errors are at least.

    Both ends of a range are elements, so an error is at least that of either one. With importance it may be less: the
    weights of these elements are not known here.
    """
    scale, zero_point = _parameters(spec, operands, args, tried, first)
    group = _group(spec, args, scale, zero_point, tried, unit, _no_errors(spec, operands))
    has_importance = args.period > 0
    if not group.ready or has_importance:
        return group
    weight = types.float32(1)
    at_low = _add_power(spec, _units_of(spec, _values_to_search(spec, tried.lo), group), weight, group.bound)
    at_high = _add_power(spec, _units_of(spec, _values_to_search(spec, tried.hi), group), weight, group.bound)
    return _group(spec, args, scale, zero_point, tried, unit, v.maximum(at_low, at_high))


@traced
def _parameters(spec, operands, args, tried, first):
    """Compute scales and zero points of the candidates of a range from `first` on."""
    low, high = _ends(spec, args, tried, first, compute_lanes(spec, operands.scale, 1))
    return range_parameters(spec, low, high, args, operands.scale)


@traced
def _group(spec, args, scale, zero_point, tried, unit, bound):
    """Prepare the parameters of candidates, for values and for values in units.

    These are the same numbers times a power of two, as nothing overflows or underflows with the scales that are usable.
    The values of a range whose scale was replaced may be that many units that they do.
    """
    s = _prepare_for_search(spec, formulas.prepare_scale(spec, scale, zero_point, args.lowest, args.highest))
    step = _step(spec, args, scale, v.lane_type(s.scale))
    smallest = v.constant(2.0**-80, step)
    largest = v.constant(2.0**100, step)
    ready = v.any_lane((step > smallest) & (step < largest) ^ True) ^ True
    ready = ready & (v.maximum(-tried.lo, tried.hi) * unit < 2.0**100)
    return _Group(scale, zero_point, s, _in_units(spec, s, unit), ready, unit, bound)


@traced
def _prepare_for_search(spec, s):
    """Return prepared scales; if scales are in units of one for the array, the factor becomes that of the format."""
    return s._replace(factor=formulas.nvfp4_factor(spec, s.scale, s.tensor)) if spec.scale_kind == "tensor" else s


@traced
def _in_units(spec, s, unit):
    """Return prepared scales that give values in units of errors, so that no error needs a product with `unit`."""
    if spec.scale_kind == "tensor":
        return s._replace(tensor=s.tensor * unit)
    s = formulas.of_values(spec, s)
    s = s._replace(scale=s.scale * unit)
    if spec.rule.by_range:
        return s._replace(zero_point=s.zero_point * unit, factor=s.factor * unit)
    if spec.rule.divides_steps:
        return s._replace(zero_point=s.zero_point * unit, factor=s.factor / unit)
    return s._replace(zero_point=s.zero_point * unit) if spec.rule.zero == "offset" else s


@traced
def _ends(spec, args, tried, first, kind):
    """Return the ends of the candidates of a range from `first` on, as many as `kind` has lanes."""
    lo = tried.lo
    hi = tried.hi
    table = v.pointer(args.factors, v.lane_type(kind))
    if _ends_apart(spec):
        # factors of lo and hi for the lower end, of hi and lo for the upper end
        rows = [v.load(table, row * args.factor_stride + first, kind) for row in range(4)]
        return _finite(rows[0] * lo + rows[1] * hi), _finite(rows[2] * hi + rows[3] * lo)
    factors = v.load(table, tried.place + first, kind) + tried.around
    return _finite(factors * lo), _finite(factors * hi)


@traced
def _finite(ends):
    """Return ends of ranges, those that are infinite as the largest number."""
    most = v.constant(LARGEST[v.lane_type(ends)], ends)
    return v.minimum(v.maximum(ends, -most), most)


def _ends_apart(spec: Any) -> bool:
    """Return whether both ends are searched for: where a zero point may be any number."""
    return spec.range_scheme == "asymmetric" and (spec.rule.zero == "offset" or not spec.rule.range.zero_point_rounding)


@traced
def _step(spec, args, scale, dtype):
    """Return the magnitude of scales, in units of values."""
    step = v.absolute(v.convert(scale, dtype))
    return step * args.tensor if spec.scale_kind == "tensor" else step


@traced
def _units_of_one(spec, args, scale, like):
    """Return how many units an error of 1 has, by the scale of the whole range; 0 if that is infinite."""
    dtype = v.lane_type(like)
    word, mantissa, bias = (types.int32, 23, 127) if dtype == types.float32 else (types.int64, 52, 1023)
    step = _step(spec, args, scale, dtype)
    steps = v.convert(args.highest - args.lowest, dtype)
    exponent = RANGE_BITS - ((v.bitcast(step, word) >> mantissa) - bias)
    if spec.code is None:
        exponent = exponent - v.minimum((v.bitcast(steps, word) >> mantissa) - bias, v.constant(MOST_BITS, exponent))
    else:
        exponent = exponent - spec.code.format.emax
    bounded = v.minimum(v.maximum(exponent, v.constant(1 - bias, exponent)), v.constant(bias, exponent))
    units = v.bitcast(v.convert((bounded + bias) << mantissa, word), dtype)
    return v.select(formulas.is_infinite(scale), v.constant(0, step), units)


# --- errors -----------------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Elements that follow each other, as pointers."""

    values: Any  # in the type to compute in
    in_units: Any
    count: Any
    whole: Any  # how many of them are visited `lanes_each` at a time


@traced
def _add_errors(spec, operands, args, group, i, end, errors):
    """Add the errors of the elements i..end, a piece, under each candidate of a group."""
    if not group.ready:
        return _add_errors_by_division(spec, operands, args, group, i, end, errors)
    kind = formulas.compute_type(spec, operands.scale)
    n = end - i
    piece = _Piece(_values(spec, operands, i), v.scratch(PIECE, kind), n, n - n % spec.lanes_each)
    _fill(spec, operands, piece, i, group.unit)
    done = 0
    if args.period == 0:
        first, second = _short_sums(spec, piece, group)
        if not v.any_lane(v.maximum(first, second) >= v.constant(2.0**24, first)):
            errors = errors + v.convert(first, types.float64) + v.convert(second, types.float64)
            done = piece.whole
    weights, step, at = _weights(args, i)
    for k in range(done, piece.whole, spec.lanes_each):
        weight = _load_for_each_candidate(spec, weights, step * (at + k), errors)
        errors = _add_power(spec, _units_from(spec, piece, group, k), weight, errors)
    for k in range(piece.whole, n):
        units = _in_first_lanes(spec, _units_of(spec, piece.values[k], group))
        errors = _add_power(spec, units, weights[step * (at + k)], errors)
    return errors


def _are_converted(spec, src, scale) -> bool:
    """Return whether elements are others than those in memory."""
    magnitudes = spec.code is not None and not formulas.is_by_table(spec)
    return src.dtype != formulas.computes_in(spec, scale) or spec.nan == "zero" or magnitudes


@traced
def _values(spec, operands, i):
    """Return where the elements from i on are in the type to compute in: in memory, or on the stack."""
    if _are_converted(spec, operands.src, operands.scale):
        return v.scratch(PIECE, formulas.compute_type(spec, operands.scale))
    return v.advance(operands.src, i)  # LLVM would call memcpy, which takes as long as a block of 32


@traced
def _fill(spec, operands, piece, i, unit):
    """Convert the elements from i on, as many as a piece has."""
    lanes = compute_lanes(spec, operands.scale, 1)
    k = 0
    while k + v.count(lanes) <= piece.count:
        _convert(spec, operands, piece, i, k, unit, v.lanes_like(lanes, operands.src))
        k += v.count(lanes)
    while k < piece.count:
        _convert(spec, operands, piece, i, k, unit, v.dtype_of(operands.src))
        k += 1


@traced
def _convert(spec, operands, piece, i, k, unit, kind):
    """Write element number k of a piece, or as many as `kind` has lanes: as a value, if needed, and in units."""
    x = _values_to_search(spec, to_compute(spec, load_elements(operands.src, i + k, kind), operands.scale))
    if _are_converted(spec, operands.src, operands.scale):
        v.store(piece.values, k, x)
    v.store(piece.in_units, k, x * unit)


@traced
def _weights(args, i):
    """Return the weights of elements, how far one is from the next, and the place of the one of element i."""
    weights = v.pointer(args.weights, types.float32)
    return (weights, 1, i % args.period) if args.period > 0 else (weights, 0, 0)


@traced
def _short_sums(spec, piece, group):
    """Sum errors in float32: two sums, so that no one waits for the one before."""
    first = second = v.full_like(v.constant(0, group.unit), group.prepared.scale)
    n = spec.lanes_each
    k = 0
    while k + 2 * n <= piece.whole:
        first = _add_short(spec, _units_from(spec, piece, group, k), first)
        second = _add_short(spec, _units_from(spec, piece, group, k + n), second)
        k += 2 * n
    if k < piece.whole:
        first = _add_short(spec, _units_from(spec, piece, group, k), first)
    return first, second


@traced
def _load_for_each_candidate(spec, pointer, k, like):
    """Load as many numbers as a candidate has lanes, for each candidate."""
    kind = pointer.dtype if spec.lanes_each == 1 else v.Vec(pointer.dtype, spec.lanes_each)
    return v.repeated(v.load(pointer, k, kind), v.Vec(pointer.dtype, like.n))


@traced
def _in_first_lanes(spec, x):
    """Keep the first of the lanes that a candidate has, the others become 0."""
    number = v.ramp(v.Vec(types.int32, x.n))
    return v.select((number & v.constant(spec.lanes_each - 1, number)) == v.constant(0, number), x, v.constant(0, x))


@traced
def _add_errors_by_division(spec, operands, args, group, i, end, errors):
    """Add the errors of the elements i..end by the formula for any scales, where prepared ones can't be used."""
    like = v.pointer(0, formulas.compute_type(spec, operands.scale))
    weights, step, first = _weights(args, i)
    for k in range(end - i):
        x = to_compute(spec, load_elements(operands.src, i + k, v.dtype_of(operands.src)), operands.scale)
        x = v.full(x, compute_lanes(spec, operands.scale, 1))
        value = apply_op(spec, x, group.scale, group.zero_point, args, like)
        units = _in_first_lanes(spec, v.rint((x - value) * group.unit))
        errors = _add_power(spec, units, weights[step * (first + k)], errors)
    return errors


@traced
def _units_from(spec, piece, group, k):
    """Return the errors of elements of a piece from number k on, of as many as a candidate has lanes."""
    like = group.prepared.scale
    return _units(
        spec,
        _load_for_each_candidate(spec, piece.values, k, like),
        _load_for_each_candidate(spec, piece.in_units, k, like),
        group,
    )


@traced
def _units_of(spec, x, group):
    """Return the errors of one element under each candidate, in units."""
    like = group.prepared.scale
    return _units(spec, v.full_like(x, like), v.full_like(x * group.unit, like), group)


@traced
def _values_to_search(spec, x):
    """Return the magnitudes of values if magnitudes have the same errors: of float codes."""
    return x if spec.code is None or formulas.is_by_table(spec) else v.absolute(x)


@traced
def _units(spec, x, in_units, group):
    """Return the errors of the round trip of `x` in whole units, without regard to their sign."""
    s = group.prepared
    if spec.code is None:
        steps = formulas.scaled_round_to_float(spec, x, s)
    elif formulas.is_by_table(spec):
        steps = v.convert(decode(encode(float_ratio_prepared(spec, x, s), spec.code), spec.code), v.lane_type(x))
    else:
        steps = round_magnitude(_magnitude_ratio(spec, x, s), spec.code)
    give = formulas.dequantize_value if spec.scale_kind else formulas.value_of_steps  # there is no other base than 0
    return v.rint(v.convert(give(spec, steps, group.in_units), v.lane_type(x)) - in_units)


@traced
def _magnitude_ratio(spec, x, s):
    """Divide magnitudes by a prepared scale, to be rounded to float codes; they are not far beyond those."""
    if spec.scale_kind == "tensor":
        return formulas.nvfp4_ratio(spec, x, s.factor)
    return x * s.factor if spec.scale_kind else in_half(spec, formulas.quotient(x, s))


@traced
def _add_short(spec, units, total):
    """Add a power of whole numbers to a sum of float32; exactly, where that stays below 2**24."""
    return total + v.absolute(units) if spec.norm == 1.0 else _multiply_and_add(units, units, total)


@traced
def _add_power(spec, units, weight, total):
    """Add the weighed power of whole numbers to a sum of float64; exactly, where that stays below 2**53."""
    number = v.convert(units, types.float64)
    weight = v.convert(weight, types.float64)
    if spec.norm == 1.0:
        return total + v.absolute(number) * weight
    return _multiply_and_add(number * weight, number, total)


@traced
def _multiply_and_add(a, b, total):
    """Return ``a * b + total`` of whole numbers: while these are exact, one rounding or two give the same."""
    return v.fma(a, b, total) if formulas.HAS_FMA else a * b + total


BODIES[SearchOperands] = Body(search_range)
BODIES[CandidateOperands] = Body(add_candidates, partials={"errors": ""})
