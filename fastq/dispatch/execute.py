"""The operations on valid arrays: which loop, in one pass or two, and how results come back."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.granularity import Layout, make_layout
from fastq.dispatch.planner import (
    ERRORS_CHUNK,
    NARROW,
    Prepared,
    args_of,
    kernel_of,
    kinds_of,
    loop_of,
    past_cache,
    prepare,
    repeated,
)
from fastq.dispatch.spec import PLAIN, Call, How, Parameters
from fastq.dispatch.strides import TILE, View, is_plain, native, tiles
from fastq.dispatch.subbyte import apart_dtype, apply_in_tiles, in_bytes, pack, packed_index, unpack
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.build import element_type, is_wide
from fastq.kernels.loops import columns
from fastq.kernels.loops.blocks import BLOCK_SIZES, blocks
from fastq.kernels.loops.compare import SUMS as SUMMED
from fastq.kernels.loops.runs import runs
from fastq.kernels.operands import ErrorOperands, PartialOperands, RangeOperands, ReductionOperands
from fastq.kernels.status import HAS_NAN
from fastq.kernels.storage import ElementType
from fastq.runtime import threadpool
from fastq.runtime.driver import (
    EVERYTHING,
    HI,
    LO,
    NONE,
    OUT,
    SCALE,
    SUMS,
    VALUES,
    ZERO,
    Program,
    X,
    program,
    run,
)

Array = NDArray[Any]

# elements of a block that is quantized right after it was reduced, while it is in the L2 cache
FUSED = 1 << 17
# rows of such a block if they begin a multiple of so many bytes apart, of which caches hold fewer. Gelem/s in one pass
# and in two on Zen 5: 1024 rows of 4096 float32 5.9 and 6.8, of 4000 11.2 and 6.5, of 2048 9.7 and 6.9; 512 rows of
# 4096 10.9 and 6.9. On a Xeon: 1024 rows of 4096 in one pass 4.0, 4096 rows in two 5.4
ALIASED, APART = 512, 1 << 14
# how many elements of a reduction are as much work as one of a quantization (2**17: 4.6 us alone, 4.9 with two)
LIGHT = 8
# minimum and maximum of each thread are kept side by side as long as they have no more numbers than this, 512 KiB of
# float32; of rows that are wider, threads take columns, at most so many at a time that their minima and maxima stay in
# the L2 cache (2**15 of 2**18 columns 1.2 to 3 times faster than 2**11 to 2**14)
PARTIAL = 1 << 16
COLUMNS = 1 << 15
# Blocks from which the kernel is used that computes the parameters of so many side by side; fewer are not worth the
# second that it takes to compile
SIDE_BY_SIDE = 16


# --- ranges -----------------------------------------------------------------------------------------------------------


def minmax(x: Array, axes: tuple[int, ...] | None, block_size: int, nan: str = "raise") -> tuple[Array, Array, int]:
    """Smallest and largest element of each parameter's part of x, NaN as 0.0, and the bits of what was refused."""
    view = View(x, None, axes, block_size)
    lo, hi, seen = _extents(view, nan)
    dtype = x.dtype.newbyteorder("=")
    return view.from_kernel(lo.astype(dtype, copy=False)), view.from_kernel(hi.astype(dtype, copy=False)), seen


def prepare_extents_as_is(x: Array, axes: tuple[int, ...] | None, block_size: int, nan: str) -> Extents | None:
    """Return what is prepared for an array in C order, None where memory has to be arranged first."""
    if not is_plain(x) or make_layout(x.shape, axes, block_size) is None:
        return None
    return _prepare_extents(x.shape, axes, block_size, nan, _threads_to_reduce(x), x.dtype)


def _threads_to_reduce(x: Array) -> int:
    return threadpool.threads_for(x.size // LIGHT)


def _reduced(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which minima and maxima are held: float32 for smaller floats."""
    return np.dtype(np.float32) if dtype.name in FLOAT_FORMATS else dtype


def _identities(dtype: np.dtype[Any], count: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return so many identities of a minimum and of a maximum, in a shape if it has room for them."""
    most, least = (np.inf, -np.inf) if dtype.kind == "f" else (np.iinfo(dtype).max, np.iinfo(dtype).min)
    shape = shape if math.prod(shape) == count else (count,)
    return np.full(shape, most, dtype), np.full(shape, least, dtype)


def _owned_units(layout: Layout) -> int:
    """Elements that chunks are multiples of so that no block is in two of them; the last of a row may be shorter."""
    return (layout.block if layout.outer == 1 else layout.length) * layout.inner


class Extents(NamedTuple):
    """A reduction to minima and maxima: partial results of `slots` threads, side by side, then their `fold`.

    `whole` is both steps. So many `numbers` of each kind begin with `identities`; they are for parts of the array in
    `shape`, and have it if there is one for each part.
    """

    whole: Program
    reduce: Program
    fold: Program | None
    dtype: np.dtype[Any]
    identities: tuple[Array, Array] | None
    numbers: int
    shape: tuple[int, ...]

    def begin(self) -> tuple[Array, Array]:
        """Return minima and maxima of nothing."""
        if self.identities is None:
            return _identities(self.dtype, self.numbers, self.shape)
        lo, hi = self.identities  # making them anew takes longer than reducing a thousand elements
        return lo.copy(), hi.copy()

    def end(self, extents: Array) -> Array:
        """Return minima or maxima, one for each part."""
        if extents.shape == self.shape:
            return extents
        return extents[: math.prod(self.shape)].reshape(self.shape)


@functools.lru_cache(4096)
def _prepare_extents(
    shape: tuple[int, ...],
    axes: tuple[int, ...] | None,
    block_size: int,
    nan: str,
    threads: int,
    dtype: np.dtype[Any],
) -> Extents:
    layout = make_layout(shape, axes, block_size)
    assert layout is not None
    wanted, parameters = layout.shape, layout.parameters
    layout, repeat = layout.widened(NARROW)
    count, grain, size = layout.parameters, _owned_units(layout), math.prod(shape)
    alone = layout.owned and size // grain >= 4 * threads  # each thread has blocks of its own
    slots = 1 if alone or threads * count > PARTIAL else threads
    held = _reduced(dtype)
    wide = slots < threads and layout.inner > PARTIAL // threads and not alone and repeat == 1
    loop = columns.column_strips if wide else loop_of(layout)
    kernel = kernel_of(loop, ReductionOperands(dtype, held, held), "minmax", PLAIN)
    args = args_of(layout, streaming=past_cache(shape, dtype), partial_stride=count if slots > 1 else 0)
    units, chunk = (layout.inner, min(COLUMNS, -(-layout.inner // threads))) if wide else (size, 0)
    if slots == 1 and not alone and not wide:
        threads = 1
    operands, heeded = (X, LO, HI, NONE, NONE), EVERYTHING if nan == "raise" else ~HAS_NAN
    size, grain, chunk = size // units, grain if alone else 1, chunk if threads > 1 else 0
    reduce = program(kernel, operands, args, units, threads, size=size, grain=grain, chunk=chunk, heeded=heeded)
    whole, fold = reduce, None
    if slots * repeat > 1:
        kernel = kernel_of(columns.merge_partials, PartialOperands(held, held), "minmax", PLAIN)
        args = args_of(layout, partials=slots * repeat, partial_stride=parameters)
        fold = program(kernel, (LO, HI, NONE, NONE, NONE), args, parameters, 1)
        whole = reduce.then(fold)
    identities = _identities(held, slots * count, wanted) if slots * count <= NARROW else None
    return Extents(whole, reduce, fold, held, identities, slots * count, wanted)


def _extents(view: View, nan: str, marks: bool = False) -> tuple[Array, Array, int]:
    """Smallest and largest element of each parameter's part, or of marks: 1 where an element is NaN, else 0."""
    x, (dtype,), direct = view.x, native(view.x), view.direct and not marks
    dtype = np.dtype(np.uint8) if marks else dtype
    threads = _threads_to_reduce(x) if direct else 1
    prepared = _prepare_extents(x.shape, view.transposed_axes, view.block_size, nan, threads, dtype)
    lo, hi = prepared.begin()
    if direct:
        seen = run(prepared.whole, x, None, None, None, None, lo, hi)
    else:
        load = _mark_nan if marks else np.copyto
        seen = _run_tiles(prepared.reduce, x, None, (None, None, None, lo, hi), dtype, load)
        if prepared.fold:
            run(prepared.fold, None, None, None, None, None, lo, hi)
    return prepared.end(lo), prepared.end(hi), seen


def choose(call: Call, x: Array, tensor: float = 0.0) -> tuple[Array, Array, int]:
    """Take scale and zero point from the range of x; the bits of what was refused."""
    view = View(x, None, call.axes, call.block_size)
    given, seen = _choose(view, call, tensor)
    return view.from_kernel(given.scale), view.from_kernel(given.zero), seen


def _choose(view: View, call: Call, tensor: float) -> tuple[Parameters, int]:
    lo, hi, seen = _extents(view, call.nan)
    steps, ranging = call.how.steps, call.ranging
    scale, zero = np.empty(lo.shape, ranging.steps), np.zeros(lo.shape, ranging.zeros)
    ranges = _prepare_ranges(call, lo.dtype, lo.size).with_tensor(tensor)
    seen |= run(ranges, None, None, scale, zero, None, lo, hi)
    if call.nan == "keep" and steps is not None:
        scale[_extents(view, "keep", marks=True)[1] > 0] = FLOAT_FORMATS[steps.element].nan
    return Parameters(scale, zero, tensor), seen


@functools.lru_cache(1024)
def _prepare_ranges(call: Call, held: np.dtype[Any], count: int) -> Program:
    ranging = call.ranging
    kinds = RangeOperands(held, held, call.how.steps or ranging.steps, ranging.zeros)
    kernel = kernel_of(columns.ranges, kinds, "quantize", call.how, range_scheme=ranging.scheme)
    args = args_of(Layout(1, 1, 1, 1, 1, 1, 1, ()), call.bounds)
    return program(kernel, (LO, HI, SCALE, ZERO, NONE), args, count, 1)


# --- given parameters -------------------------------------------------------------------------------------------------


def apply(call: Call, x: Array, out: Array, given: Parameters) -> int:
    """Quantize, dequantize or fake quantize with given parameters; the bits of what was seen."""
    prepared = prepare_as_is(call, x, out, given.scale.dtype, given.zero.dtype)
    if prepared is not None:
        if call.axes is not None:
            given = _contiguous(given)
        scale, zero, tensor = repeated(given, prepared.repeat)
        return run(prepared.program.with_tensor(tensor), x, out, scale, zero)
    if call.how.packed and call.does != "fake":
        return _apply_packed(call, x, out, _contiguous(given))
    view = View(x, out, call.axes, call.block_size)
    given = given._replace(scale=view.to_kernel(given.scale), zero=view.to_kernel(given.zero))
    return _apply(view, call, given)


def prepare_as_is(call: Call, x: Array, out: Array, *parameters: np.dtype[Any]) -> Prepared | None:
    """Return what is prepared for arrays in C order, None where memory has to be arranged first."""
    values = out if call.does == "dequantize" else x
    if not _goes_as_is(call, x, out, values.shape):
        return None
    return prepare(call, values.shape, threadpool.threads_for(values.size), False, x.dtype, out.dtype, *parameters)


def _goes_as_is(call: Call, x: Array, out: Array, shape: tuple[int, ...]) -> bool:
    """Whether kernels can work on both arrays where they are, in C order."""
    if call.how.packed and call.does != "fake":
        return in_bytes(call, x, out, shape)
    if not is_plain(x) or not is_plain(out):
        return False
    return call.axes is None or make_layout(shape, call.axes, call.block_size) is not None


def _contiguous(given: Parameters) -> Parameters:
    return given._replace(scale=np.ascontiguousarray(given.scale), zero=np.ascontiguousarray(given.zero))


def _apply(view: View, call: Call, given: Parameters, backward: bool = False) -> int:
    x, out = view.x, view.out
    assert out is not None
    threads, dtypes = threadpool.threads_for(x.size) if view.direct else 1, native(x, out, given.scale, given.zero)
    prepared = prepare(view.seen_by(call), x.shape, threads, backward, *dtypes, direct=view.direct)
    scale, zero, tensor = repeated(given, prepared.repeat)
    whole = prepared.program.with_tensor(tensor)
    if not view.direct:
        return _run_tiles(whole, x, out, (scale, zero), dtypes[0])
    return run(whole, x, out, scale, zero)


def _mark_nan(marks: Array, x: Array) -> None:
    np.isnan(x, out=marks.view(np.bool_))


def _run_tiles(
    whole: Program,
    x: Array,
    out: Array | None,
    others: tuple[Array | None, ...],
    dtype: np.dtype[Any],
    load: Callable[[Array, Array], None] = np.copyto,
) -> int:
    """Run a program of one step tile by tile, through buffers, which `load` fills with elements of a dtype."""
    seen, buffer = 0, np.empty(min(TILE, x.size), dtype)
    result = None if out is None else np.empty(buffer.size, out.dtype.newbyteorder("="))
    for index, start, stop in tiles(x.shape):
        part = x[index]
        load(buffer[: stop - start].reshape(part.shape), part)
        seen |= run(whole.part(start, stop, start), buffer, result, *others)
        if out is not None and result is not None:
            out[index] = result[: stop - start].reshape(part.shape)
    return seen


def _apply_packed(call: Call, x: Array, out: Array, given: Parameters) -> int:
    """Quantize to packed codes, or dequantize them, where rows do not begin on whole bytes or memory has gaps."""
    shape = x.shape if call.does == "quantize" else out.shape
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
    """Quantize or fake quantize with parameters taken from x: scale, zero point and the bits of what was refused."""
    packed, ranging = call.how.packed and call.does == "quantize", call.ranging
    view = View(x, None if packed else out, call.axes, call.block_size)
    ranged = None
    if view.direct and (not packed or in_bytes(call, x, out, x.shape)):
        threads = threadpool.threads_for(x.size), _threads_to_reduce(x)
        ranged = _prepare_ranged(view.seen_by(call), view.x.shape, *threads, x.dtype, out.dtype)
    if ranged is not None:
        count = view.layout.parameters
        scale, zero = np.empty(count, ranging.steps), np.zeros(count, ranging.zeros)
        seen = run(ranged.program.with_tensor(tensor), x, out, scale, zero, None, *ranged.begin())
        return view.from_kernel(scale), view.from_kernel(zero), seen
    given, seen = _choose(view, call, tensor)
    scale, zero = view.from_kernel(given.scale), view.from_kernel(given.zero)
    call = call.given
    if not seen and packed:
        seen = apply(call, x, out, Parameters(scale, zero, tensor))
    elif not seen:
        seen = _apply(view, call, given, backward=True)
    return scale, zero, seen


def prepare_ranged_as_is(call: Call, x: Array, out: Array) -> Ranged | None:
    """Return what is prepared for arrays in C order, None where memory has to be arranged first."""
    if not _goes_as_is(call, x, out, x.shape):
        return None
    return _prepare_ranged(call, x.shape, threadpool.threads_for(x.size), _threads_to_reduce(x), x.dtype, out.dtype)


class Ranged(NamedTuple):
    """A program that takes parameters from ranges and quantizes, of arrays whose memory is in C order of some axes."""

    program: Program
    extents: Extents | None

    def begin(self) -> tuple[Array, ...]:
        """Return the last operands: minima and maxima, where there are two passes."""
        return self.extents.begin() if self.extents else ()


@functools.lru_cache(4096)
def _prepare_ranged(
    call: Call, shape: tuple[int, ...], threads: int, to_reduce: int, x: np.dtype[Any], out: np.dtype[Any]
) -> Ranged | None:
    """Return one pass if it can be, else two; None where Python has something to do between them."""
    fused = _prepare_fused(call, shape, threads, x, out)
    if fused is not None:
        return Ranged(fused, None)
    ranging = call.ranging
    extents = _prepare_extents(shape, call.axes, call.block_size, call.nan, to_reduce, x)
    second = prepare(call.given, shape, threads, True, x, out, ranging.steps, ranging.zeros)
    if second.repeat > 1 or (call.nan == "keep" and call.how.steps is not None):
        return None
    ranges = _prepare_ranges(call, extents.dtype, math.prod(extents.shape))
    return Ranged(extents.whole.then(ranges, second.program), extents)


def _compute_size(how: How, kinds: tuple[ElementType, ...]) -> int:
    """Bytes of a number of the type that a kernel computes in."""
    if how.rule.compute:
        return np.dtype(how.rule.compute).itemsize
    if isinstance(kinds[2], np.dtype):
        return kinds[2].itemsize
    return 8 if is_wide(kinds[0]) else 4


def _prepare_fused(
    call: Call, shape: tuple[int, ...], threads: int, x: np.dtype[Any], out: np.dtype[Any]
) -> Program | None:
    """Return None where a block would have left the cache when it is quantized, or the threads outnumber the blocks."""
    does, how, nan, ranging = call.does, call.how, call.nan, call.ranging
    kinds = kinds_of(call, x, out, ranging.steps, ranging.zeros)
    layout = make_layout(shape, call.axes, call.block_size)
    assert layout is not None
    width = 1 if layout.inner == 1 else columns.STRIPE_BYTES // _compute_size(how, kinds)
    if not layout.owned or layout.block * width > FUSED:
        return None
    if (
        layout.inner > 1
        and layout.block > ALIASED
        and layout.inner * element_type(kinds[0]).bitwidth % (8 * APART) == 0
    ):
        return None
    if threads > 1 and layout.parameters < 4 * threads:
        return None
    streaming = past_cache(shape, *kinds[:2])
    args, options = args_of(layout, call.bounds, streaming=streaming), {"nan": nan, "range_scheme": ranging.scheme}
    if layout.inner > 1:
        units = layout.outer * layout.blocks * -(-layout.inner // width)
        kernel = kernel_of(columns.stripes, kinds, does, how, **options)
        return program(kernel, VALUES, args, units, threads, size=layout.block * min(width, layout.inner))
    if layout.block in BLOCK_SIZES and layout.length % layout.block == 0 and layout.parameters >= SIDE_BY_SIDE:
        kernel = kernel_of(blocks, kinds, does, how, block=layout.block, **options)
        return program(kernel, VALUES, args, layout.parameters, threads, size=layout.block)
    kernel = kernel_of(runs, kinds, does, how, **options)
    return program(kernel, VALUES, args, math.prod(shape), threads, grain=_owned_units(layout))


# --- errors -----------------------------------------------------------------------------------------------------------


def compare(call: Call, x: Array, q: Array, given: Parameters) -> tuple[Array, int]:
    """Return sums of the errors of q, codes or values, and the bits of what was seen."""
    whole = prepare_errors_as_is(call, x, q, given.scale.dtype, given.zero.dtype)
    if whole is not None:
        return _compare(whole, x, q, _contiguous(given))
    if call.how.packed and make_layout(x.shape, call.axes, call.block_size) is None:
        code = call.how.code
        assert code is not None
        codes = np.empty(x.shape, apart_dtype(code))
        unpack(q, codes, code)
        return compare(call.apart, x, codes, given)
    if call.how.packed:
        return _compare_in_tiles(call, x, q, given)
    view = View(x, q, call.axes, call.block_size)
    call, given = view.seen_by(call), given._replace(scale=view.to_kernel(given.scale), zero=view.to_kernel(given.zero))
    assert view.out is not None
    if not view.direct:
        return _compare_in_tiles(call, view.x, view.out, given)
    dtypes = x.dtype, q.dtype, given.scale.dtype, given.zero.dtype
    whole = _prepare_errors(call, view.x.shape, threadpool.threads_for(x.size), *dtypes)
    return _compare(whole, view.x, view.out, given)


def _compare(whole: Program, x: Array, q: Array, given: Parameters) -> tuple[Array, int]:
    sums = sums_of(x.size)
    return sums, run(whole.with_tensor(given.tensor), x, q, given.scale, given.zero, sums)


def sums_of(size: int) -> Array:
    """Return places for the sums of the errors of so many elements."""
    return np.zeros((-(-size // ERRORS_CHUNK), SUMMED))


def prepare_errors_as_is(call: Call, x: Array, q: Array, *parameters: np.dtype[Any]) -> Program | None:
    """Return the program of `compare` for arrays in C order, None where memory has to be arranged first."""
    if not _goes_as_is(call, x, q, x.shape):
        return None
    return _prepare_errors(call, x.shape, threadpool.threads_for(x.size), x.dtype, q.dtype, *parameters)


@functools.lru_cache(4096)
def _prepare_errors(call: Call, shape: tuple[int, ...], threads: int, *dtypes: np.dtype[Any]) -> Program:
    kinds, layout = kinds_of(call, *dtypes), make_layout(shape, call.axes, call.block_size)
    assert layout is not None
    kernel = kernel_of(loop_of(layout), ErrorOperands(*kinds, np.dtype(np.float64)), "compare", call.how)
    operands, args = (X, OUT, SCALE, ZERO, SUMS), args_of(layout, call.bounds)
    return program(kernel, operands, args, math.prod(shape), threads, chunk=ERRORS_CHUNK, eager=True)


def _compare_in_tiles(call: Call, x: Array, q: Array, given: Parameters) -> tuple[Array, int]:
    """Compare tile by tile, through buffers of values, and of codes one in a byte."""
    code, packed, call = call.how.code, call.how.packed, call.apart
    scale, zero = np.ascontiguousarray(given.scale), np.ascontiguousarray(given.zero)
    values = x.dtype.newbyteorder("=")
    approximation = apart_dtype(code) if packed and code is not None else q.dtype.newbyteorder("=")
    whole = _prepare_errors(call, x.shape, 1, values, approximation, scale.dtype, zero.dtype).with_tensor(given.tensor)
    sums, seen = sums_of(x.size), 0
    for index, start, stop in tiles(x.shape):
        part = np.ascontiguousarray(x[index], values)
        if packed and code is not None:
            other = np.empty(part.shape, approximation)
            unpack(q[packed_index(index, x.shape, code)], other, code)
        else:
            other = np.ascontiguousarray(q[index], approximation)
        for first in range(start, stop, ERRORS_CHUNK):
            last = min(first + ERRORS_CHUNK, stop)
            seen |= run(whole.part(first, last, start), part, other, scale, zero, sums)
    return sums, seen


def count_not_finite(x: Array) -> tuple[int, int]:
    """How many elements are NaN, and how many infinite; tile by tile, for error messages."""
    nan = infinite = 0
    for index, _, _ in tiles(x.shape):
        nan += int(np.count_nonzero(np.isnan(x[index])))
        infinite += int(np.count_nonzero(np.isinf(x[index])))
    return nan, infinite
