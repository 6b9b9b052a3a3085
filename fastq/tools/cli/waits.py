"""Tell a user who waits at a terminal what takes so long; imports only the standard library."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

SILENCE = 1.0  # seconds after which it is told


@contextlib.contextmanager
def notice_if_slow(what: str) -> Iterator[None]:
    """Say what is going on if it takes longer than a second, on standard error if that is a terminal."""
    timer = threading.Timer(SILENCE, _say, [what])
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(what: str) -> None:
    """Write a line to standard error, from the thread of the timer."""
    with contextlib.suppress(OSError):  # of a terminal that is gone
        os.write(2, f"fastq: {what}\n".encode(errors="replace"))
