"""Requantization of lanes of int32 accumulators, by parameters in two words of 64 bits.

The first word has the multiplier, an integer and its shift or a float32, and the second one the bias and the zero
point; of both the lower half is named first. Lanes are those of a `Vec`, whose int32 arithmetic wraps: that of scalars
is Numba's, which widens them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import Constants, traced


@dataclass(eq=False, repr=False)
class RequantizeSpec(Constants):
    """Type of an argument that chooses the arithmetic of a requantization."""

    arithmetic: str  # "twice_away", "twice_up", "once" or "float", see `fastq.formats.requantization`
    bias: str  # "int32", "float32" or "" without a bias
    below: float  # what multipliers are less than
    streams: bool  # whether large results go past the cache
    scale_kind: ClassVar[str] = ""


# --- words ------------------------------------------------------------------------------------------------------------

_FRACTION = 52  # bits of the fraction of a float64


@traced
def _fixed_point(bits):
    """Return the multiplier of 31 bits and, above them, its shift, from the bits of a float64 that is not negative.

    They stand for ``multiplier * 2**(shift - 31)``: 3.0 has the multiplier 0.75 * 2**31 and the shift 2. Less than
    2**-32 becomes 0.
    """
    shift = (bits >> _FRACTION) - 1022  # by which the fraction is from 0.5 to 1
    multiplier = ((bits & (1 << _FRACTION) - 1 | 1 << _FRACTION) + (1 << 21)) >> 22  # half up
    if multiplier == 1 << 31:
        multiplier = 1 << 30
        shift = shift + 1
    return multiplier | shift << 32 if shift >= -31 else 0


@traced
def first_word(spec, multiplier):
    """Return the word of a multiplier, a scalar that is not negative and less than `spec.below`."""
    if spec.arithmetic == "float":
        return v.convert(v.bitcast(v.convert(multiplier, types.float32), types.uint32), types.int64)
    return _fixed_point(v.bitcast(v.convert(multiplier, types.float64), types.int64))


@traced
def second_word(spec, bias, zero_point):
    """Return the word of a bias, a scalar of its type or None, and a zero point."""
    word = v.convert(zero_point, types.int64) << 32
    return word if bias is None else word | v.convert(v.bitcast(bias, types.uint32), types.int64)


@traced
def _halves(words):
    """Return the lower and the upper half of words, as int32."""
    pairs = v.bitcast(words, types.int32)
    return v.even(pairs), v.odd(pairs)


# --- lanes ------------------------------------------------------------------------------------------------------------


@traced
def requantize_lanes(spec, x, first, second, lowest, highest):
    """Return int32 lanes of codes; `lowest` and `highest` are the first and the last one, int32."""
    bias, zero_point = _halves(second)
    formula = _by_float if spec.arithmetic == "float" else _by_fixed_point
    return formula(spec, x, first, bias, zero_point, lowest, highest)


@traced
def _by_fixed_point(spec, x, first, bias, zero_point, lowest, highest):
    """Return codes by multipliers of 31 bits and shifts: the sum of x and the bias times these, rounded by the rule."""
    multiplier, shift = _halves(first)
    sums = x + bias if spec.bias else x
    units = (_round_once if spec.arithmetic == "once" else _round_twice)(spec, sums, multiplier, shift)
    return v.minimum(v.maximum(units + zero_point, lowest), highest)


@traced
def _round_twice(spec, x, multiplier, shift):
    """Round the product to 32 bits, half up; then shift right and round half up or half away from zero.

    A positive shift goes to the left, and before the product.
    """
    zero, one = (v.full_like(v.constant(number, shift), shift) for number in (0, 1))
    left, right = v.maximum(shift, zero), v.maximum(zero - shift, zero)
    high = _high_half(x << left, multiplier)
    # what is shifted out rounds up where it is above a threshold, which is half a unit where a tie
    # goes down, and one less where it goes up
    mask = (one << right) - one
    threshold = mask >> one
    if spec.arithmetic == "twice_away":
        threshold = threshold + v.select(high < zero, one, zero)
    return (high >> right) + v.select((high & mask) > threshold, one, zero)


@traced
def _high_half(x, multiplier):
    """Return the high half of twice the product, rounded half up: of even and of odd lanes, as CPUs multiply them.

    A lane of int64 has two of int32: shifts by 32 bits give its lower one, the even lane, the sign.
    """
    if x.n % 2:
        product = v.convert(x, types.int64) * v.convert(multiplier, types.int64)
        return v.convert((product + (1 << 30)) >> 31, types.int32)
    x = v.bitcast(x, types.int64)
    multiplier = v.bitcast(multiplier, types.int64)
    low = ((x << 32) >> 32) * ((multiplier << 32) >> 32) + (1 << 30)
    high = (x >> 32) * (multiplier >> 32) + (1 << 30)
    low_bits = (1 << 32) - 1
    return v.bitcast(((low >> 31) & low_bits) | ((high << 1) & ~low_bits), types.int32)


@traced
def _round_once(spec, x, multiplier, shift):
    """Round ``x * multiplier / 2**(31 - shift)`` half up, in int64."""
    right = v.convert(31 - shift, types.int64)
    one = v.full_like(v.constant(1, right), right)
    product = v.convert(x, types.int64) * v.convert(multiplier, types.int64)
    return v.convert((product + (one << right - one)) >> right, types.int32)


@traced
def _by_float(spec, x, first, bias, zero_point, lowest, highest):
    """Round the product of float32, half to even; it is clamped before, or it might have no int32."""
    factor = v.bitcast(_halves(first)[0], types.float32)
    if spec.bias == "float32":
        sums = v.convert(x, types.float32) + v.bitcast(bias, types.float32)
    else:
        sums = v.convert(x + bias if spec.bias else x, types.float32)
    least, most = v.convert(lowest - zero_point, types.float32), v.convert(highest - zero_point, types.float32)
    return v.round_to_int32(v.minimum(v.maximum(sums * factor, least), most)) + zero_point
