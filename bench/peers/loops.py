"""The same work as plain parallel loops of Numba, as one would write them: in the memory order of the operand.

Where neighbours in memory share parameters, arrays are seen as groups of these. Elsewhere they are seen with four axes;
those that share parameters have length 1 in arrays of parameters. What calls the loops is in naive_numba.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

# --- an element -------------------------------------------------------------------------------------------------------


@njit
def encode(x, scale, zero, lowest, highest):
    return min(max(np.rint(x / scale) + zero, lowest), highest)


@njit
def decode(code, scale, zero, lowest, highest):
    return (code - zero) * scale


@njit
def encode_and_decode(x, scale, zero, lowest, highest):
    return (min(max(np.rint(x / scale) + zero, lowest), highest) - zero) * scale


@njit
def from_range(lo, hi, symmetric, lowest, highest):
    """Take scale and zero point from a range, all of one type."""
    scale, zero = (hi - lo) / (highest - lowest), (lowest + highest) / 2 * 0
    if symmetric:
        scale, zero = max(-lo, hi) / ((highest - lowest) / 2), (lowest + highest) / 2
    if scale == 0:
        return scale + 1, zero
    return scale, zero if symmetric else min(max(np.rint(lowest - lo / scale), lowest), highest)


# --- groups -----------------------------------------------------------------------------------------------------------


def groups_with_given(element: Any) -> Any:
    """Make a loop that computes each element of a result with the parameters of its group."""

    @njit(parallel=True)
    def loop(x, scale, zero, lowest, highest, result):
        real = scale.dtype.type
        for g in prange(x.shape[0]):
            s, z = scale[g], zero[g]
            for i in range(x.shape[1]):
                result[g, i] = element(real(x[g, i]), s, z, lowest, highest)

    return loop


def groups_with_own(element: Any) -> Any:
    """Make a loop that takes the parameters of each group from its range, and computes its elements with them."""

    @njit(parallel=True)
    def loop(x, low, high, symmetric, lowest, highest, scale, zero, result):
        real = scale.dtype.type
        for g in prange(x.shape[0]):
            lo, hi = low, high
            for i in range(x.shape[1]):
                lo, hi = min(lo, x[g, i]), max(hi, x[g, i])
            s, z = from_range(real(lo), real(hi), symmetric, lowest, highest)
            scale[g], zero[g] = s, z
            for i in range(x.shape[1]):
                result[g, i] = element(real(x[g, i]), s, z, lowest, highest)

    return loop


@njit(parallel=True)
def find_ranges_of_groups(x, low, high, lows, highs):
    for g in prange(x.shape[0]):
        lo, hi = low, high
        for i in range(x.shape[1]):
            lo, hi = min(lo, x[g, i]), max(hi, x[g, i])
        lows[g], highs[g] = lo, hi


# --- four axes, from one index of the first to another ----------------------------------------------------------------


@njit
def start(i, low, high, lows, highs):
    """Make ranges those of no elements."""
    lows[i, :, :, :] = low
    highs[i, :, :, :] = high


@njit
def widen(first, end, x, place, lows, highs):
    """Widen the ranges at a place by the elements from one index to another."""
    for i in range(first, end):
        for j in range(x.shape[1]):
            for k in range(x.shape[2]):
                a, b = min(j, lows.shape[1] - 1), min(k, lows.shape[2] - 1)
                if lows.shape[3] == 1:
                    lo, hi = lows[place, a, b, 0], highs[place, a, b, 0]
                    for n in range(x.shape[3]):
                        lo, hi = min(lo, x[i, j, k, n]), max(hi, x[i, j, k, n])
                    lows[place, a, b, 0], highs[place, a, b, 0] = lo, hi
                else:
                    for n in range(x.shape[3]):
                        lows[place, a, b, n] = min(lows[place, a, b, n], x[i, j, k, n])
                        highs[place, a, b, n] = max(highs[place, a, b, n], x[i, j, k, n])


@njit
def choose(i, lows, highs, symmetric, lowest, highest, scale, zero):
    """Take parameters from ranges."""
    real = scale.dtype.type
    lo, hi, s, z = lows[i].ravel(), highs[i].ravel(), scale[i].ravel(), zero[i].ravel()
    for n in range(s.size):
        s[n], z[n] = from_range(real(lo[n]), real(hi[n]), symmetric, lowest, highest)


def each(element: Any) -> Any:
    """Make a loop that computes each element of a result."""

    @njit
    def part(first, end, x, scale, zero, lowest, highest, result):
        real = scale.dtype.type
        for i in range(first, end):
            for j in range(x.shape[1]):
                for k in range(x.shape[2]):
                    a, b = min(j, scale.shape[1] - 1), min(k, scale.shape[2] - 1)
                    if scale.shape[3] == 1:
                        s, z = scale[i, a, b, 0], zero[i, a, b, 0]
                        for n in range(x.shape[3]):
                            result[i, j, k, n] = element(real(x[i, j, k, n]), s, z, lowest, highest)
                    else:
                        for n in range(x.shape[3]):
                            s, z = scale[i, a, b, n], zero[i, a, b, n]
                            result[i, j, k, n] = element(real(x[i, j, k, n]), s, z, lowest, highest)

    return part


# --- four axes --------------------------------------------------------------------------------------------------------


@njit(parallel=True)
def find_ranges(x, starts, low, high, lows, highs):
    """Find ranges that go on along the first axis, of each slice of it."""
    for s in prange(len(lows)):
        start(s, low, high, lows, highs)
        widen(starts[s], starts[s + 1], x, s, lows, highs)


@njit(parallel=True)
def find_parameters(lows, highs, symmetric, lowest, highest, scale, zero):
    for i in prange(len(scale)):
        choose(i, lows, highs, symmetric, lowest, highest, scale, zero)


def with_given(element: Any) -> Any:
    """Make a loop that computes each element of a result with given parameters."""
    part = each(element)

    @njit(parallel=True)
    def loop(starts, x, scale, zero, lowest, highest, result):
        for s in prange(len(starts) - 1):
            part(starts[s], starts[s + 1], x, scale, zero, lowest, highest, result)

    return loop


def with_own(element: Any) -> Any:
    """Make a loop that computes each element of a result with parameters of ranges that end within the first axis."""
    part = each(element)

    @njit(parallel=True)
    def loop(x, low, high, symmetric, lowest, highest, lows, highs, scale, zero, result):
        for i in prange(len(x)):
            start(i, low, high, lows, highs)
            widen(i, i + 1, x, i, lows, highs)
            choose(i, lows, highs, symmetric, lowest, highest, scale, zero)
            part(i, i + 1, x, scale, zero, lowest, highest, result)

    return loop


@njit(parallel=True)
def pack_pairs(codes, packed):
    for i in prange(codes.shape[0]):
        for j in range(codes.shape[1]):
            for k in range(codes.shape[2] // 2):
                packed[i, j, k] = codes[i, j, 2 * k] & 15 | codes[i, j, 2 * k + 1] << 4
            if codes.shape[2] % 2:
                packed[i, j, codes.shape[2] // 2] = codes[i, j, codes.shape[2] - 1] & 15


@njit(parallel=True)
def unpack_pairs(packed, sign, codes):
    for i in prange(codes.shape[0]):
        for j in range(codes.shape[1]):
            for k in range(codes.shape[2] // 2):
                codes[i, j, 2 * k] = (packed[i, j, k] & 15 ^ sign) - sign
                codes[i, j, 2 * k + 1] = packed[i, j, k] >> 4
            if codes.shape[2] % 2:
                codes[i, j, codes.shape[2] - 1] = (packed[i, j, codes.shape[2] // 2] & 15 ^ sign) - sign


# function -> what becomes of an element
ELEMENTS = {
    "quantize": encode,
    "quantize_linear": encode,
    "fake_quantize": encode_and_decode,
    "dequantize": decode,
    "dequantize_linear": decode,
}
WITH_GIVEN = {element: with_given(element) for element in (encode, encode_and_decode, decode)}
WITH_OWN = {element: with_own(element) for element in (encode, encode_and_decode)}
GROUPS_WITH_GIVEN = {element: groups_with_given(element) for element in WITH_GIVEN}
GROUPS_WITH_OWN = {element: groups_with_own(element) for element in WITH_OWN}
