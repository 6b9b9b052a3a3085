"""Parameters of sub-blocks of GGUF of less error than those of ggml: lane k of every Vec is of block k.

Errors are measured for stored parameters: a scale and a smallest value are rounded before codes are taken with them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.gguf import DOUBLED, CodebookFormat, Float4Format
from fastq.kernels.ggml.dequantize import number_of
from fastq.kernels.ggml.k_quants import scale_at, store_scale
from fastq.kernels.ggml.numbers import FLOAT_LIMITS, float_code, inverse_of
from fastq.kernels.ggml.scale_search import (
    F32,
    LANES,
    U8,
    codebook_index,
    codebook_number,
    first_largest,
    select_each,
    smallest_and_largest,
)
from fastq.kernels.ggml.spec import from_half, half, step_of

_HALVES = v.Vec(types.uint16, LANES)
_LESS = 1 - 2.0**-17  # by this factor a sum of float32 is less only if the exact one is
_LOST = 2.0**-100  # of squares below this, bits may be lost
_INFINITY = float("inf")


class SubBlocks(NamedTuple):
    """A sub-block of each block: pointers to values and weights, and what a code of a scale is multiplied with."""

    x: Any
    w: Any
    unit: Any


@traced
def lessen(spec, group, numbers):
    """Replace the numbers of the sub-blocks for which others have less error, where that is asked for."""
    if spec.least_error:
        _lessen(spec, group, numbers)


@traced
def _lessen(spec, group, numbers):
    """Search for better parameters, sub-block by sub-block, and write those that have less error than the ones stored.

    What was found so far is a tuple: the error, the scale as a float or a code, and the smallest value. The first one
    is the error to be beaten, 0 where it is too small or large to be compared.
    """
    for j in range(spec.size // spec.sub):
        start = j * spec.sub * LANES
        part = SubBlocks(v.advance(group.x, start), v.advance(group.importance, start), unit_of(spec, numbers))
        scale, low = parameters_in(spec, numbers, j)
        codes = v.advance(numbers.codes, start)
        error = _own_error(spec, part, codes, step_from(spec, part, scale), low)
        usable = (error > v.full(_LOST, F32)) & (error < v.full(_INFINITY, F32))
        limit = v.select(usable, error * v.constant(_LESS, error), v.full(0.0, F32))
        best = try_all(spec, part, (limit, scale, low))
        for _ in range(spec.polishes):
            best = better_of(spec, part, _least_squares(spec, part, best[1], best[2]), best)
        better = best[0] < limit
        if v.any_lane(better):
            _store(spec, part, numbers, j, better, best[1], best[2])


# --- what is stored ---------------------------------------------------------------------------------------------------


@traced
def unit_of(spec, numbers):
    """Return the factor of the codes of scales, 1.0 without such codes."""
    if spec.block_format.count("scales"):
        return from_half(spec, v.load(numbers.d, 0, _HALVES))
    return v.full(1.0, F32)


@traced
def parameters_in(spec, numbers, j):
    """Return scales, as floats or as codes, and smallest values, 0.0 without them."""
    low = from_half(spec, v.load(numbers.min, 0, _HALVES)) if spec.block_format.has_minimum else v.full(0.0, F32)
    if spec.block_format.count("scales"):
        return scale_at(spec, numbers.scales, j), low
    bits = v.load(numbers.d, j * LANES, _HALVES)
    if isinstance(spec.block_format, Float4Format):
        return v.convert(v.convert(bits, types.int32), types.float32), low
    return from_half(spec, bits), low


@traced
def step_from(spec, part, scale):
    """Return what the numbers of codes are multiplied with, from a scale as `parameters_in` has it."""
    if isinstance(spec.block_format, Float4Format):
        return step_of(spec, v.bounded_to_integer(scale, types.int32))
    return part.unit * scale


@traced
def value_of(spec, number, step, low):
    """Return what a number stands for, as a decoder computes it."""
    return number * step + low if spec.block_format.has_minimum else number * step


@traced
def weight_at(spec, part, i):
    """Load weights; 1.0 without an importance of columns."""
    return v.load(part.w, i, F32) if spec.weighted else v.full(1.0, F32)


@traced
def _own_error(spec, part, codes, step, low):
    """Error of the codes that are stored."""
    error = v.full(0.0, F32)
    for i in range(0, spec.sub * LANES, LANES):
        miss = value_of(spec, number_of(spec, v.load(codes, i, U8)), step, low) - v.load(part.x, i, F32)
        error = error + weight_at(spec, part, i) * miss * miss
    return error


@traced
def _store(spec, part, numbers, j, better, scale, low):
    """Write parameters of the lanes of a mask, and the codes of the nearest numbers."""
    store_parameters(spec, numbers, j, better, scale, low)
    step = step_from(spec, part, scale)
    inverse = inverse_of(step)
    codes = v.advance(numbers.codes, j * spec.sub * LANES)
    for i in range(0, spec.sub * LANES, LANES):
        code = v.convert(nearest_code(spec, v.load(part.x, i, F32), step, low, inverse), types.uint8)
        v.store(codes, i, v.select(better, code, v.load(codes, i, U8)))


@traced
def store_parameters(spec, numbers, j, better, scale, low):
    """Write parameters for the lanes of a mask, and keep those of the others."""
    old, old_low = parameters_in(spec, numbers, j)
    scale = v.select(better, scale, old)
    if spec.block_format.has_minimum:
        v.store(numbers.min, 0, half(spec, v.select(better, low, old_low)))
    if spec.block_format.count("scales"):
        store_scale(spec, numbers.scales, j, v.bounded_to_integer(scale, types.int32))
    elif isinstance(spec.block_format, Float4Format):
        v.store(numbers.d, j * LANES, v.convert(v.bounded_to_integer(scale, types.int32), types.uint16))
    else:
        v.store(numbers.d, 0, half(spec, scale))


# --- the nearest numbers ----------------------------------------------------------------------------------------------


@traced
def nearest_number(spec, x, step, low, inverse):
    """Return the nearest number that a code stands for."""
    if isinstance(spec.block_format, Float4Format):
        number = v.full(0.0, F32)
        for limit, double in zip(FLOAT_LIMITS, DOUBLED[1:], strict=False):
            number = v.select(v.absolute(x) > step * v.constant(limit, step), v.full(double, F32), number)
        return v.select(x < v.full(0.0, F32), -number, number)
    if isinstance(spec.block_format, CodebookFormat):
        return codebook_number(inverse * x)
    whole = v.rint((x - low if spec.block_format.has_minimum else x) * inverse)
    least, most = spec.block_format.reach
    return v.minimum(v.maximum(whole, v.constant(least, whole)), v.constant(most, whole))


@traced
def nearest_code(spec, x, step, low, inverse):
    """Return the code of the nearest number as it is stored."""
    if isinstance(spec.block_format, Float4Format):
        return float_code(x, step)
    if isinstance(spec.block_format, CodebookFormat):
        return v.bounded_to_integer(codebook_index(inverse * x), types.int32)
    number = nearest_number(spec, x, step, low, inverse)
    return v.bounded_to_integer(number + v.constant(spec.block_format.zero, number), types.int32)


# --- the search -------------------------------------------------------------------------------------------------------


@traced
def better_of(spec, part, tried, best):
    """Return error and parameters of those that are tried where their error is less, else of those that were found."""
    scale, low = tried
    step = step_from(spec, part, scale)
    inverse = inverse_of(step)
    error = v.full(0.0, F32)
    for i in range(0, spec.sub * LANES, LANES):
        x = v.load(part.x, i, F32)
        miss = value_of(spec, nearest_number(spec, x, step, low, inverse), step, low) - x
        error = error + weight_at(spec, part, i) * miss * miss
    return select_each(error < best[0], (error, scale, low), best)


@traced
def try_all(spec, part, best):
    """Return the best of all trials of a format and of the parameters found so far."""
    if spec.block_format.has_minimum:
        return _try_ends(spec, part, *spec.block_format.trials[0], best)
    base = base_of(spec, part, best[1])
    for first, delta, last in spec.block_format.trials:
        best = _try_scales(spec, part, base, first, delta, last, best)
    return best


@traced
def base_of(spec, part, scale):
    """Return what numbers of trials change: the code of a scale, or the first value of the largest magnitude."""
    if isinstance(spec.block_format, Float4Format):
        return scale
    largest, size = first_largest(part.x, spec.block_format.sub)
    return size if getattr(spec.block_format, "extent", "") == "magnitude" else largest


@traced
def _number(first, delta, k):
    """Return number k of trials, ``first + k * delta``, of which formats have their own."""
    zero = v.full(0.0, F32)
    return v.constant(first, zero) + v.constant(delta, zero) * v.convert(k, types.float32)


@traced
def _try_scales(spec, part, base, first, delta, last, best):
    """Return the best of the scales that the numbers of trials give, and of what was found so far."""
    for k in range(last + 1):
        number = _number(first, delta, k)
        best = better_of(spec, part, (scale_by(spec, part, base, number), best[2]), best)
    return best


@traced
def scale_by(spec, part, base, number):
    """Return the scale of a trial as it is stored."""
    if isinstance(spec.block_format, Float4Format):
        return _within(base + number, 0, spec.block_format.largest_scale)
    if spec.block_format.count("scales"):
        zero = spec.block_format.scale_zero
        return _within(v.rint(base / number * inverse_of(part.unit)), -zero, zero - 1)
    return round_parameter(spec, base / number)


@traced
def _within(x, least, most):
    """Clamp lanes to numbers from `least` to `most`."""
    return v.minimum(v.maximum(x, v.constant(least, x)), v.constant(most, x))


@traced
def round_parameter(spec, x):
    """Round a parameter to its stored form."""
    return from_half(spec, half(spec, x))


@traced
def _try_ends(spec, part, first, delta, last, best):
    """Return the best of ranges whose ends move inwards by numbers of steps, each for itself, and of what was found."""
    low, high = smallest_and_largest(part.x, spec.sub)
    step = (high - low) / v.constant(spec.steps, low)
    for k in range(last + 1):
        least = round_parameter(spec, low + step * _number(first, delta, k))
        for i in range(last + 1):
            top = high - step * _number(first, delta, i)
            scale = round_parameter(spec, (top - least) / v.constant(spec.steps, low))
            best = better_of(spec, part, (scale, least), best)
    return best


@traced
def _least_squares(spec, part, scale, low):
    """Return the parameters, as they are stored, for which the codes that these choose have the least error."""
    step = step_from(spec, part, scale)
    inverse = inverse_of(step)
    sum_w = sum_y = sum_l = sum_l2 = sum_ly = v.full(0.0, F32)
    for i in range(0, spec.sub * LANES, LANES):
        x = v.load(part.x, i, F32)
        w = weight_at(spec, part, i)
        number = nearest_number(spec, x, step, low, inverse)
        y = x - low
        weighted = w * number
        sum_w = sum_w + w
        sum_y = sum_y + w * y
        sum_l = sum_l + weighted
        sum_l2 = sum_l2 + weighted * number
        sum_ly = sum_ly + weighted * y
    return fit_parameters(spec, low, sum_w, sum_y, sum_l, sum_l2, sum_ly)


@traced
def fit_parameters(spec, low, sum_w, sum_y, sum_l, sum_l2, sum_ly):
    """Solve for the parameters of least error from weighted sums: of 1, y, l, l * l and l * y.

    l are numbers of codes, y the distances of values from `low`.
    """
    if not spec.block_format.has_minimum:
        return round_parameter(spec, sum_ly / sum_l2), low
    determinant = sum_w * sum_l2 - sum_l * sum_l
    least = low + (sum_l2 * sum_y - sum_l * sum_ly) / determinant
    return round_parameter(spec, (sum_w * sum_ly - sum_l * sum_y) / determinant), round_parameter(spec, least)
