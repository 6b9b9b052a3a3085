"""Rounding to fewer bits: a task for each chunk, after the largest magnitude of all where an error is bounded."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from fastq.dask import tasks
from fastq.dask.parts import blockwise, dtype_in
from fastq.dispatch.bitround import largest
from fastq.dispatch.cache import Call
from fastq.dispatch.callers import in_own_thread
from fastq.requests import bitrounding
from fastq.system.dtypes import Array


def bitround(call: Call, x: da.Array) -> da.Array:
    """Return the graph of `fastq.bitround`."""
    asked, axes = bitrounding.bitround(dtype_in(x, "x"), call.options), tuple(range(x.ndim))
    how: dict[str, Any] = {"asked": tasks.told(call), "dtype": asked.dtype, "token": "bitround"}
    if asked.max_error is None:
        return blockwise(tasks.computed, axes, x, axes, **how)
    ones = {axis: (1,) * n for axis, n in enumerate(x.numblocks)}
    found = blockwise(_largest, axes, x, axes, dtype=np.float64, adjust_chunks=ones, token="largest")
    return blockwise(_within, axes, x, axes, found.max(), (), request=asked, **how)


def _largest(x: Array) -> Array:
    return np.full((1,) * x.ndim, in_own_thread(largest, x))


def _within(x: Array, found: Any, *, asked: Call, request: bitrounding.BitRounding) -> Any:
    """Round a chunk to the bits that the largest magnitude of all chunks asks for."""
    options = asked.options._replace(keepbits=request.keepbits_within(float(found)), max_error=None)
    return tasks.computed(x, asked=asked._replace(options=options, types=(int, type(None), type(None))))
