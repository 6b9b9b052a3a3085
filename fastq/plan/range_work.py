"""The work of a call that computes parameters from ranges, and the launch that computes these."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fastq.engine.runtime import driver
from fastq.kernels.pointers import ParameterOperands, RangeOperands
from fastq.plan import policy, slots
from fastq.plan.kernel_call import kernel_address, kernel_args
from fastq.plan.layout import NO_LAYOUT
from fastq.plan.nan_and_infinity import refuse_range
from fastq.plan.result import Result
from fastq.plan.spec import OpSpec
from fastq.requests.quantization import Request
from fastq.system import tuning


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


def plan_parameters(spec: OpSpec, accumulator: np.dtype[Any], count: int) -> driver.LaunchPlan:
    """Plan to turn `count` ranges into scale and zero point."""
    scheme = spec.range_scheme
    loop = "parameters_of_many_ranges" if count >= tuning.current().batched_blocks else "parameters_of_ranges"
    kernel = kernel_address(
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


def plan_kept_parameters(spec: OpSpec, count: int) -> driver.LaunchPlan:
    """Plan to round `count` scales and offsets, with which codes were computed, to what is kept."""
    scheme = spec.range_scheme
    kernel = kernel_address(
        "body.range_parameters.kept_parameters",
        ParameterOperands(scheme.scale_dtype, scheme.zero_point_dtype),
        "quantize",
        spec.arithmetic,
    )
    return driver.plan_launch(kernel, slots.KEPT_PARAMETERS, kernel_args(NO_LAYOUT), count, policy.threads_for(count))
