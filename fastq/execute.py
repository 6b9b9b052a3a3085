"""The operations on valid arrays: which loop, in one pass or two, and how results come back."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.floats import FLOAT_FORMATS
from fastq.forms import PLAIN, Call, How, Kind, Parameters
from fastq.kernels import SAW_NAN, lanes, parallel, spans
from fastq.kernels.errors import SUMS
from fastq.layout import Layout, make_layout
from fastq.packed import apart_dtype, apply_in_tiles, in_bytes, pack, packed_index, unpack
from fastq.plans import (
    ERRORS_CHUNK,
    NARROW,
    ids,
    is_wide,
    kernel_address,
    kinds_of,
    loop_of,
    past_cache,
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
# block sizes with a kernel of their own, which computes the parameters of so many blocks side by side; fewer blocks are
# not worth the second that it takes to compile
WHOLE_BLOCKS = (16, 32, 64, 128)
SIDE_BY_SIDE = 16


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


def _extents(view: View, marks: bool = False) -> tuple[Array, Array, int]:
    """Smallest and largest element of each parameter's part, or of marks: 1 where an element is NaN, else 0."""
    x, (dtype,), direct = view.x, native(view.x), view.direct and not marks
    dtype = np.dtype(np.uint8) if marks else dtype
    threads = parallel.threads_for(x.size) if direct else 1
    prepared = _prepare_extents(x.shape, view.transposed_axes, view.block_size, threads, dtype)
    if prepared.identities is None:
        lo, hi = _identities(_reduced(dtype), prepared.slots * prepared.width)
    else:  # making them anew takes longer than reducing a thousand elements
        lo, hi = prepared.identities.copy()
    arrays = (id(x), 0, id(lo), id(hi), 0, id(prepared.plan))
    if not direct:
        load = _mark_nan if marks else np.copyto
        seen = _run_tiles(prepared.kernel, x, None, (lo, hi, None), prepared.plan, dtype, load)
    elif prepared.serial:
        seen = parallel.run_serial(prepared.kernel, arrays, 0, x.size)
    else:
        units, size, grain, chunk = prepared.units, prepared.size, prepared.grain, prepared.chunk
        seen = parallel.run(prepared.kernel, arrays, units, size=size, grain=grain, chunk=chunk, threads=threads)
    count, rows = view.layout.parameters, prepared.slots * prepared.repeat
    if rows > 1:
        parallel.run_serial(prepared.fold, (id(lo), id(hi), *arrays[2:]), 0, count, rows)
    return lo[:count], hi[:count], seen


def choose(call: Call, x: Array, tensor: float = 0.0) -> tuple[Array, Array, int]:
    """Take scale and zero point from the range of x; the bits of what was seen."""
    view = View(x, None, call.axes, call.block_size)
    given, seen = _choose(view, call, tensor)
    return view.from_kernel(given.scale), view.from_kernel(given.zero), seen


def _choose(view: View, call: Call, tensor: float) -> tuple[Parameters, int]:
    lo, hi, seen = _extents(view)
    if call.nan != "raise":
        seen &= ~SAW_NAN
    steps, ranging = call.how.steps, call.ranging
    scale, zero = np.empty(lo.shape, ranging.steps), np.zeros(lo.shape, ranging.zeros)
    kernel, plan = _prepare_ranges(call, lo.dtype)
    plan = with_tensor(plan, tensor)
    seen |= parallel.run_serial(kernel, ids(lo, hi, scale, zero, None, plan), 0, lo.size)
    if call.nan == "keep" and steps is not None:
        scale[_extents(view, marks=True)[1] > 0] = FLOAT_FORMATS[steps.element].nan
    return Parameters(scale, zero, tensor), seen


@functools.lru_cache(256)
def _prepare_ranges(call: Call, held: np.dtype[Any]) -> tuple[int, Array]:
    ranging = call.ranging
    kinds = held, held, call.how.steps or ranging.steps, ranging.zeros
    kernel = kernel_address(lanes.ranges, "quantize", "raise", ranging.scheme, 0, call.how, *kinds)
    return kernel, plan_of(Layout(1, 1, 1, 1, 1, 1, 1, ()), call.bounds)


# --- given parameters -------------------------------------------------------------------------------------------------


def apply(call: Call, x: Array, out: Array, given: Parameters) -> int:
    """Quantize, dequantize or fake quantize with given parameters; the bits of what was seen."""
    how, scale, zero = call.how, given.scale, given.zero
    if call.axes is None and how.code is None and is_plain(x) and is_plain(out):  # the short way, for small arrays
        prepared = prepare(call, x.shape, True, x.dtype, out.dtype, scale.dtype, zero.dtype)
        arrays = (id(x), id(out), id(scale), id(zero), 0, id(prepared.plan))
        return parallel.run(prepared.kernel, arrays, x.size)
    if how.packed and call.does != "fake":
        return _apply_packed(call, x, out, given)
    view = View(x, out, call.axes, call.block_size)
    given = given._replace(scale=view.to_kernel(scale), zero=view.to_kernel(zero))
    return _apply(view, call, given)


def _apply(view: View, call: Call, given: Parameters, backward: bool = False) -> int:
    x, out = view.x, view.out
    assert out is not None
    prepared = prepare(view.seen_by(call), x.shape, view.direct, *native(x, out, given.scale, given.zero))
    scale, zero, tensor = repeated(given, prepared.repeat)  # a name each, since kernels know arrays by their id()
    plan = with_tensor(prepared.plan, tensor)
    if not view.direct:
        return _run_tiles(prepared.kernel, x, out, (scale, zero, None), plan, native(x)[0])
    return parallel.run(prepared.kernel, ids(x, out, scale, zero, None, plan), x.size, backward=backward)


def _mark_nan(marks: Array, x: Array) -> None:
    np.isnan(x, out=marks.view(np.bool_))


def _run_tiles(
    kernel: int,
    x: Array,
    out: Array | None,
    parameters: tuple[Array | None, ...],
    plan: Array,
    dtype: np.dtype[Any],
    load: Callable[[Array, Array], None] = np.copyto,
) -> int:
    """Run a kernel tile by tile, through buffers, which `load` fills with elements of a dtype."""
    seen, buffer = 0, np.empty(min(TILE, x.size), dtype)
    result = None if out is None else np.empty(buffer.size, out.dtype.newbyteorder("="))
    for index, start, stop in tiles(x.shape):
        part = x[index]
        load(buffer[: stop - start].reshape(part.shape), part)
        seen |= parallel.run_serial(kernel, ids(buffer, result, *parameters, plan), start, stop, start)
        if out is not None and result is not None:
            out[index] = result[: stop - start].reshape(part.shape)
    return seen


def _apply_packed(call: Call, x: Array, out: Array, given: Parameters) -> int:
    """Quantize to packed codes, or dequantize them: in place where bytes allow it, else tile by tile."""
    shape = x.shape if call.does == "quantize" else out.shape
    scale, zero = np.ascontiguousarray(given.scale), np.ascontiguousarray(given.zero)
    given = given._replace(scale=scale, zero=zero)
    if in_bytes(call, x, out, shape):
        prepared = prepare(call, shape, True, x.dtype, out.dtype, scale.dtype, zero.dtype)
        scale, zero, tensor = repeated(given, prepared.repeat)
        plan = with_tensor(prepared.plan, tensor)
        return parallel.run(prepared.kernel, ids(x, out, scale, zero, None, plan), math.prod(shape))
    if make_layout(shape, call.axes, call.block_size) is None:
        return _apply_apart(call, x, out, given)
    return apply_in_tiles(call, x, out, given)


def _apply_apart(call: Call, x: Array, out: Array, given: Parameters) -> int:
    """Go through codes one in a byte, for the granularities that no view of the array in memory order has."""
    code = call.how.code
    assert code is not None
    if call.does == "quantize":
        codes = np.empty(x.shape, apart_dtype(code))
        seen = apply(call.apart, x, codes, given)
        pack(codes, out, code)
        return seen
    codes = np.empty(out.shape, apart_dtype(code))
    unpack(x, codes, code)
    return apply(call.apart, codes, out, given)


# --- ranges and values ------------------------------------------------------------------------------------------------


def by_range(call: Call, x: Array, out: Array, tensor: float = 0.0) -> tuple[Array, Array, int]:
    """Quantize or fake quantize with parameters taken from x: scale, zero point and the bits of what was seen."""
    packed, ranging = call.how.packed and call.does == "quantize", call.ranging
    view = View(x, None if packed else out, call.axes, call.block_size)
    fused = None
    if view.direct and (not packed or in_bytes(call, x, out, x.shape)):
        threads = parallel.threads_for(x.size)
        fused = _prepare_fused(view.seen_by(call), view.x.shape, threads, x.dtype, out.dtype)
    if fused is not None:
        count = view.layout.parameters
        scale, zero = np.empty(count, ranging.steps), np.zeros(count, ranging.zeros)
        plan = with_tensor(fused.plan, tensor)
        arrays = (id(x), id(out), id(scale), id(zero), 0, id(plan))  # memory is what counts, not the axes' order
        seen = parallel.run(
            fused.kernel, arrays, fused.units, size=fused.size, grain=fused.grain, threads=fused.threads
        )
        return view.from_kernel(scale), view.from_kernel(zero), seen
    given, seen = _choose(view, call, tensor)
    scale, zero = view.from_kernel(given.scale), view.from_kernel(given.zero)
    call = call.given
    if not seen and packed:
        seen = _apply_packed(call, x, out, Parameters(scale, zero, tensor))
    elif not seen:
        seen = _apply(view, call, given, backward=True)
    return scale, zero, seen


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
    call: Call, shape: tuple[int, ...], threads: int, x: np.dtype[Any], out: np.dtype[Any]
) -> _Fused | None:
    """Return None where a block would have left the cache when it is quantized, or the threads outnumber the blocks.

    One thread does an array that fits the cache faster in one pass than two do in two (2**16: 16 and 25 us).
    """
    does, how, nan, ranging = call.does, call.how, call.nan, call.ranging
    scheme, kinds = ranging.scheme, kinds_of(call, x, out, ranging.steps, ranging.zeros)
    layout = make_layout(shape, call.axes, call.block_size)
    assert layout is not None
    columns = 1 if layout.inner == 1 else lanes.STRIPE_BYTES // _compute_size(how, kinds)
    if layout.parameters < 4 * threads and math.prod(shape) <= FUSED:
        threads = 1
    if not layout.owned or layout.block * columns > FUSED or (threads > 1 and layout.parameters < 4 * threads):
        return None
    streaming = does != "quantize" and past_cache(shape, kinds[1])
    plan = plan_of(layout, call.bounds, streaming)
    if layout.inner > 1:
        units = layout.outer * layout.blocks * -(-layout.inner // columns)
        kernel = kernel_address(lanes.stripes, does, nan, scheme, 0, how, *kinds)
        return _Fused(kernel, plan, units, layout.block * min(columns, layout.inner), 1, threads)
    if layout.block in WHOLE_BLOCKS and layout.length % layout.block == 0 and layout.parameters >= SIDE_BY_SIDE:
        kernel = kernel_address(spans.blocks, does, nan, scheme, layout.block, how, *kinds)
        return _Fused(kernel, plan, layout.parameters, layout.block, 1, threads)
    kernel = kernel_address(spans.spans, does, nan, scheme, 0, how, *kinds)
    return _Fused(kernel, plan, math.prod(shape), 1, _owned_units(layout), threads)


# --- errors -----------------------------------------------------------------------------------------------------------


def compare(call: Call, x: Array, q: Array, given: Parameters) -> tuple[Array, int]:
    """Return sums of the errors of q, codes or values, and the bits of what was seen."""
    packed = call.how.packed
    if packed and make_layout(x.shape, call.axes, call.block_size) is None:
        code, call = call.how.code, call.apart
        assert code is not None
        codes = np.empty(x.shape, apart_dtype(code))
        unpack(q, codes, code)
        return compare(call, x, codes, given)
    if packed and not in_bytes(call, x, q, x.shape):
        return _compare_in_tiles(call, x, q, given)
    if packed:
        scale, zero = np.ascontiguousarray(given.scale), np.ascontiguousarray(given.zero)
    else:
        view = View(x, q, call.axes, call.block_size)
        if not view.direct:
            given = given._replace(scale=view.to_kernel(given.scale), zero=view.to_kernel(given.zero))
            assert view.out is not None
            return _compare_in_tiles(view.seen_by(call), view.x, view.out, given)
        call, x, scale, zero = view.seen_by(call), view.x, view.to_kernel(given.scale), view.to_kernel(given.zero)
    kernel, plan = _prepare_errors(call, x.shape, x.dtype, q.dtype, scale.dtype, zero.dtype)
    plan = with_tensor(plan, given.tensor)
    sums = _sums(x)
    return sums, parallel.run(kernel, ids(x, q, scale, zero, sums, plan), x.size, chunk=ERRORS_CHUNK)


def _sums(x: Array) -> Array:
    return np.zeros((-(-x.size // ERRORS_CHUNK), SUMS))


@functools.lru_cache(4096)
def _prepare_errors(call: Call, shape: tuple[int, ...], *dtypes: np.dtype[Any]) -> tuple[int, Array]:
    kinds, layout = kinds_of(call, *dtypes), make_layout(shape, call.axes, call.block_size)
    assert layout is not None
    kernel = kernel_address(loop_of(layout), "compare", "raise", "", 0, call.how, *kinds)
    return kernel, plan_of(layout, call.bounds)


def _compare_in_tiles(call: Call, x: Array, q: Array, given: Parameters) -> tuple[Array, int]:
    """Compare tile by tile, through buffers of values, and of codes one in a byte."""
    code, packed, call = call.how.code, call.how.packed, call.apart
    scale, zero = np.ascontiguousarray(given.scale), np.ascontiguousarray(given.zero)
    values = x.dtype.newbyteorder("=")
    approximation = apart_dtype(code) if packed and code is not None else q.dtype.newbyteorder("=")
    kernel, plan = _prepare_errors(call, x.shape, values, approximation, scale.dtype, zero.dtype)
    plan = with_tensor(plan, given.tensor)
    sums, seen = _sums(x), 0
    for index, start, stop in tiles(x.shape):
        part = np.ascontiguousarray(x[index], values)
        if packed and code is not None:
            other = np.empty(part.shape, approximation)
            unpack(q[packed_index(index, x.shape, code)], other, code)
        else:
            other = np.ascontiguousarray(q[index], approximation)
        for first in range(start, stop, ERRORS_CHUNK):
            last = min(first + ERRORS_CHUNK, stop)
            seen |= parallel.run_serial(kernel, ids(part, other, scale, zero, sums, plan), first, last, start)
    return sums, seen


def count_not_finite(x: Array) -> tuple[int, int]:
    """How many elements are NaN, and how many infinite; tile by tile, for error messages."""
    nan = infinite = 0
    for index, _, _ in tiles(x.shape):
        nan += int(np.count_nonzero(np.isnan(x[index])))
        infinite += int(np.count_nonzero(np.isinf(x[index])))
    return nan, infinite
