"""Searches for the scales of blocks of GGUF as ggml's C code has them, in plain NumPy.

Axis 0 of an array are the values of a block and axis 1 the blocks. Each operation is in float32, and sums are added one
term after the other, from the first on.
"""

from __future__ import annotations

import numpy as np

from fastq.formats.gguf import CODEBOOK, Candidates
from fastq.system.dtypes import Array

F = np.float32
TINY = F(1e-15)  # blocks whose largest magnitude is below this are zero


def total(terms: Array) -> Array:
    """Sum of the terms of each block, in order."""
    sums: Array = np.add.accumulate(terms, axis=0, dtype=F)[-1] + F(0)  # C adds to 0.0, so that no sum is -0.0
    return sums


def nearest(x: Array) -> Array:
    """Nearest integer, ties to even, as ggml takes it from the bits of a sum: of numbers beyond 2**22, some other."""
    word = (x + F(12582912)).view(np.int32)
    whole: Array = (word & 0x7FFFFF) - 0x400000
    return whole


def first_largest(x: Array) -> Array:
    """First value of the largest magnitude of each block, with its sign."""
    found: Array = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    return found


def first_least(x: Array) -> Array:
    """First of the smallest values of each block."""
    found: Array = np.take_along_axis(x, x.argmin(axis=0)[None], axis=0)[0]
    return found


def fit_range(
    x: Array, w: Array, steps: int, candidates: Candidates, absolute: bool = False
) -> tuple[Array, Array, Array]:
    """Choose scale and smallest value for codes 0..steps by weighted least squares.

    Returns
    -------
    tuple of ndarray
        Scales, smallest values times -1, and codes.
    """
    low, high = first_least(x), x.max(axis=0)
    low = np.where(low > 0, F(0), low)
    flat = high <= low
    sum_w, sum_x = np.add.accumulate(w, axis=0)[-1], np.add.accumulate(w * x, axis=0)[-1]

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
        wanted = F(candidates.first) + F(candidates.delta) * F(k) + F(steps)
        tried = codes_for(wanted / (high - low))
        sum_l, sum_l2, sum_xl = total(w * tried), total(w * tried * tried), total(w * tried * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = new_low > 0
        new_scale, new_low = np.where(above, sum_xl / sum_l2, new_scale), np.where(above, F(0), new_low)
        found = error(new_scale, new_low, tried)
        better = (determinant > 0) & (found < best) & ~flat
        best, scale, low = (
            np.where(better, found, best),
            np.where(better, new_scale, scale),
            np.where(better, new_low, low),
        )
        codes = np.where(better, tried, codes)
    return np.where(flat, F(0), scale), -low, np.where(flat, F(0), codes).astype(np.int64)


def fit_signed(x: Array, w: Array, steps: int) -> tuple[Array, Array]:
    """Choose a scale for codes -steps..steps - 1 by weighted least squares; scales and codes + steps."""
    largest = first_largest(x)
    zero = np.abs(largest) < TINY
    codes: Array
    best: Array
    scale: Array
    for k in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(F(steps) + F(0.1) * F(k)) / largest
        tried = np.clip(nearest(inverse * x), -steps, steps - 1).astype(F)
        sum_xl, sum_l2 = total(w * x * tried), total(w * tried * tried)
        fitted = sum_xl / sum_l2
        if k == 0:
            codes, scale = tried, np.where(sum_l2 == 0, F(0), fitted)
            best = scale * sum_xl
            continue
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        codes, scale = np.where(better, tried, codes), np.where(better, fitted, scale)
        best = np.where(better, fitted * sum_xl, best)
    return np.where(zero, F(0), scale), np.where(zero, 0, codes.astype(np.int64) + steps)


def fit_signed_in_turn(x: Array, steps: int) -> tuple[Array, Array]:
    """Choose a scale for codes -steps..steps - 1, changing one code after the other; scales and codes + steps."""
    largest = first_largest(x)
    zero = np.abs(largest) < TINY
    w = x * x
    codes = np.clip(nearest(-F(steps) / largest * x), -steps, steps - 1).astype(F)
    sum_xl, sum_l2 = total(w * x * codes), total(w * codes * codes)
    for _ in range(5):
        for i in range(len(x)):
            xl = sum_xl - w[i] * x[i] * codes[i]
            l2 = sum_l2 - w[i] * codes[i] * codes[i]
            new = np.clip(nearest(x[i] * l2 / xl), -steps, steps - 1).astype(F)
            new_xl, new_l2 = xl + w[i] * x[i] * new, l2 + w[i] * new * new
            better = (xl > 0) & (new != codes[i]) & (new_l2 > 0)
            better &= new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            codes[i] = np.where(better, new, codes[i])
            sum_xl, sum_l2 = np.where(better, new_xl, sum_xl), np.where(better, new_l2, sum_l2)
    scale = np.where(sum_l2 > 0, sum_xl / sum_l2, F(0))
    return np.where(zero, F(0), scale), np.where(zero, 0, codes.astype(np.int64) + steps)


def fit_positive(x: Array, w: Array, steps: int) -> tuple[Array, Array]:
    """Choose a scale for codes 0..steps of numbers that are not negative; scales and codes, which are bytes."""
    largest = np.zeros(x.shape[1:], F)
    for row in x:
        largest = np.where(largest > row, largest, row)
    zero = largest < TINY

    def error(scale: Array, codes: Array) -> Array:
        miss = x - scale * codes.astype(F)
        return total(w * miss * miss)

    inverse = F(steps) / largest
    best = error(F(1) / inverse, nearest(inverse * x) & 0xFF)
    for k in (*range(-4, 0), *range(1, 5)):
        tried = (F(0.1) * F(k) + F(steps)) / largest
        found = error(F(1) / tried, np.minimum(nearest(tried * x), steps))
        better = found < best
        best, inverse = np.where(better, found, best), np.where(better, tried, inverse)
    whole = np.minimum(nearest(inverse * x), steps)
    sum_xl, sum_l2 = total(w * x * whole.astype(F)), total(w * whole.astype(F) * whole.astype(F))
    codes = whole & 0xFF
    for _ in range(5):
        for i in range(len(x)):
            code = codes[i].astype(F)
            xl, l2 = sum_xl - w[i] * x[i] * code, sum_l2 - w[i] * code * code
            new = np.minimum(nearest(x[i] * l2 / xl), steps)
            new_xl = xl + w[i] * x[i] * new.astype(F)
            new_l2 = l2 + w[i] * new.astype(F) * new.astype(F)
            better = (xl > 0) & (l2 > 0) & (new != codes[i])
            better &= new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            codes[i] = np.where(better, new & 0xFF, codes[i])
            sum_xl, sum_l2 = np.where(better, new_xl, sum_xl), np.where(better, new_l2, sum_l2)
    scale = np.where(sum_l2 > 0, sum_xl / sum_l2, F(0))
    return np.where(zero, F(0), scale), np.where(zero, 0, codes).astype(np.int64)


def nearest_of_codebook(x: Array) -> Array:
    """Index of the nearest number of the codebook, of two as near the larger one; of NaN the last."""
    table = np.array(CODEBOOK, F)
    halves = (table[1:] + table[:-1]) / F(2)
    index: Array = sum((~(x < half)).astype(np.int64) for half in halves)
    return index


def fit_codebook(x: Array, w: Array) -> Array:
    """Choose the scale of numbers of the codebook by weighted least squares."""
    table = np.array(CODEBOOK, F)
    largest = first_largest(x)
    best: Array
    scale: Array
    for k in (None, *range(-7, 8)):
        inverse = F(1) / (-largest / table[0]) if k is None else F(k + CODEBOOK[0]) / largest
        tried = table[nearest_of_codebook(inverse * x)]
        sum_xq, sum_q2 = total(w * tried * x), total(w * tried * tried)
        fitted = sum_xq / sum_q2
        if k is None:
            scale = np.where(sum_q2 > 0, fitted, F(0))
            best = scale * sum_xq
            continue
        better = (sum_q2 > 0) & (sum_xq * sum_xq > best * sum_q2)
        scale, best = np.where(better, fitted, scale), np.where(better, fitted * sum_xq, best)
    return np.where(np.abs(largest) < TINY, F(0), scale)
