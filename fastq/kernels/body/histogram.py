"""Histograms whose bins are floats of few bits: leading bits of a mantissa, and octaves below the largest magnitude.

Below the last octave bins are as wide as in it, like subnormal numbers; on both sides of 0 they are alike. When a
larger magnitude comes, octaves move, and those that leave are added up in the bins next to 0: contract C17.2 and C17.3.
So counts do not depend on the order of elements.
"""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.bitrounding import of_width
from fastq.kernels.body import BODIES, Body
from fastq.kernels.body.min_max import min_max
from fastq.kernels.load_store import load_elements
from fastq.kernels.pointers import HistogramOperands
from fastq.kernels.sizes import LEAST_EXPONENT
from fastq.kernels.spec import status_of

# Elements whose range is taken before they are counted, from the L1 cache by then.
PIECE = 1 << 12
# Indices that are computed before counts are raised: as many independent additions are under way.
INDICES = 64


@traced
def count_run(spec, operands, args, p, i, end):
    """Count the elements i..end, which have histogram p, and merge their range."""
    status = 0
    while i < end and not status:
        stop = min(i + PIECE, end)
        status = _count_piece(spec, operands, args, p, i, stop)
        i = stop
    return status


@traced
def _count_piece(spec, operands, args, p, i, end):
    """Count the elements i..end, widening bins first if one is beyond them; return the status.

    NaN counts as 0.0, or is taken from that count again if it is omitted. Where something is reported, nothing is
    counted.
    """
    lo, hi, nan = min_max(operands.src, i, end)
    lo, hi = _as_double(lo), _as_double(hi)
    if not spec.omits_nan:
        lo, hi = _with_zero(lo, hi, nan)
    elif not lo <= hi:  # of nothing but NaN
        return 0
    infinity = v.constant(float("inf"), lo)
    status = status_of(nan=nan & spec.refuses_nan, infinite=(lo == -infinity) | (hi == infinity))
    if status:
        return status
    counts = p * args.counts
    bins = args.bins
    bits = args.bin_bits
    reach = bits + (bins >> bits) - 1
    before = exponent(operands.lo[p], operands.hi[p], reach)
    lo, hi = v.minimum(lo, operands.lo[p]), v.maximum(hi, operands.hi[p])
    now = exponent(lo, hi, reach)
    if operands.lo[p] <= operands.hi[p] and now > before:
        _widen(operands.counts, counts, bins, args.interleaved, bits, now - before)
    operands.lo[p] = lo
    operands.hi[p] = hi
    _count(operands, i, end, counts + bins, 2 * bins, args.interleaved, bits, reach, -now)
    if nan and spec.omits_nan:
        operands.counts[counts + bins] -= _nan_in(operands.src, i, end)
    return 0


@traced
def _nan_in(src, i, end):
    """Count the NaN of src[i:end], which were counted as 0.0."""
    count = 0
    while i < end:
        x = load_elements(src, i, v.dtype_of(src))
        count += x != x
        i += 1
    return count


@traced
def _as_double(x):
    """Convert an extreme; -0.0 becomes 0.0: which of them was found depends on the order."""
    return v.convert(x, types.float64) + 0.0


@traced
def _with_zero(lo, hi, nan):
    """Widen a range to contain 0.0 where there was NaN, which counts as that."""
    return (min(lo, 0.0), max(hi, 0.0)) if nan else (lo, hi)


# --- widths -----------------------------------------------------------------------------------------------------------


@traced
def _exponent_of(x):
    """Return e of 2**e <= x < 2**(e + 1), for a normal number that is not negative."""
    return (v.bitcast(x, types.int64) >> 52) - 1023


@traced
def exponent(lo, hi, reach):
    """Return e of the narrowest bins of a range, which are 2**e wide; all bins end at 2**(reach + e)."""
    magnitude = max(-lo, hi, 0.0)  # a subnormal one has the least exponent anyway
    return max(_exponent_of(magnitude) + 1 - reach, LEAST_EXPONENT)


@traced
def _power_of_two(e):
    return v.bitcast((e + 1023) << 52, types.float64)


@traced
def _widen(counts, first, bins, partials, bits, steps):
    """Make the narrowest bins 2**steps times as wide, in each of the interleaved histograms from counts[first] on.

    A histogram has the bins below 0, the outermost first, and then as many from 0 on.
    """
    for k in range(partials):
        zero = first + k * 2 * bins + bins
        _move(counts, zero, 1, bins, bits, steps)
        _move(counts, zero - 1, -1, bins, bits, steps)


@traced
def _move(counts, first, step, bins, bits, steps):
    """Add the counts of one side to those of the bins where their elements are now, which are none further out."""
    for k in range(bins):
        count = counts[first + k * step]
        counts[first + k * step] = 0
        counts[first + _bin_after_widening(k, bits, steps) * step] += count


@traced
def _bin_after_widening(k, bits, steps):
    """Return in which bin the elements of bin k are once the narrowest bins are 2**steps times as wide.

    An octave has 2**bits bins. With four of these, and one step, bin 4, which began at 4 widths, becomes bin 2, and bin
    8, the first of octave 2, becomes bin 4.
    """
    octave = k >> bits
    if octave > steps:
        return k - (steps << bits)
    if octave == 0:
        return k >> min(steps, 62)
    return ((1 << bits) + (k & ((1 << bits) - 1))) >> min(steps + 1 - octave, 62)


# --- counts -----------------------------------------------------------------------------------------------------------


@traced
def _bin(x, reciprocal, bits, compute):
    """Return the bin of x, of NaN that of 0: what is below 0 is so in the quotient too, where that underflows.

    From the second octave on it is the exponent and the leading bits of the mantissa, counted from where bins are 1
    wide; up to there it is the whole part of the quotient.
    """
    if v.is_float(x):
        x = v.select(v.is_nan(x), v.full_like(v.constant(0, x), x), x)
    number = v.convert(x, compute)
    quotient = v.absolute(number * reciprocal)
    words = types.Integer.from_bitwidth(compute.bitwidth, True)
    mantissa, bias = of_width(compute.bitwidth)
    shift = v.convert(mantissa - bits, words)
    from_zero = v.convert((bias + bits - 1) << bits, words)
    above = v.convert((v.bitcast(quotient, words) >> shift) - from_zero, types.int32)
    limit = v.convert(1 << bits, compute)
    few = quotient < limit
    whole = v.bounded_to_integer(v.select(few, quotient, v.full_like(v.constant(0, quotient), quotient)), types.int32)
    k = v.select(few, whole, above)
    return v.select(number < v.constant(0, number), v.constant(-1, k) - k, k)


@traced
def _count(operands, i, end, first, width, partials, bits, reach, exponent):
    """Raise counts of bins of which 2**exponent is the reciprocal of the width.

    A quotient by a power of two is exact in the type of x as long as it is a normal number, and others are between -1
    and 1. So float32 is enough for the numbers it can hold, except for the least and largest widths, and takes half as
    long.
    """
    kind = operands.src.dtype
    if kind.bitwidth > (16 if isinstance(kind, types.Integer) else 32):
        _count_in(types.float64, operands, i, end, first, width, partials, bits, exponent)
    else:
        _count_narrow(operands, i, end, first, width, partials, bits, reach, exponent)


@traced
def _count_narrow(operands, i, end, first, width, partials, bits, reach, exponent):
    """Count in float32 if it has the reciprocal of the width and all quotients by the width, else in float64."""
    if abs(exponent) < 127 and reach < 127:
        _count_in(types.float32, operands, i, end, first, width, partials, bits, exponent)
    else:
        _count_in(types.float64, operands, i, end, first, width, partials, bits, exponent)


@traced
def _count_in(compute, operands, i, end, first, width, partials, bits, exponent):
    """Raise counts; 0.0 has the one at `first`. If there are several histograms, neighbours go to different ones."""
    src = operands.src
    reciprocal = v.convert(_power_of_two(exponent), compute)
    indices = v.scratch(INDICES, types.int32)
    last = partials - 1
    vec = v.lanes(src, indices)
    n = v.count(vec)
    # where element 0, 1, 2 and 3 of each four are counted: with one histogram all are the same
    a, b = v.advance(operands.counts, first), v.advance(operands.counts, first + (1 & last) * width)
    c = v.advance(a, (2 & last) * width)
    d = v.advance(b, (2 & last) * width)
    while i + INDICES <= end:
        for j in range(0, INDICES, n):
            v.store(indices, j, _bin(load_elements(src, i + j, vec), reciprocal, bits, compute))
        for j in range(0, INDICES, 4):
            a[indices[j]] += 1
            b[indices[j + 1]] += 1
            c[indices[j + 2]] += 1
            d[indices[j + 3]] += 1
        i += INDICES
    while i < end:
        a[_bin(load_elements(src, i, v.dtype_of(src)), reciprocal, bits, compute)] += 1
        i += 1


BODIES[HistogramOperands] = Body(count_run, partials={"lo": "", "hi": "", "counts": "counts"})
