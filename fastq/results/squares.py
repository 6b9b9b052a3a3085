"""Sums of squares, also where float64 holds neither the squares nor their sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST = 1e-200  # sums below this may lack squares that are too small for float64; those of float32 are above 1e-90
PIECE = 1 << 16  # elements that are squared together: bounds the temporaries
_DECIBELS = 20 * math.log10(2)  # of a factor of 4


class SumOfSquares(NamedTuple):
    """The sum ``number * 4**exponent``."""

    number: float
    exponent: int = 0

    @property
    def value(self) -> float:
        """The sum in float64; infinite if it is too large."""
        try:
            return math.ldexp(self.number, 2 * self.exponent)
        except OverflowError:
            return math.inf


def is_held(number: float) -> bool:
    """Return whether float64 holds a sum of squares with all of its digits."""
    return LEAST <= number < math.inf


def add_up(sums: Sequence[SumOfSquares]) -> SumOfSquares:
    """Return the total of sums of squares, rounded once."""
    exponent = max((each.exponent for each in sums if each.number), default=0)
    total = _total_in_units(sums, exponent)
    if math.isinf(total) and all(math.isfinite(each.number) for each in sums):
        exponent += 32  # as each number is less than 2**1024, this makes room for 2**64 of them
        total = _total_in_units(sums, exponent)
    return SumOfSquares(total, exponent)


def _total_in_units(sums: Sequence[SumOfSquares], exponent: int) -> float:
    """Return the total of sums of squares in units of ``4**exponent``; infinite if a float does not hold it."""
    return total_of([math.ldexp(each.number, 2 * (each.exponent - exponent)) for each in sums if each.number])


def total_of(parts: list[float]) -> float:
    """Add up numbers that are not negative, rounded once; infinite if the sum is too large for a float."""
    try:
        return math.fsum(parts)
    except OverflowError:
        return sum(parts)


def decibels(signal: float, noise: float, exponent: int) -> float:
    """Return the ratio ``signal / noise * 4**exponent`` in decibels: inf without noise, NaN if both are infinite."""
    if not noise:
        return math.inf
    # the quotient of the two may overflow
    ratio = 10.0 * ((math.log10(signal) if signal else -math.inf) - math.log10(noise))
    return ratio + _DECIBELS * exponent if exponent else ratio


def noise_at(ratio: float, signal: SumOfSquares) -> SumOfSquares:
    """Return the sum of squared errors at which a signal has a ratio in decibels."""
    if not signal.number or ratio == math.inf:
        return SumOfSquares(0.0)
    if not math.isfinite(ratio):  # of -inf errors are infinite, and of NaN they are NaN
        return SumOfSquares(-ratio)
    steps = math.floor(ratio / _DECIBELS)  # factors of 4, which go to the exponent, so that the rest is from 1/4 to 1
    number = signal.number * 10.0 ** ((steps * _DECIBELS - ratio) / 10)
    return SumOfSquares(number, signal.exponent - steps)


def squares_of(x: ArrayLike) -> SumOfSquares:
    """Return the sum of the squares of an array."""
    with np.errstate(all="ignore"):
        number = float(sum(np.square(piece).sum() for (piece,) in _pieces(x)))
        if is_held(number):
            return SumOfSquares(number)
        largest = max((float(np.abs(piece).max()) for (piece,) in _pieces(x)), default=0.0)
        return add_up([_scaled(piece, largest) for (piece,) in _pieces(x)])


def squares_of_errors(x: ArrayLike, approximation: ArrayLike, largest: float) -> SumOfSquares:
    """Return the sum of the squares of errors, given the largest error."""
    with np.errstate(all="ignore"):
        return add_up([_scaled(ours - theirs, largest) for ours, theirs in _pieces(x, approximation)])


def _scaled(x: NDArray[np.float64], largest: float) -> SumOfSquares:
    """Return the sum of the squares of numbers, divided by a power of two near the largest of them before."""
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return SumOfSquares(float(np.square(np.ldexp(x, -exponent)).sum()), exponent)


def _pieces(*arrays: ArrayLike) -> Iterator[tuple[NDArray[np.float64], ...]]:
    """Yield the elements of arrays of one shape in float64, some of each at a time, in the order of their memory."""
    operands = [np.asarray(each) for each in arrays]
    with np.nditer(
        operands,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly"]] * len(operands),
        op_dtypes=[np.float64] * len(operands),
        casting="unsafe",
        buffersize=PIECE,
    ) as pieces:
        for _ in pieces:
            yield tuple(pieces[k] for k in range(len(operands)))
