"""The thread pool: how several threads run a kernel.

A kernel is a C function that works on a range of units. A plan says how many threads work: if it is one, the caller's,
else the caller and worker threads of our own claim chunks from counters. All that they share is one block of words:

- The gate, one word: sequence number and number of threads of a job, whether it is closed, and how many workers are
  inside. A worker enters by one compare-and-swap, of an open gate whose sequence number is new to it, and only then
  reads the job. The last thing it does is to take itself out of the count.
- The caller that changes the owner word from 0 to 1 may write a job and open the gate. When no chunk is left to claim
  it closes the gate and waits until nobody is inside. So a worker that comes late costs nothing, and nobody touches the
  caller's memory after its call. A caller that finds an owner works alone.
- A caller that had to wait for a worker longer than it had worked writes down until when callers work alone, and how
  long that is; only owners write this. All of them write when they were ready, by which a small call knows whether it
  is one of a series, for which it wakes a worker.
- Callers in `call_alone` count themselves in a word; as long as it is not 0, all callers work alone.
- A worker that has spun in vain parks: it says so in its PARKED word, looks at the gate once more and waits for its
  lock. Who changes the word back to 0 releases the lock, or, if it is the worker itself, does not wait for it.

Memory may be weakly ordered, as that of AArch64 is. Words of the job, of owners and TAKEN's zeros are written by
ordinary stores; GATE, OWNER, PARKED and counters change by atomic operations, all sequentially consistent:

- The job is complete for who enters: its words are written before the store that opens the gate, a release, and read
  after the compare-and-swap of that value, an acquire. A gate of another sequence number makes the swap fail.
- Results are complete for the caller: a worker writes them, and STATUS, before it takes itself out of the count. That
  and all that changes the gate until the next job are read-modify-writes, so a load of a gate with nobody inside, an
  acquire, comes after every worker's release. No release of x86-64 orders stores past the cache, so a fence comes
  first.
- The next job finds nobody inside: its owner's exchange acquires what the last owner's store to OWNER released.
- No wake-up is lost: a worker stores PARKED and then loads the gate, the caller stores the gate, or the parent in the
  tree swaps it, and then loads PARKED (`workers._wake`). In the one order of all these operations one of them sees the
  other's; acquire and release alone would let both miss it. One of two exchanges of PARKED gets the 1, and so the lock
  is released once.
- A caller that sleeps is woken: SLEEPING and the count are in one word, whose changes are in one order.

Callers need no worker, so one that could not be started or is not scheduled does no harm. Workers never return to
Python, where the end of the interpreter would find them. A forked child has no workers; it starts its own, around its
own words.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.boundary import clock, new_acquired_lock, once_made
from fastq.engine.runtime.shared_records import (
    CLOCK,
    CLOSED,
    GATE,
    JOB_ROUNDS,
    LINE_WORDS,
    LOCK,
    MOST_THREADS,
    SLOT,
    SLOTS,
)
from fastq.system import tuning
from fastq.system.arguments import as_int
from fastq.system.signals import Held

_ROW = tuning.current()
WAKE_FROM = _ROW.wake_from
CHUNK = _ROW.chunk
SPIN = _ROW.spin


# --- compiled drivers -------------------------------------------------------------------------------------------------


def _import_serve_without_interpreter() -> Callable[..., Any]:
    """Import the loop of a worker, only where there is no machine code of it."""
    from fastq.engine.runtime.workers import serve_without_interpreter

    return serve_without_interpreter


def _import_add_to_alone() -> Callable[..., Any]:
    """Import the function that counts callers, only where there is no machine code of it."""
    from fastq.engine.runtime.workers import add_to_alone

    return add_to_alone


_serve_compiled = once_made(_import_serve_without_interpreter)
_add_to_alone_compiled = once_made(_import_add_to_alone)
COMPILED = _serve_compiled, _add_to_alone_compiled


def call_alone(function: Callable[..., Any], *operands: Any) -> Any:
    """Call a function; meanwhile each call of the process works in the thread of its caller, without workers.

    It is for functions that run in threads of a pool, such as Dask's, which has as many threads as it may use: workers
    would come on top of those.
    """
    words = _state.words
    add = _add_to_alone_compiled()
    try:
        add(words.address, 1)  # an interrupt is raised when this has returned
        return function(*operands)
    finally:
        add(words.address, -1)


@functools.cache
def _spin_rounds() -> int:
    """Measure how many rounds of a worker take `SPIN`: a pause takes 10 to 140 cycles, by the CPU."""
    serve = _serve_compiled()
    words_without_jobs = _Words(1)
    rounds = 1000
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        serve(words_without_jobs.address, 0, rounds)
        seconds.append(time.perf_counter() - start)
    return int(rounds * SPIN / min(seconds)) + 1


# --- workers ----------------------------------------------------------------------------------------------------------


class _Words:
    """The words of a process, aligned to a cache line, and the workers around them."""

    def __init__(self, slots: int) -> None:
        self.memory = np.zeros(SLOTS + slots * SLOT + LINE_WORDS, np.int64)
        # a line more than the words need, of which as many are skipped as lie before the first line
        skipped = -self.memory.ctypes.data % (8 * LINE_WORDS) // 8
        self.words = self.memory[skipped:]
        self.address = self.words.ctypes.data
        self.words[GATE] = CLOSED  # no job yet
        self.words[CLOCK] = clock()
        for slot in range(slots):
            self.words[SLOTS + slot * SLOT + LOCK] = new_acquired_lock()
        self.slots = 1  # slots in use: that of the caller, and those for which a thread was asked for
        self.starting = threading.Lock()

    def start_workers(self, slots: int) -> None:
        """Start workers for `slots` slots; the chunks of one that cannot be started are done by others."""
        with Held():
            if not self.starting.acquire(blocking=False):  # another thread does this
                return
            try:
                serve = _serve_compiled()
                rounds = _spin_rounds()
                self.words[JOB_ROUNDS] = rounds
                while self.slots < slots:
                    slot = self.slots
                    self.slots = self.slots + 1
                    arguments = serve, self, slot, rounds
                    worker = threading.Thread(target=_be_worker, args=arguments, name=f"fastq-{slot}", daemon=True)
                    with contextlib.suppress(RuntimeError):  # too many threads, or the interpreter shuts down
                        worker.start()
            finally:
                self.starting.release()


def _be_worker(serve: Callable[..., int], words: _Words, slot: int, rounds: int) -> None:
    """Run the loop of a worker, which does not return; the arguments of this frame keep code and memory alive."""
    serve(words.address, slot, rounds)


# --- how many threads -------------------------------------------------------------------------------------------------


_CGROUP = Path("/sys/fs/cgroup")


def _cgroup_quota() -> float:
    """Return the CPUs that the control group allows, which neither affinity nor Numba knows; 1e9 without a limit.

    The files are those of version 2 of control groups, else of version 1, where a quota of -1 is none.
    """
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return 1e9 if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((_CGROUP / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else 1e9
    return 1e9


def _threads_of_numba() -> int:
    """Return the number of threads that Numba starts with, which need not have been imported."""
    config: Any = sys.modules.get("numba.core.config")
    if config is not None:
        return int(config.NUMBA_NUM_THREADS)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(ValueError):  # Numba warns of an invalid number
        return int(os.environ.get("NUMBA_NUM_THREADS", cpus))
    return cpus


class _State:
    """The number of threads of this process and their words; a forked child starts from scratch."""

    def __init__(self) -> None:
        self.most = max(1, min(_threads_of_numba(), MOST_THREADS))
        # a number that a user has set counts more than the limit of the control group
        self.threads = self.most if "NUMBA_NUM_THREADS" in os.environ else max(1, min(self.most, int(_cgroup_quota())))
        self.forget()

    def forget(self) -> None:
        """Drop the workers, who do not come along through a fork."""
        self.words = _Words(self.most)
        forget_plans()


_changed: list[Callable[[], None]] = []


def when_changed(forget: Callable[[], None]) -> None:
    """Register a function to call when bound plans expire: they are for other threads, or those of a parent process."""
    _changed.append(forget)


def forget_plans() -> None:
    """Make all bound plans bind again."""
    for forget in _changed:
        forget()


_state = _State()


def set_num_threads(n: int) -> None:
    """Set how many threads `run` uses, from 1 to the number that Numba starts with."""
    n = as_int(n, "n")
    if not 1 <= n <= _state.most:
        raise ValueError(f"n must be from 1 to {_state.most}, not {n}; set NUMBA_NUM_THREADS before the start for more")
    _state.threads = n
    forget_plans()


def get_num_threads() -> int:
    """Return how many threads `run` uses."""
    return _state.threads


def chunk_for(stop: int, size: int, chunk_multiple: int, threads: int) -> int:
    """Return how many of `stop` units of `size` elements are a chunk, a multiple of `chunk_multiple`.

    Each thread has about four chunks, whose elements are limited by `CHUNK`. With limits of 1024 and 65536, 1000 units
    of 32 elements give 2 threads 4000 elements a chunk: 125 units, and 128 as a multiple of 4.
    """
    smallest, largest = CHUNK
    return -(-min(max(stop * size // (4 * threads), smallest), largest) // (size * chunk_multiple)) * chunk_multiple


def pool_for(threads: int) -> NDArray[np.int64]:
    """Return the words that `threads` threads share, with workers around them."""
    words = _state.words
    if threads > words.slots:
        words.start_workers(threads)
    return words.words


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.forget)
