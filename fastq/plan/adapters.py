"""Arrays of other libraries, and the adapters that take calls on them.

The core imports no adapter. An adapter that takes calls on arrays of another library is registered here by
`fastq/__init__.py`, and is imported when the first such array comes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from fastq.system.imports import undisturbed


class ForeignArray(NamedTuple):
    """A class of arrays of another library."""

    library: str  # the module that has the class; if nobody has imported it, no such array exists
    class_name: str
    # imports the adapter: a module with `take_call`, for a `cache.Call`, and `match_labels` if arrays have labels
    load: Callable[[], ModuleType]


_registered: list[ForeignArray] = []


def register(library: str, class_name: str, load: Callable[[], ModuleType]) -> None:
    """Let an adapter take the calls whose first operand is an array of a class."""
    _registered.append(ForeignArray(library, class_name, load))


def adapter_of(x: Any) -> ModuleType | None:
    """Return the adapter that takes calls on an array of another library; None for all other objects."""
    for array in _registered:
        library = sys.modules.get(array.library)
        if library is not None and isinstance(x, getattr(library, array.class_name, ())):
            return _load(array.load)
    return None


def match_labels(x: Any, other: Any) -> tuple[Any, Any]:
    """Return two arrays whose elements belong together by their labels, if the first one has labels."""
    adapter = adapter_of(x)
    if adapter is None or not hasattr(adapter, "match_labels"):
        return x, other
    pair: tuple[Any, Any] = adapter.match_labels(x, other)
    return pair


@functools.cache
def _load(load: Callable[[], ModuleType]) -> ModuleType:
    """Import an adapter, once."""
    with undisturbed():
        return load()
