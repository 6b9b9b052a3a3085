"""Signals that wait until what must not be cut is whole.

Python runs the handlers of signals in the main thread, after any call that has returned, and that of Ctrl-C raises
KeyboardInterrupt there. Between LLVM's link of two modules, which frees the second, and llvmlite's note that it is gone
that frees it twice. A cut import takes the name of a package away from modules of it that stay imported.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from types import FrameType

_NUMBERS = tuple(signal.valid_signals())


class Held:
    """Hold back all signals that Python handles, and have them handled at the end of the block.

    A handler may raise while the block is entered or left, never inside it.
    In other threads than the main one it does nothing, where nothing is handled. Within another it does nothing either.
    """

    def __init__(self) -> None:
        self.holds, self.handlers, self.arrived = True, dict[int, object](), dict[int, FrameType | None]()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; handle it where somebody has kept this as the handler for longer than the block."""
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
                    signal.signal(number, self)  # which handles first what has come before
        except ValueError:  # not the main thread
            self.handlers.clear()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            for number, handler in reversed(self.handlers.items()):  # that of Ctrl-C has a low one
                if signal.getsignal(number) is self:  # not where the block has set another
                    signal.signal(number, handler)  # type: ignore[arg-type]
        finally:
            self.holds = False  # where a handler has cut this loop, the others are called through this
            each = ExitStack()
            for number, frame in self.arrived.items():
                each.callback(self.handlers[number], number, frame)  # type: ignore[arg-type]
            each.__exit__(*sys.exc_info())  # all of them, whichever raises
