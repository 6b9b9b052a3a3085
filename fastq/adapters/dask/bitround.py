"""Rounding to fewer bits: a task for each chunk; an error bound needs the largest magnitude of all chunks first."""

from __future__ import annotations

import functools
import operator
from typing import Any

import dask
import dask.array as da
import numpy as np

from fastq.adapters.dask import in_task
from fastq.adapters.dask.chunks import PartedChunks, as_array_without_mask, blockwise, dtype_in
from fastq.formats.granularity import ARRAY
from fastq.ops.bitround import BIT_INFORMATION, largest
from fastq.plan.cache import Call
from fastq.plan.call_modes import in_own_thread
from fastq.requests import bitrounding
from fastq.requests.bitrounding import BitPairOptions
from fastq.results import BitInformation
from fastq.system.dtypes import Array


def bitround(call: Call, x: da.Array) -> da.Array:
    """Return the graph of `fastq.bitround`: a task for each chunk.

    An error bound gives a number of bits by the largest magnitude, so there is a task before these that finds it for
    each chunk.
    """
    request = bitrounding.bitround_request(dtype_in(x, "x"), call.options)
    axes = tuple(range(x.ndim))
    options_of_tasks: dict[str, Any] = {
        "arguments": in_task.call_of_task(call),
        "dtype": request.dtype,
        "token": "bitround",
    }
    if request.max_error is None:
        return blockwise(in_task.run_call, axes, x, axes, **options_of_tasks)
    chunks = PartedChunks(x.chunks, ARRAY).result_chunks
    largest_of_chunks = blockwise(_largest, axes, x, axes, dtype=np.float64, adjust_chunks=chunks, token="largest")
    return blockwise(
        _round_chunk_within_bound, axes, x, axes, largest_of_chunks.max(), (), request=request, **options_of_tasks
    )


def _largest(x: Array) -> Array:
    """Return the largest magnitude of a chunk, as a chunk with one element."""
    x = as_array_without_mask(x, "x")
    return np.full((1,) * x.ndim, in_own_thread(largest, x))


def _round_chunk_within_bound(
    x: Array, largest_magnitude: Any, *, arguments: Call, request: bitrounding.BitRounding
) -> Any:
    """Round a chunk to the bits that the largest magnitude of all chunks requires."""
    options = arguments.options._replace(keepbits=request.keepbits_within(float(largest_magnitude)), max_error=None)
    types = (int, type(None), type(None))  # of the first options, which are numbers: keepbits, digits, max_error
    return in_task.run_call(x, arguments=arguments._replace(options=options, types=types))


def bit_information(call: Call, x: da.Array) -> BitInformation:
    """Compute `fastq.bit_information` chunk by chunk, at once: its result is numbers, not an array.

    Pairs of neighbours in two chunks are counted with the first of these, which gets the first elements of the next
    one.
    """
    axis = bitrounding.axis_of_bit_pairs(dtype_in(x, "x"), x.ndim, call.options)
    # one delayed chunk at each index of chunks, with the axis of pairs first
    blocks = np.moveaxis(np.array(x.to_delayed(), object).reshape(x.numblocks), axis, 0)
    blocks = blocks[[k for k, n in enumerate(x.chunks[axis]) if n]]  # an empty chunk has no neighbours
    lazy_counts = []
    for k, *other_indices in np.ndindex(blocks.shape):
        next_first = dask.delayed(_first_along)(blocks[(k + 1, *other_indices)], axis) if k + 1 < len(blocks) else None
        lazy_counts.append(dask.delayed(_count_pairs)(blocks[(k, *other_indices)], next_first, axis))
    no_pairs = _count_pairs(np.zeros((0,) * x.ndim, x.dtype), None, axis)
    (counts,) = dask.compute(lazy_counts)
    information: BitInformation = functools.reduce(operator.add, counts, no_pairs)
    return information


def _first_along(x: Array, axis: int) -> Array:
    """Return the first elements of a chunk along an axis, which are neighbours of the last ones before."""
    first: Array = as_array_without_mask(x, "x").take([0], axis)
    return first


def _count_pairs(x: Array, next_first: Array | None, axis: int) -> BitInformation:
    """Count the pairs within a chunk, and the pairs of its last elements with the first ones of the next chunk."""
    arguments = Call(
        operation=BIT_INFORMATION,
        operands=in_task.NOTHING,
        qparams=None,
        options=BitPairOptions(axis),
        types=(int,),
        shape=None,
    )
    x = as_array_without_mask(x, "x")
    within: BitInformation = in_task.run_call(x, arguments=arguments)
    if next_first is None:
        return within
    last_and_next = np.concatenate([x.take([-1], axis), next_first], axis)
    across: BitInformation = in_task.run_call(last_and_next, arguments=arguments)
    return within + across
