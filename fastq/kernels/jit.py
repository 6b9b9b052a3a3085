"""The one compilation policy, and the disk cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import types as python_types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.registry import CPUDispatcher

# numpy: a division by zero gives inf as IEEE says, instead of a branch and an exception that no kernel can raise
OPTIONS: dict[str, Any] = {"nopython": True, "error_model": "numpy"}


@functools.cache
def _digest() -> str:
    """Digest of every kernel source, the options and Numba's version.

    Numba's cache key holds the bytecode of the compiled function alone: neither the functions that it calls nor the
    options. With the digest in each kernel's name, machine code of another source is never found.
    """
    hasher = hashlib.sha256(f"{numba.__version__} {sorted(OPTIONS.items())}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()[:16]


class _CheckedFile(IndexDataCacheFile):  # type: ignore[misc]
    """Machine code behind a checksum, since Numba runs damaged code as it finds it."""

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise ValueError(f"{name} is damaged")
        return numba.core.caching.pickle.loads(content[32:])


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's cache, except that no trouble with its files reaches the caller: the kernel is compiled instead."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling damaged bytes may raise
            with contextlib.suppress(OSError):
                os.unlink(self._cache_file._index_path)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(Exception):  # a full or read-only disk
            super().save_overload(sig, data)


def _enable_cache(compiled: Any, function: Callable[..., Any]) -> None:
    with contextlib.suppress(Exception):  # no folder that can be written: Numba has no place for a cache
        compiled._cache = _Cache(function)


def _named_by_digest(function: Callable[..., Any], suffix: str = "") -> Callable[..., Any]:
    code, scope = function.__code__, function.__globals__
    copy = python_types.FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__qualname__, copy.__module__ = f"{function.__qualname__}_{suffix}{_digest()}", function.__module__
    return copy


@functools.cache
def c_function(function: Callable[..., Any], result: Any, *arguments: Any) -> CFunc:
    """Compile a function as a C function of these Numba types, or load it."""
    function = _named_by_digest(function)
    compiled = CFunc(function, (arguments, result), locals={}, options=OPTIONS)
    _enable_cache(compiled, function)
    compiled.compile()
    return compiled


def kernel(function: Callable[..., Any], result: Any, *arguments: Any) -> int:
    """Address of `c_function`."""
    return cast(int, c_function(function, result, *arguments).address)


def callable_from_python(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
    """Compile a function to be called from Python with these Numba types, or load it."""
    function = _named_by_digest(function, "_".join(sorted(options)))
    compiled = CPUDispatcher(function, locals={}, targetoptions=OPTIONS | options)
    _enable_cache(compiled, function)
    compiled.compile(arguments)
    compiled.disable_compile()
    return compiled  # type: ignore[no-any-return]


def cache_directory() -> str:
    """Where compiled kernels are kept; empty where no folder can be written."""
    try:
        return str(_Cache(_named_by_digest(c_function.__wrapped__)).cache_path)
    except Exception:
        return ""
