"""Forks, which wait for the locks that a child could never get.

A forked child does not have its parent's other threads, and waits for ever for a lock that one of them held: that of a
module that it was importing, or of a compilation. So forks wait for threads that hold such a lock. What a
child does without its parent's worker threads is in fastq/engine/runtime/threadpool.py.
"""

from __future__ import annotations

import logging  # noqa: F401 (see at the end)
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from fastq.system.signals import Held

importing = threading.RLock()  # held by threads that import by `fastq.system.imports`
_locks: list[Any] = [importing]
_checks: list[Callable[[], bool]] = []
_of_thread = threading.local()


def hold_at_fork(lock: Any, is_held: Callable[[], bool]) -> None:
    """Make forks wait for a lock, too; `is_held` returns whether this thread holds it."""
    _checks.append(is_held)
    _locks.append(lock)


def holds_a_lock() -> bool:
    """Whether this thread holds one of the locks that were added by `hold_at_fork`."""
    return any(is_held() for is_held in _checks)


def _before_fork() -> None:
    """Wait for all locks, and hold them and signals back until the fork is done."""
    held = _of_thread.held = ExitStack()
    held.enter_context(Held())
    for lock in _locks:  # also those of a module whose import this waits for
        held.enter_context(lock)


def _after_fork() -> None:
    """Release what `_before_fork` took, in the parent and in the child, which has a copy of each lock."""
    if hasattr(_of_thread, "held"):  # not if this was imported in the middle of a fork
        _of_thread.held.close()


# Hooks before a fork run in the reverse order of their registration. That of logging takes a lock too, which Numba
# needs while it is imported and while it compiles: it must run after these, or the fork waits for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
