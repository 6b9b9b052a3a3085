"""Random numbers of elements: a hash of a key and of each element's place in its array; and rounding by them."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.kernels.args import NOISE_AXES, NOISE_BITS, NOISE_FIRST, NOISE_KEY

_REGISTER = v.Vec(types.uint32, v.REGISTER_BITS // 32)
_REGISTERS = v.Vec(types.uint32, 4 * _REGISTER.n)  # that wait for products together
SLACK = _REGISTERS.n  # numbers that may be written too many


@njit
def draw(numbers, noise, start, stop):
    """Write a number of `NOISE_BITS` bits for each of the elements start..stop; `noise` is what `NOISE_KEY` says."""
    i, extent, step = start, noise[NOISE_AXES], noise[NOISE_AXES + 1]
    while i < stop:
        place = _place(noise, i)
        low, high = place & 0xFFFFFFFF, place >> 32
        end = min(stop, (i // extent + 1) * extent, i + ((1 << 32) - low + step - 1) // step)
        key = _key_above(noise[NOISE_KEY], high)
        first = v.convert(low * _GOLDEN, types.uint32) + v.convert(key, types.uint32)
        _draw_along(v.advance(numbers, i - start), end - i, first, step * _GOLDEN, v.convert(key >> 32, types.uint32))
        i = end


@traced
def _key_above(key, high):
    """Return 64 bits for the places with the same upper word: those of SplitMix64 (Steele, Lea and Flood 2014)."""
    word = v.convert(key, types.uint64)
    word = word + v.convert(high + 1, types.uint64) * v.constant(-7046029254386353131, word)
    word = (word ^ (word >> v.constant(30, word))) * v.constant(-4658895280553007687, word)
    word = (word ^ (word >> v.constant(27, word))) * v.constant(-7723592293110705685, word)
    return word ^ (word >> v.constant(31, word))


@njit
def _place(noise, i):
    """Return where element i of this traversal is in the array that the numbers belong to, in C order."""
    place, rest, k = noise[NOISE_FIRST], i, NOISE_AXES
    while rest >= noise[k]:
        row = rest // noise[k]
        place += (rest - row * noise[k]) * noise[k + 1]
        rest, k = row, k + 2
    return place + rest * noise[k + 1]


_GOLDEN = 0x9E3779B9


@njit
def _draw_along(numbers, many, first, step, key):
    """Write `many` numbers, of places whose words begin with one, are a step apart, and have the same key above."""
    apart, k = v.convert(step, types.uint32), 0
    places, after = v.ramp(_REGISTERS) * apart + first, v.convert(v.count(_REGISTERS) * step, types.uint32)
    while k <= many - v.count(_REGISTERS):
        v.store(numbers, k, _hashed(places, key))
        places = places + after
        k += v.count(_REGISTERS)
    few = v.ramp(_REGISTER) * apart + v.first(places)
    after = v.convert(v.count(_REGISTER) * step, types.uint32)
    while k < many:
        v.store(numbers, k, _hashed(few, key))
        few = few + after
        k += v.count(_REGISTER)


@traced
def _hashed(word, key):
    """Mix words, to which the lower word of a key has been added, with its upper one, and take their higher bits.

    The shifts and factors are those of lowbias32, the permutation of two multiplications whose output bits depend most
    evenly on all input bits (Wellons' search). The key comes between its rounds, so that what keys give are not shifted
    copies. Words of places a power of two apart differ in few bits, which two rounds do not make independent: of 2**20
    numbers, pairs 1024 apart had a chi-square 3700 deviations off. So words are multiples of the golden ratio, which
    costs nothing where places are a step apart.
    """
    word = (word ^ (word >> v.constant(16, word))) * v.constant(0x21F0AAAD, word)
    word = (word ^ (word >> v.constant(15, word)) ^ key) * v.constant(0xD35A2D97, word)
    return v.convert((word ^ (word >> v.constant(15, word))) >> v.constant(32 - NOISE_BITS, word), types.int32)


@traced
def drawn(spec, operands, i, x):
    """Load the numbers of the lanes of x, the elements from i on; None where rounding needs none."""
    return v.load(operands.noise, i, v.with_lane_type(x, types.int32)) if spec.rule.draws else None


# --- rounding ---------------------------------------------------------------------------------------------------------

STEPS = 2.0**NOISE_BITS  # what a step is divided into


@traced
def round_at_random(x, numbers):
    """Round `x` to int32, with numbers of `draw`: down from a multiple of 1 / STEPS plus as many of these.

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
