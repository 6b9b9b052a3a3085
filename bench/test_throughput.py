"""`pytest bench`: every case and contender as a benchmark of pytest-benchmark, a group for each case.

The calls are made and timed in the contender's own process; what the fixture sees is a clock that goes on by those
times. So --benchmark-json, --benchmark-compare, --benchmark-group-by and the table mean what they always mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .cases import Case, cases, chosen
from .command import DEFAULT_SIZES
from .machine import cores
from .peers import PEERS, Contender, contenders
from .worker import Absent, Workers

SECONDS = 0.1
ROWS = [(case, row) for case in cases(chosen([]), DEFAULT_SIZES) for row in contenders(case, tuple(PEERS))]


class Clock:
    """A timer whose time is that of another process: `play` makes it go on by the next of the samples."""

    __name__ = "the contender's own"

    def __init__(self) -> None:
        self.now = 0.0
        self.samples: Iterator[float] = iter(())

    def __call__(self) -> float:
        """Tell the time."""
        return self.now

    def play(self) -> None:
        """Be called as the function that is timed."""
        self.now += next(self.samples)


CLOCK = Clock()


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    with Workers(cores()) as started:
        yield started


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize(("case", "row"), [pytest.param(c, r, id=f"{c.name}-{r.name}") for c, r in ROWS])
def test_throughput(benchmark: Any, workers: Workers, case: Case, row: Contender) -> None:
    try:
        workers[row.peer].ask(do="prepare", case=case.name, variant=row.variant)
        samples = workers[row.peer].ask(do="time", variant=row.variant, seconds=SECONDS)
        workers[row.peer].ask(do="release")
    except Absent as reason:
        pytest.skip(f"{row.name}: {reason}")
    CLOCK.samples = iter(samples)
    benchmark.group = case.name
    benchmark.extra_info |= {"contender": row.name, "elements": case.elements, "bytes": case.bytes_moved}
    benchmark.pedantic(CLOCK.play, rounds=len(samples), iterations=1)
