"""What a user is told before something is compiled."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable

from fastq.engine.code.folder import code_folder


@functools.cache
def tell_user(*, also_in_pipes: bool = False) -> None:
    """Tell a user who waits, once, that something is compiled, which takes a second or more."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # of none, another's or one that is closed
        if also_in_pipes or sys.stderr.isatty():
            kept = "once for this machine; the code is kept on disk"
            anew = "in each process; no folder for their code is trusted, as fastq.show_versions() tells"
            sys.stderr.write(f"fastq: compiling kernels, {kept if code_folder() else anew}\n")
            sys.stderr.flush()


# called before something is compiled; a command with a bar sets another, which shows it there
before_compiling: Callable[[], None] = tell_user
