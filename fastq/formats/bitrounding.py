"""Round floats to fewer bits of their significands: fields of IEEE floats, and the bits for digits in each binade.

The significant digits are those of Granular BitRound in netCDF-C, in its arithmetic of doubles.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# the rounding of ties: in BitRound of numcodecs and BitInformation.jl, and in netCDF-C
TIES = {"numcodecs": "half_even", "netcdf": "half_away"}
COLUMNS = 3  # a row of the table of binades: two magnitudes from which on other bits are dropped, and these bits
_BITS_OF_DIGIT = math.log(10.0) / math.log(2.0)
_DIGITS_OF_BIT = math.log(2.0) / math.log(10.0)
_NEAR = 1 << 14  # the first numbers above a power of two may be treated as that power, up to 1023 * 2**-52 of it


def of_width(bits: int) -> tuple[int, int]:
    """Return the mantissa bits and the bias of the IEEE float of 16, 32 or 64 bits."""
    return {16: (10, 15), 32: (23, 127), 64: (52, 1023)}[bits]


def most_digits(bits: int) -> int:
    """Return the most significant digits of a float of 16, 32 or 64 bits: 7 for float32, 15 for float64."""
    return int((of_width(bits)[0] + 1) * _DIGITS_OF_BIT)


def field_bits(bits: int) -> int:
    """Return the width of each of the three fields of dropped bits."""
    return bits // 3


def digits_before_point(fraction: float, exponent: int) -> int:
    """Return the digits before the decimal point of ``fraction * 2**exponent``, 0.5 <= fraction < 1."""
    return math.floor(exponent * _DIGITS_OF_BIT + math.log10(fraction)) + 1


def places_before_point(fraction: float, exponent: int) -> int:
    """Return the exponent, plus one for a power of two."""
    return math.floor(exponent - _BITS_OF_DIGIT * math.log10(fraction))


def kept_bits(fraction: float, exponent: int, digits: int) -> int:
    """Return the mantissa bits that digits of ``fraction * 2**exponent`` need, 0.5 <= fraction < 1.

    Pi is ``0.785 * 2**2``. Its third digit is worth 2**-7 or more, the power of two from 0.01 down, and its first bit
    2**1: so 3 digits need 8 bits after the first.
    """
    last = math.floor(_BITS_OF_DIGIT * (digits_before_point(fraction, exponent) - digits))
    return abs(places_before_point(fraction, exponent) - last) - 1


def _fraction(places: int, k: int) -> float:
    """Return the fraction, 0.5 or more, of number k of a binade whose numbers have `places` bits after the first."""
    return math.ldexp((1 << places) + k, -places - 1)


def _alike(function: Callable[[float, int], int], exponent: int, places: int, most: int) -> int:
    """Return for how many of the first numbers of a binade, at most `most`, a function is what it is for the first.

    It changes once at most, so that the place is found by bisection.
    """
    of_first = function(0.5, exponent)
    return bisect_left(range(most), True, key=lambda k: function(_fraction(places, k), exponent) != of_first)


@functools.cache
def _binades(bits: int) -> list[tuple[int, int, int, int]]:
    """Return exponent, first magnitude and bounds of each binade from the smallest subnormal number on.

    The bounds are the count of numbers that are treated as its power of two, and the count below its power of ten: all
    numbers of a binade without a power of ten.
    """
    mantissa, bias = of_width(bits)
    rows = []
    for row in range(1, 2 * bias + 1 + mantissa):
        places = min(row - 1, mantissa)
        exponent = row - bias - mantissa + 1
        first = (row - mantissa) << mantissa if row > mantissa else 1 << places
        size = 1 << places
        after = _alike(places_before_point, exponent, places, min(size, _NEAR))
        last = digits_before_point(_fraction(places, size - 1), exponent)
        has_ten = last != digits_before_point(0.5, exponent)
        ten = _alike(digits_before_point, exponent, places, size) if has_ten else size
        rows.append((exponent, first, min(after, ten), max(after, ten)))
    return rows


@functools.lru_cache(64)
def dropped_bits(bits: int, digits: int) -> NDArray[Any]:
    """Return the table of binades for floats of `bits` bits: row 1 is for the smallest subnormal number only.

    A row has the bits of two magnitudes, from which on other numbers of bits are dropped, and three fields of
    `field_bits` with these numbers.
    """
    mantissa = of_width(bits)[0]
    width = field_bits(bits)
    table = np.zeros((1 + len(_binades(bits)), COLUMNS), f"i{bits // 8}")
    for row, (exponent, first, *bounds) in enumerate(_binades(bits), 1):
        places = min(row - 1, mantissa)
        fields = 0
        for field, k in enumerate((0, *bounds)):
            keepbits = kept_bits(_fraction(places, k), exponent, digits) if k < 1 << places else mantissa
            fields |= min(max(mantissa - keepbits, 0), mantissa) << field * width
        table[row] = *(first + k for k in bounds), fields
    return table
