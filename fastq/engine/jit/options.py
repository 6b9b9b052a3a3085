"""Options and target of all compiled functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from numba.core import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from fastq.system.forks import hold_at_fork
from fastq.system.signals import Held

# numpy: a division by zero gives inf as IEEE says, instead of a branch and an exception that no kernel can raise
OPTIONS: dict[str, Any] = {"nopython": True, "error_model": "numpy", "boundscheck": False}

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


TARGET = Target(*cpu_target.target_context.codegen().magic_tuple())


@contextlib.contextmanager
def jit_enabled() -> Iterator[None]:
    """Hold the compiler lock and signals, and enable the JIT even where NUMBA_DISABLE_JIT is set.

    Vectors exist in compiled code only. A signal in the middle of a compilation would leave half of Numba's tables.
    """
    with Held(), global_compiler_lock:
        disabled = config.DISABLE_JIT
        config.DISABLE_JIT = 0
        try:
            yield
        finally:
            config.DISABLE_JIT = disabled
