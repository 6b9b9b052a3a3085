"""The CPU, as the system describes it, without a compiler."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import NamedTuple

LINE = 64  # bytes of a cache line
GRANULE = 16  # bytes that every CPU can store past the cache; NumPy's large arrays begin that far after a line
REGISTER_BITS = 512  # code generation splits a Vec where the CPU's registers are narrower

_SYSTEM = os.uname() if hasattr(os, "uname") else None  # Windows lacks it
SYSTEM = _SYSTEM.sysname if _SYSTEM else os.name
MACHINE = _SYSTEM.machine.replace("arm64", "aarch64") if _SYSTEM else ""


class Level(NamedTuple):
    """Instructions that many CPUs have, for which machine code is made once."""

    name: str  # name of its library
    cpu: str  # LLVM's name of a CPU that has these, or nearly so
    machine: str  # name of the machine in `uname -m`
    flags: str  # flags of /proc/cpuinfo that a CPU must have
    features: str  # LLVM's names of the features, arguments of `Target.has`


_V3 = "avx avx2 bmi1 bmi2 f16c fma abm movbe"
_V3_FEATURES = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe"
_V4 = "avx512f avx512bw avx512cd avx512dq avx512vl"
# kernels have whole registers anyway: decision D75
_V4_FEATURES = "+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,-prefer-256-bit"

LEVELS = (  # the best one of a machine comes first
    # with shifts of bytes, which all CPUs of v4 have but Skylake, Cascade Lake and Cooper Lake: decision D74
    Level("x86-64-v4-gfni", "x86-64-v4", "x86_64", f"{_V3} {_V4} gfni", f"{_V3_FEATURES},{_V4_FEATURES},+gfni"),
    Level("x86-64-v4", "x86-64-v4", "x86_64", f"{_V3} {_V4}", f"{_V3_FEATURES},{_V4_FEATURES}"),
    Level("x86-64-v3", "x86-64-v3", "x86_64", _V3, _V3_FEATURES),
    Level("aarch64", "generic", "aarch64", "", "+neon,+fp-armv8"),
)


@functools.cache
def facts() -> dict[str, str]:
    """Return the entries of Linux about the first CPU by name; empty on other systems."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        lines = file.read(8192).partition("\n\n")[0].splitlines()
        return {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    return {}


def levels() -> list[Level]:
    """Return the levels that this CPU supports, the best one first."""
    flags = set(facts().get("flags", "").split())
    return [level for level in LEVELS if level.machine == MACHINE and flags.issuperset(level.flags.split())]
