"""What is wrong in a scan: cliffs, outliers in a family, and what is slower than a plain way to do the same."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from ..limits import CALL, ROOFLINE_SHARE
from ..peers.roofline import PARALLEL_FROM
from ..results import geometric_mean
from .grid import Cell
from .layouts import LAYOUTS
from .store import Scan, Timings

CLIFF = OUTLIER = 4.0  # times as slow
FAMILY_AT_LEAST = 5  # cells, of which a median says something
JUDGED_FROM = 12  # log2; below it is the cost of a call
LOOP_TARGET = 1.5  # times as fast as a plain parallel loop, wherever memory is not the limit
MEMORY_LIMIT = 2.0  # times as long as a copy of as many bytes: up to there memory is
C_ORDER_SHARE = 0.5  # of the speed in C order, for the same elements in another order
NUMPY, BEST = "NumPy", "the best peer"
RIVALS = {
    NUMPY: "numpy",
    "a plain parallel loop": "loop",
    "numpy.copyto": "copyto",
    "torch.compile": "torch",
    "jax.jit": "jax",
    "ONNX Runtime": "onnxruntime",
    "ggml": "ggml",
    BEST: "best_peer",  # the fastest of all of these but the copy
}
EACH_TARGET, MEAN_TARGET = 1.0, 6.0  # times as fast as the best peer: every cell, and the geometric mean of all


class Finding(NamedTuple):
    """A cell that is slow at a size: by which criterion, and how many times as slow as it should be."""

    kind: str
    cell: Cell
    log2: int
    times: float
    timings: Timings

    def limit(self, threads: int) -> str:
        """Return what keeps it from being faster, as far as the measurement says it; `threads` are those of the scan.

        Memory, where the bytes move nearly as fast as in the copy; a call, where the array takes less than it; the
        order of memory, where the operand has its axes in another one, and NumPy takes as long to copy it into C order,
        if it did so with as many threads; else instructions.
        """
        ours, copyto = self.timings.ours, self.timings.copyto
        alone = self.cell.threads == "one" or self.cell.bytes_moved(self.log2) < PARALLEL_FROM
        if ours * ROOFLINE_SHARE <= self.timings.copy:
            return "memory"
        if ours * self.cell.elements(self.log2) < CALL:
            return "the cost of a call"
        if LAYOUTS[self.cell.layout].dense and copyto is not None and ours * (1 if alone else threads) <= copyto:
            return "the order of memory"
        return "instructions"


def cliffs_of(cell: Cell, by_size: dict[int, Timings]) -> Iterator[Finding]:
    """Yield the sizes at which an element takes four times as long as one size down, or as its bytes in a plain copy.

    The copy is what the roofline explains: a cell may slow down as far as memory does.
    """
    for (_, before), (log2, now) in pairwise(sorted(by_size.items())):
        times = now.ours / max(before.ours, now.copy)
        if times > CLIFF:
            yield Finding("cliff", cell, log2, times, now)


def cliffs(scan: Scan) -> list[Finding]:
    """Return the cliffs of all cells."""
    return [found for cell, by_size in scan.timings.items() for found in cliffs_of(cell, by_size)]


def outliers(scan: Scan) -> list[Finding]:
    """Return the cells that take four times as long for their bytes as the median of their family, size and threads."""
    families: dict[tuple[str, str, int], list[tuple[Cell, Timings, float]]] = {}
    for cell, log2, timings in _judged(scan):
        bytes_of = cell.bytes_moved(log2) / cell.elements(log2)
        families.setdefault((cell.work, cell.threads, log2), []).append((cell, timings, timings.ours / bytes_of))
    found = []
    for (*_, log2), rows in families.items():
        usual = statistics.median(seconds for *_, seconds in rows)
        if len(rows) >= FAMILY_AT_LEAST:
            far = [(cell, timings, seconds / usual) for cell, timings, seconds in rows if seconds > OUTLIER * usual]
            found += [Finding("outlier", cell, log2, times, timings) for cell, timings, times in far]
    return found


def _is_behind(timings: Timings, column: str, wanted: float = 1.0) -> bool:
    """Whether a call is too slow compared with a column; factors above 1 count only if memory is not the limit."""
    theirs, is_limit = getattr(timings, column), timings.ours <= MEMORY_LIMIT * timings.copy
    return theirs is not None and theirs < wanted * timings.ours and not (wanted > 1 and is_limit)


def behind(scan: Scan, what: str, column: str, wanted: float = 1.0) -> list[Finding]:
    """Return all rows that are too slow compared with a column, and the factor by which they are too slow."""
    return [
        Finding(what, cell, log2, wanted * timings.ours / theirs, timings)
        for cell, log2, timings, theirs in _beside(scan, column)
        if _is_behind(timings, column, wanted)
    ]


def slower(scan: Scan, rival: str) -> list[Finding]:
    """Return the cells that take longer than a plain way to do the same, by its name in `RIVALS`."""
    return behind(scan, f"slower than {rival}", RIVALS[rival])


# by the same call on the same elements in C order, and by a plain loop
behind_c_order = partial(behind, what="behind C order", column="c_order", wanted=C_ORDER_SHARE)
behind_loop = partial(behind, what="behind a loop", column="loop", wanted=LOOP_TARGET)


def _beside(scan: Scan, column: str) -> Iterator[tuple[Cell, int, Timings, float]]:
    """Yield all rows that are compared with a column, and its seconds; another order of axes is not, with `copyto`."""
    for cell, log2, timings in _judged(scan):
        theirs = getattr(timings, column)
        if theirs is not None and _is_rival(cell, column):
            yield cell, log2, timings, theirs


def _is_rival(cell: Cell, column: str) -> bool:
    return column != "copyto" or not LAYOUTS[cell.layout].dense


def mean_over(scan: Scan, rival: str) -> float | None:
    """Return how many times as fast as a rival all sizes of cells are, the geometric mean; None if it runs nowhere."""
    return geometric_mean([theirs / timings.ours for _, _, timings, theirs in _beside(scan, RIVALS[rival])])


def means_by_size(scan: Scan, rival: str) -> dict[int, tuple[float, float]]:
    """Return by size the geometric means of how many times as fast as a rival we are, and a copy of the bytes is."""
    found: dict[int, list[tuple[Timings, float]]] = {}
    for _, log2, timings, theirs in _beside(scan, RIVALS[rival]):
        found.setdefault(log2, []).append((timings, theirs))
    return {
        log2: (
            statistics.geometric_mean(theirs / each.ours for each, theirs in pairs),
            statistics.geometric_mean(theirs / each.copy for each, theirs in pairs),
        )
        for log2, pairs in sorted(found.items())
    }


def verdicts(scan: Scan) -> list[tuple[str, float, float]]:
    """Return the targets over the best peer: the name of each, the ratio that is wanted and the one reached."""
    mean = mean_over(scan, BEST)
    if mean is None:
        return []
    of, below = CRITERIA[f"slower than {BEST}"].cells(scan), len({each.cell for each in slower(scan, BEST)})
    worst = min(theirs / timings.ours for _, _, timings, theirs in _beside(scan, RIVALS[BEST]))
    every = f"every cell and size; {below} of {of} cells are below"
    return [(every, EACH_TARGET, worst), (f"geometric mean of {of} cells", MEAN_TARGET, mean)]


def _judged(scan: Scan) -> Iterator[tuple[Cell, int, Timings]]:
    for cell, by_size in scan.timings.items():
        yield from ((cell, log2, timings) for log2, timings in by_size.items() if log2 >= JUDGED_FROM)


class Criterion(NamedTuple):
    """What finds all that is wrong in one way, and the column of timings that it compares with."""

    find: Callable[[Scan], list[Finding]]
    column: str = "copy"

    def cells(self, scan: Scan) -> int:
        """Return how many cells have this column; none in a scan that was stored before there was one."""
        return len({cell for cell, *_ in _beside(scan, self.column)})


CRITERIA = {
    "cliffs": Criterion(cliffs),
    "outliers": Criterion(outliers),
    **{f"slower than {rival}": Criterion(partial(slower, rival=rival), column) for rival, column in RIVALS.items()},
    f"less than {LOOP_TARGET} x a plain parallel loop": Criterion(behind_loop, "loop"),
    f"less than {C_ORDER_SHARE} x C order": Criterion(behind_c_order, "c_order"),
}


def suspicious(cell: Cell, by_size: dict[int, Timings]) -> set[int]:
    """Return the sizes to measure again before they are believed.

    They are cliffs and the size before each, and all that is slower than a rival, a loop or C order. Outliers are not
    among them, since a family is known only when the scan has ended.
    """
    sizes = sorted(by_size)
    high = {found.log2 for found in cliffs_of(cell, by_size)}
    return high | {a for a, b in pairwise(sizes) if b in high} | {k for k in sizes if _loses(cell, by_size[k])}


def _loses(cell: Cell, timings: Timings) -> bool:
    columns = [(name, 1.0) for name in RIVALS.values() if _is_rival(cell, name)]
    return any(_is_behind(timings, *each) for each in (*columns, ("c_order", C_ORDER_SHARE), ("loop", LOOP_TARGET)))


def fallen(before: Scan, now: Scan, tolerance: float) -> list[Finding]:
    """Return the cells whose share of the copy's speed fell by more than the tolerance against an earlier scan."""
    found = []
    for cell, log2, timings in _judged(now):
        earlier = before.timings.get(cell, {}).get(log2)
        if earlier is not None:
            times = (timings.ours / timings.copy) / (earlier.ours / earlier.copy)
            if times > 1 / (1 - tolerance):
                found.append(Finding("fallen", cell, log2, times, timings))
    return found
