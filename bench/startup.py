"""What a user waits for before the first result: the import, and the first call with and without a disk cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from worker import Absent, child_environment

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


class FirstCall(NamedTuple):
    """Seconds from `import fastq` to the first result, and how many of them `import numba` takes."""

    total: float
    numba: float


def run(code: str, **environment: str) -> list[float]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment() | environment, check=False)
    if done.returncode:
        raise Absent(f"cannot run: {done.stderr.strip().splitlines()[-1]}")
    return [float(word) for word in done.stdout.split()]


def imports(modules: list[str], times: int) -> dict[str, list[float]]:
    """Seconds of each import in fresh processes, interleaved; a first round fills the bytecode and file caches."""
    seconds: dict[str, list[float]] = {module: [] for module in modules}
    for _ in range(times + 1):
        for module in modules:
            seconds[module] += run(IMPORT.format(module=module))
    return {module: each[1:] for module, each in seconds.items()}


def first_calls(elements: int, times: int) -> tuple[list[FirstCall], list[FirstCall]]:
    """Time the first call with an empty cache folder, and in the next process with what that one left there."""
    cold, warm = [], []
    code = FIRST_CALL.format(elements=elements)
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            cache = {"NUMBA_CACHE_DIR": folder}
            cold.append(FirstCall(*run(code, **cache)))
            if not any(Path(where, name) for where, _, names in os.walk(folder) for name in names):
                raise Absent("nothing was written into NUMBA_CACHE_DIR")
            warm.append(FirstCall(*run(code, **cache)))
    return cold, warm
