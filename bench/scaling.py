"""Time against threads: the same case in processes of fastq that have 1, 2, ... threads, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .cases import Case, Work, cases
from .peers import OURS
from .worker import Absent, Figures, Workers

SIZES = (16, 18, 20, 22, 24, 26)
ROUNDS = 5
TURN = 0.03
SCALED = (
    Work("minmax"),
    Work("quantize_linear"),
    Work("dequantize_linear"),
    Work("quantize", code="uint8"),
    Work("quantize", granularity="rows"),
    Work("quantize", granularity="columns"),
    Work("quantize", granularity="blocks32"),
    Work("compare", code="uint8"),
)


def thread_counts(most: int) -> list[int]:
    """Powers of two up to `most`, and `most`."""
    return sorted({1 << k for k in range(most.bit_length())} | {most})


def rows(most: int, doing: Callable[[Case], None] = lambda case: None) -> Iterator[dict[str, Any]]:
    """Best and median seconds of each case at each number of threads."""
    of = {threads: Workers(threads) for threads in thread_counts(most)}
    try:
        for case in cases(SCALED, SIZES):
            doing(case)
            yield from _case(case, of)
    finally:
        for workers in of.values():
            workers.__exit__()


def _case(case: Case, of: dict[int, Workers]) -> Iterator[dict[str, Any]]:
    seconds: dict[int, list[float]] = {threads: [] for threads in of}
    try:
        for workers in of.values():
            workers[OURS].ask(do="prepare", case=case.name, variant="")
        for _ in range(ROUNDS):
            for threads, workers in of.items():
                seconds[threads] += workers[OURS].ask(do="time", variant="", seconds=TURN)
        for workers in of.values():
            workers[OURS].ask(do="release")
    except Absent as reason:
        yield {"case": case.name, "threads": 0, "absent": str(reason)}
        return
    for threads, each in seconds.items():
        yield {"case": case.name, "threads": threads} | Figures.of(each)._asdict()
