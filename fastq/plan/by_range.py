"""Plan operations that take scale and zero point from the range of the array.

There are two ways. `OnePlan` has all its launches in one plan, which the driver runs at once: one pass that reduces
each part and converts it while it is in the cache, or a reduction, the choice of parameters, and a conversion.
`InSteps` of in_steps.py has Python between its launches, for a search for ranges, for a scale of the whole array, and
for codes that go through copies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fastq.engine.runtime import driver
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.tiling import Demands
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.pointers import ElementOperands, NoisyOperands, ParameterOperands
from fastq.kernels.storage import bits_of, computes_in_float64, register_elements
from fastq.plan import policy, slots
from fastq.plan.arrange import NOT_STRIDED, View, arrange, arrange_packed
from fastq.plan.by_parameters import plan_elementwise
from fastq.plan.in_steps import InSteps, ParameterChoice, plan_parameters
from fastq.plan.kernel_call import (
    element_types,
    kernel_args,
    load_or_compile_kernel,
    tile_if_fits,
    with_tensor,
)
from fastq.plan.launch import BoundLaunch, Execute, run_on_no_elements
from fastq.plan.layout import NO_LAYOUT, Layout
from fastq.plan.nan_and_infinity import refuse_range
from fastq.plan.reduction import accumulator_of, plan_minmax
from fastq.plan.result import Result
from fastq.plan.spec import Arithmetic, OpSpec
from fastq.plan.tensor_scale import TensorScale
from fastq.requests.importance import as_importance
from fastq.requests.quantization import Request, shape_of_ranges
from fastq.requests.stochastic_rounding import Noise
from fastq.results import QParams
from fastq.system.arguments import native
from fastq.system.dtypes import Array

Quantized = tuple[Array, QParams]  # codes, or values of fake quantization, and the parameters


class Work(NamedTuple):
    """The work of a call that computes parameters from ranges; it keeps no array."""

    request: Request
    spec: OpSpec
    result: Result | None = None  # None: only parameters are requested

    def refuse(self, status: int, *operands: Any) -> None:
        """Raise the error of a status."""
        refuse_range(status, *operands, nan=self.request.nan)

    @property
    def has_tensor_scale(self) -> bool:
        """Whether block scales are in units of one scale for the whole array."""
        return self.request.qtype.has_tensor_scale

    @property
    def needs_more_than_ranges(self) -> bool:
        """Whether a launch has operands beside x, result and parameters: a tensor scale, importance or noise."""
        return self.has_tensor_scale or self.request.search is not None or self.request.stochastic


def bind_work(
    request: Request, spec: OpSpec, result: Result | None, x: Array, out: Any, importance: Any
) -> Callable[..., Quantized]:
    """Return a function that does the work on arrays like these: in one plan if possible, else in steps.

    Without a result only parameters are requested.
    """
    work = Work(request, spec, result)
    if importance is not None:
        as_importance(importance, x.shape, request)
    if not x.size:
        shape = shape_of_ranges(x.shape, request.granularity)
        return _with_new_parameters(work, BoundLaunch(work.refuse, run_on_no_elements, run_on_no_elements), shape=shape)
    target = None if out is None else np.asarray(out)
    one_plan = OnePlan.of(work, x, target)
    if one_plan is not None:
        return _with_new_parameters(work, one_plan.bind(x, target), one_plan.view, begin=one_plan.plan.begin)
    choice = ParameterChoice(x, request, spec)
    if result is not None:
        in_steps = InSteps(request, spec, result, choice)
        return _with_new_parameters(work, in_steps.bind(x, target), choice.view)
    bound = BoundLaunch(work.refuse, choice.write_parameters, choice.write_at_once or choice.write_parameters)
    begin = choice.reduce.plan.begin if choice.write_at_once else tuple
    return _with_new_parameters(work, bound, choice.view, begin=begin)


def bind_ranges(request: Request, spec: OpSpec, lo: Array) -> Callable[..., Quantized]:
    """Return a function that computes parameters of ranges that are known, given their minima and maxima."""
    dtype = accumulator_of(native(lo.dtype))
    write_parameters = driver.bind(plan_parameters(spec, dtype, lo.size)) if lo.size else run_on_no_elements

    @in_standard_mode
    def run_on_ends(lo: Array, hi: Array, scale: Array, zero_point: Array, *_: object) -> int:
        ends = (np.ascontiguousarray(end, dtype) + dtype.type(0) for end in (lo, hi))  # never -0.0
        return write_parameters(None, None, scale, zero_point, None, *ends)

    def refuse(status: int, lo: Array, hi: Array, *_: object) -> None:
        refuse_range(status, np.stack([lo, hi]), nan=request.nan)

    return _with_new_parameters(Work(request, spec), BoundLaunch(refuse, run_on_ends, run_on_ends), shape=lo.shape)


def _with_new_parameters(
    work: Work,
    bound: BoundLaunch,
    view: View | None = None,
    *,
    shape: tuple[int, ...] = (),
    begin: Callable[[], tuple[Any, ...]] = tuple,
) -> Callable[..., Quantized]:
    """Return a function that launches on new parameters, and returns them with the result.

    Parameters
    ----------
    work : Work
        What is done.
    bound : BoundLaunch
        What is launched.
    view : View, optional
        How kernels see parameters.
    shape : tuple of int
        The shape of parameters, if there is no view.
    begin : callable
        Makes the operands after parameters, where a range alone gives these: the minima and maxima of no elements, or
        nothing.
    """
    parameters = NewParameters(work, view, shape if view is None else view.layout.parameter_shape)
    if work.needs_more_than_ranges:
        return _launch_with_more_than_ranges(work, bound, parameters)
    return _launch_with_ranges_alone(work, bound, parameters, begin)


class NewParameters:
    """Scales and zero points of a call: what makes them for kernels to write to, and what callers get of them."""

    def __init__(self, work: Work, view: View | None, shape: tuple[int, ...]) -> None:
        scheme = work.spec.range_scheme
        qtype = work.request.qtype
        self.new_scale = functools.partial(np.empty, shape, scheme.scale_dtype)
        self.new_zero_point = functools.partial(np.zeros, shape, scheme.zero_point_dtype)
        self.with_values = work.request.params_without_numbers.with_values
        self.view = None if view is None or view.order is None else view
        # kernels write the bits of parameters whose dtype the format prescribes, since NumPy has no such floats
        self.scale_dtype = FLOAT_FORMATS[qtype.scale_element].dtype if qtype.scale_element else None
        self.zero_point_dtype = qtype.storage if qtype.element else None
        self.round_to_stored_type: Execute | None = None
        # scales of values that are returned without parameters are rounded where values are computed
        if work.spec.arithmetic.rule.stored_half and work.spec.op != "fake" and (count := math.prod(shape)):
            self.round_to_stored_type = driver.bind(_plan_rounding_to_stored_type(work.spec, count))

    @property
    def finish(self) -> Callable[[Array, Array], tuple[Array, Array]] | None:
        """What turns parameters of kernels into those of callers; None where they are the same."""
        view = self.view
        scale_dtype = self.scale_dtype
        zero_point_dtype = self.zero_point_dtype
        round_to_stored_type = self.round_to_stored_type
        if all(change is None for change in (view, scale_dtype, zero_point_dtype, round_to_stored_type)):
            return None

        # a closure, which takes half the time of a method
        def finish_parameters(scale: Array, zero_point: Array) -> tuple[Array, Array]:
            if round_to_stored_type is not None:
                round_to_stored_type(None, None, scale, zero_point)
            if view is not None:
                scale = view.from_kernel(scale)
                zero_point = view.from_kernel(zero_point)
            if scale_dtype is not None:
                scale = scale.view(scale_dtype)
            if zero_point_dtype is not None:
                zero_point = zero_point.view(zero_point_dtype)
            return scale, zero_point

        return finish_parameters


def _launch_with_ranges_alone(
    work: Work, bound: BoundLaunch, parameters: NewParameters, begin: Callable[[], tuple[Any, ...]]
) -> Callable[..., Quantized]:
    """Return a function that launches on x, a result, new parameters and what `begin` makes.

    `BoundLaunch.settle` does not get the last: where it launches again, it has minima and maxima made anew.
    """
    new_result: Callable[[], Any] = type(None) if work.result is None else work.result.new
    new_scale = parameters.new_scale
    new_zero_point = parameters.new_zero_point
    finish = parameters.finish
    with_values = parameters.with_values
    launch_checked = bound.launch
    settle = bound.settle

    # a closure, which takes half the time of a method
    def quantize_by_ranges(x: Array, out: Any, importance: object, noise: None = None) -> Quantized:
        result = new_result() if out is None else out
        scale = new_scale()
        zero_point = new_zero_point()
        status = launch_checked(x, result, scale, zero_point, *begin())
        if status:
            settle(status, x, result, scale, zero_point)
        if finish is not None:
            scale, zero_point = finish(scale, zero_point)
        return result, with_values(scale, zero_point)

    return quantize_by_ranges


def _launch_with_more_than_ranges(
    work: Work, bound: BoundLaunch, parameters: NewParameters
) -> Callable[..., Quantized]:
    """Return a function that launches on x, a result, new parameters, a tensor scale to write, importance and noise.

    Each of the last three is None where the operation has none. They are operands of their own, and not one record,
    since `BoundLaunch.settle` copies arrays of callers that share memory with the result.
    """
    request = work.request
    new_result: Callable[[], Any] = type(None) if work.result is None else work.result.new
    has_tensor_scale = work.has_tensor_scale
    finish = parameters.finish

    def quantize_by_ranges_and_more(x: Array, out: Any, importance: Any, noise: Noise | None = None) -> Quantized:
        result = new_result() if out is None else out
        scale = parameters.new_scale()
        zero_point = parameters.new_zero_point()
        tensor_scale = np.ones((), np.float32) if has_tensor_scale else None
        weights = None if importance is None else _as_importance(importance, x.shape, request)
        status = bound.launch(x, result, scale, zero_point, tensor_scale, weights, noise)
        if status:
            bound.settle(status, x, result, scale, zero_point, tensor_scale, weights, noise)
        if finish is not None:
            scale, zero_point = finish(scale, zero_point)
        params = parameters.with_values(scale, zero_point)
        if has_tensor_scale:
            vars(params)["tensor_scale"] = tensor_scale
        return result, params

    return quantize_by_ranges_and_more


_as_importance = in_standard_mode(as_importance)


# --- one plan ---------------------------------------------------------------------------------------------------------


class OnePlan(NamedTuple):
    """All launches in one plan, which follows the reduction that gives a scale of the whole array, if there is one."""

    work: Work
    result: Result
    view: View
    plan: RangedPlan

    @classmethod
    def of(cls, work: Work, x: Array, out: Array | None) -> OnePlan | None:
        """Plan the work on arrays like these; None if there is something to do between launches."""
        request = work.request
        if request.search is not None or work.result is None:
            return None
        view = _view_for_one_plan(work, work.result, x, out)
        if view is None:
            return None
        # in two passes over strided memory, each should visit x in an order of its own
        only_one_pass = not (view.is_direct or view.is_in_order(x))
        plan = plan_ranged(
            work.spec,
            view,
            src=native(x.dtype),
            dst=work.result.dtype,
            only_one_pass=only_one_pass,
            draws=request.stochastic,
        )
        return None if plan is None else cls(work, work.result, view, plan)

    def bind(self, x: Array, out: Array | None) -> BoundLaunch:
        """Bind the plan to arrays like these.

        Kernels report NaN and infinities; the driver refuses an output that shares memory with x.
        """
        run_prepared = self._runner(self.plan, x)
        run_checked: Execute = driver.bind(self.plan.plan, driver.Checks.of(x, out, self.result.nbytes))

        def run_checked_with_noise(x: Array, out: Array, scale: Array, zero_point: Array, *beside: Any) -> int:
            *_, noise = beside
            return run_checked(x, out, scale, zero_point, *self.plan.operands(self.view, noise))

        run_as_given = run_checked_with_noise if self.work.request.stochastic else run_checked
        if self.work.has_tensor_scale:
            # this checks nothing, and need not: new memory is shared with nothing
            run_as_given = run_prepared if out is None else driver.refuse_all_operands
        return BoundLaunch(
            self.work.refuse, run_prepared, run_as_given, execute_for=self._runner_for, strides=x.strides
        )

    def _runner_for(self, source: Array, out: Array) -> Execute:
        """Return what runs on a copy of x with strides of its own."""
        plan = self._plan_again(self.view.of(source, out), source)
        return self._run_in_order if plan is None else self._runner(plan, source)

    def _run_in_order(self, x: Array, out: Array, *parameters_and_beside: Any) -> int:
        """Run on copies in the order of the view: rows of a copy without gaps may be too long for a tile."""
        x = self.view.in_order(x)
        target = np.empty_like(x, out.dtype, shape=out.shape)  # in the order of memory of x
        plan = self._plan_again(self.view.of(x, target), x)
        assert plan is not None  # this memory goes through no tiles
        status = self._runner(plan, x)(x, target, *parameters_and_beside)
        out[...] = target
        return status

    def _plan_again(self, view: View, x: Array) -> RangedPlan | None:
        """Return the plan for an x with strides of its own, in a view of these; None where it fits no tiles."""
        return plan_ranged(
            self.work.spec,
            view,
            src=native(x.dtype),
            dst=self.result.dtype,
            draws=self.work.request.stochastic,
        )

    def _runner(self, plan: RangedPlan, source: Array) -> Execute:
        """Return what runs a plan on arrays with the strides of a source, a result and parameters that it writes."""
        view = self.view
        tensor_of = TensorScale(source, self.work.request) if self.work.has_tensor_scale else None

        def run_plan(
            x: Array,
            out: Array,
            scale: Array,
            zero_point: Array,
            tensor: Array | None = None,
            importance: None = None,
            noise: Noise | None = None,
        ) -> int:
            status = 0
            launches = plan.plan
            if tensor_of is not None and tensor is not None:
                status = tensor_of(x, tensor)
                launches = with_tensor(launches, float(tensor))
            return status | driver.run(launches, x, out, scale, zero_point, *plan.operands(view, noise))

        return run_plan


def _view_for_one_plan(work: Work, result: Result, x: Array, out: Array | None) -> View | None:
    """Return how kernels see both arrays at once; None if packed codes don't allow it."""
    packed = work.spec.packed_format
    granularity = work.request.granularity
    if packed is None:
        return arrange(x, out, granularity, result.dtype)
    view = arrange_packed(x.shape, granularity, out, packed.group)
    return None if view is None else view.of(x, out)


# --- plans ------------------------------------------------------------------------------------------------------------


class RangedPlan(NamedTuple):
    """A launch plan that takes parameters from ranges and quantizes."""

    plan: driver.LaunchPlan
    # makes the operands after zero points: if there are two passes, no noise, and minima and maxima of nothing
    begin: Callable[[], tuple[Array | None, ...]] = tuple

    def operands(self, view: View, noise: Noise | None) -> tuple[Array | None, ...]:
        """Return the operands after zero points: noise if codes are rounded at random, then minima and maxima."""
        no_noise_and_ranges = self.begin()  # empty for one pass, else None, minima and maxima
        if noise is None:
            return no_noise_and_ranges
        return view.words_of(noise), *no_noise_and_ranges[1:]


def plan_ranged(
    spec: OpSpec,
    view: View,
    src: np.dtype[Any],
    dst: np.dtype[Any],
    only_one_pass: bool = False,
    draws: bool = False,
) -> RangedPlan | None:
    """Plan one pass if it is possible, else two passes.

    Parameters
    ----------
    spec : OpSpec
        The computation.
    view : View
        How kernels see the arrays.
    src, dst : dtype
        The dtypes of source and result.
    only_one_pass : bool
        Refuse two passes.
    draws : bool
        Whether codes are rounded at random.

    Returns
    -------
    RangedPlan or None
        None if two passes are refused, or if Python has something to do between them: it marks blocks that have NaN.
    """
    fused = _plan_fused(spec.at_random if draws else spec, view, src, dst, only_one_pass)
    if fused is not None:
        return RangedPlan(fused)
    marks_blocks = spec.nan == "keep" and spec.arithmetic.scale_format is not None
    if only_one_pass or marks_blocks:
        return None
    scheme = spec.range_scheme
    reduction = plan_minmax(view, spec.nan, src)
    parameters = plan_parameters(spec, reduction.dtype, math.prod(reduction.shape))
    conversion = plan_elementwise(
        spec.by_parameters.at_random if draws else spec.by_parameters,
        view,
        src,
        dst,
        scheme.scale_dtype,
        scheme.zero_point_dtype,
        backward=True,
    )
    return RangedPlan(reduction.plan.then(parameters, conversion), reduction.begin)


class FusedLoop(NamedTuple):
    """The loop of one pass, and how it is launched."""

    function: str  # its name below `fastq.kernels`
    units: int  # units of work
    unit_size: int = 1  # elements of such a unit
    chunk_multiple: int = 1  # units that a thread gets together
    tile_unit: int = 1  # elements of a unit in a tile
    tile_whole: int = 1  # elements that a tile has to have together
    block: int = 0  # the size of blocks that the kernel is compiled for; 0: any
    together: bool = True  # whether it may prepare the parameters of several runs at once
    store_layout: Layout | None = None  # whose runs may share lines with their neighbours; None: the loop sees to it
    store_unit: int = 1  # elements that are stored together


def _fused_loop(
    spec: OpSpec, view: View, src: np.dtype[Any], operands: ElementOperands | NoisyOperands
) -> FusedLoop | None:
    """Choose the loop of one pass; None if parts leave the cache or are too few for the threads."""
    layout = view.layout
    size = math.prod(view.shape)
    columns = policy.columns_together(layout, _compute_size(spec.arithmetic, operands))
    lanes = register_elements(operands.src, operands.dst, operands.scale)
    if not policy.fits_one_pass(layout, columns, policy.threads_for(size)):
        return None
    if policy.has_short_runs(layout, spec.op, lanes):
        return None
    if spec.draws and not policy.can_draw_in_one_pass(layout):
        return None
    if layout.inner > 1:
        row_bytes = layout.inner * bits_of(operands.src) // 8
        if view.memory != NOT_STRIDED or not policy.columns_stay_in_cache(layout, row_bytes, size, src):
            return None
        return FusedLoop(
            "traversal.block_columns.block_columns",
            units=layout.outer * layout.blocks * -(-layout.inner // columns),
            unit_size=layout.block * min(columns, layout.inner),
        )
    if policy.has_loop_over_blocks(layout):
        return FusedLoop(
            "traversal.blocks.blocks",
            units=layout.parameters,
            unit_size=layout.block,
            tile_unit=layout.block,
            tile_whole=layout.block,
            block=layout.block,
        )
    return FusedLoop(
        policy.RUNS,
        units=size,
        chunk_multiple=layout.chunk_unit,
        tile_whole=layout.chunk_unit,
        together=policy.runs_together(layout, lanes),
        store_layout=layout,
        store_unit=layout.chunk_unit,
    )


def _plan_fused(
    spec: OpSpec, view: View, src: np.dtype[Any], dst: np.dtype[Any], only_one_pass: bool
) -> driver.LaunchPlan | None:
    """Plan one pass, or return None where there is no loop for it, or no tile has a whole part.

    `only_one_pass` refuses tiles that read elements again.
    """
    scheme = spec.range_scheme
    operands = element_types(spec, src, dst, scheme.scale_dtype, scheme.zero_point_dtype)
    loop = _fused_loop(spec, view, src, operands)
    if loop is None:
        return None
    size = math.prod(view.shape)
    kernel = load_or_compile_kernel(
        loop.function,
        operands,
        spec.op,
        spec.arithmetic,
        nan=spec.nan,
        range_scheme=scheme.name,
        block=loop.block,
        together=loop.together,
    )
    streaming = policy.store_mode(
        size, operands.src, operands.dst, loop.store_layout, loop.store_unit, codes=spec.op == "quantize"
    )
    plan = driver.plan_launch(
        kernel,
        slots.CONVERT_AT_RANDOM if spec.draws else slots.CONVERT,
        kernel_args(view.layout, spec.code_range, streaming=streaming),
        loop.units,
        policy.threads_for(size),
        size=loop.unit_size,
        chunk_multiple=loop.chunk_multiple,
    )
    demands = Demands(unit=loop.tile_unit, whole=loop.tile_whole, refuse_rereads=only_one_pass)
    return tile_if_fits(plan, view.shape, view.memory, (operands.src, operands.dst), demands=demands)


def _compute_size(arithmetic: Arithmetic, operands: ElementOperands | NoisyOperands) -> int:
    """Return the bytes of a number of the type that a kernel computes in: what the rule says, else that of scales.

    Scales that a code format prescribes say nothing about it, so then it depends on the source.
    """
    if arithmetic.rule.compute:
        return np.dtype(arithmetic.rule.compute).itemsize
    if isinstance(operands.scale, np.dtype):
        return operands.scale.itemsize
    return 8 if computes_in_float64(operands.src) else 4


def _plan_rounding_to_stored_type(spec: OpSpec, count: int) -> driver.LaunchPlan:
    """Plan to round `count` scales and offsets in place, once codes were computed with them, to what is kept."""
    scheme = spec.range_scheme
    kernel = load_or_compile_kernel(
        "body.range_parameters.round_to_stored_type",
        ParameterOperands(scheme.scale_dtype, scheme.zero_point_dtype),
        "quantize",
        spec.arithmetic,
    )
    return driver.plan_launch(
        kernel, slots.PARAMETERS_IN_PLACE, kernel_args(NO_LAYOUT), count, policy.threads_for(count)
    )
