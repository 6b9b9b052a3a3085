"""What is done when it is first needed, and forks and interrupts meanwhile.

A forked child has none of its parent's other threads, and waits for ever for a lock that one of them held: that of a
module that it was importing, of a compilation, or of a property. So forks wait for threads that import by `module`.
"""

from __future__ import annotations

import functools
import logging  # noqa: F401 (see at the end)
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastq.system.interrupts import Held

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """As in functools, without the lock that it takes in Python 3.11."""

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))


STARTED = time.time_ns()  # when the first module of the package was imported

_importing = threading.RLock()
_locks: list[Any] = [_importing]
_held_here: list[Callable[[], bool]] = []
_here = threading.local()


def hold_at_fork(lock: Any, is_held: Callable[[], bool]) -> None:
    """Have forks wait for a lock too; `is_held` tells whether this thread has it."""
    _held_here.append(is_held)
    _locks.append(lock)


def _before_fork() -> None:
    held = _here.held = ExitStack()
    for each in (Held(), *_locks):
        held.enter_context(each)


def _after_fork() -> None:
    if hasattr(_here, "held"):  # not if this was imported in the middle of a fork
        _here.held.close()


# Hooks before a fork run in the reverse order of their registration. That of logging takes a lock too, which Numba
# needs while it is imported and while it compiles: it has to come after these, or the fork waits for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@functools.cache
def module(name: str) -> ModuleType:
    """Import a module; no thread forks meanwhile, and no signal cuts it."""
    with Held():
        if any(is_held() for is_held in _held_here):  # as a fork waits for, which may have taken `_importing` before
            return import_module(name)
        with _importing:
            return import_module(name)
