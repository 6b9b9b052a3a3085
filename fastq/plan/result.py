"""Results: their shape and dtype, and the array that is made for them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fastq.engine.runtime import result_pool
from fastq.formats.qtypes import QType, stored_as
from fastq.plan.arrange import inverse, memory_order
from fastq.requests.quantization import check_out
from fastq.system.dtypes import Array


class Result(NamedTuple):
    """Shape, dtype and bytes of a result, and what makes an array for it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    new: Callable[[], Array]


def result_of(shape: tuple[int, ...], dtype: np.dtype[Any], out: Any, like: Array | None = None) -> Result:
    """Return shape, dtype and allocator of a result in C order, or in the memory order of an array; check out."""
    nbytes = math.prod(shape) * dtype.itemsize
    if out is not None:
        check_out(out, shape, dtype)
    elif nbytes > np.iinfo(np.intp).max:
        raise MemoryError(f"a result of shape {shape} and dtype {dtype} has {nbytes} bytes, more than any memory")
    if like is not None and not like.flags.c_contiguous:
        order = memory_order(like)
        in_memory = tuple(shape[axis] for axis in order)
        return Result(
            shape=shape,
            dtype=dtype,
            nbytes=nbytes,
            new=functools.partial(_empty_in_order, in_memory, dtype, inverse(order)),
        )
    large = nbytes >= result_pool.LARGE
    return Result(
        shape=shape,
        dtype=dtype,
        nbytes=nbytes,
        new=functools.partial(result_pool.empty if large else np.empty, shape, dtype),
    )


def _empty_in_order(in_memory: tuple[int, ...], dtype: np.dtype[Any], axes: tuple[int, ...]) -> Array:
    """Return an array whose elements are yet to be written, made with its axes in memory order and then transposed."""
    return result_pool.empty(in_memory, dtype).transpose(axes)


def codes_result(x: Array, qtype: QType, out: Any) -> Result:
    """Return shape, dtype and allocator of the codes of an array."""
    return result_of(*stored_as(x.shape, qtype), out, like=None if qtype.packed else x)
