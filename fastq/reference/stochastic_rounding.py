"""Random numbers of the elements of an array, and values rounded by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastq.requests.stochastic_rounding import Noise
from fastq.system.dtypes import Array

_LOW = np.uint64(0xFFFFFFFF)


def numbers(noise: Noise, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return 15 random bits for each element, by its place in C order.

    Places 2w and 2w + 1 share the hash of word w: an even place has the bits of its lower half.
    """
    # contract 9.3 and 9.4
    places = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(shape) + np.uint64(noise.first)
    pairs = places >> np.uint64(1)
    keys = _keys(np.uint64(noise.key), pairs >> np.uint64(32))
    words = _hash((_times(pairs & _LOW, 0x9E3779B9) + keys) & _LOW, keys >> np.uint64(32))
    return np.asarray(words >> places % np.uint64(2) * np.uint64(16) & np.uint64(0x7FFF))


@np.errstate(over="ignore")
def _keys(key: np.uint64, high: Array) -> Array:
    """Return output number ``high + 1`` of the generator SplitMix64 that begins at `key`, for each upper word."""
    state = key + (high + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ state >> np.uint64(31))


def _hash(word: Array, key: Array) -> Array:
    """Return 32 bits for each word of 32 bits, which is computed with in 64."""
    word = _times(word ^ word >> np.uint64(16), 0x21F0AAAD)
    word = _times(word ^ word >> np.uint64(15) ^ key, 0xD35A2D97)
    return np.asarray(word ^ word >> np.uint64(15))


def _times(word: Array, factor: int) -> Array:
    """Return the lower 32 bits of products."""
    return np.asarray(word * np.uint64(factor) & _LOW)


def round_by_bits(x: Array, bits: Array) -> Array:
    """Return whole numbers, rounded down from `x`, in 2^-15 to the nearest even, and the random bits, in the same unit.

    Infinities and NaN stay as they are.
    """
    # contract 9.2
    units = np.rint(x * x.dtype.type(2**15))
    whole = np.floor(units / x.dtype.type(2**15))
    part = units - whole * x.dtype.type(2**15)
    return np.asarray(np.where(np.isfinite(units), whole + (part + bits >= 2**15), x)).astype(x.dtype)
