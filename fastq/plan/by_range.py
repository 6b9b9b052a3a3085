"""Resolve operations that take scale and zero point from the range of the array."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import driver, threadpool
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.formats.floats import FLOAT_FORMATS, is_real
from fastq.formats.granularity import ARRAY
from fastq.kernels.args import (
    BLOCK_SIZES,
    COLUMN_BYTES,
    COLUMN_REGISTERS,
    DRAWN_TOGETHER,
    ElementOperands,
    NoisyOperands,
    RangeOperands,
)
from fastq.kernels.status import HAS_INFINITE_RANGE
from fastq.kernels.storage import bits_of, is_wide, register_elements
from fastq.plan import arrange, kernel_call
from fastq.plan.cache import BoundCall, Call
from fastq.plan.launch import BoundLaunch, Execute, launcher, nothing
from fastq.plan.noise import words_of
from fastq.plan.range_search import RangeSearch
from fastq.plan.reduction import Extremes, NanParts, accumulator_of, plan_minmax
from fastq.plan.refusal import refuse_range
from fastq.plan.spec import Arithmetic, OpSpec, spec_of
from fastq.requests.importance import as_importance
from fastq.requests.noise import Noise
from fastq.requests.parameters import TENSOR_SCALES
from fastq.requests.values import Request, by_range, dtype_of_fakes, shape_of_ranges
from fastq.results import QParams, QuantizedArray, without_checks
from fastq.system import tuning
from fastq.system.arguments import native

Array = NDArray[Any]
Quantized = tuple[Array, QParams]  # codes, or values of fake quantization, and the parameters


def quantize(call: Call, x: Array, out: Any, importance: Any) -> BoundCall:
    """Resolve `fastq.quantize` without parameters."""
    request = by_range(x.dtype, x.ndim, call.options, importance is not None)
    work = _Work(request, spec_of("quantize", request, True), arrange.codes_result(x, request.qtype, out))
    launch = work.bound(x, out, importance)

    def quantized(
        x: Array, out: Any, importance: Any, b: None, qparams: None, noise: Noise | None = None
    ) -> QuantizedArray:
        return without_checks(QuantizedArray, *launch(x, out, importance, noise), x.shape)

    return quantized


def fake_quantize(call: Call, x: Array, out: Any, importance: Any) -> BoundCall:
    """Resolve `fastq.fake_quantize` without parameters."""
    request = by_range(x.dtype, x.ndim, call.options, importance is not None)
    result = arrange.result_of(x.shape, dtype_of_fakes(x.dtype), out, like=x)
    launch = _Work(request, spec_of("fake", request, True), result).bound(x, out, importance)
    return lambda x, out, importance, b, qparams, noise=None: launch(x, out, importance, noise)[0]


def choose_qparams(call: Call, x: Array, out: None, importance: Any) -> BoundCall:
    """Resolve `fastq.choose_qparams`."""
    request = by_range(x.dtype, x.ndim, call.options, importance is not None)
    launch = _Work(request, spec_of("quantize", request, True)).bound(x, None, importance)
    return lambda x, out, importance, *_: launch(x, None, importance)[1]


def qparams_of_ranges(call: Call, lo: Array, hi: Array) -> BoundCall:
    """Resolve parameters of ranges that are known, each of which belongs to a part."""
    request = by_range(lo.dtype, lo.ndim, call.options)
    spec, dtype = spec_of("quantize", request, True), accumulator_of(native(lo.dtype))
    plan = driver.bind(plan_parameters(spec, dtype, lo.size)) if lo.size else nothing

    @in_standard_mode
    def execute(lo: Array, hi: Array, scale: Array, zero_point: Array, *_: object) -> int:
        ends = (np.ascontiguousarray(end, dtype) + dtype.type(0) for end in (lo, hi))  # never -0.0
        return plan(None, None, scale, zero_point, None, *ends)

    def refuse(status: int, lo: Array, hi: Array, *_: object) -> None:
        refuse_range(status, np.stack([lo, hi]), nan=request.nan)

    launch = _Work(request, spec).filled(BoundLaunch(refuse, execute, execute), shape=lo.shape)
    return lambda lo, hi, *_: launch(lo, hi, None)[1]


class _Work(NamedTuple):
    """The work of a call that computes parameters from ranges; it keeps no array."""

    request: Request
    spec: OpSpec
    result: arrange.Result | None = None  # None: only parameters are requested

    def refuse(self, status: int, *operands: Any) -> None:
        """Raise the error of a status."""
        refuse_range(status, *operands, nan=self.request.nan)

    def bound(self, x: Array, out: Any, importance: Any) -> Callable[..., Quantized]:
        """Return what does it: in one launch if that can be, else in steps."""
        if importance is not None:
            as_importance(importance, x.shape, self.request)
        target, request = None if out is None else np.asarray(out), self.request
        if not x.size:
            shape = shape_of_ranges(x.shape, request.granularity)
            return self.filled(BoundLaunch(self.refuse, nothing, nothing), shape=shape)
        apart = request.search is not None or self.result is None
        view = None if apart else self.seen(x, target)
        if view is not None and self.result is not None:
            kinds = native(x.dtype), self.result.dtype
            plan = functools.partial(plan_ranged, self.spec, src=kinds[0], dst=kinds[1], draws=request.stochastic)
            # two passes had better go through x each in its own way
            if (ranged := plan(view, one_pass=not (view.direct or view.is_in_order(x)))) is not None:
                return self.filled(self.at_once(plan, view, ranged, x, target), view, begin=ranged.begin)
        choice = ParameterChoice(x, request, self.spec)
        if self.result is not None:
            return self.filled(self.in_steps(choice, x, target), choice.view)
        launch = BoundLaunch(self.refuse, choice.execute, choice.launch or choice.execute)
        return self.filled(launch, choice.view, begin=choice.reduce.plan.begin if choice.launch else tuple)

    def filled(
        self,
        bound: BoundLaunch,
        view: arrange.View | None = None,
        shape: tuple[int, ...] = (),
        begin: Callable[[], tuple[Any, ...]] = tuple,
    ) -> Callable[..., Quantized]:
        """Return what launches on new parameters, and returns them with the result.

        A closure, which takes half the time of a method; `view` is how kernels see parameters, `shape` theirs. `begin`
        makes the operands after these; noise comes last, after a scale of the array and importance, or None.
        """
        request, scheme, qtype = self.request, self.spec.range_scheme, self.request.qtype
        shape = shape if view is None else view.layout.shape
        own = FLOAT_FORMATS[qtype.scale_element].dtype if qtype.scale_element else None
        own_zero, has_tensor = qtype.storage if qtype.element else None, qtype.has_tensor_scale
        arranged = None if view is None or view.order is None else view.from_kernel
        new: Callable[[], Any] = type(None) if self.result is None else self.result.new
        new_scale = functools.partial(np.empty, shape, scheme.scale_dtype)
        new_zero_point = functools.partial(np.zeros, shape, scheme.zero_point_dtype)
        others = _new_tensor_scale if has_tensor else tuple if request.stochastic else begin
        launch, settle, with_values = bound.launch, bound.settle, request.template.with_values
        kept = 3 if request.stochastic else 2 if request.search is not None else 1  # of the operands after parameters

        def call(x: Array, out: Any, importance: Any, noise: Noise | None = None) -> Quantized:
            result, scale, zero_point, more = new() if out is None else out, new_scale(), new_zero_point(), others()
            if importance is not None or noise is not None:
                weights = None if importance is None else _as_importance(importance, x.shape, request)
                more = more[0] if has_tensor else None, weights, *(() if noise is None else (noise,))
            status = launch(x, result, scale, zero_point, *more)
            if status:
                settle(status, x, result, scale, zero_point, *more[:kept])
            if arranged is not None:
                scale, zero_point = arranged(scale), arranged(zero_point)
            if own is not None:
                scale = scale.view(own)
            if own_zero is not None:
                zero_point = zero_point.view(own_zero)
            params = with_values(scale, zero_point)
            if has_tensor:
                vars(params)["tensor_scale"] = more[0]
            return result, params

        return call

    # --- at once ------------------------------------------------------------------------------------------------------

    def seen(self, x: Array, out: Array | None) -> arrange.View | None:
        """Return how kernels see arrays at once; None where codes that are packed don't allow it."""
        assert self.result is not None
        packed, granularity = self.spec.packed_format, self.request.granularity
        if packed is None:
            return arrange.arrange(x, out, granularity, self.result.dtype)
        view = arrange.arrange_packed(x.shape, granularity, out, packed.group)
        return None if view is None else view.of(x, out)

    def at_once(
        self,
        plan: Callable[[arrange.View], RangedPlan | None],
        view: arrange.View,
        ranged: RangedPlan,
        x: Array,
        out: Array | None,
    ) -> BoundLaunch:
        """Return one launch of a plan; for a scale of the whole array after the reduction that gives it.

        NaN and infinities are refused by the reports of kernels; the driver refuses output that shares memory with x.
        """

        def in_order(x: Array, out: Array, *parameters: Array) -> int:
            x = view.in_order(x)  # a copy without gaps may have longer rows, too long for a tile
            target = np.empty_like(x, out.dtype, shape=out.shape)  # in the order of memory of that
            ranged = plan(view.of(x, target))
            assert ranged is not None  # of memory that goes through no tiles
            status = self.executing(view, ranged, x)(x, target, *parameters)
            out[...] = target
            return status

        def execute_for(source: Array, out: Array) -> Execute:
            ranged = plan(view.of(source, out))
            return in_order if ranged is None else self.executing(view, ranged, source)

        assert self.result is not None
        execute = self.executing(view, ranged, x)
        bound: Execute = driver.bind(ranged.plan, driver.Checks.of(x, out, self.result.nbytes))

        def launch_drawing(*operands: Any) -> int:
            return bound(*operands[:4], *ranged.operands(view, operands[-1]))

        launch = launch_drawing if self.request.stochastic else bound
        if self.request.qtype.has_tensor_scale:  # new memory is shared with nothing
            launch = execute if out is None else driver.never_fits
        return BoundLaunch(self.refuse, execute, launch, execute_for=execute_for, strides=x.strides)

    def executing(self, view: arrange.View, ranged: RangedPlan, source: Array) -> Execute:
        """Return what runs a plan on arrays with the strides of a source, a result and parameters that it writes."""
        tensor_of = TensorScale(source, self.request) if self.request.qtype.has_tensor_scale else None

        def execute(
            x: Array,
            out: Array,
            scale: Array,
            zero_point: Array,
            tensor: Array | None = None,
            importance: None = None,
            noise: Noise | None = None,
        ) -> int:
            status, plan = 0, ranged.plan
            if tensor_of is not None and tensor is not None:
                status = tensor_of(x, tensor)
                plan = kernel_call.with_tensor(plan, float(tensor))
            return status | driver.run(plan, x, out, scale, zero_point, *ranged.operands(view, noise))

        return execute

    # --- in steps -----------------------------------------------------------------------------------------------------

    def in_steps(self, choice: ParameterChoice, x: Array, out: Array | None) -> BoundLaunch:
        """Return launches with Python between them, in which strided memory goes through buffers twice."""
        (request, spec, result), scheme = self, self.spec.range_scheme
        assert result is not None
        dtypes = x.dtype, result.dtype, scheme.scale_dtype, scheme.zero_point_dtype
        order = choice.view.parameter_order or tuple(range(x.ndim))
        plan: Callable[..., driver.LaunchPlan] = functools.partial(kernel_call.plan_elementwise, backward=True)
        given = spec.given.drawn if request.stochastic else spec.given
        way = launcher(given, request.granularity, x, out, x.shape, dtypes, plan, order)
        from_kernel = choice.view.from_kernel

        def execute(
            x: Array,
            out: Array,
            scale: Array,
            zero_point: Array,
            tensor: Array | None = None,
            importance: Array | None = None,
            *noise: Noise,
        ) -> int:
            status = choice.execute(x, out, scale, zero_point, tensor, importance)
            return status or way.execute(x, out, from_kernel(scale), from_kernel(zero_point), tensor, *noise)

        def execute_for(x: Array, out: Array) -> Execute:
            anew = ParameterChoice(x, request, spec)
            inner = self.in_steps(anew, x, out).execute

            def execute(x: Array, out: Array, scale: Array, zero_point: Array, *others: Any) -> int:
                layout = anew.view.layout.shape
                own = np.empty(layout, scale.dtype), np.zeros(layout, zero_point.dtype)
                status = inner(x, out, *own, *others)
                for given, chosen in zip((scale, zero_point), own, strict=True):
                    from_kernel(given)[...] = anew.view.from_kernel(chosen)
                return status

            return execute

        launch: Execute = execute if out is None else driver.never_fits  # new memory is shared with nothing
        return BoundLaunch(self.refuse, execute, launch, execute_for=execute_for, strides=x.strides)


_as_importance = in_standard_mode(as_importance)


def _new_tensor_scale() -> tuple[Array]:
    return (np.ones((), np.float32),)


# --- the plan ---------------------------------------------------------------------------------------------------------


def plan_parameters(spec: OpSpec, accumulator: np.dtype[Any], count: int) -> driver.LaunchPlan:
    """Plan to turn `count` ranges into scale and zero point."""
    scheme = spec.range_scheme
    kinds = RangeOperands(
        accumulator, accumulator, spec.arithmetic.scale_format or scheme.scale_dtype, scheme.zero_point_dtype
    )
    loop = "many_ranges" if count >= tuning.current().batched_blocks else "ranges"
    kernel = kernel_call.kernel_address(
        f"traversal.columns.{loop}", kinds, "quantize", spec.arithmetic, range_scheme=scheme.name
    )
    operands = driver.LO, driver.HI, driver.SCALE, driver.ZERO, driver.NONE
    args, threads = kernel_call.kernel_args(arrange.NO_LAYOUT, spec.code_range), threadpool.threads_for(count)
    return driver.plan_launch(kernel, operands, args, count, threads)


class RangedPlan(NamedTuple):
    """A launch plan that takes parameters from ranges and quantizes."""

    plan: driver.LaunchPlan
    # a function that returns the operands after zero points: minima and maxima, if there are two passes
    begin: Callable[[], tuple[Array | None, ...]] = tuple

    def operands(self, view: arrange.View, noise: Noise | None) -> tuple[Array | None, ...]:
        """Return the operands after zero points: the keys of random numbers replace sums."""
        begun = self.begin()
        return begun if noise is None else (words_of(noise, view.shape, view.order), *begun[1:])


def plan_ranged(
    spec: OpSpec,
    view: arrange.View,
    src: np.dtype[Any],
    dst: np.dtype[Any],
    one_pass: bool = False,
    draws: bool = False,  # whether codes are rounded at random
) -> RangedPlan | None:
    """Plan one pass if it can be, else two unless `one_pass`; None where Python has something to do between them."""
    fused = _plan_fused(spec.drawn if draws else spec, view, src, dst, one_pass)
    if fused is not None:
        return RangedPlan(fused)
    marks_blocks = spec.nan == "keep" and spec.arithmetic.scale_format is not None
    if one_pass or marks_blocks:
        return None
    scheme = spec.range_scheme
    given, kinds = spec.given.drawn if draws else spec.given, (scheme.scale_dtype, scheme.zero_point_dtype)
    second = kernel_call.plan_elementwise(given, view, src, dst, *kinds, backward=True)
    reduction = plan_minmax(view, spec.nan, src)
    ranges = plan_parameters(spec, reduction.dtype, math.prod(reduction.shape))
    return RangedPlan(reduction.plan.then(ranges, second), reduction.begin)


def _compute_size(arithmetic: Arithmetic, kinds: ElementOperands | NoisyOperands) -> int:
    """Return the bytes of a number of the type that a kernel computes in."""
    if arithmetic.rule.compute:
        return np.dtype(arithmetic.rule.compute).itemsize
    if isinstance(kinds.scale, np.dtype):
        return kinds.scale.itemsize
    return 8 if is_wide(kinds[0]) else 4


def _plan_fused(
    spec: OpSpec, view: arrange.View, src: np.dtype[Any], dst: np.dtype[Any], refuse_rereads: bool
) -> driver.LaunchPlan | None:
    """Plan one pass, rereads refused as in `in_tiles`; None where blocks leave the cache or are too few for threads."""
    shape, layout, memory = view[:3]
    block, unit, scheme, tuned = layout.block, layout.unit, spec.range_scheme, tuning.current()
    size = math.prod(shape)
    threads = threadpool.threads_for(size)
    kinds = kernel_call.element_types(spec, src, dst, scheme.scale_dtype, scheme.zero_point_dtype)
    width = 1 if layout.inner == 1 else COLUMN_BYTES // _compute_size(spec.arithmetic, kinds)
    few = threads > 1 and not kernel_call.enough_for_all(layout.parameters, threads)
    # rows that fill no register are taken as one in two passes (decision D29), unless there are fewer elements in all
    # than half a row of such
    narrow = layout.inner < width // COLUMN_REGISTERS and block * layout.inner >= kernel_call.FEWEST // 2
    if few or narrow or block * width > tuned.fused_block or not unit:
        return None
    lanes = register_elements(*kinds[:3])
    if kernel_call.has_short_runs(layout, spec.op, lanes):
        return None
    if spec.draws and (layout.inner > 1 or unit > DRAWN_TOGETHER):
        return None
    options: dict[str, Any] = {"nan": spec.nan, "range_scheme": scheme.name}
    way: Any = kernel_call.RUNS, size, {"chunk_multiple": unit}, {"whole": unit}, (layout, unit)
    if layout.inner > 1:
        row_bytes = layout.inner * bits_of(kinds.src) // 8
        aliased = block > tuned.aliased_rows and row_bytes % tuned.aliased_stride == 0
        far_apart = block > tuned.fused_rows and kernel_call.outgrows_cache(4 * size, src)
        if aliased or far_apart or memory != arrange.NOT_STRIDED:
            return None
        units = layout.outer * layout.blocks * -(-layout.inner // width)
        way = "traversal.columns.block_columns", units, {"size": block * min(width, layout.inner)}, {}, ()
    elif block in BLOCK_SIZES and layout.length % block == 0 and layout.parameters >= tuned.batched_blocks:
        options["block"], whole = block, {"unit": block, "whole": block}
        way = "traversal.blocks.blocks", layout.parameters, {"size": block}, whole, ()
    else:
        options["together"] = kernel_call.runs_together(layout, lanes)
    loop, units, how, together, stored = way
    kernel = kernel_call.kernel_address(loop, kinds, spec.op, spec.arithmetic, **options)
    streaming = kernel_call.store_mode(size, *kinds[:2], *stored, codes=spec.op == "quantize")
    args = kernel_call.kernel_args(layout, spec.code_range, streaming=streaming)
    plan = driver.plan_launch(kernel, kernel_call.PARAMETERS[spec.draws], args, units, threads, **how)
    return kernel_call.tiled_if_fits(plan, shape, memory, kinds[:2], refuse_rereads=refuse_rereads, **together)


# --- in steps ---------------------------------------------------------------------------------------------------------


class TensorScale:
    """Compute the tensor scale, with which the largest block scale is the largest float8_e4m3fn number."""

    def __init__(self, x: Array, request: Request) -> None:
        row = request.qtype.float_format
        assert row is not None
        self.compute = request.coding.compute
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

    `launch` reduces and chooses at once; it is None if there is something between the two.
    """

    def __init__(self, x: Array, request: Request, spec: OpSpec) -> None:
        where, scale_format = request.granularity, spec.arithmetic.scale_format
        self.tensor_of = TensorScale(x, request) if request.qtype.has_tensor_scale else None
        self.reduce = Extremes(x, where, request.nan)
        self.view = self.reduce.view
        self.search = None if request.search is None else RangeSearch(x, spec, request)
        accumulator = self.reduce.dtype if self.search is None else request.coding.compute
        self.plan = plan_parameters(spec, accumulator, self.view.layout.parameters)
        marks = request.nan == "keep" and scale_format is not None and is_real(x.dtype)
        self.nan_parts = NanParts(x, where) if marks else None
        self.nan_scale = FLOAT_FORMATS[scale_format.element].nan if scale_format else None
        at_once = self.tensor_of is None and self.search is None and not marks
        self.launch = driver.bind(self.reduce.plan.plan.then(self.plan)) if at_once else None

    def execute(
        self,
        x: Array,
        out: Any,
        scale: Array,
        zero_point: Array,
        tensor: Array | None = None,
        importance: Array | None = None,
    ) -> int:
        """Write parameters; return the status."""
        status, factor = 0, 0.0
        if self.tensor_of is not None and tensor is not None:
            status = self.tensor_of(x, tensor)
            factor = float(tensor)
        lo, hi, seen = self.reduce(x)
        status |= seen
        if self.search is not None and not status:
            order = self.view
            low, high = self.search(x, order.from_kernel(lo), order.from_kernel(hi), factor, importance)
            lo, hi = order.to_kernel(low), order.to_kernel(high)
        status |= driver.run(kernel_call.with_tensor(self.plan, factor), None, None, scale, zero_point, None, lo, hi)
        if self.nan_parts is not None:
            scale[self.nan_parts(x)] = self.nan_scale
        return status
