"""Memory: it does not grow, results that live share none, its limits are errors, and sizes beyond 2**31 and 2**32."""

import os
import tempfile

from programs import follow, row, skipped
from stress_calls import CASES
from subprocesses import SETUP

LINUX = os.path.exists("/proc/self/statm") and os.path.exists("/proc/meminfo")

MEMORY = """
import ctypes, functools, gc, resource
from fastq.engine.runtime import result_pool

def bytes_of(which):
    with open("/proc/self/statm") as file:
        return int(file.read().split()[which]) * resource.getpagesize()

address_space, resident = functools.partial(bytes_of, 0), functools.partial(bytes_of, 1)
"""

GROWTH = 4 << 20  # bytes that a process may grow by: what the C library keeps varies by as much


def growth(scale, progress):
    """10^6 small calls, 10^5 of new shapes and 10^4 large ones; after a tenth of them memory must not grow."""
    works = {
        "small calls": (1_000_000, 1000, 0, "small.check(); small_rows()"),
        "calls of new shapes": (100_000, 100, 5000, "new_shape()"),  # the plan cache is full by then
        "large calls": (10_000, 10, 0, "fastq.quantize(large, 'int8').dequantize(); fastq.minmax(large)"),
    }
    rows = []
    for what, (most, each, full, work) in works.items():
        count = max(2 * each, 2 * full, int(most * scale) // each * each)
        code = f"""
        small, large = Case(100), np.ones((1 << 11, 1 << 10), np.float32)
        matrix, shapes = np.ones((10, 32), np.float32), np.ones(1 << 12, np.float32)
        rng = np.random.default_rng(0)

        def small_rows():
            fastq.quantize(matrix, "int4", axis=0)
            fastq.quantize(matrix[:, ::2], "int8", axis=-1, block_size=8)

        def new_shape():
            new = shapes[: 1 + rng.integers(4000)]
            fastq.quantize(new.reshape(1, 1, -1), "int8", axis=2 - int(rng.integers(3)))

        def work():
            for _ in range({each}):
                {work}

        done, before = 0, 0
        while done < {count}:
            work()
            done += {each}
            step({each})
            if not before and done >= max({full}, {count} / 10):
                gc.collect()
                before = resident()
        gc.collect()
        grown = resident() - before
        print(grown)
        if grown > {GROWTH}:
            failed(f"grew by {{grown}} bytes")
        """
        wrong, printed = follow(code, progress(what, count), setup=SETUP + MEMORY, NUMBA_NUM_THREADS=4)
        rows.append(row("memory", f"{what} without growth beyond 4 MiB", count, wrong))
        print(f"memory, {what}: grew by", *printed, "bytes")
    return rows


# Threads make large results, keep them only by a view or an export, write to it, and look at it again: who shares
# memory with another finds that one's number there.
SHARING = """
def exports(result, k):
    "What still sees the memory of a result, and an array of it."
    return [
        lambda: result,
        lambda: result[1::3],
        lambda: result.reshape(-1)[-1000:],
        lambda: np.frombuffer(memoryview(result).cast("B"), result.dtype),
        lambda: np.from_dlpack(result),
        lambda: np.ctypeslib.as_array((ctypes.c_char * result.nbytes).from_buffer(result)).view(result.dtype),
        lambda: np.asarray(memoryview(result)),
        lambda: result.T[::2],
        lambda: np.broadcast_to(result, (2, *result.shape)),
        lambda: np.lib.stride_tricks.as_strided(result, (5,), (8 * result.itemsize,)),
    ][k]()

codes = np.zeros(1 << 20, np.int8)
live, lock, numbers = {}, threading.Lock(), iter(range(10**9))

def sharing(rounds, picks):
    kept = []
    for _ in range(rounds):
        size = (1 << 20) + picks.randrange(1 << 12)
        if picks.random() < 0.5:
            result = fastq.dequantize_linear(np.zeros(size, np.int8), np.float32(0.5), 0)
        else:
            result = fastq.fake_quantize(np.ones(size, np.float32), "int8")
        with lock:
            number = next(numbers)
            low, high = np.lib.array_utils.byte_bounds(result)
            for other, (start, stop) in live.items():
                if low < stop and start < high:
                    failed(f"{number} shares memory with {other}")
            live[number] = low, high
        result.fill(number % 65536)
        seen = exports(result, picks.randrange(10))
        kept.append((number, seen))
        del result, seen
        if picks.random() < 0.1:
            gc.collect()
        while len(kept) > picks.randrange(1, 6):
            number, seen = kept.pop(picks.randrange(len(kept)))
            if not (seen == number % 65536).all():
                failed(f"{number} was written to by another")
            with lock:
                del live[number]
            del seen
        step()
    with lock:
        for number, _ in kept:
            del live[number]
"""


def sharing(scale, progress, before=""):
    """10,000 large results in four threads, of which views and exports live; `before` is code that runs first."""
    count = max(8, int(2500 * scale))
    code = f"""
    {before}
    seeds = iter(range(4))
    in_threads(4, lambda: sharing({count}, random.Random(next(seeds))))
    """
    what = "large results seen by views, memoryviews, ctypes and DLPack that share memory"
    wrong, _ = follow(code, progress(what, 4 * count), setup=SETUP + MEMORY + SHARING, NUMBA_NUM_THREADS=2)
    return [row("memory", what, 4 * count, wrong)]


def limits(scale, progress):
    """1,000 calls with little address space left: right, or MemoryError; the next is right, and nothing is lost."""
    count = max(10, int(1000 * scale))
    code = f"""
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what was freed would serve the call without new space
    rng = np.random.default_rng(0)
    every = [call for _, call in calls(rng.standard_normal((1 << 11, 1 << 11), np.float32))]
    hashed = lambda result: hash(tuple(flat(result)))
    expected = [hashed(call(fastq)) for call in every]
    fastq.set_result_pool_limit(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    gc.collect()
    start, errors = None, 0
    for k in range({count}):
        index = k % len(every)
        left = int(rng.integers(1 << 25))
        result = None
        resource.setrlimit(resource.RLIMIT_AS, (address_space() + left, hard))
        try:
            result = every[index](fastq)
        except MemoryError:
            errors += 1
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if result is not None and hashed(result) != expected[index]:
            failed(f"call {{index}} with {{left}} bytes left is wrong")
        result = None
        if hashed(every[index](fastq)) != expected[index]:
            failed(f"call {{index}} is wrong after one with {{left}} bytes left")
        if k == {count} // 10:
            start = resident()
        step()
    gc.collect()
    if resident() > start + {2 * GROWTH}:
        failed(f"{{resident() - start}} bytes are lost")
    print(errors)
    """
    what = "calls within a limit of address space"
    wrong, printed = follow(code, progress(what, count), setup=SETUP + MEMORY + CASES, NUMBA_NUM_THREADS=2)
    if not printed or printed == ["0"]:
        wrong.append(f"no call met its limit: {printed}")
    return [row("memory", f"{what}, of which {' '.join(printed)} ended in MemoryError", count, wrong)]


def sizes(scale, progress):
    """2**31 + 17 and 2**32 + 3 elements: every code and value against a table of all inputs. Only at full scale."""
    if scale < 1:
        return skipped("memory", "2**31 + 17 and 2**32 + 3 elements", "only at a scale of 1 or more")
    code = """
    size, dtype = int(os.environ["ELEMENTS"]), os.environ["DTYPE"]
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    itemsize = np.dtype(dtype).itemsize
    if free < size * (2 * itemsize + 1):
        failed(f"only {free} bytes of memory are free")
        sys.exit(0)
    CHUNK = 1 << 24
    every = np.arange(1 << 8 * itemsize, dtype=f"u{itemsize}").view(dtype)  # by its bits
    rng = np.random.default_rng(0)
    x = np.empty(size, dtype)
    pattern = rng.integers(-100 if itemsize == 1 else -30000, 100, CHUNK - 77).astype(dtype)  # no power of two
    for at in range(0, size, pattern.size):
        x[at : at + pattern.size] = pattern[: size - at]
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x[-1], x[size // 2] = low, high
    if (found := fastq.minmax(x)) != (low, high):
        failed(f"minmax {found}")
    step()

    def compare(actual, table):
        if actual.shape != x.shape:
            failed(actual.shape)
        for at in range(0, size, CHUNK):
            part = x[at : at + CHUNK]
            found = actual[at : at + CHUNK].view(f"u{actual.itemsize}")
            if not np.array_equal(found, table[part.view(f"u{itemsize}")]):
                failed(f"{dtype} from {at} on")
                return
        step()

    scale = np.float32(0.7 if itemsize == 1 else 200)
    table = reference.quantize_linear(every, scale, 3, "int8").view("u1")
    compare(fastq.quantize_linear(x, scale, 3, "int8"), table)
    if itemsize == 1:
        codes = fastq.quantize_linear(x, scale, 3, "uint4")
        if codes.shape != ((size + 1) // 2,):
            failed(codes.shape)
        small = reference.unpack(reference.quantize_linear(every, scale, 3, "uint4"), "uint4", shape=every.shape)
        for at in range(0, size, CHUNK):
            expected = reference.pack(small[x[at : at + CHUNK].view("u1")], "uint4")
            if not np.array_equal(codes[at // 2 : at // 2 + expected.size], expected):
                failed(f"codes of 4 bits from {at} on")
        step()
    """
    rows = []
    for dtype, power, more in (("int8", 31, 17), ("int8", 32, 3), ("int16", 31, 17)):
        what, steps, elements = f"2**{power} + {more} elements of {dtype}", 3 if dtype == "int8" else 2, 2**power + more
        wrong, _ = follow(code, progress(what, steps), ELEMENTS=elements, DTYPE=dtype, NUMBA_NUM_THREADS=2)
        rows.append(row("memory", f"operations on {what}", steps, wrong))
    return rows


def machine_code(scale, progress):
    """The growth of a process for each kernel that it compiles, and for each that it loads: a figure, no promise."""
    count = max(4, int(1000 * scale))
    code = f"""
    import itertools
    from fastq.formats.qtypes import QTYPES
    from fastq.engine.jit import compile as jit
    inputs = ["f4", "f8", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
    calls = itertools.product(inputs, QTYPES, (None, 0, 1), ("raise", "zero", "keep"))
    first = None
    made = lambda: len(jit._functions)
    while made() < {count} + 10:
        dtype, name, axis, nan = next(calls)
        try:
            fastq.quantize(np.ones((4, 32), dtype), name, axis=axis, symmetric=True, nan=nan)
        except (TypeError, ValueError):
            continue
        step()
        if first is None and made() >= 10:
            first, before = made(), resident()
    gc.collect()
    print(made() - first, resident() - before)
    """
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for how in ("compiled", "loaded"):
            wrong, printed = follow(
                code,
                progress(f"kernels {how}", count),
                setup=SETUP + MEMORY,
                NUMBA_CACHE_DIR=cache,
                NUMBA_NUM_THREADS=1,
            )
            kernels, nbytes = map(int, printed[0].split()) if printed else (0, 0)
            what = f"kernels {how}, {nbytes / max(kernels, 1) / 2**20:.2f} MiB each"
            rows.append(row("memory", what, kernels, wrong))
    return rows


def memory(scale, progress):
    """All of them, one after the other."""
    return [each for work in (growth, sharing, limits, machine_code, sizes) for each in work(scale, progress)]
