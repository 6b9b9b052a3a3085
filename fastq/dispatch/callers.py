"""Calls from threads of another pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq.system import lazy


def in_own_thread(function: Callable[..., Any], *operands: Any) -> Any:
    """Call a function whose calls of fastq use no other threads: dask runs as many tasks as it may use CPUs."""
    return lazy.module("fastq.engine.runtime.threadpool").call_alone(function, *operands)
