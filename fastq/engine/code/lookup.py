"""Machine code on disk that is found without Numba.

Only Numba knows the key of machine code, and its import takes longer than all the rest. So a second, small file leads
to the first. Its key is known without Numba: the name of the function in a library, a checksum of all sources, the CPU,
and versions. It counts only where Numba's settings are the usual ones.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from typing import Any

from fastq.engine.code.file import CachedFile
from fastq.engine.code.folder import code_folder
from fastq.engine.code.loading import in_memory, in_use
from fastq.engine.code.settings import are_default, current_settings, machine_digest
from fastq.engine.code.sources import SOURCES
from fastq.system import cpu
from fastq.system.signals import Held

# the settings that Numba had when it was last asked here; none before. As long as they stay the same, nobody has
# assigned others to `numba.config`
_usual: list[Any] = []


def leading_file(symbol: str) -> CachedFile | None:
    """Return the file that leads to the code of a function of this name, once there is some; None without a folder."""
    folder = code_folder()
    cpu_of_code = [*map(cpu.facts().get, ("flags", "Features", "CPU implementer", "CPU part"))]
    key = repr((symbol, SOURCES.checksum, sys.implementation.cache_tag, cpu_of_code))
    return CachedFile(folder, symbol, hashlib.sha256(key.encode()).digest()) if folder else None


def load_or_compile(leading: CachedFile | None, compiled: Callable[[], int], is_native: bool) -> int:
    """Return the address of code that the file `leading` leads to, else of code that Numba finds or compiles.

    The file leads to that code from now on. It is used only where Numba's settings are the usual ones and the sources
    still are as they were read, which its key does not tell. For native code the file exists from now on in any case,
    empty if need be: that it exists tells `shipped_or_compiled` to pass over the libraries of the package, and an empty
    one leads nowhere, so Numba is asked.
    """
    global _usual
    with Held():  # what is found is known before a handler raises
        usual = current_settings() == _usual and are_default() and SOURCES.are_unchanged(SOURCES.read)
        machine = machine_digest() if leading and usual else b""
        if leading and machine and (file := leading.follow(machine)):
            address = in_use.get(file.reference, 0)
            if not address and (code := file.load()):
                address = in_use[file.reference] = in_memory(code)
            if address:
                return address
        address = compiled()
        _usual = current_settings() if machine else _usual
        # a copy of the items, as other threads may add some; b"" of code that was not saved
        reference = next((reference for reference, known in [*in_use.items()] if known == address), b"")
        if leading and machine and reference:
            leading.save(machine + reference)
        elif leading and is_native and leading.load() is None:
            leading.save(b"")  # later processes ask Numba
        return address
