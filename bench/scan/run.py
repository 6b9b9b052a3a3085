"""The scan itself: batches of cells, compiled side by side while nothing is timed, and then timed one by one.

A cell that fails is named and left out. A worker is started again after a number of requests: a process keeps all the
machine code that it has used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from threading import current_thread
from typing import Any

from ..machine import available_memory
from ..peers import OURS
from ..rounds import in_threads
from ..worker import NOT_INSTALLED, Absent, Workers
from . import judge
from .grid import Cell
from .peers import PEERS
from .store import Scan, Timings

TURN = 0.03  # seconds of our turns at a size
BATCH = 24  # cells that are compiled side by side
# requests to a worker, of which one compiles the kernels of a cell, and some six load them
RESTART_AFTER = {"compiled": 100, "timed": 600, "compiled_by_peer": 100, "timed_by_peer": 600}
MEMORY_FACTOR = 6  # memory of a cell with its rivals' temporaries, over the bytes of its call
WIDEST = 16  # bytes of an element at most, input and result


class Pool(Workers):
    """Workers by names of their own; `threads` are those of cells of the axis value "all"."""

    def threads_of(self, cell: Cell) -> int:
        """Return how many threads a cell has."""
        return self.threads if cell.threads == "all" else 1

    def ask(self, name: str, threads: int, part: str, process: str = OURS, **request: Any) -> Any:
        """Ask the worker of a name for a part, a new one where it has died or has been asked often enough."""
        return self.named(name, process, threads, RESTART_AFTER[part]).ask(do="scan", part=part, **request)


def scanned(
    scan: Scan,
    cells: Iterable[Cell],
    seconds: float,
    done: Callable[[Cell], None],
    doing: Callable[[str], None],
    sizes: tuple[int, ...] = (),
) -> None:
    """Measure cells that the scan does not have, until they end or the time is up; call `done` after each."""
    begun, before = time.perf_counter(), scan.seconds
    deadline = begun + seconds
    missing = (cell for cell in cells if cell not in scan)
    with Pool(scan.settings["threads"]) as pool:
        while batch := list(islice(missing, BATCH)):
            doing("compiling")
            _compile(pool, scan, batch, deadline)
            for peer in (name for name, row in PEERS.items() if row.compiles):
                taken = [cell for cell in batch if PEERS[peer].accepts(cell) and cell not in scan.failed]
                _compile_by_peer(peer, pool.threads, taken, deadline, sizes)
            for cell in batch:
                if time.perf_counter() > deadline:
                    return
                if cell not in scan.failed:
                    doing(cell.name)
                    _measure(pool, scan, cell, sizes or cell.sizes_measured)
                scan.seconds = before + time.perf_counter() - begun
                done(cell)


def _compile(pool: Pool, scan: Scan, batch: list[Cell], deadline: float) -> None:
    """Have the kernels of the cells compiled, and their results checked, by as many workers as there are cores."""

    def compile_one(cell: Cell, compiler: str) -> None:
        try:
            wrong = pool.ask(compiler, pool.threads, part="compiled", cell=cell.name)
        except Absent as reason:
            wrong = str(reason)
        if wrong:
            scan.failed[cell] = wrong

    _side_by_side(compile_one, batch, deadline)


def _compile_by_peer(peer: str, threads: int, batch: list[Cell], deadline: float, sizes: tuple[int, ...]) -> None:
    """Have a peer compile the cells at all their sizes, by workers that end then; it keeps its code on disk."""

    def compile_one(cell: Cell, compiler: str) -> None:
        for log2 in filter(_fits, sizes or cell.sizes_measured):
            with suppress(Absent):  # a cell is timed without it then
                _ask_peer(pool, peer, f"{compiler}, {cell.threads}", cell, part="compiled_by_peer", log2=log2)

    with Pool(threads) as pool:
        _side_by_side(compile_one, batch, deadline)


def _side_by_side(work: Callable[[Cell, str], None], batch: list[Cell], deadline: float) -> None:
    """Do work for each cell, by compilers with the names of the threads that they work for, until the time is up."""

    def do(cell: Cell) -> None:
        if time.perf_counter() < deadline:
            work(cell, current_thread().name)

    in_threads(do, batch)


def _fits(log2: int) -> bool:
    """Return whether memory holds a cell of that size; where nobody knows, it does."""
    available = available_memory()
    return available <= 0 or available >= MEMORY_FACTOR * WIDEST << log2


def _measure(pool: Pool, scan: Scan, cell: Cell, sizes: tuple[int, ...]) -> None:
    """Time a cell at its sizes, and what looks slow a second time."""
    try:
        by_size = dict(_timed(pool, scan, cell, sizes))
        for log2, again in _timed(pool, scan, cell, tuple(sorted(judge.suspicious(cell, by_size)))):
            by_size[log2] = by_size[log2].least(again)
        scan.timings[cell] = by_size
    except Absent as reason:
        scan.failed[cell] = str(reason)


def _timed(pool: Pool, scan: Scan, cell: Cell, sizes: tuple[int, ...]) -> Iterator[tuple[int, Timings]]:
    threads = pool.threads_of(cell)
    for log2 in filter(_fits, sizes):
        found = pool.ask(cell.threads, threads, part="timed", cell=cell.name, log2=log2, seconds=TURN)
        if "wrong" in found:
            raise Absent(found["wrong"])
        for peer in (name for name, row in PEERS.items() if row.accepts(cell)):
            found |= _of_peer(pool, scan, peer, cell, log2)
        elements = cell.elements(log2)
        yield log2, Timings(**{name: seconds / elements for name, seconds in found.items()})


def _of_peer(pool: Pool, scan: Scan, peer: str, cell: Cell, log2: int) -> dict[str, float]:
    """Measure the seconds of a call of a peer, nothing where it does not do the work; one that does it wrong is named.

    One that is not installed is left out without a word, one that fails with its last words.
    """
    try:
        name = f"{peer}, {cell.threads}"
        answer = _ask_peer(pool, peer, name, cell, part="timed_by_peer", log2=log2, seconds=TURN)
    except Absent as reason:
        answer = {} if str(reason) == NOT_INSTALLED else {"wrong": str(reason)}
    if "wrong" in answer:
        scan.refused[f"{peer}, {cell.name}, 2^{log2}"] = answer["wrong"]
    return {peer: answer["seconds"]} if "seconds" in answer else {}


def _ask_peer(pool: Pool, peer: str, name: str, cell: Cell, **request: Any) -> Any:
    """Ask the worker of a name, which is a process of a peer."""
    process = PEERS[peer].process
    return pool.ask(name, pool.threads_of(cell), process=process, peer=peer, cell=cell.name, **request)
