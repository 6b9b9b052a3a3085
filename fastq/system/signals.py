"""Signals that are held back while something must not be cut in two.

Python runs the handlers of signals in the main thread, after any call that has returned, and that of Ctrl-C raises
KeyboardInterrupt there. A cut import takes the name of a package away from modules of it that stay imported. Between
LLVM's link of two modules, which frees the second, and llvmlite's note that it is gone, an error frees it twice. So
signals wait until such a section is finished: `undisturbed` of `fastq.system.imports` holds them for imports, and
`compiling` of `fastq.engine.jit.options` for LLVM.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from types import FrameType

_NUMBERS = tuple(signal.valid_signals())


class Held:
    """Hold back all signals that Python handles, and handle them at the end of the block.

    A handler may raise while the block is entered or left, never inside it.
    In threads other than the main one it does nothing, since they handle no signals; nested inside another block it
    does nothing either.
    """

    def __init__(self) -> None:
        self.holds = True
        self.handlers: dict[int, object] = {}
        self.arrived: dict[int, FrameType | None] = {}

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
        """Restore the handlers, that of Ctrl-C last; then call those of the signals that arrived, the latest first.

        All of them are called, even if some raise; their errors are chained to the one that ended the block, if any.
        """
        try:
            for number, handler in reversed(self.handlers.items()):  # Ctrl-C has a low number
                if signal.getsignal(number) is self:  # not if the block has set another
                    signal.signal(number, handler)  # type: ignore[arg-type]
        finally:
            self.holds = False  # if a handler cut this loop, the others are called through this
            handlers = ExitStack()
            for number, frame in self.arrived.items():
                handlers.callback(self.handlers[number], number, frame)  # type: ignore[arg-type]
            handlers.__exit__(*sys.exc_info())  # all of them, even if some raise
