"""Random numbers of elements: a hash of a key and of each element's place in its array; and rounding by them."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.sizes import NOISE_AXES, NOISE_BITS, NOISE_FIRST, NOISE_KEY

_REGISTER = v.Vec(types.uint32, v.REGISTER_BITS // 32)
_REGISTERS = v.Vec(types.uint32, 4 * _REGISTER.n)  # that wait for products together
SLACK = 2 * _REGISTERS.n  # numbers that may be written too many
_GOLDEN = 0x9E3779B9


@traced
def draw(numbers, noise, start, stop):
    """Write a number of `NOISE_BITS` bits for each of the elements start..stop; `noise` is what `NOISE_KEY` says.

    Places 2w and 2w + 1 of the array share the hash of word w, whose lower half is the number of the even place.
    Elements are taken as long as their places are the same `step` apart and have one key.
    """
    i = start
    extent = noise[NOISE_AXES]
    step = noise[NOISE_AXES + 1]
    while i < stop:
        place = _place(noise, i)
        low = place & 0xFFFFFFFF
        # where the innermost axis ends, or these 2**32 places do
        end = min(stop, (i // extent + 1) * extent, i + ((1 << 32) - low + step - 1) // step)
        key = _key_above(noise[NOISE_KEY], place >> 33)  # by the upper word of word number place >> 1
        upper = v.convert(key >> 32, types.uint32)
        into = v.advance(numbers, i - start)
        first = v.convert((place >> 1 & 0xFFFFFFFF) * _GOLDEN, types.uint32) + v.convert(key, types.uint32)
        if step == 1 and place & 1 == 0:
            _draw_pairs(v.cast_pointer(into, types.uint32), end - i, first, upper)
        else:
            end = end if step > 1 else i + 1  # an odd place alone: from the next one on numbers are pairs
            _draw_apart(into, end - i, low & 1, step, first, upper)
        i = end


@traced
def _key_above(key, high):
    """Return 64 bits for the places with the same upper word: those of SplitMix64 (Steele, Lea and Flood 2014)."""
    word = v.convert(key, types.uint64)
    # its three constants, as signed integers
    word = word + v.convert(high + 1, types.uint64) * v.constant(-7046029254386353131, word)
    word = (word ^ (word >> v.constant(30, word))) * v.constant(-4658895280553007687, word)
    word = (word ^ (word >> v.constant(27, word))) * v.constant(-7723592293110705685, word)
    return word ^ (word >> v.constant(31, word))


@traced
def _place(noise, i):
    """Return where element i of this traversal is in the array that the numbers belong to, in C order.

    In an array of shape (3, 4) that is visited column by column, the axes are 3 elements 4 places apart, and then 1
    place apart. Element 5 is the last one of column 1, at place 2 * 4 + 1 * 1.
    """
    place = noise[NOISE_FIRST]
    rest = i
    k = NOISE_AXES
    while rest >= noise[k]:
        row = rest // noise[k]
        place += (rest - row * noise[k]) * noise[k + 1]
        rest = row
        k = k + 2
    return place + rest * noise[k + 1]


@traced
def _draw_pairs(words, many, first, key):
    """Write the words of `many` numbers, two each, of places that follow each other and begin with an even one.

    `first` is what is hashed for the first word, see `_hash`: its number times the golden ratio, and the lower word of
    the key. For each word that follows it is larger by that ratio. Up to a register is written too many.
    """
    golden = v.constant(_GOLDEN, first)
    mixed = v.ramp(_REGISTERS) * golden + first
    k = 0
    last = (many + 1) // 2
    while k <= last - v.count(_REGISTERS):
        v.store(words, k, _hash(mixed, key))
        mixed = mixed + v.constant(v.count(_REGISTERS) * _GOLDEN & 0xFFFFFFFF, first)
        k += v.count(_REGISTERS)
    few = v.ramp(_REGISTER) * golden + v.first(mixed)
    while k < last:
        v.store(words, k, _hash(few, key))
        few = few + v.constant(v.count(_REGISTER) * _GOLDEN & 0xFFFFFFFF, first)
        k += v.count(_REGISTER)


@traced
def _draw_apart(numbers, many, odd, step, first, key):
    """Write `many` numbers, one of each word, of places a step apart, the first of which is odd or not.

    Places 2w and 2w + 1 share the hash of word w: an even place has its lower half, an odd one its upper half. Words
    are counted from that of the first place, for which `first` is what `_draw_pairs` has.
    """
    apart = v.convert(step, types.uint32)
    k = 0
    places = v.ramp(_REGISTER) * apart + v.convert(odd, types.uint32)
    one = v.constant(1, places)
    golden = v.constant(_GOLDEN, places)
    while k < many:
        words = _hash((places >> one) * golden + first, key)
        half = words >> ((places & one) << v.constant(4, places))
        v.store(numbers, k, v.convert(half & v.constant(_MASK & 0xFFFF, half), types.int16))
        places = places + v.convert(v.count(_REGISTER) * step, types.uint32)
        k += v.count(_REGISTER)


_MASK = ((1 << NOISE_BITS) - 1) * 0x10001  # of two numbers


@traced
def _hash(word, key):
    """Mix words, to which the lower word of a key has been added, with its upper one: two numbers, in two halves.

    The shifts and factors are those of lowbias32, the permutation of two multiplications whose output bits depend most
    evenly on all input bits (Wellons' search). The key comes between the rounds, so that the numbers of two keys are
    not shifted copies. Words of places a power of two apart differ in few bits, which two rounds do not make
    independent: of 2**20 numbers, pairs 1024 apart had a chi-square 3700 deviations off. So words are multiples of the
    golden ratio, which costs nothing where places follow each other.
    """
    word = (word ^ (word >> v.constant(16, word))) * v.constant(0x21F0AAAD, word)
    word = (word ^ (word >> v.constant(15, word)) ^ key) * v.constant(0xD35A2D97, word)
    return (word ^ (word >> v.constant(15, word))) & v.constant(_MASK, word)


@traced
def random_numbers_of(spec, operands, i, x):
    """Load the numbers of the lanes of x, the elements from i on; None where rounding needs none."""
    if not spec.rule.draws:
        return None
    return v.convert(v.load(operands.noise, i, v.with_lane_type(x, types.int16)), types.int32)


STEPS = 2.0**NOISE_BITS  # what a step is divided into


@traced
def round_at_random(x, numbers):
    """Round `x` to int32, up or down at random: up with a probability of its fraction, by numbers of `draw`.

    `x` is rounded to a multiple of 1 / STEPS, as many of these as a number says are added, and the sum is rounded down.
    Magnitudes are below 2**16: the sum is within int32.
    """
    whole = v.round_to_int32(x * v.constant(STEPS, x)) + numbers
    return whole >> v.constant(NOISE_BITS, whole)
