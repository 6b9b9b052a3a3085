"""Codebook: the code formats whose numbers are a table, one table of tables."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.system.attributes import cached_property

Thresholds = Callable[[NDArray[np.float32]], NDArray[np.float32]]

LEAST_SCALE = 1e-38  # replaces a smaller scale when codes are computed: its reciprocal is finite in float32


def midpoints(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the means of neighbours, rounded to float32."""
    return np.asarray((numbers[:-1] + numbers[1:]) / np.float32(2))


@dataclass(frozen=True, repr=False)
class Codebook:
    """A code format given by a table: code k has the k-th number as its value."""

    name: str
    bits: int  # width of a code
    values: tuple[float, ...]  # the number of each code, in the order of codes; float32 holds them exactly
    # computes the decision thresholds, one fewer than numbers, from the numbers in ascending order: the
    # index of a value's number is the count of thresholds below it
    decide: Thresholds = midpoints

    nan = infinity = None  # no code of either

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        # tells tables apart by their numbers, where the name alone would not: machine code is kept by such texts
        content = repr((self.values, self.thresholds)).encode()
        return f"Codebook({self.name}, {hashlib.sha256(content).hexdigest()[:16]})"

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The codes in ascending order of their numbers; for equal numbers the smaller code is first."""
        return tuple(sorted(range(len(self.values)), key=lambda code: self.values[code]))

    @cached_property
    def thresholds(self) -> tuple[float, ...]:
        """The decision thresholds in ascending order."""
        numbers = np.array([self.values[code] for code in self.order], np.float32)
        return tuple(map(float, self.decide(numbers)))

    @cached_property
    def max(self) -> float:
        """The largest magnitude."""
        return max(map(abs, self.values))

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Half a step beyond the first and the last number: values outside are clipped."""
        first, second, *_, previous, last = (self.values[code] for code in self.order)
        return first - (second - first) / 2, last + (last - previous) / 2

    @cached_property
    def emax(self) -> int:
        """The exponent of the largest magnitude."""
        return math.frexp(self.max)[1] - 1

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of arrays of this format, one code in a byte."""
        return np.dtype(np.uint8)


# --- the 8-bit dynamic map --------------------------------------------------------------------------------------------


def _dynamic_map() -> tuple[float, ...]:
    """Return the 256 numbers of the signed dynamic map in ascending order (Dettmers 2016, arXiv:1511.04561).

    Every decade from 1e-6 on has twice as many numbers as the one before, halfway between 2**i + 1 points from 0.1 to
    1; each point is computed from the nearer end, rounded once to float32.
    """
    positive: list[float] = []
    start = np.float64(np.float32(0.1))
    one = np.float64(1)
    for i in range(7):
        count = 2**i
        step = np.float64((np.float32(1) - np.float32(0.1)) / np.float32(count))
        k = np.arange(count + 1)
        points = np.where(k < (count + 1) // 2, start + step * k, one - step * (count - k)).astype(np.float32)
        positive += map(float, np.float32(10.0 ** (i - 6)) * midpoints(points))
    return tuple(sorted([*positive, *(-number for number in positive), 0.0, 1.0]))


_BINS = 65536  # cells of the table in which codes of values are looked up


def _by_table(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the thresholds between codes in a table of 65536 cells over -1..1, with edges rounded as in float32.

    Such a table gives a value the code of its cell. For each code at once, the largest float32 that has this code or a
    smaller one is found by bisection; so the numbers that decide are not quite the midpoints.
    """
    cells = np.float32(-1) + (np.float32(2) * np.arange(_BINS, dtype=np.float32)) / np.float32(_BINS - 1)
    codes = np.searchsorted(midpoints(numbers), cells, side="left")
    low, high = np.full(len(numbers) - 1, -1, np.float32), np.full(len(numbers) - 1, 1, np.float32)
    target = np.arange(len(numbers) - 1)
    while True:
        middle = ((low.astype(np.float64) + high) / 2).astype(np.float32)
        if ((middle == low) | (middle == high)).all():
            return low
        cell = (middle + np.float32(1)) * np.float32(0.5) * np.float32(_BINS - 1) + np.float32(0.5)
        below = codes[cell.astype(np.int64)] <= target
        low, high = np.where(below, middle, low), np.where(below, high, middle)


def _row(name: str, bits: int, numbers: list[float], decide: Thresholds = midpoints) -> Codebook:
    """Return a row of the table, with numbers rounded to float32."""
    return Codebook(name, bits, tuple(map(float, np.array(numbers, np.float32))), decide)


_NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
_NF4 += [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
_NF4 += [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
# code 0 has 0.0, and so does code 8: a sum with 0.0 takes the sign from -0.0
_FP4 = [sign * number / 12 for sign in (1, -1) for number in (0, 0.0625, 8, 12, 4, 6, 2, 3)]

# NF4: QLoRA (arXiv:2305.14314), appendix E. FP4 and the dynamic map: bitsandbytes, get_4bit_type, create_dynamic_map.
CODEBOOKS = {
    row.name: row
    for row in (
        _row("nf4", 4, _NF4),
        _row("fp4", 4, [number + 0.0 for number in _FP4]),
        _row("dynamic8", 8, list(_dynamic_map()), _by_table),
    )
}
