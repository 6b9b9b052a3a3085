"""The one compilation policy, and the disk cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
import types as python_types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numba
from numba.core import config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock

from fastq.kernels.compiler import Compiler

# numpy: a division by zero gives inf as IEEE says, instead of a branch and an exception that no kernel can raise
OPTIONS: dict[str, Any] = {"nopython": True, "error_model": "numpy"}


def _digest_of(folder: Path) -> str:
    """Digest of the kernels and of the tables that they read while they are compiled."""
    hasher = hashlib.sha256(numba.__version__.encode())
    for path in (*sorted(folder.glob("*.py")), folder.parent / "floats.py", folder.parent / "gguf_formats.py"):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


# taken before the other kernel sources are imported, so that an edit meanwhile does not save old code under a new name
_SOURCES = _digest_of(Path(__file__).parent)


class _CheckedFile(IndexDataCacheFile):  # type: ignore[misc]
    """A file for each signature: a checksum, since Numba runs damaged code as it finds it, then the key and the code.

    Numba's index of data files is not used: of two processes that start together, each overwrites the other's, and an
    entry may come to name the code of another signature.
    """

    def save(self, key: Any, data: Any) -> None:
        content = self._dump((key, data))
        with self._open_for_write(self._path(key)) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def load(self, key: Any) -> Any:
        content = Path(self._path(key)).read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            return None
        saved, data = pickle.loads(content[32:])
        return data if saved == key else None

    def _path(self, key: Any) -> str:
        number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8])
        return str(self._data_path(self._data_name(number)))


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's cache, except that no trouble with its files reaches the caller: the kernel is compiled instead."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, None)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with contextlib.suppress(Exception):  # there is no such file, it cannot be read, or another wrote it
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(Exception):  # a full or read-only disk
            super().save_overload(sig, data)


def _enable_cache(compiled: Any, function: Callable[..., Any]) -> None:
    with contextlib.suppress(Exception):  # no folder that can be written: Numba has no place for a cache
        compiled._cache = _Cache(function)


def _named_by_digest(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return the function under a name that nothing else has ever been compiled under.

    Numba's cache key holds the bytecode of the compiled function alone: neither the functions that it calls nor the
    options. With a digest of both in the name, machine code of another source is never found.
    """
    digest = hashlib.sha256(f"{_SOURCES} {sorted(options.items())}".encode()).hexdigest()[:16]
    code, scope = function.__code__, function.__globals__
    copy = python_types.FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__qualname__, copy.__module__ = f"{function.__qualname__}_{digest}", function.__module__
    return copy


@contextlib.contextmanager
def _enabled() -> Iterator[None]:
    """Have Numba compile even if NUMBA_DISABLE_JIT is set: vectors exist in compiled code only."""
    with global_compiler_lock:
        disabled, config.DISABLE_JIT = config.DISABLE_JIT, 0
        try:
            yield
        finally:
            config.DISABLE_JIT = disabled


@functools.cache
def c_function(function: Callable[..., Any], result: Any, *arguments: Any) -> CFunc:
    """Compile a function as a C function of these Numba types, or load it."""
    function = _named_by_digest(function, OPTIONS)
    compiled = CFunc(function, (arguments, result), locals={}, options=OPTIONS, pipeline_class=Compiler)
    _enable_cache(compiled, function)
    with _enabled():
        compiled.compile()
    return compiled


def kernel(function: Callable[..., Any], result: Any, *arguments: Any) -> int:
    """Address of `c_function`."""
    return cast(int, c_function(function, result, *arguments).address)


def cache_directory() -> str:
    """Where compiled kernels are kept; empty where no folder can be written."""
    try:
        return str(_Cache(_named_by_digest(c_function.__wrapped__, OPTIONS)).cache_path)
    except Exception:
        return ""
