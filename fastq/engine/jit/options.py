"""The target of all compiled functions, and the lock of the compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from llvmlite import binding
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

from fastq.system.forks import hold_at_fork
from fastq.system.signals import Held

hold_at_fork(global_compiler_lock, global_compiler_lock.is_locked)


class Target(NamedTuple):
    """The target of machine code: target triple, LLVM's name of the CPU, and its features as one string."""

    triple: str
    cpu: str
    features: str

    def has(self, feature: str) -> bool:
        """Return whether the CPU has an instruction set extension, by LLVM's name."""
        return f"+{feature}" in self.features.split(",")

    @property
    def is_arm(self) -> bool:
        """Return whether this is AArch64, whose base instructions include FMA and half conversions."""
        return self.triple.startswith(("aarch64", "arm64"))


def current_target() -> Target:
    """Return this CPU, or the one that Numba's settings name."""
    cpu = binding.get_host_cpu_name() if config.CPU_NAME is None else config.CPU_NAME
    features = _host_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return Target(binding.get_process_triple(), cpu, features)


def _host_features() -> str:
    """Return LLVM's features of this CPU as one string, without AVX where Numba's settings disable it."""
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know those of every CPU
        return ""
    if not config.ENABLE_AVX:
        features.update({name: False for name in features if name.startswith("avx")})
    return str(features.flatten())


TARGET = current_target()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Hold Numba's compiler lock, since LLVM is the same one, and signals, which would leave half of its work."""
    with Held(), global_compiler_lock:
        yield
