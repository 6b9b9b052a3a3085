"""How a range is taken from an array: all of it, or what of it has the least error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastq.system.arguments import as_float, as_int

MOST_RANGES = 10_000
NORMS = (1.0, 2.0)


@dataclass(frozen=True)
class MSERange:
    """The range with the least error of the round trip: all of what was seen, or a part of it.

    For each array, channel or block the ranges from ``lo * p`` to ``hi * p`` are tried, ``p = 1 - i / grid`` for i = 0,
    1, 2, .. as long as ``i / grid < shrink``. Of ranges with the same error the largest is taken, so that none is worse
    than that of minimum and maximum. The steps are those of llm-compressor's mse observer, without its `patience`.

    Parameters
    ----------
    grid : int
        Into how many parts the range is divided; from 1 to 10,000.
    shrink : float
        By which share a range is made smaller at most, from 0 to 1.
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
    >>> fastq.choose_qparams(x, "int4", symmetric=True, range=fastq.MSERange(shrink=0.5)).scale
    array(0.16, dtype=float32)
    """

    grid: int = 100
    shrink: float = 0.8
    norm: float = 2.0

    def __post_init__(self) -> None:
        grid = as_int(self.grid, "grid")
        if not 1 <= grid <= MOST_RANGES:
            raise ValueError(f"grid must be from 1 to {MOST_RANGES}, not {grid}")
        norm = as_float(self.norm, "norm", min(NORMS), max(NORMS))
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(map(str, NORMS))}, not {norm}")
        vars(self).update(grid=grid, shrink=as_float(self.shrink, "shrink", 0.0, 1.0), norm=norm)

    @property
    def ratios(self) -> NDArray[np.float64]:
        """The p of all ranges, the largest first."""
        i = np.arange(self.grid)
        return (self.grid - i[: max(1, np.count_nonzero(i / self.grid < self.shrink))]) / self.grid


METHODS: dict[str, MSERange | None] = {"minmax": None, "mse": MSERange()}
