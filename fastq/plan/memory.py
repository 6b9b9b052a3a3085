"""How arrays lie in memory, and whether kernels can work on it in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fastq.system.dtypes import Array


class Memory(NamedTuple):
    """The memory of an array on which kernels cannot work in place."""

    strides: tuple[int, ...]  # bytes
    dtype: np.dtype[Any]


class StridedOperands(NamedTuple):
    """The memory of source and result that go through tiles; None for those on which kernels work in place."""

    x: Memory | None = None
    out: Memory | None = None


NOT_STRIDED = StridedOperands()


def memory_of(x: Array, writes: bool = False) -> Memory | None:
    """Return the memory of an array, None where kernels can read it, or write it, in C order as it is."""
    return None if (is_plain_out if writes else is_plain)(x) else Memory(x.strides, x.dtype)


def memory_of_result(like: Array, dtype: np.dtype[Any], view_order: tuple[int, ...] | None) -> Memory | None:
    """Return the memory, with axes in `view_order`, of a result to be made in the memory order of an array."""
    order = tuple(range(like.ndim)) if is_plain(like) else memory_order(like)
    if order == (view_order or tuple(range(like.ndim))):
        return None
    strides = [0] * like.ndim
    step = dtype.itemsize
    for axis in reversed(order):
        strides[axis], step = step, step * like.shape[axis]
    return Memory(tuple(strides[axis] for axis in view_order or range(like.ndim)), dtype)


def is_plain(x: Array | None) -> bool:
    """Whether kernels can read an array in C order, or one to be made, as it is, at any address: decision D55."""
    return x is None or (x.flags.c_contiguous and x.dtype.isnative)


def is_plain_out(out: Array | None) -> bool:
    """Return whether kernels can write an array in C order in place.

    Elements must be aligned: a streaming store faults at an address between granules, and kernels count whole elements
    up to the next cache line.
    """
    return is_plain(out) and (out is None or out.flags.aligned)


def without_repeats(x: Array, kept: tuple[int, ...]) -> Array:
    """Return an array, which begins where x does, without what x repeats along axes that are not kept."""
    if 0 not in x.strides:
        return x
    repeats = [stride == 0 and axis not in kept for axis, stride in enumerate(x.strides)]
    return x[tuple(slice(1) if is_repeated else slice(None) for is_repeated in repeats)]


def memory_order(x: Array, alone: bool = False) -> tuple[int, ...]:
    """Return axes from the slowest to the fastest in memory: the order of results that NumPy calls "K".

    A broadcast axis, whose stride is 0, counts as the fastest; with `alone` it counts as the slowest.
    """
    keys = [(bool(stride) and alone, -abs(stride)) for stride in x.strides]
    return tuple(sorted(range(x.ndim), key=keys.__getitem__))


def order_without_gaps(x: Array) -> tuple[int, ...] | None:
    """Return axes from the slowest to the fastest in memory, or None if the memory has gaps."""
    if is_plain(x):
        return tuple(range(x.ndim))
    order = memory_order(x)
    return order if is_plain(x.transpose(order)) else None
