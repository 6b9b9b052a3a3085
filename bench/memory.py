"""Peak memory of one call beyond its input and output, from the kernel's own high-water mark of resident memory.

`python memory.py SYSTEM WORK VARIANT` measures in a fresh process: everything is allocated and touched, the same call
has run on a small array, then the mark is reset and read around one call at full size. What the call returns beside
out= (scales and zero points) is output and not counted. Linux only; the kernel counts to within some 100 KiB.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import works
from worker import Absent, child_environment
from works import Runner

WARM, FULL = "medium", "large"
RESET_HIGH_WATER_MARK = "5"


def high_water_mark() -> int:
    """Read the most bytes that were resident since the last reset."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError("/proc/self/status has no VmHWM")
    return int(found[1]) * 1024


def reset_high_water_mark() -> None:
    Path("/proc/self/clear_refs").write_text(RESET_HIGH_WATER_MARK)


def peak_of(runner: Runner) -> int:
    """Call once, and tell the bytes above what was resident before and what was returned beside out=."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    reset_high_water_mark()
    before = high_water_mark()
    returned = runner.call()
    return high_water_mark() - before - parameter_bytes(returned)


def parameter_bytes(returned: Any) -> int:
    return sum(np.asarray(getattr(returned, name, ())).nbytes for name in ("scale", "zero_point"))


class Temporary:
    """A call whose peak is known, to see that the measurement can fail: one temporary array of the input's size."""

    def __init__(self, size: str) -> None:
        self.x = works.flat(size)
        self.out = works.like(self.x, np.float32)

    def call(self) -> None:
        """Add by way of a temporary."""
        np.add(self.x * np.float32(2), self.x, out=self.out)


def build(system: str, work: str, variant: str, size: str) -> Runner:
    if system == "numpy":
        made = Temporary(size)
        return Runner(made.call, dict)
    builders = importlib.import_module(f"systems.{system}").BUILDERS
    runner: Runner = builders[work, variant](size)
    return runner


def measure(system: str, work: str, variant: str) -> int:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, system, work, variant]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), check=False)
    if done.returncode:
        raise Absent(f"cannot run: {done.stderr.strip().splitlines()[-1]}")
    return int(json.loads(done.stdout))


def main(system: str, work: str, variant: str) -> None:
    warm = build(system, work, variant, WARM)
    for _ in range(3):
        warm.call()
    full = build(system, work, variant, FULL)
    works.values.cache_clear()
    works.codes.cache_clear()
    print(json.dumps(peak_of(full)))


if __name__ == "__main__":
    main(*sys.argv[1:])
