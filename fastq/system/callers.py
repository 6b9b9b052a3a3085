"""Warnings that name the line of the caller, however deep within fastq they are given."""

from __future__ import annotations

import inspect
import warnings

# packages of which no frame is the caller: fastq, what calls it for someone, and the wrappers of functions; a task of
# dask in another thread has no others, so its warnings name no line
_BETWEEN = {"fastq", "dask", "distributed", "xarray", "zarr", "numpy", "toolz", "tlz", "cytoolz"}
_BETWEEN |= {"asyncio", "concurrent", "contextlib", "functools", "threading"}


def warn_caller(message: str) -> None:
    """Give a UserWarning that names the line which calls fastq, or makes dask compute."""
    frame = inspect.currentframe()
    level = 1
    while frame is not None and _is_between(frame.f_globals.get("__name__")):
        frame = frame.f_back
        level += 1
    # beyond the outermost frame it names no line
    warnings.warn(message, UserWarning, stacklevel=level)


def _is_between(module: object) -> bool:
    """Return whether a frame is of a module that is not the caller's, by its name."""
    return isinstance(module, str) and module.partition(".")[0] in _BETWEEN
