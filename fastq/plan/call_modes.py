"""Calls from threads of another pool, and in the floating-point mode of callers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from fastq.system import lazy

P = ParamSpec("P")
T = TypeVar("T")


def in_own_thread(function: Callable[..., Any], *operands: Any) -> Any:
    """Call a function whose calls of fastq use no other threads: dask runs as many tasks as it may use CPUs."""
    return lazy.module("fastq.engine.runtime.threadpool").call_alone(function, *operands)


def planned_only() -> AbstractContextManager[None]:
    """Make calls of this thread plan and compile without launching anything: results are not written."""
    manager: AbstractContextManager[None] = lazy.module("fastq.engine.runtime.driver").planned_only()
    return manager


def native_code() -> AbstractContextManager[None]:
    """Compile the machine code of calls for exactly this CPU meanwhile; see `fastq.engine.code`."""
    lazy.module("fastq.plan.cache").plans.clear()  # of calls that use other code
    manager: AbstractContextManager[None] = lazy.module("fastq.engine.code").use_native()
    return manager


def in_standard_mode(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function compute in the mode of IEEE 754; compiled code is loaded when it is called."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        result: T = lazy.module("fastq.engine.runtime.boundary").in_standard_mode(function)(*args, **kwargs)
        return result

    return wrapper
