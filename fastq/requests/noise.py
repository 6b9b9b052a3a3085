"""Random numbers that codes are rounded by: what callers ask for, and where the numbers of an array begin."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.conventions import Convention
from fastq.formats.qtypes import QType
from fastq.system.arguments import equal, shown

STOCHASTIC = "stochastic"
_ROUNDINGS = ("half_even", "half_away")  # of conventions whose codes may be rounded at random instead


class Noise(NamedTuple):
    """Random numbers of the elements of an array, each by its place there in C order."""

    key: int  # 64 bits
    first: int = 0  # the place of the first element
    # how many places elements are apart along each axis, where the array is a part of that which the numbers belong to
    steps: tuple[int, ...] | None = None

    def of_part(self, first: int) -> Noise:
        """Return the numbers of a part that begins at a place."""
        return self._replace(first=first)


def steps_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many places elements of an array are apart along each axis."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def noise_of(rounding: object, rng: Any) -> Noise | None:
    """Return the random numbers of a call, for which a generator is advanced; None where rounding needs none."""
    if not equal(rounding, STOCHASTIC):
        if rng is not None:
            raise ValueError("rng must be None unless rounding='stochastic', which alone needs random numbers")
        return None
    return Noise(_key_of_seed(rng) if type(rng) is int else _key_of(rng))


def _key_of(rng: Any) -> int:
    try:
        words = np.random.default_rng(rng).bit_generator.random_raw(2).tolist()
    except Exception as error:  # of what is no seed, or of a caller's own bit generator
        raise TypeError(
            f"rng must be None, an int, a SeedSequence, a BitGenerator or a Generator of NumPy, not {shown(rng)}"
        ) from error
    return int(words[0] ^ words[1] << 32) & 0xFFFFFFFFFFFFFFFF  # some bit generators have words of 32 bits


_key_of_seed = functools.lru_cache(1024)(_key_of)  # to make a generator takes 12 us


def is_stochastic(rounding: object, row: Convention, qtype: QType) -> bool:
    """Return whether codes are rounded at random, if a convention and a format can have that."""
    if rounding is None:
        return False
    if not equal(rounding, STOCHASTIC):
        raise ValueError(f"rounding must be None or 'stochastic', not {shown(rounding)}")
    if qtype.codebook:
        raise ValueError(f"rounding must be None for {qtype}, whose codes are those of a table")
    if row.rounding not in _ROUNDINGS:
        raise ValueError(
            f"rounding must be None for convention {row.name!r}, which rounds by {row.rounding} and not to the nearest"
        )
    return True
