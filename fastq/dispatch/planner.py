"""Plan launches: from shapes and dtypes to the kernels, their numbers, threads and chunks.

Everything here is decided by metadata alone; no element is looked at.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.cache import plans
from fastq.dispatch.loops import FEWEST, bytes_of, loop_of, outgrows_cache, store_mode
from fastq.dispatch.spec import PLAIN, Arithmetic, CodeRange, OpSpec
from fastq.dispatch.strides import NOT_STRIDED, Layout, StridedOperands, View
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.driver import (
    ALL_STATUS,
    HI,
    LO,
    NONE,
    OUT,
    SCALE,
    SUMS,
    VALUES,
    ZERO,
    LaunchPlan,
    X,
    plan_launch,
)
from fastq.engine.runtime.tiling import WHOLE_BYTES, Operand, in_tiles
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.args import IN_TILE, KERNEL_ARGS
from fastq.kernels.body.convert import ElementOperands
from fastq.kernels.body.histogram import PARTIALS, HistogramOperands
from fastq.kernels.body.min_max import MinMaxOperands, PartialOperands
from fastq.kernels.body.repack import repack, repack_elements
from fastq.kernels.build import element_type, is_wide, kernel_address
from fastq.kernels.operands import CopyOperands, RangeOperands
from fastq.kernels.status import HAS_NAN
from fastq.kernels.storage import ElementType, StorageFormat
from fastq.kernels.traversal import columns
from fastq.kernels.traversal.blocks import BLOCK_SIZES, blocks
from fastq.kernels.traversal.runs import runs
from fastq.system import tuning

Array = NDArray[Any]
COPY = X, OUT, NONE, NONE, NONE  # operands of kernels without parameters

# elements over which errors are added up before sums are added, so that the order does not depend on threads; results
# depend on this number, so it is no tuning constant
ERRORS_CHUNK = 1 << 16
# elements of which chunks of copied codes are multiples: whole cache lines in any format
REPACKED = 1 << 14

threadpool.when_changed(plans.clear)


# --- kernels ----------------------------------------------------------------------------------------------------------


def kernel_args(
    layout: Layout,
    code_range: CodeRange = (0, 0),
    *,
    streaming: int = 0,
    outgrows_cache: bool = False,
    repeat: int = 1,
    size: int = 0,
    partials: int = 0,
    partial_stride: int = 0,
    grid: int = 0,
    candidates: int = 0,
) -> Array:
    """Return the numeric arguments of a kernel."""
    indexing = layout.outer, layout.length, layout.inner, layout.block, layout.blocks, layout.cycle, layout.kept
    others = streaming, outgrows_cache, repeat, ERRORS_CHUNK, size, partials, partial_stride, grid, candidates
    return np.array([(*indexing, *code_range, 1.0, *others)], KERNEL_ARGS)


def kernel_for(loop: Any, operands: Any, op: str, arithmetic: Arithmetic = PLAIN, **options: Any) -> int:
    """Return the address of a loop compiled for an arithmetic and options of `kernel_address`."""
    rule, code_format, scale_format = arithmetic
    return kernel_address(loop, operands, op, rule=rule, code=code_format, scale_format=scale_format, **options)


_NO_LAYOUT = Layout(1, 1, 1, 1, 1, 1, 1, ())


def element_types(
    spec: OpSpec, src: np.dtype[Any], dst: np.dtype[Any], scale: np.dtype[Any], zero_point: np.dtype[Any]
) -> ElementOperands:
    """Return what the pointers of an operation point to, from the dtypes of its arrays."""
    op, code_format, scale_format = spec.op, spec.arithmetic.code_format, spec.arithmetic.scale_format
    return ElementOperands(
        (code_format or src if op == "dequantize" else src),
        (code_format or dst if op in ("quantize", "compare") else dst),
        scale_format or scale,
        zero_point,
    )


# --- given parameters -------------------------------------------------------------------------------------------------


def plan_elementwise(spec: OpSpec, view: View, *dtypes: np.dtype[Any], backward: bool = False) -> LaunchPlan:
    """Plan an operation with given parameters on arrays of these dtypes, in place or in tiles."""
    kinds, size, layout = element_types(spec, *dtypes), math.prod(view.shape), view.layout
    loop, threads = loop_of(layout, spec.op, *kinds[:3]), threadpool.threads_for(size)
    kernel = kernel_for(loop.function, kinds, spec.op, spec.arithmetic, nan=spec.nan)
    args = kernel_args(
        layout,
        spec.code_range,
        streaming=store_mode(size, *kinds[:2], layout, row=loop.row),
        outgrows_cache=outgrows_cache(bytes_of(size, *kinds[:2])),
        repeat=loop.repeat,
    )
    status_mask = ALL_STATUS if spec.op != "dequantize" else 0  # codes may be NaN
    plan = plan_launch(
        kernel, VALUES, args, size, threads, chunk_multiple=WHOLE_BYTES, backward=backward, status_mask=status_mask
    )
    tiled = _tiled_if_strided(plan, view.shape, kinds, view.memory)
    assert tiled is not None
    return tiled


def _tiled_if_strided(
    plan: LaunchPlan, shape: tuple[int, ...], kinds: Sequence[ElementType], memory: StridedOperands, **options: Any
) -> LaunchPlan | None:
    """Return a plan of one launch for arrays in this memory; None where what has to be together is too large for it."""
    if memory == NOT_STRIDED:
        return plan
    bits = [element_type(kind).bitwidth for kind in kinds[:2]]
    x, out = (Operand(n, *each) if each else Operand(n) for n, each in zip(bits, memory, strict=True))
    return in_tiles(plan, shape, x, out._replace(is_result=True), args=IN_TILE, **options)


def plan_repack(
    shape: tuple[int, ...],
    code_format: StorageFormat,
    src: ElementType,
    dst: ElementType,
    memory: StridedOperands = NOT_STRIDED,
    op: str = "repack",
    nan: str = "raise",
) -> LaunchPlan | None:
    """Plan to copy codes from one form in memory to the other, or to binarize values.

    None for strided rows that end within a byte and are too long for a buffer.
    """
    size, length = math.prod(shape), shape[-1] if shape else 1
    kinds = CopyOperands(_as_integers(src) if op == "repack" else src, _as_integers(dst))
    threads = threadpool.threads_for(size)
    dense = length % code_format.group == 0 or size == length
    args = kernel_args(
        Layout(1, length, 1, length, 1, 1, 1, ()),
        streaming=store_mode(size, src, dst) if memory == NOT_STRIDED else 0,
    )
    if dense:
        kernel = kernel_for(repack_elements, kinds, op, nan=nan)
        plan = plan_launch(kernel, COPY, args, size, threads, chunk_multiple=REPACKED)
        return _tiled_if_strided(plan, shape, kinds, memory)
    kernel = kernel_for(repack, kinds, op, nan=nan)
    plan = plan_launch(kernel, COPY, args, size // length, threads, size=length)
    bits_x, bits_y = (-(-length * element_type(kind).bitwidth // 8) * 8 for kind in kinds)
    return _tiled_if_strided(plan, shape, kinds, memory, unit=length, whole=length, unit_bits=(bits_x, bits_y))


def with_tensor(plan: LaunchPlan, tensor: float) -> LaunchPlan:
    """Return a plan for scales in units of one for the whole array, which is known only now; 0: of none."""
    return plan.with_args(tensor=tensor) if tensor else plan


def plan_copy(shape: tuple[int, ...], dtype: np.dtype[Any], memory: StridedOperands) -> LaunchPlan:
    """Plan to copy elements in C order between contiguous and other memory."""
    bits = np.dtype(f"u{dtype.itemsize}")
    plan = plan_repack(shape, StorageFormat(8, False), bits, bits, memory)
    assert plan is not None  # elements are whole bytes
    return plan


def _as_integers(kind: ElementType) -> ElementType:
    """Return the type of the bits of float codes."""
    if isinstance(kind, StorageFormat):
        return StorageFormat(kind.bits, False) if kind.element else kind
    return np.dtype(np.uint8) if kind.name in FLOAT_FORMATS else kind


# --- ranges -----------------------------------------------------------------------------------------------------------


class MinMaxReduction(NamedTuple):
    """A reduction to minima and maxima: partial results of `slots` threads, side by side, which are then merged.

    Attributes
    ----------
    plan : LaunchPlan
        All launches.
    dtype : dtype
        In which minima and maxima are held.
    identities : tuple of ndarray or None
        Minima and maxima of nothing, where they are few: to copy them is faster than to make them.
    size : int
        How many numbers of each kind the partial results have.
    shape : tuple of int
        Parts of the array that have a minimum and a maximum.
    """

    plan: LaunchPlan
    dtype: np.dtype[Any]
    identities: tuple[Array, Array] | None
    size: int
    shape: tuple[int, ...]

    def begin(self) -> tuple[Array, Array]:
        """Return minima and maxima of nothing."""
        if self.identities is None:
            return _identities(self.dtype, self.size, self.shape)
        lo, hi = self.identities
        return lo.copy(), hi.copy()

    def end(self, extremes: Array) -> Array:
        """Return minima or maxima, one for each part."""
        if extremes.shape == self.shape:
            return extremes
        return extremes[: math.prod(self.shape)].reshape(self.shape)


def _identities(dtype: np.dtype[Any], count: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return so many identities of a minimum and of a maximum, in a shape if it has room for them."""
    shape = shape if math.prod(shape) == count else (count,)
    lo, hi = np.empty(shape, dtype), np.empty(shape, dtype)
    most, least = _ends(dtype)
    lo.fill(most)
    hi.fill(least)
    return lo, hi


@functools.cache
def _ends(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the largest and the least number of a type; NumPy takes a microsecond to look up either."""
    return (np.inf, -np.inf) if dtype.kind == "f" else (np.iinfo(dtype).max, np.iinfo(dtype).min)


def _threads_to_reduce(size: int) -> int:
    return threadpool.threads_for(size // tuning.current().reduction_cost)


def accumulator_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of minima and maxima in kernels."""
    return np.dtype(np.float32) if dtype.name in FLOAT_FORMATS else dtype


def owned_units(layout: Layout) -> int:
    """Return of how many elements chunks are multiples, so that no block is in two of them."""
    return (layout.block if layout.outer == 1 else layout.length) * layout.inner


def plan_minmax(view: View, nan: str, dtype: np.dtype[Any], copies_isnan: bool = False) -> MinMaxReduction:
    """Plan the minima and maxima of the parts of an array, or of 1 where it is NaN and 0 elsewhere."""
    layout, size = view.layout, math.prod(view.shape)
    threads = _threads_to_reduce(size)
    tuned = tuning.current()
    accumulator = accumulator_of(dtype)
    loop, count, owned = loop_of(layout, "minmax", dtype, accumulator), layout.parameters, owned_units(layout)
    alone = layout.owned and size // owned >= 4 * threads  # each thread has blocks of its own
    slots = 1 if alone or threads * count > tuned.merged_partials else threads
    by_columns = slots < threads and layout.inner > tuned.merged_partials // threads and not alone and loop.repeat == 1
    wide = by_columns and view.memory.x is None
    function = columns.column_ranges if wide else loop.function
    kernel = kernel_for(function, MinMaxOperands(dtype, accumulator, accumulator), "minmax")
    stride, large = count if slots > 1 else 0, outgrows_cache(bytes_of(size, dtype))
    args = kernel_args(layout, outgrows_cache=large, repeat=loop.repeat, partial_stride=stride)
    units, chunk = (layout.inner, min(tuned.range_columns, -(-layout.inner // threads))) if wide else (size, 0)
    if slots == 1 and not alone and not wide:
        threads = 1
    operands, mask = (X, LO, HI, NONE, NONE), ALL_STATUS if nan == "raise" else ~HAS_NAN
    unit, chunk, together = size // units, chunk if threads > 1 else 0, owned if alone and threads > 1 else 1
    reduce = plan_launch(
        kernel, operands, args, units, threads, size=unit, chunk_multiple=together, chunk=chunk, status_mask=mask
    )
    reduce = read_in_tiles(reduce, view, dtype, together, copies_isnan)
    merge = _plan_merge(accumulator, slots, count) if slots > 1 else None
    plan = reduce.then(merge) if merge else reduce
    identities = _identities(accumulator, slots * count, layout.shape) if slots * count <= tuned.narrow_row else None
    return MinMaxReduction(plan, accumulator, identities, slots * count, layout.shape)


def _plan_merge(accumulator: np.dtype[Any], slots: int, count: int) -> LaunchPlan:
    """Plan to merge the partial results of slots, so many minima and maxima each."""
    kernel = kernel_for(columns.merge_partials, PartialOperands(accumulator, accumulator), "minmax")
    args = kernel_args(_NO_LAYOUT, partials=slots, partial_stride=count)
    return plan_launch(kernel, (LO, HI, NONE, NONE, NONE), args, count, 1)


def read_in_tiles(
    plan: LaunchPlan, view: View, dtype: np.dtype[Any], chunk_multiple: int, copies_isnan: bool = False
) -> LaunchPlan:
    """Return the plan of a reduction for an array in its memory."""
    if view.memory.x is None:
        return plan
    x = Operand(element_type(dtype).bitwidth, *view.memory.x, copies_isnan=copies_isnan)
    tiled = in_tiles(plan, view.shape, x, Operand(0), chunk_multiple=chunk_multiple, args=IN_TILE)
    assert tiled is not None
    return tiled


class HistogramReduction(NamedTuple):
    """A reduction to histograms: partial results of threads, each of them of neighbouring elements, side by side.

    Attributes
    ----------
    plan : LaunchPlan
        The launch.
    slots, parts, partials, width : int
        Partial results of threads, histograms in each, partial results of one, and bins of each.
    dtype : dtype
        Of counts.
    """

    plan: LaunchPlan
    slots: int
    parts: int
    partials: int
    width: int
    dtype: np.dtype[Any]

    def begin(self) -> tuple[Array, Array, Array]:
        """Return counts, minima and maxima of nothing."""
        counts = np.zeros((self.slots, self.parts, self.partials, self.width), self.dtype)
        return counts, *_identities(np.dtype(np.float64), self.slots * self.parts, (self.slots, self.parts))


def plan_histogram(view: View, bins: int, nan: str, dtype: np.dtype[Any]) -> HistogramReduction:
    """Plan the histograms of the parts of an array, which follow each other."""
    size, parts, length = math.prod(view.shape), view.layout.blocks, view.layout.block
    width, threads = 2 * bins, threadpool.threads_for(size)
    alone = parts >= 4 * threads  # each thread has parts of its own
    accumulator = np.dtype(np.int32 if size < 1 << 31 else np.int64)
    nbytes, tuned = parts * width * accumulator.itemsize, tuning.current()
    threads = threads if alone else max(1, min(threads, tuned.partial_histograms // nbytes))
    slots = 1 if alone else threads
    partials = PARTIALS if slots * nbytes * PARTIALS <= tuned.partial_histograms else 1
    kernel = kernel_for(
        runs, HistogramOperands(dtype, np.dtype(np.float64), np.dtype(np.float64), accumulator), "histogram", nan=nan
    )
    stride = parts if slots > 1 else 0
    args = kernel_args(view.layout, (-bins, bins), size=width * partials, partials=partials, partial_stride=stride)
    chunk_multiple = length if alone else 1
    plan = plan_launch(
        kernel, (X, LO, HI, SUMS, NONE), args, size, threads, chunk_multiple=chunk_multiple, status_mask=ALL_STATUS
    )
    plan = read_in_tiles(plan, view, dtype, chunk_multiple)
    return HistogramReduction(plan, slots, parts, partials, width, accumulator)


def plan_parameters(spec: OpSpec, accumulator: np.dtype[Any], count: int) -> LaunchPlan:
    """Plan to turn so many ranges into scale and zero point."""
    scheme = spec.range_scheme
    kinds = RangeOperands(
        accumulator, accumulator, spec.arithmetic.scale_format or scheme.scale_dtype, scheme.zero_point_dtype
    )
    loop = columns.many_ranges if count >= tuning.current().batched_blocks else columns.ranges
    kernel = kernel_for(loop, kinds, "quantize", spec.arithmetic, range_scheme=scheme.name)
    threads = threadpool.threads_for(count)
    return plan_launch(kernel, (LO, HI, SCALE, ZERO, NONE), kernel_args(_NO_LAYOUT, spec.code_range), count, threads)


class RangedPlan(NamedTuple):
    """A launch plan that takes parameters from ranges and quantizes, and the reduction of two passes."""

    plan: LaunchPlan
    reduction: MinMaxReduction | None

    @property
    def begin(self) -> Callable[[], tuple[Array, ...]]:
        """What returns the last operands: minima and maxima, where there are two passes."""
        return self.reduction.begin if self.reduction else tuple


def plan_ranged(
    spec: OpSpec, view: View, src: np.dtype[Any], dst: np.dtype[Any], one_pass: bool = False
) -> RangedPlan | None:
    """Plan one pass if it can be, else two unless `one_pass`; None where Python has something to do between them."""
    fused = _plan_fused(spec, view, src, dst, one_pass)
    if fused is not None:
        return RangedPlan(fused, None)
    marks_blocks = spec.nan == "keep" and spec.arithmetic.scale_format is not None
    if one_pass or marks_blocks:
        return None
    scheme = spec.range_scheme
    second = plan_elementwise(spec.given, view, src, dst, scheme.scale_dtype, scheme.zero_point_dtype, backward=True)
    reduction = plan_minmax(view, spec.nan, src)
    ranges = plan_parameters(spec, reduction.dtype, math.prod(reduction.shape))
    return RangedPlan(reduction.plan.then(ranges, second), reduction)


def _compute_size(arithmetic: Arithmetic, kinds: ElementOperands) -> int:
    """Return the bytes of a number of the type that a kernel computes in."""
    if arithmetic.rule.compute:
        return np.dtype(arithmetic.rule.compute).itemsize
    if isinstance(kinds.scale, np.dtype):
        return kinds.scale.itemsize
    return 8 if is_wide(kinds[0]) else 4


def _plan_fused(
    spec: OpSpec, view: View, src: np.dtype[Any], dst: np.dtype[Any], refuse_rereads: bool
) -> LaunchPlan | None:
    """Plan one pass, rereads refused as in `in_tiles`; None where blocks leave the cache or are too few for threads."""
    op, arithmetic, nan, scheme = spec.op, spec.arithmetic, spec.nan, spec.range_scheme
    kinds = element_types(spec, src, dst, scheme.scale_dtype, scheme.zero_point_dtype)
    (shape, layout, memory), tuned = view, tuning.current()
    size = math.prod(shape)
    threads = threadpool.threads_for(size)
    width = 1 if layout.inner == 1 else columns.COLUMN_BYTES // _compute_size(arithmetic, kinds)
    few, large = threads > 1 and layout.parameters < 4 * threads, layout.block * width > tuned.fused_block
    # rows that fill no register are taken as one in two passes: 2**14 float32 in rows of 8 take 27 us in one pass, 7 in
    # two; not fewer elements in all than half a row of such
    narrow = layout.inner < width // columns.COLUMN_REGISTERS and layout.block * layout.inner >= FEWEST // 2
    if few or large or narrow or not layout.owned:
        return None
    row_bytes = layout.inner * element_type(kinds.src).bitwidth // 8
    aliased = layout.block > tuned.aliased_rows and row_bytes % tuned.aliased_stride == 0
    if layout.inner > 1 and (aliased or (layout.block > tuned.fused_rows and outgrows_cache(4 * bytes_of(size, src)))):
        return None
    options = {"nan": nan, "range_scheme": scheme.name}
    if layout.inner > 1:
        if memory != NOT_STRIDED:
            return None
        units = layout.outer * layout.blocks * -(-layout.inner // width)
        kernel = kernel_for(columns.block_columns, kinds, op, arithmetic, **options)
        args = kernel_args(layout, spec.code_range, streaming=store_mode(size, *kinds[:2]))
        return plan_launch(kernel, VALUES, args, units, threads, size=layout.block * min(width, layout.inner))
    batched = layout.block in BLOCK_SIZES and layout.length % layout.block == 0
    if batched and layout.parameters >= tuned.batched_blocks:
        kernel = kernel_for(blocks, kinds, op, arithmetic, block=layout.block, **options)
        args = kernel_args(layout, spec.code_range, streaming=store_mode(size, *kinds[:2]))
        plan = plan_launch(kernel, VALUES, args, layout.parameters, threads, size=layout.block)
        return _tiled_if_strided(
            plan, shape, kinds, memory, unit=layout.block, whole=layout.block, refuse_rereads=refuse_rereads
        )
    kernel = kernel_for(runs, kinds, op, arithmetic, **options)
    unit = owned_units(layout)
    args = kernel_args(layout, spec.code_range, streaming=store_mode(size, *kinds[:2], layout, unit))
    plan = plan_launch(kernel, VALUES, args, size, threads, chunk_multiple=unit)
    return _tiled_if_strided(plan, shape, kinds, memory, whole=unit, refuse_rereads=refuse_rereads)
