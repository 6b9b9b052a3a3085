"""Random numbers of the elements of an array, and values rounded by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastq.requests.noise import Noise
from fastq.system.dtypes import Array

_LOW = np.uint64(0xFFFFFFFF)


def numbers(noise: Noise, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return 23 random bits for each element, by its place in C order."""
    places = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(shape) + np.uint64(noise.first)
    words = _hashed(places & _LOW, places >> np.uint64(32), noise.key & 0xFFFFFFFF, noise.key >> 32)
    return np.asarray(words >> np.uint64(9))


def _hashed(lower: Array, upper: Array, key: int, other_key: int) -> Array:
    """Return 32 bits for each place, of 64, by the two halves of a key: words of 32 bits, computed in 64."""
    word = lower + np.uint64(key) & _LOW
    word = _times(word ^ word >> np.uint64(16), 0x21F0AAAD)
    word = word ^ word >> np.uint64(15) ^ (_times(upper, 0x9E3779B9) + np.uint64(other_key) & _LOW)
    word = _times(word, 0xD35A2D97)
    return np.asarray(word ^ word >> np.uint64(15))


def _times(word: Array, factor: int) -> Array:
    return np.asarray(word * np.uint64(factor) & _LOW)


def rounded_by(x: Array, bits: Array) -> Array:
    """Return whole numbers, rounded down from `x`, in 2^-23 to the nearest even, and the random bits as so many of it.

    Infinities and NaN stay as they are.
    """
    units = np.rint(x * x.dtype.type(2**23))
    whole = np.floor(units / x.dtype.type(2**23))
    part = units - whole * x.dtype.type(2**23)
    return np.asarray(np.where(np.isfinite(units), whole + (part + bits >= 2**23), x)).astype(x.dtype)
