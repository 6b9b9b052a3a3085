"""The machine, as the results describe it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastq import config

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
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
    """Model and features of the CPU."""
    return {"cpu": cpu_model(), "features": config.versions()["cpu"]}


def cpu_name(described: Mapping[str, Any]) -> str:
    """Model of a described CPU, and what compilers call it: virtual machines give several the same model."""
    return f"{described['cpu']}, {described['features'].partition(' ')[0]}"


def cpu_model() -> str:
    """The model's name, as the system knows it."""
    text = _text(Path("/proc/cpuinfo"))
    found = re.search(r"model name\s*: (.*)", text)
    return found[1] if found else platform.processor() or platform.machine()


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


def memory() -> int:
    """Bytes of memory, 0 where the system does not tell."""
    found = re.search(r"MemTotal:\s+(\d+) kB", _text(Path("/proc/meminfo")))
    return int(found[1]) * 1024 if found else 0


def available_memory() -> int:
    """Bytes that can still be used, 0 where the system does not tell."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", _text(Path("/proc/meminfo")))
    return int(found[1]) * 1024 if found else 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _count(ranges: str) -> int:
    """How many numbers a list such as "0-3,8" has."""
    ends = [part.split("-") for part in ranges.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
