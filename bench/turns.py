"""Two fastqs in turns: that of this checkout and an installed one, each in a process of its own."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from .cases import Case
from .peers import OURS
from .worker import Absent, Worker

TURN = 0.05  # seconds


class Turns(NamedTuple):
    """Seconds of a call in each round, of this checkout and of the other fastq; or why there are no times."""

    case: str
    here: list[float]
    there: list[float]
    absent: str = ""

    @property
    def ratio(self) -> float:
        """How many times as fast the other one is, by medians of all rounds."""
        return statistics.median(self.here) / statistics.median(self.there)


def measured(python: str, cases: Iterable[Case], threads: int, rounds: int) -> Iterator[Turns]:
    """Measure cases in turns, the two taking the first turn of a round by turns."""
    with closing(Worker(OURS, threads)) as here, closing(Worker(OURS, threads, installed=python)) as there:
        for case in cases:
            try:
                yield Turns(case.name, *_in_turns((here, there), case, rounds))
            except Absent as reason:
                yield Turns(case.name, [], [], str(reason))


def _in_turns(pair: tuple[Worker, Worker], case: Case, rounds: int) -> tuple[list[float], list[float]]:
    found: tuple[list[float], list[float]] = [], []
    for worker in pair:
        worker.ask(do="prepare", case=case.name, variant="")
    for number in range(rounds):
        for k in (0, 1) if number % 2 else (1, 0):
            found[k].append(statistics.median(pair[k].ask(do="time", variant="", seconds=TURN)))
    for worker in pair:
        worker.ask(do="release")
    return found


def mean_ratio(found: Iterable[Turns]) -> float:
    """Return the geometric mean of the ratios."""
    return statistics.geometric_mean(each.ratio for each in found)
