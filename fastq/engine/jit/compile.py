"""The one compilation policy: machine code is made once, kept on disk, and run by its address."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import llvmlite
import numba
from numba import types
from numba.core import config

from fastq.engine.code import notices
from fastq.engine.code.file import CachedFile
from fastq.engine.code.loading import in_memory, in_use
from fastq.engine.code.settings import SETTINGS
from fastq.engine.code.shipped import found_functions
from fastq.engine.code.sources import SOURCES, file_of
from fastq.engine.jit.library import compile_library
from fastq.engine.jit.options import TARGET, compiling


def _file(function: Callable[..., Any], result: Any, arguments: tuple[Any, ...]) -> CachedFile | None:
    """Return the file where the machine code of a function for these types is kept; None where it cannot be.

    Its key is all that decides the code: the function and what its closure holds, the types, the sources of all modules
    that they are from, versions, and settings. Numba's own key leaves out what a function calls, and the options.
    """
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    body = f"{function.__module__}.{function.__qualname__}", _code(function.__code__, function.__doc__), cells
    versions = sys.implementation.cache_tag, numba.__version__, llvmlite.__version__
    made_by = *versions, object.__basicsize__
    settings = [getattr(config, name) for name in SETTINGS], TARGET
    name = re.sub(r"[^\w.]", "_", _name(function, arguments))[:80]
    modules = {function.__module__, *_modules(arguments)}
    return file_of(modules, name, *body, result, arguments, made_by, settings)


def _name(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return what a function is called: by the loop that a type among its arguments names, else by its own name.

    The name is that of its last module and its own, such as "build.entry".
    """
    origin = next((kind.loop for kind in arguments if hasattr(kind, "loop")), function)
    return f"{origin.__module__.rpartition('.')[2]}.{origin.__qualname__}"


def _code(code: CodeType, doc: str | None) -> tuple[object, ...]:
    """Return the bytecode, names and constants of a function, and of those within it, as part of a key.

    They tell apart functions that were made by one maker under one name, and those of modules that have no digest.
    `doc` is its docstring, which is among the constants and changes nothing.
    """
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_code(constant, None))
        elif constant != doc:
            constants.append(constant)
    return code.co_code, code.co_names, constants


def _modules(value: Any) -> Iterator[str]:
    """Yield the modules of a type and of its parts, which say how it is compiled."""
    if isinstance(value, tuple):
        yield type(value).__module__
        for part in value:
            yield from _modules(part)
    elif isinstance(value, types.Type):
        yield type(value).__module__
        yield from _modules(tuple(vars(value).values()))
    elif callable(value):
        yield getattr(value, "__module__", "")


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Stop Python's garbage collection, a sixth of the time to compile: nearly all of Numba's objects are in use."""
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()


_functions: dict[tuple[Callable[..., Any], Any, tuple[Any, ...]], int] = {}  # addresses


def kernel(function: Callable[..., Any], result: Any, *arguments: Any) -> int:
    """Compile a function as a C function of these Numba types, or load it, once; return its address.

    To load the first one of a process takes 0.1 to 0.3 s less than through Numba, which fills tables of all functions
    that it knows before.
    """
    key = getattr(function, "function", function), result, arguments  # of a `TracedFunction` its own function
    address = _functions.get(key)
    if address is None:
        with compiling():
            address = _functions.get(key)  # another thread may have compiled it meanwhile
            if address is None:
                address = _functions[key] = _load_or_compile(*key)
    return address


def functions_in_memory() -> int:
    """Return how many compiled functions this process has, which stay until it ends."""
    return len({*_functions.values(), *found_functions()})


def _load_or_compile(function: Callable[..., Any], result: Any, arguments: tuple[Any, ...]) -> int:
    """Load the machine code of a function from its file, else compile and save it; return its address."""
    file = _file(function, result, arguments)
    code = file.load() if file else None
    if code is None:
        notices.before_compiling()
        with _without_collection():
            code = compile_library(function, result, arguments).machine_code()
        if file:
            file.save(code)
    address = in_memory(code)
    # a leading file is found by the checksum of all `SOURCES`, which other modules are not part of
    if file and function.__module__ in SOURCES.read:
        in_use[file.reference] = address
    return address


class Listing(NamedTuple):
    """The origin of a compiled function."""

    name: str  # module and name of the function, or of the loop that it runs
    types: str  # numba types of its arguments
    llvm: str  # LLVM IR after optimization
    asm: str  # assembly for this CPU


@functools.cache
def listing(address: int) -> Listing:
    """Return the origin of the function at an address; it is compiled once more, for this CPU.

    A function of a library of the package was not compiled here: its recipe compiles it, at another address.
    """
    if recipe := found_functions().get(address):
        address = recipe.compile_or_load()
    function, result, arguments = next(key for key, known in _functions.items() if known == address)
    with compiling():
        library = compile_library(function, result, arguments)
        name = _name(function, arguments)
        types_of = ", ".join(map(str, arguments))
        return Listing(name, types_of, library.llvm(), library.assembly())
