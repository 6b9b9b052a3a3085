"""Resolve measures of the errors of an approximation."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.elementwise import checked_qparams, spec_with, tensor_scale_of
from fastq.dispatch.granularity import make_layout
from fastq.dispatch.launch import DirectLauncher, Launcher, arrangement_of_packed, empty_codes, through_codes
from fastq.dispatch.loops import loop_of
from fastq.dispatch.planner import (
    ERRORS_CHUNK,
    NOT_STRIDED,
    StridedOperands,
    element_types,
    kernel_args,
    kernel_for,
)
from fastq.dispatch.refusal import refuse_nan_in_compare
from fastq.dispatch.spec import OpSpec, Parameters
from fastq.dispatch.strides import Arrangement, arrange, memory_of, order_without_gaps
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.driver import (
    OUT,
    SCALE,
    UNFIT,
    ZERO,
    Checks,
    LaunchPlan,
    X,
    never_fits,
    plan_launch,
)
from fastq.engine.runtime.driver import SUMS as ERRORS
from fastq.engine.runtime.float_mode import in_standard_mode
from fastq.engine.runtime.tiling import Operand, in_tiles
from fastq.kernels.args import IN_SQUARES, IN_TILE
from fastq.kernels.body.errors import SUM_LANES, SUMS
from fastq.kernels.build import element_type
from fastq.kernels.operands import ErrorOperands
from fastq.results import Comparison, QParams
from fastq.results.storage import check_stored_codes
from fastq.system.arguments import native

Array = NDArray[Any]

_VALUES = OpSpec("compare")  # the approximation is an array of values


class ErrorsPlan(NamedTuple):
    """A plan of sums of errors, and how many chunks have sums of their own."""

    plan: LaunchPlan
    chunks: int


def plan_errors(
    spec: OpSpec, shape: tuple[int, ...], *dtypes: np.dtype[Any], memory: StridedOperands = NOT_STRIDED
) -> ErrorsPlan:
    """Plan sums of the errors of an approximation, in place or in tiles."""
    kinds, layout = element_types(spec, *dtypes), make_layout(shape, spec.axes, spec.block_size)
    assert layout is not None
    accumulator = np.dtype(np.float64)
    loop = loop_of(layout, "compare", *kinds[:3])
    kernel = kernel_for(loop.function, ErrorOperands(*kinds, accumulator), "compare", spec.arithmetic)
    operands, size = (X, OUT, SCALE, ZERO, ERRORS), math.prod(shape)
    args, threads = kernel_args(layout, spec.code_range, repeat=loop.repeat), threadpool.threads_for(size)
    plan = plan_launch(kernel, operands, args, size, threads, chunk=ERRORS_CHUNK, wake_workers=True)
    if memory != NOT_STRIDED:
        x, q = (
            Operand(element_type(kind).bitwidth, *(each or ())) for kind, each in zip(kinds[:2], memory, strict=True)
        )
        tiled = in_tiles(
            plan,
            shape,
            x,
            q,
            sum_bytes=SUMS * SUM_LANES * accumulator.itemsize,
            args=IN_TILE,
            args_in_squares=IN_SQUARES,
        )
        assert tiled is not None
        plan = tiled
    (launch,) = plan.launches
    return ErrorsPlan(plan, int(-(-launch["stop"] // launch["chunk"])))


class ErrorsLaunch:
    """Launch sums of the errors of arrays of the same dtype, shape and strides.

    Attributes
    ----------
    launcher : Launcher
        Of the array, its codes, their parameters and the sums.
    """

    def __init__(self, spec: OpSpec, x: Array, q: Array, given: Parameters) -> None:
        packed = arrangement_of_packed(spec, x.shape, q) if spec.packs else None
        if spec.packs and packed is None:
            codes = empty_codes(spec, x.shape)
            direct, chunks = _direct(spec.unpacked, x, codes, given)
            self.launcher: Launcher = through_codes(spec, q, codes, direct)
        else:
            self.launcher, chunks = _direct(spec, x, q, given, packed)
        self.shape = chunks, SUMS, SUM_LANES

    def new_sums(self) -> Array:
        """Return sums of nothing."""
        return np.zeros(self.shape)


def _direct(
    spec: OpSpec, x: Array, q: Array, parameters: Parameters, arrangement: Arrangement | None = None
) -> tuple[DirectLauncher, int]:
    """Return a launcher on an array and its codes, or another array, and how many chunks have sums of their own."""
    if arrangement is None:
        order = order_without_gaps(parameters.scale)
        arrangement = arrange(x, q, spec.axes, spec.block_size, given=True, scale_order=order)
    view = arrangement.view(x)
    memory = StridedOperands(memory_of(view), memory_of(arrangement.view(q)))
    dtypes = map(native, (x.dtype, q.dtype, parameters.scale.dtype, parameters.zero_point.dtype))
    plan, chunks = plan_errors(spec.with_axes(arrangement.axes), view.shape, *dtypes, memory=memory)
    return DirectLauncher(plan, arrangement), chunks


def compare_codes(call: Call) -> BoundCall:
    """Resolve `fastq.compare` with a QuantizedArray."""
    x, codes, qparams, shape = call.x, call.out, call.qparams, call.shape
    validation.as_input(x)
    _check_shapes(x, shape)
    params, rules = checked_qparams(qparams, shape, qparams.compute_dtype)
    check_stored_codes(codes, params.dtype, shape)
    given = Parameters(params.scale, params.zero_point, tensor_scale_of(params))
    errors = ErrorsLaunch(spec_with("compare", params, x.ndim), x, codes, given.as_bits)
    passes = rules.pass_as_they_are(qparams.scale, qparams.zero_point, given) and not given.tensor_scale
    launch = errors.launcher.bound(rules.checks(x, None, 0, given), given.are_in_c_order) if passes else never_fits

    def measure(x: Array, codes: Array, scale: Any, zero_point: Any, qparams: QParams) -> Comparison:
        sums = errors.new_sums()
        status = launch(x, codes, scale, zero_point, sums)
        if status == UNFIT:
            given = in_standard_mode(rules.ready)(scale, zero_point, qparams.tensor_scale)
            status = errors.launcher.execute(x, np.asarray(codes), given.as_bits, sums)
        refuse_nan_in_compare(status, x)
        return _comparison(sums, x.size, has_codes=True)

    return measure


def compare_values(call: Call) -> BoundCall:
    """Resolve `fastq.compare` with an array."""
    x, values = call.x, call.out
    validation.as_input(x)
    if not validation.is_real(values.dtype):
        raise TypeError(f"q must be a QuantizedArray, or a float array, not {values.dtype}")
    _check_shapes(x, values.shape)
    given = Parameters(np.ones((), validation.compute_dtype(x.dtype)), np.zeros((), np.int8))
    errors = ErrorsLaunch(_VALUES, x, values, given)
    launch = errors.launcher.bound(Checks((0, 0, 0, 0)))

    def measure(x: Array, values: Array, *_: object) -> Comparison:
        sums = errors.new_sums()
        status = launch(x, np.asarray(values), given.scale, given.zero_point, sums)
        refuse_nan_in_compare(status, x)
        return _comparison(sums, x.size, has_codes=False)

    return measure


def _check_shapes(x: Array, shape: tuple[int, ...]) -> None:
    if x.shape != shape:
        raise ValueError(f"x has shape {x.shape}, but q has shape {shape}")
    if not x.size:
        raise ValueError("x is empty: there is no error to measure")


@in_standard_mode
def _comparison(sums: Array, size: int, has_codes: bool) -> Comparison:
    columns = (sums[0] if len(sums) == 1 else sums.transpose(1, 0, 2).reshape(SUMS, -1)).tolist()
    noise, signal, total, relative, zeros, clipped = (_sum(columns[k]) for k in (0, 1, 2, 3, 6, 7))
    nonzero = size - zeros
    return Comparison(
        mse=noise / size,
        sqnr_db=10.0 * (_log10(signal) - _log10(noise)),  # their quotient may overflow
        max_abs_error=_largest(columns[4], total),
        mean_abs_error=total / size,
        max_relative_error=_largest(columns[5], relative),
        mean_relative_error=relative / nonzero if nonzero else 0.0,
        clipped=int(clipped) if has_codes else None,
    )


def _sum(parts: list[float]) -> float:
    """Add up what is not negative, rounded once; infinite where the sum is too large for a float."""
    try:
        return math.fsum(parts)
    except OverflowError:
        return sum(parts)


def _log10(power: float) -> float:
    return math.log10(power) if power else -math.inf


def _largest(parts: list[float], total: float) -> float:
    """Return the largest of the errors that add up to `total`: NaN if one is.

    A sum keeps NaN in any order and by any path; a maximum of vectors does not.
    """
    return total if math.isnan(total) else max(parts)
