"""Plan operations that take parameters from ranges, with Python between the launches.

`ParameterChoice` reduces an array to ranges, has Python search for better ones or a scale of the whole array, and
computes parameters. `InSteps` then converts the array with these, as with parameters that a caller gives.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from fastq.engine.runtime import driver
from fastq.formats.floats import FLOAT_FORMATS, is_real
from fastq.kernels.pointers import RangeOperands
from fastq.plan import policy, slots
from fastq.plan.by_parameters import choose_launcher, plan_elementwise
from fastq.plan.kernel_call import kernel_args, load_or_compile_kernel, with_tensor
from fastq.plan.launch import BoundLaunch, Execute
from fastq.plan.layout import NO_LAYOUT
from fastq.plan.nan_and_infinity import refuse_range
from fastq.plan.range_search import RangeSearch
from fastq.plan.reduction import Extremes, NanParts
from fastq.plan.result import Result
from fastq.plan.spec import OpSpec
from fastq.plan.tensor_scale import TensorScale
from fastq.requests.quantization import Request
from fastq.requests.stochastic_rounding import Noise
from fastq.system import tuning
from fastq.system.dtypes import Array


class ParameterChoice:
    """Choose scale and zero point from the ranges of arrays of the same dtype, shape and strides.

    `write_at_once` launches the reduction to ranges and the computation of parameters in one plan. It is None if Python
    has something to do between or after these: to compute the scale of the whole array, to search for better ranges, or
    to mark blocks with a NaN. `write_parameters` does all of it step by step.
    """

    def __init__(self, x: Array, request: Request, spec: OpSpec) -> None:
        granularity = request.granularity
        scale_format = spec.arithmetic.scale_format
        self.tensor_of = TensorScale(x, request) if request.qtype.has_tensor_scale else None
        self.reduce = Extremes(x, granularity, request.nan)
        self.view = self.reduce.view
        self.search = None if request.search is None else RangeSearch(x, spec, request)
        accumulator = self.reduce.dtype if self.search is None else request.coding.compute
        self.plan = plan_parameters(spec, accumulator, self.view.layout.parameters)
        marks_blocks = request.nan == "keep" and scale_format is not None and is_real(x.dtype)
        self.nan_parts = NanParts(x, granularity) if marks_blocks else None
        self.nan_scale = FLOAT_FORMATS[scale_format.element].nan if scale_format else None
        self.write_at_once = None
        if self.tensor_of is None and self.search is None and self.nan_parts is None:
            self.write_at_once = driver.bind(self.reduce.plan.plan.then(self.plan))

    def write_parameters(
        self,
        x: Array,
        out: Any,
        scale: Array,
        zero_point: Array,
        tensor: Array | None = None,
        importance: Array | None = None,
        noise: None = None,  # codes are rounded at random, not parameters
    ) -> int:
        """Write parameters, and the scale of the whole array if there is one; return the status.

        Out is not used. A search takes ranges in the caller's order of axes, and kernels in that of their view.
        """
        status = 0
        factor = 0.0  # the scale of the whole array, 0 without one
        if self.tensor_of is not None and tensor is not None:
            status = self.tensor_of(x, tensor)
            factor = float(tensor)
        lo, hi, reported = self.reduce(x)
        status |= reported
        if self.search is not None and not status:
            view = self.view
            low, high = self.search(x, view.from_kernel(lo), view.from_kernel(hi), factor, importance)
            lo = view.to_kernel(low)
            hi = view.to_kernel(high)
        status |= driver.run(with_tensor(self.plan, factor), None, None, scale, zero_point, None, lo, hi)
        if self.nan_parts is not None:
            scale[self.nan_parts(x)] = self.nan_scale
        return status


class InSteps(NamedTuple):
    """Launches with Python between them; strided memory goes through buffers twice."""

    request: Request
    spec: OpSpec
    result: Result
    choice: ParameterChoice

    def bind(self, x: Array, out: Array | None) -> BoundLaunch:
        """Bind the launches to arrays like these."""
        run_prepared = self._runner(x, out)
        # this checks nothing, and need not: new memory is shared with nothing
        run_as_given: Execute = run_prepared if out is None else driver.refuse_all_operands
        refuse = functools.partial(refuse_range, nan=self.request.nan)
        return BoundLaunch(refuse, run_prepared, run_as_given, execute_for=self._runner_for, strides=x.strides)

    def _runner(self, x: Array, out: Array | None) -> Execute:
        """Return what chooses parameters, and then converts arrays like these as if a caller had given them.

        The conversion begins with the end of x, which the reduction has left in the cache.
        """
        request = self.request
        spec = self.spec
        choice = self.choice
        scheme = spec.range_scheme
        conversion = choose_launcher(
            spec.by_parameters.at_random if request.stochastic else spec.by_parameters,
            request.granularity,
            x,
            out,
            shape=x.shape,
            dtypes=(x.dtype, self.result.dtype, scheme.scale_dtype, scheme.zero_point_dtype),
            plan=functools.partial(plan_elementwise, backward=True),
            scale_order=choice.view.parameter_order or tuple(range(x.ndim)),
        )
        from_kernel = choice.view.from_kernel

        def choose_and_convert(
            x: Array,
            out: Array,
            scale: Array,
            zero_point: Array,
            tensor: Array | None = None,
            importance: Array | None = None,
            noise: Noise | None = None,
        ) -> int:
            status = choice.write_parameters(x, out, scale, zero_point, tensor, importance)
            if status:
                return status
            # parameters were written in the order of the reduction's view; the conversion takes them as a caller would
            # give them, and brings them into the order of its own view, which may be another
            return conversion.execute(x, out, from_kernel(scale), from_kernel(zero_point), tensor, noise)

        return choose_and_convert

    def _runner_for(self, x: Array, out: Array) -> Execute:
        """Return what runs on a copy of x with strides of its own, whose parameters are seen in another order."""
        from_kernel = self.choice.view.from_kernel
        choice = ParameterChoice(x, self.request, self.spec)
        choose_and_convert = self._replace(choice=choice)._runner(x, out)

        def run_on_copy(x: Array, out: Array, scale: Array, zero_point: Array, *beside: Any) -> int:
            chosen_scale = np.empty(choice.view.layout.parameter_shape, scale.dtype)
            chosen_zero_point = np.zeros(choice.view.layout.parameter_shape, zero_point.dtype)
            status = choose_and_convert(x, out, chosen_scale, chosen_zero_point, *beside)
            # both sides have the caller's axes: this brings parameters from the order of the copy's view to the first's
            from_kernel(scale)[...] = choice.view.from_kernel(chosen_scale)
            from_kernel(zero_point)[...] = choice.view.from_kernel(chosen_zero_point)
            return status

        return run_on_copy


def plan_parameters(spec: OpSpec, accumulator: np.dtype[Any], count: int) -> driver.LaunchPlan:
    """Plan to turn `count` ranges into scale and zero point."""
    scheme = spec.range_scheme
    loop = "parameters_of_many_ranges" if count >= tuning.current().batched_blocks else "parameters_of_ranges"
    kernel = load_or_compile_kernel(
        f"body.range_parameters.{loop}",
        RangeOperands(
            accumulator, accumulator, spec.arithmetic.scale_format or scheme.scale_dtype, scheme.zero_point_dtype
        ),
        "quantize",
        spec.arithmetic,
        range_scheme=scheme.name,
    )
    args = kernel_args(NO_LAYOUT, spec.code_range)
    return driver.plan_launch(kernel, slots.PARAMETERS_OF_RANGES, args, count, policy.threads_for(count))
