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
from fastq.kernels.pointers import ElementOperands, NoisyOperands
from fastq.kernels.storage import bits_of, is_wide, register_elements
from fastq.plan import policy, slots
from fastq.plan.arrange import View, arrange, arrange_packed
from fastq.plan.by_parameters import plan_elementwise
from fastq.plan.in_steps import InSteps, ParameterChoice
from fastq.plan.kernel_call import (
    element_types,
    kernel_address,
    kernel_args,
    tile_if_fits,
    with_tensor,
)
from fastq.plan.launch import BoundLaunch, Execute, run_on_no_elements
from fastq.plan.layout import Layout
from fastq.plan.memory import NOT_STRIDED
from fastq.plan.range_work import Work, plan_kept_parameters, plan_parameters
from fastq.plan.reduction import plan_minmax
from fastq.plan.result import Result
from fastq.plan.spec import Arithmetic, OpSpec
from fastq.plan.stochastic_rounding import words_of
from fastq.plan.tensor_scale import TensorScale
from fastq.requests.importance import as_importance
from fastq.requests.quantization import shape_of_ranges
from fastq.requests.stochastic_rounding import Noise
from fastq.results import QParams
from fastq.system.arguments import native
from fastq.system.dtypes import Array

Quantized = tuple[Array, QParams]  # codes, or values of fake quantization, and the parameters


def bind_work(work: Work, x: Array, out: Any, importance: Any) -> Callable[..., Quantized]:
    """Return a function that does the work on arrays like these: in one plan if possible, else in steps."""
    request = work.request
    if importance is not None:
        as_importance(importance, x.shape, request)
    if not x.size:
        shape = shape_of_ranges(x.shape, request.granularity)
        return with_new_parameters(work, BoundLaunch(work.refuse, run_on_no_elements, run_on_no_elements), shape=shape)
    target = None if out is None else np.asarray(out)
    one_plan = OnePlan.of(work, x, target)
    if one_plan is not None:
        return with_new_parameters(work, one_plan.bind(x, target), one_plan.view, begin=one_plan.plan.begin)
    choice = ParameterChoice(x, request, work.spec)
    if work.result is not None:
        return with_new_parameters(work, InSteps(work, choice).bind(x, target), choice.view)
    launch = BoundLaunch(work.refuse, choice.execute, choice.launch or choice.execute)
    begin = choice.reduce.plan.begin if choice.launch else tuple
    return with_new_parameters(work, launch, choice.view, begin=begin)


def with_new_parameters(
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
        Makes the operands after parameters. If there is a scale of the whole array, importance or noise, these are the
        operands instead, in this order, with None for importance that is not given.
    """
    request = work.request
    qtype = request.qtype
    scheme = work.spec.range_scheme
    if view is not None:
        shape = view.layout.shape
    has_tensor_scale = work.has_tensor_scale
    new_result: Callable[[], Any] = type(None) if work.result is None else work.result.new
    new_scale = functools.partial(np.empty, shape, scheme.scale_dtype)
    new_zero_point = functools.partial(np.zeros, shape, scheme.zero_point_dtype)
    new_others = _new_tensor_scale if has_tensor_scale else tuple if request.stochastic else begin
    from_kernel = None if view is None or view.order is None else view.from_kernel
    scale_dtype = FLOAT_FORMATS[qtype.scale_element].dtype if qtype.scale_element else None
    zero_point_dtype = qtype.storage if qtype.element else None
    launch = bound.launch
    settle = bound.settle
    with_values = request.template.with_values
    count = math.prod(shape)
    # scales of values that are returned without parameters are rounded where values are computed
    rounds = count > 0 and work.spec.op != "fake" and bool(work.spec.arithmetic.rule.kept)
    keep = driver.bind(plan_kept_parameters(work.spec, count)) if rounds else None
    # how many of the operands after parameters are read, so that an error can be explained by them
    read = 3 if request.stochastic else 2 if request.search is not None else 1

    # a closure, which takes half the time of a method
    def call(x: Array, out: Any, importance: Any, noise: Noise | None = None) -> Quantized:
        result = new_result() if out is None else out
        scale = new_scale()
        zero_point = new_zero_point()
        others = new_others()
        if importance is not None or noise is not None:
            tensor_scale = others[0] if has_tensor_scale else None
            weights = None if importance is None else _as_importance(importance, x.shape, request)
            others = (tensor_scale, weights) if noise is None else (tensor_scale, weights, noise)
        status = launch(x, result, scale, zero_point, *others)
        if status:
            settle(status, x, result, scale, zero_point, *others[:read])
        if keep is not None:
            keep(None, None, scale, zero_point)
        if from_kernel is not None:
            scale = from_kernel(scale)
            zero_point = from_kernel(zero_point)
        if scale_dtype is not None:
            scale = scale.view(scale_dtype)
        if zero_point_dtype is not None:
            zero_point = zero_point.view(zero_point_dtype)
        params = with_values(scale, zero_point)
        if has_tensor_scale:
            vars(params)["tensor_scale"] = others[0]
        return result, params

    return call


_as_importance = in_standard_mode(as_importance)


def _new_tensor_scale() -> tuple[Array]:
    return (np.ones((), np.float32),)


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
        one_pass = not (view.direct or view.is_in_order(x))
        plan = plan_ranged(
            work.spec,
            view,
            src=native(x.dtype),
            dst=work.result.dtype,
            one_pass=one_pass,
            draws=request.stochastic,
        )
        return None if plan is None else cls(work, work.result, view, plan)

    def bind(self, x: Array, out: Array | None) -> BoundLaunch:
        """Bind the plan to arrays like these.

        Kernels report NaN and infinities; the driver refuses an output that shares memory with x.
        """
        execute = self._runner(self.plan, x)
        run_checked: Execute = driver.bind(self.plan.plan, driver.Checks.of(x, out, self.result.nbytes))

        def run_drawing(*operands: Any) -> int:
            return run_checked(*operands[:4], *self.plan.operands(self.view, operands[-1]))

        launch = run_drawing if self.work.request.stochastic else run_checked
        if self.work.has_tensor_scale:
            launch = execute if out is None else driver.never_fits  # new memory is shared with nothing
        return BoundLaunch(self.work.refuse, execute, launch, execute_for=self._runner_for, strides=x.strides)

    def _runner_for(self, source: Array, out: Array) -> Execute:
        """Return what runs on a copy of x with strides of its own."""
        plan = self._plan_again(self.view.of(source, out), source)
        return self._run_in_order if plan is None else self._runner(plan, source)

    def _run_in_order(self, x: Array, out: Array, *parameters: Array) -> int:
        """Run on copies in the order of the view: rows of a copy without gaps may be too long for a tile."""
        x = self.view.in_order(x)
        target = np.empty_like(x, out.dtype, shape=out.shape)  # in the order of memory of x
        plan = self._plan_again(self.view.of(x, target), x)
        assert plan is not None  # this memory goes through no tiles
        status = self._runner(plan, x)(x, target, *parameters)
        out[...] = target
        return status

    def _plan_again(self, view: View, x: Array) -> RangedPlan | None:
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

        def execute(
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

        return execute


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
        no_noise_and_ranges = self.begin()
        if noise is None:
            return no_noise_and_ranges
        return words_of(noise, view.shape, view.order), *no_noise_and_ranges[1:]


def plan_ranged(
    spec: OpSpec,
    view: View,
    src: np.dtype[Any],
    dst: np.dtype[Any],
    one_pass: bool = False,
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
    one_pass : bool
        Refuse two passes.
    draws : bool
        Whether codes are rounded at random.

    Returns
    -------
    RangedPlan or None
        None if two passes are refused, or if Python has something to do between them: it marks blocks that have NaN.
    """
    fused = _plan_fused(spec.at_random if draws else spec, view, src, dst, one_pass)
    if fused is not None:
        return RangedPlan(fused)
    marks_blocks = spec.nan == "keep" and spec.arithmetic.scale_format is not None
    if one_pass or marks_blocks:
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
    spec: OpSpec, view: View, src: np.dtype[Any], kinds: ElementOperands | NoisyOperands
) -> FusedLoop | None:
    """Choose the loop of one pass; None if parts leave the cache or are too few for the threads."""
    layout = view.layout
    size = math.prod(view.shape)
    columns = policy.columns_together(layout, _compute_size(spec.arithmetic, kinds))
    lanes = register_elements(*kinds[:3])
    if not policy.fits_one_pass(layout, columns, policy.threads_for(size)):
        return None
    if policy.has_short_runs(layout, spec.op, lanes):
        return None
    if spec.draws and not policy.can_draw_in_one_pass(layout):
        return None
    if layout.inner > 1:
        row_bytes = layout.inner * bits_of(kinds.src) // 8
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
        chunk_multiple=layout.unit,
        tile_whole=layout.unit,
        together=policy.runs_together(layout, lanes),
        store_layout=layout,
        store_unit=layout.unit,
    )


def _plan_fused(
    spec: OpSpec, view: View, src: np.dtype[Any], dst: np.dtype[Any], refuse_rereads: bool
) -> driver.LaunchPlan | None:
    """Plan one pass, or return None; `refuse_rereads` as in `Demands`."""
    scheme = spec.range_scheme
    kinds = element_types(spec, src, dst, scheme.scale_dtype, scheme.zero_point_dtype)
    loop = _fused_loop(spec, view, src, kinds)
    if loop is None:
        return None
    size = math.prod(view.shape)
    kernel = kernel_address(
        loop.function,
        kinds,
        spec.op,
        spec.arithmetic,
        nan=spec.nan,
        range_scheme=scheme.name,
        block=loop.block,
        together=loop.together,
    )
    streaming = policy.store_mode(size, *kinds[:2], loop.store_layout, loop.store_unit, codes=spec.op == "quantize")
    plan = driver.plan_launch(
        kernel,
        slots.CONVERT_AT_RANDOM if spec.draws else slots.CONVERT,
        kernel_args(view.layout, spec.code_range, streaming=streaming),
        loop.units,
        policy.threads_for(size),
        size=loop.unit_size,
        chunk_multiple=loop.chunk_multiple,
    )
    demands = Demands(unit=loop.tile_unit, whole=loop.tile_whole, refuse_rereads=refuse_rereads)
    return tile_if_fits(plan, view.shape, view.memory, kinds[:2], demands=demands)


def _compute_size(arithmetic: Arithmetic, kinds: ElementOperands | NoisyOperands) -> int:
    """Return the bytes of a number of the type that a kernel computes in."""
    if arithmetic.rule.compute:
        return np.dtype(arithmetic.rule.compute).itemsize
    if isinstance(kinds.scale, np.dtype):
        return kinds.scale.itemsize
    return 8 if is_wide(kinds[0]) else 4
