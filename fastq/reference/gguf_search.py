"""Searches for the scales of blocks of GGUF as in ggml's C code, in plain NumPy.

Axis 0 of an array has the values of a block and axis 1 the blocks. Each operation is in float32, and sums are added one
term after the other, from the first on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fastq.formats.gguf import CODEBOOK, Candidates
from fastq.system.dtypes import Array

F = np.float32
TINY = F(1e-15)  # blocks whose largest magnitude is below this are zero


def total(terms: Array) -> Array:
    """Sum of the terms of each block, in order."""
    return np.asarray(np.add.accumulate(terms, axis=0, dtype=F)[-1] + F(0))  # C adds to 0.0: no sum is -0.0


def nearest(x: Array) -> Array:
    """Nearest integer, ties to even, which ggml takes from the bits of a sum: beyond 2**22 the result is arbitrary."""
    return np.asarray(((x + F(12582912)).view(np.int32) & 0x7FFFFF) - 0x400000)


def at(x: Array, place: Array) -> Array:
    """Value of each block at its own place."""
    return np.asarray(np.take_along_axis(x, place[None], axis=0)[0])


def first_largest(x: Array) -> Array:
    """First value with the largest magnitude of each block, with its sign."""
    return at(x, np.abs(x).argmax(axis=0))


def choose(better: Array, new: tuple[Any, ...], old: tuple[Any, ...]) -> tuple[Array, ...]:
    """Return new values for the blocks in which they are better, and old values for the others."""
    return tuple(np.where(better, *both) for both in zip(new, old, strict=True))


def fit_range(
    x: Array, w: Array, steps: int, candidates: Candidates, absolute: bool = False
) -> tuple[Array, Array, Array]:
    """Return scales, smallest values times -1 and codes 0..steps, by weighted least squares."""
    # contract 20.2
    low, high = at(x, x.argmin(axis=0)), x.max(axis=0)
    low = np.where(low > 0, F(0), low)
    flat = high <= low
    sum_w = np.add.accumulate(w, axis=0)[-1]
    sum_x = np.add.accumulate(w * x, axis=0)[-1]

    def codes_for(inverse: Array) -> Array:
        return np.clip(nearest(inverse * (x - low)), 0, steps).astype(F)

    def error(scale: Array, least: Array, codes: Array) -> Array:
        miss = scale * codes + least - x
        return total(w * (np.abs(miss) if absolute else miss * miss))

    inverse = F(steps) / (high - low)
    scale = F(1) / inverse
    codes = codes_for(inverse)
    best = error(scale, low, codes)
    for k in range(candidates.last + 1):
        steps_tried = F(candidates.first) + F(candidates.delta) * F(k) + F(steps)
        tried = codes_for(steps_tried / (high - low))
        sum_l = total(w * tried)
        sum_l2 = total(w * tried * tried)
        sum_xl = total(w * tried * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        new_scale, new_low = choose(new_low > 0, (sum_xl / sum_l2, F(0)), (new_scale, new_low))
        new_error = error(new_scale, new_low, tried)
        better = (determinant > 0) & (new_error < best) & ~flat
        best, scale, low, codes = choose(better, (new_error, new_scale, new_low, tried), (best, scale, low, codes))
    return np.where(flat, F(0), scale), -low, np.where(flat, F(0), codes).astype(np.int64)


def _least_squares(tries: Iterator[tuple[Array, Array, Array]]) -> tuple[Array, Array]:
    """Return scale and codes of the first try with the least error; tries have codes l, and sums of w x l and w l l."""
    codes, sum_xl, sum_l2 = next(tries)
    scale = np.where(sum_l2 == 0, F(0), sum_xl / sum_l2)
    best = scale * sum_xl
    for tried, sum_xl, sum_l2 in tries:
        fitted = sum_xl / sum_l2
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        codes, scale, best = choose(better, (tried, fitted, fitted * sum_xl), (codes, scale, best))
    return scale, codes


def fit_signed(x: Array, w: Array, steps: int) -> tuple[Array, Array]:
    """Choose a scale for codes -steps..steps - 1 by weighted least squares; scales and codes + steps."""
    # contract 20.2
    largest = first_largest(x)
    inverses = (-(F(steps) + F(0.1) * F(k)) / largest for k in (0, *range(-9, 0), *range(1, 10)))
    tries = (np.clip(nearest(inverse * x), -steps, steps - 1).astype(F) for inverse in inverses)
    scale, codes = _least_squares((tried, total(w * x * tried), total(w * tried * tried)) for tried in tries)
    return _unless_zero(largest, scale, codes + steps)


def _unless_zero(largest: Array, scale: Array, codes: Array) -> tuple[Array, Array]:
    """Return scales, and codes as integers, both 0 for blocks that count as zero."""
    zero = np.abs(largest) < TINY
    return np.where(zero, F(0), scale), np.where(zero, F(0), codes).astype(np.int64)


def _in_turn(
    x: Array, w: Array, codes: Array, sums: tuple[Array, Array], code_of: Callable[[Array], Array], has_others: bool
) -> Array:
    """Change one code after the other, five times over, if that reduces the error, and return the scale.

    Codes of 0 or more are bytes. With `has_others` a code changes only if other codes are not 0.
    """
    sum_xl, sum_l2 = sums
    for _ in range(5):
        for i in range(len(x)):
            xl = sum_xl - w[i] * x[i] * codes[i]
            l2 = sum_l2 - w[i] * codes[i] * codes[i]
            new = code_of(x[i] * l2 / xl).astype(F)
            new_xl = xl + w[i] * x[i] * new
            new_l2 = l2 + w[i] * new * new
            better = (xl > 0) & (new != codes[i]) & ((l2 if has_others else new_l2) > 0)
            better &= new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            codes[i] = np.where(better, np.mod(new, F(256)) if has_others else new, codes[i])
            sum_xl, sum_l2 = choose(better, (new_xl, new_l2), (sum_xl, sum_l2))
    return np.where(sum_l2 > 0, sum_xl / sum_l2, F(0))


def fit_signed_in_turn(x: Array, steps: int) -> tuple[Array, Array]:
    """Choose a scale for codes -steps..steps - 1, changing one code after the other; scales and codes + steps."""
    largest = first_largest(x)
    w = x * x

    def code_of(quotient: Array) -> Array:
        return np.clip(nearest(quotient), -steps, steps - 1)

    codes = code_of(-F(steps) / largest * x).astype(F)
    scale = _in_turn(x, w, codes, (total(w * x * codes), total(w * codes * codes)), code_of, has_others=False)
    return _unless_zero(largest, scale, codes + steps)


def fit_positive(x: Array, w: Array, steps: int) -> tuple[Array, Array]:
    """Choose a scale for codes 0..steps of numbers that are not negative, as make_qp_quants of ggml does.

    Return scales and codes. Codes are bytes in ggml, which wrap around instead of being clamped.
    """
    largest = np.zeros(x.shape[1:], F)
    for row in x:
        largest = np.where(largest > row, largest, row)

    def error(scale: Array, codes: Array) -> Array:
        miss = x - scale * codes.astype(F)
        return total(w * miss * miss)

    def code_of(quotient: Array) -> Array:
        return np.minimum(nearest(quotient), steps)

    inverse = F(steps) / largest
    best = error(F(1) / inverse, nearest(inverse * x) & 0xFF)  # the one candidate whose codes ggml does not clamp
    for k in (*range(-4, 0), *range(1, 5)):
        tried = (F(0.1) * F(k) + F(steps)) / largest
        new_error = error(F(1) / tried, code_of(tried * x))
        best, inverse = choose(new_error < best, (new_error, tried), (best, inverse))
    whole = code_of(inverse * x).astype(F)  # of which ggml takes sums before it stores bytes
    codes = np.mod(whole, F(256))
    scale = _in_turn(x, w, codes, (total(w * x * whole), total(w * whole * whole)), code_of, has_others=True)
    return _unless_zero(largest, scale, codes)


def nearest_of_codebook(x: Array) -> Array:
    """Index of the nearest number of the codebook; for ties the larger one, for NaN the last."""
    table = np.array(CODEBOOK, F)
    return np.asarray(sum((~(x < half)).astype(np.int64) for half in (table[1:] + table[:-1]) / F(2)))


def fit_codebook(x: Array, w: Array) -> Array:
    """Choose the scale of numbers of the codebook by weighted least squares."""
    table = np.array(CODEBOOK, F)
    largest = first_largest(x)
    inverses = (F(1) / (-largest / table[0]), *(F(k + CODEBOOK[0]) / largest for k in range(-7, 8)))
    tries = (table[nearest_of_codebook(inverse * x)] for inverse in inverses)
    scale, _ = _least_squares((tried, total(w * tried * x), total(w * tried * tried)) for tried in tries)
    return np.where(np.abs(largest) < TINY, F(0), scale)
