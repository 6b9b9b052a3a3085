"""Tables of a scan, the same for a terminal and for a page: rows of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median

from . import judge
from .grid import Cell
from .judge import CRITERIA, RIVALS, Finding, mean_over
from .sample import pairs_of, possible
from .store import Scan, Timings

Row = list[str]
WORST = 20  # of a kind, that tables show
NOT_MEASURED = "not measured"


def speed(seconds: float) -> str:
    """Return the elements a nanosecond, of the seconds of one."""
    return f"{1e-9 / seconds:.3g}"


def summary(scan: Scan) -> tuple[Row, list[Row]]:
    """Return how many cells and sizes each criterion found, of how many, and all compared with each rival."""
    sizes = sum(map(len, scan.timings.values()))
    cells, failed = (str(len(each)) for each in (scan.timings, scan.failed))
    rows = [["cells", cells, cells, str(sizes), "-", "-"], ["failed", failed, cells, "-", "-", "-"]]
    means = {f"slower than {rival}": mean_over(scan, rival) for rival in RIVALS}
    for name, criterion in CRITERIA.items():
        of = criterion.cells(scan)
        if not of:
            rows.append([name, NOT_MEASURED, "-", "-", "-", "-"])
            continue
        found = criterion.find(scan)
        worst = max((each.times for each in found), default=None)
        numbers = ("-" if number is None else f"{number:.1f}" for number in (worst, means.get(name)))
        rows.append([name, str(len({each.cell for each in found})), str(of), str(len(found)), *numbers])
    return ["what", "cells", "of", "sizes of cells", "worst, times as slow", "all, times as fast"], rows


def verdicts(scan: Scan) -> tuple[Row, list[Row]]:
    """Return the targets over the best peer."""
    rows = [
        [what, f">= {wanted:g} x", f"{reached:.2f} x", "yes" if reached >= wanted else "**no**"]
        for what, wanted, reached in judge.verdicts(scan)
    ]
    return ["compared with the best peer", "wanted", "reached", "met"], rows


def means(scan: Scan) -> tuple[Row, list[Row]]:
    """Return by size how many times as fast as NumPy and the best peer all cells are, and a copy would be."""
    rivals = {rival: judge.means_by_size(scan, rival) for rival in (judge.NUMPY, judge.BEST)}
    sizes = sorted(set().union(*rivals.values()))
    rows = [
        [f"{rival}{of}", *(f"{by_size[k][which]:.2g}" if k in by_size else "-" for k in sizes)]
        for rival, by_size in rivals.items()
        if by_size
        for which, of in enumerate(("", ": a copy of the same bytes"))
    ]
    return ["times as fast as", *(f"2^{log2}" for log2 in sizes)], rows


_TITLES = {"out": "out=", "nan": "nan="}
FINDING = [*(_TITLES.get(axis, axis) for axis in Cell._fields[:-1]), "elements", "Gelem/s", "times as slow", "limit"]


def findings(found: Iterable[Finding], threads: int) -> list[Row]:
    """Return the worst of some findings of a scan with a number of threads."""
    worst = sorted(found, key=lambda each: -each.times)[:WORST]
    return [
        [*each.cell[:-1], f"2^{each.log2}", speed(each.timings.ours), f"{each.times:.1f}", each.limit(threads)]
        for each in worst
    ]


def limits(scan: Scan) -> tuple[Row, list[Row]]:
    """Return what keeps the sizes of cells that fall short of a target from being faster: how many by each limit."""
    threads = scan.settings["threads"]
    counted = {
        name: Counter(each.limit(threads) for each in criterion.find(scan)) for name, criterion in CRITERIA.items()
    }
    kinds = sorted(set().union(*counted.values()))
    rows = [[name, *(str(found[kind]) for kind in kinds)] for name, found in counted.items() if found]
    return ["sizes of cells, by limit", *kinds], rows


def failures(scan: Scan) -> list[Row]:
    """Return the cells that were wrong or could not be measured."""
    return [[cell.name, why] for cell, why in scan.failed.items()]


def by(scan: Scan, axis: str, value: Callable[[Timings], float]) -> dict[str, dict[int, list[float]]]:
    """Return a number of all timings, by the value of an axis and by size."""
    found: dict[str, dict[int, list[float]]] = {}
    for cell, by_size in scan.timings.items():
        for log2, timings in by_size.items():
            found.setdefault(getattr(cell, axis), {}).setdefault(log2, []).append(value(timings))
    return found


def families(scan: Scan) -> tuple[Row, list[Row]]:
    """Return for each work and size the median of all cells and the slowest, in elements a nanosecond."""
    found = by(scan, "work", lambda timings: timings.ours)
    sizes = sorted({log2 for each in found.values() for log2 in each})
    rows = [
        [work, *(f"{speed(median(each[k]))} / {speed(max(each[k]))}" if k in each else "-" for k in sizes)]
        for work, each in sorted(found.items())
    ]
    return ["median / slowest", *(f"2^{log2}" for log2 in sizes)], rows


def covered(cells: Iterable[Cell]) -> tuple[int, int]:
    """Return how many pairs of values of two axes some cells have, and how many there are."""
    return len(possible() & set().union(*map(pairs_of, cells))), len(possible())
