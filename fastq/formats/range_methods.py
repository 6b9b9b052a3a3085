"""The choice of ranges: the whole range, or the one of several larger and smaller ranges with the least error."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions.convention import Convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.system.arguments import as_float, as_int, as_items

MOST_RANGES = 10_000  # most parts of a range, and most ranges that are tried
NORMS = (1.0, 2.0)
SHARES = 1e-4, 4.0  # the least and the largest p


@dataclass(frozen=True)
class MSERange:
    """A search for the range with the least round-trip error among ranges larger and smaller than that of the data.

    For each array, channel or block the ranges from ``lo * p`` to ``hi * p`` are tried, ``p = 1 + j / grid`` for all
    integers j with ``-shrink <= j / grid <= grow``; then those between the best of them and its neighbours, which lie
    ``1 / (grid * finer)`` apart. If a zero point may be any number, both ends are moved separately, each by
    ``(1 - p) * (hi - lo)``, and all pairs of p are tried. Among ranges with the same error the first one is taken: the
    whole range, then from the largest to the smallest. So the result is never worse than minimum and maximum.

    Values of None are taken from a table, by code format and granularity: about 16 ranges over the interval in which
    the best ranges for the weights of a model lie.

    Parameters
    ----------
    grid : int, optional
        Number of parts into which the range is divided; from 1 to 10,000.
    shrink : float, optional
        Largest share by which a range is narrowed, from 0 to 1.
    grow : float, optional
        Largest share by which a range is widened, from 0 to 3.
    finer : int, optional
        Number of parts into which the distance between the best range and its neighbours is divided, from 1 (none is
        tried) to 100. It is 1 if ``grid`` or ``shares`` is given, if ``shrink`` and ``grow`` are 0, if both ends are
        moved, and for formats with scales of their own.
    signs : {1, 2}, optional
        2: a symmetric scale may be negative, so that the end of the range that is farther from 0 has the lowest code.
        Only of formats whose convention has such scales, where it is the default.
    norm : float
        Power of the errors that are summed: 2 for squares, 1 for magnitudes.
    shares : sequence of float, optional
        The p to try instead, after the whole range and in this order: at most 64, each from 0.0001 to 4; not with
        ``grid``, ``shrink``, ``grow`` or ``finer``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.append(np.linspace(-1, 1, 255, dtype=np.float32), np.float32(1.6))
    >>> fastq.choose_qparams(x, "int4", symmetric=True).scale
    array(0.22857143, dtype=float32)
    >>> fastq.choose_qparams(x, "int4", symmetric=True, range=fastq.MSERange(grid=100, shrink=0.5)).scale
    array(0.16, dtype=float32)
    """

    grid: int | None = None
    shrink: float | None = None
    grow: float | None = None
    finer: int | None = None
    signs: int | None = None
    norm: float = 2.0
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        numbers_by_name: dict[str, Any] = {}
        for name, least, most in (("grid", 1, MOST_RANGES), ("finer", 1, 100), ("signs", 1, 2)):
            if (number := getattr(self, name)) is not None:
                numbers_by_name[name] = number = as_int(number, name)
                if not least <= number <= most:
                    raise ValueError(f"{name} must be from {least} to {most}, not {number}")
        for name, largest in (("shrink", 1.0), ("grow", 3.0)):
            if (number := getattr(self, name)) is not None:
                numbers_by_name[name] = as_float(number, name, 0.0, largest)
        numbers_by_name["norm"] = as_float(self.norm, "norm", min(NORMS), max(NORMS))
        if numbers_by_name["norm"] not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(map(str, NORMS))}, not {numbers_by_name['norm']}")
        if self.shares is not None:
            if self._has_spacing:
                raise ValueError("shares can't be given with grid, shrink, grow or finer")
            shares = as_items(self.shares, "shares", "a sequence of numbers")
            numbers_by_name["shares"] = tuple(as_float(share, "shares", *SHARES) for share in shares)
        vars(self).update(numbers_by_name)

    def resolve(
        self, qtype: QType, convention: Convention, symmetric: bool, granularity: str, block_size: int, weighed: bool
    ) -> MSERange:
        """Return the search with values from the table instead of None; other arguments as in `default_of`."""
        apart = convention.zero_point != "integer" and not symmetric
        spaced = self._has_spacing
        has_shares = self.shares is not None
        has_sign = convention.symmetric_extreme != "magnitude" or qtype.format in convention.searched_signed
        may_be_negative = symmetric and has_sign
        defaults = self if has_shares else default_of(qtype, apart, granularity, block_size, weighed, spaced)
        defaults = replace(defaults, signs=1 + may_be_negative)
        # the table has `finer` for its own grid, and a search of the whole range alone has nothing to look around
        if self.grid is not None or (self.shrink, self.grow) == (0, 0):
            defaults = replace(defaults, finer=1)
        method = replace(
            self, **{f.name: getattr(defaults, f.name) for f in fields(self) if getattr(self, f.name) is None}
        )
        if method.signs == 2 and not may_be_negative:
            raise ValueError(
                f"signs must be 1: convention {convention.name!r} has no symmetric scales of {qtype} below 0"
            )
        if method.around.size > 1 and (apart or qtype.block_size):
            why = "a zero point that is any number" if apart else f"{qtype}, which has scales of its own"
            raise ValueError(f"finer must be 1 for {why}")
        if apart and method.ratios.size**2 > MOST_RANGES:
            raise ValueError(
                f"range gives {method.ratios.size} places for each end of a range, and at most {int(MOST_RANGES**0.5)} "
                "are tried"
            )
        return method

    @property
    def _has_spacing(self) -> bool:
        """Whether the caller gives anything that says how far apart ranges lie, and not their `shares`."""
        return any(value is not None for value in (self.grid, self.shrink, self.grow, self.finer))

    @property
    def ratios(self) -> NDArray[np.float64]:
        """The p of all ranges: first that of the whole range, then ``shares``, or from the largest to the smallest."""
        if self.shares is not None:
            return np.array([1.0, *self.shares])
        assert self.grid is not None
        assert self.shrink is not None
        assert self.grow is not None
        j = np.arange(-self.grid, 3 * self.grid + 1)
        j = j[(j / self.grid >= -self.shrink) & (j / self.grid <= self.grow) & (j != 0) & (j > -self.grid)]
        return (self.grid + np.append(0, j[::-1])) / self.grid

    @property
    def around(self) -> NDArray[np.float64]:
        """What is added to the best p: 0, then from the largest to the smallest."""
        if self.shares is not None:
            return np.zeros(1)
        assert self.grid is not None
        assert self.finer is not None
        j = np.arange(1 - self.finer, self.finer)
        return np.append(0, j[j != 0][::-1]) / (self.grid * self.finer)

    @property
    def ends_apart(self) -> NDArray[np.float64]:
        """The shares of the range by which its lower and its upper end are moved: one row for each end."""
        moves = 1 - self.ratios
        return np.stack([np.repeat(moves, moves.size), np.tile(moves, moves.size)])


class _Default(NamedTuple):
    """The ranges to try for a format, for parts of an array that are small enough."""

    formats: tuple[str | int, ...]  # names, or bits of integers and of codebook codes
    elements: int  # most elements of a block; `_CHANNELS` for channels, `_ANY` for everything else
    grid: int
    shrink: float
    grow: float
    finer: int = 1
    shares: tuple[float, ...] = ()  # instead of these, where none of them is given

    def method(self, spaced: bool) -> MSERange:
        """Return the search for ranges, for such as lie equally far apart with `spaced`."""
        if self.shares and not spaced:
            return MSERange(shares=self.shares)
        return MSERange(self.grid, self.shrink, self.grow, self.finer)


_SMALL = 64
_CHANNELS = -1
_ANY = 0
_MANY_BITS = (*range(7, 17), "dynamic8")

_TWICE = 16, 0.79, 0.2, 8  # with few codes or outliers, a small part of a range may be the best: 16 over all, 15 near

# Rows of a few thousand elements lose by clamping, but may happen to fit a range that is a little smaller or larger;
# their ends rule out those that are much smaller, which are the best where a channel has 10,000 elements or more.
_NEAR_FIRST = (1.02, 1.013, 1.007, 0.993, 0.985, 0.97, 0.95, *(round(0.93**k, 3) for k in range(1, 17)))

# The signal to noise ratio of the 37 matrices of a model, all-MiniLM-L6-v2, in dB: of minimum and maximum; of these
# ranges; of 100 over all that are 0.31 to 1.9 of the whole one. Blocks are of 32 and of 128, channels are rows. Of
# integers, symmetric and not; of scales in float32 unless the format has its own.
_TOGETHER = (
    _Default(("mxint8",), _ANY, 2, 0.5, 0.0),  # 41.59, 41.66: the exponent below
    _Default(("mxfp4",), _ANY, 2, 0.5, 1.0),  # 18.60, 18.91: those below and above; below it gains by importance alone
    # the exponent above: 31.41, 31.54; 30.85, 30.93; the last two 25.30, 25.56
    _Default(("mxfp8_e4m3", "mxfp6_e2m3", "mxfp8_e5m2", "mxfp6_e3m2"), _ANY, 1, 0.0, 1.0),
    _Default(("nvfp4",), _ANY, 20, 0.15, 0.6),  # 20.50, 21.80, 21.80
    _Default(("float4_e2m1fn",), 1024, 20, 0.15, 0.6),  # 19.92, 20.93, 21.00
    _Default(("float4_e2m1fn",), _ANY, *_TWICE),  # 18.34, 18.94, 18.94
    # numbers lie alike an octave further up: blocks 32.64, 34.36, 34.95 (e4m3), rows 31.69, 32.25, 32.40
    _Default(tuple(name for name in FLOAT_FORMATS if name.startswith(("float8", "float6"))), 1024, 16, 0.07, 0.9),
    _Default(("float6_e2m3fn",), _ANY, *_TWICE),  # few exponents: 30.29, 30.86; of the range and more 30.75
    _Default(tuple(name for name in FLOAT_FORMATS if name.startswith("float8")), _ANY, 16, 0.07, 0.9),
    _Default(("float6_e3m2fn",), _CHANNELS, 16, 0.07, 0.9),  # 25.67, 26.24
    _Default(("float6_e3m2fn",), _ANY, *_TWICE),  # a matrix 24.58, 24.90; of the range and more 24.84
    # bits 2: 3.58, 7.27, 7.27; 7.66, 9.36, 9.36; blocks of 128 2.19, 6.98, 6.96; 5.62, 8.42, 8.42
    # bits 3: 12.52, 13.81, 13.81; 15.00, 15.64, 15.64; blocks of 128 10.58, 12.95, 12.95; 12.82, 14.11, 14.11
    _Default((1, 2, 3), 1024, *_TWICE),
    _Default((4,), _SMALL, 50, 0.14, 0.16),  # 19.85, 20.40, 20.41; 21.61, 22.03, 22.05; codes -8..7 20.93, 21.40, 21.41
    _Default((4,), 1024, 50, 0.26, 0.04),  # 17.89, 18.79, 18.79; 19.42, 19.91, 19.91; -8..7 19.01, 19.60, 19.61
    # rows 1.39, 6.88, 6.87; 8.93, 12.70, 12.70; 16.07, 18.07, 18.07; 17.48, 18.72, 18.71; a matrix, 4 bits, 5.59, 10.11
    _Default((1, 2, 3, 4), _ANY, *_TWICE),
    _Default((5,), _SMALL, 60, 0.05, 0.2),  # 26.47, 26.94, 26.94
    _Default((6,), _SMALL, 60, 0.05, 0.2),  # 32.76, 33.31, 33.31
    _Default((5, 6), 1024, 70, 0.16, 0.07),  # 24.48, 24.86, 24.86; 30.75, 30.99, 30.98
    _Default((5, 6), _CHANNELS, 24, 0.5, 0.125, 8),  # 22.59, 23.46, 23.45; 28.64, 28.97, 28.96
    _Default((5, 6), _ANY, *_TWICE),  # a matrix 9.25, 14.53; 14.27, 19.51
    _Default(("dynamic8",), 1024, 100, 0.01, 0.02),  # next to nothing is clamped: blocks of 256 38.92, 39.17, 39.24
    _Default(_MANY_BITS, 1024, 64, 0.05, 0.19),  # of 8 bits 44.96, 45.61, 45.62; 46.19, 46.93, 46.94
    # of 8 bits 40.05, 40.14, 40.10; 41.63, 41.73, 41.69
    _Default(_MANY_BITS, _CHANNELS, 64, 0.79, 0.15, shares=_NEAR_FIRST),
    _Default(_MANY_BITS, _ANY, *_TWICE),  # a matrix 25.31, 25.31
)
# Where a few elements of a block count most, what fits these is best, however much of the range that is. The outputs of
# `python -m bench signal`, of activations with outliers: codes -8..7 in blocks of 32 by the rows above 25.10, 28.04; of
# 128 22.96, 24.63; with a zero point 26.60, 28.38.
_WEIGHED = (_Default((4, 5, 6), 1024, *_TWICE),)
# Both ends, where zero points are any numbers, of ranges that need not have 0 in them; the last column is of both ends
# moved alike.
_APART = (
    _Default((1, 2), _ANY, 16, 0.25, 0.0),  # 7.86, 10.24, 9.80
    _Default((3,), _ANY, 24, 0.125, 0.05),  # 15.26, 16.41, 15.89
    _Default((4,), _SMALL, 40, 0.075, 0.05),  # 21.88, 22.76, 22.17
    _Default((4,), 1024, 40, 0.125, 0.0),  # 19.45, 20.23, 19.95
    _Default((4,), _ANY, 32, 0.19, 0.0),  # 17.03, 18.75, 18.54
    _Default((5, 6, *_MANY_BITS), _ANY, 125, 0.016, 0.008),  # of 8 bits in rows 41.64, 41.74, 41.69
)


def default_of(
    qtype: QType, apart: bool, granularity: str, block_size: int, weighed: bool, spaced: bool = False
) -> MSERange:
    """Return the default search of a format: the first row of a table for this format and this size of parts.

    `apart` says that both ends of a range move, `granularity` is "array", "channels" or "blocks", `weighed` that errors
    have weights, and `spaced` that ranges have to lie equally far apart.
    """
    format_or_bits = qtype.name if qtype.name in _NAMED else qtype.bits
    rows: tuple[_Default, ...] = _APART if apart else (*(_WEIGHED if weighed else ()), *_TOGETHER)
    of_format = (row for row in rows if format_or_bits in row.formats)
    sizes = _sizes_for(granularity)
    return next(row.method(spaced) for row in of_format if row.elements in sizes or 0 < block_size <= row.elements)


def _sizes_for(granularity: str) -> tuple[int, ...]:
    """Return what `elements` of a row may be for parts that are no blocks, or for blocks of any size."""
    return (_CHANNELS, _ANY) if granularity == "channels" else (_ANY,)


_NAMED = frozenset(name for row in _TOGETHER for name in row.formats)


METHODS: dict[str, MSERange | None] = {
    "minmax": None,
    "mse": MSERange(),
    "mse-llm-compressor": MSERange(grid=100, shrink=0.19, grow=0.0, signs=1),
}
