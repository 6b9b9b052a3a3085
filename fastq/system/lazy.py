"""Work that is done when it is first needed, and forks and interrupts meanwhile.

A forked child does not have its parent's other threads, and waits for ever for a lock that one of them held: that of a
module that it was importing, of a compilation, or of a property. So forks wait for threads that import by `module`.

Python runs the handlers of signals in the main thread, after any call that has returned, and that of Ctrl-C raises
KeyboardInterrupt there. Between LLVM's link of two modules, which frees the second, and llvmlite's note that it is gone
that frees it twice. A cut import takes the name of a package away from modules of it that stay imported. So signals
wait until such a section is finished.
"""

from __future__ import annotations

import functools
import logging  # noqa: F401 (see at the end)
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from operator import call
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """A cached property like that of functools, without the lock that it has in Python 3.11."""

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))


STARTED = time.time_ns()  # the time when the first module of the package was imported

# --- signals ----------------------------------------------------------------------------------------------------------

_NUMBERS = tuple(signal.valid_signals())


class Held:
    """Hold back all signals that Python handles, and handle them at the end of the block.

    A handler may raise while the block is entered or left, never inside it.
    In threads other than the main one it does nothing, since they handle no signals; nested inside another block it
    does nothing either.
    """

    def __init__(self) -> None:
        self.holds, self.handlers, self.arrived = True, dict[int, object](), dict[int, FrameType | None]()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; handle it at once if somebody kept this handler for longer than the block."""
        if self.holds:
            self.arrived[number] = frame
        else:
            self.handlers[number](number, frame)  # type: ignore[operator]

    def __enter__(self) -> None:
        try:
            for number in _NUMBERS:
                handler = signal.getsignal(number)
                if callable(handler) and not getattr(handler, "holds", False):
                    self.handlers[number] = handler
                    signal.signal(number, self)  # which first handles signals that came earlier
        except ValueError:  # not the main thread
            self.handlers.clear()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            for number, handler in reversed(self.handlers.items()):  # Ctrl-C has a low number
                if signal.getsignal(number) is self:  # not if the block has set another
                    signal.signal(number, handler)  # type: ignore[arg-type]
        finally:
            self.holds = False  # if a handler cut this loop, the others are called through this
            each = ExitStack()
            for number, frame in self.arrived.items():
                each.callback(self.handlers[number], number, frame)  # type: ignore[arg-type]
            each.__exit__(*sys.exc_info())  # all of them, even if some raise


# --- forks and imports ------------------------------------------------------------------------------------------------

_importing = threading.RLock()
_locks: list[Any] = [_importing]
_held_here: list[Callable[[], bool]] = []
_here = threading.local()


def hold_at_fork(lock: Any, is_held: Callable[[], bool]) -> None:
    """Make forks wait for a lock, too; `is_held` returns whether this thread holds it."""
    _held_here.append(is_held)
    _locks.append(lock)


def _before_fork() -> None:
    held = _here.held = ExitStack()
    held.enter_context(Held())
    for lock in _locks:  # also those of a module whose import this waits for
        held.enter_context(lock)


def _after_fork() -> None:
    if hasattr(_here, "held"):  # not if this was imported in the middle of a fork
        _here.held.close()


# Hooks before a fork run in the reverse order of their registration. That of logging takes a lock too, which Numba
# needs while it is imported and while it compiles: it must run after these, or the fork waits for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no thread fork meanwhile, and no signal cut the block."""
    # a fork that waits for a lock of this thread may have taken `_importing` before
    with Held(), nullcontext() if any(map(call, _held_here)) else _importing:
        yield


@functools.cache
def module(name: str) -> ModuleType:
    """Import a module, undisturbed."""
    with undisturbed():
        return import_module(name)
