"""Search for the part of a range with the least error of the round trip: quantized, dequantized, compared.

Errors are counted in whole units, powers of two that depend on the range alone. Sums of whole numbers below 2**53 are
exact in float64, and larger ones count as that: so no order of elements, number of threads or chunks shows in them.
"""

from __future__ import annotations

from numba import types

from fastq.jit import njit, specialize
from fastq.kernels.apply import apply_op, apply_op_prepared, to_compute
from fastq.kernels.formulas import (
    HAS_FMA,
    compute_type,
    computes_in,
    is_infinite,
    needs_division,
    prepare_scale,
    scaled_round_to_float,
    value_of_steps,
)
from fastq.kernels.load_store import load_elements
from fastq.kernels.loops.prepared import PREPARED, load_prepared, store_prepared
from fastq.kernels.parameters import range_parameters
from fastq.kernels.spec import compute_lanes
from fastq.simd import (
    absolute,
    any_lane,
    bitcast,
    constant,
    convert,
    count,
    dtype_of,
    fma,
    full,
    lane_type,
    lanes_like,
    load,
    pointer,
    reduce_sum,
    rint,
    scratch,
)

STEP_BITS = 10  # a unit is 2**-10 steps between codes, or the next power of two below
MOST_ERROR = 2.0**53
# Elements whose errors are summed under one candidate after the other, from the L1 cache; after so many a candidate is
# given up whose error is too large already.
PIECE = 1 << 11
WIDE = 2  # registers whose errors are computed side by side: a scheduler holds too few instructions of one chain


@njit
def shrink_range(spec, operands, args, p, i, end):
    """Shrink range p to the candidate with the least error of the elements i..end, of equal ones the largest."""
    lo, hi = operands.lo[p], operands.hi[p]
    memory, n = scratch(PREPARED, compute_type(spec, operands.scale)), _lanes(spec, operands)
    unit, least, chosen, first = _units_of_one(spec, operands, args, lo, hi), MOST_ERROR, 0, 0
    while unit > 0 and first < args.candidates and least > 0.0:
        ready = _prepare(spec, operands, args, lo, hi, first, memory)
        for k in range(min(n, args.candidates - first)):
            s, ratio = load_prepared(memory, n, k), _ratio(spec, operands, args, first + k)
            ends = lo * ratio, hi * ratio
            error, at = 0.0, i
            while at < end and error < least:
                stop = min(at + PIECE, end)
                error += _error(spec, operands, args, s, ends, ready, unit, at, stop)
                at = stop
            if error < least:
                least, chosen = error, first + k
        first += n
    ratio = _ratio(spec, operands, args, chosen)
    operands.lo[p], operands.hi[p] = lo * ratio, hi * ratio
    return 0


@njit
def add_candidates(spec, operands, args, p, i, end):
    """Add the errors of the elements i..end to the sums of all candidates of range p."""
    lo, hi, sums = operands.lo[p], operands.hi[p], p * args.candidates
    memory, n = scratch(PREPARED, compute_type(spec, operands.scale)), _lanes(spec, operands)
    unit = _units_of_one(spec, operands, args, lo, hi)
    while i < end and unit > 0:
        stop = min(i + PIECE, end)
        for first in range(0, args.candidates, n):
            ready = _prepare(spec, operands, args, lo, hi, first, memory)
            for k in range(min(n, args.candidates - first)):
                s, ratio = load_prepared(memory, n, k), _ratio(spec, operands, args, first + k)
                ends = lo * ratio, hi * ratio
                operands.errors[sums + first + k] += _error(spec, operands, args, s, ends, ready, unit, i, stop)
        i = stop
    return 0


# --- candidates -------------------------------------------------------------------------------------------------------


@njit
def _lanes(spec, operands):
    return count(compute_lanes(spec, operands.scale, 1))


@njit
def _ratio(spec, operands, args, i):
    """Return by what candidate i multiplies both ends of the range."""
    return convert((args.grid - i) / args.grid, compute_type(spec, operands.scale))


@njit
def _prepare(spec, operands, args, lo, hi, first, memory):
    """Write the prepared scales of candidates from `first` on to memory; return whether all of them can be used so."""
    vec, n = compute_lanes(spec, operands.scale, 1), _lanes(spec, operands)
    for k in range(n):
        memory[k] = _ratio(spec, operands, args, min(first + k, args.candidates - 1))
    ratios = load(memory, 0, vec)
    scales, zero_points = range_parameters(spec, ratios * lo, ratios * hi, args, operands.scale)
    store_prepared(memory, n, prepare_scale(spec, scales, zero_points, args.lowest, args.highest))
    return not any_lane(needs_division(spec, scales))


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
def _error(spec, operands, args, s, ends, ready, unit, i, end):
    """Sum the errors of the elements i..end under a prepared scale, or if that is not ready that of a range."""
    if not ready:
        return _error_by_division(spec, operands, args, ends, unit, i, end)
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
    """Return the errors of the round trip of `x` in whole units."""
    dtype = lane_type(x)
    if spec.code is not None:
        return lambda spec, x, s, unit: rint((apply_op_prepared(spec, x, s, pointer(0, dtype)) - x) * unit)
    return lambda spec, x, s, unit: rint((value_of_steps(spec, scaled_round_to_float(spec, x, s), s) - x) * unit)


@njit
def _error_by_division(spec, operands, args, ends, unit, i, end):
    """Sum the errors of the elements i..end under the parameters of a range, which may be any."""
    like, total = pointer(0, compute_type(spec, operands.scale)), 0.0
    scale, zero_point = range_parameters(spec, ends[0], ends[1], args, operands.scale)
    while i < end:
        x = to_compute(spec, load_elements(operands.src, i, dtype_of(operands.src)), operands.scale)
        value = apply_op(spec, x, scale, zero_point, args, like)
        total = _add_power(spec, rint((x - value) * unit), total)
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
