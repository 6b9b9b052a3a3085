"""Resolve measures of the errors of an approximation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import driver, threadpool
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.formats.granularity import ARRAY, Granularity
from fastq.formats.qtypes import check_stored_codes
from fastq.kernels.args import IN_SQUARES, SUM_LANES, TOTALS, ErrorOperands
from fastq.plan.arrange import View, order_without_gaps
from fastq.plan.by_parameters import given_by
from fastq.plan.cache import BoundCall, Call
from fastq.plan.kernel_call import ERRORS_CHUNK, element_types, kernel_address, kernel_args, loop_of, tiled
from fastq.plan.launch import BoundLaunch, Launcher, in_bits, launcher
from fastq.plan.refusal import refuse_nan_in_compare
from fastq.plan.spec import OpSpec, spec_of
from fastq.requests.parameters import Parameters, planned_qparams, rules_of
from fastq.requests.values import check_approximation, check_comparable, check_input, of_qparams
from fastq.results import Comparison, QParams
from fastq.results.measures import Totals, measures_of, total_of

Array = NDArray[Any]

_VALUES = OpSpec("compare")  # the approximation is an array of values


def plan_errors(spec: OpSpec, view: View, *dtypes: np.dtype[Any]) -> driver.LaunchPlan:
    """Plan sums of the errors of an approximation, in place or in tiles."""
    kinds, layout, accumulator = element_types(spec, *dtypes), view.layout, np.dtype(np.float64)
    loop = loop_of(layout, "compare", *kinds[:3])
    kernel = kernel_address(loop.function, ErrorOperands(*kinds[:4], accumulator), "compare", spec.arithmetic)
    operands, size = (driver.X, driver.OUT, driver.SCALE, driver.ZERO, driver.SUMS), math.prod(view.shape)
    args, threads = kernel_args(layout, spec.code_range, repeat=loop.repeat), threadpool.threads_for(size)
    plan = driver.plan_launch(kernel, operands, args, size, threads, chunk=ERRORS_CHUNK, wake_workers=True)
    sum_bytes = TOTALS * SUM_LANES * accumulator.itemsize
    return tiled(plan, view, kinds[:2], writes=False, sum_bytes=sum_bytes, args_in_squares=IN_SQUARES)


def _launcher_of_errors(
    spec: OpSpec, granularity: Granularity, x: Array, q: Array, given: Parameters
) -> tuple[Launcher, tuple[int, int, int]]:
    """Return how errors are summed on x, q, parameters and sums; and the shape of sums, of each chunk its own."""
    dtypes = x.dtype, q.dtype, given.scale.dtype, given.zero_point.dtype
    order = order_without_gaps(given.scale)
    way = launcher(spec, granularity, x, q, x.shape, dtypes, plan_errors, order)
    (launch,) = way.plan.launches
    return way, (int(-(-launch["stop"] // launch["chunk"])), TOTALS, SUM_LANES)


def compare_codes(call: Call, x: Array, q: Array, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.compare` with codes, or only the totals, which those of other chunks of an array are added to."""
    check_input(x.dtype)
    check_comparable(x.shape, call.shape)
    compute = call.qparams.compute_dtype
    rules = rules_of(call.qparams, compute)
    params = planned_qparams(call.qparams, call.shape, compute, rules)
    check_stored_codes(q, params.dtype, call.shape)
    request, given = of_qparams(params, x.ndim, compute, rules.convention), given_by(params)
    way, shape = _launcher_of_errors(spec_of("compare", request), request.granularity, x, q, in_bits(given))

    def ready(scale: Any, zero_point: Any, tensor_scale: Any, sums: Array) -> tuple[Any, ...]:
        return *in_bits(rules.ready(scale, zero_point, tensor_scale)), sums

    launch = way.bound_to(rules, x, None, 0, given, scale, zero_point)
    settle, finish = BoundLaunch(refuse_nan_in_compare, way.execute, ready=ready).settle, _finish_of(call)

    def measure(x: Array, q: Array, scale: Any, zero_point: Any, qparams: QParams) -> Any:
        sums = np.zeros(shape)
        status = launch(x, q, scale, zero_point, sums)
        if status:
            settle(status, x, q, scale, zero_point, qparams.tensor_scale, sums)
        return finish(sums, x.size, True)

    return measure


totals_of_codes = compare_codes


def compare_values(call: Call, x: Array, q: Array, *_: object) -> BoundCall:
    """Resolve `fastq.compare` with an array, or only the totals."""
    compute = check_input(x.dtype)
    check_approximation(q.dtype)
    check_comparable(x.shape, q.shape)
    given = Parameters(np.ones((), compute), np.zeros((), np.int8))
    way, shape = _launcher_of_errors(_VALUES, ARRAY, x, q, given)
    launch, finish = way.bound(driver.Checks((0, 0, 0, 0))), _finish_of(call)

    def measure(x: Array, q: Array, *_: object) -> Any:
        sums = np.zeros(shape)
        status = launch(x, np.asarray(q), given.scale, given.zero_point, sums)
        refuse_nan_in_compare(status, x)
        return finish(sums, x.size, False)

    return measure


totals_of_values = compare_values


def _finish_of(call: Call) -> Callable[[Array, int, bool], Any]:
    return _comparison if call.operation.startswith("compare") else _totals


@in_standard_mode
def _comparison(sums: Array, size: int, has_codes: bool) -> Comparison:
    return measures_of(_totals(sums, size, has_codes))


@in_standard_mode
def _totals(sums: Array, size: int, has_codes: bool) -> Totals:
    columns = (sums[0] if len(sums) == 1 else sums.transpose(1, 0, 2).reshape(TOTALS, -1)).tolist()
    noise, signal, total, relative, zeros, clipped = (total_of(columns[k]) for k in (0, 1, 2, 3, 6, 7))
    largest, largest_relative = _largest(columns[4], total), _largest(columns[5], relative)
    count = int(clipped) if has_codes else None
    return Totals(size, noise, signal, total, relative, largest, largest_relative, int(zeros), count)


def _largest(parts: list[float], total: float) -> float:
    """Return the largest error: NaN if one is, which sums keep in any order, and a maximum of vectors does not."""
    return total if math.isnan(total) else max(parts)
