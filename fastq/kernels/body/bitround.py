"""Round floats to fewer bits of the significand: the same number of all, or as decimal digits need them.

Elements are the bits of floats as signed integers: a carry out of the significand goes to the exponent, as it should.
"""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.bitrounding import COLUMNS, field_bits, of_width
from fastq.kernels.body import BODIES, Body
from fastq.kernels.pointers import BitRoundOperands


@traced
def _row_of(magnitude, src):
    """Return the row of the table for magnitudes: 1 for the least subnormal number, then one for each binade.

    Of float16, rows 1 to 10 are those of subnormal numbers, whose binade a conversion to float tells, and row 11 is
    that of the least normal number.
    """
    wide, narrow = (types.float64, types.int64) if src.dtype.bitwidth == 64 else (types.float32, types.int32)
    mantissa = of_width(narrow.bitwidth)[0]
    mantissa_of_src = of_width(src.dtype.bitwidth)[0]
    one = v.constant(1, magnitude)
    leading = v.bitcast(v.convert(magnitude | one, wide), narrow) >> v.constant(mantissa, narrow)
    subnormal = v.convert(leading - v.constant(of_width(narrow.bitwidth)[1] - 1, leading), src.dtype)
    normal = (magnitude >> v.constant(mantissa_of_src, magnitude)) + v.constant(mantissa_of_src, magnitude)
    return v.select(magnitude < v.constant(1 << mantissa_of_src, magnitude), subnormal, v.convert(normal, src.dtype))


@traced
def _dropped_bits(spec, operands, args, magnitude):
    """Return how many bits of the significand are dropped.

    A row of the table belongs to a binade. It has two magnitudes, from which on other numbers of bits are dropped, and
    in fields of one word the numbers below the first, from the first on, and from the second on.
    """
    kind = operands.src.dtype
    if spec.op == "bitround":
        return v.full_like(v.convert(args.dropped, kind), v.convert(magnitude, kind))
    place = v.convert(_row_of(magnitude, operands.src), types.int32) * COLUMNS
    first, second, bits = (v.look_up(operands.table, place + k) for k in range(COLUMNS))
    width = field_bits(kind.bitwidth)
    steps = v.select(magnitude >= second, v.constant(2 * width, bits), v.constant(width, bits))
    shift = v.select(magnitude >= first, steps, v.constant(0, bits))
    return (bits >> shift) & v.constant((1 << width) - 1, bits)


@traced
def _round_bits(spec, bits, dropped):
    """Round to a multiple of 2**dropped of the last place; a tie goes to the even one, or away from zero."""
    one = v.constant(1, bits)
    odd = (bits >> dropped) & one if spec.rule.rounding == "half_even" else one
    half = ((one << dropped) - one + odd) >> one
    return ((bits + half) >> dropped) << dropped


@traced
def _round_at(spec, operands, args, shared, i, kind):
    """Return the bits of the rounded elements from src[i] on, and that nothing is reported."""
    bits = v.load(operands.src, i, kind)
    mantissa, bias = of_width(operands.src.dtype.bitwidth)
    magnitude = bits & v.constant((1 << operands.src.dtype.bitwidth - 1) - 1, bits)
    rounded = _round_bits(spec, bits, _dropped_bits(spec, operands, args, magnitude))
    infinity = v.constant((2 * bias + 1) << mantissa, magnitude)
    # NaN stays; so does infinity, which the table has no row for, and which a fixed number of bits rounds to itself
    stays = magnitude > infinity if spec.op == "bitround" else magnitude >= infinity
    return v.select(stays, bits, v.convert(rounded, operands.src.dtype)), 0


BODIES[BitRoundOperands] = Body(compute=_round_at)
