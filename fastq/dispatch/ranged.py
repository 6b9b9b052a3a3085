"""Resolve operations that take scale and zero point from the range of the array."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import Plan
from fastq.dispatch.granularity import check_block_size, kept_axes
from fastq.dispatch.launch import launcher, parted_by_bytes
from fastq.dispatch.parameters import Result, codes_result, values_result
from fastq.dispatch.planner import RangedPlan, plan_parameters, plan_ranged
from fastq.dispatch.reduction import Extremes, NanParts, shape_of_nothing
from fastq.dispatch.refusal import refuse_infinite, refuse_nan
from fastq.dispatch.spec import OpSpec, Parameters, op_spec
from fastq.dispatch.strides import arrange, is_plain, native
from fastq.formats.conventions import Convention, as_convention, part_of
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType, as_qtype
from fastq.kernels import SAW_INFINITE_RANGE
from fastq.results import Axis, QParams, QuantizedArray
from fastq.runtime.driver import UNFIT, Checks, bound, run

Array = NDArray[Any]


class Request(NamedTuple):
    """Everything about parameters except their values."""

    qtype: QType
    axis: Axis
    axes: tuple[int, ...] | None
    block_size: int
    symmetric: bool
    convention: str | Convention
    row: Convention
    compute: np.dtype[Any]
    nan: str

    def spec(self, op: str, saturate: bool = True) -> OpSpec:
        """Return the spec of an operation that takes parameters from ranges."""
        granularity, saturate = part_of(self.axes, self.block_size), validation.check_saturate(saturate)
        return op_spec(
            op,
            self.row,
            self.qtype,
            self.symmetric,
            granularity,
            self.compute,
            self.axes,
            self.block_size,
            self.nan,
            saturate,
            True,
        )


def _request(
    x: Array,
    dtype: object,
    axis: Axis,
    block_size: int,
    symmetric: bool,
    convention: str | Convention,
    nan: str,
    bits: int | None,
) -> Request:
    qtype = as_qtype(dtype)
    if bits is not None:
        qtype = qtype.with_bits(bits)
    axis, block_size = _granularity(qtype, axis, block_size)
    axes = kept_axes(axis, x.ndim)
    axis = axes if axes is None or isinstance(axis, tuple) else axes[0]
    if not isinstance(symmetric, bool | np.bool_):
        raise TypeError(f"symmetric must be a bool, not {symmetric!r}")
    if symmetric and qtype.bits == 1:
        raise ValueError(f"symmetric codes need at least 2 bits, and {qtype} has 1")
    always = bool(symmetric or qtype.element or qtype.block_size)
    row = as_convention(convention)
    row.check(qtype, always)
    nan = validation.check_nan(nan, qtype)
    return Request(qtype, axis, axes, block_size, always, convention, row, validation.compute_dtype(x.dtype), nan)


def _granularity(qtype: QType, axis: Axis, block_size: int) -> tuple[Axis, int]:
    """Return axis and block size, by default those that the format prescribes."""
    if not qtype.block_size:
        return axis, check_block_size(block_size, axis)
    if block_size not in (0, qtype.block_size):
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    axis = -1 if axis is None else axis
    return axis, check_block_size(qtype.block_size, axis)


# --- the operations ---------------------------------------------------------------------------------------------------


def quantize(x: Array, out: Any, _s: None, _z: None, _q: None, dtype: Any, saturate: bool, *options: Any) -> Plan:
    """Resolve `fastq.quantize` without parameters."""
    if dtype is None:
        raise TypeError("quantize needs dtype, the code format, or qparams")
    validation.as_input(x)
    request = _request(x, dtype, *options)
    launch = RangedLaunch(x, out, request, request.spec("quantize", saturate), codes_result(x, request.qtype, out))
    return lambda x, out, *_: QuantizedArray(*launch(x, out), x.shape)


def fake_quantize(x: Array, out: Any, _s: None, _z: None, _q: None, dtype: Any, saturate: bool, *options: Any) -> Plan:
    """Resolve `fastq.fake_quantize` without parameters."""
    validation.as_input(x)
    result = values_result(x, out)
    if dtype is None:
        raise TypeError("fake_quantize needs dtype, the code format, or qparams")
    request = _request(x, dtype, *options)
    launch = RangedLaunch(x, out, request, request.spec("fake", saturate), result)
    return lambda x, out, *_: launch(x, out)[0]


def choose_qparams(x: Array, _o: None, _s: None, _z: None, _q: None, dtype: Any, *options: Any) -> Plan:
    """Resolve `fastq.choose_qparams`."""
    validation.as_input(x)
    request = _request(x, dtype, *options)
    choose = ParameterChoice(x, request, request.spec("quantize"))

    def launch(x: Array, *_: object) -> QParams:
        given, status, tensor_scale = choose(x)
        refuse(status, request.nan, x)
        return choose.template.filled(given.scale, given.zero_point, tensor_scale)

    return launch


def refuse(status: int, nan: str, x: Array) -> None:
    """Raise an error if a status says that x can't be quantized by its range."""
    if status:
        refuse_nan(status, nan, x)
        refuse_infinite(status, x)


class Template(NamedTuple):
    """QParams without values, and the dtypes in which callers see what kernels write."""

    params: QParams
    scale_dtype: np.dtype[Any] | None
    zero_point_dtype: np.dtype[Any] | None

    def filled(self, scale: Array, zero_point: Array, tensor_scale: Array | None = None) -> QParams:
        """Return parameters as kernels wrote them, in the dtypes of the format."""
        scale = scale if self.scale_dtype is None else scale.view(self.scale_dtype)
        zero_point = zero_point if self.zero_point_dtype is None else zero_point.view(self.zero_point_dtype)
        params = self.params.with_values(scale, zero_point)
        return params if tensor_scale is None else replace(params, tensor_scale=tensor_scale)


def _template(request: Request, spec: OpSpec) -> Template:
    qtype, compute, scale_dtype = request.qtype, request.compute, spec.range_scheme.scale_dtype
    own = FLOAT_FORMATS[qtype.scale_element].dtype if qtype.scale_element else None
    computed = None if own is not None or scale_dtype == compute else compute
    where = request.axis, request.block_size, request.symmetric, request.convention
    params = QParams(np.empty(0, own or scale_dtype), np.empty(0), qtype, *where, computed=computed)
    return Template(params, own, qtype.storage if qtype.element else None)


class TensorScale:
    """Take the scale of the whole array that makes its largest block scale the largest there is."""

    def __init__(self, x: Array, request: Request) -> None:
        row = request.qtype.float_format
        assert row is not None
        self.compute = request.compute
        self.divisor = self.compute.type(FLOAT_FORMATS[request.qtype.scale_element].max * row.max)
        self.reduce = Extremes(x, None, 0, request.nan)

    def __call__(self, x: Array) -> tuple[NDArray[np.float32], int]:
        """Return the scale and the status."""
        lo, hi, status = self.reduce(x)
        largest = np.maximum(np.maximum(-lo.astype(self.compute), hi.astype(self.compute)), self.compute.type(0))
        if largest == np.inf:
            status |= SAW_INFINITE_RANGE
        least, most = validation.TENSOR_SCALES
        scale = largest / self.divisor
        return np.array(1 if scale < least else min(scale, most), np.float32), status


class ParameterChoice:
    """Choose scale and zero point from the ranges of arrays alike."""

    def __init__(self, x: Array, request: Request, spec: OpSpec) -> None:
        self.template, self.scheme, self.spec = _template(request, spec), spec.range_scheme, spec
        self.tensor_scale = TensorScale(x, request) if request.qtype.has_tensor_scale and x.size else None
        self.shape = shape_of_nothing(x, request.axes, request.block_size) if x.size == 0 else None
        if x.size:
            self.reduce = Extremes(x, request.axes, request.block_size, request.nan)
            self.plan = plan_parameters(spec, self.reduce.dtype, self.reduce.arrangement.layout.parameters)
            scale_format = spec.arithmetic.scale_format
            marks = request.nan == "keep" and scale_format is not None
            self.nan_parts = NanParts(x, request.axes, request.block_size) if marks else None
            self.nan_scale = FLOAT_FORMATS[scale_format.element].nan if scale_format else None

    def __call__(self, x: Array) -> tuple[Parameters, int, Array | None]:
        """Return parameters in the caller's order and the dtypes of kernels, the status, and the array's own scale."""
        scale_dtype, zero_point_dtype = self.scheme.scale_dtype, self.scheme.zero_point_dtype
        if self.shape is not None:
            one = np.ones((), np.float32) if self.template.params.dtype.has_tensor_scale else None
            return Parameters(np.empty(self.shape, scale_dtype), np.empty(self.shape, zero_point_dtype)), 0, one
        tensor_scale, status = None, 0
        if self.tensor_scale is not None:
            tensor_scale, status = self.tensor_scale(x)
        factor = 0.0 if tensor_scale is None else float(tensor_scale)
        lo, hi, seen = self.reduce(x)
        scale, zero_point = np.empty(lo.shape, scale_dtype), np.zeros(lo.shape, zero_point_dtype)
        status |= seen | run(self.plan.with_tensor(factor), None, None, scale, zero_point, None, lo, hi)
        if self.nan_parts is not None:
            scale[self.nan_parts(x)] = self.nan_scale
        arranged = self.reduce.arrangement.from_kernel
        return Parameters(arranged(scale), arranged(zero_point), factor), status, tensor_scale


class RangedLaunch:
    """Quantize or fake quantize arrays alike with parameters from their ranges: in one launch, or with Python between.

    Attributes
    ----------
    plan : RangedPlan or None
        One launch; None where strided memory or repeated parameters need Python between range and codes.
    """

    def __init__(self, x: Array, out: Any, request: Request, spec: OpSpec, result: Result) -> None:
        self.spec, self.new, self.size, self.nan = spec, result.new, x.size, request.nan
        target = None if out is None else np.asarray(out)
        self.plan = _one_launch(x, target, spec, result) if x.size else None
        if self.plan is None:
            self.choose = ParameterChoice(x, request, spec)
            self.template = self.choose.template
            dtypes = x.dtype, result.dtype, spec.range_scheme.scale_dtype, spec.range_scheme.zero_point_dtype
            if x.size:
                self.launcher = launcher(spec.given, x, target, x.shape, dtypes, backward=True)
            return
        self.tensor_scale = TensorScale(x, request) if request.qtype.has_tensor_scale else None
        self.template, self.arrangement = (
            _template(request, spec),
            arrange(x, _unpacked(spec, target), spec.axes, spec.block_size),
        )
        self.ranged, checks = self.plan, Checks((x.nbytes, result.nbytes, 0, 0))
        self.checked = self.ranged.plan.checked(checks)
        self.launch = bound(self.checked)

    def __call__(self, x: Array, out: Any) -> tuple[Array, QParams]:
        result = self.new() if out is None else out
        if self.plan is None:
            return result, self._launch_in_steps(x, np.asarray(result))
        scheme, shape = self.spec.range_scheme, self.arrangement.layout.shape
        scale, zero_point, tensor_scale = (
            np.empty(shape, scheme.scale_dtype),
            np.zeros(shape, scheme.zero_point_dtype),
            None,
        )
        launch, status = self.launch, 0
        if self.tensor_scale is not None:
            tensor_scale, status = self.tensor_scale(x)
            launch = bound(self.checked.with_tensor(float(tensor_scale)))
        target = result if type(result) is np.ndarray else np.asarray(result)
        seen = launch(x, target, scale, zero_point, None, *self.ranged.begin())
        if seen == UNFIT:
            (x,) = validation.copy_if_overlapping(target, x)
            seen = run(
                self.ranged.plan.with_tensor(0.0 if tensor_scale is None else float(tensor_scale)),
                x,
                target,
                scale,
                zero_point,
                None,
                *self.ranged.begin(),
            )
        if status | seen:
            refuse(status | seen, self.nan, x)
        if self.arrangement.order is not None:
            scale, zero_point = self.arrangement.from_kernel(scale), self.arrangement.from_kernel(zero_point)
        return result, self.template.filled(scale, zero_point, tensor_scale)

    def _launch_in_steps(self, x: Array, out: Array) -> QParams:
        (x,) = validation.copy_if_overlapping(out, x)
        given, status, tensor_scale = self.choose(x)
        if not status and self.size:
            status = self.launcher.execute(x, out, given)
        refuse(status, self.nan, x)
        return self.template.filled(given.scale, given.zero_point, tensor_scale)


def _unpacked(spec: OpSpec, out: Array | None) -> Array | None:
    """Return the result if its memory is arranged as that of x is: packed codes are in C order."""
    return None if spec.packs else out


def _one_launch(x: Array, out: Array | None, spec: OpSpec, result: Result) -> RangedPlan | None:
    """Plan one launch; None where there has to be Python between range and codes."""
    code, arrangement = spec.arithmetic.code_format, arrange(x, _unpacked(spec, out), spec.axes, spec.block_size)
    in_bytes = not spec.packs or (
        code is not None
        and is_plain(x)
        and is_plain(out)
        and parted_by_bytes(x.shape, spec.axes, spec.block_size, code.group)
    )
    if not arrangement.direct or not in_bytes:
        return None
    return plan_ranged(
        spec.with_axes(arrangement.axes), arrangement.view(x).shape, native(x.dtype), native(result.dtype)
    )
