"""Largest and smallest values of many blocks, side by side in the lanes of registers that the blocks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from fastq.simd.vec import (
    absolute,
    bitcast,
    by_type,
    either_nan,
    even,
    inline,
    is_float,
    is_nan,
    join,
    lower,
    maximum,
    minimum,
    odd,
    upper,
)


class Sides(NamedTuple):
    """Largest and smallest values, and which lanes met NaN; of magnitudes the bits of the largest one, twice.

    The bits are compared as integers: the order is the same, and NaN is larger than everything.
    """

    high: Any
    low: Any
    nan: Any


@by_type
def ends_of(x, n):
    """Sides of float lanes, in n of them, a literal: lanes that are n apart are brought together."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    if x.n == n.literal_value:
        return lambda x, n: Sides(x, x, is_nan(x))
    if x.n == 2 * n.literal_value:  # one comparison looks at both halves

        def of_two(x, n):
            a, b = lower(x), upper(x)
            return Sides(maximum(a, b), minimum(a, b), either_nan(a, b))

        return of_two

    def of_more(x, n):
        a, b = ends_of(lower(x), n), ends_of(upper(x), n)
        return Sides(maximum(a.high, b.high), minimum(a.low, b.low), a.nan | b.nan)

    return of_more


@inline
def magnitudes_of(x, n):
    """Sides of the magnitudes of float lanes, as `ends_of`."""
    most = _largest_bits(x, n)
    return Sides(most, most, False)


@by_type
def _largest_bits(x, n):
    if not isinstance(n, types.IntegerLiteral):
        return None
    bits = types.int32 if x.dtype == types.float32 else types.int64
    if x.n == n.literal_value:
        return lambda x, n: bitcast(absolute(x), bits)
    return lambda x, n: maximum(_largest_bits(lower(x), n), _largest_bits(upper(x), n))


@by_type
def _merged(a, b):
    """Sides of two registers, neighbouring lanes brought together: those of a, then those of b."""
    if is_float(a.types[0]):

        def ends(a, b):
            high, low = join(a.high, b.high), join(a.low, b.low)
            return Sides(maximum(even(high), odd(high)), minimum(even(low), odd(low)), a.nan | b.nan)

        return ends

    def magnitudes(a, b):
        both = join(a.high, b.high)
        most = maximum(even(both), odd(both))
        return Sides(most, most, False)

    return magnitudes


def side_by_side(of_block: Callable[..., Any]) -> Any:
    """Make the function that brings together what ``of_block(context, k)`` gives for block k, `Sides` in n lanes.

    Two registers become one, neighbours being merged, so that sixteen blocks take fifteen merges.
    """

    @by_type
    def sides(context, k, n):
        """Sides of n blocks, a literal, from block k on; of single blocks if they were in n lanes."""
        if not isinstance(n, types.IntegerLiteral):
            return None
        half = n.literal_value // 2

        def of_halves(context, k, n):
            return _merged(sides(context, k, half), sides(context, k + half, half))

        return of_halves if half else lambda context, k, n: of_block(context, k)

    return sides
