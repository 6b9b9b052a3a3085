"""Plan operations with given parameters: quantize, dequantize and fake quantize element by element."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.driver import ALL_STATUS, LaunchPlan, never_fits, plan_launch
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.plan import policy
from fastq.plan.arrange import View
from fastq.plan.cache import Call
from fastq.plan.kernel_call import element_types, kernel_address, kernel_args, tile
from fastq.plan.launch import BoundLaunch, Execute, Launcher, in_bits, launcher, run_on_no_elements
from fastq.plan.memory import order_without_gaps
from fastq.plan.nan_and_infinity import refuse_nan
from fastq.plan.operation import BoundCall
from fastq.plan.policy import loop_of, outgrows_cache, store_mode
from fastq.plan.result import Result
from fastq.plan.slots import CONVERT, CONVERT_AT_RANDOM
from fastq.plan.spec import OpSpec
from fastq.requests import quantization
from fastq.requests.parameters import ParameterRules, Parameters, storage_of
from fastq.requests.stochastic_rounding import Noise
from fastq.results import QParams

Array = NDArray[Any]


def plan_elementwise(spec: OpSpec, view: View, *dtypes: np.dtype[Any], backward: bool = False) -> LaunchPlan:
    """Plan an operation with given parameters on arrays of these dtypes, in place or in tiles.

    `dtypes` are the dtypes of source, result, scale and zero point. A plan that runs `backward` begins with the chunk
    that the launch before it has left in the cache.
    """
    kinds = element_types(spec, *dtypes)
    size = math.prod(view.shape)
    loop = loop_of(view.layout, spec.op, *kinds[:3])
    kernel = kernel_address(loop.function, kinds, spec.op, spec.arithmetic, nan=spec.nan, together=loop.together)
    is_large = outgrows_cache(size, *kinds[:2])
    streaming = 0
    if is_large:
        streaming = store_mode(size, *kinds[:2], view.layout, row=loop.row, codes=spec.op == "quantize")
    args = kernel_args(view.layout, spec.code_range, streaming=streaming, outgrows_cache=is_large, merged=loop.merged)
    plan = plan_launch(
        kernel,
        CONVERT_AT_RANDOM if spec.draws else CONVERT,
        args,
        size,
        policy.threads_for(size),
        chunk_multiple=WHOLE_BYTES,
        backward=backward,
        status_mask=ALL_STATUS if spec.op != "dequantize" else 0,  # codes may be NaN
    )
    return tile(plan, view, kinds[:2])


def numbers_of(params: QParams) -> Parameters:
    """Return the numbers of QParams that are ready."""
    tensor_scale = 0.0 if params.tensor_scale is None else float(params.tensor_scale)
    return Parameters(params.scale, params.zero_point, tensor_scale)


def bind_call(
    spec: OpSpec,
    request: quantization.Request,
    arguments: Call,
    rules: ParameterRules,
    parameters: Parameters,
    result: Result,
) -> BoundCall:
    """Build the closure that the plan cache keeps: calling it costs half of a method call.

    `parameters` are validated.
    """
    zero_point = arguments.operands[3]
    # zeros for callers who give no zero point, in one row
    zeros = parameters.zero_point.reshape(-1) if zero_point is None else None
    # zero points of a dtype of ml_dtypes are converted to what kernels read: int16, other signs, or floats
    storage: np.dtype[Any] | None = None
    if isinstance(zero_point, np.ndarray) and zero_point.dtype.kind == "V":
        storage = storage_of(zero_point.dtype)
    if parameters.zero_point.dtype != storage:
        storage = None
    launch = launch_of(
        spec, request, arguments, rules, parameters, result, parameters.zero_point if storage else zero_point
    )
    new = result.new
    launch_given = launch.launch
    settle = launch.settle

    def call_given(
        x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams | None, noise: Noise | None = None
    ) -> Array:
        result = new() if out is None else out
        status = launch_given(x, result, scale, zeros if zero_point is None else zero_point, noise)
        if status:
            settle(status, x, result, scale, zero_point, qparams and qparams.tensor_scale, noise)
        return result

    def call_in_storage(
        x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams | None, noise: Noise | None = None
    ) -> Array:
        return call_given(x, out, scale, zero_point.astype(storage), qparams, noise)

    return call_given if storage is None else call_in_storage


def launch_of(
    spec: OpSpec,
    request: quantization.Request,
    arguments: Call,
    rules: ParameterRules,
    parameters: Parameters,
    result: Result,
    zero_point: Any,
) -> BoundLaunch:
    """Return the launch of an operation with given parameters.

    `parameters` are ready. They may be the caller's arrays, so the launch does not keep them.
    """
    x, out, scale, _ = arguments.operands
    parameter_shape = parameters.scale.shape

    def ready(scale: Any, zero_point: Any, tensor: Any, *noise: Noise | None) -> tuple[Any, ...]:
        return *in_bits(rules.ready(scale, zero_point, tensor).in_shape(parameter_shape)), *noise

    refuse = functools.partial(refuse_nan, nan=spec.nan)
    if not x.size:
        return BoundLaunch(refuse, run_on_no_elements, ready=ready)
    in_kernel = in_bits(parameters)
    has_blocks = request.granularity.block_size > 0  # else the order of scales is not read
    shape = x.shape if arguments.shape is None else arguments.shape
    dtypes = x.dtype, result.dtype, in_kernel.scale.dtype, in_kernel.zero_point.dtype
    scale_order = order_without_gaps(in_kernel.scale) if has_blocks else None

    def launcher_for(x: Array, out: Array | None) -> Launcher:
        return launcher(
            spec,
            request.granularity,
            x,
            out,
            shape=shape,
            dtypes=dtypes,
            plan=plan_elementwise,
            scale_order=scale_order,
        )

    def execute_for(x: Array, out: Array) -> Execute:
        return launcher_for(x, out).execute

    target = None if out is None else np.asarray(out)
    conversion = launcher_for(x, target)
    launch: Execute = never_fits
    if target is out:
        launch = conversion.bind_to_parameters(rules, x, target, result.nbytes, parameters, scale, zero_point)
    return BoundLaunch(
        refuse=refuse,
        execute=conversion.execute,
        launch=launch,
        ready=ready,
        execute_for=execute_for,
        strides=x.strides,
    )
