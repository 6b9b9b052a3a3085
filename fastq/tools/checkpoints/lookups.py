"""Lookups that may ask for each other, and for themselves, in any order."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
DEEPEST = 60  # lookups within lookups
MOST_LOOKUPS = 1_000_000  # for all the code of a model: some seconds


@dataclass(eq=False)
class Lookup(Generic[T]):
    """What one lookup found so far."""

    found: tuple[T, ...] = ()
    last_round: int = 0  # in which it ran
    is_running: bool = False
    is_final: bool = False


class Lookups(Generic[T]):
    """What lookups found, by what they look for.

    A lookup that no other one asked for runs in rounds, in each of which the lookups that it needs run once. One that
    comes to ask for itself, as that of `x` in `x = x.to(device)`, gets what was found so far; if there was such a one,
    rounds follow until they find nothing more. That ends, since what was found stays, and since after MOST_LOOKUPS all
    are unknown.
    """

    def __init__(self, unknown: T) -> None:
        """Take what lookups find that are too many, or too deep within others."""
        self._unknown = unknown
        self._by_key: dict[Hashable, Lookup[T]] = {}
        self._count = 0
        self._depth = 0
        # the round, the lookups that ran in it, and whether one asked for itself and one found more than before
        self._round = 0
        self._ran: list[Lookup[T]] = []
        self._is_circular = False
        self._has_grown = False

    def find(self, key: Hashable, look: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
        """Return what a lookup finds, or has found so far if it is running.

        `key` says what is looked for, and `look` looks for it once, with calls of `find` for what it needs.
        """
        lookup = self._by_key.setdefault(key, Lookup())
        if lookup.is_running:
            self._is_circular = True
        elif lookup.is_final or (self._depth and lookup.last_round == self._round):
            pass  # nothing more can be found, at least in this round
        elif self._depth:
            self._run(lookup, look)
        else:
            self._run_in_rounds(lookup, look)
        return lookup.found

    def _run_in_rounds(self, lookup: Lookup[T], look: Callable[[], tuple[T, ...]]) -> None:
        """Run a lookup that no other one asked for until it, and all that it needs, find nothing more."""
        is_complete = False
        while not is_complete:
            self._round += 1
            self._ran = []
            self._is_circular = False
            self._has_grown = False
            self._run(lookup, look)
            is_complete = not (self._is_circular and self._has_grown)
        for completed in self._ran:
            completed.is_final = True

    def _run(self, lookup: Lookup[T], look: Callable[[], tuple[T, ...]]) -> None:
        """Run a lookup once in this round, and add what it finds to what it found before."""
        lookup.last_round = self._round
        self._ran.append(lookup)
        self._count += 1
        found: tuple[T, ...] = (self._unknown,)
        if self._depth <= DEEPEST and self._count <= MOST_LOOKUPS:
            self._depth += 1
            lookup.is_running = True
            try:
                found = look()
            except RecursionError:  # an expression of hundreds of others
                pass
            finally:
                lookup.is_running = False
                self._depth -= 1
        all_found = tuple(dict.fromkeys((*lookup.found, *found)))
        self._has_grown |= all_found != lookup.found
        lookup.found = all_found
