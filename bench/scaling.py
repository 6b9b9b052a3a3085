"""Time against threads: the same case in processes of fastq that have 1, 2, ... threads, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .cases import Case, Work, cases
from .peers import OURS, contenders
from .worker import Absent, Figures, Workers

SIZES = (16, 18, 20, 22, 24, 26)
# Every case is measured in each sweep, half a minute apart: after a stall of the machine fastq works on one thread for
# up to a second, which would be all of a case
SWEEPS, ROUNDS = 3, 2
TURN = 0.03
ROOFLINE = "roofline"
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
Samples = dict[tuple[str, int], list[float]]  # seconds of a peer with so many threads


def thread_counts(most: int) -> list[int]:
    """Powers of two up to `most`, and `most`."""
    return sorted({1 << k for k in range(most.bit_length())} | {most})


def rows(most: int, doing: Callable[[Case], None] = lambda case: None) -> Iterator[dict[str, Any]]:
    """Best and median seconds of each case at each number of threads, and the roofline's best with as many."""
    of = {threads: Workers(threads) for threads in thread_counts(most)}
    there: dict[Case, Samples] = {case: {} for case in cases(SCALED, SIZES)}
    absent: dict[Case, str] = {}
    try:
        for _ in range(SWEEPS):
            for case, samples in there.items():
                doing(case)
                try:
                    _turns(case, of, samples)
                except Absent as reason:
                    absent[case] = str(reason)
    finally:
        for workers in of.values():
            workers.__exit__()
    for case, samples in there.items():
        if case in absent:
            yield {"case": case.name, "threads": 0, "absent": absent[case]}
        yield from (_row(case, threads, samples) for threads in of if (OURS, threads) in samples)


def _row(case: Case, threads: int, samples: Samples) -> dict[str, Any]:
    row = {"case": case.name, "threads": threads} | Figures.of(samples[OURS, threads])._asdict()
    seconds = samples.get((ROOFLINE, threads))
    return row | {"roofline": min(seconds)} if seconds else row


def _turns(case: Case, of: dict[int, Workers], samples: Samples) -> None:
    """Add the seconds of some rounds; with one thread it is not asked how fast the roofline is."""
    variants = [row.variant for row in contenders(case, (ROOFLINE,))]
    every = [(OURS, threads, "") for threads in of]
    every += [(ROOFLINE, threads, variant) for threads in of if threads > 1 for variant in variants]
    for peer, threads, variant in every:
        of[threads][peer].ask(do="prepare", case=case.name, variant=variant)
    for _ in range(ROUNDS):
        for peer, threads, variant in every:
            seconds = of[threads][peer].ask(do="time", variant=variant, seconds=TURN)
            samples.setdefault((peer, threads), []).extend(seconds)
    for peer, threads in {(peer, threads) for peer, threads, _ in every}:
        of[threads][peer].ask(do="release")
