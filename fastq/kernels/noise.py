"""Random numbers of elements: a hash of a key and of each element's place in its array, whatever visits it."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.kernels.args import NOISE_AXES, NOISE_BITS, NOISE_FIRST, NOISE_KEY

_MOST_LANES = 8 * v.LINE // 4  # of a line of the narrowest elements that are streamed


class NoiseWords(NamedTuple):
    """What random numbers are drawn by, in registers: from memory it would be read anew after each store."""

    lower: Any  # the words of the key
    upper: Any
    first: Any  # the place of the first element
    extent: Any  # elements of the fastest axis, and how many places they are apart
    step: Any
    axes: Any  # pointer to the same of all axes


@traced
def loaded(noise):
    """Load the words that a pointer is to, see `NOISE_KEY`."""
    key = noise[NOISE_KEY]
    words = v.convert(key, types.uint32), v.convert(key >> 32, types.uint32)
    return NoiseWords(
        *words, noise[NOISE_FIRST], noise[NOISE_AXES], noise[NOISE_AXES + 1], v.advance(noise, NOISE_AXES)
    )


@traced
def drawn(spec, operands, i, x):
    """Return a number below 2**NOISE_BITS for each lane of x, the elements from i on; None where none is needed."""
    if not spec.rule.draws:
        return None
    words = _words(operands.noise, i, v.Vec(types.uint32, v.count(x)))
    numbers = v.convert(words >> v.constant(32 - NOISE_BITS, words), types.int32)
    return numbers if isinstance(x, v.Vec) else v.first(numbers)


@njit
def _words(noise, i, lanes):
    """Return 32 random bits for each lane, the elements from i on."""
    n, step = v.count(lanes), noise.step
    place = noise.first + i * step
    if i + n <= noise.extent and ((place & 0xFFFFFFFF) + (n - 1) * step) >> 32 == 0:
        return _hashed(noise, _places(place, step, lanes), v.convert(place >> 32, types.uint32))
    lower, upper = v.scratch(_MOST_LANES, types.uint32), v.scratch(_MOST_LANES, types.uint32)
    for k in range(n):
        place = _place(noise, i + k)
        lower[k], upper[k] = v.convert(place, types.uint32), v.convert(place >> 32, types.uint32)
    return _hashed(noise, v.load(lower, 0, lanes), v.load(upper, 0, lanes))


@njit
def _places(first, step, lanes):
    """Return the lower words of places that are `step` apart."""
    apart = v.ramp(lanes)
    if step != 1:
        apart = apart * v.full(v.convert(step, types.uint32), lanes)
    return apart + v.full(v.convert(first, types.uint32), lanes)


@njit
def _place(noise, i):
    """Return where element i of this traversal is in the array that the numbers belong to, in C order."""
    place, rest, k = noise.first, i, 0
    while rest >= noise.axes[k]:
        row = rest // noise.axes[k]
        place += (rest - row * noise.axes[k]) * noise.axes[k + 1]
        rest, k = row, k + 2
    return place + rest * noise.axes[k + 1]


@traced
def _hashed(noise, lower, upper):
    """Mix the two words of a place with those of the key.

    The shifts and factors are those of lowbias32, the permutation of two multiplications whose output bits depend most
    evenly on all input bits (Wellons' search). The second word of the key comes between its rounds, so that keys are
    not shifted copies of each other.
    """
    word = lower + noise.lower
    word = (word ^ (word >> v.constant(16, word))) * v.constant(0x21F0AAAD, word)
    word = word ^ (word >> v.constant(15, word)) ^ (upper * v.constant(0x9E3779B9, upper) + noise.upper)
    word = word * v.constant(0xD35A2D97, word)
    return word ^ (word >> v.constant(15, word))


# --- rounding ---------------------------------------------------------------------------------------------------------

STEPS = 2.0**NOISE_BITS  # what a step is divided into


@traced
def round_at_random(x, numbers):
    """Round `x` to int32, with numbers of `drawn`: down from a multiple of 1 / STEPS plus as many of these.

    Magnitudes are below 2**8: the sum is within int32.
    """
    whole = v.round_to_int32(x * v.constant(STEPS, x)) + numbers
    return whole >> v.constant(NOISE_BITS, whole)


@traced
def round_widely_at_random(x, numbers):
    """Round as `round_at_random` to a float, of any magnitude that has a code."""
    units, step = v.rint(x * v.constant(STEPS, x)), v.constant(STEPS, x)
    whole = v.floor(units * v.constant(1 / STEPS, x))
    above = (units - whole * step) + v.convert(numbers, v.lane_type(x))
    return v.select(above < step, whole, whole + v.constant(1, x))
