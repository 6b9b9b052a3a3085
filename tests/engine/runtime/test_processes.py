"""Threads, forks, the end of the interpreter and settings, each in a process of its own."""

import os
import signal
import sys

import numpy as np
import pytest
from subprocesses import SETUP, USER, run

import fastq
from fastq.engine.runtime import threadpool
from fastq.plan import policy
from fastq.plan.cache import plans
from fastq.system import tuning

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture
def call():
    def call(code, threads=4, **arguments):
        return run(code, **{"NUMBA_NUM_THREADS": threads} if threads else {}, **arguments)

    return call


# Threads


@pytest.mark.slow("a process of many calls")
def test_eight_threads_at_once(call):
    code = """
    from fastq.plan import policy
    threshold = policy.PARALLEL_FROM
    cases = [Case(size, size) for size in (1, 1000, threshold - 1, threshold, 5 * threshold + 3)]
    sys.setswitchinterval(1e-5)

    def work():
        for _ in range(15):
            for case in cases:
                case.check()

    in_threads(8, work)
    """
    call(code)


@pytest.mark.slow("a process of many calls")
@pytest.mark.parametrize("callers", [1, 3])
def test_a_hundred_thousand_tiny_jobs(call, callers):
    """Every interleaving of callers, workers that spin, park or come late, and numbers of threads that change."""
    code = f"""
    from fastq.engine.runtime import shared_records, threadpool
    from fastq.plan import policy
    policy.PARALLEL_FROM, threadpool.CHUNK = 1, (16, 64)
    cases = [Case(size, size) for size in (1, 17, 100, 1000)]
    done = threading.Event()

    def work():
        pauses = np.random.default_rng(0).integers(0, 400, 2000)
        for k in range({100_000 // callers}):
            case = cases[k % 4]
            lo, hi = fastq.minmax(case.x)
            assert lo == case.expected[4] and hi == case.expected[5]
            codes = fastq.quantize_linear(case.x, case.expected[1], case.expected[2])
            assert codes.tobytes() == case.expected[0].tobytes()
            if k % 50 == 0:
                time.sleep(pauses[k // 50 % 2000] / 1e6)

    def change():
        while not done.wait(0.001):
            fastq.set_num_threads(int(np.random.default_rng().integers(1, 5)))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        in_threads({callers}, work)
    finally:
        done.set()
    """
    call(code)


# a kernel in Python, which the caller and workers call with the interpreter lock
KERNEL = """
import ctypes
from fastq.engine.runtime import shared_records, threadpool
from fastq.engine.runtime import driver
threadpool.WAKE_FROM = 1  # workers come at once

def run(kernel, chunks, threads=4):
    "What a plan returns for a function of the start of a chunk and the slot that works on it."
    words = [ctypes.c_int64] * 11
    def call(action, src, dst, scale, zero_point, sums, plan, origin, start, stop, slot):
        assert stop == start + 1
        return kernel(start, slot)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *words)(call)
    address = ctypes.cast(function, ctypes.c_void_p).value
    return driver.run(driver.plan_launch(address, driver.VALUES, None, chunks, threads, chunk=1))
"""


# programs of few calls, one after the other in one process, which takes longer to start than they do; what they need
TOGETHER = {
    "a caller that finds a job works alone": (
        "getpid",
        """
from fastq.engine.runtime import shared_records, threadpool
case = Case(1 << 18)
case.check()
words = threadpool._state.words.words
words[shared_records.OWNER], gate = 1, words[shared_records.GATE]
case.check()
assert words[shared_records.OWNER] == 1 and words[shared_records.GATE] == gate
words[shared_records.OWNER] = 0
while words[shared_records.GATE] == gate:  # a caller whose workers are slow to leave works alone
    case.check()
assert words[shared_records.OWNER] == 0
""",
    ),
    "every chunk is done once": (
        "getpid",
        """
for k in range(300):
    chunks, threads = k % 50 + 1, k % 3 + 2
    done = []
    run(lambda start, slot: done.append((start, slot)) or 0, chunks, threads)
    assert sorted(start for start, _ in done) == list(range(chunks))
    assert {slot for _, slot in done} <= set(range(threads))
""",
    ),
    "a thread pool of the user": (
        "getpid",
        """
cases = [Case(size, size) for size in (1000, 1 << 16, 1 << 18)]
with ThreadPoolExecutor(6) as pool:
    list(pool.map(Case.check, cases * 20))
""",
    ),
    "use, then fork, then use in child and grandchild": (
        "fork",
        """
cases = [Case(size, size) for size in (1000, 1 << 17)]

def work():
    for case in cases:
        case.check()

def work_and_fork():
    work()
    join(forked(work))
    work()

work()
join(forked(work_and_fork), forked(work))
work()
""",
    ),
    "a pool of forked processes": (
        "fork",
        """
import multiprocessing
cases = [Case(1 << 17, seed) for seed in range(6)]

def work(k):
    cases[k].check()
    return k

cases[0].check()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(work, range(6)) == list(range(6))
""",
    ),
    "the number of threads is that of the process": (
        "getpid",
        """
fastq.set_num_threads(3)
seen = []
in_threads(2, lambda: seen.append(fastq.get_num_threads()))
assert seen == [3, 3]
fastq.set_num_threads(4)
""",
    ),
    "more threads than CPUs": (
        "sched_setaffinity",
        """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
cases = [Case(size, size) for size in (1 << 16, 1 << 18)]
assert fastq.get_num_threads() == 4
for _ in range(50):
    for case in cases:
        case.check()
""",
    ),
}


def test_what_a_process_does_one_after_the_other(call):
    """Its output says which was the last one that began."""
    there = {name: code for name, (needed, code) in TOGETHER.items() if hasattr(os, needed)}
    code = "".join(f"print({name!r}, flush=True)\n{code}" for name, code in there.items())
    assert call(code, setup=SETUP + KERNEL).splitlines() == [*there]


@pytest.mark.slow("2 s asleep", quick=lambda seconds: seconds == 0)
@pytest.mark.parametrize("seconds", [0, 0.2], ids=["at once", "asleep"])
def test_a_caller_waits_for_workers_that_are_inside(call, seconds):
    code = f"""
    for _ in range(10 if {seconds} else 1000):
        inside, ended = threading.Event(), []
        threadpool._state.words.words[shared_records.BACKOFF_UNTIL] = 0  # whatever the round before this one did

        def kernel(start, slot):
            if slot == 0:
                inside.wait()  # for a worker, and leave all else to it
            else:
                inside.set()
                time.sleep({seconds})
                ended.append(start)
            return 1 << start

        assert run(kernel, 4) == 15
        assert ended  # before the call has
    """
    call(code, setup=SETUP + KERNEL)


@pytest.mark.slow("waits for stalls")
def test_after_a_stall_callers_work_alone_for_a_while(call):
    """A stall is a worker that is waited for longer than the caller has worked."""
    code = """
    words = threadpool._state.words.words

    def slots(seconds):
        "Who works on eight chunks, of which those of a worker take so long."
        seen = set()
        run(lambda start, slot: seen.add(slot) or time.sleep(seconds if slot else 1e-4) or 0, 8, 2)
        return seen

    def until_two():
        start = time.perf_counter()
        while slots(0) != {0, 1}:
            assert time.perf_counter() < start + 30
        return time.perf_counter() - start

    until_two()
    assert not words[shared_records.BACKOFF_UNTIL]
    from fastq.engine.runtime import workers
    within, calls = workers.BACKOFF_REPEAT_WITHIN, workers.BACKOFF_MIN_CALLS
    least, longest = workers.LEAST_BACKOFF, workers.MOST_BACKOFF
    for since, helped, before, expected in [
        (0, 2 * calls, 0, least),
        (0, 2 * calls, 3 * least, 12 * least),
        (0, 2 * calls, longest, longest),
        (2 * within, 0, 3 * least, 12 * least),
        (2 * within, 2 * calls, longest, longest // 2),
        (2 * within, 2 * calls, least, least),
        (longest, 0, longest, least),
    ]:
        words[shared_records.BACKOFF_UNTIL] = 0
        until_two()
        while not words[shared_records.BACKOFF_UNTIL] > time.perf_counter_ns():
            words[shared_records.BACKOFF_UNTIL] = time.perf_counter_ns() - since  # the end of the backoff before
            words[shared_records.HELPED], words[shared_records.BACKOFF] = helped, before
            slots(0.1)
        assert words[shared_records.BACKOFF] == expected
        if expected > least:  # long enough for this thread to look at it before its end
            assert slots(0) == {0}
    """
    call(code, setup=SETUP + KERNEL)


@pytest.mark.slow("compiles a parallel function of Numba's")
def test_beside_a_parallel_function_of_the_user(call):
    code = """
    user(ones)
    case, done = Case(1 << 17), threading.Event()
    runs = 0

    def others():
        global runs
        while not done.is_set():
            assert user(ones) == ones.size
            runs += 1

    other = threading.Thread(target=others)
    other.start()
    in_threads(4, lambda: [case.check() for _ in range(25)])
    done.set()
    other.join()
    assert runs
    """
    call(code, setup=SETUP + USER)


# Forks


@pytest.mark.slow("20 forks each", quick=lambda pause: pause == 0)
@needs_fork
@pytest.mark.parametrize("pause", [0, 0.01], ids=["spinning", "parked"])
def test_fork_and_exit_while_workers_wait(call, pause):
    code = f"""
    case = Case(1 << 17)
    for _ in range(10):
        case.check()
        time.sleep({pause})
        children = [forked(case.check) for _ in range(2)]
        case.check()
        join(*children)
    case.check()
    time.sleep({pause})
    """
    call(code)


@pytest.mark.slow("compiles a parallel function of Numba's")
@needs_fork
def test_fork_of_a_user_of_numba_who_has_only_imported_fastq(call):
    code = """
    user(ones)
    assert "fastq.plan.kernel_call" not in sys.modules
    join(forked(Case(1 << 17).check))
    """
    call(code, setup=SETUP + USER)


@pytest.mark.slow("compiles a parallel function of Numba's")
@needs_fork
def test_import_in_a_worker_of_a_user_of_numba(call):
    code = """
    import multiprocessing
    import sys
    import numpy as np

    def work(size):
        import fastq
        x = np.linspace(-1, 1, size, dtype=np.float32)
        return np.array_equal(fastq.quantize_linear(x, 1 / 128, 0, "int8"), np.clip(np.rint(x * 128), -128, 127))

    user(np.ones(1 << 16))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(work, [1000, 1 << 17]) == [True, True]
    assert "fastq.engine.runtime" not in sys.modules  # of fastq the entry point alone was called, by Numba
    """
    call(code, setup=USER.replace("ones = np", "import numpy as np\nones = np"))


@pytest.mark.slow("compiles kernels again")
@needs_fork
def test_fork_while_another_thread_compiles(tmp_path):
    code = """
    dtypes = ["int8", "uint8", "int16", "uint16"]
    fastq.minmax(np.ones(1, np.float32))

    def compile_all():
        for dtype in dtypes:
            fastq.quantize_linear(np.ones(9, dtype), 1.0, 0, "int8")

    def work(dtype):
        lo, hi = fastq.minmax(np.arange(9, dtype=dtype))
        assert (lo, hi) == (0, 8)

    compiling = threading.Thread(target=compile_all)
    compiling.start()
    children = []
    for dtype in dtypes[:2]:
        time.sleep(0.1)
        assert compiling.is_alive()
        children.append(forked(lambda: work(dtype)))
    join(*children)
    compiling.join()
    """
    run(code, NUMBA_CACHE_DIR=tmp_path)


@pytest.mark.slow("a process that imports Numba each", quick=lambda first, module: module == "ml_dtypes")
@needs_fork
@pytest.mark.parametrize(
    ("first", "module"),
    [
        ("fastq.minmax(np.ones(1, np.float32))", "numba"),
        ("fastq.gguf.quantize(np.ones((1, 32), np.float32), 'Q8_0')", "fastq.ops.gguf"),
        ("fastq.get_num_threads()", "fastq.engine.runtime.threadpool"),
        ("fastq.warmup()", "fastq.plan.kernel_call"),
        ("__import__('fastq.formats.floats').formats.floats.FLOAT_FORMATS['bfloat16'].dtype", "ml_dtypes"),
    ],
    ids=["an operation", "gguf", "threads", "warmup", "ml_dtypes"],
)
def test_fork_while_another_thread_imports(call, first, module, tmp_path):
    # Numba is imported where no machine code is on disk
    cache = {"NUMBA_CACHE_DIR": tmp_path} if module == "numba" else {}
    code = f"""
    def work():
        assert "{module}" in sys.modules
        {first}

    importing = threading.Thread(target=lambda: {first})
    importing.start()
    while importing.is_alive() and "{module}" not in sys.modules:  # it is there before it has run
        time.sleep(0)
    join(forked(work))
    importing.join()
    """
    call(code, setup=SETUP.replace("import fastq\nfrom fastq import reference", "import fastq"), **cache)


@pytest.mark.slow("200 forks")
@needs_fork
def test_forks_of_several_threads(call):
    code = """
    fastq.minmax(np.ones(1, np.float32))
    from numba.core.compiler_lock import global_compiler_lock
    locks = fastq.system.forks.importing, global_compiler_lock._lock
    sys.setswitchinterval(1e-6)

    def free():
        "Whether another thread gets what forks wait for."
        got = []
        thread = threading.Thread(target=lambda: got.extend(lock.acquire(timeout=20) for lock in locks))
        thread.start()
        thread.join()
        return got == [True, True]

    def work():
        assert free()

    in_threads(4, lambda: [join(forked(work)) for _ in range(50)])
    assert free()
    """
    call(code)


@needs_fork
def test_fork_while_another_thread_compiles_before_any_call(call):
    code = """
    from fastq.engine import jit
    from numba.core.compiler_lock import global_compiler_lock
    holds = threading.Event()

    def hold():
        with global_compiler_lock:
            holds.set()
            time.sleep(0.3)

    def work():  # in this thread: a new one can have the identity of the one that held the lock
        assert global_compiler_lock._lock.acquire(timeout=5)

    threading.Thread(target=hold).start()
    holds.wait()
    join(forked(work))
    """
    call(code)


@needs_fork
@pytest.mark.parametrize("held", ["importing", "compiling"])
def test_fork_takes_the_lock_of_logging_last(call, held):
    """Who imports or compiles may need it: another order of the hooks before a fork, and both wait for ever."""
    code = f"""
    import fastq  # before logging
    import logging, os, threading, time
    holds, forks = threading.Event(), threading.Event()

    def hold():
        with fastq.system.forks.importing if {held == "importing"} else global_compiler_lock:
            holds.set()
            forks.wait(20)
            time.sleep(0.2)  # the fork waits by now
            logging.getLogger("a new one").isEnabledFor(10)

    if {held == "compiling"}:
        from numba.core.compiler_lock import global_compiler_lock
        fastq.get_num_threads()
    threading.Thread(target=hold).start()
    holds.wait(20)
    forks.set()
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
    else:
        logging.getLogger("another").isEnabledFor(10)
        fastq.get_num_threads()
        os._exit(0)
    """
    call(code, setup="")


@pytest.mark.slow("a process of many calls")
@needs_fork
def test_fork_while_other_threads_call(call):
    code = """
    from fastq.engine.runtime import shared_records, threadpool
    case, done = Case(1 << 20), threading.Event()
    case.check()
    threads = [threading.Thread(target=lambda: [case.check() for _ in iter(done.is_set, True)]) for _ in range(3)]
    for thread in threads:
        thread.start()

    def work():
        words = threadpool._state.words  # those of the parent may be held by a thread that is not there any more
        assert words.slots == 1 and words.words[shared_records.OWNER] == 0
        case.check()
        assert words.words[shared_records.GATE] >> shared_records.SEQUENCE_BIT > 0

    for _ in range(12):
        join(forked(work))
    done.set()
    for thread in threads:
        thread.join()
    """
    call(code)


# The end of the interpreter, and interruptions


def test_call_at_exit(call):
    code = """
    import atexit
    case = Case(1 << 17)
    case.check()
    atexit.register(lambda: (case.check(), print("checked")))
    """
    assert call(code) == "checked\n"


def test_threads_that_outlive_the_main_one(call):
    code = """
    case = Case(1 << 17)
    case.check()

    def work():
        while threading.main_thread().is_alive():
            case.check()
        case.check()
        print("checked")

    threading.Thread(target=work).start()
    time.sleep(0.1)
    """
    assert call(code) == "checked\n"


def test_daemon_threads_at_exit(call):
    code = """
    case = Case(1 << 17)
    case.check()

    def work():
        while True:
            case.check()

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.2)
    print("ends")
    """
    assert call(code) == "ends\n"


def test_functions_outlive_the_module_that_made_them():
    """Threads hold them at the end of the interpreter, where the garbage collector reads what they are defined by."""
    code = """
    import gc
    fastq.minmax(np.ones(1 << 17, np.float32))
    from fastq.engine.runtime import boundary, driver, threadpool
    functions = driver._driver(), threadpool._serve_compiled()
    vars(boundary).clear()
    gc.collect()
    print(*[function.__name__ for function in functions])
    """
    # freed memory is overwritten
    assert run(code, PYTHONMALLOC="debug", NUMBA_NUM_THREADS=4) == "drive serve_without_interpreter\n"


@pytest.mark.slow("a process each", quick=lambda failing: failing == [2])
@pytest.mark.parametrize("failing", [[1], [2], [3], [1, 2, 3]])
def test_no_more_threads(call, failing):
    code = f"""
    case, starts = Case(1 << 18), 0
    start = threading.Thread.start

    def start_or_fail(self):
        global starts
        starts += 1
        if starts in {failing}:
            raise RuntimeError("can't start new thread")
        start(self)

    threading.Thread.start = start_or_fail
    for _ in range(5):
        case.check()
    assert starts == 3  # each is tried once
    print(sum(thread.name.startswith("fastq") for thread in threading.enumerate()))
    """
    assert call(code) == f"{3 - len(failing)}\n"


@pytest.mark.slow("50 calls of 4,000,000 elements")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timer")
def test_interrupted_calls(call):
    """A call ends before its interrupt is raised: nobody writes to its memory afterwards, and the next call works."""
    code = """
    import signal
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    case, codes, interrupts = Case(1 << 22), np.empty(1 << 22, np.int8), 0
    case.check()
    for k in range(50):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001 * (k % 7) + 1e-5)
            for _ in range(1000):
                fastq.quantize_linear(case.x, case.expected[1], case.expected[2], out=codes)
        except KeyboardInterrupt:
            interrupts += 1
            codes[:] = 0
            time.sleep(0.001)
            assert not codes.any()
        case.check()
    assert interrupts == 50
    """
    call(code)


# How many threads

OPERATIONS = """
def operations():
    x = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    x[5, 7], x[100] = 80, 0
    q = fastq.quantize(x, "int8")
    rows = fastq.quantize(x, "uint8", axis=0)
    yield "quantize", x, {"dtype": "int8"}
    yield "quantize", x, {"dtype": "int8", "axis": 0, "symmetric": True}
    yield "quantize", x, {"dtype": "uint8", "axis": -1}
    yield "quantize", x, {"dtype": "int8", "axis": -1, "block_size": 32, "symmetric": True}
    yield "quantize_linear", x, {"scale": 0.02, "zero_point": 3, "dtype": "int8"}
    yield "fake_quantize", x, {"dtype": "int8"}
    yield "minmax", x, {}
    yield "minmax", x, {"axis": 1}
    yield "minmax", x[:, ::2], {}
    yield "dequantize_linear", q.codes, {"scale": q.scale, "zero_point": q.zero_point}
    yield "dequantize_linear", rows.codes, {"scale": rows.scale, "zero_point": rows.zero_point, "axis": 0}
    yield "compare", x, {"q": q}
    yield "compare", x, {"q": rows}
    yield "compare", x, {"q": q.dequantize()}

def parts(result):
    if isinstance(result, fastq.QuantizedArray):
        return [result.codes, result.scale, result.zero_point]
    if isinstance(result, fastq.Comparison):
        return [np.array([result.mse, result.sqnr_db, result.max_abs_error, result.mean_abs_error,
                          result.max_relative_error, result.mean_relative_error, result.clipped or 0])]
    return result if isinstance(result, tuple) else [result]

def results(api):
    for name, x, arguments in operations():
        yield [part.tobytes() for part in parts(getattr(api, name)(x, **arguments))]
"""


@pytest.mark.slow("compiles 20 kernels")
def test_results_do_not_depend_on_the_number_of_threads(call):
    code = """
    from fastq.engine.runtime import shared_records, threadpool
    words, used = threadpool._state.words.words, set()

    def recorded(api):
        for result in results(api):
            yield result
            used.add(int(words[shared_records.JOB_THREADS]))

    fastq.set_num_threads(1)
    expected = list(recorded(fastq))
    assert used == {0}
    for n in (2, 4, 3):
        fastq.set_num_threads(n)
        for operation, actual, one in zip(operations(), recorded(fastq), expected, strict=True):
            assert actual == one, (n, operation)
    for operation, actual, one in zip(operations(), results(reference), expected, strict=True):
        if operation[0] != "compare":  # whose sums the reference takes in another order
            assert actual == one, operation
    print(sorted(used))
    """
    assert call(code, setup=SETUP + OPERATIONS) == "[0, 2, 3, 4]\n"


@pytest.mark.slow("a process of many calls")
def test_number_changes_while_others_call(call):
    code = """
    case, done = Case(1 << 17), threading.Event()
    sys.setswitchinterval(1e-6)

    def change():
        while not done.is_set():
            for n in (1, 4, 2, 3):
                fastq.set_num_threads(n)

    changing = threading.Thread(target=change)
    changing.start()
    for _ in range(300):
        case.check()
    done.set()
    changing.join()
    """
    call(code)


def test_range_of_the_number_is_fixed_by_its_caller(monkeypatch):
    """A minimum has a place for each thread: more of them than there were when it was made write past its end."""
    asked = []

    def more_and_more(elements):
        asked.append(elements)
        return 1 + len(asked)

    monkeypatch.setattr(policy, "threads_for", more_and_more)
    plans.clear()
    fastq.minmax(np.ones(1 << 17, np.float32))
    plans.clear()
    assert asked == [(1 << 17) // tuning.current().reduction_cost]


def test_number_of_threads_out_of_range():
    most = threadpool._state.most
    for n in (0, -1, most + 1):
        with pytest.raises(ValueError, match=rf"^n must be from 1 to {most}, not {n}; set NUMBA_NUM_THREADS"):
            fastq.set_num_threads(n)
    with pytest.raises(TypeError):
        fastq.set_num_threads(1.5)


def test_one_thread(call):
    code = """
    from fastq.engine.runtime import shared_records, threadpool
    Case(1 << 18).check()
    print(fastq.get_num_threads(), threadpool._state.words.slots, threading.active_count())
    """
    assert call(code, threads=1) == "1 1 1\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no sched_setaffinity")
def test_affinity(call):
    code = """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    Case(1 << 18).check()
    print(fastq.get_num_threads())
    try:
        fastq.set_num_threads(2)
    except ValueError as error:
        print(error)
    """
    assert call(code, threads=None).startswith("1\nn must be from 1 to 1, not 2")


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, 1e9),
        ({"cpu.max": "max 100000\n"}, 1e9),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "nonsense"}, 1e9),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1e9),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, 1e9),
    ],
)
def test_quota_of_the_control_group(monkeypatch, tmp_path, files, quota):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(threadpool, "_CGROUP", tmp_path)
    assert threadpool._cgroup_quota() == quota


@pytest.mark.parametrize(("quota", "threads"), [(50000, 1), (350000, 3), (9900000, 8)])
def test_quota_limits_the_number_of_threads_unless_the_user_names_one(monkeypatch, tmp_path, quota, threads):
    (tmp_path / "cpu.max").write_text(f"{quota} 100000")
    monkeypatch.setattr(threadpool, "_CGROUP", tmp_path)
    monkeypatch.setattr(threadpool, "_threads_of_numba", lambda: 8)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    assert threadpool._State().threads == threads
    monkeypatch.setenv("NUMBA_NUM_THREADS", "8")
    assert threadpool._State().threads == 8


@pytest.mark.parametrize(("setting", "threads"), [("3", 3), ("0", 1), ("-2", 1), ("", None), ("many", None)])
def test_any_number_of_threads_of_the_environment(monkeypatch, setting, threads):
    monkeypatch.delitem(sys.modules, "numba.core.config", raising=False)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    default = threadpool._State().most
    monkeypatch.setenv("NUMBA_NUM_THREADS", setting)
    assert threadpool._State().threads == (threads or default)


# Other settings


@pytest.mark.slow("compiles kernels again")
def test_jit_disabled(tmp_path):
    code = """
    import numba
    assert numba.config.DISABLE_JIT
    for size in (1, 1000, 1 << 17):
        Case(size).check()
    """
    run(code, NUMBA_CACHE_DIR=tmp_path, NUMBA_DISABLE_JIT=1, NUMBA_NUM_THREADS=2)


def test_import_loads_nothing_else():
    system = [f"fastq.system{name}" for name in ("", ".signals", ".forks", ".imports")]
    names = ["fastq.plan", *system, "fastq.plan.adapters"]
    code = (
        "import sys, fastq; print([m for m in sys.modules if m.startswith(('fastq.', 'numpy', 'numba', 'llvmlite'))])"
    )
    assert run(code, setup="") == f"{names}\n"


def test_public_names_do_not_import_numba():
    code = """
    import sys, fastq
    names = {}
    exec("from fastq import *", names)
    assert set(fastq.__all__) <= set(names) and set(fastq.__all__) <= set(dir(fastq))
    assert {name for name in dir(fastq) if not name.startswith("__")} == {*fastq.__all__, "io"}
    assert all(getattr(fastq, name) is names[name] for name in fastq.__all__)
    assert fastq.io.__name__ == "fastq.io" and "io" not in names
    assert callable(fastq.compare) and not hasattr(fastq, "nothing_of_this_name")
    print([name for name in ("numba", "llvmlite", "ml_dtypes") if name in sys.modules])
    """
    assert run(code, setup="") == "[]\n"


def test_no_warnings(call):
    code = """
    for size in (1000, 1 << 17):
        Case(size).check()
    """
    run("import fastq, fastq.reference", setup="", options=["-X", "dev", "-W", "error"])
    call(code, options=["-X", "dev", "-W", "error"])
