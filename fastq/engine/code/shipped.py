"""Machine code that comes with the package: a library for each level of instructions, and the names of its functions.

A function of a library is named by its origin: a function of the package that imports what compiles it, by its name,
and arguments, which are plain data or such functions. Neither Python nor Numba nor the CPU is part of the name. A
library is used as a whole or not at all: for the sources that it was made from, on a CPU of its level, by a Python
whose objects are laid out as they were where it was made. Its file is trusted as the package's other files are; one
that is damaged is not opened, and everything is compiled as if it did not exist.

The numbers that depend on the CPU are a record in the library (`fastq.system.tuning`), which is written when it is
loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from fastq.engine.code.folder import code_folder
from fastq.engine.code.lookup import leading_file, load_or_compile
from fastq.engine.code.settings import are_default
from fastq.engine.code.sources import SOURCES
from fastq.system import cpu, imports, tuning

FOLDER = Path(__file__).parents[2] / "machine_code"


Compile = Callable[..., int]  # compiles machine code for its arguments, or finds it by Numba's key; returns the address


class Recipe(NamedTuple):
    """The origin of machine code: what imports the function that compiles it, and the arguments of that."""

    import_compile: Callable[[], Compile]
    arguments: tuple[Any, ...]

    @property
    def symbol(self) -> str:
        """The name of the machine code in a library."""
        return f"fastq_{hashlib.sha256(repr(_plain(tuple(self))).encode()).hexdigest()[:24]}"

    def compile_or_load(self) -> int:
        """Return the address of code that is compiled now, or was compiled for this CPU."""
        with imports.undisturbed():
            compile_code = self.import_compile()
        return compile_code(*self.arguments)


def _plain(value: Any) -> Any:
    """Return the origin of machine code as plain data whose `repr` is the same in every process, for `symbol`.

    A dtype becomes its name, as the `repr` of dtypes that are equal may differ. A function becomes its module and name,
    as its `repr` has an address. A tuple has the name of its class in front, so that named tuples of different classes
    differ.
    """
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, FunctionType):
        assert "<" not in value.__qualname__, "inner functions and lambdas may share a name"
        return value.__module__, value.__qualname__
    return (type(value).__name__, *map(_plain, value)) if isinstance(value, tuple) else value


_recording: dict[str, Recipe] | None = None  # by their names, if a library will be made
_native = False  # whether code is compiled for exactly this CPU, also where the package has some
_known: list[Any] = []  # what `shipped_or_compiled` returned: functions with a cache of addresses
_recipes: dict[int, Recipe] = {}  # of functions in use, by their addresses


def shipped_or_compiled(import_compile: Callable[[], Compile]) -> Compile:
    """Make a function that takes the arguments of one that compiles machine code, and returns its address as that does.

    The other one is imported and called only for code that is neither in a library of the package nor on disk: so
    nothing of Numba is imported where there is machine code. `import_compile` is a function of a module, whose name is
    part of the key. Arguments are plain data, whose representations say all of it, or functions of modules.
    """

    @functools.lru_cache(None, typed=True)  # named tuples of the same dtypes are equal, whatever their classes
    def address(*arguments: Any) -> int:
        """Return the address of the machine code for these arguments."""
        recipe = Recipe(import_compile, arguments)
        symbol = recipe.symbol
        if _recording is not None:
            _recording[symbol] = recipe
            return 1  # in place of an address: nothing is called while a library is planned
        leading = leading_file(symbol)
        # the file exists where `use_native` has compiled this function for exactly this CPU, or no library had it; what
        # it leads to is preferred
        library = None if _native or (leading and os.path.exists(leading.path)) else _library()
        # None where there is no library, or the function is not in it
        shipped = ctypes.cast(getattr(library, symbol, 0), ctypes.c_void_p).value
        code_address = shipped or load_or_compile(leading, recipe.compile_or_load, _native)
        _recipes[code_address] = recipe
        return code_address

    _known.append(address)
    return address


def record() -> dict[str, Recipe]:
    """Make this process find no more machine code; return the code that it would need from now on, by its names.

    The dictionary fills as code is asked for, which gets 1 as its address: whoever builds a library compiles what is in
    it.
    """
    global _recording
    _recording = {}
    return _recording


def found_functions() -> dict[int, Recipe]:
    """Return the recipes of functions in use, by the addresses of these."""
    return _recipes


def label_of(library: bytes) -> dict[str, Any]:
    """Return the label that stands beside a library: its own digest, and for which process it is.

    A process uses it if this gives the same there: if it has these sources, and lays out Python's objects alike.
    """
    return {
        "content": hashlib.sha256(library).hexdigest(),
        "sources": SOURCES.checksum,
        "layout": object.__basicsize__,
    }


@functools.cache
def _library() -> ctypes.PyDLL | None:
    """Load the library of the best level of this CPU that there is; None where none fits."""
    for cpu_level in cpu.levels() if are_default() else ():  # the best one first
        path = FOLDER / cpu_level.name
        with contextlib.suppress(OSError, ValueError):  # no such file, or it is damaged
            if json.loads(Path(f"{path}.json").read_text()) == label_of(path.read_bytes()):
                return _with_numbers(ctypes.PyDLL(str(path)))
    return None


def _with_numbers(library: ctypes.PyDLL) -> ctypes.PyDLL:
    """Return a library after the numbers of this CPU were written to its record, if it has one.

    Its kernels read them there (`fastq.engine.simd.tuned`): the library was made on another CPU of this level.
    """
    numbers = tuning.numbers()
    with contextlib.suppress(ValueError):  # it has none
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
    global _native
    if code_folder() is None:
        raise OSError("there is no folder for machine code that only this user can write to: see fastq.show_versions()")
    for cached_address in _known:  # what was found before may be of the library
        cached_address.cache_clear()
    _native = True
    try:
        yield
    finally:
        _native = False
