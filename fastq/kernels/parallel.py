"""When to run in parallel, and how.

A kernel is a C function that works on a range of units. It is called for the whole range below `PARALLEL_FROM`; above
it the caller and worker threads of our own claim chunks from counters. All that they share is one block of words:

- The gate, one word: sequence number and number of threads of a job, whether it is closed, and how many workers are
  inside. A worker enters by one compare-and-swap, of an open gate whose sequence number is new to it, and only then
  reads the job. The last thing it does is to take itself out of the count.
- The caller that changes the owner word from 0 to 1 may write a job and open the gate. When no chunk is left to claim
  it closes the gate and waits until nobody is inside. So a worker that comes late costs nothing, and nobody touches the
  caller's memory after its call. A caller that finds an owner works alone.
- A worker that has spun in vain parks: it says so in its PARKED word, looks at the gate once more and waits for its
  lock. Who changes the word back to 0 releases the lock, or, if it is the worker itself, does not wait for it.

Callers need no worker, so one that could not be started or is not scheduled does no harm. Workers never return to
Python, where the end of the interpreter would find them. A forked child has none; it starts its own, around words of
its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.compiler_lock import global_compiler_lock

from fastq.kernels import jit
from fastq.kernels.simd import (
    advance,
    atomic_add,
    atomic_load,
    atomic_or,
    atomic_store,
    claim,
    exchange,
    fence,
    inline,
    intrinsic,
    pause,
    pointer,
    replace,
    set_bits,
)

# elements; below it a second thread brings nothing (2**16: 11 us alone, 11 us with two). It is enough for four threads
PARALLEL_FROM = 1 << 17
# elements in a chunk: small enough that a thread that is held up leaves little undone, large enough that claiming and
# the seams between chunks cost nothing (2**26 on two cores: 12.2 ms with 2**16, 11.2 ms with 2**18, 10.9 ms in halves)
CHUNK = 1 << 14, 1 << 18
# seconds that an idle worker watches the gate before it parks, and a caller those inside before it sleeps
SPIN = 100e-6

_INT = types.int64
# where an ndarray has the address of its elements: in the first field of PyArrayObject, which is part of NumPy's ABI
_DATA_OFFSET = object.__basicsize__


# --- instructions -----------------------------------------------------------------------------------------------------


@intrinsic
def _data(typingctx: Any, array: Any) -> Any:
    """Address of the elements of the ndarray whose id() this is, 0 for 0: 0.03 us, where `ndarray.ctypes` takes 0.8."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        is_none = builder.icmp_unsigned("==", args[0], word(0))
        somewhere = builder.alloca(word)
        builder.store(word(0), somewhere)
        field = builder.inttoptr(builder.add(args[0], word(_DATA_OFFSET)), word.as_pointer())
        return builder.load(builder.select(is_none, somewhere, field))

    return _INT(_INT), emit


@intrinsic
def _call(typingctx: Any, kernel: Any, integers: Any) -> Any:
    """Call the kernel at an address; pointers are passed as integers, which every C ABI of a 64 bit CPU allows."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        values = [builder.extract_value(args[1], k) for k in range(integers.count)]
        function = ir.FunctionType(word, [word] * (integers.count + 1))
        action = word(0)
        return builder.call(builder.inttoptr(args[0], function.as_pointer()), [action, *values])

    return _INT(_INT, integers), emit


def _python_call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    function = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), args)


@intrinsic
def _acquire(typingctx: Any, lock: Any) -> Any:
    """Sleep until somebody releases the lock, Python's own of C, which needs no interpreter."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lock, i32 = builder.inttoptr(args[0], ir.IntType(8).as_pointer()), ir.IntType(32)
        _python_call(builder, "PyThread_acquire_lock", i32, lock, i32(1))
        return context.get_dummy_value()

    return types.void(_INT), emit


@intrinsic
def _release(typingctx: Any, lock: Any) -> Any:
    """Wake the thread that sleeps on the lock, or will."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lock = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        _python_call(builder, "PyThread_release_lock", ir.VoidType(), lock)
        return context.get_dummy_value()

    return types.void(_INT), emit


# --- the words that threads share -------------------------------------------------------------------------------------

LINE = 8  # int64 in a cache line: words that different threads write do not share one

GATE, OWNER, SEEN, JOB, SLOTS = (k * LINE for k in (0, 1, 2, 3, 5))  # a job takes two lines
KERNEL, POINTERS, STOP, UNITS, BACKWARD, THREADS, ROUNDS = (JOB + k for k in (0, 1, 7, 8, 9, 10, 11))
SLOT = 2 * LINE  # words of one slot, of which these are
TAKEN, PARKED, LOCK = 0, LINE, LINE + 1

# the gate from its lowest bit: how many are inside, flags, threads of the job, its sequence number
INSIDE, CLOSED, SLEEPING = (1 << 16) - 1, 1 << 16, 1 << 17
THREADS_BIT, SEQUENCE_BIT = 18, 34
MOST_THREADS = (1 << (SEQUENCE_BIT - THREADS_BIT)) - 1


@inline
def _work(words, slot):  # type: ignore[no-untyped-def]
    """Work on chunks until none is left: those of this slot first, which the call before may have left in its cache."""
    kernel, p, stop, chunk = words[KERNEL], POINTERS, words[STOP], words[UNITS]
    backward, threads = words[BACKWARD], words[THREADS]
    pointers = (words[p], words[p + 1], words[p + 2], words[p + 3], words[p + 4], words[p + 5])
    chunks, seen = (stop + chunk - 1) // chunk, 0
    for turn in range(threads):
        owner = (slot + turn) % threads
        first, last = owner * chunks // threads, (owner + 1) * chunks // threads
        taken = advance(words, SLOTS + owner * SLOT + TAKEN)
        k = claim(taken)
        while k < last - first:
            start = (last - 1 - k if backward else first + k) * chunk
            seen |= _call(kernel, (*pointers, 0, start, min(start + chunk, stop), slot))
            k = claim(taken)
    fence()  # what was streamed comes before the end of the work, also for threads on other cores
    set_bits(advance(words, SEEN), seen)


@inline
def _wake(words, slot, threads):  # type: ignore[no-untyped-def]
    """Wake two workers, who wake two each, if they are parked."""
    for child in range(2 * slot + 1, min(2 * slot + 3, threads)):
        parked = advance(words, SLOTS + child * SLOT + PARKED)
        if atomic_load(parked) != 0 and exchange(parked, 0) != 0:
            _release(words[SLOTS + child * SLOT + LOCK])


# --- compiled drivers -------------------------------------------------------------------------------------------------


def _once(kernel, src, dst, scale, zero, sums, plan, origin, start, stop):  # type: ignore[no-untyped-def]
    pointers = (_data(src), _data(dst), _data(scale), _data(zero), _data(sums), _data(plan))
    return _call(kernel, (*pointers, origin, start, stop, 0))


def _share(kernel, src, dst, scale, zero, sums, plan, stop, chunk, backward, control, threads):  # type: ignore[no-untyped-def]
    pointers = (_data(src), _data(dst), _data(scale), _data(zero), _data(sums), _data(plan))
    words = pointer(control, types.int64)
    if threads == 1 or exchange(advance(words, OWNER), 1) != 0:
        start, seen = 0, 0
        while start < stop:
            seen |= _call(kernel, (*pointers, 0, start, min(start + chunk, stop), 0))
            start += chunk
        return seen
    words[KERNEL], words[STOP], words[UNITS] = kernel, stop, chunk
    words[BACKWARD], words[THREADS], words[SEEN] = backward, threads, 0
    for k in range(6):
        words[POINTERS + k] = pointers[k]
    for slot in range(threads):
        words[SLOTS + slot * SLOT + TAKEN] = 0
    gate = advance(words, GATE)
    sequence = (atomic_load(gate) >> SEQUENCE_BIT) + 1
    atomic_store(gate, sequence << SEQUENCE_BIT | threads << THREADS_BIT)
    _wake(words, 0, threads)
    _work(words, 0)
    atomic_or(gate, CLOSED)
    _wait(words, gate)
    seen = words[SEEN]
    atomic_store(advance(words, OWNER), 0)
    return seen


@inline
def _wait(words, gate):  # type: ignore[no-untyped-def]
    """Return when no worker is inside the closed gate."""
    for _ in range(words[ROUNDS]):
        if atomic_load(gate) & INSIDE == 0:
            return
        pause()
    if atomic_or(gate, SLEEPING) & INSIDE != 0:  # from now on the last one to leave wakes this thread
        _acquire(words[SLOTS + LOCK])


def _serve(control, slot, rounds):  # type: ignore[no-untyped-def]
    """Be the worker of a slot for ever; that of slot 0 only spins for so many rounds."""
    words = pointer(control, types.int64)
    gate, parked = advance(words, GATE), advance(words, SLOTS + slot * SLOT + PARKED)
    last, idle = atomic_load(gate) >> SEQUENCE_BIT, 0
    while True:
        word = atomic_load(gate)
        threads = word >> THREADS_BIT & MOST_THREADS
        if word & CLOSED == 0 and word >> SEQUENCE_BIT != last and slot < threads:
            if replace(gate, word, word + 1):
                last, idle = word >> SEQUENCE_BIT, 0
                _wake(words, slot, threads)
                _work(words, slot)
                if atomic_add(gate, -1) & (SLEEPING | INSIDE) == SLEEPING | 1:
                    _release(words[SLOTS + LOCK])
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
            _acquire(words[SLOTS + slot * SLOT + LOCK])


@functools.cache
def _once_compiled() -> Callable[..., int]:
    return jit.callable_from_python(_once, *[_INT] * 10, nogil=True)


@functools.cache
def _share_compiled() -> Callable[..., int]:
    return jit.callable_from_python(_share, *[_INT] * 12, nogil=True)


@functools.cache
def _serve_compiled() -> Callable[..., None]:
    return jit.callable_from_python(_serve, *[_INT] * 3, nogil=True)


@functools.cache
def _spin_rounds() -> int:
    """How many rounds of a worker take `SPIN`: a pause takes 10 to 140 cycles, by the CPU."""
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
        self.memory = np.zeros(SLOTS + slots * SLOT + LINE, np.int64)
        skipped = -self.memory.ctypes.data % (8 * LINE) // 8
        self.words = self.memory[skipped:]
        self.address = self.words.ctypes.data
        self.words[GATE] = CLOSED
        for slot in range(slots):
            self.words[SLOTS + slot * SLOT + LOCK] = _closed_lock()
        self.slots = 1  # slots in use: that of the caller, and those for which a thread was asked for
        self.starting = threading.Lock()

    def start_workers(self, slots: int) -> None:
        """Have workers for so many slots, except where one cannot be started: its chunks are done by others."""
        if not self.starting.acquire(blocking=False):  # another thread does this, or this one, interrupted by a signal
            return
        try:
            serve, rounds = _serve_compiled(), _spin_rounds()
            self.words[ROUNDS] = rounds
            while self.slots < slots:
                slot, self.slots = self.slots, self.slots + 1
                arguments = serve, self, slot, rounds
                worker = threading.Thread(target=_be_worker, args=arguments, name=f"fastq-{slot}", daemon=True)
                with contextlib.suppress(RuntimeError):  # too many threads, or the interpreter shuts down
                    worker.start()
        finally:
            self.starting.release()


def _be_worker(serve: Callable[..., None], words: _Words, slot: int, rounds: int) -> None:
    serve(words.address, slot, rounds)  # the arguments of this frame keep code and memory alive to the end


def _closed_lock() -> int:
    """Address of a lock of Python's own kind, held by nobody in particular."""
    allocate, acquire = ctypes.pythonapi.PyThread_allocate_lock, ctypes.pythonapi.PyThread_acquire_lock
    allocate.restype, acquire.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int)
    lock = allocate()
    if not lock:
        raise MemoryError
    acquire(lock, 1)
    return int(lock)


# --- how many threads -------------------------------------------------------------------------------------------------


_CGROUP = Path("/sys/fs/cgroup")


def _cgroup_quota() -> float:
    """CPUs that the control group allows, which neither the affinity nor Numba knows; 1e9 without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return 1e9 if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((_CGROUP / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else 1e9
    return 1e9


class _State:
    """What this process knows of its threads; a forked child starts anew."""

    def __init__(self) -> None:
        self.most = min(int(config.NUMBA_NUM_THREADS), MOST_THREADS)
        self.threads = self.most if "NUMBA_NUM_THREADS" in os.environ else max(1, min(self.most, int(_cgroup_quota())))
        self.forget()

    def forget(self) -> None:
        """Drop the workers, who do not come along through a fork."""
        self.words = _Words(self.most)


_state = _State()


def set_num_threads(n: int) -> None:
    """Set how many threads `run` uses, from 1 to the number that Numba starts with."""
    n = operator.index(n)
    if not 1 <= n <= _state.most:
        raise ValueError(f"n must be from 1 to {_state.most}, not {n}; set NUMBA_NUM_THREADS before the start for more")
    _state.threads = n


def get_num_threads() -> int:
    """Return how many threads `run` uses."""
    return _state.threads


def threads_for(elements: int) -> int:
    """Return how many threads `run` uses for so many elements, if no other caller has them."""
    return min(_state.threads, 4 * elements // PARALLEL_FROM) if elements >= PARALLEL_FROM else 1


# --- running ----------------------------------------------------------------------------------------------------------


def run_serial(kernel: int, arrays: tuple[int, ...], start: int, stop: int, origin: int = 0) -> int:
    """Run a kernel on units start..stop in this thread; return the bits of what it saw.

    Parameters
    ----------
    kernel : int
        Address.
    arrays : tuple of int
        The id() of src, dst, scale, zero point, sums and plan, 0 for none; the caller keeps them alive.
    start, stop : int
        Range of units.
    origin : int
        The element that src and dst begin with.
    """
    return _once_compiled()(kernel, *arrays, origin, start, stop)


def run(
    kernel: int,
    arrays: tuple[int, ...],
    stop: int,
    *,
    size: int = 1,
    grain: int = 1,
    chunk: int = 0,
    threads: int = 0,
    backward: bool = False,
) -> int:
    """Run a kernel on units 0..stop with as many threads as that is worth; return the bits of what it saw.

    Parameters
    ----------
    kernel, arrays, stop
        As in `run_serial`.
    size : int
        Elements in a unit.
    grain : int
        Chunks are a multiple of so many units.
    chunk : int
        Units in a chunk, kept to by a single thread too; 0: as suits the number of threads.
    threads : int
        How many threads; 0: `threads_for` as many elements.
    backward : bool
        Begin with the last chunk, which a pass before this one has left in the cache.
    """
    threads = threads or threads_for(stop * size)
    if threads == 1 and not chunk:
        return _once_compiled()(kernel, *arrays, 0, 0, stop)
    words = _state.words
    if threads > words.slots:
        words.start_workers(threads)
    if not chunk:
        smallest, largest = CHUNK
        chunk = -(-min(max(stop * size // (4 * threads), smallest), largest) // (size * grain)) * grain
    return _share_compiled()(kernel, *arrays, stop, chunk, backward, words.address, threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.forget)
    # a child of a process that was compiling in another thread would wait for ever for Numba's lock
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
