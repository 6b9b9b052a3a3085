"""Searches for scales over blocks side by side: lane k of every Vec belongs to block k.

Numbers of a block lie `LANES` apart in memory, so that a sum is taken in order within each lane, as ggml's C code takes
it, while sixteen blocks share each instruction. Every operation is one of float32, in the order of that code; nothing
may be contracted or reordered. What C code decides by branches is decided by masks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.engine.simd.vector import llvm_type
from fastq.formats.gguf import CODEBOOK, SUPER, WEIGHTED_CANDIDATES
from fastq.kernels.ggml.spec import GROUP

LANES = GROUP
VALUES = SUPER * LANES  # of super-blocks side by side
SUBS = 16 * LANES  # sub-blocks of these, at most
PART = 32 * LANES  # values of a sub-block of each, at most

F32 = v.Vec(types.float32, LANES)
I32 = v.Vec(types.int32, LANES)
U8 = v.Vec(types.uint8, LANES)
TWO = v.Vec(types.float32, 2 * LANES)

TINY = 1e-15  # blocks whose largest magnitude is below this are zero
_MAGIC = 12582912.0  # 1.5 * 2**23: the sum's last bits are the nearest integer
_MOST_EXACT = 4194303.0  # beyond this the bits of that sum are those of another integer


@traced
def nearest(x):
    """Nearest integer, ties to even, from the bits of a sum as in C: of numbers beyond 2**22, some other."""
    word = v.bitcast(x + v.constant(_MAGIC, x), types.int32)
    return (word & v.constant(0x7FFFFF, word)) - v.constant(0x400000, word)


@traced
def nearest_within(x, low, high, wild):
    """Nearest integer from low to high, as floats; `wild` if the result of `nearest` beyond its range may be needed."""
    if wild:
        return v.minimum(v.maximum(v.convert(nearest(x), types.float32), low), high)
    return v.minimum(v.maximum(v.rint(x), low), high)


@traced
def smallest_and_largest(x, count):
    """Return the smallest value of each block, of 0.0 and -0.0 the first, as ggml finds it; and the largest."""
    low = high = v.load(x, 0, F32)
    for i in range(1, count):
        value = v.load(x, i * LANES, F32)
        low, high = v.minimum(value, low), v.maximum(value, high)
    return low, high


@traced
def first_largest(x, count):
    """Return the first value of the largest magnitude of each block, with its sign, 0.0 of none."""
    largest = v.full(0.0, F32)
    size = v.full(0.0, F32)
    for i in range(count):
        value = v.load(x, i * LANES, F32)
        above = v.absolute(value) > size
        largest = v.select(above, value, largest)
        size = v.select(above, v.absolute(value), size)
    return largest, size


@traced
def sum_of_squares(x, count):
    """Sum of squares of each block."""
    total = v.full(0.0, F32)
    for i in range(count):
        value = v.load(x, i * LANES, F32)
        total = total + value * value
    return total


@traced
def sum_of(x, count):
    """Sum of each block."""
    total = v.full(0.0, F32)
    for i in range(count):
        total = total + v.load(x, i * LANES, F32)
    return total


# --- scale and smallest value -----------------------------------------------------------------------------------------


class RangeFit(NamedTuple):
    """Scale and smallest value times -1 of each block; its codes are `inverse * (x - base)`, where it is not flat."""

    scale: Any
    negated_minimum: Any
    inverse: Any
    base: Any
    flat: Any


@traced
def select_each(mask, new, old):
    """Return the lanes of new values where a mask is true, those of old values elsewhere."""
    return tuple([v.select(mask, a, b) for a, b in zip(new, old, strict=True)])


@traced
def fit_range_by_format(spec, x, w, room):
    """Fit scale and smallest value of sub-blocks with the candidates and errors that ggml has for the format."""
    block_format = spec.block_format
    first, delta, last = WEIGHTED_CANDIDATES if spec.weighted else block_format.candidates
    squared = spec.weighted or block_format.bits > 2
    return fit_range(x, w, room, block_format.sub, block_format.steps, first, delta, last, squared)


@traced
def fit_range(x, w, codes, count, steps, first, delta, last, squared):
    """Fit scale and smallest value for codes 0..steps; `codes` is room for those of a candidate.

    Candidates are the ranges over ``steps + first + k * delta`` for k = 0..last; errors are squares or magnitudes. What
    bounds the search is decision D81.
    """
    zero = v.full(0.0, F32)
    bottom, high = smallest_and_largest(x, count)
    low = v.minimum(zero, bottom)
    sum_w, sum_x = _weighted_sums(x, w, count)
    flat = high <= low
    inverse = v.constant(steps, zero) / (high - low)
    scale = v.constant(1, zero) / inverse
    wild = _is_wild(inverse, low, bottom, high, flat)
    best = _first_error(x, w, count, steps, inverse, scale, low, wild, squared), scale, low, inverse, low
    for k in range(last + 1):
        extra_steps = v.constant(first, zero) + v.constant(delta, zero) * v.convert(k, types.float32)
        low = best[2]
        inverse = (extra_steps + v.constant(steps, zero)) / (high - low)
        wild = _is_wild(inverse, low, bottom, high, flat)
        sum_l, sum_l2, sum_xl = _sums(x, w, codes, count, steps, inverse, low, wild)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = new_low > zero
        if v.any_lane(above):
            new_scale, new_low = select_each(above, (sum_xl / sum_l2, zero), (new_scale, new_low))
        error = _error(x, w, codes, count, new_scale, new_low, squared)
        better = (determinant > zero) & (error < best[0])
        best = select_each(better, (error, new_scale, new_low, inverse, low), best)
    _, scale, low, inverse, base = best
    scale, low = select_each(flat, (zero, v.minimum(zero, bottom)), (scale, low))
    return RangeFit(scale, -low, inverse, base, flat)


@traced
def _weighted_sums(x, w, count):
    """Return the sums of weights, and of their products with values."""
    sum_w = v.load(w, 0, F32)
    sum_x = sum_w * v.load(x, 0, F32)
    for i in range(1, count):
        u = v.load(w, i * LANES, F32)
        sum_w = sum_w + u
        sum_x = sum_x + u * v.load(x, i * LANES, F32)
    return sum_w, sum_x


@traced
def _is_wild(inverse, low, bottom, high, flat):
    """Return whether a position of a block that counts is beyond the numbers that `nearest` rounds correctly."""
    farthest = v.absolute(inverse) * v.maximum(v.absolute(high - low), v.absolute(bottom - low))
    return v.any_lane(~(flat | (farthest < v.constant(_MOST_EXACT, farthest))))


@traced
def _first_error(x, w, count, steps, inverse, scale, low, wild, squared):
    """Error of the codes of the whole range."""
    zero = v.full(0.0, F32)
    most = v.full(steps, F32)
    error = v.full(0.0, F32)
    for i in range(count):
        value = v.load(x, i * LANES, F32)
        code = nearest_within(inverse * (value - low), zero, most, wild)
        error = error + v.load(w, i * LANES, F32) * _miss(scale * code + low - value, squared)
    return error


@traced
def _sums(x, w, codes, count, steps, inverse, low, wild):
    """Take codes, and their weighted sums: of codes, of their squares, and of their products with values."""
    zero = v.full(0.0, F32)
    most = v.full(steps, F32)
    sum_l = sum_l2 = sum_xl = zero
    for i in range(count):
        value = v.load(x, i * LANES, F32)
        code = nearest_within(inverse * (value - low), zero, most, wild)
        v.store(codes, i * LANES, code)
        weighted = v.load(w, i * LANES, F32) * code
        sum_l = sum_l + weighted
        sum_l2 = sum_l2 + weighted * code
        sum_xl = sum_xl + weighted * value
    return sum_l, sum_l2, sum_xl


@traced
def _error(x, w, codes, count, scale, low, squared):
    """Weighted error of the values of codes."""
    error = v.full(0.0, F32)
    for i in range(count):
        miss = scale * v.load(codes, i * LANES, F32) + low - v.load(x, i * LANES, F32)
        error = error + v.load(w, i * LANES, F32) * _miss(miss, squared)
    return error


@traced
def _miss(difference, squared):
    """Return the error of a difference: its square, or its magnitude."""
    return difference * difference if squared else v.absolute(difference)


@traced
def range_code(fit, value, steps):
    """Codes of a fit."""
    code = nearest(fit.inverse * (value - fit.base))
    code = v.minimum(v.maximum(code, v.constant(0, code)), v.constant(steps, code))
    return v.select(fit.flat, v.constant(0, code), code)


# --- a signed scale ---------------------------------------------------------------------------------------------------


class SignedFit(NamedTuple):
    """Scale of each block; its codes are `inverse * x` and begin with 0, where it is not zero."""

    scale: Any
    inverse: Any
    is_zero: Any


@traced
def fit_signed(x, w, products, count, steps):
    """Fit a scale for codes -steps..steps - 1; `products` is room for those of weights and values."""
    zero = v.full(0.0, F32)
    largest, size = first_largest(x, count)
    for i in range(count):
        v.store(products, i * LANES, v.load(w, i * LANES, F32) * v.load(x, i * LANES, F32))
    chosen = v.constant(-steps, zero) / largest
    sum_xl, sum_l2 = _sums_of_signed_codes(x, w, products, count, steps, chosen)
    scale = v.select(sum_l2 == zero, zero, sum_xl / sum_l2)
    best = scale * sum_xl
    for n in range(-9, 10):
        if n != 0:
            tenths = v.constant(0.1, zero) * v.convert(n, types.float32)
            inverse = -(v.constant(steps, zero) + tenths) / largest
            sum_xl, sum_l2 = _sums_of_signed_codes(x, w, products, count, steps, inverse)
            better = (sum_l2 > zero) & (sum_xl * sum_xl > best * sum_l2)
            fitted = sum_xl / sum_l2
            scale, best, chosen = select_each(better, (fitted, fitted * sum_xl, inverse), (scale, best, chosen))
    is_zero = size < v.constant(TINY, size)
    return SignedFit(v.select(is_zero, zero, scale), chosen, is_zero)


@traced
def _sums_of_signed_codes(x, w, products, count, steps, inverse):
    """Return the sums of products of weights, values and codes, and of weights and squares of codes."""
    least, most = v.full(-steps, F32), v.full(steps - 1, F32)
    sum_xl = sum_l2 = v.full(0.0, F32)
    for i in range(count):
        code = v.minimum(v.maximum(v.rint(inverse * v.load(x, i * LANES, F32)), least), most)
        sum_xl = sum_xl + v.load(products, i * LANES, F32) * code
        sum_l2 = sum_l2 + v.load(w, i * LANES, F32) * code * code
    return sum_xl, sum_l2


@traced
def code_of_signed_fit(fit, value, steps):
    """Codes of a fit, from 0 on."""
    code = nearest(fit.inverse * value)
    code = v.minimum(v.maximum(code, v.constant(-steps, code)), v.constant(steps - 1, code)) + v.constant(steps, code)
    return v.select(fit.is_zero, v.constant(0, code), code)


@traced
def fit_signed_in_turn(x, codes, count, steps):
    """Fit scales for codes -steps..steps - 1, changing one code after the other; `codes` are written from 0 on.

    Weights are squares. Each step waits for the one before, so two sub-blocks are worked on at a time. Blocks in which
    no code has changed are not changed by another round either, so rounds end with the last of all.
    """
    zero = v.full(0.0, TWO)
    least = v.full(-steps, TWO)
    most = v.full(steps - 1, TWO)
    (first, first_size), (second, second_size) = (
        first_largest(x, count),
        first_largest(v.advance(x, count * LANES), count),
    )
    size = v.join(first_size, second_size)
    inverse = v.constant(-steps, zero) / v.join(first, second)
    sum_xl = sum_l2 = zero
    for i in range(count):
        value = load_two(x, i, count)
        code = v.minimum(v.maximum(v.rint(inverse * value), least), most)
        store_two(codes, i, count, code)
        sum_xl = sum_xl + value * value * value * code
        sum_l2 = sum_l2 + value * value * code * code
    for _ in range(5):
        changed = zero > zero
        for i in range(count):
            value = load_two(x, i, count)
            code = load_two(codes, i, count)
            weight = value * value
            product = value * value * value
            xl = sum_xl - product * code
            l2 = sum_l2 - weight * code * code
            position = value * l2 / xl
            wild = v.any_lane(~(v.absolute(position) < v.constant(_MOST_EXACT, zero)))
            new = nearest_within(position, least, most, wild)
            new_xl = xl + product * new
            new_l2 = l2 + weight * new * new
            better = (xl > zero) & (new != code) & (new_l2 > zero)
            better = better & (new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2)
            store_two(codes, i, count, v.select(better, new, code))
            sum_xl, sum_l2 = select_each(better, (new_xl, new_l2), (sum_xl, sum_l2))
            changed = changed | better
        if not v.any_lane(changed):
            break
    is_zero = size < v.constant(TINY, size)
    for i in range(count):
        code = load_two(codes, i, count) + v.constant(steps, zero)
        store_two(codes, i, count, v.select(is_zero, zero, code))
    return v.select(is_zero | ~(sum_l2 > zero), zero, sum_xl / sum_l2)


@traced
def load_two(x, i, count):
    """Load number i of two sub-blocks."""
    return v.join(v.load(x, i * LANES, F32), v.load(x, (count + i) * LANES, F32))


@traced
def store_two(x, i, count, value):
    """Store number i of two sub-blocks."""
    v.store(x, i * LANES, v.lower(value))
    v.store(x, (count + i) * LANES, v.upper(value))


# --- a positive scale -------------------------------------------------------------------------------------------------


@traced
def fit_positive(x, w, codes, count, steps):
    """Fit a scale for numbers that are not negative, and write their codes as floats: bytes, mostly 0..steps.

    The first scale is the best of some trials; then one code after the other is changed if that reduces the error, five
    times over. Sums have codes as they were before they became bytes, as in ggml.
    """
    zero = v.full(0.0, F32)
    most = v.full(steps, I32)
    largest = zero
    for i in range(count):
        largest = v.maximum(largest, v.load(x, i * LANES, F32))
    chosen = _best_inverse(x, w, count, steps, largest)
    sum_xl = sum_l2 = zero
    for i in range(count):
        value = v.load(x, i * LANES, F32)
        weight = v.load(w, i * LANES, F32)
        code = v.minimum(nearest(chosen * value), most)
        number = v.convert(code, types.float32)
        v.store(codes, i * LANES, v.convert(code & v.constant(0xFF, code), types.float32))
        sum_xl = sum_xl + weight * value * number
        sum_l2 = sum_l2 + weight * number * number
    for _ in range(5):
        changed = zero > zero
        for i in range(count):
            value = v.load(x, i * LANES, F32)
            weight = v.load(w, i * LANES, F32)
            code = v.load(codes, i * LANES, F32)
            xl = sum_xl - weight * value * code
            l2 = sum_l2 - weight * code * code
            whole = v.minimum(nearest(value * l2 / xl), most)
            new = v.convert(whole, types.float32)
            new_xl = xl + weight * value * new
            new_l2 = l2 + weight * new * new
            better = (xl > zero) & (l2 > zero) & (new != code)
            better = better & (new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2)
            byte = v.convert(whole & v.constant(0xFF, whole), types.float32)
            v.store(codes, i * LANES, v.select(better, byte, code))
            sum_xl, sum_l2 = select_each(better, (new_xl, new_l2), (sum_xl, sum_l2))
            changed = changed | better
        if not v.any_lane(changed):
            break
    is_zero = largest < v.constant(TINY, largest)
    for i in range(count):
        v.store(codes, i * LANES, v.select(is_zero, zero, v.load(codes, i * LANES, F32)))
    return v.select(is_zero | ~(sum_l2 > zero), zero, sum_xl / sum_l2)


@traced
def _best_inverse(x, w, count, steps, largest):
    """Return the inverse of the scale of least error, the largest number having a code near the last one.

    The first trial alone takes codes as bytes without a bound, as ggml does.
    """
    zero = v.full(0.0, F32)
    most = v.full(steps, I32)
    chosen = v.constant(steps, zero) / largest
    best = zero
    scale = v.constant(1, zero) / chosen
    for i in range(count):
        value = v.load(x, i * LANES, F32)
        code = nearest(chosen * value)
        miss = value - scale * v.convert(code & v.constant(0xFF, code), types.float32)
        best = best + v.load(w, i * LANES, F32) * miss * miss
    for n in range(-4, 5):
        if n != 0:
            inverse = (v.constant(0.1, zero) * v.convert(n, types.float32) + v.constant(steps, zero)) / largest
            scale = v.constant(1, zero) / inverse
            error = zero
            for i in range(count):
                value = v.load(x, i * LANES, F32)
                miss = value - scale * v.convert(v.minimum(nearest(inverse * value), most), types.float32)
                error = error + v.load(w, i * LANES, F32) * miss * miss
            best, chosen = select_each(error < best, (error, inverse), (best, chosen))
    return chosen


# --- a codebook -------------------------------------------------------------------------------------------------------


def _make_sum_of_rises(name: str, start: float, rises: list[float], doc: str):
    """Make an instruction that begins with a number and adds one for each half between numbers that x reaches."""
    halves = [(a + b) / 2 for a, b in pairwise(CODEBOOK)]

    @v.instruction(lambda x: x(x), name, doc)
    def add_rises(context, builder, sig, x):
        lanes = llvm_type(sig.return_type)
        total = ir.Constant(lanes, [start] * LANES)
        for half, rise in zip(halves, rises, strict=True):
            reached = builder.fcmp_unordered(">=", x, ir.Constant(lanes, [half] * LANES))
            total = builder.select(reached, builder.fadd(total, ir.Constant(lanes, [rise] * LANES)), total)
        return total

    return add_rises


_TO = "the nearest number of the codebook, as a float; of two as near the larger one, of NaN the last."
_RISES = [float(b - a) for a, b in pairwise(CODEBOOK)]
codebook_number = _make_sum_of_rises("codebook_number", float(CODEBOOK[0]), _RISES, f"Find {_TO}")
codebook_index = _make_sum_of_rises("codebook_index", 0.0, [1.0] * len(_RISES), f"Find the index of {_TO}")


@traced
def fit_codebook(x, w, count):
    """Fit a scale for numbers of the codebook: of 16 the one with the least weighted error, as ggml has it.

    The first maps the largest number to the opposite of CODEBOOK[0], the others map it to CODEBOOK[0] - 7, ..., + 7.
    """
    zero = v.full(0.0, F32)
    largest, size = first_largest(x, count)
    inverse = v.constant(1, zero) / (-largest / v.constant(CODEBOOK[0], zero))
    sum_xq, sum_q2 = _codebook_sums(x, w, count, inverse)
    scale = v.select(sum_q2 > zero, sum_xq / sum_q2, zero)
    best = scale * sum_xq
    for n in range(-7, 8):
        inverse = v.convert(n + CODEBOOK[0], types.float32) / largest
        sum_xq, sum_q2 = _codebook_sums(x, w, count, inverse)
        better = (sum_q2 > zero) & (sum_xq * sum_xq > best * sum_q2)
        fitted = sum_xq / sum_q2
        scale, best = select_each(better, (fitted, fitted * sum_xq), (scale, best))
    return v.select(size < v.constant(TINY, size), zero, scale)


@traced
def _codebook_sums(x, w, count, inverse):
    """Return the sums of products of weights, values and numbers of codes, and of weights and squares of numbers."""
    sum_xq = sum_q2 = v.full(0.0, F32)
    for i in range(count):
        value = v.load(x, i * LANES, F32)
        number = codebook_number(inverse * value)
        weighted = v.load(w, i * LANES, F32) * number
        sum_xq = sum_xq + weighted * value
        sum_q2 = sum_q2 + weighted * number
    return sum_xq, sum_q2
