"""See arrays as (outer, length, inner), in place where memory is contiguous in some order of axes, else in tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import result_pool
from fastq.formats.granularity import Granularity
from fastq.formats.qtypes import QType, stored_as
from fastq.kernels.args import MOST_ROW
from fastq.requests.values import check_out

Array = NDArray[Any]

NEVER = 1 << 62  # a cycle that no outer index reaches


@dataclass(frozen=True)
class Layout:
    """An array seen as (outer, length, inner) in C order, and which parameters belong to each part of it.

    Along `length` run blocks of `block` rows, the last one of each outer index perhaps shorter. Outer index o, block b
    and column i use parameter ``((o // cycle * kept + o % kept) * blocks + b) * inner + i``.
    """

    outer: int  # the view
    length: int
    inner: int
    block: int  # rows in a block, and blocks along `length`
    blocks: int
    cycle: int  # outer indices that share parameters: those that are the same modulo `kept` within a `cycle`
    kept: int
    shape: tuple[int, ...]  # shape of scale and zero point
    parameters: int = 1  # number of parameter sets
    # elements of which chunks are multiples, so that no block is in two of them; 0 if blocks share parameters
    unit: int = 0


NO_LAYOUT = Layout(1, 1, 1, 1, 1, 1, 1, ())


@functools.lru_cache(4096)
def make_layout(shape: tuple[int, ...], granularity: Granularity) -> Layout | None:
    """Return the layout of a C-contiguous array that has elements; None where no such view exists.

    This happens if more than five groups of kept and reduced axes alternate: then bring the kept axes to the front.
    """
    parameters, block = granularity.parameter_shape(shape), granularity.block_size
    if (count := math.prod(parameters)) == 1:
        size = math.prod(shape)
        return Layout(1, size, 1, size, 1, NEVER, 1, parameters, unit=size)
    # the products of neighbouring axes of the same kind, from the last axis on: inner, length, kept, reduced, first
    groups, at, named = [1] * 5, 0, granularity.axes or ()
    for axis in range(len(shape) - 1, -1, -1):
        is_kept = (axis in named) != bool(block)  # blocks run along the one axis that is named
        if shape[axis] > 1 or (block and not is_kept):  # other axes of one element belong to either kind
            at += is_kept == at % 2
            if at == len(groups):
                return None
            groups[at] *= shape[axis]
    inner, length, kept, reduced, first = groups
    outer, block = first * reduced * kept, min(block or length, length)
    if reduced > 1:
        return Layout(outer, length, inner, block, 1, reduced * kept, kept, parameters, count)
    if length % block == 0:
        outer, length = 1, outer * length
    unit = (block if outer == 1 else length) * inner
    return Layout(outer, length, inner, block, -(-length // block), NEVER, outer, parameters, count, unit)


# --- memory -----------------------------------------------------------------------------------------------------------

SHORT_ROW = 32  # elements of a row, below which a loop over rows takes longer than to transpose them
# the same of rows of which it takes some as one; and elements that have the same parameters, from which on it does
SHORT_TOGETHER, TOGETHER = 8, 256
MANY = 16  # rows with the same parameters, from which on even the shortest ones are taken as one


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
    strides, step = [0] * like.ndim, dtype.itemsize
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
    return x[tuple(slice(1) if each else slice(None) for each in repeats)]


# --- arrangements -----------------------------------------------------------------------------------------------------


class View(NamedTuple):
    """Arrays as kernels see them."""

    shape: tuple[int, ...]  # shape of the values, axes in the order in which they are visited
    layout: Layout  # the granularity in that order
    memory: StridedOperands = NOT_STRIDED  # which of source and result go through tiles
    order: tuple[int, ...] | None = None  # axes from the slowest to the fastest; None: as they are
    direct: bool = False  # whether memory is contiguous in that order, so that kernels can work on it in place
    parameter_order: tuple[int, ...] = ()  # axes of scale and zero point in that order; empty: as they are
    packs: bool = False  # whether codes that share bytes are read or written, which are in C order

    def turned(self, x: Array) -> Array:
        """Return an array with its axes in the order of this view."""
        return x if self.order is None else x.transpose(self.order)

    def is_in_order(self, x: Array) -> bool:
        """Whether the elements of an array lie in memory in the order of this view, if with gaps."""
        seen = self.turned(x)
        return is_plain(seen) or memory_order(seen) == tuple(range(x.ndim))

    def of(self, x: Array, out: Array | None = None, dtype: np.dtype[Any] | None = None, reads: bool = False) -> View:
        """Return this view of a source, and of a result of a dtype, to be made in the memory order of x without out.

        With `reads` out is read too; without a dtype there is no result.
        """
        made = None
        if out is not None:
            made = memory_of(self.turned(out), writes=not reads)
        elif dtype is not None and not self.packs:
            made = memory_of_result(x, dtype, self.order)
        return self._replace(memory=StridedOperands(memory_of(self.turned(x)), made))

    def in_order(self, x: Array) -> Array:
        """Return an array on which kernels can work in place in this view: as it is, or a copy."""
        seen = np.ascontiguousarray(self.turned(x))
        return seen if self.order is None else seen.transpose(inverse(self.order))

    def to_kernel(self, parameters: Array) -> Array:
        """Return parameters of the caller's shape as kernels take them: C-contiguous in the order of this view.

        Parameters in one row are all equal: zeros for callers who give no zero point.
        """
        if not self.parameter_order or parameters.size == 1 or parameters.ndim == 1:
            return np.ascontiguousarray(parameters)
        return np.ascontiguousarray(parameters.transpose(self.parameter_order))

    def from_kernel(self, parameters: Array) -> Array:
        """Return parameters of kernels in the caller's shape, as a view."""
        parameters = parameters.reshape(self.layout.shape)
        if not self.parameter_order or parameters.size == 1:
            return parameters
        return parameters.transpose(inverse(self.parameter_order))


@functools.lru_cache(4096)
def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order of axes that undoes a transposition."""
    return tuple(order.index(axis) for axis in range(len(order)))


@functools.lru_cache(4096)
def with_last(axis: int, ndim: int) -> tuple[int, ...]:
    """Return the order of axes in which one of them comes after the others; `moveaxis` takes 2 us to find it."""
    axis %= ndim
    return (*(other for other in range(ndim) if other != axis), axis)


def arrange(
    x: Array,
    out: Array | None,
    granularity: Granularity,
    dtype: np.dtype[Any] | None = None,
    given: bool = False,
    reads: bool = False,
    scale_order: tuple[int, ...] | None = None,
) -> View:
    """Choose the order of axes in which kernels visit x, and out if there is one: only their memory counts.

    A result of a `dtype` is made in the memory order of x without out; with `reads` nothing is written to x or out.
    The first order that fits is taken: the memory order of out (of x if there is no out, or if given parameters go with
    wider elements of x in long rows, so that the narrower array is transposed), C order, kept axes first. The memory
    order is passed over where a loop in C order is faster: see `_is_faster`.

    Where x is read alone, a repeated axis is the slowest, so that it is read in the rows that it has. `scale_order` are
    the axes of contiguous given scales, slowest first.
    """
    in_c_order = make_layout(x.shape, granularity)
    if in_c_order is not None and is_plain(x) and is_plain_out(out):
        return View(x.shape, in_c_order, direct=True)
    natural, kept, alone = tuple(range(x.ndim)), granularity.kept, reads and out is None
    leads = out is None or (given and x.itemsize > out.itemsize and _has_long_rows(x))
    in_memory = memory_order(x if out is None or leads else out, alone)
    view: View | None = None
    for order in (in_memory, natural, tuple(sorted(natural, key=lambda axis: axis not in kept))):
        direct = is_plain(x.transpose(order)) and (out is None or is_plain_out(out.transpose(order)))
        view = _in_order(x.shape, granularity, order, direct)
        if view is None:
            continue
        if order == natural or in_c_order is None:
            break
        if _is_faster(view, in_c_order, granularity.block_size, x.itemsize, given, alone, scale_order):
            break
    assert view is not None  # kept axes in front always have a layout
    return view if view.direct else view.of(x, out, dtype, reads)


def _is_faster(
    view: View,
    in_c_order: Layout,
    block_size: int,
    itemsize: int,
    given: bool,
    alone: bool,
    scale_order: tuple[int, ...] | None,
) -> bool:
    """Whether a loop over a view is faster than one in C order, both tile by tile if not direct.

    Blocks along the last axis are visited in C order, unless another one has long rows and, where parameters are not
    given, lets kernels work in place; or it does, elements of a block follow each other, and given scales lie in that
    order, too (`scale_order`). Rows of a few elements with parameters of their own are visited in C order.

    Decisions D36 and D54 have the figures.
    """
    layout = view.layout
    if not block_size or in_c_order.inner > 1:
        return not _has_short_rows(layout, itemsize, alone) or _has_short_rows(in_c_order, itemsize, alone)
    if layout.inner == 1:  # to transpose given parameters of blocks of 32 takes as long as to copy their runs to tiles
        return view.direct and (not given or scale_order == view.parameter_order)
    long = layout.inner >= SHORT_ROW or (layout.inner >= SHORT_TOGETHER and layout.inner * layout.block >= TOGETHER)
    return long and (view.direct or given)


def _has_short_rows(layout: Layout, itemsize: int, alone: bool) -> bool:
    """Whether neighbours have parameters of their own in rows too short for a loop over them, few of them alike.

    Rows of 8 elements, or of fewer in 32 bytes, are long enough to be converted, twice as many to be reduced.
    """
    least = 16 if alone else 8
    apart = layout.outer > 1 or layout.blocks > 1
    return layout.block < MANY and apart and 1 < layout.inner < least and layout.inner * itemsize < 4 * least


def _has_long_rows(x: Array) -> bool:
    """Whether rows in memory are so long that none have to be taken as one."""
    return x.ndim > 0 and 0 not in x.strides and x.shape[memory_order(x)[-1]] >= MOST_ROW


def memory_order(x: Array, alone: bool = False) -> tuple[int, ...]:
    """Return axes from the slowest to the fastest in memory: the order of results that NumPy calls "K".

    In that an axis along which x repeats itself is the fastest; with `alone` it is the slowest.
    """
    keys = [(bool(stride) and alone, -abs(stride)) for stride in x.strides]
    return tuple(sorted(range(x.ndim), key=keys.__getitem__))


def order_without_gaps(x: Array) -> tuple[int, ...] | None:
    """Return axes from the slowest to the fastest in memory, None where that has gaps."""
    if is_plain(x):
        return tuple(range(x.ndim))
    order = memory_order(x)
    return order if is_plain(x.transpose(order)) else None


def _in_order(shape: tuple[int, ...], granularity: Granularity, order: tuple[int, ...], direct: bool) -> View | None:
    if order == tuple(range(len(shape))):
        layout = make_layout(shape, granularity)
        return None if layout is None else View(shape, layout, direct=direct)
    turned = tuple([shape[axis] for axis in order])
    layout = make_layout(turned, granularity.in_order(order))
    if layout is None:
        return None
    parameter_order: tuple[int, ...] = ()
    if len(layout.shape) > 1:
        axes = granularity.parameter_axes(len(shape))
        parameter_order = tuple(axes.index(axis) for axis in order if axis in axes)
    return View(turned, layout, NOT_STRIDED, order, direct, parameter_order)


def arrange_packed(shape: tuple[int, ...], granularity: Granularity, packed: Array | None, group: int) -> View | None:
    """Return how kernels see packed codes: in C order; None of codes with gaps, or parameters that part a byte.

    So every row and every run of one parameter begins on a whole byte, with one for each `group` of codes.
    """
    layout = make_layout(shape, granularity)
    if layout is None or not is_plain(packed):
        return None
    starts = [shape[-1]] if shape and math.prod(shape[:-1]) > 1 else []
    if layout.parameters > 1:
        starts += [layout.block, layout.length] if layout.inner == 1 else [layout.inner]
    if any(start % group for start in starts):
        return None
    return View(shape, layout, direct=True, packs=True)


def copy_if_overlapping(out: Array, *arrays: Any) -> tuple[Any, ...]:
    """Return operands, of which arrays are copied where out shares memory with them.

    A copy has the strides of its original where that has no gaps and goes forward, so that a plan holds for it.
    """
    return tuple(x.copy("K") if isinstance(x, np.ndarray) and _share_memory(x, out) else x for x in arrays)


def _share_memory(x: Array, out: Array) -> bool:
    # each owns its memory: an array without a base may not, for example if compiled code made it from an address
    if x.flags.owndata and out.flags.owndata:
        return x is out
    if not np.may_share_memory(x, out):
        return False
    try:
        return np.shares_memory(x, out, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


# --- results ----------------------------------------------------------------------------------------------------------


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
        return Result(shape, dtype, nbytes, functools.partial(_empty_in_order, in_memory, dtype, inverse(order)))
    large = nbytes >= result_pool.LARGE
    return Result(shape, dtype, nbytes, functools.partial(result_pool.empty if large else np.empty, shape, dtype))


def _empty_in_order(in_memory: tuple[int, ...], dtype: np.dtype[Any], axes: tuple[int, ...]) -> Array:
    """Return an array of anything, of a shape in memory, with its axes in another order."""
    return result_pool.empty(in_memory, dtype).transpose(axes)


def codes_result(x: Array, qtype: QType, out: Any) -> Result:
    """Return shape, dtype and allocator of the codes of an array."""
    return result_of(*stored_as(x.shape, qtype), out, like=None if qtype.packed else x)
