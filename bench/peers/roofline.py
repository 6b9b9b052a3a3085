"""The limit of memory: the bytes of the case moved with as many threads as pay, by kernels that compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numba
import numpy as np

from .. import data
from ..cases import OPERATIONS, Case, Pass
from ..data import ALIGNMENT, Array
from ..roofline.moves import PARALLEL_FROM, Kernel, kernel, lines
from . import Runner


def moved(make: Callable[[int, int, bool], Kernel], parallel_from: int, streaming: bool, case: Case) -> Runner:
    """Move the bytes of every pass, with a kernel made for lines read and written; large ones with threads."""
    source, target = (memory(case, place) for place in (0, 1))
    calls = []
    for bytes_of in case.passes:
        reads, writes, steps = lines(bytes_of)
        run = make(reads, writes, streaming and writes > 0)
        threads = numba.get_num_threads if sum(bytes_of) >= parallel_from else lambda: 1
        calls.append((partial(run, source.ctypes.data, target.ctypes.data, steps), threads))

    def call() -> None:
        for run, threads in calls:
            run(threads())

    return Runner(call, dict, check=partial(unlike, case.passes[-1], source, target), keep=(source, target))


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


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    (operation, variant): partial(moved, kernel, PARALLEL_FROM, variant == "stream")
    for operation in OPERATIONS
    for variant in ("store", "stream")
}
