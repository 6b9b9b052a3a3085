"""Requantize accumulators, in int64 and float32 of NumPy."""

from __future__ import annotations

import numpy as np

from fastq.reference.granularity import broadcast_to_parts
from fastq.requests.requantization import RequantizeRequest
from fastq.system.dtypes import Array


def requantize_sums(
    acc: Array, asked: RequantizeRequest, multiplier: Array, zero_point: int, bias: Array | None
) -> Array:
    """Return codes as int64; multipliers and biases are ready."""
    # contract 13.2, 13.3 and 13.4
    factor, term = (
        None if numbers is None else broadcast_to_parts(numbers, acc.shape, asked.granularity.axes, 0)
        for numbers in (multiplier, bias)
    )
    assert factor is not None
    if asked.convention.arithmetic == "float":
        units = _by_float(acc, factor.astype(np.float32), term)
    else:
        sums = acc.astype(np.int64) if term is None else _wrap_to_int32(acc.astype(np.int64) + term)
        units = _ROUNDED[asked.convention.arithmetic](sums, *_fixed_point(factor.astype(np.float64)))
    first, last = asked.codes
    if asked.convention.arithmetic == "float":  # as many as there are int32, and more
        units = np.clip(units, first - zero_point, last - zero_point).astype(np.int64)
    return np.clip(_wrap_to_int32(units + zero_point), first, last)


def _by_float(acc: Array, factor: Array, term: Array | None) -> Array:
    """Return ``(acc + term) * factor`` in float32, rounded half to even; integers are added as int32, which wrap."""
    if term is not None and term.dtype == np.float32:
        sums = acc.astype(np.float32) + term
    else:
        sums = (acc if term is None else _wrap_to_int32(acc.astype(np.int64) + term)).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.rint(sums * factor))


def _fixed_point(multiplier: Array) -> tuple[Array, Array]:
    """Return multipliers as integers of 31 bits, in units of ``2**(shift - 31)``, and their shifts."""
    fraction, exponent = np.frexp(multiplier)
    units = np.floor(fraction * 2.0**31 + 0.5).astype(np.int64)
    shift = exponent.astype(np.int64)
    carried = units == 2**31
    units = np.where(carried, 2**30, units)
    shift = shift + carried
    return np.where(shift < -31, 0, units), np.where(shift < -31, 0, shift)


def _round_twice_away(sums: Array, units: Array, shift: Array) -> Array:
    """Return the high half of twice the product, rounded, divided by a power of two and rounded half away from zero."""
    high, power = _high_half(sums, units, shift)
    return _quotient(high + np.where(high < 0, -(power // 2), power // 2), power)


def _round_twice_up(sums: Array, units: Array, shift: Array) -> Array:
    """Return the high half of twice the product, rounded, divided by a power of two and rounded half up."""
    high, power = _high_half(sums, units, shift)
    return np.asarray((high + power // 2) // power)


def _high_half(sums: Array, units: Array, shift: Array) -> tuple[Array, Array]:
    """Return the high half of twice the product, rounded, and the power of two by which to divide it."""
    product = _wrap_to_int32(sums << np.maximum(shift, 0)) * units
    high = _quotient(product + np.where(product < 0, 1 - 2**30, 2**30), 2**31)
    return high, np.left_shift(1, np.maximum(-shift, 0))


def _round_once(sums: Array, units: Array, shift: Array) -> Array:
    """Return ``sums * units / 2**(31 - shift)``, rounded once; of a tie the larger integer is taken."""
    digits = 31 - shift
    half = np.left_shift(1, digits - 1)
    return _wrap_to_int32((sums * units + half) >> digits)


def _quotient(number: Array, divisor: Array | int) -> Array:
    """Divide as C does, towards zero."""
    return np.asarray(np.where(number < 0, -(-number // divisor), number // divisor))


def _wrap_to_int32(number: Array) -> Array:
    """Return int64 as int32 has them, which wrap around."""
    return np.asarray(number.astype(np.int32).astype(np.int64))


_ROUNDED = {"twice_away": _round_twice_away, "twice_up": _round_twice_up, "once": _round_once}
