"""Choose the order of axes in which kernels visit arrays: in place where that memory is contiguous, else in tiles."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.formats.granularity import Granularity
from fastq.kernels.sizes import ENDLESS
from fastq.plan import policy
from fastq.plan.layout import Layout, make_layout
from fastq.requests.stochastic_rounding import Noise, steps_of
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


class View(NamedTuple):
    """Arrays as kernels see them."""

    shape: tuple[int, ...]  # shape of the values, axes in the order in which they are visited
    layout: Layout  # the granularity in that order
    memory: StridedOperands = NOT_STRIDED  # which of source and result go through tiles
    order: tuple[int, ...] | None = None  # axes from the slowest to the fastest; None: as they are
    is_direct: bool = False  # whether memory is contiguous in that order, so that kernels can work on it in place
    parameter_order: tuple[int, ...] = ()  # axes of scale and zero point in that order; empty: as they are
    has_packed_codes: bool = False  # whether codes that share bytes, in C order, are read or written

    def in_view_order(self, x: Array) -> Array:
        """Return an array with its axes in the order of this view."""
        return x if self.order is None else x.transpose(self.order)

    def is_in_order(self, x: Array) -> bool:
        """Whether the elements of an array lie in memory in the order of this view, if with gaps."""
        in_view_order = self.in_view_order(x)
        return is_plain(in_view_order) or memory_order(in_view_order) == tuple(range(x.ndim))

    def of(
        self, x: Array, out: Array | None = None, dtype: np.dtype[Any] | None = None, *, only_reads: bool = False
    ) -> View:
        """Return this view with the memory of x and of a result, which go through tiles if kernels need that.

        The result is out. Without out it is an array of a dtype that will be made in the memory order of x, or in C
        order for packed codes; without a dtype either there is none. With `only_reads` out is an operand that is read.
        """
        result = None
        if out is not None:
            result = memory_of(self.in_view_order(out), writes=not only_reads)
        elif dtype is not None and not self.has_packed_codes:
            result = memory_of_result(x, dtype, self.order)
        return self._replace(memory=StridedOperands(memory_of(self.in_view_order(x)), result))

    def in_order(self, x: Array) -> Array:
        """Return an array on which kernels can work in place in this view: as it is, or a copy with the same axes."""
        in_view_order = np.ascontiguousarray(self.in_view_order(x))
        return in_view_order if self.order is None else in_view_order.transpose(inverse(self.order))

    def to_kernel(self, parameters: Array) -> Array:
        """Return parameters of the caller's shape as kernels take them: C-contiguous in the order of this view.

        Parameters in one row are all equal: zeros for callers who give no zero point.
        """
        if not self.parameter_order or parameters.size == 1 or parameters.ndim == 1:
            return np.ascontiguousarray(parameters)
        return np.ascontiguousarray(parameters.transpose(self.parameter_order))

    def from_kernel(self, parameters: Array) -> Array:
        """Return parameters of kernels in the caller's shape, as a view."""
        parameters = parameters.reshape(self.layout.parameter_shape)
        if not self.parameter_order or parameters.size == 1:
            return parameters
        return parameters.transpose(inverse(self.parameter_order))

    def words_of(self, noise: Noise) -> NDArray[np.int64]:
        """Return the words by which kernels draw the random number of each element: `NOISE_KEY` of kernels/sizes.py.

        They tell the place of each element in C order, so that numbers do not depend on the order of this view.
        """
        axes = _axes_of_draws(self.shape, self.order, noise.steps)
        # the key has 64 bits without a sign: as an int64 those with the highest bit set are negative
        return np.array((noise.key - (noise.key >> 63 << 64), noise.first, *axes), np.int64)


@functools.lru_cache(4096)
def _axes_of_draws(
    shape: tuple[int, ...], order: tuple[int, ...] | None, steps: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return elements and steps of the axes of a traversal, the fastest first; those that follow on are one.

    A step is the distance of neighbours along an axis, in elements of the array that the random numbers belong to. The
    last axis is endless, since no index goes beyond it. An array of shape (2, 3) in C order is one axis of step 1:
    ``(ENDLESS, 1)``. Visited column by column, with the order (1, 0) and so the shape (3, 2), it has two:
    ``(2, 3, ENDLESS, 1)``.
    """
    order = order or tuple(range(len(shape)))
    if steps is None:
        steps = steps_of(tuple(shape[k] for k in inverse(order)))  # of the caller's axes
    axes = [(1, 1)]
    for size, axis in zip(reversed(shape), reversed(order), strict=True):
        extent, step = axes[-1]
        if size > 1 and (extent == 1 or steps[axis] == extent * step):
            axes[-1] = extent * size, steps[axis] if extent == 1 else step
        elif size > 1:
            axes.append((size, steps[axis]))
    axes[-1] = ENDLESS, axes[-1][1]
    return tuple(word for axis in axes for word in axis)


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
    *,
    has_given_parameters: bool = False,
    only_reads: bool = False,
    scale_order: tuple[int, ...] | None = None,
) -> View:
    """Choose the order of axes in which kernels visit x, and out if there is one: only their memory counts.

    The first of `_candidate_orders` that has a layout is taken, except for the memory order where a loop in C order is
    faster: see `policy.prefers_memory_order`.

    Parameters
    ----------
    x, out : ndarray
        Arrays like those of the call.
    granularity : Granularity
        Which elements share parameters.
    dtype : dtype, optional
        Of a result that is made in the memory order of x, without out.
    has_given_parameters : bool
        Whether scales come from the caller, who may have them in another order.
    only_reads : bool
        Whether nothing is written, neither to x nor to out.
    scale_order : tuple of int, optional
        The axes of contiguous given scales, slowest first.
    """
    in_c_order = make_layout(x.shape, granularity)
    if in_c_order is not None and is_plain(x) and is_plain_out(out):
        return View(x.shape, in_c_order, is_direct=True)
    reads_x_alone = only_reads and out is None
    orders = _candidate_orders(
        x, out, granularity, has_given_parameters=has_given_parameters, reads_x_alone=reads_x_alone
    )
    view: View | None = None
    for order in orders:
        view = _view_in_order(x, out, granularity, order)
        if view is None:
            continue
        is_in_c_order = view.order is None
        if (
            is_in_c_order
            or in_c_order is None  # there is nothing to prefer to this order
            or policy.prefers_memory_order(
                view.layout,
                in_c_order,
                block_size=granularity.block_size,
                itemsize=x.itemsize,
                is_direct=view.is_direct,
                has_given_parameters=has_given_parameters,
                scales_are_in_order=scale_order == view.parameter_order,
                only_reads=reads_x_alone,
            )
        ):
            break
    assert view is not None, "kept axes in front always have a layout"
    return view if view.is_direct else view.of(x, out, dtype, only_reads=only_reads)


def _candidate_orders(
    x: Array, out: Array | None, granularity: Granularity, *, has_given_parameters: bool, reads_x_alone: bool
) -> tuple[tuple[int, ...], ...]:
    """Return the orders in which kernels may visit arrays, the best first.

    The memory order comes first, since kernels work in place on what is contiguous in it. Of two arrays it is that of
    out, and x is transposed where it has another. But if parameters are given and x has the wider elements, in long
    rows, it is that of x, so that the narrower array is transposed. Next is C order, which may have no layout, where
    kept and reduced axes alternate too often. With the kept axes in front there always is one, as with the one axis
    along which blocks run, which `Granularity.kept` has for these.
    """
    c_order = tuple(range(x.ndim))
    x_leads = out is None or (has_given_parameters and x.itemsize > out.itemsize and _has_long_rows(x))
    # an x that is read alone has each repeated axis outermost, so that it is read in the rows that it has
    in_memory = memory_order(x if out is None or x_leads else out, repeats_are_slowest=reads_x_alone)
    kept_first = tuple(sorted(c_order, key=lambda axis: axis not in granularity.kept))
    return in_memory, c_order, kept_first


def _has_long_rows(x: Array) -> bool:
    """Whether rows in memory are so long that none have to be merged."""
    if x.ndim == 0 or 0 in x.strides:
        return False
    return policy.has_long_rows(x.shape[memory_order(x)[-1]])


def _view_in_order(x: Array, out: Array | None, granularity: Granularity, order: tuple[int, ...]) -> View | None:
    """Return how kernels see arrays with axes in an order; None where that has no layout."""
    is_direct = is_plain(x.transpose(order)) and (out is None or is_plain_out(out.transpose(order)))
    if order == tuple(range(x.ndim)):
        layout = make_layout(x.shape, granularity)
        return None if layout is None else View(x.shape, layout, is_direct=is_direct)
    shape = tuple([x.shape[axis] for axis in order])
    layout = make_layout(shape, granularity.in_order(order))
    if layout is None:
        return None
    parameter_order: tuple[int, ...] = ()
    if len(layout.parameter_shape) > 1:
        axes = granularity.parameter_axes(x.ndim)
        parameter_order = tuple(axes.index(axis) for axis in order if axis in axes)
    return View(shape=shape, layout=layout, order=order, is_direct=is_direct, parameter_order=parameter_order)


def arrange_packed(shape: tuple[int, ...], granularity: Granularity, packed: Array | None, group: int) -> View | None:
    """Return how kernels see packed codes: in C order. None where they can't, and codes go through one in a byte.

    They can't where memory has gaps, or where a row or a run of one parameter may begin within a byte, and not with a
    `group` of codes: rows of 6 codes of 4 bits, of which a group has 2, in blocks of 3 have a block that begins at code
    3.
    """
    layout = make_layout(shape, granularity)
    if layout is None or not is_plain(packed):
        return None
    starts = [shape[-1]] if shape and math.prod(shape[:-1]) > 1 else []
    if layout.parameters > 1:
        starts += [layout.block, layout.length] if layout.inner == 1 else [layout.inner]
    if any(start % group for start in starts):
        return None
    return View(shape, layout, is_direct=True, has_packed_codes=True)


# --- how arrays lie in memory, and whether kernels can work on it in place --------------------------------------------


def memory_of(x: Array, writes: bool = False) -> Memory | None:
    """Return the memory of an array, None where kernels can read it, or write it, in C order as it is."""
    return None if (is_plain_out if writes else is_plain)(x) else Memory(x.strides, x.dtype)


def memory_of_result(like: Array, dtype: np.dtype[Any], view_order: tuple[int, ...] | None) -> Memory | None:
    """Return the memory, with axes in `view_order`, of a result to be made in the memory order of an array.

    None where kernels can write it in that order as it is. A float32 result like an array of shape (2, 3) in Fortran
    order has strides (4, 8) in C order.
    """
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


def memory_order(x: Array, *, repeats_are_slowest: bool = False) -> tuple[int, ...]:
    """Return axes from the slowest to the fastest in memory: the order of results that NumPy calls "K".

    A repeated axis, whose stride is 0, counts as the fastest, or with `repeats_are_slowest` as the slowest.
    """
    keys = [(repeats_are_slowest and stride != 0, -abs(stride)) for stride in x.strides]
    return tuple(sorted(range(x.ndim), key=keys.__getitem__))


def order_without_gaps(x: Array) -> tuple[int, ...] | None:
    """Return axes from the slowest to the fastest in memory, or None if the memory has gaps."""
    if is_plain(x):
        return tuple(range(x.ndim))
    order = memory_order(x)
    return order if is_plain(x.transpose(order)) else None
