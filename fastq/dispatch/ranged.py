"""Resolve operations that take scale and zero point from the range of the array."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.granularity import kept_axes
from fastq.dispatch.launch import arrangement_of_packed, launcher, strided_operands
from fastq.dispatch.parameters import Result, codes_result, values_result
from fastq.dispatch.planner import RangedPlan, plan_parameters, plan_ranged, with_tensor
from fastq.dispatch.range_search import RangeSearch
from fastq.dispatch.reduction import Extremes, NanParts, parameter_shape_of_empty
from fastq.dispatch.refusal import refuse_infinite, refuse_nan
from fastq.dispatch.spec import OpSpec, Parameters, op_spec
from fastq.dispatch.strides import (
    Arrangement,
    arrange,
    extent_of,
    is_plain,
    memory_order,
)
from fastq.engine.runtime.driver import UNFIT, Checks, bind, run
from fastq.engine.runtime.float_mode import in_standard_mode
from fastq.formats.conventions import Convention, HalfPrecision, as_convention, granularity_of
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType, as_qtype
from fastq.formats.range_methods import MSERange, as_range_method
from fastq.kernels.status import HAS_INFINITE_RANGE
from fastq.results import Axis, QParams, QuantizedArray, without_checks
from fastq.system.arguments import as_axis, as_block_size, as_bool, native

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
    half: HalfPrecision
    nan: str
    saturate: bool
    search: MSERange | None

    def spec(self, op: str) -> OpSpec:
        """Return the spec of an operation that takes parameters from ranges."""
        return op_spec(
            op,
            self.row,
            self.qtype,
            self.symmetric,
            granularity_of(self.axes, self.block_size),
            self.compute,
            self.axes,
            self.block_size,
            self.nan,
            self.saturate,
            True,
            self.half,
        )


class RangeOptions(NamedTuple):
    """Options of operations that take parameters from ranges, as callers gave them, in the order of `Call.options`."""

    axis: Axis
    block_size: int
    symmetric: bool
    saturate: bool
    bits: int | None
    dtype: object
    convention: str | Convention
    nan: str
    method: str | MSERange


def request_of(x: Array, options: RangeOptions) -> Request:
    """Validate what says which parameters are taken from an array's ranges."""
    saturate, search = as_bool(options.saturate, "saturate"), as_range_method(options.method)
    if not saturate and search is not None:
        raise ValueError("saturate must be True where range is searched for: what lies beyond it would be infinite")
    qtype = as_qtype(options.dtype)
    if options.bits is not None:
        qtype = qtype.with_bits(options.bits)
    axis, block_size = _granularity(qtype, options.axis, options.block_size)
    axes = kept_axes(axis, x.ndim)
    axis = axes if axes is None or isinstance(axis, tuple) else axes[0]
    symmetric = as_bool(options.symmetric, "symmetric")
    if symmetric and qtype.bits == 1:
        raise ValueError(f"symmetric codes need at least 2 bits, and {qtype} has 1")
    always = bool(symmetric or qtype.element or qtype.block_size)
    row = as_convention(options.convention)
    row.check(qtype, always, granularity_of(axis, block_size))
    nan, compute = validation.check_nan(options.nan, qtype), validation.compute_dtype(x.dtype)
    half, convention = row.rounded_to(native(x.dtype)), options.convention
    return Request(qtype, axis, axes, block_size, always, convention, row, compute, half, nan, saturate, search)


def _granularity(qtype: QType, axis: Axis, block_size: int) -> tuple[Axis, int]:
    """Return axis and block size, by default those that the format prescribes."""
    if not qtype.block_size:
        axis = as_axis(axis)
        return axis, as_block_size(block_size, axis)
    axis = -1 if axis is None else as_axis(axis)
    block_size = as_block_size(block_size, axis)
    if block_size not in (0, qtype.block_size):
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    return axis, as_block_size(qtype.block_size, axis)


# --- the operations ---------------------------------------------------------------------------------------------------


def quantize(call: Call) -> BoundCall:
    """Resolve `fastq.quantize` without parameters."""
    x, out, options = call.x, call.out, RangeOptions(*call.options)
    if options.dtype is None:
        raise TypeError("quantize needs dtype, the code format, or qparams")
    validation.as_input(x)
    request = request_of(x, options)
    launch = _launch(x, out, request, request.spec("quantize"), codes_result(x, request.qtype, out))
    return lambda x, out, *_: without_checks(QuantizedArray, *launch(x, out), x.shape)


def fake_quantize(call: Call) -> BoundCall:
    """Resolve `fastq.fake_quantize` without parameters."""
    x, out, options = call.x, call.out, RangeOptions(*call.options)
    validation.as_input(x)
    if options.dtype is None:
        raise TypeError("fake_quantize needs dtype, the code format, or qparams")
    request = request_of(x, options)
    launch = _launch(x, out, request, request.spec("fake"), values_result(x, out))
    return lambda x, out, *_: launch(x, out)[0]


def choose_qparams(call: Call) -> BoundCall:
    """Resolve `fastq.choose_qparams`."""
    validation.as_input(call.x)
    request = request_of(call.x, RangeOptions(*call.options))
    choice = ParameterChoice(call.x, request, request.spec("quantize"))
    choose, filled, nan = choice.bound, choice.template.filled, request.nan

    def launch(x: Array, *_: object) -> QParams:
        given, status, tensor_scale = choose(x)
        if status:
            refuse(status, nan, x)
        return filled(given.scale, given.zero_point, tensor_scale)

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
    """Compute the tensor scale, with which the largest block scale is the largest float8_e4m3fn number."""

    def __init__(self, x: Array, request: Request) -> None:
        row = request.qtype.float_format
        assert row is not None
        self.compute = request.compute
        self.divisor = self.compute.type(FLOAT_FORMATS[request.qtype.scale_element].max * row.max)
        self.reduce = Extremes(x, None, 0, request.nan)

    @in_standard_mode
    @np.errstate(under="ignore")
    def __call__(self, x: Array) -> tuple[NDArray[np.float32], int]:
        """Return the scale and the status."""
        lo, hi, status = self.reduce(x)
        largest = np.maximum(np.maximum(-lo.astype(self.compute), hi.astype(self.compute)), self.compute.type(0))
        if largest == np.inf:
            status |= HAS_INFINITE_RANGE
        least, most = validation.TENSOR_SCALES
        scale = largest / self.divisor
        return np.array(1 if scale < least else min(scale, most), np.float32), status


class ParameterChoice:
    """Choose scale and zero point from the ranges of arrays of the same dtype, shape and strides."""

    def __init__(self, x: Array, request: Request, spec: OpSpec) -> None:
        self.template, self.scheme, self.spec = _template(request, spec), spec.range_scheme, spec
        self.tensor_scale = TensorScale(x, request) if request.qtype.has_tensor_scale and x.size else None
        self.shape = parameter_shape_of_empty(x, request.axes, request.block_size) if x.size == 0 else None
        if x.size:
            self.reduce = Extremes(x, request.axes, request.block_size, request.nan)
            self.search = None if request.search is None else RangeSearch(x, spec, request.compute, request.search)
            accumulator = self.reduce.dtype if self.search is None else request.compute
            self.plan = plan_parameters(spec, accumulator, self.reduce.arrangement.layout.parameters)
            both = self.tensor_scale is None and self.search is None  # nothing is between the two
            self.launch = bind(self.reduce.plan.plan.then(self.plan)) if both else None
            scale_format = spec.arithmetic.scale_format
            marks = request.nan == "keep" and scale_format is not None and validation.is_real(x.dtype)
            self.nan_parts = NanParts(x, request.axes, request.block_size) if marks else None
            self.nan_scale = FLOAT_FORMATS[scale_format.element].nan if scale_format else None

    @property
    def bound(self) -> Callable[[Array], tuple[Parameters, int, Array | None]]:
        """What chooses, a closure, which takes half the time of a method.

        It returns parameters in the caller's order and the dtypes of kernels, the status, and the array's own scale.
        """
        scale_dtype, zero_point_dtype = self.scheme.scale_dtype, self.scheme.zero_point_dtype
        shape = self.reduce.plan.shape if self.shape is None else self.shape
        new_scale = functools.partial(np.empty, shape, scale_dtype)
        new_zero_point = functools.partial(np.zeros, shape, zero_point_dtype)
        if self.shape is not None:
            one = np.ones((), np.float32) if self.template.params.dtype.has_tensor_scale else None
            return lambda x: (Parameters(new_scale(), new_zero_point()), 0, one)
        launch, begin, arrangement = self.launch, self.reduce.plan.begin, self.reduce.arrangement
        arranged = None if arrangement.order is None else arrangement.from_kernel

        def choose(x: Array) -> tuple[Parameters, int, Array | None]:
            scale, zero_point, factor, status = new_scale(), new_zero_point(), 0.0, 0
            tensor_scale: Array | None = None
            if self.tensor_scale is not None:
                tensor_scale, status = self.tensor_scale(x)
                factor = float(tensor_scale)
            if launch is not None:
                status = launch(x, None, scale, zero_point, None, *begin())
            else:
                status = self._launch_in_steps(x, scale, zero_point, factor, status)
            if self.nan_parts is not None:
                scale[self.nan_parts(x)] = self.nan_scale
            if arranged is not None:
                scale, zero_point = arranged(scale), arranged(zero_point)
            return Parameters(scale, zero_point, factor), status, tensor_scale

        return choose

    def _launch_in_steps(self, x: Array, scale: Array, zero_point: Array, tensor_scale: float, status: int) -> int:
        """Launch with the scale of the whole array, or with ranges that are searched for unless x is refused.

        `status` is that of a reduction before; return it with what was found now.
        """
        lo, hi, seen = self.reduce(x)
        status |= seen
        if self.search is not None and not status:
            lo, hi = self._shrunk(x, lo, hi, tensor_scale)
        return status | run(with_tensor(self.plan, tensor_scale), None, None, scale, zero_point, None, lo, hi)

    def _shrunk(self, x: Array, lo: Array, hi: Array, tensor_scale: float) -> tuple[Array, Array]:
        """Return the ends of the ranges with the least error, in the order of kernels."""
        assert self.search is not None
        arrangement = self.reduce.arrangement
        low, high = self.search(x, arrangement.from_kernel(lo), arrangement.from_kernel(hi), tensor_scale)
        return arrangement.to_kernel(low), arrangement.to_kernel(high)


Quantized = tuple[Array, QParams]  # codes, or values of fake quantization, and the parameters


class RangedLaunch:
    """Launch an operation with parameters from ranges at once, on arrays of the same dtype, shape and strides.

    NaN and infinities are refused by what kernels report; the driver refuses output that shares memory with the input.
    """

    def __init__(
        self,
        x: Array,
        out: Array | None,
        request: Request,
        spec: OpSpec,
        result: Result,
        ranged: RangedPlan,
        arrangement: Arrangement,
        plan_for: Callable[[Array, Array], RangedPlan | None],
    ) -> None:
        self.request, self.new, self.ranged, self.plan_for = request, result.new, ranged, plan_for
        self.arrangement, self.scheme, self.template = arrangement, spec.range_scheme, _template(request, spec)
        self.tensor_scale = TensorScale(x, request) if request.qtype.has_tensor_scale else None
        (low_x, nbytes_x), (low_out, nbytes_out) = extent_of(x), (0, result.nbytes) if out is None else extent_of(out)
        self.checked = ranged.plan.checked(Checks((nbytes_x, nbytes_out, 0, 0), lowest=(low_x, low_out)))

    @property
    def bound(self) -> Callable[[Array, Any], Quantized]:
        """What the plan cache keeps: a closure, which takes half the time of a method."""
        new, launch, begin, filled, nan = (
            self.new,
            bind(self.checked),
            self.ranged.begin,
            self.template.filled,
            self.request.nan,
        )
        new_scale = functools.partial(np.empty, self.arrangement.layout.shape, self.scheme.scale_dtype)
        new_zero_point = functools.partial(np.zeros, self.arrangement.layout.shape, self.scheme.zero_point_dtype)
        arranged = None if self.arrangement.order is None else self.arrangement.from_kernel

        def call(x: Array, out: Any) -> Quantized:
            result, scale, zero_point = new() if out is None else out, new_scale(), new_zero_point()
            status = launch(x, result, scale, zero_point, None, *begin())
            if status == UNFIT:
                self._launch_on_copies(x, result, scale, zero_point)
            elif status:
                refuse(status, nan, x)
            if arranged is not None:
                scale, zero_point = arranged(scale), arranged(zero_point)
            return result, filled(scale, zero_point)

        return call if self.tensor_scale is None else self._launch_with_tensor_scale

    def _launch_on_copies(
        self,
        x: Array,
        out: Any,
        scale: Array,
        zero_point: Array,
        tensor_scale: Array | None = None,
        status: int = 0,
    ) -> None:
        """Launch for any output: on a copy of x where it shares memory with that, in which is counted what is refused.

        `status` is that of a reduction before.
        """
        out = target = np.asarray(out)
        (source,) = validation.copy_if_overlapping(out, x)
        ranged = self.ranged if source.strides == x.strides else self.plan_for(source, out)
        if ranged is None:  # a copy without gaps may have longer rows, too long for a tile
            source = self.arrangement.in_order(source)
            target = np.empty_like(source, out.dtype, shape=out.shape)  # in the order of memory of that
            ranged = self.plan_for(source, target)
            assert ranged is not None  # of memory that goes through no tiles
        plan = with_tensor(ranged.plan, 0.0 if tensor_scale is None else float(tensor_scale))
        status |= run(plan, source, target, scale, zero_point, None, *ranged.begin())
        if target is not out:
            out[...] = target
        refuse(status, self.request.nan, source)

    def _launch_with_tensor_scale(self, x: Array, out: Any) -> Quantized:
        """Launch with the scale of the whole array, which is a reduction before."""
        assert self.tensor_scale is not None
        result, shape = self.new() if out is None else out, self.arrangement.layout.shape
        scale, zero_point = np.empty(shape, self.scheme.scale_dtype), np.zeros(shape, self.scheme.zero_point_dtype)
        tensor_scale, status = self.tensor_scale(x)
        self._launch_on_copies(x, result, scale, zero_point, tensor_scale, status)
        arranged = self.arrangement.from_kernel
        return result, self.template.filled(arranged(scale), arranged(zero_point), tensor_scale)


class SteppedLaunch:
    """Launch an operation with parameters from ranges in steps, with Python between them.

    Strided memory goes through buffers twice; parameters of blocks with NaN are marked.
    """

    def __init__(self, x: Array, out: Array | None, request: Request, spec: OpSpec, result: Result) -> None:
        self.new, self.nan, self.choice = result.new, request.nan, ParameterChoice(x, request, spec)
        self.choose = self.choice.bound
        self.anew = functools.partial(SteppedLaunch, request=request, spec=spec, result=result)
        dtypes = x.dtype, result.dtype, spec.range_scheme.scale_dtype, spec.range_scheme.zero_point_dtype
        self.launcher = None
        if x.size:
            order = self.choice.reduce.arrangement.parameter_order or tuple(range(x.ndim))
            self.launcher = launcher(spec.given, x, out, x.shape, dtypes, backward=True, scale_order=order)

    def launch(self, x: Array, out: Any) -> Quantized:
        """Launch; return codes or values, and their parameters."""
        result = self.new() if out is None else out
        target = np.asarray(result)
        (source,) = validation.copy_if_overlapping(target, x)
        if source.strides != x.strides:  # the plans are for the memory of x
            return self.anew(source, target).launch(source, out)
        given, status, tensor_scale = self.choose(source)
        if not status and self.launcher is not None:
            status = self.launcher.execute(source, target, given)
        refuse(status, self.nan, source)
        return result, self.choice.template.filled(given.scale, given.zero_point, tensor_scale)


def _launch(x: Array, out: Any, request: Request, spec: OpSpec, result: Result) -> Callable[[Array, Any], Quantized]:
    """Return what does an operation: in one launch if that can be, else in steps."""
    target = None if out is None else np.asarray(out)
    arrangement = None if x.size == 0 or request.search is not None else _arrangement_of(x, target, spec)
    if arrangement is not None:
        plan_for = functools.partial(_plan_for, spec, native(x.dtype), native(result.dtype), arrangement)
        ranged = plan_for(x, target, one_pass=not _is_in_order(arrangement.view(x)))
        if ranged is not None:
            return RangedLaunch(x, target, request, spec, result, ranged, arrangement, plan_for).bound
    return SteppedLaunch(x, target, request, spec, result).launch


def _arrangement_of(x: Array, out: Array | None, spec: OpSpec) -> Arrangement | None:
    """Return how kernels see arrays at once; None where codes that are packed don't allow it."""
    if spec.packs:
        return arrangement_of_packed(spec, x.shape, out)
    return arrange(x, out, spec.axes, spec.block_size)


def _plan_for(
    spec: OpSpec,
    src: np.dtype[Any],
    dst: np.dtype[Any],
    arrangement: Arrangement,
    x: Array,
    out: Array | None,
    one_pass: bool = False,
) -> RangedPlan | None:
    """Plan for arrays; with `one_pass` not in two, which had better go through x each in its own way."""
    memory = strided_operands(arrangement, x, out, dst, spec.packs)
    return plan_ranged(spec.with_axes(arrangement.axes), arrangement.view(x).shape, src, dst, memory, one_pass)


def _is_in_order(x: Array) -> bool:
    """Whether the elements of an array lie in memory in C order, if with gaps."""
    return is_plain(x) or memory_order(x) == tuple(range(x.ndim))
