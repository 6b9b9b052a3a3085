"""Rounding to fewer bits: a task for each chunk; an error bound needs the largest magnitude of all chunks first."""

from __future__ import annotations

import functools
import operator
from typing import Any

import dask
import dask.array as da
import numpy as np

from fastq.adapters.dask import tasks
from fastq.adapters.dask.parts import Parts, blockwise, dtype_in, unmasked
from fastq.formats.granularity import ARRAY
from fastq.ops.bitround import BIT_INFORMATION, largest
from fastq.plan.cache import Call
from fastq.plan.callers import in_own_thread
from fastq.requests import bitrounding
from fastq.requests.options import BitPairOptions
from fastq.results import BitInformation
from fastq.system.dtypes import Array


def bitround(call: Call, x: da.Array) -> da.Array:
    """Return the graph of `fastq.bitround`."""
    asked = bitrounding.bitround(dtype_in(x, "x"), call.options)
    axes = tuple(range(x.ndim))
    how: dict[str, Any] = {"asked": tasks.told(call), "dtype": asked.dtype, "token": "bitround"}
    if asked.max_error is None:
        return blockwise(tasks.computed, axes, x, axes, **how)
    chunks = Parts(x.chunks, ARRAY).result_chunks
    found = blockwise(_largest, axes, x, axes, dtype=np.float64, adjust_chunks=chunks, token="largest")
    return blockwise(_within, axes, x, axes, found.max(), (), request=asked, **how)


def _largest(x: Array) -> Array:
    x = unmasked(x, "x")
    return np.full((1,) * x.ndim, in_own_thread(largest, x))


def _within(x: Array, found: Any, *, asked: Call, request: bitrounding.BitRounding) -> Any:
    """Round a chunk to the bits that the largest magnitude of all chunks requires."""
    options = asked.options._replace(keepbits=request.keepbits_within(float(found)), max_error=None)
    return tasks.computed(x, asked=asked._replace(options=options, types=(int, type(None), type(None))))


def bit_information(call: Call, x: da.Array) -> BitInformation:
    """Compute `fastq.bit_information` chunk by chunk."""
    axis = bitrounding.bit_information(dtype_in(x, "x"), x.ndim, call.options)
    blocks = np.moveaxis(np.array(x.to_delayed(), object).reshape(x.numblocks), axis, 0)
    blocks = blocks[[k for k, n in enumerate(x.chunks[axis]) if n]]  # an empty chunk has no neighbours
    counted = []
    for k, *others in np.ndindex(blocks.shape):
        edge = dask.delayed(_first)(blocks[(k + 1, *others)], axis) if k + 1 < len(blocks) else None
        counted.append(dask.delayed(_counted)(blocks[(k, *others)], edge, axis))
    nothing = np.zeros((0,) * x.ndim, x.dtype)
    found: BitInformation = functools.reduce(operator.add, dask.compute(counted)[0], _counted(nothing, None, axis))
    return found


def _first(x: Array, axis: int) -> Array:
    first: Array = unmasked(x, "x").take([0], axis)
    return first


def _counted(x: Array, edge: Array | None, axis: int) -> BitInformation:
    """Count the pairs of a chunk, and those of its last elements with the first ones of the next chunk."""
    asked = Call(BIT_INFORMATION, tasks.NOTHING, None, BitPairOptions(axis), (int,), None)
    x = unmasked(x, "x")
    found: BitInformation = tasks.computed(x, asked=asked)
    if edge is None:
        return found
    across = np.concatenate([x.take([-1], axis), edge], axis)
    of_edge: BitInformation = tasks.computed(across, asked=asked)
    return found + of_edge
