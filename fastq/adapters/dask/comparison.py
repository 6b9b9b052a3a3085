"""Errors of an approximation: a task for each chunk, whose totals are added up."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

from fastq import results
from fastq.adapters.dask import in_task
from fastq.adapters.dask.by_parameters import codes_by_qparams, task_options_by_qparams
from fastq.adapters.dask.chunks import Chunks, PartedChunks, blockwise, dtype_in
from fastq.formats.granularity import ARRAY, granularity
from fastq.formats.qtypes import packed_length
from fastq.plan.cache import Call
from fastq.requests.quantization import check_approximation, check_comparable, check_input
from fastq.system.arrays_of_callers import as_array


def compare_codes(call: Call, x: da.Array) -> Any:
    """Return the graph of `fastq.compare` with codes; those in memory are cut as x is."""
    _, codes, *_ = call.operands
    check_input(dtype_in(x, "x"))
    check_comparable(x.shape, call.shape)
    is_labelled = hasattr(codes, "dims")
    lazy_codes = getattr(codes, "data", None) if is_labelled else codes
    if not isinstance(lazy_codes, da.Array):
        lazy_codes = _cut_like(x, lazy_codes, call.qparams)
    params, parts, operands = codes_by_qparams(call, lazy_codes)
    return _compare_by_chunks(x, parts.chunks, *operands, **task_options_by_qparams(call, params))


def _cut_like(x: da.Array, codes: Any, params: results.QParams) -> da.Array:
    """Return codes in memory as an array of dask, with the chunks of x, which must end where bytes of codes end."""
    qtype = params.dtype
    PartedChunks(x.chunks, granularity(params.axis, params.block_size, x.ndim)).check_aligned(qtype)
    array = as_array(codes, "q.codes")
    if not x.ndim:
        return da.from_array(array, chunks=-1)
    last = x.chunks[-1]
    sizes = tuple(packed_length(size, qtype) for size in last) if qtype.packed else last
    return da.from_array(array, chunks=(*x.chunks[:-1], sizes))


def compare_values(call: Call, x: da.Array) -> Any:
    """Return the graph of `fastq.compare` with an array of values."""
    q = call.operands[1] if isinstance(call.operands[1], da.Array) else as_array(call.operands[1], "q")
    check_input(dtype_in(x, "x"))
    check_approximation(dtype_in(q, "q"))
    q = da.asarray(q)  # which does not take every dtype
    if not any(map(math.isnan, (*x.shape, *q.shape))):
        check_comparable(x.shape, q.shape)
    return _compare_by_chunks(
        x, x.chunks, _in_chunks(q, x.chunks, "q"), tuple(range(q.ndim)), arguments=in_task.call_of_task(call)
    )


def _compare_by_chunks(x: da.Array, chunks: Chunks, *operands: Any, **options_of_tasks: Any) -> Any:
    """Return the lazy comparison of x, from totals of the chunks of the approximation, whose operands are passed."""
    parts = PartedChunks(chunks, ARRAY)
    options_of_tasks |= {"dtype": object, "adjust_chunks": parts.result_chunks, "token": "compare", "concatenate": True}
    x = _in_chunks(x, chunks, "x")
    totals = blockwise(in_task.totals, parts.all_axes, x, parts.all_axes, *operands, **options_of_tasks)
    return delayed(in_task.comparison, pure=True)(np.ravel(totals.to_delayed()).tolist())


def _in_chunks(array: da.Array, chunks: Chunks, name: str) -> da.Array:
    """Return an array in chunks; raise ValueError if sizes are unknown and the numbers of chunks differ."""
    if not any(math.isnan(size) for sizes in (*chunks, *array.chunks) for size in sizes):
        return array.rechunk(chunks)
    if array.numblocks != tuple(map(len, chunks)):
        raise ValueError(f"the chunk sizes of {name} are unknown: call {name}.compute_chunk_sizes() first")
    return array
