"""The sample: cells of the grid in an order that follows from a seed alone.

First those of the gate, then as few as a greedy search finds to have every pair of values of two axes that any call
can have, then random ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain, combinations
from random import Random

from .grid import AXES, GATE, Cell, allowed

Pair = tuple[tuple[str, str], tuple[str, str]]  # of (axis, value)
LONGEST = 2500  # twice what an hour is enough for


def pairs_of(cell: Cell) -> set[Pair]:
    """Return the pairs of values that a cell has."""
    return set(combinations(cell._asdict().items(), 2))


@cache
def possible() -> frozenset[Pair]:
    """Return every pair of values of two axes that any call can have."""
    return frozenset().union(*map(pairs_of, covering(Random(0), [])))


def sample(seed: int) -> Iterator[Cell]:
    """Yield the cells in order, each once, `LONGEST` of them."""
    random, seen = Random(seed), set()
    for cell in chain(GATE, covering(random, list(GATE)), fill(random)):
        if cell not in seen:
            seen.add(cell)
            yield cell
        if len(seen) == LONGEST:
            return


def chosen(seed: int, patterns: Iterable[str]) -> Iterator[Cell]:
    """Return the cells of the sample whose work or name fits one of the shell patterns; all without patterns."""
    patterns = list(patterns) or ["*"]
    return (cell for cell in sample(seed) if any(fnmatchcase(n, p) for p in patterns for n in (cell.work, cell.name)))


def covering(random: Random, before: list[Cell]) -> Iterator[Cell]:
    """Yield cells that together with those before have every pair that there is."""
    wanted: list[Pair] = [((a, x), (b, y)) for a, b in combinations(AXES, 2) for x in AXES[a] for y in AXES[b]]
    random.shuffle(wanted)
    missing = set(wanted).difference(*map(pairs_of, before))
    for pair in wanted:
        cell = completed(dict(pair), random, missing) if pair in missing else None
        if cell is None:
            missing.discard(pair)  # no call has these two, or there was one
        else:
            missing -= pairs_of(cell)
            yield cell


def fill(random: Random) -> Iterator[Cell]:
    """Yield random cells, without end."""
    while True:
        cell = completed({}, random, set())
        assert cell is not None
        yield cell


def completed(known: dict[str, str], random: Random, missing: set[Pair]) -> Cell | None:
    """Return a cell with the values that are known and many missing pairs, None where no call has these values."""
    if not all(allowed(known, axis) for axis in known):
        return None
    order = [axis for axis in AXES if axis not in known]  # the work first, which most rules are about
    values = _search(known, order, random, missing)
    return None if values is None else Cell(**values)


def _search(known: dict[str, str], order: list[str], random: Random, missing: set[Pair]) -> dict[str, str] | None:
    """Choose values axis by axis, those with the most missing pairs first, and go back where none is left."""
    if not order:
        return known
    axis, rest = order[0], order[1:]
    candidates = [v for v in AXES[axis] if allowed(known | {axis: v}, axis)]
    random.shuffle(candidates)
    if missing:
        candidates.sort(key=lambda value: -_gain(known, axis, value, missing))
    for value in candidates:
        found = _search(known | {axis: value}, rest, random, missing)
        if found is not None:
            return found
    return None


_PLACE = {axis: k for k, axis in enumerate(AXES)}


def _gain(known: dict[str, str], axis: str, value: str, missing: set[Pair]) -> int:
    """Return how many missing pairs a value makes with those that are known."""
    new = (axis, value)
    both = (((old, new) if _PLACE[old[0]] < _PLACE[axis] else (new, old)) for old in known.items())
    return sum(pair in missing for pair in both)
