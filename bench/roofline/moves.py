"""Kernels of our own vector type that read and write numbers of cache lines in turn, and compute nothing.

A step reads `reads` lines and writes `writes` lines, which may go past the cache. So one kernel is the read, the copy
and the streaming-store bandwidth, at the ratio of bytes that a case has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit, prange, types

from fastq.engine.simd import Vec, fence, full, load, pointer, prefetch, reduce_max, store, stream

from ..calls import ALIGNMENT
from ..cases import Pass

LINE = Vec(types.uint8, ALIGNMENT)
READS_ALONE = 4  # lines in a step that writes none
FEW_RATIOS = ((READS_ALONE, 0), (4, 1), (2, 1), (1, 1), (1, 2), (1, 4))
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
    return reads, writes, _steps(bytes_of, reads, writes)


def nearest_lines(bytes_of: Pass) -> tuple[int, int, int]:
    """Return the same for the nearest of few ratios, where each is compiled in each process; one step at least."""
    written = bytes_of.written / max(sum(bytes_of), 1)
    reads, writes = min(FEW_RATIOS, key=lambda pair: abs(pair[1] / sum(pair) - written))
    return reads, writes, max(_steps(bytes_of, reads, writes), 1)


def _steps(bytes_of: Pass, reads: int, writes: int) -> int:
    """How many steps of `reads` and `writes` lines move the bytes of a pass."""
    return -(-sum(bytes_of) // ((reads + writes) * ALIGNMENT))


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
    put = stream if streaming else store

    @njit
    def share(source, target, first, last):
        src, dst = pointer(source, types.uint8), pointer(target, types.uint8)
        mixed = full(np.uint8(0), LINE)
        for step in range(first, last):
            for k in range(reads):
                i = (step * reads + k) * ALIGNMENT
                prefetch(src, i + AHEAD)
                line = load(src, i, LINE)
                mixed = mixed ^ line
            for k in range(writes):
                put(dst, (step * writes + k) * ALIGNMENT, line)
        fence()
        return np.int64(reduce_max(mixed))

    @njit(parallel=True)
    def spread(source, target, steps, threads):
        total = 0
        for t in prange(threads):
            total += share(source, target, steps * t // threads, steps * (t + 1) // threads)
        return total

    return lambda source, target, steps, threads: (
        spread(source, target, steps, threads) if threads > 1 else share(source, target, 0, steps)
    )
