"""Histograms whose bins are as wide as a power of two, which follows from the largest magnitude alone.

Bin k is that of floor(x / 2**e), -bins <= k < bins, with the least e at which the largest magnitude is below
bins * 2**e; e is no less than `LEAST_EXPONENT`. When a larger magnitude comes, e grows and neighbouring bins are added:
floor(floor(y) / 2) == floor(y / 2). So counts do not depend on the order of elements.
"""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
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
    lo, hi, nan = min_max(operands.src, i, end)
    lo, hi = _as_double(lo), _as_double(hi)
    if not spec.omits_nan:
        lo, hi = _with_zero(lo, hi, nan)
    elif not lo <= hi:  # of nothing but NaN
        return 0
    infinity = v.constant(float("inf"), lo)
    status = status_of(nan & spec.refuses_nan, (lo == -infinity) | (hi == infinity))
    if status:
        return status
    counts = p * args.counts
    bins = int(args.bins)
    before = exponent(operands.lo[p], operands.hi[p], args.bins)
    lo, hi = v.minimum(lo, operands.lo[p]), v.maximum(hi, operands.hi[p])
    now = exponent(lo, hi, args.bins)
    if operands.lo[p] <= operands.hi[p] and now > before:
        _widen(operands.counts, counts, bins, args.interleaved, min(now - before, _exponent_of(args.bins)))
    operands.lo[p] = lo
    operands.hi[p] = hi
    _count(operands, i, end, counts + bins, 2 * bins, args.interleaved, -now)
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
    return (min(lo, 0.0), max(hi, 0.0)) if nan else (lo, hi)


# --- widths -----------------------------------------------------------------------------------------------------------


@traced
def _exponent_of(x):
    """Return e of 2**e <= x < 2**(e + 1), for a normal number that is not negative."""
    return (v.bitcast(x, types.int64) >> 52) - 1023


@traced
def exponent(lo, hi, bins):
    """Return e of the bins of a range."""
    magnitude = max(-lo, hi, 0.0)  # a subnormal one has the least exponent anyway
    return max(_exponent_of(magnitude) + 1 - _exponent_of(bins), LEAST_EXPONENT)


@traced
def _power_of_two(e):
    return v.bitcast((e + 1023) << 52, types.float64)


@traced
def _widen(counts, first, bins, partials, steps):
    """Make bins 2**steps times as wide, no more than to one bin a side."""
    for k in range(partials):
        zero = first + k * 2 * bins + bins
        _add_neighbours(counts, zero, 1, bins, steps)
        _add_neighbours(counts, zero - 1, -1, bins, steps)


@traced
def _add_neighbours(counts, first, step, bins, steps):
    for j in range(bins):
        total = counts[first] * 0
        for i in range(j << steps, min((j + 1) << steps, bins)):
            total += counts[first + i * step]
        counts[first + j * step] = total


# --- counts -----------------------------------------------------------------------------------------------------------


@traced
def _bin(x, reciprocal, compute):
    """Return floor(x / width), of NaN 0: what is below 0 is so in the quotient too, where that underflows."""
    if v.is_float(x):
        x = v.select(v.is_nan(x), v.full_like(v.constant(0, x), x), x)
    number = v.convert(x, compute)
    k = v.bounded_to_integer(v.floor(number * reciprocal), types.int32)
    return v.select(number < v.constant(0, number), v.minimum(k, v.full_like(v.constant(-1, k), k)), k)


@traced
def _count(operands, i, end, first, width, partials, exponent):
    """Raise counts of bins of which 2**exponent is the reciprocal of the width.

    A quotient by a power of two is exact in the type of x as long as it is a normal number, and others are between -1
    and 1. So float32 is enough for the numbers it can hold, except for the least and largest widths, and takes half as
    long.
    """
    kind = operands.src.dtype
    if kind.bitwidth > (16 if isinstance(kind, types.Integer) else 32):
        _count_in(types.float64, operands, i, end, first, width, partials, exponent)
    else:
        _count_narrow(operands, i, end, first, width, partials, exponent)


@traced
def _count_narrow(operands, i, end, first, width, partials, exponent):
    if abs(exponent) < 127:
        _count_in(types.float32, operands, i, end, first, width, partials, exponent)
    else:
        _count_in(types.float64, operands, i, end, first, width, partials, exponent)


@traced
def _count_in(compute, operands, i, end, first, width, partials, exponent):
    """Raise counts; 0.0 has the one at `first`. If there are several histograms, neighbours go to different ones."""
    src = operands.src
    reciprocal = v.convert(_power_of_two(exponent), compute)
    indices = v.scratch(INDICES, types.int32)
    last = partials - 1
    vec = v.lanes(src, indices)
    n = v.count(vec)
    a, b = v.advance(operands.counts, first), v.advance(operands.counts, first + (1 & last) * width)
    c = v.advance(a, (2 & last) * width)
    d = v.advance(b, (2 & last) * width)
    while i + INDICES <= end:
        for j in range(0, INDICES, n):
            v.store(indices, j, _bin(load_elements(src, i + j, vec), reciprocal, compute))
        for j in range(0, INDICES, 4):
            a[indices[j]] += 1
            b[indices[j + 1]] += 1
            c[indices[j + 2]] += 1
            d[indices[j + 3]] += 1
        i += INDICES
    while i < end:
        a[_bin(load_elements(src, i, v.dtype_of(src)), reciprocal, compute)] += 1
        i += 1


BODIES[HistogramOperands] = Body(count_run, partials={"lo": "", "hi": "", "counts": "counts"})
