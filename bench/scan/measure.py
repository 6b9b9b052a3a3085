"""What a worker of the scan does, in a process of its own: compile the kernels of a cell, and time it at a size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from timeit import timeit
from typing import Any

import fastq

from ..calls import ALIGNMENT, call_of
from ..cases import Pass
from ..data import room
from ..peers import Runner, own_threads
from ..peers.roofline import PARALLEL_FROM, kernel, nearest_lines
from ..timing import sampled, settle
from .agreement import disagreement
from .calls import ready, with_results
from .grid import PIECE, Cell, cell_of
from .layouts import LAYOUTS
from .peers import PEERS
from .plain import BASELINES

TURNS = 2  # of the call, the copy and the rivals, so that what drifts in the machine drifts for all
SHARE_OF_OTHERS = 0.4  # of the time of our own turn, that each other one takes
COMPILED_AT = (12, PIECE)  # log2; where few kernels are left to compile when a cell is timed


def compiled(cell: str) -> str:
    """Call a cell at small sizes, so that its kernels are on disk; what was wrong with the results."""
    for log2 in COMPILED_AT:
        if wrong := _called(cell, log2)[1]:
            return wrong
    return ""


def _called(name: str, log2: int) -> tuple[Callable[[], Any], str, Any]:
    cell = cell_of(name)
    operands, wrong = ready(cell, log2)
    call = call_of(fastq, operands)
    return call, wrong(call()), operands


def timed(cell: str, log2: int, seconds: float) -> dict[str, Any]:
    """Measure the least seconds of a call and of its rivals over all turns; or return what is wrong."""
    call, wrong, operands = _called(cell, log2)
    if wrong:
        return {"wrong": f"2^{log2}: {wrong}"}
    of = cell_of(cell)
    rivals = {name: rival for name, make in BASELINES.items() if (rival := make(of, operands))}
    calls = {"ours": call} | _copies(of.moved(log2)) | rivals | _in_c_order(of, log2)
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(TURNS):
        for name, each in calls.items():
            share = (1.0 if name == "ours" else SHARE_OF_OTHERS) / TURNS
            least[name] = min(least[name], _least(each, seconds * share))
    settle()
    copy = min(least.pop(name) for name in COPIES)
    return least | {"copy": copy}


def _in_c_order(cell: Cell, log2: int) -> dict[str, Callable[[], Any]]:
    """Return the same call on memory in C order, where the cell has its elements in another order."""
    if not LAYOUTS[cell.layout].dense:
        return {}
    plain = cell._replace(layout="c")
    return {"c_order": call_of(fastq, ready(plain, log2)[0])}


COPIES = {"copy store": False, "copy stream": True}


def _copies(moved: Pass) -> dict[str, Callable[[], Any]]:
    """Return the bytes of a call as a plain copy with as many threads, whose stores go into or past the cache."""
    reads, writes, steps = nearest_lines(moved)
    source, target = (room(steps * ALIGNMENT * each, name) for each, name in ((reads, "source"), (writes, "target")))
    threads = own_threads() if sum(moved) >= PARALLEL_FROM else 1
    where = source.ctypes.data, target.ctypes.data, steps, threads
    return {name: partial(kernel(reads, writes, past_cache), *where) for name, past_cache in COPIES.items()}


def _least(call: Callable[[], Any], seconds: float) -> float:
    """Measure the least time of a call, once where it takes longer than that."""
    once = timeit(call, number=1)
    return once if once > seconds else min(sampled(call, seconds))


def compiled_by_peer(peer: str, cell: str, log2: int) -> None:
    """Have a peer compile the work of a cell at a size, in its own process."""
    _of_peer(peer, cell_of(cell), log2)


def timed_by_peer(peer: str, cell: str, log2: int, seconds: float) -> dict[str, Any]:
    """Measure the seconds of a call of a peer, in its process; what is wrong instead, nothing if it does other work."""
    made, wrong = _of_peer(peer, cell_of(cell), log2)
    if made is None or wrong:
        return {"wrong": wrong} if wrong else {}
    least = min(_least(made.call, SHARE_OF_OTHERS * seconds / TURNS) for _ in range(TURNS))
    settle()
    return {"seconds": least}


def _of_peer(peer: str, cell: Cell, log2: int) -> tuple[Runner | None, str]:
    """Return the work of a peer, done once, and how its results differ from the reference's."""
    o, right = with_results(cell, log2)
    made = PEERS[peer].prepared(o)
    if made is None:
        return None, ""
    made.call()
    return made, disagreement(cell, right, log2, [*made.results().values()], PEERS[peer].ties)
