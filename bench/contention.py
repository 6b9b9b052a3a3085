"""A short run while another process computes on one of the cores: no call may take longer than serial execution does.

`python -m bench contention` prints, for each case, the median, the 99th percentile and the longest of many calls with
all threads under the load, and the same of calls on one thread; the two take turns.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
from collections.abc import Iterator
from typing import Any

from .cases import Case, Work
from .peers import OURS
from .worker import PYTHON, Worker, Workers

LOG2 = 22
TURN, TURNS = 0.25, 4
CASES = tuple(
    Case(work, LOG2)
    for work in (
        Work("minmax"),
        Work("quantize_linear"),
        Work("quantize", code="uint8"),
        Work("quantize", granularity="rows"),
    )
)
SPIN = "while True: pass"


@contextlib.contextmanager
def competing(core: int | None) -> Iterator[None]:
    """Compute on one core in another process, until the block ends."""
    load = subprocess.Popen([*PYTHON, "-c", SPIN])
    try:
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(load.pid, {core})
        yield
    finally:
        load.kill()
        load.wait()


def percentile(seconds: list[float], percent: int) -> float:
    """The time that a percentage of the calls do not exceed."""
    return sorted(seconds)[min(len(seconds) - 1, len(seconds) * percent // 100)]


def rows(threads: int) -> Iterator[dict[str, Any]]:
    """Times of many calls on one thread and on all, alone and under the load."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    with Workers(1) as one, Workers(threads) as all_:
        for case in CASES:
            sides = (one[OURS], all_[OURS])
            for worker in sides:
                worker.ask(do="prepare", case=case.name, variant="")
            serial, free = _in_turns(sides)
            with competing(core):
                serial_loaded, loaded = _in_turns(sides)
            yield {
                "case": case.name,
                "threads": threads,
                "serial": statistics.median(serial),
                "free": statistics.median(free),
                "median": statistics.median(loaded),
                "p99": percentile(loaded, 99),
                "longest": max(loaded),
                "calls": len(loaded),
                "serial_p99": percentile(serial_loaded, 99),
            }


def _in_turns(sides: tuple[Worker, Worker]) -> tuple[list[float], list[float]]:
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for worker, mine in zip(sides, samples, strict=True):
            mine += worker.ask(do="time", variant="", seconds=TURN)
    return samples
