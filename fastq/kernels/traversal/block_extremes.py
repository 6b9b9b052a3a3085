"""Largest and smallest values of many blocks, side by side in the lanes of registers that the blocks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize


class BlockExtremes(NamedTuple):
    """Largest and smallest values, and which lanes met NaN; of magnitudes the bits of the largest one, twice.

    The bits are compared as integers: the order is the same, and NaN is larger than everything.
    """

    high: Any
    low: Any
    nan: Any


@specialize
def ends_of(x, n):
    """Reduce float lanes to `BlockExtremes` in n lanes, a literal; lanes that are n apart are compared."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    if x.n == n.literal_value:
        return lambda x, n: BlockExtremes(x, x, v.is_nan(x))
    if x.n == 2 * n.literal_value:  # one comparison looks at both halves

        def of_two(x, n):
            a, b = v.lower(x), v.upper(x)
            return BlockExtremes(v.maximum(a, b), v.minimum(a, b), v.either_nan(a, b))

        return of_two

    def of_more(x, n):
        a, b = ends_of(v.lower(x), n), ends_of(v.upper(x), n)
        return BlockExtremes(v.maximum(a.high, b.high), v.minimum(a.low, b.low), a.nan | b.nan)

    return of_more


@njit
def magnitudes_of(x, n):
    """Reduce the magnitudes of float lanes to `BlockExtremes`, as `ends_of`."""
    most = _largest_bits(x, n)
    return BlockExtremes(most, most, False)


@specialize
def _largest_bits(x, n):
    if not isinstance(n, types.IntegerLiteral):
        return None
    bits = types.int32 if x.dtype == types.float32 else types.int64
    if x.n == n.literal_value:
        return lambda x, n: v.bitcast(v.absolute(x), bits)
    return lambda x, n: v.maximum(_largest_bits(v.lower(x), n), _largest_bits(v.upper(x), n))


@specialize
def _merged(a, b):
    """Compare neighbouring lanes of two registers; return those of a, then those of b, in one."""
    if v.is_float(a.types[0]):

        def ends(a, b):
            high, low = v.join(a.high, b.high), v.join(a.low, b.low)
            return BlockExtremes(
                v.maximum(v.even(high), v.odd(high)), v.minimum(v.even(low), v.odd(low)), a.nan | b.nan
            )

        return ends

    def magnitudes(a, b):
        both = v.join(a.high, b.high)
        most = v.maximum(v.even(both), v.odd(both))
        return BlockExtremes(most, most, False)

    return magnitudes


def side_by_side(of_block: Callable[..., Any]) -> Any:
    """Make the function that merges what ``of_block(context, k)`` gives for block k, `BlockExtremes` in n lanes.

    Two registers become one, neighbours being compared, so that sixteen blocks take fifteen merges.
    """

    @specialize
    def block_extremes(context, k, n):
        """Return `BlockExtremes` of n blocks, a literal, from block k on, one block a lane."""
        if not isinstance(n, types.IntegerLiteral):
            return None
        half = n.literal_value // 2

        def of_halves(context, k, n):
            return _merged(block_extremes(context, k, half), block_extremes(context, k + half, half))

        return of_halves if half else lambda context, k, n: of_block(context, k)

    return block_extremes
