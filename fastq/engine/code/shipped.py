"""Machine code that comes with the package: a library for each level of instructions, and the names of its functions.

A function of a library is named by its origin: the function of the package that compiles it and the arguments of that,
which are plain data. Neither Python nor Numba nor the CPU is part of the name. A library is used as a whole or not at
all: for the sources that it was made from, on a CPU of its level, by a Python whose objects are laid out as they were
where it was made. Its file is trusted as the package's other files are; one that is damaged is not opened, and
everything is compiled as if it did not exist.

The numbers that depend on the CPU are a record in the library (`fastq.system.tuning`), which is written when it is
loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastq.engine.code.stored import SOURCES, CachedFile, Source, code_folder, in_memory, in_use
from fastq.system import cpu, lazy, tuning
from fastq.system.atomic import replacing

FOLDER = Path(__file__).parents[2] / "machine_code"
# Settings of Numba that change machine code, by their names in its `config`. If one is in the environment, all is
# compiled.
SETTINGS = (
    *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "LLVM_REFPRUNE_PASS", "ENABLE_PROFILING", "DEBUGINFO_DEFAULT"),
    *("EXTEND_VARIABLE_LIFETIMES", "BOUNDSCHECK", "CPU_NAME", "CPU_FEATURES", "ENABLE_AVX"),
)
_VARIABLES = frozenset(f"NUMBA_{name.removesuffix('_DEFAULT')}" for name in SETTINGS)  # the same in the environment


class Recipe(NamedTuple):
    """The origin of machine code: a function that compiles it, by module and name, and its arguments."""

    module: str
    name: str
    arguments: tuple[Any, ...]

    @property
    def symbol(self) -> str:
        """The name of the machine code in a library."""
        return f"fastq_{hashlib.sha256(repr(_plain(tuple(self))).encode()).hexdigest()[:24]}"

    def compiled(self) -> int:
        """Return the address of code that is compiled now, or was compiled for this CPU."""
        with lazy.Held():  # over all that this imports
            return int(getattr(lazy.module(self.module), self.name)(*self.arguments))


def _plain(value: Any) -> Any:
    """Return what has one representation: of dtypes that are equal, theirs may differ."""
    if isinstance(value, np.dtype):
        return value.name
    return (type(value).__name__, *map(_plain, value)) if isinstance(value, tuple) else value


_recording: dict[str, Recipe] | None = None  # by their names, if a library will be made
_made: set[str] | None = None  # names of works that are compiled for exactly this CPU, and their place
_known: list[Any] = []  # what `shipped_or_compiled` returned
_recipes: dict[int, Recipe] = {}  # of functions that were found without Numba, by their addresses


def shipped_or_compiled(module: str, name: str) -> Callable[..., int]:
    """Make a function that takes the arguments of one that compiles machine code, and returns its address as that does.

    It calls the other one only for code that did not come with the package. Arguments are plain data, whose
    representations say all of it.
    """

    @functools.lru_cache(None, typed=True)  # named tuples of the same dtypes are equal, whatever their classes
    def address(*arguments: Any) -> int:
        recipe = Recipe(module, name, arguments)
        symbol = recipe.symbol
        if _recording is not None:
            _recording[symbol] = recipe
            return 1
        if _made is not None:
            _made.add(symbol)
        library = None if _made is not None or symbol in _native() else _library()
        with contextlib.suppress(AttributeError):  # of None, and of a library that lacks the function
            shipped = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
            _recipes[shipped] = recipe
            return shipped
        return _stored_or_compiled(symbol, recipe)

    _known.append(address)
    return address


def _stored_or_compiled(symbol: str, recipe: Recipe) -> int:
    """Return the address of code that a file leads to by its name in a library, else of code that it leads to then."""
    global _usual
    leading = _leading(symbol)
    if leading and (file := leading.follow()) and (code := file.load()):
        address = in_memory(code)
        _recipes[address], in_use[address] = recipe, file
        return address
    address = recipe.compiled()
    if leading:
        _usual = _settings()
        if address in in_use:
            leading.lead_to(in_use[address])
    return address


def _leading(symbol: str) -> CachedFile | None:
    """Return the file that leads to machine code on disk; None where only Numba knows what decides the code."""
    folder = code_folder()
    with contextlib.suppress(OSError):  # sources or Numba are not files
        known = _settings() == _usual and _are_default() and all(map(Source.is_unchanged, SOURCES.read.values()))
        if folder and known:
            key = repr((symbol, SOURCES.checksum, _machine()))
            return CachedFile(folder, symbol, hashlib.sha256(key.encode()).digest())
    return None


_usual: list[Any] = []  # Numba's settings when it was imported here


def _settings() -> list[Any]:
    """Return the settings that Numba has, if it was imported; where other code did that, they may be any."""
    config = sys.modules.get("numba.core.config")
    return [*map(vars(config).get, SETTINGS)] if config else []


def _are_default() -> bool:
    """Whether no setting that changes machine code is in the environment, or in the file that Numba reads."""
    given = {*os.environ}
    with contextlib.suppress(OSError):
        words = re.findall(r"\w+", Path(".numba_config.yaml").read_text(errors="replace"))
        given |= {f"NUMBA_{word.upper()}" for word in words}
    return _VARIABLES.isdisjoint(given)


@functools.cache
def _machine() -> tuple[object, ...]:
    """Return what decides machine code but for sources and settings: this CPU, and what makes the code."""
    binding, features = lazy.module("llvmlite.binding"), ""
    with contextlib.suppress(RuntimeError):  # LLVM does not know those of every CPU
        features = binding.get_host_cpu_features().flatten()
    cpu_and_system = binding.get_host_cpu_name(), features, binding.get_process_triple()
    numba = importlib.util.find_spec("numba")
    version = Path(str(numba and numba.origin)).with_name("_version.py").read_text()
    versions = sys.implementation.cache_tag, version, lazy.module("llvmlite").__version__
    return *versions, object.__basicsize__, *cpu_and_system


def record() -> dict[str, Recipe]:
    """Make this process find no more machine code; return the code that it would need from now on."""
    global _recording
    _recording = {}
    return _recording


def found_functions() -> dict[int, Recipe]:
    """Return the functions in use that were found without Numba, by their addresses."""
    return _recipes


def header(content: bytes) -> dict[str, Any]:
    """Return what has to be as it was where a library of this content was made."""
    made = hashlib.sha256(content).hexdigest()
    return {"content": made, "sources": SOURCES.checksum, "layout": object.__basicsize__}


@functools.cache
def _library() -> ctypes.PyDLL | None:
    """Load the library of the best level of this CPU that there is; None where none fits."""
    for level in cpu.levels() if _are_default() else ():
        path = FOLDER / level.name
        with contextlib.suppress(OSError, ValueError):  # no such file, or it is damaged
            if json.loads(Path(f"{path}.json").read_text()) == header(path.read_bytes()):
                return _with_numbers(ctypes.PyDLL(str(path)))
    return None


def _with_numbers(library: ctypes.PyDLL) -> ctypes.PyDLL:
    """Write the numbers of this CPU to the record of a library that has one."""
    numbers = tuning.numbers()
    with contextlib.suppress(ValueError):
        record = ctypes.c_int64.in_dll(library, tuning.RECORD)  # its first number
        ctypes.memmove(ctypes.addressof(record), numbers.ctypes.data, numbers.nbytes)
    return library


def level() -> str:
    """Return the level of the library in use, or "" without a library."""
    library = _library()
    return Path(library._name).name if library else ""


@contextlib.contextmanager
def use_native() -> Iterator[None]:
    """Compile the machine code that is asked for meanwhile for exactly this CPU; raise OSError without a folder for it.

    This process and later ones of this user then use it until an upgrade; what nobody asked for is that of the library.
    """
    global _made
    note = _note()
    if note is None:
        raise OSError("there is no folder for machine code that only this user can write to: see fastq.show_versions()")
    _made = set()
    for each in _known:
        each.cache_clear()
    try:
        yield
    finally:
        made, _made = _made, None
        _native.cache_clear()  # other processes may have noted theirs meanwhile
        with replacing(note, mode=0o600) as file:
            file.write("\n".join(sorted(made | _native())).encode())
        _native.cache_clear()


@functools.cache
def _native() -> frozenset[str]:
    """Return the names of the works that this user had compiled for exactly this CPU."""
    note = _note()
    with contextlib.suppress(OSError, ValueError):
        return frozenset(note.read_text().split() if note else ())
    return frozenset()


def _note() -> Path | None:
    """Return the file that has these names: it lies with the user's machine code and counts for these sources only."""
    folder = code_folder()
    return folder and folder / f"native.{SOURCES.checksum[:16]}"
