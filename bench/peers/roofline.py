"""The limit of memory: the bytes of the case moved with as many threads as pay, by kernels that compute nothing.

A step reads `reads` cache lines and writes `writes` lines, which may go past the cache, by our own vector type. So one
kernel is the read, the copy and the streaming-store bandwidth, at the ratio of bytes that a case has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, partial
from timeit import repeat

import numba
import numpy as np
from numba import njit, prange, types

from fastq.engine import simd as v
from fastq.engine.jit import numba_intrinsic, traced

from .. import data
from ..calls import ALIGNMENT, Array
from ..cases import Case, Pass
from . import Runner

LINE = v.Vec(types.uint8, ALIGNMENT)
READS_ALONE = 4  # lines in a step that writes none
CLOSE = 0.02  # how near the ratio of lines is to that of bytes; nearer ones would be compiled for each size
AHEAD = 2048  # bytes, as far as the kernels look
# below it a second thread costs more than it brings
PARALLEL_FROM = 1 << 17

Kernel = Callable[[int, int, int, int], int]


def lines(bytes_of: Pass) -> tuple[int, int, int]:
    """Lines read and lines written in a step, and how many steps move the bytes of the pass."""
    if not bytes_of.written:
        reads, writes = READS_ALONE, 0
    elif bytes_of.read >= bytes_of.written:
        reads, writes = _terms(bytes_of.read / bytes_of.written)
    else:
        writes, reads = _terms(bytes_of.written / bytes_of.read)
    return reads, writes, -(-sum(bytes_of) // ((reads + writes) * ALIGNMENT))


def _terms(ratio: float) -> tuple[int, int]:
    """The least numerator and denominator that are as good as the ratio."""
    for denominator in itertools.count(1):
        numerator = round(ratio * denominator)
        if abs(numerator / denominator - ratio) <= CLOSE * ratio:
            break
    return numerator, denominator


@cache
def kernel(reads: int, writes: int, streaming: bool) -> Kernel:
    """Compile a kernel: (source address, target address, steps, threads) to a number that depends on all it read."""
    put = v.stream if streaming else v.store

    @traced
    def move(source, target, first, last):
        src = v.pointer(source, types.uint8)
        dst = v.pointer(target, types.uint8)
        mixed = v.full(v.convert(0, types.uint8), LINE)
        for step in range(first, last):
            for k in v.unrolled(reads):
                i = (step * reads + k) * ALIGNMENT
                v.prefetch(src, i + AHEAD)
                line = v.load(src, i, LINE)
                mixed = mixed ^ line
            for k in v.unrolled(writes):
                put(dst, (step * writes + k) * ALIGNMENT, line)
        v.fence()
        return v.convert(v.reduce_max(mixed), types.int64)

    move_share = numba_intrinsic(move, result=types.int64)

    @njit
    def share(source, target, first, last):
        return move_share(source, target, first, last)

    @njit(parallel=True)
    def spread(source, target, steps, threads):
        total = 0
        for t in prange(threads):
            total += share(source, target, steps * t // threads, steps * (t + 1) // threads)
        return total

    return lambda source, target, steps, threads: (
        spread(source, target, steps, threads) if threads > 1 else share(source, target, 0, steps)
    )


# --- the contender ----------------------------------------------------------------------------------------------------


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


def of_case(case: Case, variant: str) -> Runner:
    return moved(kernel, PARALLEL_FROM, variant == "stream", case)
