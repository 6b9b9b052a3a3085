"""From arrays to kernels: memory order, tiles for what is not contiguous, which loop, which kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from fastq.floats import FLOAT_FORMATS
from fastq.kernels import SAW_NAN, jit, lanes, parallel, repack, spans
from fastq.kernels.actions import Action
from fastq.kernels.errors import SUMS
from fastq.kernels.minifloats import Minifloat, PowerOfTwo
from fastq.kernels.packing import Bits
from fastq.kernels.plan import PLAN, Plan
from fastq.kernels.rule import ONNX, Rule
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


class Form(NamedTuple):
    """How codes lie in memory, where a dtype does not say all of it.

    Attributes
    ----------
    bits : int
        Width of a code.
    signed : bool
        Whether it is two's complement.
    element : str
        Name of its float format, empty for integers.
    saturate : bool
        Whether what is too large for the float format becomes its largest number.
    dense : bool
        Whether codes of fewer than 8 bits share bytes.
    highest_first : bool
        Whether the first of eight codes of one bit is in the highest bit.
    units : int
        Scales that are powers of two are those of the codes times two to this power.
    """

    bits: int
    signed: bool
    element: str = ""
    saturate: bool = True
    dense: bool = True
    highest_first: bool = False
    units: int = 0

    @property
    def packed(self) -> bool:
        """Whether codes share bytes."""
        return self.bits < 8 and self.dense

    @property
    def group(self) -> int:
        """The least number of codes that fills whole bytes."""
        return 8 // math.gcd(self.bits, 8)

    @property
    def apart(self) -> Form | np.dtype[Any]:
        """The same codes, one in a byte."""
        if self.element:
            return self._replace(dense=self.bits >= 8)
        return np.dtype(np.int8 if self.signed else np.uint8)


Kind = np.dtype[Any] | Form  # what a kernel's pointer points to


class How(NamedTuple):
    """The arithmetic of a call, and how codes and scales lie in memory where their dtype does not say it.

    Attributes
    ----------
    rule : Rule
        The convention's arithmetic.
    code : Form or None
        The form of the codes; None: that of their dtype.
    steps : Form or None
        The form of the scales, where the format prescribes one.
    """

    rule: Rule = ONNX
    code: Form | None = None
    steps: Form | None = None

    @property
    def packed(self) -> bool:
        """Whether codes share bytes."""
        return self.code is not None and self.code.packed

    @property
    def apart(self) -> How:
        """The same for codes one in a byte."""
        form = self.code and self.code.apart
        return self._replace(code=form if isinstance(form, Form) else None)

    @property
    def given(self) -> How:
        """The same where parameters are given."""
        return self._replace(rule=self.rule._replace(range=None))


PLAIN = How()


@functools.cache
def _element(kind: Kind) -> types.Type:
    if isinstance(kind, Form) and not kind.element:
        return Bits(kind.bits, kind.signed, kind.highest_first)
    name = kind.element if isinstance(kind, Form) else kind.name
    if name not in FLOAT_FORMATS:
        return from_dtype(kind)
    row = FLOAT_FORMATS[name]
    if not row.sign:
        return PowerOfTwo(row.bias + (kind.units if isinstance(kind, Form) else 0))
    how = (kind.saturate, kind.dense) if isinstance(kind, Form) else (False, True)
    return Minifloat(name, row.exponent, row.mantissa, row.bias, row.largest, row.infinity, row.nan, *how)


@functools.cache
def _kernel(loop: Any, does: str, nan: str, scheme: str, block: int, how: How, *kinds: Kind) -> int:
    """Address of a loop compiled for an action and kinds of src, dst, scale and zero point."""
    pointers = [types.CPointer(_element(kind)) for kind in (*kinds, np.dtype(np.float64))]
    element = _element(how.code) if how.code is not None and how.code.element else None
    rule, own = how.rule, ""
    if how.steps is not None:
        own = "tensor" if FLOAT_FORMATS[how.steps.element].sign else "power"
        rule = rule._replace(compute="float64" if does != "dequantize" and _is_wide(kinds[0]) else "float32")
    action = Action(does, nan, scheme, block, rule, element, own)
    return jit.kernel(loop, types.int64, action, *pointers, Plan, *[types.int64] * 4)


def _is_wide(kind: Kind) -> bool:
    return isinstance(kind, np.dtype) and kind.itemsize > (4 if kind.kind == "f" else 2)


Bounds = tuple[float, float]  # the first and the last code in use


def _plan(layout: Layout, bounds: Bounds = (0, 0), streaming: bool = False, parameters: int = 0) -> Array:
    plan = np.zeros(1, PLAN)
    view = (layout.outer, layout.length, layout.inner, layout.block, layout.blocks, layout.cycle, layout.kept)
    plan[0] = (*view, parameters, *bounds, 1.0, streaming, ERRORS_CHUNK)
    return plan


def _loop(layout: Layout) -> Any:
    return spans.spans if layout.inner == 1 else lanes.lanes


def _with_tensor(plan: Array, tensor: float) -> Array:
    """Return a plan with the scale of the whole array, which is known only now, if there is one."""
    if not tensor:
        return plan
    plan = plan.copy()
    plan["tensor"] = tensor
    return plan


class _Prepared(NamedTuple):
    """All of a call with given parameters that its shapes and dtypes decide."""

    kernel: int
    plan: Array
    repeat: int


@functools.lru_cache(4096)
def _prepare(
    does: str,
    nan: str,
    bounds: Bounds,
    shape: tuple[int, ...],
    axes: tuple[int, ...] | None,
    block_size: int,
    direct: bool,
    how: How,
    *kinds: Kind,
) -> _Prepared:
    layout = make_layout(shape, axes, block_size)
    assert layout is not None
    layout, repeat = layout.widened(NARROW)
    # for codes of 8 bits stores past the cache brought nothing
    streaming = direct and does != "quantize" and math.prod(shape) * _element(kinds[1]).bitwidth >= 8 * STREAMING
    return _Prepared(_kernel(_loop(layout), does, nan, "", 0, how, *kinds), _plan(layout, bounds, streaming), repeat)


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


def _tiles(shape: tuple[int, ...]) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    """Yield indices of parts of an array that follow each other in C order, and where each starts and ends."""
    axis, inner = len(shape), 1
    while axis and inner * shape[axis - 1] <= TILE:
        axis -= 1
        inner *= shape[axis]
    if not axis:
        yield (), 0, math.prod(shape)
        return
    rows, start = max(1, TILE // inner), 0
    for index in np.ndindex(shape[: axis - 1]):
        for row in range(0, shape[axis - 1], rows):
            part = min(rows, shape[axis - 1] - row) * inner
            yield (*index, slice(row, row + rows)), start, start + part
            start += part


def _run_tiles(kernel: int, view: _View, parameters: tuple[Array | None, ...], plan: Array) -> int:
    """Run a kernel tile by tile, through buffers where memory is not contiguous."""
    x, out, seen = view.x, view.out, 0
    buffer = np.empty(min(TILE, x.size), x.dtype.newbyteorder("="))
    result = None if out is None else np.empty(buffer.size, out.dtype.newbyteorder("="))
    for index, start, stop in _tiles(x.shape):
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
    return view.from_kernel(lo.astype(x.dtype, copy=False)), view.from_kernel(hi.astype(x.dtype, copy=False)), seen


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
    loop = lanes.columns if wide else _loop(layout)
    kernel = _kernel(loop, "minmax", "raise", "", 0, PLAIN, dtype, held, held, held)
    fold = _kernel(lanes.fold, "minmax", "raise", "", 0, PLAIN, held, held, held, held)
    plan = _plan(layout, parameters=count if slots > 1 else 0)
    identities = _identities(held, slots * count) if slots * count <= NARROW else None
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
    view = _View(x, None, axes, block_size)
    scale, zero, seen = _choose(view, scheme, bounds, nan, steps, zeros, how, tensor)
    return view.from_kernel(scale), view.from_kernel(zero), seen


def _choose(
    view: _View,
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
    plan = _with_tensor(plan, tensor)
    seen |= parallel.run_serial(kernel, _arrays(lo, hi, scale, zero, None, plan), 0, lo.size)
    return scale, zero, seen


@functools.lru_cache(256)
def _prepare_ranges(scheme: str, bounds: Bounds, how: How, *kinds: Kind) -> tuple[int, Array]:
    kernel = _kernel(lanes.ranges, "quantize", "raise", scheme, 0, how, *kinds)
    return kernel, _plan(Layout(1, 1, 1, 1, 1, 1, 1, ()), bounds)


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
    if axes is None and how.steps is None and _is_plain(x) and _is_plain(out):
        kinds = _kinds(does, x.dtype, out.dtype, how.code)
        prepared = _prepare(does, nan, bounds, x.shape, None, 0, True, how, *kinds, scale.dtype, zero.dtype)
        arrays = (id(x), id(out), id(scale), id(zero), 0, id(prepared.plan))
        return parallel.run(prepared.kernel, arrays, x.size)
    view = _View(x, out, axes, block_size)
    return _apply(view, does, view.to_kernel(scale), view.to_kernel(zero), bounds, nan, how, tensor, False)


def _kinds(does: str, x: np.dtype[Any], out: np.dtype[Any], code: Form | None) -> tuple[Kind, Kind]:
    """Return what src and dst of an action point to."""
    return (code or x if does == "dequantize" else x), (code or out if does == "quantize" else out)


def _apply(
    view: _View,
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
    source, target, steps, zeros = _native(x, out, scale, zero)
    kinds = (*_kinds(does, source, target, how.code), how.steps or steps, zeros)
    prepared = _prepare(does, nan, bounds, x.shape, view.transposed_axes, view.block_size, view.direct, how, *kinds)
    scale, zero = _repeated(scale, zero, prepared.repeat)
    plan = _with_tensor(prepared.plan, tensor)
    if not view.direct:
        return _run_tiles(prepared.kernel, view, (scale, zero, None), plan)
    return parallel.run(prepared.kernel, _arrays(x, out, scale, zero, None, plan), x.size, backward=backward)


def _repeated(scale: Array, zero: Array, repeat: int) -> tuple[Array, Array]:
    if repeat == 1:
        return scale, zero
    return np.tile(scale.reshape(-1), repeat), np.tile(zero.reshape(-1), repeat)


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
    bounds: Bounds,
    nan: str,
    steps: np.dtype[Any],
    zeros: np.dtype[Any],
    how: How = PLAIN,
    tensor: float = 0.0,
) -> tuple[Array, Array, int]:
    """Quantize or fake quantize with parameters taken from x: scale, zero point and the bits of what was seen."""
    packed = how.packed and does == "quantize"
    view = _View(x, None if packed else out, axes, block_size)
    fused = None
    if view.direct and not (packed and _in_bytes(x, out, x.shape, axes, block_size, how) is None):
        threads = parallel.threads_for(x.size)
        kinds = (*_kinds(does, x.dtype, out.dtype, how.code), how.steps or steps, zeros)
        fused = _prepare_fused(
            does, nan, scheme, bounds, view.x.shape, view.transposed_axes, block_size, threads, how, *kinds
        )
    if fused is not None:
        count = view.layout.parameters
        scale, zero = np.empty(count, steps), np.zeros(count, zeros)
        plan = _with_tensor(fused.plan, tensor)
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


# --- codes that share bytes -------------------------------------------------------------------------------------------


def _in_bytes(
    x: Array, out: Array, shape: tuple[int, ...], axes: tuple[int, ...] | None, block_size: int, how: How
) -> Layout | None:
    """Return the layout of packed codes where every row and every run of one parameter begins on a whole byte."""
    assert how.code is not None
    layout = make_layout(shape, axes, block_size)
    if layout is None or not (_is_plain(x) and _is_plain(out)):
        return None
    runs = [shape[-1]] if shape and math.prod(shape[:-1]) > 1 else []
    if layout.parameters > 1:
        runs += [layout.block, layout.length] if layout.inner == 1 else [layout.inner]
    return None if any(run % how.code.group for run in runs) else layout


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
    if _in_bytes(x, out, shape, axes, block_size, how) is not None:
        kinds = (*_kinds(does, x.dtype, out.dtype, how.code), how.steps or scale.dtype, zero.dtype)
        prepared = _prepare(does, nan, bounds, shape, axes, block_size, True, how, *kinds)
        scale, zero = _repeated(scale, zero, prepared.repeat)  # a name each, since kernels know arrays by their id()
        plan = _with_tensor(prepared.plan, tensor)
        return parallel.run(prepared.kernel, _arrays(x, out, scale, zero, None, plan), math.prod(shape))
    if make_layout(shape, axes, block_size) is None:
        return _apply_apart(does, x, out, (scale, zero), axes, block_size, bounds, nan, how, tensor)
    return _apply_packed_tiles(does, x, out, (scale, zero), axes, block_size, bounds, nan, how, tensor)


def _apart_dtype(code: Form) -> np.dtype[Any]:
    return code.apart if isinstance(code.apart, np.dtype) else np.dtype(np.uint8)


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
        codes = np.empty(x.shape, _apart_dtype(code))
        seen = apply(does, x, codes, *parameters, axes, block_size, bounds, nan, apart, tensor)
        pack(codes, out, code)
        return seen
    codes = np.empty(out.shape, _apart_dtype(code))
    unpack(x, codes, code)
    return apply(does, codes, out, *parameters, axes, block_size, bounds, nan, apart, tensor)


def _apply_packed_tiles(
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
    quantizing, seen, code = does == "quantize", 0, how.code
    assert code is not None
    shape, values = (x.shape, x.dtype) if quantizing else (out.shape, out.dtype)
    values, codes_dtype = values.newbyteorder("="), _apart_dtype(code)
    codes_kind: Kind = how.apart.code or codes_dtype
    kinds = (values, codes_kind) if quantizing else (codes_kind, values)
    scale, zero = parameters
    others, apart = (how.steps or scale.dtype, zero.dtype), how.apart
    prepared = _prepare(does, nan, bounds, shape, axes, block_size, False, apart, *kinds, *others)
    parameters = _repeated(scale, zero, prepared.repeat)
    plan = _with_tensor(prepared.plan, tensor)
    for index, start, stop in _tiles(shape):
        packed_index = _packed_index(index, shape, code)
        if quantizing:
            part = np.ascontiguousarray(x[index], values)
            codes = np.empty(part.shape, codes_dtype)
            arrays = _arrays(part, codes, *parameters, None, plan)
            seen |= parallel.run_serial(prepared.kernel, arrays, start, stop, start)
            packed = np.empty(out[packed_index].shape, np.uint8)
            pack(codes, packed, code)
            out[packed_index] = packed
        else:
            codes = np.empty(out[index].shape, codes_dtype)
            unpack(x[packed_index], codes, code)
            part = np.empty(codes.shape, values)
            arrays = _arrays(codes, part, *parameters, None, plan)
            seen |= parallel.run_serial(prepared.kernel, arrays, start, stop, start)
            out[index] = part
    return seen


def _packed_index(index: tuple[Any, ...], shape: tuple[int, ...], code: Form) -> tuple[Any, ...]:
    """Where the bytes of a tile are: tiles that part the last axis do so at whole bytes."""
    if len(index) < len(shape) or not shape:
        return index
    *others, last = index
    return (*others, slice(last.start * code.bits // 8, -(-last.stop * code.bits // 8)))


def pack(codes: Array, packed: Array, code: Form) -> int:
    """Pack codes along their last axis; the bits of what was seen."""
    if _is_plain(codes) and _is_plain(packed):
        return _repack(codes, packed, codes.shape, code, (codes.dtype, code))
    seen = 0
    for index, _, _ in _tiles(codes.shape):
        part = np.ascontiguousarray(codes[index], codes.dtype.newbyteorder("="))
        where = _packed_index(index, codes.shape, code)
        whole = np.empty(packed[where].shape, np.uint8)
        seen |= _repack(part, whole, part.shape, code, (part.dtype, code))
        packed[where] = whole
    return seen


def unpack(packed: Array, codes: Array, code: Form) -> None:
    """Write codes packed along the last axis one in a byte."""
    if _is_plain(codes) and _is_plain(packed):
        _repack(packed, codes, codes.shape, code, (code, codes.dtype))
        return
    for index, _, _ in _tiles(codes.shape):
        part = np.ascontiguousarray(packed[_packed_index(index, codes.shape, code)])
        whole = np.empty(codes[index].shape, codes.dtype)
        _repack(part, whole, whole.shape, code, (code, codes.dtype))
        codes[index] = whole


# codes that a unit of work has where rows do not matter: whole bytes of any format
REPACKED = 1 << 14


def _repack(src: Array, dst: Array, shape: tuple[int, ...], code: Form, kinds: tuple[Kind, Kind]) -> int:
    size, length = math.prod(shape), shape[-1] if shape else 1
    if not size:
        return 0
    if length % code.group == 0 or size == length:
        length = REPACKED
    streaming = size * _element(kinds[1]).bitwidth >= 8 * STREAMING
    kernel, plan = _prepare_repack(size, length, streaming, *kinds)
    return parallel.run(kernel, _arrays(src, dst, None, None, None, plan), -(-size // length), size=length)


@functools.lru_cache(4096)
def _prepare_repack(size: int, length: int, streaming: bool, *kinds: Kind) -> tuple[int, Array]:
    kinds = tuple(np.dtype(np.uint8) if getattr(kind, "name", "") in FLOAT_FORMATS else kind for kind in kinds)
    kinds = tuple(Form(kind.bits, False) if isinstance(kind, Form) and kind.element else kind for kind in kinds)
    kernel = _kernel(repack.rows, "repack", "raise", "", 0, PLAIN, *kinds, *[np.dtype(np.uint8)] * 2)
    return kernel, _plan(Layout(1, length, 1, length, 1, 1, 1, ()), (0, 0), streaming, size)


# --- ranges and values in one pass ------------------------------------------------------------------------------------


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
    return 8 if _is_wide(kinds[0]) else 4


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
    streaming = does != "quantize" and math.prod(shape) * _element(kinds[1]).bitwidth >= 8 * STREAMING
    plan = _plan(layout, bounds, streaming)
    if layout.inner > 1:
        units = layout.outer * layout.blocks * -(-layout.inner // columns)
        kernel = _kernel(lanes.stripes, does, nan, scheme, 0, how, *kinds)
        return _Fused(kernel, plan, units, layout.block * min(columns, layout.inner), 1, threads)
    if layout.block in WHOLE_BLOCKS and layout.length % layout.block == 0:
        kernel = _kernel(spans.blocks, does, nan, scheme, layout.block, how, *kinds)
        return _Fused(kernel, plan, layout.parameters, layout.block, 1, threads)
    kernel = _kernel(spans.spans, does, nan, scheme, 0, how, *kinds)
    return _Fused(kernel, plan, math.prod(shape), 1, _owned_units(layout), threads)


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
    view = _View(x, q, axes, block_size)
    x, layout = view.x, view.layout
    scale, zero = view.to_kernel(scale), view.to_kernel(zero)
    assert view.out is not None
    sums = np.zeros((-(-x.size // ERRORS_CHUNK), SUMS))
    source, target, steps, zeros = _native(x, q, scale, zero)
    codes = target if how.code is None or not how.code.element else how.code.apart
    kinds = (source, codes, how.steps or steps, zeros)
    kernel = _kernel(_loop(layout), "compare", "raise", "", 0, how, *kinds)
    plan = _with_tensor(_plan(layout, bounds), tensor)
    if view.direct:
        arrays = _arrays(x, view.out, scale, zero, sums, plan)
        return sums, parallel.run(kernel, arrays, x.size, chunk=ERRORS_CHUNK)
    return sums, _compare_tiles(kernel, view, scale, zero, sums, plan)


def _compare_tiles(kernel: int, view: _View, scale: Array, zero: Array, sums: Array, plan: Array) -> int:
    x, q, seen = view.x, view.out, 0
    assert q is not None
    for index, start, stop in _tiles(x.shape):
        parts = [np.ascontiguousarray(part[index], part.dtype.newbyteorder("=")) for part in (x, q)]
        for first in range(start, stop, ERRORS_CHUNK):
            last = min(first + ERRORS_CHUNK, stop)
            seen |= parallel.run_serial(kernel, _arrays(*parts, scale, zero, sums, plan), first, last, start)
    return seen


def count_not_finite(x: Array) -> tuple[int, int]:
    """How many elements are NaN, and how many infinite; tile by tile, for error messages."""
    nan = infinite = 0
    for index, _, _ in _tiles(x.shape):
        nan += int(np.count_nonzero(np.isnan(x[index])))
        infinite += int(np.count_nonzero(np.isinf(x[index])))
    return nan, infinite
