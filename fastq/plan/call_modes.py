"""Calls from threads of another pool, and in the floating-point mode of callers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from fastq.system.imports import late

P = ParamSpec("P")
T = TypeVar("T")


@late
def _call_alone() -> Callable[..., Any]:
    """Import `call_alone` of the thread pool."""
    from fastq.engine.runtime.threadpool import call_alone

    return call_alone


@late
def _standard_mode() -> Callable[..., Callable[..., Any]]:
    """Import `in_standard_mode`, which loads compiled code."""
    from fastq.engine.runtime.boundary import in_standard_mode

    return in_standard_mode


def in_own_thread(function: Callable[..., Any], *operands: Any) -> Any:
    """Run a function single-threaded: dask already uses one task for each CPU."""
    return _call_alone()(function, *operands)


def plan_only() -> AbstractContextManager[None]:
    """Make calls of this thread plan and compile without launching anything: results are not written."""
    from fastq.engine.runtime import driver

    return driver.planned_only()


def native_code() -> AbstractContextManager[None]:
    """Compile the machine code of calls for exactly this CPU meanwhile; see `fastq.engine.code`."""
    from fastq.engine import code
    from fastq.plan.cache import plans

    plans.clear()  # of calls that use other code
    return code.use_native()


def in_standard_mode_when_called(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function compute in the mode of IEEE 754; compiled code is loaded when it is called."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        result: T = _standard_mode()(function)(*args, **kwargs)
        return result

    return wrapper
