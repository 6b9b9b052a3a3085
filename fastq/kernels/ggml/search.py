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

from fastq.engine.jit import intrinsic, njit
from fastq.engine.simd import (
    Vec,
    absolute,
    advance,
    any_lane,
    bitcast,
    constant,
    convert,
    full,
    join,
    load,
    lower,
    maximum,
    minimum,
    rint,
    select,
    store,
    upper,
)
from fastq.engine.simd.vector import llvm_type
from fastq.formats.gguf import CODEBOOK, SUPER
from fastq.kernels.ggml.spec import GROUP

LANES = GROUP
VALUES = SUPER * LANES  # of super-blocks side by side
SUBS = 16 * LANES  # sub-blocks of these, at most
PART = 32 * LANES  # values of a sub-block of each, at most

F32 = Vec(types.float32, LANES)
I32 = Vec(types.int32, LANES)
U8 = Vec(types.uint8, LANES)
TWO = Vec(types.float32, 2 * LANES)

TINY = 1e-15  # blocks whose largest magnitude is below this are zero
_MAGIC = 12582912.0  # 1.5 * 2**23: the sum's last bits are the nearest integer
_MOST_EXACT = 4194303.0  # beyond this the bits of that sum are those of another integer


@njit
def nearest(x):
    """Nearest integer, ties to even, from the bits of a sum as in C: of numbers beyond 2**22, some other."""
    word = bitcast(x + constant(_MAGIC, x), types.int32)
    return (word & constant(0x7FFFFF, word)) - constant(0x400000, word)


@njit
def nearest_within(x, low, high, wild):
    """Nearest integer from low to high, as floats; `wild` if `nearest` may be needed for what it gives otherwise."""
    if wild:
        return minimum(maximum(convert(nearest(x), types.float32), low), high)
    return minimum(maximum(rint(x), low), high)


@njit
def extremes(x, count):
    """Return the first of the smallest values of each block, and the largest."""
    low = high = load(x, 0, F32)
    for i in range(1, count):
        v = load(x, i * LANES, F32)
        low, high = minimum(v, low), maximum(v, high)
    return low, high


@njit
def first_largest(x, count):
    """Return the first value of the largest magnitude of each block, with its sign, 0.0 of none."""
    largest = full(0.0, F32)
    size = full(0.0, F32)
    for i in range(count):
        v = load(x, i * LANES, F32)
        above = absolute(v) > size
        largest, size = select(above, v, largest), select(above, absolute(v), size)
    return largest, size


@njit
def sum_of_squares(x, count):
    """Sum of squares of each block."""
    total = full(0.0, F32)
    for i in range(count):
        v = load(x, i * LANES, F32)
        total = total + v * v
    return total


@njit
def sum_of(x, count):
    """Sum of each block."""
    total = full(0.0, F32)
    for i in range(count):
        total = total + load(x, i * LANES, F32)
    return total


# --- scale and smallest value -----------------------------------------------------------------------------------------


class RangeFit(NamedTuple):
    """Scale and smallest value times -1 of each block; its codes are `inverse * (x - base)`, where it is not flat."""

    scale: Any
    negated_minimum: Any
    inverse: Any
    base: Any
    flat: Any


@njit
def fit_range(x, w, codes, count, steps, first, delta, last, squared):
    """Fit scale and smallest value for codes 0..steps; `codes` is room for those of a candidate.

    Candidates are the ranges over ``steps + first + k * delta`` for k = 0..last; errors are squares or magnitudes.
    """
    zero = full(0.0, F32)
    bottom, high = extremes(x, count)
    low = minimum(zero, bottom)
    sum_w = load(w, 0, F32)
    sum_x = sum_w * load(x, 0, F32)
    for i in range(1, count):
        u = load(w, i * LANES, F32)
        sum_w = sum_w + u
        sum_x = sum_x + u * load(x, i * LANES, F32)
    flat = high <= low
    span = high - low
    inverse = constant(steps, zero) / span
    scale = constant(1, zero) / inverse
    base, best = (
        low,
        _first_error(x, w, count, steps, inverse, scale, low, _is_wild(inverse, low, bottom, high, flat), squared),
    )
    chosen = inverse
    for k in range(last + 1):
        wanted = constant(first, zero) + constant(delta, zero) * convert(k, types.float32) + constant(steps, zero)
        inverse = wanted / (high - low)
        wild = _is_wild(inverse, low, bottom, high, flat)
        sum_l, sum_l2, sum_xl = _sums(x, w, codes, count, steps, inverse, low, wild)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = new_low > zero
        if any_lane(above):
            new_scale, new_low = select(above, sum_xl / sum_l2, new_scale), select(above, zero, new_low)
        error = _error(x, w, codes, count, new_scale, new_low, squared)
        better = (determinant > zero) & (error < best)
        chosen, base = select(better, inverse, chosen), select(better, low, base)
        best, scale, low = select(better, error, best), select(better, new_scale, scale), select(better, new_low, low)
    lowest = select(flat, minimum(zero, bottom), low)
    return RangeFit(select(flat, zero, scale), -lowest, chosen, base, flat)


@njit
def _is_wild(inverse, low, bottom, high, flat):
    """Whether a position of a block that counts is beyond what `nearest` gives the nearest integer of."""
    farthest = absolute(inverse) * maximum(absolute(high - low), absolute(bottom - low))
    return any_lane(~(flat | (farthest < constant(_MOST_EXACT, farthest))))


@njit
def _first_error(x, w, count, steps, inverse, scale, low, wild, squared):
    """Error of the codes of the whole range."""
    zero, most, error = full(0.0, F32), full(steps, F32), full(0.0, F32)
    for i in range(count):
        v = load(x, i * LANES, F32)
        code = nearest_within(inverse * (v - low), zero, most, wild)
        error = error + load(w, i * LANES, F32) * _miss(scale * code + low - v, squared)
    return error


@njit
def _sums(x, w, codes, count, steps, inverse, low, wild):
    """Take codes, and their weighted sums: of codes, of their squares, and of their products with values."""
    zero, most = full(0.0, F32), full(steps, F32)
    sum_l = sum_l2 = sum_xl = zero
    for i in range(count):
        v = load(x, i * LANES, F32)
        code = nearest_within(inverse * (v - low), zero, most, wild)
        store(codes, i * LANES, code)
        weighted = load(w, i * LANES, F32) * code
        sum_l = sum_l + weighted
        sum_l2 = sum_l2 + weighted * code
        sum_xl = sum_xl + weighted * v
    return sum_l, sum_l2, sum_xl


@njit
def _error(x, w, codes, count, scale, low, squared):
    """Weighted error of what codes stand for."""
    error = full(0.0, F32)
    for i in range(count):
        miss = scale * load(codes, i * LANES, F32) + low - load(x, i * LANES, F32)
        error = error + load(w, i * LANES, F32) * _miss(miss, squared)
    return error


@njit
def _miss(difference, squared):
    return difference * difference if squared else absolute(difference)


@njit
def range_code(fit, v, steps):
    """Codes of a fit."""
    code = nearest(fit.inverse * (v - fit.base))
    code = minimum(maximum(code, constant(0, code)), constant(steps, code))
    return select(fit.flat, constant(0, code), code)


# --- a signed scale ---------------------------------------------------------------------------------------------------


class SignedFit(NamedTuple):
    """Scale of each block; its codes are `inverse * x` and begin with 0, where it is not zero."""

    scale: Any
    inverse: Any
    is_zero: Any


@njit
def fit_signed(x, w, products, count, steps):
    """Fit a scale for codes -steps..steps - 1; `products` is room for those of weights and values."""
    zero = full(0.0, F32)
    largest, size = first_largest(x, count)
    for i in range(count):
        store(products, i * LANES, load(w, i * LANES, F32) * load(x, i * LANES, F32))
    chosen = constant(-steps, zero) / largest
    sum_xl, sum_l2 = _signed_sums(x, w, products, count, steps, chosen)
    scale = select(sum_l2 == zero, zero, sum_xl / sum_l2)
    best = scale * sum_xl
    for n in range(-9, 10):
        if n != 0:
            tenths = constant(0.1, zero) * convert(n, types.float32)
            inverse = -(constant(steps, zero) + tenths) / largest
            sum_xl, sum_l2 = _signed_sums(x, w, products, count, steps, inverse)
            better = (sum_l2 > zero) & (sum_xl * sum_xl > best * sum_l2)
            fitted = sum_xl / sum_l2
            scale, best = select(better, fitted, scale), select(better, fitted * sum_xl, best)
            chosen = select(better, inverse, chosen)
    is_zero = size < constant(TINY, size)
    return SignedFit(select(is_zero, zero, scale), chosen, is_zero)


@njit
def _signed_sums(x, w, products, count, steps, inverse):
    least, most = full(-steps, F32), full(steps - 1, F32)
    sum_xl = sum_l2 = full(0.0, F32)
    for i in range(count):
        code = minimum(maximum(rint(inverse * load(x, i * LANES, F32)), least), most)
        sum_xl = sum_xl + load(products, i * LANES, F32) * code
        sum_l2 = sum_l2 + load(w, i * LANES, F32) * code * code
    return sum_xl, sum_l2


@njit
def signed_code(fit, v, steps):
    """Codes of a fit, from 0 on."""
    code = nearest(fit.inverse * v)
    code = minimum(maximum(code, constant(-steps, code)), constant(steps - 1, code)) + constant(steps, code)
    return select(fit.is_zero, constant(0, code), code)


@njit
def fit_signed_in_turn(x, codes, count, steps):
    """Fit scales for codes -steps..steps - 1, changing one code after the other; `codes` are written from 0 on.

    Weights are squares. Each step waits for the one before, so two sub-blocks are worked on at a time. Blocks in which
    no code has changed are not changed by another round either, so rounds end with the last of all.
    """
    zero, least, most = full(0.0, TWO), full(-steps, TWO), full(steps - 1, TWO)
    (first, first_size), (second, second_size) = (
        first_largest(x, count),
        first_largest(advance(x, count * LANES), count),
    )
    size = join(first_size, second_size)
    inverse = constant(-steps, zero) / join(first, second)
    sum_xl = sum_l2 = zero
    for i in range(count):
        v = load_two(x, i, count)
        code = minimum(maximum(rint(inverse * v), least), most)
        store_two(codes, i, count, code)
        sum_xl = sum_xl + v * v * v * code
        sum_l2 = sum_l2 + v * v * code * code
    for _ in range(5):
        changed = zero > zero
        for i in range(count):
            v, code = load_two(x, i, count), load_two(codes, i, count)
            weight, product = v * v, v * v * v
            xl = sum_xl - product * code
            l2 = sum_l2 - weight * code * code
            position = v * l2 / xl
            wild = any_lane(~(absolute(position) < constant(_MOST_EXACT, zero)))
            new = nearest_within(position, least, most, wild)
            new_xl, new_l2 = xl + product * new, l2 + weight * new * new
            better = (xl > zero) & (new != code) & (new_l2 > zero)
            better = better & (new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2)
            store_two(codes, i, count, select(better, new, code))
            sum_xl, sum_l2 = select(better, new_xl, sum_xl), select(better, new_l2, sum_l2)
            changed = changed | better
        if not any_lane(changed):
            break
    is_zero = size < constant(TINY, size)
    for i in range(count):
        code = load_two(codes, i, count) + constant(steps, zero)
        store_two(codes, i, count, select(is_zero, zero, code))
    return select(is_zero | ~(sum_l2 > zero), zero, sum_xl / sum_l2)


@njit
def load_two(x, i, count):
    """Load number i of two sub-blocks."""
    return join(load(x, i * LANES, F32), load(x, (count + i) * LANES, F32))


@njit
def store_two(x, i, count, value):
    """Store number i of two sub-blocks."""
    store(x, i * LANES, lower(value))
    store(x, (count + i) * LANES, upper(value))


# --- a positive scale -------------------------------------------------------------------------------------------------


@njit
def fit_positive(x, w, codes, count, steps):
    """Fit a scale for numbers that are not negative, and write their codes as floats: bytes, mostly 0..steps."""
    zero, most = full(0.0, F32), full(steps, I32)
    largest = zero
    for i in range(count):
        largest = maximum(largest, load(x, i * LANES, F32))
    chosen = constant(steps, zero) / largest
    best, scale = zero, constant(1, zero) / chosen
    for i in range(count):
        v = load(x, i * LANES, F32)
        code = nearest(chosen * v)
        miss = v - scale * convert(code & constant(0xFF, code), types.float32)
        best = best + load(w, i * LANES, F32) * miss * miss
    for n in range(-4, 5):
        if n != 0:
            inverse = (constant(0.1, zero) * convert(n, types.float32) + constant(steps, zero)) / largest
            scale, error = constant(1, zero) / inverse, zero
            for i in range(count):
                v = load(x, i * LANES, F32)
                miss = v - scale * convert(minimum(nearest(inverse * v), most), types.float32)
                error = error + load(w, i * LANES, F32) * miss * miss
            better = error < best
            best, chosen = select(better, error, best), select(better, inverse, chosen)
    sum_xl = sum_l2 = zero
    for i in range(count):
        v, weight = load(x, i * LANES, F32), load(w, i * LANES, F32)
        code = minimum(nearest(chosen * v), most)
        number = convert(code, types.float32)
        store(codes, i * LANES, convert(code & constant(0xFF, code), types.float32))
        sum_xl = sum_xl + weight * v * number
        sum_l2 = sum_l2 + weight * number * number
    for _ in range(5):
        changed = zero > zero
        for i in range(count):
            v, weight, code = load(x, i * LANES, F32), load(w, i * LANES, F32), load(codes, i * LANES, F32)
            xl = sum_xl - weight * v * code
            l2 = sum_l2 - weight * code * code
            whole = minimum(nearest(v * l2 / xl), most)
            new = convert(whole, types.float32)
            new_xl, new_l2 = xl + weight * v * new, l2 + weight * new * new
            better = (xl > zero) & (l2 > zero) & (new != code)
            better = better & (new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2)
            byte = convert(whole & constant(0xFF, whole), types.float32)
            store(codes, i * LANES, select(better, byte, code))
            sum_xl, sum_l2 = select(better, new_xl, sum_xl), select(better, new_l2, sum_l2)
            changed = changed | better
        if not any_lane(changed):
            break
    is_zero = largest < constant(TINY, largest)
    for i in range(count):
        store(codes, i * LANES, select(is_zero, zero, load(codes, i * LANES, F32)))
    return select(is_zero | ~(sum_l2 > zero), zero, sum_xl / sum_l2)


# --- a codebook -------------------------------------------------------------------------------------------------------


def _in_codebook(name: str, start: float, rises: list[float], doc: str):
    """Make an intrinsic that begins with a number and adds one for each half between numbers that x reaches."""
    halves = [(a + b) / 2 for a, b in pairwise(CODEBOOK)]

    def summed(typingctx, x):
        def emit(context, builder, sig, args):
            lanes = llvm_type(x)
            found = ir.Constant(lanes, [start] * LANES)
            for half, rise in zip(halves, rises, strict=True):
                reached = builder.fcmp_unordered(">=", args[0], ir.Constant(lanes, [half] * LANES))
                found = builder.select(reached, builder.fadd(found, ir.Constant(lanes, [rise] * LANES)), found)
            return found

        return x(x), emit

    summed.__name__, summed.__doc__ = name, doc
    return intrinsic(summed)


_TO = "the nearest number of the codebook, as a float; of two as near the larger one, of NaN the last."
_RISES = [float(b - a) for a, b in pairwise(CODEBOOK)]
codebook_number = _in_codebook("codebook_number", float(CODEBOOK[0]), _RISES, f"Find {_TO}")
codebook_index = _in_codebook("codebook_index", 0.0, [1.0] * len(_RISES), f"Find the index of {_TO}")


@njit
def fit_codebook(x, w, count):
    """Fit a scale for numbers of the codebook."""
    zero = full(0.0, F32)
    largest, size = first_largest(x, count)
    inverse = constant(1, zero) / (-largest / constant(CODEBOOK[0], zero))
    sum_xq, sum_q2 = _codebook_sums(x, w, count, inverse)
    scale = select(sum_q2 > zero, sum_xq / sum_q2, zero)
    best = scale * sum_xq
    for n in range(-7, 8):
        inverse = convert(n + CODEBOOK[0], types.float32) / largest
        sum_xq, sum_q2 = _codebook_sums(x, w, count, inverse)
        better = (sum_q2 > zero) & (sum_xq * sum_xq > best * sum_q2)
        fitted = sum_xq / sum_q2
        scale, best = select(better, fitted, scale), select(better, fitted * sum_xq, best)
    return select(size < constant(TINY, size), zero, scale)


@njit
def _codebook_sums(x, w, count, inverse):
    sum_xq = sum_q2 = full(0.0, F32)
    for i in range(count):
        v = load(x, i * LANES, F32)
        number = codebook_number(inverse * v)
        weighted = load(w, i * LANES, F32) * number
        sum_xq = sum_xq + weighted * v
        sum_q2 = sum_q2 + weighted * number
    return sum_xq, sum_q2
