"""Resolve operations that take scale and zero point from the range of the array."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.launch import BoundLaunch, Execute, launcher, nothing
from fastq.dispatch.planner import (
    FEWEST,
    RUNS,
    bytes_of,
    element_types,
    has_short_runs,
    kernel_args,
    kernel_for,
    outgrows_cache,
    owned_units,
    plan_elementwise,
    store_mode,
    tiled_if_fits,
    with_tensor,
)
from fastq.dispatch.range_search import RangeSearch
from fastq.dispatch.reduction import Extremes, MinMaxReduction, NanParts, accumulator_of, plan_minmax
from fastq.dispatch.refusal import refuse_range
from fastq.dispatch.spec import Arithmetic, OpSpec, spec_of
from fastq.dispatch.strides import (
    NO_LAYOUT,
    NOT_STRIDED,
    Arrangement,
    Result,
    View,
    arrange,
    arrange_packed,
    codes_result,
    extent_of,
    result_of,
)
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import (
    HI,
    LO,
    NONE,
    SCALE,
    VALUES,
    ZERO,
    Checks,
    LaunchPlan,
    bind,
    never_fits,
    plan_launch,
    run,
)
from fastq.formats.floats import FLOAT_FORMATS, is_real
from fastq.formats.granularity import ARRAY
from fastq.kernels.args import BLOCK_SIZES, COLUMN_BYTES, COLUMN_REGISTERS, ElementOperands, RangeOperands
from fastq.kernels.status import HAS_INFINITE_RANGE
from fastq.kernels.storage import bits_of, is_wide
from fastq.requests.parameters import TENSOR_SCALES
from fastq.requests.values import Request, by_range, dtype_of_fakes, shape_of_ranges
from fastq.results import QParams, QuantizedArray, without_checks
from fastq.system import tuning
from fastq.system.arguments import native

Array = NDArray[Any]
Quantized = tuple[Array, QParams]  # codes, or values of fake quantization, and the parameters


def quantize(call: Call, x: Array, out: Any) -> BoundCall:
    """Resolve `fastq.quantize` without parameters."""
    request = by_range(x.dtype, x.ndim, call.options)
    launch = _bound(x, out, request, spec_of("quantize", request, True), codes_result(x, request.qtype, out))
    return lambda x, out, *_: without_checks(QuantizedArray, *launch(x, out), x.shape)


def fake_quantize(call: Call, x: Array, out: Any) -> BoundCall:
    """Resolve `fastq.fake_quantize` without parameters."""
    request = by_range(x.dtype, x.ndim, call.options)
    result = result_of(x.shape, dtype_of_fakes(x.dtype), out, like=x)
    launch = _bound(x, out, request, spec_of("fake", request, True), result)
    return lambda x, out, *_: launch(x, out)[0]


def choose_qparams(call: Call, x: Array) -> BoundCall:
    """Resolve `fastq.choose_qparams`."""
    request = by_range(x.dtype, x.ndim, call.options)
    launch = _bound(x, None, request, spec_of("quantize", request, True), None)
    return lambda x, *_: launch(x, None)[1]


def qparams_of_ranges(call: Call, lo: Array, hi: Array) -> BoundCall:
    """Resolve parameters of ranges that are known, each of which belongs to a part."""
    request = by_range(lo.dtype, lo.ndim, call.options)
    spec = spec_of("quantize", request, True)
    dtype = accumulator_of(native(lo.dtype))
    plan = bind(plan_parameters(spec, dtype, lo.size)) if lo.size else nothing

    @in_standard_mode
    def execute(lo: Array, hi: Array, scale: Array, zero_point: Array, *_: object) -> int:
        ends = (np.ascontiguousarray(end, dtype) + dtype.type(0) for end in (lo, hi))  # never -0.0
        return plan(None, None, scale, zero_point, None, *ends)

    refuse = functools.partial(_refuse_ranges, nan=request.nan)
    launch = _filled(request, spec, None, None, lo.shape, BoundLaunch(refuse, execute, execute))
    return lambda lo, hi, *_: launch(lo, hi)[1]


def _refuse_ranges(status: int, lo: Array, hi: Array, *_: object, nan: str) -> None:
    """Raise the error of a status with all ends of ranges."""
    refuse_range(status, np.stack([lo, hi]), nan=nan)


def _bound(
    x: Array, out: Any, request: Request, spec: OpSpec, result: Result | None
) -> Callable[[Array, Any], Quantized]:
    """Return what does an operation: in one launch if that can be, else in steps. Without a result it chooses only."""
    target, refuse = None if out is None else np.asarray(out), functools.partial(refuse_range, nan=request.nan)
    if not x.size:
        shape = shape_of_ranges(x.shape, request.granularity)
        return _filled(request, spec, result, None, shape, BoundLaunch(refuse, nothing, nothing))
    arrangement = None if request.search is not None or result is None else _arrangement_of(x, target, request, spec)
    if result is not None and arrangement is not None:
        ranged = _plan(spec, arrangement, x, target, result, one_pass=not arrangement.is_in_order(x))
        if ranged is not None:
            launch = _launch_at_once(x, target, request, spec, result, ranged, arrangement, refuse)
            return _filled(request, spec, result, arrangement, arrangement.layout.shape, launch, ranged.begin)
    choice = ParameterChoice(x, request, spec)
    begin: Callable[[], tuple[Array, ...]] = tuple
    if result is None:
        launch = BoundLaunch(refuse, choice.execute, choice.launch or choice.execute)
        begin = choice.reduce.plan.begin if choice.launch else begin
    else:
        launch = _launch_in_steps(choice, x, target, request, spec, result, refuse)
    return _filled(request, spec, result, choice.arrangement, choice.arrangement.layout.shape, launch, begin)


def _filled(
    request: Request,
    spec: OpSpec,
    result: Result | None,
    where: Arrangement | None,
    shape: tuple[int, ...],
    bound: BoundLaunch,
    begin: Callable[[], tuple[Array, ...]] = tuple,
) -> Callable[[Array, Any], Quantized]:
    """Return what launches on new parameters, and returns them with the result.

    A closure, which takes half the time of a method; `where` is how kernels see parameters, `shape` theirs.
    """
    qtype, scheme = request.qtype, spec.range_scheme
    own = FLOAT_FORMATS[qtype.scale_element].dtype if qtype.scale_element else None
    own_zero = qtype.storage if qtype.element else None
    arranged = None if where is None or where.order is None else where.from_kernel
    new: Callable[[], Any] = type(None) if result is None else result.new
    new_scale = functools.partial(np.empty, shape, scheme.scale_dtype)
    new_zero_point = functools.partial(np.zeros, shape, scheme.zero_point_dtype)
    new_tensor = functools.partial(np.ones, (), np.float32)
    launch, settle, with_values = bound.launch, bound.settle, request.template.with_values

    def call(x: Array, out: Any) -> Quantized:
        result, scale, zero_point = new() if out is None else out, new_scale(), new_zero_point()
        status = launch(x, result, scale, zero_point, None, *begin())
        if status:
            settle(status, x, result, scale, zero_point)
        if arranged is not None:
            scale, zero_point = arranged(scale), arranged(zero_point)
        if own is not None:
            scale = scale.view(own)
        if own_zero is not None:
            zero_point = zero_point.view(own_zero)
        return result, with_values(scale, zero_point)

    def call_with_tensor(x: Array, out: Any) -> Quantized:
        result, scale, zero_point, tensor = new() if out is None else out, new_scale(), new_zero_point(), new_tensor()
        status = launch(x, result, scale, zero_point, tensor)
        if status:
            settle(status, x, result, scale, zero_point, tensor)
        if arranged is not None:
            scale, zero_point = arranged(scale), arranged(zero_point)
        params = with_values(scale.view(own), zero_point.view(own_zero))  # type: ignore[arg-type]
        vars(params)["tensor_scale"] = tensor
        return result, params

    return call_with_tensor if qtype.has_tensor_scale else call


# --- at once ----------------------------------------------------------------------------------------------------------


def _launch_at_once(
    x: Array,
    out: Array | None,
    request: Request,
    spec: OpSpec,
    result: Result,
    ranged: RangedPlan,
    arrangement: Arrangement,
    refuse: Callable[[int, Array], None],
) -> BoundLaunch:
    """Return one launch of a plan; for a scale of the whole array after the reduction that gives it.

    NaN and infinities are refused by what kernels report; the driver refuses output that shares memory with the input.
    """

    def tensor_for(source: Array) -> TensorScale | None:
        """Return what takes the scale of the whole array, of this memory or other arrays with its strides."""
        return TensorScale(source, request) if request.qtype.has_tensor_scale else None

    def execute_for(source: Array, out: Array) -> Execute:
        ranged = _plan(spec, arrangement, source, out, result)
        return _execute_in_order(source, out) if ranged is None else _executing(ranged, tensor_for(source))

    def _execute_in_order(source: Array, out: Array) -> Execute:
        """Return what goes by way of C order: a copy without gaps may have longer rows, too long for a tile."""

        def execute(x: Array, out: Array, *parameters: Array) -> int:
            x = arrangement.in_order(x)
            target = np.empty_like(x, out.dtype, shape=out.shape)  # in the order of memory of that
            ranged = _plan(spec, arrangement, x, target, result)
            assert ranged is not None  # of memory that goes through no tiles
            status = _executing(ranged, tensor_for(x))(x, target, *parameters)
            out[...] = target
            return status

        return execute

    (low_x, nbytes_x), (low_out, nbytes_out) = extent_of(x), (0, result.nbytes) if out is None else extent_of(out)
    checks = Checks((nbytes_x, nbytes_out, 0, 0), lowest=(low_x, low_out))
    execute = _executing(ranged, tensor_for(x))
    launch: Execute = bind(ranged.plan.checked(checks))
    if request.qtype.has_tensor_scale:
        launch = execute if out is None else never_fits  # new memory is shared with nothing
    return BoundLaunch(refuse, execute, launch, execute_for=execute_for, strides=x.strides)


def _executing(ranged: RangedPlan, tensor_of: TensorScale | None) -> Execute:
    """Return what runs a plan on x, a result and parameters that it writes."""

    def execute(x: Array, out: Array, scale: Array, zero_point: Array, tensor: Array | None = None) -> int:
        status, plan = 0, ranged.plan
        if tensor_of is not None and tensor is not None:
            status = tensor_of(x, tensor)
            plan = with_tensor(plan, float(tensor))
        return status | run(plan, x, out, scale, zero_point, None, *ranged.begin())

    return execute


def _arrangement_of(x: Array, out: Array | None, request: Request, spec: OpSpec) -> Arrangement | None:
    """Return how kernels see arrays at once; None where codes that are packed don't allow it."""
    if spec.packs and spec.arithmetic.code_format is not None:
        return arrange_packed(x.shape, request.granularity, out, spec.arithmetic.code_format.group)
    return arrange(x, out, request.granularity)


def _plan(
    spec: OpSpec, arrangement: Arrangement, x: Array, out: Array | None, result: Result, one_pass: bool = False
) -> RangedPlan | None:
    """Plan for arrays; with `one_pass` not in two, which had better go through x each in its own way."""
    dst = result.dtype
    return plan_ranged(spec, arrangement.view(x, out, dst), native(x.dtype), dst, one_pass)


# --- the plan ---------------------------------------------------------------------------------------------------------


def plan_parameters(spec: OpSpec, accumulator: np.dtype[Any], count: int) -> LaunchPlan:
    """Plan to turn so many ranges into scale and zero point."""
    scheme = spec.range_scheme
    kinds = RangeOperands(
        accumulator, accumulator, spec.arithmetic.scale_format or scheme.scale_dtype, scheme.zero_point_dtype
    )
    loop = "many_ranges" if count >= tuning.current().batched_blocks else "ranges"
    kernel = kernel_for(f"traversal.columns.{loop}", kinds, "quantize", spec.arithmetic, range_scheme=scheme.name)
    threads = threadpool.threads_for(count)
    return plan_launch(kernel, (LO, HI, SCALE, ZERO, NONE), kernel_args(NO_LAYOUT, spec.code_range), count, threads)


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
    (shape, layout, memory), tuned = view, tuning.current()
    size, parameters, owned = math.prod(shape), layout.parameters, layout.owned
    threads = threadpool.threads_for(size)
    kinds = element_types(spec, src, dst, scheme.scale_dtype, scheme.zero_point_dtype)
    width = 1 if layout.inner == 1 else COLUMN_BYTES // _compute_size(arithmetic, kinds)
    few, large = threads > 1 and parameters < 4 * threads, layout.block * width > tuned.fused_block
    # rows that fill no register are taken as one in two passes: 2**14 float32 in rows of 8 take 27 us in one pass, 7 in
    # two; not fewer elements in all than half a row of such
    narrow = layout.inner < width // COLUMN_REGISTERS and layout.block * layout.inner >= FEWEST // 2
    if few or large or narrow or not owned or has_short_runs(layout, op, *kinds[:3]):
        return None
    options = {"nan": nan, "range_scheme": scheme.name}
    if layout.inner > 1:
        row_bytes = layout.inner * bits_of(kinds.src) // 8
        aliased = layout.block > tuned.aliased_rows and row_bytes % tuned.aliased_stride == 0
        far_apart = layout.block > tuned.fused_rows and outgrows_cache(4 * bytes_of(size, src))
        if aliased or far_apart or memory != NOT_STRIDED:
            return None
        units = layout.outer * layout.blocks * -(-layout.inner // width)
        kernel = kernel_for("traversal.columns.block_columns", kinds, op, arithmetic, **options)
        args = kernel_args(layout, spec.code_range, streaming=store_mode(size, *kinds[:2], codes=op == "quantize"))
        return plan_launch(kernel, VALUES, args, units, threads, size=layout.block * min(width, layout.inner))
    batched = layout.block in BLOCK_SIZES and layout.length % layout.block == 0
    if batched and parameters >= tuned.batched_blocks:
        kernel = kernel_for("traversal.blocks.blocks", kinds, op, arithmetic, block=layout.block, **options)
        args = kernel_args(layout, spec.code_range, streaming=store_mode(size, *kinds[:2], codes=op == "quantize"))
        plan = plan_launch(kernel, VALUES, args, parameters, threads, size=layout.block)
        return tiled_if_fits(
            plan, shape, memory, kinds[:2], unit=layout.block, whole=layout.block, refuse_rereads=refuse_rereads
        )
    kernel = kernel_for(RUNS, kinds, op, arithmetic, **options)
    unit = owned_units(layout)
    streaming = store_mode(size, *kinds[:2], layout, unit, codes=op == "quantize")
    args = kernel_args(layout, spec.code_range, streaming=streaming)
    plan = plan_launch(kernel, VALUES, args, size, threads, chunk_multiple=unit)
    return tiled_if_fits(plan, shape, memory, kinds[:2], whole=unit, refuse_rereads=refuse_rereads)


# --- in steps ---------------------------------------------------------------------------------------------------------


class TensorScale:
    """Compute the tensor scale, with which the largest block scale is the largest float8_e4m3fn number."""

    def __init__(self, x: Array, request: Request) -> None:
        row = request.qtype.float_format
        assert row is not None
        self.compute = request.compute
        self.divisor = self.compute.type(FLOAT_FORMATS[request.qtype.scale_element].max * row.max)
        self.reduce = Extremes(x, ARRAY, request.nan)

    @in_standard_mode
    @np.errstate(under="ignore")
    def __call__(self, x: Array, tensor: Array) -> int:
        """Write the scale, and return the status."""
        lo, hi, status = self.reduce(x)
        largest = np.maximum(np.maximum(-lo.astype(self.compute), hi.astype(self.compute)), self.compute.type(0))
        if largest == np.inf:
            status |= HAS_INFINITE_RANGE
        least, most = TENSOR_SCALES
        tensor[...] = min(max(largest / self.divisor, least), most) if largest else 1
        return status


class ParameterChoice:
    """Choose scale and zero point from the ranges of arrays of the same dtype, shape and strides.

    Attributes
    ----------
    arrangement : Arrangement
        How kernels see x; parameters are in that order, in the dtypes that they write.
    launch : callable or None
        What reduces and chooses at once, where nothing is between the two.
    """

    def __init__(self, x: Array, request: Request, spec: OpSpec) -> None:
        where, scale_format = request.granularity, spec.arithmetic.scale_format
        self.tensor_of = TensorScale(x, request) if request.qtype.has_tensor_scale else None
        self.reduce = Extremes(x, where, request.nan)
        self.arrangement = self.reduce.arrangement
        self.search = None if request.search is None else RangeSearch(x, spec, where, request.compute, request.search)
        accumulator = self.reduce.dtype if self.search is None else request.compute
        self.plan = plan_parameters(spec, accumulator, self.arrangement.layout.parameters)
        marks = request.nan == "keep" and scale_format is not None and is_real(x.dtype)
        self.nan_parts = NanParts(x, where) if marks else None
        self.nan_scale = FLOAT_FORMATS[scale_format.element].nan if scale_format else None
        at_once = self.tensor_of is None and self.search is None and not marks
        self.launch = bind(self.reduce.plan.plan.then(self.plan)) if at_once else None

    def execute(self, x: Array, out: Any, scale: Array, zero_point: Array, tensor: Array | None = None) -> int:
        """Write parameters; return the status."""
        status, factor = 0, 0.0
        if self.tensor_of is not None and tensor is not None:
            status = self.tensor_of(x, tensor)
            factor = float(tensor)
        lo, hi, seen = self.reduce(x)
        status |= seen
        if self.search is not None and not status:
            order = self.arrangement
            low, high = self.search(x, order.from_kernel(lo), order.from_kernel(hi), factor)
            lo, hi = order.to_kernel(low), order.to_kernel(high)
        status |= run(with_tensor(self.plan, factor), None, None, scale, zero_point, None, lo, hi)
        if self.nan_parts is not None:
            scale[self.nan_parts(x)] = self.nan_scale
        return status


def _launch_in_steps(
    choice: ParameterChoice,
    x: Array,
    out: Array | None,
    request: Request,
    spec: OpSpec,
    result: Result,
    refuse: Callable[[int, Array], None],
) -> BoundLaunch:
    """Return launches with Python between them.

    Strided memory goes through buffers twice; parameters of blocks with NaN are marked.
    """
    dtypes = x.dtype, result.dtype, spec.range_scheme.scale_dtype, spec.range_scheme.zero_point_dtype
    order = choice.arrangement.parameter_order or tuple(range(x.ndim))
    plan: Callable[..., LaunchPlan] = functools.partial(plan_elementwise, backward=True)
    way = launcher(spec.given, request.granularity, x, out, x.shape, dtypes, plan, order)
    from_kernel = choice.arrangement.from_kernel

    def execute(x: Array, out: Array, scale: Array, zero_point: Array, tensor: Array | None = None) -> int:
        status = choice.execute(x, out, scale, zero_point, tensor)
        return status or way.execute(x, out, from_kernel(scale), from_kernel(zero_point), tensor)

    def execute_for(x: Array, out: Array) -> Execute:
        anew = ParameterChoice(x, request, spec)
        inner = _launch_in_steps(anew, x, out, request, spec, result, refuse).execute

        def execute(x: Array, out: Array, scale: Array, zero_point: Array, tensor: Array | None = None) -> int:
            layout = anew.arrangement.layout.shape
            own = np.empty(layout, scale.dtype), np.zeros(layout, zero_point.dtype)
            status = inner(x, out, *own, tensor)
            for given, chosen in zip((scale, zero_point), own, strict=True):
                from_kernel(given)[...] = anew.arrangement.from_kernel(chosen)
            return status

        return execute

    launch: Execute = execute if out is None else never_fits  # new memory is shared with nothing
    return BoundLaunch(refuse, execute, launch, execute_for=execute_for, strides=x.strides)
