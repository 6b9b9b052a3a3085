"""The regression gate: the same cases again, and which ratios fell by more than so much against the stored ones.

A ratio is against the best peer of the same run, so another machine or a busy one moves both sides. The works of
`GATE` are compared with the roofline alone: at some sizes they were slow once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from .cases import GATE
from .peers import OURS
from .results import Measurement, Results, Rival, Timing, peer_of

TOLERANCE = 0.15
SIZES = (10, 12, 18, 20, 22, 25)  # of the works of `GATE`, as log2
SHARES_FROM = 22  # log2 of elements: beyond the second cache
CLIFF = 4.0  # times as slow
LOST = 0.5  # of the least share of the roofline's speed: less would be noise
BUDGET = 600.0  # seconds for all works of `GATE`, most of them to compile


class Fall(NamedTuple):
    """A ratio that is lower than it was."""

    case: str
    against: str
    before: float
    now: float

    def __str__(self) -> str:
        lost = 100 * (1 - self.now / self.before)
        return f"{self.case}: {self.now:.2f} x {self.against}, was {self.before:.2f} x ({lost:.0f} % less)"


def fallen(before: Results, now: Results, tolerance: float = TOLERANCE) -> Iterator[Fall]:
    """The ratios that fell by more than the tolerance: against each contender that both runs have.

    The fall that counts is the least one among the contenders of a case: where only one of them got faster, it did.
    """
    for measurement in now.measurements:
        earlier = before.get(measurement.case)
        falls = list(_falls(earlier, measurement)) if earlier else []
        if falls:
            least = max(falls, key=lambda fall: fall.now / fall.before)
            if least.now < (1 - tolerance) * least.before:
                yield least


def _falls(before: Measurement, now: Measurement) -> Iterator[Fall]:
    if before.ours() and now.ours():
        for name in now.peers():
            if name in before.timings:
                yield Fall(now.case, name, before.over(name, OURS), now.over(name, OURS))


def compared(before: Results, now: Results) -> list[str]:
    """Cases that both runs have."""
    return [m.case for m in now.measurements if m.ours() and (b := before.get(m.case)) and b.ours()]


def slow(now: Results) -> Iterator[str]:
    """Say what is wrong with works of `GATE`: cliffs, shares of the roofline's speed that were lost, no result."""
    for work, share in GATE.items():
        measured = [m for m in now.measurements if m.of.work == work]
        for m in measured:
            for name, why in m.absent.items():
                if peer_of(name) == OURS:
                    yield f"{m.case}: {name}: {why}"
        yield from _cliffs(measured)
        yield from _lost(measured, share)


def _cliffs(measured: list[Measurement]) -> Iterator[str]:
    """Say where an element takes four times as long as one size down, and as the roofline for its bytes."""
    with_ours = [m for m in measured if m.ours() and m.roofline()]
    for before, now in pairwise(sorted(with_ours, key=lambda m: m.of.log2)):
        allowed = max(_of_element(before, before.ours()), _of_element(now, now.roofline()))
        times = _of_element(now, now.ours()) / allowed
        if times > CLIFF:
            yield f"{now.case}: an element takes {times:.1f} times as long as in {before.of.elements} elements"


def _of_element(m: Measurement, timing: Timing | Rival | None) -> float:
    assert timing is not None
    return timing.best / m.of.elements


def _lost(measured: list[Measurement], share: float) -> Iterator[str]:
    """Say where less than half of the least known share of the roofline's speed is reached."""
    for m in measured:
        reached = m.ratio(m.roofline())
        if m.of.log2 >= SHARES_FROM and reached is not None and reached < LOST * share:
            yield f"{m.case}: {reached:.2f} of the roofline's speed, was {share:.2f} at least"
