"""Random numbers for rounding codes: the arguments of callers, and the position of an array in the sequence."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from fastq.system.arguments import shown

STOCHASTIC = "stochastic"


class Noise(NamedTuple):
    """Random numbers of the elements of an array, each selected by its position in C order."""

    key: int  # 64 bits
    first: int = 0  # the position of the first element
    # distance of neighbours along each axis, for a part of the array to which the numbers belong
    steps: tuple[int, ...] | None = None

    def of_part(self, first: int) -> Noise:
        """Return the numbers of a part that begins at a position."""
        return self._replace(first=first)


def steps_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distance of neighbours in an array along each axis."""
    steps = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def noise_of(rounding: object, rng: Any) -> Noise | None:
    """Return the random numbers of a call, which advances a generator; None if rounding needs no numbers."""
    if not (isinstance(rounding, str) and rounding == STOCHASTIC):
        if rng is not None:
            raise ValueError("rng must be None unless rounding='stochastic', since only that needs random numbers")
        return None
    return Noise(_key_of_seed(rng) if type(rng) is int else _key_of(rng))


def _is_deep(seed: object, most: int = 8) -> bool:
    """Return whether there are sequences in sequences, more than `most` deep: NumPy goes on until the stack is full."""
    if type(seed) is np.ndarray:  # of a matrix, rows are matrices
        return seed.ndim > most
    return (
        isinstance(seed, Collection)
        and not isinstance(seed, str)
        and (most == 0 or any(_is_deep(item, most - 1) for item in seed))
    )


def _key_of(rng: Any) -> int:
    """Return 64 bits of a generator, which advances, or of the generator of a seed."""
    try:
        if _is_deep(rng):
            raise TypeError("lists in lists")
        words = np.random.default_rng(rng).bit_generator.random_raw(2).tolist()
    except Exception as error:  # not a seed, or a caller's own bit generator
        raise TypeError(
            f"rng must be None, an int, a SeedSequence, a BitGenerator or a Generator of NumPy, not {shown(rng)}"
        ) from error
    return int(words[0] ^ words[1] << 32) & 0xFFFFFFFFFFFFFFFF  # some bit generators have words of 32 bits


_key_of_seed = functools.lru_cache(1024)(_key_of)  # making a generator takes 12 us
