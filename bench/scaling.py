"""Time against threads: a process of fastq, and one that moves as many bytes, take turns with 1, 2, 4, ... threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from .cases import HEADLINES, WORKS, Case, Work, cases
from .peers import OURS, contenders
from .rounds import in_threads
from .worker import Absent, Figures, Workers

SIZES = (26, 18, 22, 16, 20, 24)
SECONDS = 300.0
# Every case is measured in each sweep, a minute apart: after a stall of the machine fastq works on one thread for up to
# a second, which would be all of a case
SWEEPS = 6
TURN = 0.03
ROOFLINE = "roofline"
TITLES = HEADLINES | {"quantize int8 columns", "quantize int8 blocks32", "compare uint8"}
SCALED = tuple(work for work in WORKS if work.title in TITLES)
Row = dict[str, Any]
Samples = dict[tuple[str, int], list[float]]  # seconds of a peer with this number of threads


def rows(
    most: int,
    works: Iterable[Work] = SCALED,
    sizes: Iterable[int] = SIZES,
    *,
    seconds: float = SECONDS,
    sweeps: int = SWEEPS,
    so_far: Callable[[Case, list[Row]], None] = lambda case, rows: None,
) -> list[Row]:
    """Best and median seconds of each case at each number of threads, and the roofline's best with as many.

    The sweeps end after a number of seconds. A case is compared with the reference once; `so_far` is called after it.
    """
    deadline = time.perf_counter() + seconds
    counts = sorted({1 << k for k in range(most.bit_length())} | {most})  # powers of two, and all
    there: dict[Case, Samples] = {case: {} for case in cases(works, sizes)}
    absent: dict[Case, str] = {}
    with Workers(most) as workers:
        for _ in range(sweeps):
            for case in [case for case in there if case not in absent]:
                if time.perf_counter() > deadline:
                    break
                try:
                    _turns(case, workers, counts, there[case])
                except Absent as reason:
                    absent[case] = str(reason)
                so_far(case, _rows(there, absent))
    return _rows(there, absent)


def _rows(there: dict[Case, Samples], absent: dict[Case, str]) -> list[Row]:
    made: list[Row] = [{"case": case.name, "threads": 0, "absent": reason} for case, reason in absent.items()]
    for case, samples in there.items():
        made += [_row(case, threads, samples) for peer, threads in samples if peer == OURS]
    return made


def _row(case: Case, threads: int, samples: Samples) -> Row:
    row = {"case": case.name, "threads": threads} | Figures.of(samples[OURS, threads])._asdict()
    seconds = samples.get((ROOFLINE, threads))
    return row | {"roofline": min(seconds)} if seconds else row


def _turns(case: Case, workers: Workers, counts: list[int], samples: Samples) -> None:
    """Add the seconds of a turn of each number of threads."""
    every = {peer: [row.variant for row in contenders(case, (peer,)) if not row.allocates] for peer in (OURS, ROOFLINE)}
    prepare = "prepare_again" if samples else "prepare"
    in_threads(lambda peer: [workers[peer].ask(do=prepare, case=case.name, variant=v) for v in every[peer]], every)
    for threads in counts:
        for peer, variants in every.items():
            workers[peer].ask(do="set_threads", count=threads)
            for variant in variants:
                seconds = workers[peer].ask(do="time", variant=variant, seconds=TURN)
                samples.setdefault((peer, threads), []).extend(seconds)
    for peer in every:
        workers[peer].ask(do="set_threads", count=counts[-1])
        workers[peer].ask(do="release")
