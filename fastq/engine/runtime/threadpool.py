"""The thread pool: when a kernel runs in parallel, and how.

A kernel is a C function that works on a range of units. On fewer than `PARALLEL_FROM` elements one thread works, the
caller's; on more, the caller and worker threads of our own claim chunks from counters. All that they share is one block
of words:

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

Memory may be weakly ordered, as that of AArch64 is. Words of the job, of what owners keep and TAKEN's zeros are written
by ordinary stores; GATE, OWNER, PARKED and counters change by atomic operations, all sequentially consistent:

- The job is complete for who enters: its words are written before the store that opens the gate, a release, and read
  after the compare-and-swap of that value, an acquire. A gate of another sequence number makes the swap fail.
- Results are complete for the caller: a worker writes them, and STATUS, before it takes itself out of the count. That
  and all that changes the gate until the next job are read-modify-writes, so a load of a gate with nobody inside, an
  acquire, comes after every worker's release. No release of x86-64 orders stores past the cache, so a fence comes
  first.
- The next job finds nobody inside: its owner's exchange acquires what the last owner's store to OWNER released.
- No wake-up is lost: a worker stores PARKED and then loads the gate, the caller stores the gate, or the parent in the
  tree swaps it, and then loads PARKED. In the one order of all these operations one of them sees the other's; acquire
  and release alone would let both miss it. One of two exchanges of PARKED gets the 1, and so the lock is released once.
- A caller that sleeps is woken: SLEEPING and the count are in one word, whose changes are in one order.

Callers need no worker, so one that could not be started or is not scheduled does no harm. Workers never return to
Python, where the end of the interpreter would find them. A forked child has none; it starts its own, around words of
its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import config
from numpy.typing import NDArray

from fastq.engine.jit import intrinsic, njit
from fastq.engine.runtime.boundary import (
    acquire_lock,
    enter_standard_mode,
    int_value,
    leave_standard_mode,
    local,
    nanoseconds,
    new_acquired_lock,
    new_int,
    python_function,
    release_interpreter,
    release_lock,
    take_interpreter,
    words_at,
)
from fastq.engine.simd import (
    advance,
    atomic_load,
    atomic_store,
    compare_exchange,
    exchange,
    fence,
    fetch_add,
    fetch_or,
    pause,
)
from fastq.system import tuning
from fastq.system.arguments import as_int
from fastq.system.lazy import Held

_ROW = tuning.current()
PARALLEL_FROM, WAKE_FROM, SERIES, CHUNK, SPIN = _ROW.parallel_from, _ROW.wake_from, _ROW.series, _ROW.chunk, _ROW.spin
LEAST_BACKOFF, MOST_BACKOFF = _ROW.backoff
BACKOFF_REPEAT_WITHIN, BACKOFF_MIN_CALLS = _ROW.backoff_repeat_within, _ROW.backoff_min_calls

_INT = types.int64


# --- instructions -----------------------------------------------------------------------------------------------------


@intrinsic
def call_address(typingctx: Any, kernel: Any, integers: Any) -> Any:
    """Call a function of a word that is not used and integers at an address, as kernels are.

    Pointers pass as integers, which every C ABI of a 64 bit CPU allows.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        values = [builder.extract_value(args[1], k) for k in range(integers.count)]
        function = ir.FunctionType(word, [word] * (integers.count + 1))
        unused = word(0)
        return builder.call(builder.inttoptr(args[0], function.as_pointer()), [unused, *values])

    return _INT(_INT, integers), emit


# --- the words that threads share -------------------------------------------------------------------------------------

LINE_WORDS = 8  # int64 in a cache line: words that different threads write do not share one

GATE, OWNER, STATUS, JOB, PACE, SLOTS = (k * LINE_WORDS for k in (0, 1, 2, 3, 5, 6))  # a job takes two lines
JOB_KERNEL, JOB_POINTERS, JOB_ORIGIN, JOB_START, JOB_STOP, JOB_CHUNK = (JOB + k for k in (0, 1, 7, 8, 9, 10))
JOB_BACKWARD, JOB_THREADS, JOB_ROUNDS = (JOB + k for k in (11, 12, 13))
# when callers may have help again, for how long they went without it last time, when the last one was ready, and how
# many calls had help since one had to wait for it; how many callers want that nobody has help
BACKOFF_UNTIL, BACKOFF, LAST, HELPED, ALONE = (PACE + k for k in range(5))
SLOT = 2 * LINE_WORDS  # words of one slot, of which these are
TAKEN, PARKED, LOCK = 0, LINE_WORDS, LINE_WORDS + 1

# the gate from its lowest bit: how many are inside, flags, threads of the job, its sequence number
INSIDE, CLOSED, SLEEPING = (1 << 16) - 1, 1 << 16, 1 << 17
THREADS_BIT, SEQUENCE_BIT = 18, 34
MOST_THREADS = (1 << (SEQUENCE_BIT - THREADS_BIT)) - 1


@njit
def _work(words, slot):  # type: ignore[no-untyped-def]
    """Work on chunks until none is left: those of this slot first, which the call before may have left in its cache."""
    kernel, p, backward, threads = words[JOB_KERNEL], JOB_POINTERS, words[JOB_BACKWARD], words[JOB_THREADS]
    origin, start, stop, chunk = words[JOB_ORIGIN], words[JOB_START], words[JOB_STOP], words[JOB_CHUNK]
    pointers = (words[p], words[p + 1], words[p + 2], words[p + 3], words[p + 4], words[p + 5])
    chunks, status = (stop - start + chunk - 1) // chunk, 0
    for turn in range(threads):
        share = (slot + turn) % threads
        first, last = share * chunks // threads, (share + 1) * chunks // threads
        taken = advance(words, SLOTS + share * SLOT + TAKEN)
        k = fetch_add(taken, 1)
        while k < last - first:
            at = start + (last - 1 - k if backward else first + k) * chunk
            status |= call_address(kernel, (*pointers, origin, at, min(at + chunk, stop), slot))
            k = fetch_add(taken, 1)
    fence()  # what was streamed comes before the end of the work, also for threads on other cores
    fetch_or(advance(words, STATUS), status)


@njit
def _wake(words, slot, threads):  # type: ignore[no-untyped-def]
    """Wake the two children of a slot in a binary tree, if they are parked; each wakes its own."""
    for child in range(2 * slot + 1, min(2 * slot + 3, threads)):
        parked = advance(words, SLOTS + child * SLOT + PARKED)
        if atomic_load(parked) != 0 and exchange(parked, 0) != 0:
            release_lock((words[SLOTS + child * SLOT + LOCK],))


# --- compiled drivers -------------------------------------------------------------------------------------------------


@njit
def run_alone(kernel, pointers, units):  # type: ignore[no-untyped-def]
    """Run a kernel in this thread on units (origin, start, stop, units in a chunk); return its status."""
    origin, start, stop, chunk = units
    if chunk == 0:
        chunk = stop - start
    status = 0
    while start < stop:
        status |= call_address(kernel, (*pointers, origin, start, min(start + chunk, stop), 0))
        start += chunk
    return status


@njit
def run(words, kernel, pointers, units, threads, wake_workers, backward):  # type: ignore[no-untyped-def]
    """Run a kernel as `run_alone` does, with the help of other threads if it is for more than one.

    Without `wake_workers` a call works alone if the first worker is parked, unless calls come one after the other.
    """
    origin, start, stop, chunk = units
    if threads == 1:
        return run_alone(kernel, pointers, units)
    began = nanoseconds()
    until, last = advance(words, BACKOFF_UNTIL), advance(words, LAST)
    asleep = atomic_load(advance(words, SLOTS + SLOT + PARKED)) != 0 and began - atomic_load(last) > SERIES
    alone = (asleep and not wake_workers) or began < atomic_load(until) or atomic_load(advance(words, ALONE)) != 0
    if alone or exchange(advance(words, OWNER), 1) != 0:
        status = run_alone(kernel, pointers, units)
        atomic_store(last, nanoseconds())
        return status
    words[JOB_KERNEL], words[JOB_BACKWARD], words[JOB_THREADS], words[STATUS] = kernel, backward, threads, 0
    words[JOB_ORIGIN], words[JOB_START], words[JOB_STOP], words[JOB_CHUNK] = origin, start, stop, chunk
    for k in range(6):
        words[JOB_POINTERS + k] = pointers[k]
    for slot in range(threads):
        words[SLOTS + slot * SLOT + TAKEN] = 0
    gate = advance(words, GATE)
    sequence = (atomic_load(gate) >> SEQUENCE_BIT) + 1
    atomic_store(gate, sequence << SEQUENCE_BIT | threads << THREADS_BIT)
    _wake(words, 0, threads)
    _work(words, 0)
    fetch_or(gate, CLOSED)
    words[HELPED] += 1
    if not _wait(words, gate):
        _wait_longer(words, gate, began)
    status = words[STATUS]
    atomic_store(last, nanoseconds())
    atomic_store(advance(words, OWNER), 0)
    return status


@njit
def _wait(words, gate):  # type: ignore[no-untyped-def]
    """Wait for at most `SPIN` seconds; return whether no worker is inside the closed gate any more."""
    for _ in range(words[JOB_ROUNDS]):
        if atomic_load(gate) & INSIDE == 0:
            return True
        pause()
    return False


@njit
def _wait_longer(words, gate, began):  # type: ignore[no-untyped-def]
    """Sleep until no worker is inside; if that took longer than the work since `began`, do without them for a while."""
    worked = nanoseconds()
    if fetch_or(gate, SLEEPING) & INSIDE != 0:  # from now on the last one to leave wakes this thread
        acquire_lock((words[SLOTS + LOCK], 1))
    now = nanoseconds()
    if now - worked > worked - began:
        since = began - words[BACKOFF_UNTIL]
        longer = since < BACKOFF_REPEAT_WITHIN or words[HELPED] <= BACKOFF_MIN_CALLS
        backoff = 4 * words[BACKOFF] if longer else words[BACKOFF] // 2
        words[BACKOFF] = min(max(backoff if since < MOST_BACKOFF else 0, LEAST_BACKOFF), MOST_BACKOFF)
        words[HELPED] = 0
        atomic_store(advance(words, BACKOFF_UNTIL), now + words[BACKOFF])


@njit
def _serve(control, slot, rounds):  # type: ignore[no-untyped-def]
    """Run the loop of a worker: wait for jobs, work on their chunks, park; that of slot 0 spins for `rounds` alone."""
    words = words_at(control)
    gate, parked = advance(words, GATE), advance(words, SLOTS + slot * SLOT + PARKED)
    last, idle = atomic_load(gate) >> SEQUENCE_BIT, 0
    while True:
        word = atomic_load(gate)
        threads = word >> THREADS_BIT & MOST_THREADS
        if word & CLOSED == 0 and word >> SEQUENCE_BIT != last and slot < threads:
            if compare_exchange(gate, word, word + 1):
                last, idle = word >> SEQUENCE_BIT, 0
                _wake(words, slot, threads)
                _work(words, slot)
                if fetch_add(gate, -1) & (SLEEPING | INSIDE) == SLEEPING | 1:
                    release_lock((words[SLOTS + LOCK],))
            continue
        pause()
        idle += 1
        if idle < rounds:
            continue
        if slot == 0:
            return
        idle = 0
        atomic_store(parked, 1)
        word = atomic_load(gate)
        seen_new = word & CLOSED == 0 and word >> SEQUENCE_BIT != last
        if not seen_new or exchange(parked, 0) == 0:
            acquire_lock((words[SLOTS + slot * SLOT + LOCK], 1))


def _serve_without_interpreter(_, arguments, count):  # type: ignore[no-untyped-def]
    objects, base = words_at(arguments), local()
    control, slot, rounds = int_value((objects[0], base)), int_value((objects[1], base)), int_value((objects[2], base))
    interpreter, mode = release_interpreter(()), enter_standard_mode()
    _serve(control, slot, rounds)
    leave_standard_mode(mode)
    take_interpreter((interpreter,))
    return new_int((0,))


@functools.cache
def _serve_compiled() -> Callable[..., int]:
    return python_function(_serve_without_interpreter)


def _add_to_alone(_, arguments, count):  # type: ignore[no-untyped-def]
    objects, base = words_at(arguments), local()
    control, change = int_value((objects[0], base)), int_value((objects[1], base))
    return new_int((fetch_add(advance(words_at(control), ALONE), change),))


@functools.cache
def _add_to_alone_compiled() -> Callable[..., int]:
    return python_function(_add_to_alone)


def call_alone(function: Callable[..., Any], *operands: Any) -> Any:
    """Call a function; each call of the process works in its caller's thread meanwhile, as suits threads of a pool.

    Their pool has as many threads as it may use; help for each of them would be threads on top of that.
    """
    words, add = _state.words, _add_to_alone_compiled()
    try:
        add(words.address, 1)  # an interrupt is raised when this has returned
        return function(*operands)
    finally:
        add(words.address, -1)


@functools.cache
def _spin_rounds() -> int:
    """Measure how many rounds of a worker take `SPIN`: a pause takes 10 to 140 cycles, by the CPU."""
    serve, nowhere, rounds = _serve_compiled(), _Words(1), 1000
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        serve(nowhere.address, 0, rounds)
        seconds.append(time.perf_counter() - start)
    return int(rounds * SPIN / min(seconds)) + 1


# --- workers ----------------------------------------------------------------------------------------------------------


class _Words:
    """The words of a process, aligned to a cache line, and the workers around them."""

    def __init__(self, slots: int) -> None:
        self.memory = np.zeros(SLOTS + slots * SLOT + LINE_WORDS, np.int64)
        skipped = -self.memory.ctypes.data % (8 * LINE_WORDS) // 8
        self.words = self.memory[skipped:]
        self.address = self.words.ctypes.data
        self.words[GATE] = CLOSED
        for slot in range(slots):
            self.words[SLOTS + slot * SLOT + LOCK] = new_acquired_lock()
        self.slots = 1  # slots in use: that of the caller, and those for which a thread was asked for
        self.starting = threading.Lock()

    def start_workers(self, slots: int) -> None:
        """Start workers for so many slots; the chunks of one that cannot be started are done by others."""
        with Held():
            if not self.starting.acquire(blocking=False):  # another thread does this
                return
            try:
                serve, rounds = _serve_compiled(), _spin_rounds()
                self.words[JOB_ROUNDS] = rounds
                while self.slots < slots:
                    slot, self.slots = self.slots, self.slots + 1
                    arguments = serve, self, slot, rounds
                    worker = threading.Thread(target=_be_worker, args=arguments, name=f"fastq-{slot}", daemon=True)
                    with contextlib.suppress(RuntimeError):  # too many threads, or the interpreter shuts down
                        worker.start()
            finally:
                self.starting.release()


def _be_worker(serve: Callable[..., int], words: _Words, slot: int, rounds: int) -> None:
    serve(words.address, slot, rounds)  # the arguments of this frame keep code and memory alive to the end


# --- how many threads -------------------------------------------------------------------------------------------------


_CGROUP = Path("/sys/fs/cgroup")


def _cgroup_quota() -> float:
    """Return the CPUs that the control group allows, which neither affinity nor Numba knows; 1e9 without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return 1e9 if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((_CGROUP / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else 1e9
    return 1e9


class _State:
    """The number of threads of this process and their words; a forked child starts anew."""

    def __init__(self) -> None:
        self.most = min(int(config.NUMBA_NUM_THREADS), MOST_THREADS)
        self.threads = self.most if "NUMBA_NUM_THREADS" in os.environ else max(1, min(self.most, int(_cgroup_quota())))
        self.forget()

    def forget(self) -> None:
        """Drop the workers, who do not come along through a fork."""
        self.words = _Words(self.most)
        forget_plans()


_changed: list[Callable[[], None]] = []


def when_changed(do: Callable[[], None]) -> None:
    """Register a function to call when bound plans expire: they are for other threads, or those of a parent process."""
    _changed.append(do)


def forget_plans() -> None:
    """Have all plans that were bound before bound anew."""
    for do in _changed:
        do()


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


def threads_for(elements: int) -> int:
    """Return how many threads `run` uses for so many elements, if no other caller has them."""
    return min(_state.threads, 2 * elements // PARALLEL_FROM) if elements >= PARALLEL_FROM else 1


def chunk_for(stop: int, size: int, chunk_multiple: int, threads: int) -> int:
    """Return how many of `stop` units of so many elements are a chunk, a multiple of `chunk_multiple`."""
    smallest, largest = CHUNK
    return -(-min(max(stop * size // (4 * threads), smallest), largest) // (size * chunk_multiple)) * chunk_multiple


def pool_for(threads: int) -> NDArray[np.int64]:
    """Return the words that so many threads share, with workers around them."""
    words = _state.words
    if threads > words.slots:
        words.start_workers(threads)
    return words.words


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.forget)
