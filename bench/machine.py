"""The machine, as the results describe it, and how many cores of it other processes use."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastq import config

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
WORTH_A_REMARK = 0.15  # cores of others
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def describe() -> dict[str, Any]:
    """Model and features of the CPU, cores, caches in bytes, memory in bytes, and the system."""
    return {
        **cpu(),
        "cores": cores(),
        "caches": caches(),
        "memory": memory(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])} {platform.machine()}",
        "python": platform.python_version(),
    }


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu() -> dict[str, str]:
    """Model of the CPU, as the system knows it, and features."""
    found = re.search(r"model name\s*: (.*)", _text(Path("/proc/cpuinfo")))
    model = found[1] if found else platform.processor() or platform.machine()
    return {"cpu": model, "features": config.versions()["cpu"]}


def cpu_name(described: Mapping[str, Any]) -> str:
    """Model of a described CPU, and what compilers call it: virtual machines give several the same model."""
    return f"{described['cpu']}, {described['features'].partition(' ')[0]}"


def caches() -> dict[str, dict[str, int]]:
    """Bytes of each data cache, and how many cores share it; nothing where the system does not tell."""
    found = {}
    for folder in sorted(CACHES.glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _text(folder / "size"))
        if size and _text(folder / "type") != "Instruction":
            shared = _text(folder / "shared_cpu_list")
            name = f"L{_text(folder / 'level')}"
            found[name] = {"bytes": int(size[1]) * UNITS.get(size[2], 1), "cores": _count(shared)}
    return found


def memory(which: str = "MemTotal", file: str = "meminfo") -> int:
    """Bytes of memory, or another number of a file of /proc; 0 where the system does not tell."""
    found = re.search(rf"{which}:\s+(\d+) kB", _text(Path("/proc", file)))
    return int(found[1]) * 1024 if found else 0


def available_memory() -> int:
    """Bytes that can still be used, 0 where the system does not tell."""
    return memory("MemAvailable")


def now() -> str:
    """The time, as results have it."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _count(ranges: str) -> int:
    """How many numbers a list such as "0-3,8" has."""
    ends = [part.split("-") for part in ranges.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


# --- others (Linux; elsewhere nothing is known) -----------------------------------------------------------------------


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
