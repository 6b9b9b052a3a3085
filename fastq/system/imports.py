"""Modules that are imported when they are first needed, and not before.

Such an import holds signals back and lets no thread fork, since Python would be left with half a module.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from fastq.system import forks
from fastq.system.signals import Held

T = TypeVar("T")

STARTED = time.time_ns()  # the time when the package was imported


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no thread fork meanwhile, and no signal cut the block."""
    # a fork that waits for a lock of this thread may have taken `importing` before
    with Held(), nullcontext() if forks.holds_a_lock() else forks.importing:
        yield


def late(load: Callable[[], T]) -> Callable[[], T]:
    """Decorate a function that imports something and returns it: it runs once, undisturbed, at its first call."""

    @functools.cache
    def loaded() -> T:
        with undisturbed():
            return load()

    return functools.wraps(load)(loaded)


@late
def ml_dtypes() -> ModuleType:
    """Return the package ml_dtypes, which has the dtypes that NumPy lacks."""
    import ml_dtypes

    return ml_dtypes


@functools.cache
def module(name: str) -> ModuleType:
    """Import a module that only data names, undisturbed; where the name is known, `late` says it to editors too."""
    with undisturbed():
        return import_module(name)
