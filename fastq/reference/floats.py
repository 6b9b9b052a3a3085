"""Float formats and codebooks in plain NumPy: codes from values and values from codes, by their definition.

`row` is a format, as the table of formats has it in a row, or a codebook.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastq.formats.codebooks import LEAST_SCALE, Codebook
from fastq.formats.floats import FLOAT_FORMATS, FloatFormat
from fastq.reference.stochastic_rounding import round_by_bits
from fastq.system.dtypes import Array


@np.errstate(over="ignore", under="ignore")
def in_scales(x: Array, scale: Array) -> Array:
    """Return values in units of the scales of codebooks: products with the reciprocal, limited by the least scale."""
    # contract 10.2
    one = x.dtype.type(1)
    least = x.dtype.type(LEAST_SCALE)
    return np.asarray(x * (one / np.maximum(scale, least)))


def decode(codes: Array, row: FloatFormat | Codebook) -> NDArray[np.float64]:
    """Return the values of codes, which may be integers or of the format's dtype; the sign of NaN is kept."""
    # contract 8.6 and 10.4
    codes = np.asarray(codes)
    if isinstance(row, Codebook):
        return np.array(row.values, np.float64)[codes.astype(np.intp)]
    code = (codes if codes.dtype.kind in "iu" else codes.view(f"u{codes.itemsize}")).astype(np.int64)
    negative = (code >> (row.bits - 1) == 1) & row.sign
    magnitude = code & ((1 << (row.bits - row.sign)) - 1)
    field = magnitude >> row.mantissa
    fraction = magnitude & ((1 << row.mantissa) - 1)
    subnormal = (field == 0) & (row.mantissa > 0)
    whole = np.where(subnormal, fraction, fraction + (1 << row.mantissa)).astype(np.float64)
    values = np.ldexp(whole, np.where(subnormal, 1, field) - row.bias - row.mantissa)
    values = np.where((magnitude > row.largest) | (code == row.nan), np.nan, values)
    values = np.where(magnitude == (-1 if row.infinity is None else row.infinity), np.inf, values)
    return np.asarray(np.copysign(values, np.where(negative, -1.0, 1.0)))


@np.errstate(invalid="ignore", under="ignore")  # signalling NaN
def encode(
    values: Array, row: FloatFormat | Codebook, saturate: bool, bits: Array | None = None, ties: str = "even"
) -> Array:
    """Return the codes nearest to values, ties to even, as unsigned integers; or neighbours at random by `bits`.

    Numbers that round beyond the largest finite number, including infinities, become that number, or without `saturate`
    infinity, or else NaN, in formats that have one. NaN is allowed only in formats with a NaN; it keeps its sign if
    there are two. In a codebook the index of the number is the count of thresholds below the value.
    """
    # contract 8.2, 8.8 and 10.2
    if isinstance(row, Codebook):
        return np.array(row.order, np.uint8)[np.searchsorted(np.array(row.thresholds, values.dtype), values)]
    values = np.asarray(values, np.float64)
    beyond = next((code for code in (row.infinity, row.nan) if code is not None and not saturate), row.largest)
    magnitude = magnitudes(values, row, bits, ties)
    code = np.where(magnitude > row.largest, beyond, magnitude)
    if row.nan is not None:
        code = np.where(np.isnan(values), row.nan, code)
    sign = 1 << (row.bits - 1)
    one_zero = row.nan == sign or (ties == "first_code" and bits is None)  # if NaN has the code of -0, 0 has no sign
    signed = np.signbit(values) & ((code != 0) | (not one_zero))
    return np.asarray(np.where(signed, code | sign, code).astype(np.uint8 if row.bits <= 8 else np.uint16))


@np.errstate(invalid="ignore", under="ignore")
def magnitudes(values: Array, row: FloatFormat, bits: Array | None = None, ties: str = "even") -> NDArray[np.int64]:
    """Return the codes nearest to the absolute values as if exponents were unbounded; one too many for infinity.

    With `bits` they are either neighbour.
    """
    absolute = np.abs(np.asarray(values, np.float64))
    limit = np.ldexp(1.0, row.emax + 2)
    absolute = np.where(absolute < limit, absolute, limit)  # NaN too
    lowest = 1 - row.bias
    exponent = np.where(absolute > 0, np.maximum(np.frexp(absolute)[1].astype(np.int64) - 1, lowest), lowest)
    units = np.ldexp(absolute, row.mantissa - exponent)
    nearest = np.rint(units) if ties == "even" else np.ceil(units - 0.5)
    whole = nearest if bits is None else round_by_bits(units, bits)
    return np.asarray(((exponent - lowest) << row.mantissa) + whole.astype(np.int64))


def in_half(x: Array, half: str) -> Array:
    """Return the result of an operation, rounded once to a dtype of half precision if one is named."""
    # contract 2.5
    if not half:
        return x
    form = FLOAT_FORMATS[half]
    if x.dtype == np.float64:  # which bfloat16 of ml_dtypes rounds to float32 first
        return decode(encode(x, form, False), form)
    return np.asarray(x.astype(form.dtype).astype(x.dtype))


def outside(values: Array, row: FloatFormat | Codebook) -> NDArray[np.bool_]:
    """Return a mask of values that round beyond the largest number, or lie half a step beyond a codebook."""
    if not isinstance(row, Codebook):
        return magnitudes(values, row) > row.largest
    first, last = (values.dtype.type(bound) for bound in row.bounds)
    return np.asarray((values < first) | (values > last))
