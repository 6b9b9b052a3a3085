"""The regression gate: the same cases again, and which ratios fell by more than so much against the stored ones.

A ratio is against the best peer of the same run, so another machine or a busy one moves both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .peers import OURS
from .results import Measurement, Results

TOLERANCE = 0.15


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
