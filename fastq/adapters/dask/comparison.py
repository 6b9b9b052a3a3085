"""Errors of an approximation: a task for each chunk, whose totals are added up."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

from fastq.adapters.dask import in_task
from fastq.adapters.dask.by_parameters import codes_by_qparams, task_options_by_qparams
from fastq.adapters.dask.chunks import Chunks, PartedChunks, blockwise, dtype_in
from fastq.formats.granularity import ARRAY, granularity
from fastq.formats.qtypes import packed_length
from fastq.plan.cache import Call
from fastq.requests.quantization import check_approximation, check_comparable, check_input
from fastq.system.arrays_of_callers import as_array


def compare_codes(call: Call, x: da.Array) -> Any:
    """Return the graph of `fastq.compare` with codes."""
    _, codes, *_ = call.operands
    check_input(dtype_in(x, "x"))
    check_comparable(x.shape, call.shape)
    codes = getattr(codes, "data", None) if hasattr(codes, "dims") else codes
    if not isinstance(codes, da.Array):
        params = call.qparams
        qtype = params.dtype
        parts = PartedChunks(x.chunks, granularity(params.axis, params.block_size, x.ndim))
        parts.check_aligned(qtype)
        ends = x.chunks[-1:]
        if qtype.packed:
            ends = tuple(tuple(packed_length(size, qtype) for size in sizes) for sizes in ends)
        codes = da.from_array(as_array(codes, "q.codes"), chunks=(*x.chunks[:-1], *ends) if x.ndim else -1)
    params, parts, operands = codes_by_qparams(call, codes)
    return _add_up(x, parts.chunks, *operands, **task_options_by_qparams(call, params))


def compare_values(call: Call, x: da.Array) -> Any:
    """Return the graph of `fastq.compare` with an array."""
    q = call.operands[1] if isinstance(call.operands[1], da.Array) else as_array(call.operands[1], "q")
    check_input(dtype_in(x, "x"))
    check_approximation(dtype_in(q, "q"))
    q = da.asarray(q)  # which does not take every dtype
    if not any(map(math.isnan, (*x.shape, *q.shape))):
        check_comparable(x.shape, q.shape)
    return _add_up(
        x, x.chunks, _in_chunks(q, x.chunks, "q"), tuple(range(q.ndim)), arguments=in_task.call_of_task(call)
    )


def _add_up(x: da.Array, chunks: Chunks, *operands: Any, **options_of_tasks: Any) -> Any:
    """Return the comparison of x, in the chunks of the approximation."""
    parts = PartedChunks(chunks, ARRAY)
    options_of_tasks |= {"dtype": object, "adjust_chunks": parts.result_chunks, "token": "compare", "concatenate": True}
    x = _in_chunks(x, chunks, "x")
    totals = blockwise(in_task.totals, parts.all_axes, x, parts.all_axes, *operands, **options_of_tasks)
    return delayed(in_task.comparison, pure=True)(np.ravel(totals.to_delayed()).tolist())


def _in_chunks(array: da.Array, chunks: Chunks, name: str) -> da.Array:
    if not any(math.isnan(size) for sizes in (*chunks, *array.chunks) for size in sizes):
        return array.rechunk(chunks)
    if array.numblocks != tuple(map(len, chunks)):
        raise ValueError(f"the chunk sizes of {name} are unknown: call {name}.compute_chunk_sizes() first")
    return array
