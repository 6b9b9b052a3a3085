"""Threads, forks, processes, exits and interrupts in large numbers."""

import importlib.util
import os

import pytest
from programs import COMPILE_MORE, follow, row, skipped
from subprocesses import SETUP, USER

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# Calls of every operation, with their results: of the reference, and of `compare`, whose sums it takes in another
# order, of one thread.
CASES = """
import itertools
from fastq.plan.cache import plans
from fastq.plan.layout import make_layout

def parts(result):
    if isinstance(result, fastq.QuantizedArray):
        return [result.codes, result.scale, result.zero_point]
    if isinstance(result, fastq.QParams):
        return [result.scale, result.zero_point]
    if isinstance(result, fastq.Comparison):
        return [np.array([result.mse, result.max_abs_error, result.mean_abs_error, result.clipped or 0])]
    return result if isinstance(result, tuple) else [result]

def flat(result):
    return [(part.dtype, part.shape, part.tobytes()) for part in map(np.asarray, parts(result))]

def calls(x):
    "Name, function of an API and of its arguments, for one matrix."
    rows, columns = x.shape
    q, blocks = reference.quantize(x, "int8", axis=0), x[:, : columns // 32 * 32]
    four = reference.quantize(x, "uint4")
    values, packed, half = four.unpacked(), four.codes, x.astype(np.float16)
    yield "array", lambda api: api.quantize(x, "int8")
    yield "rows", lambda api: api.quantize(x, "uint8", axis=0, symmetric=True)
    yield "columns", lambda api: api.quantize(x, "int8", axis=1)
    yield "blocks", lambda api: api.quantize(x, "int4", axis=-1, block_size=32, symmetric=True)
    yield "convention", lambda api: api.quantize(x, "uint8", convention="torch")
    yield "float8", lambda api: api.quantize(x, "float8_e4m3fn", axis=0)
    yield "mxfp4", lambda api: api.quantize(x, "mxfp4")
    yield "nvfp4", lambda api: api.quantize(x, "nvfp4")
    yield "half", lambda api: api.quantize(half, "uint8")
    yield "given", lambda api: api.quantize_linear(x, np.float32(0.03), 3, "uint8")
    yield "decoded", lambda api: api.dequantize_linear(q.codes, q.scale, q.zero_point, axis=0)
    yield "dequantize", lambda api: q.dequantize() if api is fastq else reference.dequantize(q)
    yield "fake", lambda api: api.fake_quantize(x, "int8", axis=0)
    yield "minmax", lambda api: api.minmax(x)
    yield "minima", lambda api: api.minmax(x, axis=1)
    yield "qparams", lambda api: api.choose_qparams(x, "int8", axis=0)
    yield "fortran", lambda api: api.quantize(np.asfortranarray(x), "int8", axis=0)
    yield "strided", lambda api: api.quantize(x[::2, ::3], "int8")
    yield "float64", lambda api: api.quantize(x.astype(np.float64), "int16")
    yield "pack", lambda api: api.pack(values, "uint4")
    yield "unpack", lambda api: api.unpack(packed, "uint4", shape=x.shape)
    yield "compare", lambda api: fastq.compare(x, q)
    yield "gguf", lambda api: api.gguf.quantize(blocks, "Q4_0")

def cases(count, large=1 / 40, each=None):
    "So many calls of small matrices, some of which are large enough for several threads; `each` or all of a matrix."
    made, picks = [], random.Random(1)
    for size in itertools.count():
        rows = picks.randrange(2, 30) if picks.random() > large else picks.randrange(500, 900)
        x = np.random.default_rng(size).standard_normal((rows, 32 * picks.randrange(1, 9) + size % 31), np.float32)
        every = list(calls(x))
        for name, function in picks.sample(every, each) if each else every:
            made.append((name, function, flat(function(reference if name != "compare" else fastq))))
            if len(made) == count:
                return made

def check(case):
    name, function, expected = case
    actual = flat(function(fastq))
    if actual != expected:
        failed(f"{name} of {expected[0][1]}")
"""


def threads(scale, progress):
    """32 threads, 10,000 calls each, concurrently with a parallel function of Numba's, and torch if it is installed."""
    count, callers = max(1, int(10_000 * scale)), 32
    code = f"""
    import importlib.util

    done, runs = threading.Event(), [0, 0]

    def parallel():
        while not done.wait(0.002):
            runs[0] += 1
            if user(ones) != 1 << 16:
                failed("the sum of another library")

    def torch_too():
        import torch
        ones = torch.ones(200, 200)
        while not done.wait(0.002):
            runs[1] += 1
            if not bool(((ones @ ones) == 200).all()):
                failed("a product of torch")

    caches = [plans.size, make_layout.cache_parameters()["maxsize"]]
    made = cases(2 * max(caches), each=1) if {count >= 1000} else cases(300)
    others = [parallel] + [torch_too] * bool(importlib.util.find_spec("torch"))
    others = [threading.Thread(target=other) for other in others]
    for other in others:
        other.start()
    sys.setswitchinterval(1e-6)
    seeds = iter(range({callers}))

    def work():
        picks = random.Random(next(seeds))
        for k in range({count}):
            attempted(lambda: check(picks.choice(made)))
            if k % 100 == 99:
                step(100)
        step({count} % 100)

    in_threads({callers}, work)
    done.set()
    for other in others:
        other.join()
    assert runs[0]
    if {count >= 1000}:  # whatever is kept by shape has been dropped and made again
        assert make_layout.cache_info().misses > max(caches)
    """
    what = "mixed calls of 32 threads, next to numba.prange"
    if importlib.util.find_spec("torch"):
        what += " and torch"
    else:
        skipped("threads", "calls next to torch", "torch is not installed")
    wrong, _ = follow(code, progress(what, count * callers), setup=SETUP + USER + CASES, NUMBA_NUM_THREADS=4)
    return [row("threads", what, count * callers, wrong)]


FORKS_OF_A_PROCESS = 50


def forks(scale, progress):
    """1,000 forks while other threads import, compile and call; each child calls."""
    count = max(4, int(1000 * scale))
    code = """
    x = np.linspace(-1, 1, 3000, dtype=np.float32)
    q = reference.quantize(x, "int8")
    done = threading.Event()

    def right():
        assert fastq.quantize(x, "int8").codes.tobytes() == q.codes.tobytes()
        assert fastq.minmax(large) == (0, 1)

    large = np.zeros(1 << 17, np.float32)
    large[77_777] = 1

    def child():
        faulthandler.dump_traceback_later(120, exit=True)
        right()

    def call():
        while not done.is_set():
            attempted(right)

    def compiling():
        compile_more(lambda: not done.is_set())

    def import_more():
        fastq.gguf.quantize(np.ones((1, 32), np.float32), "Q8_0")
        fastq.warmup

    threads = [threading.Thread(target=work) for work in (call, call, compiling, import_more)]
    for thread in threads:
        thread.start()
    try:
        for k in range(int(os.environ["FORKS"])):
            time.sleep(rng.random() * 0.04)
            code = os.waitstatus_to_exitcode(os.waitpid(forked(child), 0)[1])
            if code:
                failed(f"fork {k} ended with {code}")
            step()
    finally:
        done.set()
    for thread in threads:
        thread.join()
    """
    what = "forks while other threads import, compile and call"
    advance, wrong = progress(what, count), []
    for seed in range(0, count, FORKS_OF_A_PROCESS):
        each = min(FORKS_OF_A_PROCESS, count - seed)
        environment = {"SEED": seed, "FORKS": each, "NUMBA_NUM_THREADS": 4}
        wrong += follow(code, advance, setup=SETUP + COMPILE_MORE, timeout=900, **environment)[0]
    return [row("forks", what, count, wrong)]


def processes(scale, progress):
    """Process pools of every way to start a process, and the workers of torch's DataLoader."""
    count, rows = max(8, int(100 * scale)), []
    pools = {how: f"multiprocessing.get_context('{how}').Pool(2)" for how in ("spawn", "forkserver", "fork")}
    pools["ProcessPoolExecutor"] = "concurrent.futures.ProcessPoolExecutor(2)"
    code = """
    import concurrent.futures, functools, multiprocessing
    arrays = [np.random.default_rng(k).standard_normal(1 << 16, np.float32) for k in range(8)]
    expected = [reference.quantize(x, "int8").codes.tobytes() for x in arrays]
    fastq.quantize(arrays[0], "int8")
    with {pool} as pool:
        for start in range(0, {count}, 8):
            results = list(pool.map(functools.partial(fastq.quantize, dtype="int8"), arrays))
            for k, q in enumerate(results):
                if q.codes.tobytes() != expected[k]:
                    failed(k)
            step(8)
    """
    for name, pool in pools.items():
        what = f"calls in processes of {name}"
        wrong, _ = follow(code.format(pool=pool, count=count), progress(what, count), NUMBA_NUM_THREADS=2, timeout=600)
        rows.append(row("processes", what, -(-count // 8) * 8, wrong))
    if importlib.util.find_spec("torch") is None:
        return rows + skipped("processes", "workers of a DataLoader", "torch is not installed")
    code = f"""
    import torch
    x = np.random.default_rng(0).standard_normal((64, 1 << 12), np.float32)
    expected = [reference.quantize(row, "int8").codes for row in x]
    fastq.quantize(x[0], "int8")

    class Rows(torch.utils.data.Dataset):
        __len__ = lambda self: {count}
        __getitem__ = lambda self, k: (k % 64, fastq.quantize(x[k % 64], "int8").codes)

    for k, codes in torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2):
        if not np.array_equal(codes, expected[k]):
            failed(k)
        step()
    """
    what = "calls in workers of a DataLoader"
    wrong, _ = follow(code, progress(what, count), NUMBA_NUM_THREADS=2, timeout=600)
    return [*rows, row("processes", what, count, wrong)]


# Each child of a fork ends as the main program does: by the end of the interpreter, not by os._exit. That takes a tenth
# of the time of a process that imports all again.
EXITS = """
small, large = Case(1000), Case(1 << 17)
small.check(), large.check()

def call():
    picks = random.Random()
    while True:
        picks.choice((small, large)).check()

def begin(works):
    for work in works:
        threading.Thread(target=work, daemon=True).start()
    time.sleep(random.random() * 0.02)
"""


def exits(scale, progress):
    """5,000 ends of the interpreter while daemon threads call, from the cache and while they compile."""
    rows, options = [], {"setup": SETUP + COMPILE_MORE + EXITS, "NUMBA_NUM_THREADS": 4}
    for whose, most, works in (
        ("that call", 4000, "[call] * 3"),
        ("that compile", 1000, "[call, compile_more, compile_more]"),
        ("of a process of its own", 500, "[call] * 3"),
    ):
        count, what = max(3, int(most * scale)), f"ends of the interpreter under daemon threads {whose}"
        advance, wrong = progress(what, count), []
        if whose == "of a process of its own":
            for _ in range(count):
                wrong += follow(f"begin({works})", timeout=120, **options)[0]
                advance(1)
        else:
            code = f"""
            import signal
            for k in range({count}):
                pid = os.fork()
                if not pid:
                    signal.alarm(120)
                    break
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if code:
                    failed(f"exit code {{code}}")
                step()
            if not pid:
                begin({works})
            """
            wrong, _ = follow(code, advance, timeout=7200, **options)
        rows.append(row("exits", what, count, wrong))
    return rows


def interrupts(scale, progress):
    """2,000 interrupts of calls of every kind: the call has ended by then, and the next one is right."""
    count = max(10, int(2000 * scale))
    code = f"""
    import signal
    from fastq.engine.runtime import shared_records, threadpool
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    made = cases(23 * 8, large=0.5)
    big = Case(1 << 22)
    big.check()
    for case in made:
        check(case)
    codes = np.empty(big.x.size, np.int8)
    words = threadpool._state.words.words
    for k in range({count}):
        x = next(iter([big.x]))
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.004 + 1e-5)
            while True:
                if k % 3:
                    fastq.quantize_linear(big.x, big.expected[1], big.expected[2], out=codes)
                else:
                    rng.choice(made)[1](fastq)
        except KeyboardInterrupt:
            codes[:] = 77
            if words[shared_records.OWNER]:
                failed("the thread pool is held")
            time.sleep(0.0005)
            if not (codes == 77).all():
                failed("a thread writes after the call")
        attempted(lambda: check(rng.choice(made)))
        step()
    attempted(big.check)
    """
    what = "interrupts in the middle of calls"
    wrong, _ = follow(code, progress(what, count), setup=SETUP + CASES, NUMBA_NUM_THREADS=4)
    return [row("interrupts", what, count, wrong)]
