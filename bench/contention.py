"""How long calls stall while another process wants one of the cores.

    python bench/contention.py [seconds]

Times single calls of quantize_linear with one thread and with all of them, in turns, beside a process that computes
without end on one core, and prints the best, median and 99th percentile. The aim: no percentile above that of one
thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np

import fastq

SIZES = 1 << 16, 1 << 18, 1 << 20
TURN = 0.25  # seconds of calls with one number of threads


def busy_process() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
    return process


def seconds_of_calls(size: int, threads: int) -> list[float]:
    fastq.set_num_threads(threads)
    x, out = np.linspace(-3, 3, size, dtype=np.float32), np.empty(size, np.int8)
    scale, zero_point = np.float32(0.02), np.int8(3)
    end, seconds, before = time.perf_counter() + TURN, [], 0.0
    while before < end:
        before = time.perf_counter()
        fastq.quantize_linear(x, scale, zero_point, out=out)
        seconds.append(time.perf_counter() - before)
    return seconds


def main(seconds: float = 3.0) -> None:
    most = fastq.get_num_threads()
    for competitor in (False, True):
        process = busy_process() if competitor else None
        try:
            for size in SIZES:
                samples: dict[int, list[float]] = {1: [], most: []}
                for _ in range(round(seconds / TURN / 2)):
                    for threads, calls in samples.items():
                        calls += seconds_of_calls(size, threads)
                for threads, calls in samples.items():
                    best, median, last, worst = np.percentile(calls, [0, 50, 99, 100]) * 1e6
                    print(
                        f"{'beside a busy process' if competitor else 'alone':22} {size:8} elements {threads:3} threads"
                        f"  best {best:7.1f}  median {median:7.1f}  99 % {last:8.1f}  worst {worst:8.1f} us"
                    )
        finally:
            if process is not None:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
