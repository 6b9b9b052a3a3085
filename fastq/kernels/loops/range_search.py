"""Search for the part of a range with the least error of the round trip: quantized, dequantized, compared.

Errors are counted in whole units, powers of two that depend on the range alone. Sums of whole numbers below 2**53 are
exact in float64, and larger ones count as that: so no order of elements, number of threads or chunks shows in them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.jit import njit, specialize
from fastq.kernels.apply import apply_op, to_compute
from fastq.kernels.formulas import (
    HAS_FMA,
    PreparedScale,
    compute_type,
    computes_in,
    dequantize_value,
    is_infinite,
    needs_division,
    nvfp4_factor,
    prepare_scale,
    quotient,
    scaled_round_to_float,
    value_of_steps,
)
from fastq.kernels.load_store import load_elements
from fastq.kernels.loops.prepared import PREPARED, load_prepared, store_prepared
from fastq.kernels.minifloat import round_magnitude
from fastq.kernels.parameters import range_parameters
from fastq.kernels.spec import compute_lanes
from fastq.simd import (
    REGISTER_BITS,
    absolute,
    any_lane,
    bitcast,
    constant,
    convert,
    count,
    dtype_of,
    fma,
    full,
    full_like,
    lane_type,
    lanes_like,
    load,
    maximum,
    minimum,
    pointer,
    reduce_sum,
    rint,
    scratch,
    store,
)

STEP_BITS = 10  # a unit is 2**-10 steps between codes, or the next power of two below
MOST_ERROR = 2.0**53
# Elements whose errors are summed under one candidate after the other, from the L1 cache; after so many a candidate is
# given up whose error is too large already.
PIECE = 1 << 11
LANES = REGISTER_BITS // 32  # numbers of a group of candidates at most
WIDE = 2  # registers whose errors are computed side by side: a scheduler holds too few instructions of one chain


@njit
def shrink_range(spec, operands, args, p, i, end):
    """Shrink range p to the candidate with the least error of the elements i..end, of equal ones the largest."""
    lo, hi = operands.lo[p], operands.hi[p]
    memory, bounds = scratch(PREPARED, compute_type(spec, operands.scale)), scratch(LANES, types.float64)
    unit, least, chosen, first = _units_of_one(spec, operands, args, lo, hi), MOST_ERROR, 0, 0
    while unit > 0 and first < args.candidates and least > 0.0:
        group = _Group(memory, bounds, lo, hi, unit, first)
        ready = _prepare(spec, operands, args, group)
        for k in range(min(_lanes(spec, operands), args.candidates - first)):
            if bounds[k] < least:
                error = _error_below(spec, operands, args, group, ready, k, i, end, least)
                if error < least:
                    least, chosen = error, first + k
        first += _lanes(spec, operands)
    ratio = _ratio(spec, operands, args, chosen)
    operands.lo[p], operands.hi[p] = lo * ratio, hi * ratio
    return 0


@njit
def _error_below(spec, operands, args, group, ready, k, i, end, least):
    """Sum the errors of the elements i..end under a candidate, as long as the sum is below the least one."""
    error = 0.0
    while i < end and error < least:
        stop = min(i + PIECE, end)
        error += _error(spec, operands, args, group, ready, k, i, stop)
        i = stop
    return error


@njit
def add_candidates(spec, operands, args, p, i, end):
    """Add the errors of the elements i..end to the sums of all candidates of range p."""
    lo, hi, sums = operands.lo[p], operands.hi[p], p * args.candidates
    memory, bounds = scratch(PREPARED, compute_type(spec, operands.scale)), scratch(LANES, types.float64)
    unit, n = _units_of_one(spec, operands, args, lo, hi), _lanes(spec, operands)
    while i < end and unit > 0:
        stop = min(i + PIECE, end)
        for first in range(0, args.candidates, n):
            group = _Group(memory, bounds, lo, hi, unit, first)
            ready = _prepare(spec, operands, args, group)
            for k in range(min(n, args.candidates - first)):
                operands.errors[sums + first + k] += _error(spec, operands, args, group, ready, k, i, stop)
        i = stop
    return 0


# --- candidates -------------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """As many candidates as a register has lanes, from `first` on, of the range lo..hi.

    Attributes
    ----------
    memory
        Room for their prepared scales.
    bounds
        Room for what their errors are at least.
    lo, hi
        Ends of the whole range.
    unit
        How many units an error of 1 has.
    first
        Index of the first one.
    """

    memory: Any
    bounds: Any
    lo: Any
    hi: Any
    unit: Any
    first: Any


@njit
def _lanes(spec, operands):
    return count(compute_lanes(spec, operands.scale, 1))


@njit
def _ratio(spec, operands, args, i):
    """Return by what candidate i multiplies both ends of the range."""
    return convert((args.grid - i) / args.grid, compute_type(spec, operands.scale))


@njit
def _ratios(spec, operands, args, group):
    """Return the ratios of a group; past the last candidate those of that one."""
    memory, dtype = group.memory, compute_type(spec, operands.scale)
    for k in range(_lanes(spec, operands)):
        memory[k] = convert(args.grid - min(group.first + k, args.candidates - 1), dtype)
    parts = convert(load(memory, 0, compute_lanes(spec, operands.scale, 1)), types.float64)
    return convert(parts / convert(args.grid, types.float64), dtype)


@njit
def _prepare(spec, operands, args, group):
    """Write prepared scales and bounds of a group to its memory; return whether all of them can be used so.

    The error of a candidate is at least that of either end of the range, which is an element.
    """
    ratios, n = _ratios(spec, operands, args, group), _lanes(spec, operands)
    scales, zero_points = range_parameters(spec, ratios * group.lo, ratios * group.hi, args, operands.scale)
    s = _prepared_for_search(spec, prepare_scale(spec, scales, zero_points, args.lowest, args.highest))
    store_prepared(group.memory, n, s)
    ready = not any_lane(needs_division(spec, scales))
    bound = full(0.0, lanes_like(compute_lanes(spec, operands.scale, 1), group.bounds))
    if ready:
        low = _add_power(spec, _units(spec, full_like(group.lo, ratios), s, group.unit), bound)
        high = _add_power(spec, _units(spec, full_like(group.hi, ratios), s, group.unit), bound)
        bound = maximum(low, high)
    store(group.bounds, 0, bound)
    return ready


@specialize
def _units_of_one(spec, operands, args, lo, hi):
    """Return how many units an error of 1 has, by the step between codes of the whole range; 0 if that is infinite.

    Of float codes the step is that between the largest ones.
    """
    dtype = computes_in(spec, _pointed(operands, "scale"))
    place = spec.code.row.emax - spec.code.row.mantissa if spec.code is not None else 0
    word, mantissa, bias = (types.int32, 23, 127) if dtype == types.float32 else (types.int64, 52, 1023)
    in_units_of_tensor = spec.scale_kind == "tensor"

    def units(spec, operands, args, lo, hi):
        scale, _ = range_parameters(spec, lo, hi, args, operands.scale)
        step = absolute(convert(scale, dtype))
        if in_units_of_tensor:
            step = step * args.tensor
        if is_infinite(scale):
            return constant(0, step)
        exponent = STEP_BITS - place - ((bitcast(step, word) >> mantissa) - bias)
        bounded = min(max(exponent, 1 - bias), bias)
        return bitcast(convert((bounded + bias) << mantissa, word), dtype)

    return units


def _pointed(operands, name):
    return dict(zip(operands.fields, operands.types, strict=True))[name].dtype


# --- errors -----------------------------------------------------------------------------------------------------------


@njit
def _error(spec, operands, args, group, ready, k, i, end):
    """Sum the errors of the elements i..end under candidate k of a group."""
    if not ready:
        return _error_by_division(spec, operands, args, group, k, i, end)
    s, unit = load_prepared(group.memory, _lanes(spec, operands), k), group.unit
    i, total = _add_errors(spec, operands, s, unit, i, end, 0.0, compute_lanes(spec, operands.scale, WIDE))
    i, total = _add_errors(spec, operands, s, unit, i, end, total, compute_lanes(spec, operands.scale, 1))
    while i < end:
        x = to_compute(spec, load_elements(operands.src, i, dtype_of(operands.src)), operands.scale)
        total = _add_power(spec, _units(spec, x, s, unit), total)
        i += 1
    return total


@njit
def _add_errors(spec, operands, s, unit, i, end, total, vec):
    """Add the errors of elements from i on, as long as they fill a Vec, to a sum; return where that ends, and it."""
    n = count(vec)
    if i + n <= end:
        sums = full(0.0, lanes_like(vec, pointer(0, types.float64)))
        while i + n <= end:
            x = to_compute(spec, load_elements(operands.src, i, lanes_like(vec, operands.src)), operands.scale)
            sums = _add_power(spec, _units(spec, x, s, unit), sums)
            i += n
        total += reduce_sum(sums)
    return i, total


@specialize
def _units(spec, x, s, unit):
    """Return the errors of the round trip of `x` in whole units, without regard to their sign."""
    code, dtype = spec.code, lane_type(x)

    def of_integers(spec, x, s, unit):
        return rint((value_of_steps(spec, scaled_round_to_float(spec, x, s), s) - x) * unit)

    def of_floats(spec, x, s, unit):
        size = absolute(x)
        number = round_magnitude(_magnitude_ratio(spec, size, s), code)
        return rint((convert(dequantize_value(spec, number, s), dtype) - size) * unit)

    return of_integers if code is None else of_floats


@specialize
def _magnitude_ratio(spec, x, s):
    """Divide magnitudes by a prepared scale, to be rounded to float codes."""
    if spec.scale_kind:
        return lambda spec, x, s: x * s.factor
    most = spec.code.row.max
    return lambda spec, x, s: quotient(minimum(x, constant(most, x) * s.scale), s)


@specialize
def _prepared_for_search(spec, s):
    """Return prepared scales whose factor is that of the format, where scales are in units of one for the array."""
    if spec.scale_kind != "tensor":
        return lambda spec, s: s
    return lambda spec, s: PreparedScale(
        s.scale, s.zero_point, s.base, nvfp4_factor(s.scale, s.zero_point), s.below, s.above
    )


@njit
def _error_by_division(spec, operands, args, group, k, i, end):
    """Sum the errors of the elements i..end under candidate k of a group, whose parameters may be any."""
    like, total = pointer(0, compute_type(spec, operands.scale)), 0.0
    ratio = _ratio(spec, operands, args, group.first + k)
    scale, zero_point = range_parameters(spec, group.lo * ratio, group.hi * ratio, args, operands.scale)
    while i < end:
        x = to_compute(spec, load_elements(operands.src, i, dtype_of(operands.src)), operands.scale)
        value = apply_op(spec, x, scale, zero_point, args, like)
        total = _add_power(spec, rint((x - value) * group.unit), total)
        i += 1
    return total


@specialize
def _add_power(spec, units, total):
    """Add a power of whole numbers to a sum of float64, exactly."""
    double = types.float64

    def magnitudes(spec, units, total):
        return total + convert(absolute(units), double)

    def squares(spec, units, total):
        number = convert(units, double)
        return fma(number, number, total) if HAS_FMA else number * number + total

    return {1.0: magnitudes, 2.0: squares}[spec.norm]
