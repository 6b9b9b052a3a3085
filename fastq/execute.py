"""The operations on valid arrays: which loop, in one pass or two, and how results come back."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.floats import FLOAT_FORMATS
from fastq.forms import PLAIN, Bounds, How, Kind
from fastq.kernels import SAW_NAN, lanes, parallel, spans
from fastq.kernels.errors import SUMS
from fastq.layout import Layout, make_layout
from fastq.packed import apart_dtype, apply_in_tiles, in_bytes, pack, unpack
from fastq.plans import (
    ERRORS_CHUNK,
    NARROW,
    STREAMING,
    element,
    ids,
    is_wide,
    kernel_address,
    kinds_of,
    loop_of,
    plan_of,
    prepare,
    repeated,
    with_tensor,
)
from fastq.views import TILE, View, is_plain, native, tiles

Array = NDArray[Any]

# elements of a block that is quantized right after it was reduced, while it is in the L2 cache
FUSED = 1 << 17
# minimum and maximum of each thread are kept side by side as long as they have no more numbers than this, 512 KiB of
# float32; of rows that are wider, threads take columns, at most so many at a time that their minima and maxima stay in
# the L2 cache (2**15 of 2**18 columns 1.2 to 3 times faster than 2**11 to 2**14)
PARTIAL = 1 << 16
COLUMNS = 1 << 15
WHOLE_BLOCKS = (16, 32, 64, 128)  # block sizes with a kernel of their own


# --- ranges -----------------------------------------------------------------------------------------------------------


def minmax(x: Array, axes: tuple[int, ...] | None, block_size: int) -> tuple[Array, Array, int]:
    """Smallest and largest element of each parameter's part of x, NaN as 0.0, and the bits of what was seen."""
    view = View(x, None, axes, block_size)
    lo, hi, seen = _extents(view)
    dtype = x.dtype.newbyteorder("=")
    return view.from_kernel(lo.astype(dtype, copy=False)), view.from_kernel(hi.astype(dtype, copy=False)), seen


def _reduced(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which minima and maxima are held: float32 for smaller floats."""
    return np.dtype(np.float32) if dtype.name in FLOAT_FORMATS else dtype


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
    held = _reduced(dtype)
    wide = slots < threads and layout.inner > PARTIAL // threads and not alone and repeat == 1
    loop = lanes.columns if wide else loop_of(layout)
    kernel = kernel_address(loop, "minmax", "raise", "", 0, PLAIN, dtype, held, held, held)
    fold = kernel_address(lanes.fold, "minmax", "raise", "", 0, PLAIN, held, held, held, held)
    plan = plan_of(layout, parameters=count if slots > 1 else 0)
    identities = _identities(held, slots * count) if slots * count <= NARROW else None
    serial = threads == 1 or (slots == 1 and not alone and not wide)
    size = math.prod(shape)
    units, chunk = (layout.inner, min(COLUMNS, -(-layout.inner // threads))) if wide else (size, 0)
    grain = grain if alone else 1
    return _Extents(kernel, fold, plan, identities, slots, count, repeat, units, size // units, grain, chunk, serial)


def _extents(view: View) -> tuple[Array, Array, int]:
    x, (dtype,) = view.x, native(view.x)
    threads = parallel.threads_for(x.size) if view.direct else 1
    prepared = _prepare_extents(x.shape, view.transposed_axes, view.block_size, threads, dtype)
    if prepared.identities is None:
        lo, hi = _identities(_reduced(dtype), prepared.slots * prepared.width)
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
    bounds: Bounds,
    nan: str,
    steps: np.dtype[Any],
    zeros: np.dtype[Any],
    how: How = PLAIN,
    tensor: float = 0.0,
) -> tuple[Array, Array, int]:
    """Take scale and zero point from the range of x; the bits of what was seen."""
    view = View(x, None, axes, block_size)
    scale, zero, seen = _choose(view, scheme, bounds, nan, steps, zeros, how, tensor)
    return view.from_kernel(scale), view.from_kernel(zero), seen


def _choose(
    view: View,
    scheme: str,
    bounds: Bounds,
    nan: str,
    steps: np.dtype[Any],
    zeros: np.dtype[Any],
    how: How,
    tensor: float,
) -> tuple[Array, Array, int]:
    lo, hi, seen = _extents(view)
    if nan != "raise":
        seen &= ~SAW_NAN
    scale, zero = np.empty(lo.shape, steps), np.zeros(lo.shape, zeros)
    kernel, plan = _prepare_ranges(scheme, bounds, how, lo.dtype, lo.dtype, how.steps or steps, zeros)
    plan = with_tensor(plan, tensor)
    seen |= parallel.run_serial(kernel, ids(lo, hi, scale, zero, None, plan), 0, lo.size)
    if nan == "keep" and how.steps is not None:
        marked = FLOAT_FORMATS[how.steps.element].nan
        scale[_extents(View(np.isnan(view.x).view(np.uint8), None, view.transposed_axes, view.block_size))[1] > 0] = (
            marked
        )
    return scale, zero, seen


@functools.lru_cache(256)
def _prepare_ranges(scheme: str, bounds: Bounds, how: How, *kinds: Kind) -> tuple[int, Array]:
    kernel = kernel_address(lanes.ranges, "quantize", "raise", scheme, 0, how, *kinds)
    return kernel, plan_of(Layout(1, 1, 1, 1, 1, 1, 1, ()), bounds)


# --- given parameters -------------------------------------------------------------------------------------------------


def apply(
    does: str,
    x: Array,
    out: Array,
    scale: Array,
    zero: Array,
    axes: tuple[int, ...] | None,
    block_size: int,
    bounds: Bounds = (0, 0),
    nan: str = "raise",
    how: How = PLAIN,
    tensor: float = 0.0,
) -> int:
    """Quantize, dequantize or fake quantize with given parameters; the bits of what was seen.

    `tensor` is the scale of the whole array that scales are in units of, where there is one.
    """
    if how.packed and does != "fake":
        return _apply_packed(does, x, out, (scale, zero), axes, block_size, bounds, nan, how, tensor)
    if axes is None and how.steps is None and is_plain(x) and is_plain(out):
        kinds = kinds_of(does, x.dtype, out.dtype, how.code)
        prepared = prepare(does, nan, bounds, x.shape, None, 0, True, how, *kinds, scale.dtype, zero.dtype)
        arrays = (id(x), id(out), id(scale), id(zero), 0, id(prepared.plan))
        return parallel.run(prepared.kernel, arrays, x.size)
    view = View(x, out, axes, block_size)
    return _apply(view, does, view.to_kernel(scale), view.to_kernel(zero), bounds, nan, how, tensor, False)


def _apply(
    view: View,
    does: str,
    scale: Array,
    zero: Array,
    bounds: Bounds,
    nan: str,
    how: How,
    tensor: float,
    backward: bool,
) -> int:
    x, out = view.x, view.out
    assert out is not None
    source, target, steps, zeros = native(x, out, scale, zero)
    kinds = (*kinds_of(does, source, target, how.code), how.steps or steps, zeros)
    prepared = prepare(does, nan, bounds, x.shape, view.transposed_axes, view.block_size, view.direct, how, *kinds)
    scale, zero = repeated(scale, zero, prepared.repeat)
    plan = with_tensor(prepared.plan, tensor)
    if not view.direct:
        return _run_tiles(prepared.kernel, view, (scale, zero, None), plan)
    return parallel.run(prepared.kernel, ids(x, out, scale, zero, None, plan), x.size, backward=backward)


def _run_tiles(kernel: int, view: View, parameters: tuple[Array | None, ...], plan: Array) -> int:
    """Run a kernel tile by tile, through buffers where memory is not contiguous."""
    x, out, seen = view.x, view.out, 0
    buffer = np.empty(min(TILE, x.size), x.dtype.newbyteorder("="))
    result = None if out is None else np.empty(buffer.size, out.dtype.newbyteorder("="))
    for index, start, stop in tiles(x.shape):
        part = x[index]
        np.copyto(buffer[: stop - start].reshape(part.shape), part)
        seen |= parallel.run_serial(kernel, ids(buffer, result, *parameters, plan), start, stop, start)
        if out is not None and result is not None:
            out[index] = result[: stop - start].reshape(part.shape)
    return seen


def _apply_packed(
    does: str,
    x: Array,
    out: Array,
    parameters: tuple[Array, Array],
    axes: tuple[int, ...] | None,
    block_size: int,
    bounds: Bounds,
    nan: str,
    how: How,
    tensor: float,
) -> int:
    """Quantize to packed codes, or dequantize them: in place where bytes allow it, else tile by tile."""
    shape = x.shape if does == "quantize" else out.shape
    scale, zero = (np.ascontiguousarray(parameter) for parameter in parameters)
    if in_bytes(x, out, shape, axes, block_size, how) is not None:
        kinds = (*kinds_of(does, x.dtype, out.dtype, how.code), how.steps or scale.dtype, zero.dtype)
        prepared = prepare(does, nan, bounds, shape, axes, block_size, True, how, *kinds)
        scale, zero = repeated(scale, zero, prepared.repeat)  # a name each, since kernels know arrays by their id()
        plan = with_tensor(prepared.plan, tensor)
        return parallel.run(prepared.kernel, ids(x, out, scale, zero, None, plan), math.prod(shape))
    if make_layout(shape, axes, block_size) is None:
        return _apply_apart(does, x, out, (scale, zero), axes, block_size, bounds, nan, how, tensor)
    return apply_in_tiles(does, x, out, (scale, zero), axes, block_size, bounds, nan, how, tensor)


def _apply_apart(
    does: str,
    x: Array,
    out: Array,
    parameters: tuple[Array, Array],
    axes: tuple[int, ...] | None,
    block_size: int,
    bounds: Bounds,
    nan: str,
    how: How,
    tensor: float,
) -> int:
    """Go through codes one in a byte, for the granularities that no view of the array in memory order has."""
    code = how.code
    assert code is not None
    apart = how.apart
    if does == "quantize":
        codes = np.empty(x.shape, apart_dtype(code))
        seen = apply(does, x, codes, *parameters, axes, block_size, bounds, nan, apart, tensor)
        pack(codes, out, code)
        return seen
    codes = np.empty(out.shape, apart_dtype(code))
    unpack(x, codes, code)
    return apply(does, codes, out, *parameters, axes, block_size, bounds, nan, apart, tensor)


# --- ranges and values ------------------------------------------------------------------------------------------------


def by_range(
    does: str,
    x: Array,
    out: Array,
    axes: tuple[int, ...] | None,
    block_size: int,
    scheme: str,
    bounds: Bounds,
    nan: str,
    steps: np.dtype[Any],
    zeros: np.dtype[Any],
    how: How = PLAIN,
    tensor: float = 0.0,
) -> tuple[Array, Array, int]:
    """Quantize or fake quantize with parameters taken from x: scale, zero point and the bits of what was seen."""
    packed = how.packed and does == "quantize"
    view = View(x, None if packed else out, axes, block_size)
    fused = None
    if view.direct and not (packed and in_bytes(x, out, x.shape, axes, block_size, how) is None):
        threads = parallel.threads_for(x.size)
        kinds = (*kinds_of(does, x.dtype, out.dtype, how.code), how.steps or steps, zeros)
        fused = _prepare_fused(
            does, nan, scheme, bounds, view.x.shape, view.transposed_axes, block_size, threads, how, *kinds
        )
    if fused is not None:
        count = view.layout.parameters
        scale, zero = np.empty(count, steps), np.zeros(count, zeros)
        plan = with_tensor(fused.plan, tensor)
        arrays = (id(x), id(out), id(scale), id(zero), 0, id(plan))  # memory is what counts, not the axes' order
        seen = parallel.run(
            fused.kernel, arrays, fused.units, size=fused.size, grain=fused.grain, threads=fused.threads
        )
        return view.from_kernel(scale), view.from_kernel(zero), seen
    scale, zero, seen = _choose(view, scheme, bounds, nan, steps, zeros, how, tensor)
    given = view.from_kernel(scale), view.from_kernel(zero)
    if not seen and packed:
        seen = _apply_packed(does, x, out, given, axes, block_size, bounds, nan, how.given, tensor)
    elif not seen:
        seen = _apply(view, does, scale, zero, bounds, nan, how.given, tensor, True)
    return *given, seen


class _Fused(NamedTuple):
    """A call that reads blocks once: units of work, elements in each, and how many units chunks are multiples of."""

    kernel: int
    plan: Array
    units: int
    size: int
    grain: int
    threads: int


def _compute_size(how: How, kinds: tuple[Kind, ...]) -> int:
    """Bytes of a number of the type that a kernel computes in."""
    if how.rule.compute:
        return np.dtype(how.rule.compute).itemsize
    if isinstance(kinds[2], np.dtype):
        return kinds[2].itemsize
    return 8 if is_wide(kinds[0]) else 4


@functools.lru_cache(4096)
def _prepare_fused(
    does: str,
    nan: str,
    scheme: str,
    bounds: Bounds,
    shape: tuple[int, ...],
    axes: tuple[int, ...] | None,
    block_size: int,
    threads: int,
    how: How,
    *kinds: Kind,
) -> _Fused | None:
    """Return None where a block would have left the cache when it is quantized, or the threads outnumber the blocks.

    One thread does an array that fits the cache faster in one pass than two do in two (2**16: 16 and 25 us).
    """
    layout = make_layout(shape, axes, block_size)
    assert layout is not None
    columns = 1 if layout.inner == 1 else lanes.STRIPE_BYTES // _compute_size(how, kinds)
    if layout.parameters < 4 * threads and math.prod(shape) <= FUSED:
        threads = 1
    if not layout.owned or layout.block * columns > FUSED or (threads > 1 and layout.parameters < 4 * threads):
        return None
    streaming = does != "quantize" and math.prod(shape) * element(kinds[1]).bitwidth >= 8 * STREAMING
    plan = plan_of(layout, bounds, streaming)
    if layout.inner > 1:
        units = layout.outer * layout.blocks * -(-layout.inner // columns)
        kernel = kernel_address(lanes.stripes, does, nan, scheme, 0, how, *kinds)
        return _Fused(kernel, plan, units, layout.block * min(columns, layout.inner), 1, threads)
    if layout.block in WHOLE_BLOCKS and layout.length % layout.block == 0:
        kernel = kernel_address(spans.blocks, does, nan, scheme, layout.block, how, *kinds)
        return _Fused(kernel, plan, layout.parameters, layout.block, 1, threads)
    kernel = kernel_address(spans.spans, does, nan, scheme, 0, how, *kinds)
    return _Fused(kernel, plan, math.prod(shape), 1, _owned_units(layout), threads)


# --- errors -----------------------------------------------------------------------------------------------------------


def compare(
    x: Array,
    q: Array,
    scale: Array,
    zero: Array,
    axes: tuple[int, ...] | None,
    block_size: int,
    bounds: Bounds,
    how: How = PLAIN,
    tensor: float = 0.0,
) -> tuple[Array, int]:
    """Return sums of the errors of q, codes one an element or values, and the bits of what was seen."""
    view = View(x, q, axes, block_size)
    x, layout = view.x, view.layout
    scale, zero = view.to_kernel(scale), view.to_kernel(zero)
    assert view.out is not None
    sums = np.zeros((-(-x.size // ERRORS_CHUNK), SUMS))
    source, target, steps, zeros = native(x, q, scale, zero)
    codes = target if how.code is None or not how.code.element else how.code.apart
    kinds = (source, codes, how.steps or steps, zeros)
    kernel = kernel_address(loop_of(layout), "compare", "raise", "", 0, how, *kinds)
    plan = with_tensor(plan_of(layout, bounds), tensor)
    if view.direct:
        arrays = ids(x, view.out, scale, zero, sums, plan)
        return sums, parallel.run(kernel, arrays, x.size, chunk=ERRORS_CHUNK)
    return sums, _compare_tiles(kernel, view, scale, zero, sums, plan)


def _compare_tiles(kernel: int, view: View, scale: Array, zero: Array, sums: Array, plan: Array) -> int:
    x, q, seen = view.x, view.out, 0
    assert q is not None
    for index, start, stop in tiles(x.shape):
        parts = [np.ascontiguousarray(part[index], part.dtype.newbyteorder("=")) for part in (x, q)]
        for first in range(start, stop, ERRORS_CHUNK):
            last = min(first + ERRORS_CHUNK, stop)
            seen |= parallel.run_serial(kernel, ids(*parts, scale, zero, sums, plan), first, last, start)
    return seen


def count_not_finite(x: Array) -> tuple[int, int]:
    """How many elements are NaN, and how many infinite; tile by tile, for error messages."""
    nan = infinite = 0
    for index, _, _ in tiles(x.shape):
        nan += int(np.count_nonzero(np.isnan(x[index])))
        infinite += int(np.count_nonzero(np.isinf(x[index])))
    return nan, infinite
