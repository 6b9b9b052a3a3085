"""Round floats to fewer bits, element by element, as netCDF-C does for significant digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastq.requests.bitrounding import BitRounding
from fastq.system.dtypes import Array

_LOG10 = np.frompyfunc(math.log10, 1, 1)  # NumPy's own is not that of C


@np.errstate(invalid="ignore")
def rounded(x: Array, asked: BitRounding) -> Array:
    """Return x rounded to the bits that are kept of each element, NaN as it is."""
    unsigned = np.dtype(f"u{x.dtype.itemsize}").type
    bits, mantissa = x.view(unsigned), np.finfo(x.dtype).nmant
    kept: Any = asked.keepbits
    if asked.digits is not None:
        kept = _kept(x, asked.digits)
    elif kept is None:
        finite = np.abs(x[np.isfinite(x)].astype(np.float64))
        kept = asked.keepbits_within(float(finite.max(initial=0.0)))
    unit = unsigned(1) << np.minimum(mantissa - kept, mantissa).clip(0).astype(unsigned)
    sign = bits & (unsigned(1) << unsigned(8 * x.dtype.itemsize - 1))
    quotient, rest = np.divmod(bits - sign, unit)
    tie, odd = rest * unsigned(2) == unit, quotient & unsigned(1) == 1
    up = (rest * unsigned(2) > unit) | (tie & (odd | (asked.rounding == "half_away")))
    result = (((quotient + up.astype(unsigned)) * unit) | sign).view(x.dtype)
    return np.where(np.isfinite(x), result, x)


def _kept(x: Array, digits: int) -> Any:
    """Return the bits of the mantissa that each number keeps."""
    places = math.log(10.0) / math.log(2.0)
    fraction, exponent = np.frexp(np.where(np.isfinite(x) & (x != 0), np.abs(x), 1).astype(np.float64))
    log10 = np.asarray(_LOG10(fraction), np.float64)
    before_point = np.floor(exponent * (math.log(2.0) / math.log(10.0)) + log10) + 1
    least = np.floor(places * (before_point - digits))
    return (np.abs(np.floor(exponent - places * log10) - least) - 1).astype(np.int64)
