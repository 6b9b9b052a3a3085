"""What a user is told before something is compiled."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable

from fastq.engine.code.folder import code_folder


@functools.cache
def tell_user(*, also_in_pipes: bool = False) -> None:
    """Tell a user who waits, once, that something is compiled, which takes a second or more.

    Whoever reads standard error from a pipe is not told, unless with `also_in_pipes`. The cache makes it once.
    """
    # standard error may be None, an object without `isatty`, or closed
    with contextlib.suppress(AttributeError, OSError, ValueError):
        if also_in_pipes or sys.stderr.isatty():
            if_stored = "once for this machine; the code is kept on disk"
            if_not_stored = "in each process; no folder for their code is trusted, as fastq.show_versions() tells"
            sys.stderr.write(f"fastq: compiling kernels, {if_stored if code_folder() else if_not_stored}\n")
            sys.stderr.flush()


# called before something is compiled; a command with a bar sets another, which shows it there
before_compiling: Callable[[], None] = tell_user
