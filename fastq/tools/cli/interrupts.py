"""Ctrl-C and other signals that end a command.

This module imports only the standard library: signals are handled before NumPy, click and the rest of fastq are
imported.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading

INTERRUPTED = "Interrupted"  # the line that Ctrl-C leaves
EXIT_CODE = 128 + signal.SIGINT  # which shells expect


def signal_again(dropped: sys.UnraisableHookArgs) -> None:
    """Raise a signal again if Python dropped its exception in a destructor; print other exceptions as usual."""
    code = getattr(dropped.exc_value, "code", EXIT_CODE)  # of SystemExit; KeyboardInterrupt has none
    if issubclass(dropped.exc_type, KeyboardInterrupt | SystemExit) and isinstance(code, int) and code > 128:
        number = code - 128
        # from another thread, a moment later: here the exception would be dropped again
        threading.Timer(0.01, _thread.interrupt_main, [number]).start()
    else:
        sys.__unraisablehook__(dropped)


class Ending:
    """What signals do that end a command: an exception unwinds it while it is entered, else the process ends at once.

    So nothing that is imported, that reads arguments or that ends the process has to cope with an exception anywhere.
    """

    exit_code = 1
    unwinds = False

    def __enter__(self) -> None:
        """From now on a signal raises an exception."""
        self.unwinds = True

    def __exit__(self, *error: object) -> None:
        """From now on a signal ends the process at once."""
        self.unwinds = False

    def __call__(self, number: int, frame: object) -> None:
        """Handle a signal."""
        if not self.unwinds:
            try:
                if number == signal.SIGINT:
                    os.write(2, f"{INTERRUPTED}\n".encode())
            finally:
                os._exit(128 + number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    def at_exit(self) -> None:
        """End the process at once, without what Python does at its end: at that time no signal is handled.

        That takes a quarter of the time of a short command. Output is written out before.
        """
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        finally:
            os._exit(self.exit_code)
