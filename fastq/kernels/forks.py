"""Whether this process is a fork, noted from `import fastq` on; Numba may be imported after the fork."""

from __future__ import annotations

import os

happened = False


def _note() -> None:
    global happened
    happened = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)
