"""When to run in parallel, and how.

A kernel is a C function that works on a range of units. It is called for the whole range below `PARALLEL_FROM`, and
above it threads claim chunks from a counter: threads of Numba's parallel region where its layer is safe to enter from
any thread, threads of a pool of our own where it is not. Only one parallel region runs at a time; a caller that finds
it taken runs alone, with the interpreter lock released.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import operator
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

from fastq.kernels import forks, jit
from fastq.kernels.simd import advance, claim, fence, inline, intrinsic, pointer, set_bits

# elements; below it the serial kernel ends before a second thread has woken (2**14: 5 us alone, 7 us with two)
PARALLEL_FROM = 1 << 16
# elements in a chunk: small enough that a thread that is held up leaves little undone, large enough that claiming and
# the seams between chunks cost nothing (2**26 on two cores: 12.2 ms with 2**16, 11.2 ms with 2**18, 10.9 ms in halves)
CHUNK = 1 << 14, 1 << 18

LINE = 8  # int64 in a cache line: counters of different threads do not share one

_INT = types.int64
# where an ndarray has the address of its elements: in the first field of PyArrayObject, which is part of NumPy's ABI
_DATA_OFFSET = object.__basicsize__


# --- compiled drivers -------------------------------------------------------------------------------------------------


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


def _once(kernel, src, dst, scale, zero, sums, plan, origin, start, stop):  # type: ignore[no-untyped-def]
    pointers = (_data(src), _data(dst), _data(scale), _data(zero), _data(sums), _data(plan))
    return _call(kernel, (*pointers, origin, start, stop, 0))


@inline
def _work(kernel, pointers, origin, stop, chunk, backward, progress, slot, threads):  # type: ignore[no-untyped-def]
    """Work on chunks until none is left: those of this slot first, which the call before may have left in its cache.

    `progress` has the bits of what was seen, then for each slot how many of its chunks are taken.
    """
    chunks, seen = (stop + chunk - 1) // chunk, 0
    for turn in range(threads):
        owner = (slot + turn) % threads
        first, last = owner * chunks // threads, (owner + 1) * chunks // threads
        taken = advance(progress, (owner + 1) * LINE)
        k = claim(taken)
        while k < last - first:
            start = (last - 1 - k if backward else first + k) * chunk
            seen |= _call(kernel, (*pointers, origin, start, min(start + chunk, stop), slot))
            k = claim(taken)
    fence()  # what was streamed comes before the end of the work, also for threads on other cores
    set_bits(progress, seen)


def _share(kernel, src, dst, scale, zero, sums, plan, origin, stop, chunk, backward, progress, threads, slot):  # type: ignore[no-untyped-def]
    pointers = (_data(src), _data(dst), _data(scale), _data(zero), _data(sums), _data(plan))
    _work(kernel, pointers, origin, stop, chunk, backward, pointer(_data(progress), types.int64), slot, threads)


def _spread(kernel, src, dst, scale, zero, sums, plan, origin, stop, chunk, backward, progress, threads):  # type: ignore[no-untyped-def]
    pointers = (_data(src), _data(dst), _data(scale), _data(zero), _data(sums), _data(plan))
    where = pointer(_data(progress), types.int64)
    for slot in prange(threads):
        _work(kernel, pointers, origin, stop, chunk, backward, where, slot, threads)


@functools.cache
def _once_compiled() -> Callable[..., int]:
    return jit.callable_from_python(_once, *[_INT] * 10, nogil=True)


@functools.cache
def _share_compiled() -> Callable[..., int]:
    return jit.callable_from_python(_share, *[_INT] * 14, nogil=True)


@functools.cache
def _spread_compiled() -> Callable[..., int]:
    return jit.callable_from_python(_spread, *[_INT] * 13, parallel=True)


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


def _layer() -> str:
    """Name of Numba's threading layer, empty before the first parallel function of anyone has started it."""
    try:
        return str(numba.threading_layer())
    except ValueError:
        return ""


def _region_is_safe() -> bool:
    """Whether Numba's threading layer may be entered from any thread; workqueue aborts the process at the second."""
    if config.THREADING_LAYER != "workqueue":
        with contextlib.suppress(ValueError):  # the layer that was asked for cannot be loaded
            numba.get_num_threads()  # starts the layer: which one it is depends on settings and on what can be loaded
    return _layer() not in ("workqueue", "")


class _State:
    """What this process knows of its threads; a forked child starts anew."""

    def __init__(self) -> None:
        self.most = int(config.NUMBA_NUM_THREADS)
        self.threads = self.most if "NUMBA_NUM_THREADS" in os.environ else max(1, min(self.most, int(_cgroup_quota())))
        # a layer that runs when this module is imported may have been started before a fork; GNU OpenMP ends the child
        forked = forks.happened or (multiprocessing.parent_process() is not None and bool(_layer()))
        self.region_is_safe = False if forked else None  # None: not known before the first use
        self.forget()

    def forget(self) -> None:
        """Drop locks and threads, which do not come along through a fork."""
        self.region = threading.Lock()
        self.pool: ThreadPoolExecutor | None = None
        self.helpers = 0


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


# --- which threads ----------------------------------------------------------------------------------------------------


def _may_enter_region() -> bool:
    if _state.region_is_safe is None:
        _state.region_is_safe = _region_is_safe()
    return _state.region_is_safe


def _in_region(kernel: int, arguments: tuple[int, ...], progress: Any, threads: int) -> None:
    _spread_compiled()(kernel, *arguments, id(progress), threads)


def _in_pool(kernel: int, arguments: tuple[int, ...], progress: Any, threads: int) -> None:
    share = _share_compiled()
    helpers: list[Future[Any]] = []
    try:
        with contextlib.suppress(RuntimeError):  # no new work while the interpreter shuts down
            pool = _pool(threads - 1)
            for slot in range(1, threads):
                helpers.append(pool.submit(share, kernel, *arguments, id(progress), threads, slot))
        share(kernel, *arguments, id(progress), threads, 0)
        for helper in helpers:
            helper.result()
    except BaseException:  # an interrupt: wait nevertheless, since they write to memory of the caller
        wait(helpers)
        raise


def _pool(helpers: int) -> ThreadPoolExecutor:
    """Return a pool whose threads all run: `submit` queues its work before it fails for want of a thread."""
    if _state.pool is None or _state.helpers < helpers:
        pool = ThreadPoolExecutor(helpers, thread_name_prefix="fastq")
        ready = threading.Barrier(helpers)
        try:
            for started in [pool.submit(ready.wait) for _ in range(helpers)]:
                started.result()
        finally:
            ready.abort()  # lets go of those that wait for one that could not be started
        _state.pool, _state.helpers = pool, helpers
    return _state.pool


def threads_for(elements: int) -> int:
    """Return how many threads `run` uses for so many elements, if no other caller has them."""
    return _state.threads if elements >= PARALLEL_FROM else 1


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
    alone = threads == 1 or not _state.region.acquire(blocking=False)
    if alone and not chunk:
        return _once_compiled()(kernel, *arrays, 0, 0, stop)
    try:
        smallest, largest = CHUNK
        chunk = chunk or -(-min(max(stop * size // (4 * threads), smallest), largest) // (size * grain)) * grain
        progress = np.zeros((threads + 1) * LINE, np.int64)
        if alone:
            _share_compiled()(kernel, *arrays, 0, stop, chunk, backward, id(progress), 1, 0)
        else:
            spread = _in_region if _may_enter_region() else _in_pool
            spread(kernel, (*arrays, 0, stop, chunk, backward), progress, threads)
        return int(progress[0])
    finally:
        if not alone:
            _state.region.release()


def _forget_in_child() -> None:
    _state.region_is_safe = False
    _state.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
    # a child of a process that was compiling in another thread would wait for ever for Numba's lock
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
