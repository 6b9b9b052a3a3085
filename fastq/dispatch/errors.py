"""Resolve measures of the errors of an approximation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import Plan
from fastq.dispatch.elementwise import check_stored_codes, checked_qparams, spec_with, tensor_scale_of
from fastq.dispatch.granularity import make_layout
from fastq.dispatch.launch import parted_by_bytes
from fastq.dispatch.planner import ERRORS_CHUNK, plan_errors
from fastq.dispatch.refusal import refuse_nan
from fastq.dispatch.spec import OpSpec, Parameters
from fastq.dispatch.strides import arrange, is_plain, tiles
from fastq.dispatch.subbyte import unpack_codes
from fastq.kernels.loops.compare import SUMS as MEASURES
from fastq.results import Comparison, QParams
from fastq.runtime.driver import UNFIT, bind, run
from fastq.runtime.float_mode import in_standard_mode
from fastq.system.arguments import native

Array = NDArray[Any]

_VALUES = OpSpec("compare")  # the approximation is an array of values


def compare_codes(
    x: Array, codes: Array, _s: Any, _z: Any, qparams: QParams, _: object, shape: tuple[int, ...]
) -> Plan:
    """Resolve `fastq.compare` with a QuantizedArray."""
    validation.as_input(x)
    _check_shapes(x, shape)
    params, rules = checked_qparams(qparams, shape, qparams.compute_dtype)
    check_stored_codes(codes, params.dtype, shape)
    given = Parameters(params.scale, params.zero_point, tensor_scale_of(params))
    spec = spec_with("compare", params, x.ndim)
    direct = _direct(spec, x, codes, given.as_bits)
    passes = rules.pass_as_they_are(qparams.scale, qparams.zero_point, given) and not given.tensor_scale
    launch = bind(direct.checked(rules.checks(x, None, 0, given))) if direct and passes else _refuse

    def measure(x: Array, codes: Array, scale: Any, zero_point: Any, qparams: QParams) -> Comparison:
        sums = _sums_of(x.size)
        status = launch(x, codes, scale, zero_point, sums)
        if status == UNFIT:
            given = in_standard_mode(rules.ready)(scale, zero_point, qparams.tensor_scale)
            status = _execute(spec, x, np.asarray(codes), given.as_bits, sums)
        if status:
            refuse_nan(status, "raise", x)
        return _comparison(sums, x.size, has_codes=True)

    return measure


def compare_values(x: Array, values: Array, *_: object) -> Plan:
    """Resolve `fastq.compare` with an array."""
    validation.as_input(x)
    if not validation.is_real(values.dtype):
        raise TypeError(f"q must be a QuantizedArray, or a float array, not {values.dtype}")
    _check_shapes(x, values.shape)
    given = Parameters(np.ones((), validation.compute_dtype(x.dtype)), np.zeros((), np.int8))
    direct = _direct(_VALUES, x, values, given)
    launch = bind(direct) if direct else None

    def measure(x: Array, values: Array, *_: object) -> Comparison:
        sums = _sums_of(x.size)
        if launch is not None:
            status = launch(x, values, given.scale, given.zero_point, sums)
        else:
            status = _execute(_VALUES, x, values, given, sums)
        if status:
            refuse_nan(status, "raise", x)
        return _comparison(sums, x.size, has_codes=False)

    return measure


def _check_shapes(x: Array, shape: tuple[int, ...]) -> None:
    if x.shape != shape:
        raise ValueError(f"x has shape {x.shape}, but q has shape {shape}")
    if not x.size:
        raise ValueError("x is empty: there is no error to measure")


def _refuse(*operands: object) -> int:
    return UNFIT


def _sums_of(size: int) -> Array:
    """Return places for the sums of the errors of so many elements."""
    return np.zeros((-(-size // ERRORS_CHUNK), MEASURES))


def _direct(spec: OpSpec, x: Array, q: Array, given: Parameters) -> Any:
    """Return the plan for arrays whose memory kernels can read as it is, else None."""
    code = spec.arithmetic.code_format
    plain, parts = is_plain(x) and is_plain(q) and type(q) is np.ndarray, (x.shape, spec.axes, spec.block_size)
    if not plain or make_layout(*parts) is None:
        return None
    if code is not None and spec.packs and not parted_by_bytes(*parts, code.group):
        return None
    return plan_errors(spec, x.shape, x.dtype, q.dtype, given.scale.dtype, given.zero_point.dtype)


def _execute(spec: OpSpec, x: Array, q: Array, given: Parameters, sums: Array) -> int:
    """Add up errors by any way that memory needs; return the status."""
    code = spec.arithmetic.code_format
    scale, zero_point = np.ascontiguousarray(given.scale), np.ascontiguousarray(given.zero_point)
    if (direct := _direct(spec, x, q, given)) is not None:
        return run(direct.with_tensor(given.tensor_scale), x, q, scale, zero_point, sums)
    if spec.packs and code is not None:
        codes = np.empty(x.shape, code.unpacked_dtype)
        unpack_codes(q, codes, code)
        return _execute(spec.unpacked, x, codes, given, sums)
    arrangement = arrange(x, q, spec.axes, spec.block_size)
    x, q, spec = arrangement.view(x), arrangement.view(q), spec.with_axes(arrangement.axes)
    scale, zero_point = arrangement.to_kernel(given.scale), arrangement.to_kernel(given.zero_point)
    if not arrangement.direct:
        return _execute_in_tiles(spec, x, q, given._replace(scale=scale, zero_point=zero_point), sums)
    plan = plan_errors(spec, x.shape, x.dtype, q.dtype, scale.dtype, zero_point.dtype)
    return run(plan.with_tensor(given.tensor_scale), x, q, scale, zero_point, sums)


def _execute_in_tiles(spec: OpSpec, x: Array, q: Array, given: Parameters, sums: Array) -> int:
    """Go through contiguous copies tile by tile."""
    values, approximation = native(x.dtype), native(q.dtype)
    dtypes = values, approximation, given.scale.dtype, given.zero_point.dtype
    plan, status = plan_errors(spec, x.shape, *dtypes, threads=1).with_tensor(given.tensor_scale), 0
    for index, start, stop in tiles(x.shape):
        part, other = np.ascontiguousarray(x[index], values), np.ascontiguousarray(q[index], approximation)
        for first in range(start, stop, ERRORS_CHUNK):
            last = min(first + ERRORS_CHUNK, stop)
            status |= run(plan.part(first, last, start), part, other, given.scale, given.zero_point, sums)
    return status


@in_standard_mode
def _comparison(sums: Array, size: int, has_codes: bool) -> Comparison:
    columns = sums.T.tolist()
    noise, signal, total, relative, nonzero, clipped = (_sum(columns[k]) for k in (0, 1, 2, 3, 6, 7))
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
