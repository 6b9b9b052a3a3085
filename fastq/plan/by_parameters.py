"""Resolve operations with given parameters: quantize, dequantize and fake quantize element by element."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import never_fits
from fastq.formats.qtypes import check_stored_codes
from fastq.plan.arrange import Result, codes_result, order_without_gaps, result_of
from fastq.plan.cache import BoundCall, Call
from fastq.plan.launch import BoundLaunch, in_bits, launcher, nothing
from fastq.plan.refusal import refuse_nan
from fastq.plan.spec import OpSpec, spec_of
from fastq.requests import values
from fastq.requests.noise import Noise
from fastq.requests.parameters import ParameterRules, Parameters, checked_qparams, planned_qparams, rules_of, storage_of
from fastq.results import QParams, QuantizedArray, without_checks
from fastq.system.arguments import dtype_of, is_out

Array = NDArray[Any]


def quantize_linear(call: Call, x: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.quantize_linear`."""
    named = dtype_of(zero_point, "zero_point"), out.dtype if is_out(out) else None
    request = values.by_numbers(x.dtype, call.options, *named)
    rules = request.rules
    given = rules.ready(scale, zero_point)
    request = request.placed("x", x.shape, given.scale.shape, given.scale.size)
    given = given.reshaped(request.granularity.parameter_shape(x.shape))
    spec = spec_of("quantize", request)
    return _bound(spec, request, call, rules, given, codes_result(x, request.qtype, out))


def dequantize_linear(call: Call, codes: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.dequantize_linear`."""
    scale_dtype = dtype_of(scale, "scale")
    wanted = values.dtype_of_values(call.options.dtype, out, values.dtype_by_scale(scale_dtype))
    request = values.codes_by_numbers(codes.dtype, scale_dtype, wanted, call.options)
    rules = request.rules
    given = rules.ready(scale, zero_point)
    request = request.placed("codes", codes.shape, given.scale.shape, given.scale.size)
    given = given.reshaped(request.granularity.parameter_shape(codes.shape))
    spec, result = spec_of("dequantize", request), result_of(codes.shape, wanted, out, like=codes)
    return _bound(spec.in_bytes if request.qtype.packed else spec, request, call, rules, given, result)


def quantize_with_qparams(call: Call, x: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.quantize` with parameters."""
    compute = values.check_input(x.dtype)
    rules, params, request = _values_by_qparams(call, x, compute)
    spec, result = spec_of("quantize", request), codes_result(x, params.dtype, out)
    bound = _bound(spec, request, call, rules, given_by(params), result)

    @in_standard_mode
    def launch(
        x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams, noise: Noise | None = None
    ) -> QuantizedArray:
        codes = bound(x, out, scale, zero_point, qparams, noise)
        return without_checks(QuantizedArray, codes, checked_qparams(qparams, x.shape, compute), x.shape)

    def launch_as_they_are(
        x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams, noise: Noise | None = None
    ) -> QuantizedArray:
        return without_checks(QuantizedArray, bound(x, out, scale, zero_point, qparams, noise), qparams, x.shape)

    return launch_as_they_are if params is call.qparams else launch


def fake_quantize_with_qparams(call: Call, x: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.fake_quantize` with parameters."""
    rules, params, request = _values_by_qparams(call, x, values.check_input(x.dtype))
    spec, result = spec_of("fake", request), result_of(x.shape, values.dtype_of_fakes(x.dtype), out, like=x)
    return _bound(spec, request, call, rules, given_by(params), result)


def _values_by_qparams(call: Call, x: Array, compute: np.dtype[Any]) -> tuple[ParameterRules, QParams, values.Request]:
    """Return the rules for parameters, parameters that are ready for values, and the request."""
    rules = rules_of(call.qparams, compute)
    params = planned_qparams(call.qparams, x.shape, compute, rules)
    return rules, params, values.by_qparams(x.dtype, x.ndim, params, call.options)


def dequantize(call: Call, codes: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `QuantizedArray.dequantize`."""
    shape, compute = call.shape, call.qparams.compute_dtype
    rules = rules_of(call.qparams, compute)
    params = planned_qparams(call.qparams, shape, compute, rules)
    request = values.of_qparams(params, len(shape), compute, rules.convention)
    check_stored_codes(codes, params.dtype, shape)
    wanted = values.dtype_of_values(call.options.dtype, out, compute)
    result = result_of(shape, wanted, out, like=None if params.dtype.packed else codes)
    return _bound(spec_of("dequantize", request), request, call, rules, given_by(params), result)


def given_by(params: QParams) -> Parameters:
    """Return the numbers of QParams that are ready."""
    tensor_scale = 0.0 if params.tensor_scale is None else float(params.tensor_scale)
    return Parameters(params.scale, params.zero_point, tensor_scale)


def _bound(
    spec: OpSpec, request: values.Request, call: Call, rules: ParameterRules, given: Parameters, result: Result
) -> BoundCall:
    """Return what the plan cache keeps: a closure, in half the time of a method; `given` are parameters made ready."""
    zero_point = call.operands[3]
    zeros = given.zero_point.reshape(-1) if zero_point is None else None  # in one row
    # kernels read zero points of int16, of other signs, or floats
    small = isinstance(zero_point, np.ndarray) and zero_point.dtype.kind == "V"
    storage = storage_of(zero_point.dtype) if small else None
    storage = storage if given.zero_point.dtype == storage else None
    launch = launch_of(spec, request, call, rules, given, result, given.zero_point if storage else zero_point)
    new, launch_given, settle = result.new, launch.launch, launch.settle

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
    request: values.Request,
    call: Call,
    rules: ParameterRules,
    given: Parameters,
    result: Result,
    zero_point: Any,
) -> BoundLaunch:
    """Return the launch of an operation with given parameters."""
    (x, out, scale, _), of_parameters = call.operands, given.scale.shape

    # without `given`, which may be the caller's arrays
    def ready(scale: Any, zero_point: Any, tensor: Any, *noise: Noise | None) -> tuple[Any, ...]:
        return *in_bits(rules.ready(scale, zero_point, tensor).reshaped(of_parameters)), *noise

    refuse = functools.partial(refuse_nan, nan=spec.nan)
    if not x.size:
        return BoundLaunch(refuse, nothing, ready=ready)
    in_kernel, shape = in_bits(given), x.shape if call.shape is None else call.shape
    kinds = x.dtype, result.dtype, in_kernel.scale.dtype, in_kernel.zero_point.dtype
    order = order_without_gaps(in_kernel.scale) if request.granularity.block_size else None  # else it is not read
    target = None if out is None else np.asarray(out)
    for_arrays = functools.partial(launcher, spec, request.granularity, shape=shape, dtypes=kinds, scale_order=order)
    way, launch = for_arrays(x, target), never_fits
    if target is out:
        launch = way.bound_to(rules, x, target, result.nbytes, given, scale, zero_point)
    return BoundLaunch(refuse, way.execute, launch, ready, lambda x, out: for_arrays(x, out).execute, x.strides)
