"""The limit of memory: the bytes of the case moved with as many threads as pay, by kernels that compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from timeit import repeat

import numba
import numpy as np

from .. import data
from ..calls import ALIGNMENT, Array
from ..cases import OPERATIONS, Case, Pass
from ..roofline.moves import PARALLEL_FROM, Kernel, kernel, lines
from . import Builders, Runner


def moved(make: Callable[[int, int, bool], Kernel], parallel_from: int, streaming: bool, case: Case) -> Runner:
    """Move the bytes of every pass, with a kernel made for lines read and written; large ones with threads."""
    source, target = (memory(case, place) for place in (0, 1))
    calls = []
    for bytes_of in case.passes:
        reads, writes, steps = lines(bytes_of)
        run = make(reads, writes, streaming and writes > 0)
        move = partial(run, source.ctypes.data, target.ctypes.data, steps)
        calls.append((move, as_many_as_pay(move) if sum(bytes_of) >= parallel_from else lambda: 1))

    def call() -> None:
        for run, threads in calls:
            run(threads())

    return Runner(call, dict, check=partial(unlike, case.passes[-1], source, target), keep=(source, target))


def as_many_as_pay(move: Callable[[int], int]) -> Callable[[], int]:
    """Return what tells how many threads move: all, but one where that takes less time at the first call.

    Threads of OpenMP wait for each other: where others use the cores, for milliseconds, and the limit of 2^19 float32
    was a 300th of the speed of one thread.
    """

    @cache
    def pays(threads: int) -> bool:
        return min(repeat(partial(move, threads), number=1)) < min(repeat(partial(move, 1), number=1))

    def threads() -> int:
        found = numba.get_num_threads()
        return found if found > 1 and pays(found) else 1

    return threads


def memory(case: Case, place: int) -> Array:
    """Memory for whole steps of the bytes that the passes read, or write, in a pattern of bytes."""
    moves = [lines(bytes_of) for bytes_of in case.passes]
    array = data.room(max(move[place] * move[2] for move in moves) * ALIGNMENT, ("source", "target")[place])
    array[:] = 0 if place else np.resize(np.arange(1, 252, dtype=np.uint8), array.size)
    return array


def unlike(bytes_of: Pass, source: Array, target: Array) -> str:
    """Say whether the lines written are not the last ones read in each step."""
    reads, writes, steps = lines(bytes_of)
    if not writes:
        return ""
    read = source[: steps * reads * ALIGNMENT].reshape(steps, reads, ALIGNMENT)[:, -1:]
    written = target[: steps * writes * ALIGNMENT].reshape(steps, writes, ALIGNMENT)
    return "" if (written == read).all() else "lines were not moved"


OF_CASES = True
BUILDERS: Builders = {
    (operation, variant): partial(moved, kernel, PARALLEL_FROM, variant == "stream")
    for operation in OPERATIONS
    for variant in ("store", "stream")
}
