"""Print what fastq must reach beside what it reaches, measured in one run: `python bench/targets.py --help`.

Ours and the peers run in processes of their own and take turns, so that what drifts in the machine drifts for all. A
ratio compares the best time of ours with that of the fastest peer, and the medians likewise. Each result is compared
with plain NumPy before it is timed. A target is met when the ratio of the bests is; "busy" says that other processes
used the cores meanwhile, which has been seen to turn a NO into a yes.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import NamedTuple

import memory
import startup
from interference import WORTH_A_REMARK, CpuTime, cores_used_by_others, cpu_time
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from table import (
    DESCRIPTIONS,
    FIRST_CALL_COLD,
    FIRST_CALL_ELEMENTS,
    FIRST_CALL_WARM,
    IMPORT_RATIO,
    LATENCIES,
    MEMORY,
    TARGETS,
    Latency,
    Target,
    Variant,
)
from worker import Absent, Worker
from works import SHAPES

OURS = Variant("fastq")
IMPORTS_TIMED = 15
FIRST_CALLS_TIMED = 3
SECONDS_OF_A_CASE = 60.0
ROUNDS_AT_LEAST = 2
MIB = 1 << 20


class Turn(NamedTuple):
    """What one system does when it is its turn: calls that are not timed, then samples, each the mean of some calls."""

    warm: int
    samples: int
    number: int = 1


TURNS = {"large": Turn(1, 3), "small": Turn(100, 400), "tiny": Turn(1000, 50, 200)}
SLOW_TURN = Turn(0, 1)
SLOW_WORKS = ("compare",)


class Figures(NamedTuple):
    """The best and the median time of a call, in seconds."""

    best: float
    median: float

    @classmethod
    def of(cls, seconds: list[float]) -> Figures:
        """Summarise the samples of all rounds."""
        return cls(min(seconds), statistics.median(seconds))


Measured = dict[Variant, Figures]


class Bench:
    """The workers, the tables being filled, and what went wrong on the way."""

    def __init__(self, rounds: int, *, peers_only: bool) -> None:
        self.rounds = rounds
        self.peers_only = peers_only
        self.console = Console(width=None if Console().is_terminal else 190)
        self.workers: dict[str, Worker] = {}
        self.targets = table("work", "size", "ours best", "median", "peer", "best", "median", "x best", "x median", "")
        self.peers = table("work", "size", "peer", "best", "median", "ours x best", "ours x median")
        self.others = table("work", "best", "median", "target", "met", "note")
        self.remarks: list[str] = []
        self.busy: set[tuple[str, str]] = set()

    def worker(self, system: str) -> Worker:
        """Start the system's process when it is first needed, or again when it has died."""
        if system in self.workers and self.workers[system].process.poll() is not None:
            self.workers.pop(system).close()
        if system not in self.workers:
            self.workers[system] = Worker(system)
        return self.workers[system]

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers.values():
            worker.close()

    def remark(self, text: str) -> None:
        """Keep for the end, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def measure(self, work: str, size: str, variants: Iterable[Variant]) -> Measured:
        """Prepare all, then take turns; who cannot run is remarked upon and left out."""
        ready = [variant for variant in variants if self.prepared(work, size, variant)]
        try:
            return self.rounds_of(work, size, ready)
        except Absent as reason:
            self.remark(f"{work} {size} was not finished: {reason}")
            return {}

    def rounds_of(self, work: str, size: str, ready: list[Variant]) -> Measured:
        """Let the prepared variants take turns."""
        turn = SLOW_TURN if work in SLOW_WORKS else TURNS[size]
        seconds: dict[Variant, list[float]] = {variant: [] for variant in ready}
        start, before = time.perf_counter(), self.cpu_time()
        for number in range(self.rounds):
            if number >= ROUNDS_AT_LEAST and time.perf_counter() - start > SECONDS_OF_A_CASE:
                break
            for variant in ready[number % 2 :] + ready[: number % 2]:
                seconds[variant] += self.worker(variant.system).ask(do="time", variant=variant.name, **turn._asdict())
        others = cores_used_by_others(before, self.cpu_time())
        if others > WORTH_A_REMARK:
            self.remark(f"{work} {size}: other processes used {others:.1f} cores meanwhile, so measure it again")
            self.busy.add((work, size))
        for system in {variant.system for variant in ready}:
            self.worker(system).ask(do="release")
        return {variant: Figures.of(each) for variant, each in seconds.items()}

    def cpu_time(self) -> CpuTime | None:
        """Note what has been used by the workers and by all."""
        return cpu_time(worker.process.pid for worker in self.workers.values())

    def prepared(self, work: str, size: str, variant: Variant) -> bool:
        """Make one variant ready and compare its result with NumPy's."""
        try:
            wrong = self.worker(variant.system).ask(do="prepare", work=work, size=size, variant=variant.name)
        except Absent as reason:
            self.remark(f"{variant}, {work} {size}: {reason}")
            return False
        if wrong:
            self.remark(f"{variant}, {work} {size}, against NumPy: {wrong}")
        return True

    def versions(self) -> None:
        """Tell which versions are compared, and who is not installed."""
        systems = [OURS.system] * (not self.peers_only) + sorted({v.system for t in TARGETS for v in t.peers})
        for system in systems:
            try:
                self.console.print(f"{system} {self.worker(system).ask(do='version')}".rstrip(), highlight=False)
            except Absent as reason:
                self.console.print(f"{system}: {reason}", highlight=False)


def table(*columns: str) -> Table:
    made = Table(box=SIMPLE_HEAD)
    for column in columns:
        made.add_column(column, justify="left" if column in ("work", "size", "peer", "note") else "right")
    return made


def gelems(size: str, seconds: float) -> str:
    return f"{prod(SHAPES[size]) / seconds / 1e9:.3g}"


def judged(met: bool) -> str:
    return "[green]yes[/]" if met else "[red]NO[/]"


def fastest(measured: Measured, peers: Iterable[Variant]) -> tuple[Variant, Figures] | None:
    """Take the peer with the best time; the median is the best median of any, so that no peer's luck helps us."""
    there = [variant for variant in peers if variant in measured]
    if not there:
        return None
    first = min(there, key=lambda variant: measured[variant].best)
    return first, Figures(measured[first].best, min(measured[variant].median for variant in there))


def target_row(target: Target, measured: Measured, *, busy: bool) -> list[str]:
    ours, peer = measured.get(OURS), fastest(measured, target.peers)
    row = [DESCRIPTIONS[target.work], target.size]
    row += [gelems(target.size, seconds) for seconds in ours] if ours else ["-", "-"]
    row += [str(peer[0]), *(gelems(target.size, s) for s in peer[1])] if peer else [missing(target), "-", "-"]
    if not (ours and peer):
        return [*row, "-", "-", verdict(target.ratio, None, busy=busy)]
    best, median = (theirs / mine for theirs, mine in zip(peer[1], ours, strict=True))
    return [*row, f"{best:.2f}", f"{median:.2f}", verdict(target.ratio, best, busy=busy)]


def verdict(target: float | None, reached: float | None, *, busy: bool) -> str:
    """Judge the ratio of the bests, with a warning when the machine was not ours alone."""
    if target is None:
        return "not judged"
    answer = "not measured" if reached is None else judged(reached >= target)
    return f">= {target:g} {answer}{' (busy)' if busy else ''}"


def missing(target: Target) -> str:
    return "absent: " + ", ".join(sorted({peer.system for peer in target.peers}))


def peer_rows(work: str, size: str, measured: Measured) -> Iterator[list[str]]:
    ours = measured.get(OURS)
    for variant, figures in measured.items():
        if variant != OURS:
            ratios = [f"{theirs / mine:.2f}" for theirs, mine in zip(figures, ours or (), strict=bool(ours))]
            yield [DESCRIPTIONS[work], size, str(variant), *(gelems(size, s) for s in figures), *(ratios or "--")]


def throughput(bench: Bench, targets: list[Target]) -> None:
    for work, size in dict.fromkeys((target.work, target.size) for target in targets):
        rows = [target for target in targets if (target.work, target.size) == (work, size)]
        variants = dict.fromkeys([OURS] * (not bench.peers_only) + [peer for row in rows for peer in row.peers])
        bench.console.print(f"measuring {work} {size} ...", style="dim")
        measured = bench.measure(work, size, variants)
        for row in rows:
            bench.targets.add_row(*target_row(row, measured, busy=(work, size) in bench.busy))
        for cells in peer_rows(work, size, measured):
            bench.peers.add_row(*cells)


def latency(bench: Bench, wanted: Latency) -> None:
    variant = Variant("fastq", wanted.variant)
    measured = bench.measure(wanted.work, "tiny", [variant]).get(variant)
    if measured:
        bench.others.add_row(wanted.label, *timing(measured, wanted.seconds))


def timing(measured: Figures, target: float) -> list[str]:
    """Judge by the median: a wait is what the user usually has, not the best of many."""
    scale, unit = (1e6, "us") if target < 1e-3 else (1, "s")
    figures = [f"{seconds * scale:.2f} {unit}" for seconds in measured]
    return [*figures, f"<= {target * scale:g} {unit}", judged(measured.median <= target)]


def first_call(bench: Bench, elements: int) -> None:
    both = startup.first_calls(elements, FIRST_CALLS_TIMED)
    for name, target, calls in zip(("cold", "from the cache"), (FIRST_CALL_COLD, FIRST_CALL_WARM), both, strict=True):
        row = timing(Figures.of([call.total for call in calls]), target)
        numba = statistics.median(call.numba for call in calls)
        note = f"{numba:.2f} s of it is import numba"
        bench.others.add_row(f"first call, {elements:,} elements, {name}", *row, note)


def import_ratio(bench: Bench) -> None:
    modules = ["numpy"] if bench.peers_only else ["numpy", "fastq"]
    figures = {module: Figures.of(s) for module, s in startup.imports(modules, IMPORTS_TIMED).items()}
    for module, each in figures.items():
        bench.others.add_row(f"import {module}", *(f"{seconds * 1e3:.1f} ms" for seconds in each), "", "", "")
    if not bench.peers_only:
        best, median = (ours / theirs for ours, theirs in zip(figures["fastq"], figures["numpy"], strict=True))
        row = [f"{best:.2f} x", f"{median:.2f} x", f"<= {IMPORT_RATIO:g} x", judged(median <= IMPORT_RATIO)]
        bench.others.add_row("import fastq / import numpy", *row, "")


def memory_row(bench: Bench, work: str, variant: str, mib: float) -> None:
    peak = memory.measure("fastq", work, variant) / MIB
    label = " ".join(filter(None, ["peak memory,", work, variant]))
    bench.others.add_row(label, f"{peak:.2f} MiB", "", f"<= {mib:g} MiB", judged(peak <= mib), "")


def memory_check(bench: Bench) -> None:
    """Show that the measurement sees a temporary array when there is one."""
    peak = memory.measure("numpy", "temporary", "") / MIB
    bench.others.add_row("peak memory, NumPy with one temporary", f"{peak:.2f} MiB", "", "", "", "256 MiB is right")


def other_rows(bench: Bench) -> Iterator[tuple[str, Callable[[], None]]]:
    """List the rows that have no peer, by the label that --only searches."""
    yield "import", lambda: import_ratio(bench)
    yield "memory check", lambda: memory_check(bench)
    if bench.peers_only:
        return
    for wanted in LATENCIES:
        yield f"latency {wanted.label}", lambda wanted=wanted: latency(bench, wanted)
    for elements in FIRST_CALL_ELEMENTS:
        yield f"first call {elements}", lambda elements=elements: first_call(bench, elements)
    for row in MEMORY:
        yield f"memory {row.work} {row.variant}", lambda row=row: memory_row(bench, *row)


def others(bench: Bench, only: re.Pattern[str]) -> None:
    for label, add in other_rows(bench):
        if only.search(label):
            bench.console.print(f"measuring {label} ...", style="dim")
            try:
                add()
            except Absent as reason:
                bench.others.add_row(label, "-", "-", "", "not measured", str(reason))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("large", "small", "all"), default="all", help="2^26 elements, 2^18, or both")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="rows to measure")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each system (default 7)")
    parser.add_argument("--peers-only", action="store_true", help="measure the peers without fastq")
    parser.add_argument("--no-others", action="store_true", help="leave out latency, first call, import and memory")
    return parser.parse_args()


def show(bench: Bench) -> None:
    for title, shown in (
        ("Targets, Gelem/s", None if bench.peers_only else bench.targets),
        ("Every peer, Gelem/s", bench.peers),
        ("Waiting and memory", bench.others),
    ):
        if shown is not None and shown.row_count:
            bench.console.print(f"\n[bold]{title}[/]", shown)
    for remark in bench.remarks:
        bench.console.print(f"- {remark}", highlight=False, markup=False)


def main() -> None:
    options = arguments()
    bench = Bench(options.rounds, peers_only=options.peers_only)
    try:
        bench.versions()
        sizes = ("large", "small") if options.size == "all" else (options.size,)
        chosen = [t for t in TARGETS if t.size in sizes and options.only.search(f"{t.work} {t.size}")]
        throughput(bench, chosen)
        if not options.no_others:
            others(bench, options.only)
    finally:
        bench.close()
    show(bench)


if __name__ == "__main__":
    main()
