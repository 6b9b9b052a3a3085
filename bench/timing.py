"""Time calls: samples of a call, and a pause until the threads that it used have stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

SPINNING_AT_MOST = 0.05
SETTLED_WITHIN = 0.5
# a shorter sample would measure the clock; more samples tell nothing new
SAMPLE_AT_LEAST, SAMPLES_AT_MOST = 20e-6, 400
WARM_SHARE = 0.25


def sampled(call: Callable[[], Any], seconds: float) -> Iterator[float]:
    """Time calls for a number of seconds: each sample is the mean of as many calls as the clock needs."""
    once = _seconds(call, 1)
    deadline = time.perf_counter() + WARM_SHARE * seconds
    while time.perf_counter() < deadline:
        once = min(once, _seconds(call, 1))
    number = max(1, int(SAMPLE_AT_LEAST / once))
    deadline = time.perf_counter() + (1 - WARM_SHARE) * seconds
    for _ in range(SAMPLES_AT_MOST):
        yield _seconds(call, number)
        if time.perf_counter() > deadline:
            return


def _seconds(call: Callable[[], Any], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


def settle() -> None:
    """Wait until this process uses (almost) no CPU time: pools spin for up to 40 ms after their last task."""
    deadline = time.perf_counter() + SETTLED_WITHIN
    pause = 0.005
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(pause)
        if time.process_time() - before < SPINNING_AT_MOST * pause:
            return
