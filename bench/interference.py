"""How many cores other processes used while something was measured (Linux; elsewhere nothing is known)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

WORTH_A_REMARK = 0.15


class CpuTime(NamedTuple):
    """Seconds of CPU used so far by everybody and by the given processes, and the time."""

    everybody: float
    ours: float
    now: float


def cpu_time(processes: Iterable[int]) -> CpuTime | None:
    tick = os.sysconf("SC_CLK_TCK")
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        ours = sum(_ticks(process) for process in (os.getpid(), *processes))
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return CpuTime((user + nice + system + irq + softirq + steal) / tick, ours / tick, time.perf_counter())


def _ticks(process: int) -> int:
    """Read utime and stime, which follow the name in brackets."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cores_used_by_others(before: CpuTime | None, after: CpuTime | None) -> float:
    if before is None or after is None:
        return 0.0
    others = (after.everybody - before.everybody) - (after.ours - before.ours)
    return max(0.0, others / (after.now - before.now))
