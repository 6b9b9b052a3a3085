"""What a user waits for: the import, the first call cold and from the cache, and one small call in its three parts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .worker import Absent, Figures, printed

IMPORTS_TIMED = 9
FIRST_CALLS_TIMED = 3
FIRST_CALL_ELEMENTS = (1_000, 1 << 20)
SMALL = 1_000

IMPORT = "import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
FIRST_CALL = """
import time
import numpy as np
import fastq
x = np.linspace(-5, 5, {elements}, dtype=np.float32)
start = time.perf_counter()
import numba
imported = time.perf_counter()
fastq.quantize_linear(x, np.float32(0.05), np.int8(3))
print(time.perf_counter() - start, imported - start)
"""
# The plan of the call is launched again as the call itself launched it, and once more on no elements: what is left then
# is the driver, and what the call takes beyond both is Python.
SMALL_CALL = """
import time
import numpy as np
import fastq
from fastq.plan import cache
from fastq.engine.runtime import driver

x = np.linspace(-5, 5, {elements}, dtype=np.float32)
codes = np.empty(x.shape, np.int8)
scale, zero_point = np.float32(0.05), np.int8(3)
q = fastq.quantize(x, "int8")
values = np.empty_like(x)
CALLS = {{
    "quantize_linear, out=": lambda: fastq.quantize_linear(x, scale, zero_point, out=codes),
    "dequantize_linear, out=": lambda: fastq.dequantize_linear(codes, scale, zero_point, out=values),
    "quantize": lambda: fastq.quantize(x, "int8"),
    "minmax": lambda: fastq.minmax(x),
}}

def seconds(call, number=200, times=150):
    best = []
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(number):
            call()
        best.append((time.perf_counter() - start) / number)
    return sorted(best)

for what, call in CALLS.items():
    ran, drive = [], driver._driver

    def run(*operands):
        ran.append(operands)
        return drive()(*operands)

    driver._driver = lambda: run  # the plan is made with it
    cache.plans.clear()
    call()
    driver._driver = drive
    cache.plans.clear()
    call()
    ((pool, words, *operands),) = ran
    nothing = words.copy()
    nothing[driver.HEAD_WORDS :].view(driver.LAUNCH)["stop"] = 0

    total, launch = seconds(call), drive()
    with_kernel = seconds(lambda: launch(pool, words, *operands))[0]
    without = seconds(lambda: launch(pool, nothing, *operands))[0]
    print(what, total[0], total[len(total) // 2], without, max(0.0, with_kernel - without), sep="|")
"""


def _run(code: str, **environment: str) -> str:
    return printed(1, "-c", code, **environment)


def imports(modules: tuple[str, ...] = ("numpy", "fastq"), times: int = IMPORTS_TIMED) -> Iterator[dict[str, Any]]:
    """Seconds of each import in fresh processes, interleaved; a first round fills the bytecode and file caches."""
    seconds: dict[str, list[float]] = {module: [] for module in modules}
    for _ in range(times + 1):
        for module in modules:
            seconds[module].append(float(_run(IMPORT.format(module=module))))
    for module, each in seconds.items():
        yield {"what": f"import {module}"} | Figures.of(each[1:])._asdict()


def first_calls(elements: int, times: int = FIRST_CALLS_TIMED) -> Iterator[dict[str, Any]]:
    """Time the first call with an empty cache folder, and in the next process with the files that it left.

    The seconds are from `import fastq` to the result; `numba` of them are `import numba`.
    """
    seconds: dict[str, list[list[float]]] = {"cold": [], "from the cache": []}
    code = FIRST_CALL.format(elements=elements)
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            for name, each in seconds.items():
                if name != "cold" and not any(path.is_file() for path in Path(folder).rglob("*")):
                    raise Absent("nothing was written into NUMBA_CACHE_DIR")
                each.append([float(word) for word in _run(code, NUMBA_CACHE_DIR=folder).split()])
    for name, each in seconds.items():
        totals, numba = zip(*each, strict=True)
        figures = Figures.of(list(totals))._asdict()
        yield (
            {"what": f"first call, {elements:,} elements, {name}"} | figures | {"numba": Figures.of(list(numba)).median}
        )


def small_calls(elements: int = SMALL) -> Iterator[dict[str, Any]]:
    """One call on few elements: seconds in all, in the compiled driver, in the kernel, and in Python."""
    for line in _run(SMALL_CALL.format(elements=elements)).splitlines():
        name, *words = line.split("|")
        best, median, dispatch, kernel = map(float, words)
        parts = {"python": max(0.0, best - dispatch - kernel), "dispatch": dispatch, "kernel": kernel}
        yield {"what": f"{name}, {elements:,} elements", "best": best, "median": median} | parts
