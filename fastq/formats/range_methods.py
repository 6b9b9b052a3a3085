"""How a range is taken from an array: all of it, or of several larger and smaller ones that with the least error."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions import Convention
from fastq.formats.qtypes import QType
from fastq.system.arguments import as_float, as_int

MOST_RANGES = 10_000  # into which a range is divided, and that are tried
NORMS = (1.0, 2.0)


@dataclass(frozen=True)
class MSERange:
    """The range with the least error of the round trip, of several that are larger or smaller than what was seen.

    For each array, channel or block the ranges from ``lo * p`` to ``hi * p`` are tried, ``p = 1 + j / grid`` for all
    whole numbers j with ``-shrink <= j / grid <= grow``. Where a zero point may be any number, both ends are moved
    apart from each other, each by ``(1 - p) * (hi - lo)``, and all pairs of p are tried. Of ranges with the same error
    the first one is taken: the whole range, then from the largest to the smallest. So none is worse than that of
    minimum and maximum.

    What is None is taken from a table, by the code format and by what a scale belongs to: 16 ranges or so over the
    interval in which those of the weights of a model were best.

    Parameters
    ----------
    grid : int, optional
        Into how many parts the range is divided; from 1 to 10,000.
    shrink : float, optional
        By which share a range is made smaller at most, from 0 to 1.
    grow : float, optional
        By which share a range is made larger at most, from 0 to 3.
    signs : {1, 2}, optional
        Whether the other sign of a scale is tried too; only of conventions whose symmetric scales may be negative.
    norm : float
        Which power of the errors is summed: 2 for squares, 1 for magnitudes.

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
    signs: int | None = None
    norm: float = 2.0

    def __post_init__(self) -> None:
        given: dict[str, Any] = {}
        for name, least, most in (("grid", 1, MOST_RANGES), ("signs", 1, 2)):
            if (number := getattr(self, name)) is not None:
                given[name] = number = as_int(number, name)
                if not least <= number <= most:
                    raise ValueError(f"{name} must be from {least} to {most}, not {number}")
        for name, largest in (("shrink", 1.0), ("grow", 3.0)):
            if (number := getattr(self, name)) is not None:
                given[name] = as_float(number, name, 0.0, largest)
        given["norm"] = as_float(self.norm, "norm", min(NORMS), max(NORMS))
        if given["norm"] not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(map(str, NORMS))}, not {given['norm']}")
        vars(self).update(given)

    def resolved(self, qtype: QType, row: Convention, symmetric: bool, block_size: int, kind: str) -> MSERange:
        """Return the same with what is None from the table, for a format under a convention.

        `kind` is what a parameter belongs to: an "array", "channels" or "blocks" of a size.
        """
        apart = row.zero_point != "integer" and not symmetric
        known = default_of(qtype, apart, block_size, kind)
        found = replace(self, **{f.name: getattr(known, f.name) for f in fields(self) if getattr(self, f.name) is None})
        if found.signs == 2 and not (symmetric and row.symmetric_extreme == "signed"):
            raise ValueError(f"signs must be 1: convention {row.name!r} has no symmetric scales below 0")
        if apart and found.ratios.size**2 > MOST_RANGES:
            raise ValueError(
                f"grid={found.grid} gives {found.ratios.size} places for each end of a range, and at most "
                f"{int(MOST_RANGES**0.5)} are tried"
            )
        return found

    @property
    def ratios(self) -> NDArray[np.float64]:
        """The p of all ranges, first that of the whole one, then from the largest to the smallest."""
        assert self.grid is not None
        assert self.shrink is not None
        assert self.grow is not None
        j = np.arange(-self.grid, 3 * self.grid + 1)
        j = j[(j / self.grid >= -self.shrink) & (j / self.grid <= self.grow) & (j != 0) & (j > -self.grid)]
        p = (self.grid + np.append(0, j[::-1])) / self.grid
        return p if self.signs == 1 else np.append(p, -p)

    @property
    def ends_apart(self) -> NDArray[np.float64]:
        """By which shares of the range its lower end, and its upper one, is moved: a row each, in order."""
        moves = 1 - self.ratios
        return np.stack([np.repeat(moves, moves.size), np.tile(moves, moves.size)])


def default_of(qtype: QType, apart: bool, block_size: int, kind: str) -> MSERange:
    """Return the row of the table for a format, and for what a parameter belongs to."""
    return MSERange(100, 0.79, 0.0, 1)


METHODS: dict[str, MSERange | None] = {
    "minmax": None,
    "mse": MSERange(),
    "mse-llm-compressor": MSERange(grid=100, shrink=0.19, grow=0.0, signs=1),
}
