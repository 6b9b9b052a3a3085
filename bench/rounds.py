"""Interleaved rounds: every contender of a case takes its turn in each, so that what drifts, drifts for all."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from .cases import Case
from .machine import available_memory, cores, cores_used_by_others, cpu_time
from .peers import OURS, PEERS, Contender, contenders
from .results import Measurement, Timing
from .worker import Absent, Figures, Workers

ROUNDS, ROUNDS_AT_LEAST = 7, 2
ENDED_AT_MOST = 3  # crashes and hangs of a peer's process
# memory of a peer over the bytes of the case: its library may make copies
MEMORY_FACTOR = 1.5


@dataclass
class Settings:
    """How a run is measured."""

    threads: int  # of every contender
    peers: tuple[str, ...] = tuple(PEERS)  # who takes part
    rounds: int = ROUNDS  # turns of each contender, at most
    turn: float = 0.03  # seconds; at least one call is made
    budget: float = 170.0  # seconds of the whole run, which are shared out to the cases


@dataclass
class Bench:
    """A run: its workers, who is not there, and the time that is left."""

    settings: Settings
    workers: Workers
    absent: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    begun: float = field(default_factory=time.perf_counter)

    def start(self) -> None:
        """Start every peer, side by side, and note its version or why it is absent."""

        def start_one(peer: str) -> None:
            try:
                self.versions[peer] = self.workers[peer].ask(do="version")
            except Absent as reason:
                self.absent[peer] = str(reason)

        in_threads(start_one, self.settings.peers)

    def measure(self, case: Case, seconds: float) -> Measurement:
        """Prepare all, then take turns for so long; who cannot run is named and left out."""
        deadline = time.perf_counter() + seconds
        measurement = Measurement(case.name, self.settings.threads)
        rows = contenders(case, self.settings.peers)
        if reason := self.too_large(case, rows):
            measurement.absent.update({row.name: reason for row in rows})
            return measurement
        of = {row.peer: [r for r in rows if r.peer == row.peer] for row in rows}
        in_threads(lambda peer: [self.prepare(case, row, measurement) for row in of[peer]], of)
        ready = [row for row in rows if row.name not in measurement.absent]
        before = cpu_time(self.processes())
        samples = self.rounds(ready, deadline, measurement)
        others = cores_used_by_others(before, cpu_time(self.processes()))
        self.release(of)
        timings = {row.name: timing_of(samples[row.name]) for row in rows if samples.get(row.name)}
        least = {name: [min(turn) for turn in samples[name]] for name in timings}
        return replace(measurement, timings=timings, others=round(others, 3)).with_ratios(least)

    def processes(self) -> list[int]:
        """Ids of the workers' processes."""
        return [worker.process.pid for worker in self.workers.of.values()]

    def too_large(self, case: Case, rows: list[Contender]) -> str:
        """Say so where the arrays of all contenders would not fit the memory."""
        peers = len({row.peer for row in rows})
        needed, available = int(MEMORY_FACTOR * sum(case.passes[-1]) * peers), available_memory()
        return f"needs {needed >> 30} GiB of memory, {available >> 30} are there" if 0 < available < needed else ""

    def ask(self, peer: str, **request: object) -> Any:
        """Ask a peer; one whose process has ended too often is not asked again."""
        if peer in self.absent:
            raise Absent(self.absent[peer])
        worker = self.workers[peer]
        try:
            return worker.ask(**request)
        except Absent as reason:
            self.ended[peer] += not worker.alive
            if self.ended[peer] >= ENDED_AT_MOST:
                self.absent[peer] = f"given up after {ENDED_AT_MOST} times: {reason}"
            raise

    def answer(self, row: Contender, measurement: Measurement, **request: object) -> Any:
        """Ask a contender; one that cannot do it, or dies, is named and left out from then on."""
        try:
            return self.ask(row.peer, variant=row.variant, **request)
        except Absent as reason:
            measurement.absent[row.name] = str(reason)

    def prepare(self, case: Case, row: Contender, measurement: Measurement) -> None:
        """Make one contender ready and have its result checked."""
        if self.answer(row, measurement, do="prepare", case=case.name):
            measurement.exact.append(row.name)

    def rounds(self, ready: list[Contender], deadline: float, measurement: Measurement) -> dict[str, list[list[float]]]:
        """Let the contenders take turns, each round beginning with another one; the samples of each turn."""
        samples: dict[str, list[list[float]]] = {row.name: [] for row in ready}
        for number in range(self.settings.rounds):
            if number >= ROUNDS_AT_LEAST and time.perf_counter() > deadline:
                break
            first = number % max(1, len(ready))
            for row in ready[first:] + ready[:first]:
                if row.name not in measurement.absent:
                    samples[row.name].append(self.answer(row, measurement, do="time", seconds=self.settings.turn))
        return {name: each for name, each in samples.items() if name not in measurement.absent}

    def release(self, peers: Iterable[str]) -> None:
        """Have the memory of the case given back."""
        for peer in peers:
            worker = self.workers.of.get(peer)
            if worker is not None and worker.alive:
                with contextlib.suppress(Absent):
                    worker.ask(do="release")


def timing_of(turns: list[list[float]]) -> Timing:
    """Summarise the samples of all turns of a contender."""
    samples = [*chain.from_iterable(turns)]
    return Timing(*Figures.of(samples), len(samples))


def in_threads(work: Callable[[Any], object], things: Iterable[Any]) -> None:
    """Do work for each peer in as many threads as there are cores: nothing is timed meanwhile."""
    with ThreadPoolExecutor(cores()) as pool:
        deque(pool.map(work, things), maxlen=0)


def measure_all(
    bench: Bench, cases: list[Case], done: Callable[[Measurement], None], doing: Callable[[Case], None]
) -> None:
    """Measure the cases, each with its share of the time that is left; call `done` after each."""
    deadline = bench.begun + bench.settings.budget
    for number, case in enumerate(cases):
        left = deadline - time.perf_counter()
        if left <= 0:
            reason = f"out of time: the run had {bench.settings.budget:g} s"
            done(Measurement(case.name, bench.settings.threads, absent={OURS: reason}))
            continue
        doing(case)
        done(bench.measure(case, left / (len(cases) - number)))
