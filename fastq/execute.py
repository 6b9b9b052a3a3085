"""From arrays to kernels: memory order, tiles for what is not contiguous, which loop, which kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from fastq.kernels import SAW_NAN, jit, lanes, parallel, spans
from fastq.kernels.actions import Action
from fastq.kernels.errors import SUMS
from fastq.kernels.plan import PLAN, Plan
from fastq.layout import Layout, make_layout

Array = NDArray[Any]

# elements that a tile of strided input holds: 1 MiB of float32, half the L2 cache of a current core
TILE = 1 << 18
# elements of a block that is quantized right after it was reduced, while it is in the L2 cache
FUSED = 1 << 17
# bytes of output from which stores go past the cache: twice an L2 of 2 MiB a core. Dequantize of 2**26 on two cores
# 2.1 times faster with it, of 2**18 (in cache) 1.5 times slower
STREAMING = 1 << 23
# minimum and maximum of each thread are kept side by side as long as they have no more numbers than this, 512 KiB of
# float32; of rows that are wider, threads take columns, at most so many at a time that their minima and maxima stay in
# the L2 cache (2**15 of 2**18 columns 1.2 to 3 times faster than 2**11 to 2**14)
PARTIAL = 1 << 16
COLUMNS = 1 << 15
# elements over which errors are added up before sums are added, so that the order does not depend on threads
ERRORS_CHUNK = 1 << 16
WHOLE_BLOCKS = (16, 32, 64, 128)  # block sizes with a kernel of their own
NARROW = 512  # rows of fewer elements than this are widened where they can be


# --- kernels and plans ------------------------------------------------------------------------------------------------


@functools.cache
def _kernel(loop: Any, does: str, nan: str, scheme: str, block: int, *dtypes: np.dtype[Any]) -> int:
    """Address of a loop compiled for an action and dtypes of src, dst, scale and zero point."""
    pointers = [types.CPointer(from_dtype(dtype)) for dtype in (*dtypes, np.dtype(np.float64))]
    action = Action(does, nan, scheme, block)
    return jit.kernel(loop, types.int64, action, *pointers, Plan, *[types.int64] * 4)


def _plan(layout: Layout, bounds: tuple[int, int] = (0, 0), streaming: bool = False, parameters: int = 0) -> Array:
    plan = np.zeros(1, PLAN)
    view = (layout.outer, layout.length, layout.inner, layout.block, layout.blocks, layout.cycle, layout.kept)
    plan[0] = (*view, parameters, *bounds, streaming, ERRORS_CHUNK)
    return plan


def _loop(layout: Layout) -> Any:
    return spans.spans if layout.inner == 1 else lanes.lanes


class _Prepared(NamedTuple):
    """All of a call with given parameters that its shapes and dtypes decide."""

    kernel: int
    plan: Array
    repeat: int


@functools.lru_cache(4096)
def _prepare(
    does: str,
    nan: str,
    bounds: tuple[int, int],
    shape: tuple[int, ...],
    axes: tuple[int, ...] | None,
    block_size: int,
    direct: bool,
    *dtypes: np.dtype[Any],
) -> _Prepared:
    layout = make_layout(shape, axes, block_size)
    assert layout is not None
    layout, repeat = layout.widened(NARROW)
    # for codes of 8 bits stores past the cache brought nothing
    streaming = direct and does != "quantize" and math.prod(shape) * dtypes[1].itemsize >= STREAMING
    return _Prepared(_kernel(_loop(layout), does, nan, "", 0, *dtypes), _plan(layout, bounds, streaming), repeat)


def _arrays(*arrays: Array | None) -> tuple[int, ...]:
    return tuple(0 if array is None else id(array) for array in arrays)


# --- memory order -----------------------------------------------------------------------------------------------------


def _is_plain(x: Array) -> bool:
    flags = x.flags
    return flags.c_contiguous and flags.aligned and x.dtype.isnative


def _order(x: Array) -> tuple[int, ...] | None:
    """Axes from the slowest to the fastest in memory, if x is contiguous in that order."""
    if not x.flags.aligned or not x.dtype.isnative:
        return None
    order = tuple(sorted(range(x.ndim), key=lambda axis: -x.strides[axis]))
    return order if x.transpose(order).flags.c_contiguous else None


def _common_order(x: Array, out: Array | None) -> tuple[int, ...] | None:
    order = _order(x)
    if order is None or out is None:
        return order
    direct = out.flags.aligned and out.dtype.isnative and out.transpose(order).flags.c_contiguous
    return order if direct else None


class _View:
    """Arrays as kernels take them, and the way back for parameters.

    `x` and `out` are transposed so that the layout fits; `direct` says that both are contiguous then, so that kernels
    can work on them in place. Parameters are C-contiguous in the order of the transposed axes.
    """

    def __init__(self, x: Array, out: Array | None, axes: tuple[int, ...] | None, block_size: int) -> None:
        self.axes, self.block_size = axes, block_size
        if _is_plain(x) and (out is None or _is_plain(out)):  # the short way, for small arrays
            layout = make_layout(x.shape, axes, block_size)
            if layout is not None:
                self.x, self.out, self.transposed_axes, self.layout = x, out, axes, layout
                self.natural = self.direct = True
                return
        order = _common_order(x, out)
        self.direct = order is not None
        if not self._arrange(x, out, order or tuple(range(x.ndim))):
            self.direct = False
            self._arrange(x, out, tuple(sorted(range(x.ndim), key=lambda axis: axis not in (axes or ()))))

    def _arrange(self, x: Array, out: Array | None, order: tuple[int, ...]) -> bool:
        self.natural = order == tuple(range(x.ndim))
        self.order = order
        axes = self.axes
        if not self.natural:
            x = x.transpose(order)
            out = None if out is None else out.transpose(order)
            axes = None if axes is None else tuple(sorted(order.index(axis) for axis in axes))
        self.x, self.out, self.transposed_axes = x, out, axes
        layout = make_layout(x.shape, axes, self.block_size)
        if layout is None:
            return False
        self.layout = layout
        return True

    def _parameter_order(self) -> tuple[int, ...]:
        if self.axes is None:
            return ()
        if self.block_size:
            return self.order
        return tuple(self.axes.index(axis) for axis in self.order if axis in self.axes)

    def to_kernel(self, parameters: Array) -> Array:
        """Parameters of the caller's shape as kernels take them."""
        if self.natural or parameters.ndim < 2 or parameters.size == 1:
            return np.ascontiguousarray(parameters)
        return np.ascontiguousarray(parameters.transpose(self._parameter_order()))

    def from_kernel(self, parameters: Array) -> Array:
        """Parameters of kernels in the caller's shape, as a view."""
        parameters = parameters.reshape(self.layout.shape)
        if self.natural or parameters.ndim < 2 or parameters.size == 1:
            return parameters
        return parameters.transpose(np.argsort(self._parameter_order()))


def _tiles(x: Array) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    """Yield indices of parts of x that follow each other in C order, and where each starts and ends."""
    axis, inner = x.ndim, 1
    while axis and inner * x.shape[axis - 1] <= TILE:
        axis -= 1
        inner *= x.shape[axis]
    if not axis:
        yield (), 0, x.size
        return
    rows, start = max(1, TILE // inner), 0
    for index in np.ndindex(x.shape[: axis - 1]):
        for row in range(0, x.shape[axis - 1], rows):
            part = min(rows, x.shape[axis - 1] - row) * inner
            yield (*index, slice(row, row + rows)), start, start + part
            start += part


def _run_tiles(kernel: int, view: _View, parameters: tuple[Array | None, ...], plan: Array) -> int:
    """Run a kernel tile by tile, through buffers where memory is not contiguous."""
    x, out, seen = view.x, view.out, 0
    buffer = np.empty(min(TILE, x.size), x.dtype.newbyteorder("="))
    result = None if out is None else np.empty(buffer.size, out.dtype.newbyteorder("="))
    for index, start, stop in _tiles(x):
        part = x[index]
        np.copyto(buffer[: stop - start].reshape(part.shape), part)
        seen |= parallel.run_serial(kernel, _arrays(buffer, result, *parameters, plan), start, stop, start)
        if out is not None and result is not None:
            out[index] = result[: stop - start].reshape(part.shape)
    return seen


# --- operations -------------------------------------------------------------------------------------------------------


def minmax(x: Array, axes: tuple[int, ...] | None, block_size: int) -> tuple[Array, Array, int]:
    """Smallest and largest element of each parameter's part of x, NaN as 0.0, and the bits of what was seen."""
    view = _View(x, None, axes, block_size)
    lo, hi, seen = _extents(view)
    return view.from_kernel(lo), view.from_kernel(hi), seen


def _identities(dtype: np.dtype[Any], size: int) -> Array:
    """Return rows of the identity of a minimum and of a maximum."""
    most, least = (np.inf, -np.inf) if dtype.kind == "f" else (np.iinfo(dtype).max, np.iinfo(dtype).min)
    return np.array([[most], [least]], dtype).repeat(size, axis=1)


def _owned_units(layout: Layout) -> int:
    """Elements that chunks are multiples of so that no block is in two of them; the last of a row may be shorter."""
    return (layout.block if layout.outer == 1 else layout.length) * layout.inner


class _Extents(NamedTuple):
    """A reduction to minima and maxima: partial results of `slots` threads, each for `repeat` parts side by side.

    The rest is as `parallel.run` takes it.
    """

    kernel: int
    fold: int
    plan: Array
    identities: Array | None
    slots: int
    width: int
    repeat: int
    units: int
    size: int
    grain: int
    chunk: int
    serial: bool


@functools.lru_cache(4096)
def _prepare_extents(
    shape: tuple[int, ...], axes: tuple[int, ...] | None, block_size: int, threads: int, dtype: np.dtype[Any]
) -> _Extents:
    layout = make_layout(shape, axes, block_size)
    assert layout is not None
    layout, repeat = layout.widened(NARROW)
    count, grain = layout.parameters, _owned_units(layout)
    alone = layout.owned and math.prod(shape) // grain >= 4 * threads  # each thread has blocks of its own
    slots = 1 if alone or threads * count > PARTIAL else threads
    wide = slots < threads and layout.inner > PARTIAL // threads and not alone and repeat == 1
    loops = lanes.columns if wide else _loop(layout), lanes.fold
    kernel, fold = (_kernel(loop, "minmax", "raise", "", 0, *[dtype] * 4) for loop in loops)
    plan = _plan(layout, parameters=count if slots > 1 else 0)
    identities = _identities(dtype, slots * count) if slots * count <= NARROW else None
    serial = threads == 1 or (slots == 1 and not alone and not wide)
    size = math.prod(shape)
    units, chunk = (layout.inner, min(COLUMNS, -(-layout.inner // threads))) if wide else (size, 0)
    grain = grain if alone else 1
    return _Extents(kernel, fold, plan, identities, slots, count, repeat, units, size // units, grain, chunk, serial)


def _extents(view: _View) -> tuple[Array, Array, int]:
    x, (dtype,) = view.x, _native(view.x)
    threads = parallel.threads_for(x.size) if view.direct else 1
    prepared = _prepare_extents(x.shape, view.transposed_axes, view.block_size, threads, dtype)
    if prepared.identities is None:
        lo, hi = _identities(dtype, prepared.slots * prepared.width)
    else:  # making them anew takes longer than reducing a thousand elements
        lo, hi = prepared.identities.copy()
    arrays = (id(x), 0, id(lo), id(hi), 0, id(prepared.plan))
    if not view.direct:
        seen = _run_tiles(prepared.kernel, view, (lo, hi, None), prepared.plan)
    elif prepared.serial:
        seen = parallel.run_serial(prepared.kernel, arrays, 0, x.size)
    else:
        units, size, grain, chunk = prepared.units, prepared.size, prepared.grain, prepared.chunk
        seen = parallel.run(prepared.kernel, arrays, units, size=size, grain=grain, chunk=chunk, threads=threads)
    count, rows = view.layout.parameters, prepared.slots * prepared.repeat
    if rows > 1:
        parallel.run_serial(prepared.fold, (id(lo), id(hi), *arrays[2:]), 0, count, rows)
    return lo[:count], hi[:count], seen


def choose(
    x: Array,
    axes: tuple[int, ...] | None,
    block_size: int,
    scheme: str,
    bounds: tuple[int, int],
    nan: str,
    compute: np.dtype[Any],
    codes: np.dtype[Any],
) -> tuple[Array, Array, int]:
    """Take scale and zero point from the range of x; the bits of what was seen."""
    view = _View(x, None, axes, block_size)
    scale, zero, seen = _choose(view, scheme, bounds, nan, compute, codes)
    return view.from_kernel(scale), view.from_kernel(zero), seen


def _choose(
    view: _View, scheme: str, bounds: tuple[int, int], nan: str, compute: np.dtype[Any], codes: np.dtype[Any]
) -> tuple[Array, Array, int]:
    lo, hi, seen = _extents(view)
    if nan == "zero":
        seen &= ~SAW_NAN
    scale, zero = np.empty(lo.shape, compute), np.empty(lo.shape, codes)
    kernel, plan = _prepare_ranges(scheme, bounds, lo.dtype, lo.dtype, compute, codes)
    seen |= parallel.run_serial(kernel, _arrays(lo, hi, scale, zero, None, plan), 0, lo.size)
    return scale, zero, seen


@functools.lru_cache(256)
def _prepare_ranges(scheme: str, bounds: tuple[int, int], *dtypes: np.dtype[Any]) -> tuple[int, Array]:
    kernel = _kernel(lanes.ranges, "quantize", "raise", scheme, 0, *dtypes)
    return kernel, _plan(Layout(1, 1, 1, 1, 1, 1, 1, ()), bounds)


def apply(
    does: str,
    x: Array,
    out: Array,
    scale: Array,
    zero: Array,
    axes: tuple[int, ...] | None,
    block_size: int,
    bounds: tuple[int, int] = (0, 0),
    nan: str = "raise",
) -> int:
    """Quantize, dequantize or fake quantize with given parameters; the bits of what was seen."""
    if axes is None and _is_plain(x) and _is_plain(out):
        prepared = _prepare(does, nan, bounds, x.shape, None, 0, True, x.dtype, out.dtype, scale.dtype, zero.dtype)
        arrays = (id(x), id(out), id(scale), id(zero), 0, id(prepared.plan))
        return parallel.run(prepared.kernel, arrays, x.size)
    view = _View(x, out, axes, block_size)
    return _apply(view, does, view.to_kernel(scale), view.to_kernel(zero), bounds, nan, False)


def _apply(view: _View, does: str, scale: Array, zero: Array, bounds: tuple[int, int], nan: str, backward: bool) -> int:
    x, out = view.x, view.out
    assert out is not None
    prepared = _prepare(
        does, nan, bounds, x.shape, view.transposed_axes, view.block_size, view.direct, *_native(x, out, scale, zero)
    )
    if prepared.repeat > 1:
        scale, zero = np.tile(scale.reshape(-1), prepared.repeat), np.tile(zero.reshape(-1), prepared.repeat)
    if not view.direct:
        return _run_tiles(prepared.kernel, view, (scale, zero, None), prepared.plan)
    return parallel.run(prepared.kernel, _arrays(x, out, scale, zero, None, prepared.plan), x.size, backward=backward)


def _native(*arrays: Array) -> tuple[np.dtype[Any], ...]:
    dtypes = tuple(array.dtype for array in arrays)
    return dtypes if all(dtype.isnative for dtype in dtypes) else tuple(dtype.newbyteorder("=") for dtype in dtypes)


def by_range(
    does: str,
    x: Array,
    out: Array,
    axes: tuple[int, ...] | None,
    block_size: int,
    scheme: str,
    bounds: tuple[int, int],
    nan: str,
    compute: np.dtype[Any],
    codes: np.dtype[Any],
) -> tuple[Array, Array, int]:
    """Quantize or fake quantize with parameters taken from x: scale, zero point and the bits of what was seen."""
    view = _View(x, out, axes, block_size)
    fused = None
    if view.direct:
        threads, dtypes = parallel.threads_for(x.size), (x.dtype, out.dtype, compute, codes)
        fused = _prepare_fused(
            does, nan, scheme, bounds, view.x.shape, view.transposed_axes, block_size, threads, *dtypes
        )
    if fused is not None:
        count = view.layout.parameters
        scale, zero = np.empty(count, compute), np.empty(count, codes)
        arrays = (id(x), id(out), id(scale), id(zero), 0, id(fused.plan))  # memory is what counts, not the axes' order
        seen = parallel.run(
            fused.kernel, arrays, fused.units, size=fused.size, grain=fused.grain, threads=fused.threads
        )
    else:
        scale, zero, seen = _in_two_passes(view, does, scheme, bounds, nan, compute, codes)
    return view.from_kernel(scale), view.from_kernel(zero), seen


def _in_two_passes(
    view: _View, does: str, scheme: str, bounds: tuple[int, int], nan: str, compute: np.dtype[Any], codes: np.dtype[Any]
) -> tuple[Array, Array, int]:
    scale, zero, seen = _choose(view, scheme, bounds, nan, compute, codes)
    if not seen:
        seen = _apply(view, does, scale, zero, bounds, nan, True)
    return scale, zero, seen


class _Fused(NamedTuple):
    """A call that reads blocks once: units of work, elements in each, and how many units chunks are multiples of."""

    kernel: int
    plan: Array
    units: int
    size: int
    grain: int
    threads: int


@functools.lru_cache(4096)
def _prepare_fused(
    does: str,
    nan: str,
    scheme: str,
    bounds: tuple[int, int],
    shape: tuple[int, ...],
    axes: tuple[int, ...] | None,
    block_size: int,
    threads: int,
    *dtypes: np.dtype[Any],
) -> _Fused | None:
    """Return None where a block would have left the cache when it is quantized, or the threads outnumber the blocks.

    One thread does an array that fits the cache faster in one pass than two do in two (2**16: 16 and 25 us).
    """
    layout = make_layout(shape, axes, block_size)
    assert layout is not None
    columns = 1 if layout.inner == 1 else lanes.STRIPE_BYTES // dtypes[2].itemsize
    if layout.parameters < 4 * threads and math.prod(shape) <= FUSED:
        threads = 1
    if not layout.owned or layout.block * columns > FUSED or (threads > 1 and layout.parameters < 4 * threads):
        return None
    plan = _plan(layout, bounds, does != "quantize" and math.prod(shape) * dtypes[1].itemsize >= STREAMING)
    if layout.inner > 1:
        units = layout.outer * layout.blocks * -(-layout.inner // columns)
        kernel = _kernel(lanes.stripes, does, nan, scheme, 0, *dtypes)
        return _Fused(kernel, plan, units, layout.block * min(columns, layout.inner), 1, threads)
    if layout.block in WHOLE_BLOCKS and layout.length % layout.block == 0:
        kernel = _kernel(spans.blocks, does, nan, scheme, layout.block, *dtypes)
        return _Fused(kernel, plan, layout.parameters, layout.block, 1, threads)
    kernel = _kernel(spans.spans, does, nan, scheme, 0, *dtypes)
    return _Fused(kernel, plan, math.prod(shape), 1, _owned_units(layout), threads)


def compare(
    x: Array,
    q: Array,
    scale: Array,
    zero: Array,
    axes: tuple[int, ...] | None,
    block_size: int,
    bounds: tuple[int, int],
) -> tuple[Array, int]:
    """Return sums of the errors of q, codes or values, as an approximation of x, and the bits of what was seen."""
    view = _View(x, q, axes, block_size)
    x, layout = view.x, view.layout
    scale, zero = view.to_kernel(scale), view.to_kernel(zero)
    assert view.out is not None
    sums = np.zeros((-(-x.size // ERRORS_CHUNK), SUMS))
    kernel = _kernel(_loop(layout), "compare", "raise", "", 0, *_native(x, q, scale, zero))
    plan = _plan(layout, bounds)
    if view.direct:
        arrays = _arrays(x, view.out, scale, zero, sums, plan)
        return sums, parallel.run(kernel, arrays, x.size, chunk=ERRORS_CHUNK)
    return sums, _compare_tiles(kernel, view, scale, zero, sums, plan)


def _compare_tiles(kernel: int, view: _View, scale: Array, zero: Array, sums: Array, plan: Array) -> int:
    x, q, seen = view.x, view.out, 0
    assert q is not None
    for index, start, stop in _tiles(x):
        parts = [np.ascontiguousarray(part[index], part.dtype.newbyteorder("=")) for part in (x, q)]
        for first in range(start, stop, ERRORS_CHUNK):
            last = min(first + ERRORS_CHUNK, stop)
            seen |= parallel.run_serial(kernel, _arrays(*parts, scale, zero, sums, plan), first, last, start)
    return seen


def count_not_finite(x: Array) -> tuple[int, int]:
    """How many elements are NaN, and how many infinite; tile by tile, for error messages."""
    nan = infinite = 0
    for index, _, _ in _tiles(x):
        nan += int(np.count_nonzero(np.isnan(x[index])))
        infinite += int(np.count_nonzero(np.isinf(x[index])))
    return nan, infinite
