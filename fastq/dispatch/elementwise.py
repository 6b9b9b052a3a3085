"""Resolve operations with given parameters: quantize, dequantize and fake quantize element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.granularity import kept_axes, parameter_shape
from fastq.dispatch.launch import launcher
from fastq.dispatch.parameters import ParameterRules, Result, codes_result, result_of, values_result
from fastq.dispatch.refusal import refuse_nan
from fastq.dispatch.spec import OpSpec, Parameters, op_spec
from fastq.dispatch.strides import order_without_gaps
from fastq.engine.runtime.driver import UNFIT, never_fits
from fastq.engine.runtime.float_mode import in_standard_mode
from fastq.formats.conventions import UNROUNDED, Convention, HalfPrecision, as_convention, granularity_of
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.results import Axis, QParams, QuantizedArray, without_checks
from fastq.results.storage import check_stored_codes
from fastq.system.arguments import as_axis, as_block_size, as_bool, dtype_of, is_out, native

Array = NDArray[Any]


class ElementwiseLaunch:
    """Launch an operation with given parameters; what the driver refuses is explained, or made ready, by validation.

    Attributes
    ----------
    launch : callable
        The compiled driver on x, result, scale and zero point as callers give them; it returns the status.
    zero_point : ndarray or None
        For callers who give none: zeros in one row.
    """

    def __init__(
        self,
        spec: OpSpec,
        x: Array,
        out: Any,
        scale: Any,
        zero_point: Any,
        given: Parameters,
        rules: ParameterRules,
        result: Result,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.spec, self.rules, self.new = spec, rules, result.new
        self.zero_point = given.zero_point.reshape(-1) if zero_point is None else None
        storage = validation.storage_of(zero_point)
        # kernels read others of int16, of other signs, or floats
        self.storage = storage if given.zero_point.dtype == storage else None
        if self.storage is not None:
            zero_point = given.zero_point
        ready = given.as_bits
        dtypes = x.dtype, result.dtype, ready.scale.dtype, ready.zero_point.dtype
        target = None if out is None else np.asarray(out)
        self.launcher_for = functools.partial(
            launcher,
            spec,
            shape=x.shape if shape is None else shape,
            dtypes=dtypes,
            scale_order=order_without_gaps(ready.scale),
        )
        self.strides = x.strides
        self.launcher = self.launcher_for(x, target) if x.size else None
        self.launch: Callable[..., int] = never_fits
        passes = not given.tensor_scale and target is out and rules.pass_as_they_are(scale, zero_point, given)
        if self.launcher and passes:
            self.launch = self.launcher.bound(rules.checks(x, target, result.nbytes, given), given.are_in_c_order)

    @property
    def bound(self) -> BoundCall:
        """What the plan cache keeps: a closure, which takes half the time of a method."""
        new, launch, launch_validated = self.new, self.launch, self._launch_validated
        zeros, nan, storage = self.zero_point, self.spec.nan, self.storage

        def call(x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams | None) -> Array:
            result = new() if out is None else out
            status = launch(x, result, scale, zeros if zero_point is None else zero_point)
            if status == UNFIT:
                launch_validated(x, result, scale, zero_point, qparams and qparams.tensor_scale)
            elif status:
                refuse_nan(status, nan, x)
            return result

        def call_in_storage(x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams | None) -> Array:
            return call(x, out, scale, zero_point.astype(storage), qparams)

        return call if storage is None else call_in_storage

    @in_standard_mode
    def _launch_validated(self, x: Array, out: Array, scale: Any, zero_point: Any, tensor_scale: Any) -> None:
        """Launch with parameters that validation makes ready, unless it raises; copy what shares memory with out.

        NaN is counted in the copy: out is written by then.
        """
        given = self.rules.ready(scale, zero_point, tensor_scale)
        if self.launcher is None:
            return
        out = np.asarray(out)
        x, scale, zero_point = validation.copy_if_overlapping(out, x, given.scale, given.zero_point)
        launcher = self.launcher if x.strides == self.strides else self.launcher_for(x, out)
        status = launcher.execute(x, out, Parameters(scale, zero_point, given.tensor_scale).as_bits)
        refuse_nan(status, self.spec.nan, x)


# --- raw parameters ---------------------------------------------------------------------------------------------------


def quantize_linear(call: Call) -> BoundCall:
    """Resolve `fastq.quantize_linear`."""
    _, x, out, scale, zero_point, *_ = call
    axis, block_size, saturate, dtype, convention, nan = call.options
    resolved = resolve_quantize(x, out, scale, zero_point, dtype, convention, nan, axis, block_size, saturate)
    result = codes_result(x, resolved.rules.qtype, out)
    return ElementwiseLaunch(resolved.spec, x, out, scale, zero_point, resolved.given, resolved.rules, result).bound


class Resolved(NamedTuple):
    """An operation with raw parameters: its spec, the rules of its parameters, and those made ready."""

    spec: OpSpec
    rules: ParameterRules
    given: Parameters


def resolve_quantize(
    x: Array,
    out: Any,
    scale: Any,
    zero_point: Any,
    dtype: Any,
    convention: str | Convention,
    nan: str,
    axis: Axis,
    block_size: int,
    saturate: bool,
) -> Resolved:
    """Validate the arguments of `fastq.quantize_linear` but the shape and dtype of out."""
    validation.as_input(x)
    row, compute, qtype = (
        as_convention(convention),
        validation.compute_dtype(x.dtype),
        _qtype_for(dtype, zero_point, out),
    )
    if qtype.block_size:
        raise TypeError(f"dtype must be a format without scales of its own, not {qtype}; see quantize")
    row.check_format(qtype)
    rules = ParameterRules(qtype, row, row.scale_dtype(compute))
    given = rules.ready(scale, zero_point)
    axes, block_size = _place("x", x.shape, given.scale, axis, block_size)
    nan, saturate = validation.check_nan(nan, qtype), as_bool(saturate, "saturate")
    granularity = granularity_of(axes, block_size)
    half = row.rounded_to(native(x.dtype))
    spec = op_spec("quantize", row, qtype, False, granularity, compute, axes, block_size, nan, saturate, half=half)
    return Resolved(spec, rules, given)


def _qtype_for(dtype: object, zero_point: Any, out: Any) -> QType:
    """Return the code format: named, else that of the zero point, else that of out, else ONNX's default."""
    if dtype is not None:
        return as_qtype(dtype)
    for given in (dtype_of(zero_point, "zero_point"), out.dtype if is_out(out) else None):
        if given is not None and given.name in QTYPES:
            return QTYPES[given.name]
    return QTYPES["uint8"]


def _place(
    name: str, shape: tuple[int, ...], scale: Array, axis: Axis, block_size: int
) -> tuple[tuple[int, ...] | None, int]:
    """Return axes and block size that raw parameters belong to; one number belongs to the whole array."""
    axis = as_axis(axis)
    block_size = as_block_size(block_size, axis)
    if scale.size == 1:
        return None, 0
    axes = kept_axes(axis, len(shape), name)
    validation.check_parameter_shape("scale", scale.shape, scale.size, parameter_shape(shape, axes, block_size))
    return axes, block_size


def dequantize_linear(call: Call) -> BoundCall:
    """Resolve `fastq.dequantize_linear`."""
    _, codes, out, scale, zero_point, *_ = call
    axis, block_size, dtype, convention = call.options
    codes, qtype = validation.as_codes(codes)
    resolved, wanted = resolve_dequantize(codes, qtype, out, scale, zero_point, dtype, convention, axis, block_size)
    spec, result = resolved.spec, result_of(codes.shape, wanted, out, like=codes)
    spec = spec.in_bytes if qtype.packed else spec
    return ElementwiseLaunch(spec, codes, out, scale, zero_point, resolved.given, resolved.rules, result).bound


def resolve_dequantize(
    codes: Array,
    qtype: QType,
    out: Any,
    scale: Any,
    zero_point: Any,
    dtype: DTypeLike | None,
    convention: str | Convention,
    axis: Axis,
    block_size: int,
) -> tuple[Resolved, np.dtype[Any]]:
    """Validate the arguments of `fastq.dequantize_linear` but the shape of out; return the dtype of the result too."""
    row = as_convention(convention)
    row.check_format(qtype)
    scale_dtype = dtype_of(scale, "scale") or np.dtype(np.float32)
    rules = ParameterRules(qtype, row, row.scale_dtype(validation.compute_dtype(scale_dtype)))
    given = rules.ready(scale, zero_point)
    axes, block_size = _place("codes", codes.shape, given.scale, axis, block_size)
    wanted = _output_dtype(scale_dtype, dtype, out)
    product = validation.compute_dtype(wanted) if row.stored_type == "float64" else given.scale.dtype
    spec = op_spec("dequantize", row, qtype, False, granularity_of(axes, block_size), product, axes, block_size)
    return Resolved(spec, rules, given), wanted


def _output_dtype(default: np.dtype[Any], dtype: DTypeLike | None, out: Any) -> np.dtype[Any]:
    if dtype is not None:
        return validation.as_real(dtype, "dtype")
    return validation.as_real(out.dtype, "out") if is_out(out) else default


# --- QParams ----------------------------------------------------------------------------------------------------------


def quantize_with_qparams(call: Call) -> BoundCall:
    """Resolve `fastq.quantize` with parameters."""
    x, out, (saturate, nan, _) = call.x, call.out, call.options
    validation.as_input(x)
    compute = validation.compute_dtype(x.dtype)
    params, rules = checked_qparams(call.qparams, x.shape, compute)
    validation.check_nan(nan, params.dtype, given=True)
    result = codes_result(x, params.dtype, out)
    bound = _with_qparams("quantize", call, params, rules, result, nan, saturate)

    def launch(x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams) -> QuantizedArray:
        codes = bound(x, out, scale, zero_point, qparams)
        return without_checks(QuantizedArray, codes, checked_qparams(qparams, x.shape, compute)[0], x.shape)

    def launch_as_they_are(x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams) -> QuantizedArray:
        return without_checks(QuantizedArray, bound(x, out, scale, zero_point, qparams), qparams, x.shape)

    return launch_as_they_are if params is call.qparams else launch


def fake_quantize_with_qparams(call: Call) -> BoundCall:
    """Resolve `fastq.fake_quantize` with parameters."""
    x, (saturate, nan, _) = call.x, call.options
    validation.as_input(x)
    params, rules = checked_qparams(call.qparams, x.shape, validation.compute_dtype(x.dtype))
    validation.check_nan(nan, params.dtype, given=True)
    return _with_qparams("fake", call, params, rules, values_result(x, call.out), nan, saturate)


def dequantize(call: Call) -> BoundCall:
    """Resolve `QuantizedArray.dequantize`."""
    codes, out, qparams, (dtype, _), shape = call.x, call.out, call.qparams, call.options, call.shape
    params, rules = checked_qparams(qparams, shape, qparams.compute_dtype)
    check_stored_codes(codes, params.dtype, shape)
    wanted = _output_dtype(params.compute_dtype, dtype, out)
    result = result_of(shape, wanted, out, like=None if params.dtype.packed else codes)
    return _with_qparams("dequantize", call, params, rules, result)


def _with_qparams(
    op: str,
    call: Call,
    params: QParams,
    rules: ParameterRules,
    result: Result,
    nan: str = "raise",
    saturate: bool = True,
) -> BoundCall:
    """Return what launches an operation by its QParams, `params` where they are in the compute type."""
    x, qparams, shape = call.x, call.qparams, call.shape
    given = Parameters(params.scale, params.zero_point, tensor_scale_of(params))
    half = as_convention(params.convention).rounded_to(native(x.dtype))
    spec = spec_with(op, params, x.ndim if shape is None else len(shape), nan, saturate, half)
    return ElementwiseLaunch(spec, x, call.out, qparams.scale, qparams.zero_point, given, rules, result, shape).bound


def tensor_scale_of(params: QParams) -> float:
    """Return the scale of the whole array as a number, 0 where there is none."""
    return 0.0 if params.tensor_scale is None else float(params.tensor_scale)


def spec_with(
    op: str, params: QParams, ndim: int, nan: str = "raise", saturate: bool = True, half: HalfPrecision = UNROUNDED
) -> OpSpec:
    """Return the spec of an operation with given parameters; one number belongs to the whole array."""
    row, block_size = as_convention(params.convention), params.block_size
    granularity, symmetric = granularity_of(params.axis, block_size), params.symmetric
    axes, block_size = (kept_axes(params.axis, ndim), block_size) if params.scale.size > 1 else (None, 0)
    saturate, compute = as_bool(saturate, "saturate"), params.compute_dtype
    where = granularity, compute, axes, block_size
    return op_spec(op, row, params.dtype, symmetric, *where, nan, saturate, half=half)


def checked_qparams(params: QParams, shape: tuple[int, ...], compute: np.dtype[Any]) -> tuple[QParams, ParameterRules]:
    """Return parameters that belong to an array of this shape, the scale in the compute type, and their rules."""
    row, qtype = as_convention(params.convention), params.dtype
    rules = ParameterRules(qtype, row, row.scale_dtype(compute), params.block_size)
    scale = rules.ready_scale(params.scale)
    rules.ready_tensor_scale(params.tensor_scale)
    wanted = parameter_shape(shape, kept_axes(params.axis, len(shape), "the values"), params.block_size)
    validation.check_parameter_shape("qparams.scale", scale.shape, scale.size, wanted)
    zero_point = rules.ready_zero_point(params.zero_point, scale)
    if scale is params.scale and zero_point is params.zero_point and compute == params.compute_dtype:
        return params, rules
    computed = None if qtype.scale_element or scale.dtype == compute else compute
    return replace(params, scale=scale, zero_point=zero_point, computed=computed), rules
