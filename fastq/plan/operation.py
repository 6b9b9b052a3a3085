"""The record of an operation: everything that is known of it before a caller gives arguments.

Each public function that launches kernels has such a record in its module of `fastq.ops`, below the function that
resolves its calls::

    BITROUND = Operation(
        name="BITROUND",
        function="bitround",
        resolve=_resolve_bitround,
        options=BitRoundOptions,
        operands=("x", "out"),
        labels="elements",
    )
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# A plan with its threads and checks, as the plan cache keeps it. It is called with the four operands of a call, then
# with QParams (or None) and, if codes are rounded at random, with the random numbers.
BoundCall = Callable[..., Any]


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, since it is part of the key of the plan cache
class Operation:
    """An operation of fastq.

    Attributes
    ----------
    name : str
        The name of this record in its module.
    function : str
        The public function as callers write it after ``fastq.``, for errors.
    resolve : callable
        Takes a `cache.Call` and its operands, validates everything that dtypes, shapes and options tell, and returns a
        `BoundCall`.
    options : type
        The named tuple of the options, with their defaults.
    operands : tuple of str
        The arrays and numbers as the public function calls them, in the order of `cache.call`.
    labels : str
        How a result for a DataArray gets its labels back: "codes", "elements" or "ranges"; empty if it gets none.
    """

    name: str
    function: str
    resolve: Callable[..., BoundCall]
    options: type[Any]
    operands: tuple[str, ...]
    labels: str = ""

    def __reduce__(self) -> tuple[Callable[..., Operation], tuple[str, str]]:
        """Pickle the place of the record, so that a task of dask gets the one of its process."""
        return _record, (self.resolve.__module__, self.name)


def _record(module: str, name: str) -> Operation:
    """Return the record of a module that pickle names."""
    __import__(module)
    record: Operation = getattr(sys.modules[module], name)
    return record
