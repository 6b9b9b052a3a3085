"""Dispatch calls on dask arrays to the graphs of their operations."""

from __future__ import annotations

from typing import Any

import dask.array as da

from fastq.adapters.dask.parts import refuse_masked_meta
from fastq.plan.cache import Call
from fastq.plan.operation import OPERATIONS
from fastq.system import lazy
from fastq.system.arguments import is_a


def call(asked: Call) -> Any:
    """Return the graph of a call."""
    row = OPERATIONS[asked.operation]
    if not row.graph:
        array, name = row.operands[0], row.function or asked.operation
        raise TypeError(
            f"{array} is a dask array, which {name} can't process by chunks: pass {array}.compute(), the whole array"
        )
    if row.operands[1:2] != ("q",) and asked.operands[1] is not None:
        raise TypeError("out must be None for a dask array: write the result, for example with dask.array.store")
    for operand, name in zip(asked.operands, row.operands, strict=False):
        if is_a(operand, da.Array):
            refuse_masked_meta(operand, name)
    return getattr(lazy.module(f"fastq.adapters.dask.{row.graph}"), asked.operation)(asked, asked.operands[0])
