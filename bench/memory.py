"""Peak memory of one call beyond its input and output, from the kernel's own high-water mark of resident memory.

`python -m bench.memory CASE [strided|temporary]` measures in a fresh process: everything is allocated and touched, the
same call has run before, then the mark is reset and read around one call. The first call of its kind takes more: it
loads or compiles kernels, 0.25 to 60 MiB, and looks at given scales in Python. Results other than out= (scales and zero
points) are output and not counted. Linux only; the kernel counts to within some 100 KiB.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fastq

from . import data, machine
from .calls import call_of
from .cases import WORKS, Case, case_of
from .peers import OURS, Runner
from .worker import Absent, builders, printed

WARM, FULL = 20, 26
RESET_HIGH_WATER_MARK = "5"
MIB = 1 << 20


def high_water_mark() -> int:
    """Read the most bytes that were resident since the last reset."""
    if found := machine.memory("VmHWM", "self/status"):
        return found
    raise OSError("/proc/self/status has no VmHWM")


def peak_of(runner: Runner) -> int:
    """Call once, and return the resident bytes above those before, and the bytes returned in addition to out=."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(RESET_HIGH_WATER_MARK)
    before = high_water_mark()
    returned = runner.call()
    after = high_water_mark()
    return after - before - made_bytes(returned, getattr(runner.call, "keywords", {}).get("out"))


def made_bytes(returned: Any, out: Any) -> int:
    """Bytes of the arrays that the call made for its caller besides out: whole results, scales and zero points."""
    if isinstance(returned, np.ndarray):
        return 0 if returned is out else returned.nbytes
    return sum(np.asarray(getattr(returned, name, ())).nbytes for name in ("scale", "zero_point"))


def strided(case: Case) -> Runner:
    """Every other column of an array twice as wide."""
    rows, columns = case.shape
    x = data.empty((rows, 2 * columns), np.float32)[:, ::2]
    o = data.operands(case, aligned=False)
    x[...] = o.first
    return Runner(call_of(fastq, replace(o, first=x)), dict)


def temporary(case: Case) -> Runner:
    """A call whose peak is known, to see that the measurement can fail: one temporary array of the input's size."""
    x, out = data.operands(case, aligned=False).first, data.out(case, "values", aligned=False)

    def call() -> None:
        np.add(x * np.float32(2), x, out=out)

    return Runner(call, dict)


VARIANTS = {"": lambda case: builders(OURS)[case.work.operation, ""](case), "strided": strided, "temporary": temporary}


def rows() -> Iterator[dict[str, Any]]:
    """Peak of every work of the table, of strided input, and of the call whose peak is known."""
    for work in WORKS:
        yield {"what": work.name} | measured(Case(work, FULL), "")
    linear = Case(WORKS[1], FULL)
    yield {"what": f"{linear.work.name}, strided input"} | measured(linear, "strided")
    yield {"what": "NumPy with one temporary, 256 MiB"} | measured(linear, "temporary")


def measured(case: Case, variant: str) -> dict[str, Any]:
    """Measure in a process of its own: MiB, or why that is not possible."""
    try:
        found = printed(2, "-m", f"{__package__}.memory", case.name, variant)
    except Absent as reason:
        return {"mib": None, "absent": str(reason)}
    return {"mib": round(json.loads(found) / MIB, 3)}


def main(name: str, variant: str) -> None:
    """Print the bytes of a case."""
    full_case = case_of(name)
    warm = VARIANTS[variant](full_case._replace(log2=WARM))
    for _ in range(3):
        warm.call()
    full = VARIANTS[variant](full_case)
    data.forget()
    data.piece.cache_clear()
    full.call()
    fastq.set_result_pool_limit(0)  # temporary memory must not come from memory that that call left
    print(json.dumps(peak_of(full)))


if __name__ == "__main__":
    main(*sys.argv[1:])
