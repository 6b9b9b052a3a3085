"""Round floats to fewer bits, as netCDF-C does for significant digits; count bits of neighbours, bit by bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastq.requests.bitrounding import BitRounding
from fastq.results import BitInformation
from fastq.system.dtypes import Array

_LOG10 = np.frompyfunc(math.log10, 1, 1)  # NumPy's own is not that of C


@np.errstate(invalid="ignore")
def round_to_kept_bits(x: Array, asked: BitRounding) -> Array:
    """Return x rounded to the bits that are kept of each element, NaN and infinities as they are.

    What is rounded are the bits without the sign, as whole numbers: a carry out of the significand goes to the
    exponent.
    """
    # contract 23.1, 23.4 and 23.5
    unsigned = np.dtype(f"u{x.dtype.itemsize}").type
    bits = x.view(unsigned)
    mantissa = np.finfo(x.dtype).nmant
    kept: Any = asked.keepbits
    if asked.digits is not None:
        kept = _kept_bits(x, asked.digits)
    elif kept is None:
        finite = np.abs(x[np.isfinite(x)].astype(np.float64))
        kept = asked.keepbits_within(float(finite.max(initial=0.0)))
    unit = unsigned(1) << np.minimum(mantissa - kept, mantissa).clip(0).astype(unsigned)
    sign = bits & (unsigned(1) << unsigned(8 * x.dtype.itemsize - 1))
    quotient, rest = np.divmod(bits - sign, unit)
    tie = rest * unsigned(2) == unit
    odd = quotient & unsigned(1) == 1
    up = (rest * unsigned(2) > unit) | (tie & (odd | (asked.rounding == "half_away")))
    result = (((quotient + up.astype(unsigned)) * unit) | sign).view(x.dtype)
    return np.where(np.isfinite(x), result, x)


def _kept_bits(x: Array, digits: int) -> Any:
    """Return how many bits of each element hold `digits` decimal digits, by netCDF-C's formula; it may give -1."""
    places = math.log(10.0) / math.log(2.0)
    fraction, exponent = np.frexp(np.where(np.isfinite(x) & (x != 0), np.abs(x), 1).astype(np.float64))
    log10 = np.asarray(_LOG10(fraction), np.float64)
    before_point = np.floor(exponent * (math.log(2.0) / math.log(10.0)) + log10) + 1
    least = np.floor(places * (before_point - digits))
    return (np.abs(np.floor(exponent - places * log10) - least) - 1).astype(np.int64)


def count_pairs_of_bits(x: Array, axis: int) -> BitInformation:
    """Return how often bits of neighbours along an axis were 00, 01, 10 and 11; pairs with NaN are left out."""
    # contract 23.6
    unsigned = np.dtype(f"u{x.dtype.itemsize}").type
    info = np.finfo(x.dtype)
    bits = x.view(unsigned).astype(object)
    lowest = 1 << info.nmant
    field = bits // lowest % (1 << info.iexp)
    exponent = field - (info.maxexp - 1)
    signed = np.where(exponent < 0, 1 << info.iexp - 1, 0) | np.abs(exponent)
    words = np.moveaxis(bits + (signed - field) * lowest, axis, 0)
    known = ~np.moveaxis(np.isnan(x), axis, 0)
    both = known[:-1] & known[1:]
    first = words[:-1][both]
    second = words[1:][both]
    counts = np.zeros((info.bits, 2, 2), np.int64)
    for k, pairs in enumerate(counts):
        place = info.bits - 1 - k
        codes = ((first >> place & 1) * 2 + (second >> place & 1)).astype(np.int64)
        pairs[...] = np.bincount(codes, minlength=4).reshape(2, 2)
    return BitInformation(x.dtype, counts)
