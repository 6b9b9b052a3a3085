"""Largest and smallest values of many blocks, side by side in the lanes of registers that the blocks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced


class BlockExtremes(NamedTuple):
    """Largest and smallest values, and which lanes met NaN; of magnitudes the bits of the largest one, twice.

    The bits are compared as integers: the order is the same, and NaN is larger than everything.
    """

    high: Any
    low: Any
    nan: Any


@traced
def ends_of(x, n):
    """Reduce float lanes to `BlockExtremes` in n lanes, a literal; lanes that are n apart are compared."""
    if x.n == v.literal(n):
        return BlockExtremes(x, x, v.is_nan(x))
    a, b = v.lower(x), v.upper(x)
    if x.n == 2 * n:  # one comparison looks at both halves
        return BlockExtremes(v.maximum(a, b), v.minimum(a, b), v.either_nan(a, b))
    a, b = ends_of(a, n), ends_of(b, n)
    return BlockExtremes(v.maximum(a.high, b.high), v.minimum(a.low, b.low), a.nan | b.nan)


@traced
def magnitudes_of(x, n):
    """Reduce the magnitudes of float lanes to `BlockExtremes`, as `ends_of`."""
    most = _largest_bits(x, n)
    return BlockExtremes(most, most, False)


@traced
def _largest_bits(x, n):
    """Return the bits of the largest magnitudes of lanes that are n apart: as integers they have the same order."""
    if x.n == v.literal(n):
        return v.bitcast(v.absolute(x), types.int32 if x.dtype == types.float32 else types.int64)
    return v.maximum(_largest_bits(v.lower(x), n), _largest_bits(v.upper(x), n))


@traced
def _merge(a, b):
    """Compare neighbouring lanes of two registers; return those of a, then those of b, in one."""
    high, low = v.join(a.high, b.high), v.join(a.low, b.low)
    most = v.maximum(v.even(high), v.odd(high))
    if not v.is_float(most):
        return BlockExtremes(most, most, False)
    return BlockExtremes(most, v.minimum(v.even(low), v.odd(low)), a.nan | b.nan)


def make_block_extremes(of_block: Callable[..., Any]) -> Any:
    """Make the function that merges what ``of_block(context, k)`` gives for block k, `BlockExtremes` in n lanes.

    Two registers become one, neighbours being compared, so that sixteen blocks take fifteen merges.
    """

    @traced
    def block_extremes(context, k, n):
        """Return `BlockExtremes` of n blocks, a literal, from block k on, one block a lane."""
        if v.literal(n) == 1:
            return of_block(context, k)
        return _merge(block_extremes(context, k, n // 2), block_extremes(context, k + n // 2, n // 2))

    return block_extremes
