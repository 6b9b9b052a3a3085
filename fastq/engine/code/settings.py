"""Numba's settings, versions and the CPU: what decides machine code besides sources."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fastq.system import imports

# settings of Numba that change machine code, by their names in its `config`; where one is set, Numba is asked
SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "CPU_NAME", "CPU_FEATURES", "ENABLE_AVX")
_VARIABLES = frozenset(f"NUMBA_{name}" for name in SETTINGS)  # the same in the environment


def current_settings() -> list[Any]:
    """Return the settings that Numba has, none before it is imported."""
    config = sys.modules.get("numba.core.config")
    return [*map(vars(config).get, SETTINGS)] if config else []


def are_default() -> bool:
    """Whether no setting that changes machine code is in the environment, or in the file that Numba reads."""
    named = {*os.environ}
    with contextlib.suppress(OSError):
        words = re.findall(r"\w+", Path(".numba_config.yaml").read_text(errors="replace"))
        named |= {f"NUMBA_{word.upper()}" for word in words}
    return _VARIABLES.isdisjoint(named)


@functools.cache
def machine_digest() -> bytes:
    """Return a digest of all that decides machine code besides sources and settings; b"" where one is not known.

    It is made of this CPU, the versions of Numba and llvmlite, and the layout of Python's objects, which
    `object.__basicsize__` tells: it is larger in a build without the interpreter lock.
    """
    numba = PathFinder.find_spec("numba")
    folder = Path(numba.origin).parent.parent if numba and numba.origin else None
    # the folders that installers name for versions, as `importlib.metadata` finds them, whose import takes longer
    versions = sorted(path.name for path in folder.glob("numba-*-info")) if folder else []
    features = ""
    if not versions:  # a tree of sources, which may change
        return b""
    with imports.undisturbed():
        import llvmlite
        from llvmlite import binding

        with contextlib.suppress(RuntimeError):  # LLVM does not know those of every CPU
            features = binding.get_host_cpu_features().flatten()
        made_for = binding.get_host_cpu_name(), features, binding.get_process_triple()
    made_by = versions, llvmlite.__version__, object.__basicsize__
    return hashlib.sha256(repr((made_by, made_for)).encode()).digest()
