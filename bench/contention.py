"""A short run while another process computes on one of the cores: no call may take longer than serial execution would.

`python -m bench contention` prints, for each case, the median, the 99th percentile and the longest of many calls under
the load, and the median of the same call alone on one thread.
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
from .worker import PYTHON, Worker

LOG2 = 22
SECONDS = 1.0
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
    """The time that so many percent of the calls do not exceed."""
    return sorted(seconds)[min(len(seconds) - 1, len(seconds) * percent // 100)]


def rows(threads: int) -> Iterator[dict[str, Any]]:
    """Times of many calls under the load, and of the serial call."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    for case in CASES:
        serial = _times(case, 1)
        free = _times(case, threads)
        with competing(core):
            loaded = _times(case, threads)
            one = _times(case, 1)
        yield {
            "case": case.name,
            "threads": threads,
            "serial": statistics.median(serial),
            "free": statistics.median(free),
            "median": statistics.median(loaded),
            "p99": percentile(loaded, 99),
            "longest": max(loaded),
            "calls": len(loaded),
            "serial_p99": percentile(one, 99),
        }


def _times(case: Case, threads: int) -> list[float]:
    worker = Worker(OURS, threads)
    try:
        worker.ask(do="prepare", case=case.name, variant="")
        samples: list[float] = worker.ask(do="time", variant="", seconds=SECONDS)
    finally:
        worker.close()
    return samples
