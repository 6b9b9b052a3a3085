"""The work of threads of the pool: claim chunks, wait for jobs, park; see `fastq.engine.runtime.threadpool`."""

from __future__ import annotations

from fastq.engine.jit import traced
from fastq.engine.runtime.instructions import (
    acquire_lock,
    call_c,
    enter_standard_mode,
    int_value,
    leave_standard_mode,
    local,
    nanoseconds,
    new_int,
    release_interpreter,
    release_lock,
    take_interpreter,
    words_at,
)
from fastq.engine.runtime.shared_records import (
    ALONE,
    BACKOFF,
    BACKOFF_UNTIL,
    CLOSED,
    GATE,
    HELPED,
    INSIDE,
    JOB_BACKWARD,
    JOB_CHUNK,
    JOB_KERNEL,
    JOB_ORIGIN,
    JOB_POINTERS,
    JOB_ROUNDS,
    JOB_START,
    JOB_STOP,
    JOB_THREADS,
    LAST,
    LOCK,
    MOST_THREADS,
    OWNER,
    PARKED,
    SEQUENCE_BIT,
    SLEEPING,
    SLOT,
    SLOTS,
    STATUS,
    TAKEN,
    THREADS_BIT,
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

_ROW = tuning.current()  # numbers that all rows have in common
SERIES = _ROW.series
LEAST_BACKOFF, MOST_BACKOFF = _ROW.backoff
BACKOFF_REPEAT_WITHIN = _ROW.backoff_repeat_within
BACKOFF_MIN_CALLS = _ROW.backoff_min_calls

# --- chunks -----------------------------------------------------------------------------------------------------------


@traced
def _work(words, slot):  # type: ignore[no-untyped-def]
    """Work on chunks until none is left: those of this slot first, which the call before may have left in its cache.

    Chunks are divided into a share for each slot, from each of which whoever comes takes the next chunk by its TAKEN
    word. Of 10 chunks and 4 threads the shares are 0..2, 2..5, 5..7 and 7..10.
    """
    kernel = words[JOB_KERNEL]
    p = JOB_POINTERS
    backward = words[JOB_BACKWARD]
    threads = words[JOB_THREADS]
    origin = words[JOB_ORIGIN]
    start = words[JOB_START]
    stop = words[JOB_STOP]
    chunk = words[JOB_CHUNK]
    pointers = (words[p], words[p + 1], words[p + 2], words[p + 3], words[p + 4], words[p + 5])
    chunks = (stop - start + chunk - 1) // chunk
    status = 0
    for turn in range(threads):
        share = (slot + turn) % threads
        first, last = share * chunks // threads, (share + 1) * chunks // threads
        taken = advance(words, SLOTS + share * SLOT + TAKEN)
        k = fetch_add(taken, 1)
        while k < last - first:
            at = start + (last - 1 - k if backward else first + k) * chunk
            status |= call_c(kernel, (0, *pointers, origin, at, min(at + chunk, stop), slot))
            k = fetch_add(taken, 1)
    fence()  # what was streamed comes before the end of the work, also for threads on other cores
    fetch_or(advance(words, STATUS), status)


@traced
def _wake(words, slot, threads):  # type: ignore[no-untyped-def]
    """Wake the two children of a slot in a binary tree, if they are parked; each wakes its own.

    The children of slot 0, the caller's, are 1 and 2, and those of slot 1 are 3 and 4.
    """
    for child in range(2 * slot + 1, min(2 * slot + 3, threads)):
        parked = advance(words, SLOTS + child * SLOT + PARKED)
        if atomic_load(parked) != 0 and exchange(parked, 0) != 0:
            release_lock((words[SLOTS + child * SLOT + LOCK],))


# --- compiled drivers -------------------------------------------------------------------------------------------------


@traced
def run_alone(kernel, pointers, units):  # type: ignore[no-untyped-def]
    """Run a kernel in this thread on units (origin, start, stop, units in a chunk); return its status."""
    origin, start, stop, chunk = units
    if chunk == 0:
        chunk = stop - start
    status = 0
    while start < stop:
        status |= call_c(kernel, (0, *pointers, origin, start, min(start + chunk, stop), 0))
        start += chunk
    return status


@traced
def run(words, kernel, pointers, units, threads, wake_workers, backward):  # type: ignore[no-untyped-def]
    """Run a kernel as `run_alone` does, with the help of other threads if it is for more than one.

    Without `wake_workers` a call works alone if the first worker is parked, unless calls come one after the other.
    """
    origin, start, stop, chunk = units
    if threads == 1:
        return run_alone(kernel, pointers, units)
    began = nanoseconds(words)
    until = advance(words, BACKOFF_UNTIL)
    last = advance(words, LAST)
    asleep = atomic_load(advance(words, SLOTS + SLOT + PARKED)) != 0 and began - atomic_load(last) > SERIES
    alone = (asleep and not wake_workers) or began < atomic_load(until) or atomic_load(advance(words, ALONE)) != 0
    if alone or exchange(advance(words, OWNER), 1) != 0:
        status = run_alone(kernel, pointers, units)
        atomic_store(last, nanoseconds(words))
        return status
    words[JOB_KERNEL] = kernel
    words[JOB_BACKWARD] = backward
    words[JOB_THREADS] = threads
    words[STATUS] = 0
    words[JOB_ORIGIN] = origin
    words[JOB_START] = start
    words[JOB_STOP] = stop
    words[JOB_CHUNK] = chunk
    for k, pointer in enumerate(pointers):
        words[JOB_POINTERS + k] = pointer
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
    atomic_store(last, nanoseconds(words))
    atomic_store(advance(words, OWNER), 0)
    return status


@traced
def _wait(words, gate):  # type: ignore[no-untyped-def]
    """Wait for at most `SPIN` seconds; return whether no worker is inside the closed gate any more."""
    for _ in range(words[JOB_ROUNDS]):
        if atomic_load(gate) & INSIDE == 0:
            return True
        pause()
    return False


@traced
def _wait_longer(words, gate, began):  # type: ignore[no-untyped-def]
    """Sleep until no worker is inside; if that took longer than the work since `began`, do without them for a while."""
    worked = nanoseconds(words)
    if fetch_or(gate, SLEEPING) & INSIDE != 0:  # from now on the last one to leave wakes this thread
        acquire_lock((words[SLOTS + LOCK], 1))
    now = nanoseconds(words)
    if now - worked > worked - began:
        # the time since the last backoff ended: if this wait comes soon after that, or after few calls with help, the
        # next one is four times as long, else half as long; after a long time it begins with the least again
        since = began - words[BACKOFF_UNTIL]
        longer = since < BACKOFF_REPEAT_WITHIN or words[HELPED] <= BACKOFF_MIN_CALLS
        backoff = 4 * words[BACKOFF] if longer else words[BACKOFF] // 2
        words[BACKOFF] = min(max(backoff if since < MOST_BACKOFF else 0, LEAST_BACKOFF), MOST_BACKOFF)
        words[HELPED] = 0
        atomic_store(advance(words, BACKOFF_UNTIL), now + words[BACKOFF])


@traced
def _serve(address_of_words, slot, rounds):  # type: ignore[no-untyped-def]
    """Run the loop of a worker: wait for jobs, work on their chunks, park after `rounds` without one.

    A worker enters a gate that is open for its slot, with a sequence number that is new to it. With slot 0, which is no
    worker's, this returns instead of parking: `_spin_rounds` measures how long rounds take.
    """
    words = words_at(address_of_words)
    gate = advance(words, GATE)
    parked = advance(words, SLOTS + slot * SLOT + PARKED)
    last = atomic_load(gate) >> SEQUENCE_BIT
    idle = 0
    while True:
        word = atomic_load(gate)
        threads = word >> THREADS_BIT & MOST_THREADS
        if word & CLOSED == 0 and word >> SEQUENCE_BIT != last and slot < threads:
            if compare_exchange(gate, word, word + 1):  # one more is inside
                last = word >> SEQUENCE_BIT
                idle = 0
                _wake(words, slot, threads)
                _work(words, slot)
                if fetch_add(gate, -1) & (SLEEPING | INSIDE) == SLEEPING | 1:  # the last one inside wakes the caller
                    release_lock((words[SLOTS + LOCK],))
            continue
        pause()
        idle += 1
        if idle < rounds:
            continue
        if slot == 0:
            return
        idle = 0
        atomic_store(parked, 1)  # from now on who makes a job wakes this thread; a job before that is seen here
        word = atomic_load(gate)
        seen_new = word & CLOSED == 0 and word >> SEQUENCE_BIT != last
        if not seen_new or exchange(parked, 0) == 0:
            acquire_lock((words[SLOTS + slot * SLOT + LOCK], 1))


def serve_without_interpreter(_, arguments, count):  # type: ignore[no-untyped-def]
    """Run the loop of a worker without the interpreter lock; arguments: address of the words, slot, rounds."""
    objects = words_at(arguments)
    base = local()
    address_of_words = int_value((objects[0], base))
    slot = int_value((objects[1], base))
    rounds = int_value((objects[2], base))
    interpreter = release_interpreter(())
    mode = enter_standard_mode()
    _serve(address_of_words, slot, rounds)
    leave_standard_mode(mode)
    take_interpreter((interpreter,))
    return new_int((0,))


def add_to_alone(_, arguments, count):  # type: ignore[no-untyped-def]
    """Add to the word of callers for which nobody may have help; return what it was, as a new int.

    The arguments are the address of the words, and 1 or -1.
    """
    objects = words_at(arguments)
    base = local()
    address_of_words = int_value((objects[0], base))
    change = int_value((objects[1], base))
    return new_int((fetch_add(advance(words_at(address_of_words), ALONE), change),))
