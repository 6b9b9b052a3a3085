"""Measure the error of quantized values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fastq.engine.runtime import driver
from fastq.engine.runtime.boundary import in_ieee_mode
from fastq.engine.runtime.tiling import Demands
from fastq.formats.granularity import ARRAY, Granularity
from fastq.formats.qtypes import check_stored_codes
from fastq.kernels.pointers import ErrorOperands
from fastq.kernels.sizes import SUM_LANES, TOTALS
from fastq.ops.dequantize import dequantize
from fastq.plan import adapters, policy, slots
from fastq.plan.arrange import View, order_without_gaps
from fastq.plan.by_parameters import Launcher, choose_launcher, in_bits, numbers_of
from fastq.plan.cache import BoundCall, Call, Operation, run_operation
from fastq.plan.kernel_call import element_types, kernel_args, load_or_compile_kernel, tile
from fastq.plan.launch import BoundLaunch
from fastq.plan.nan_and_infinity import refuse_nan_in_compare
from fastq.plan.policy import loop_of
from fastq.plan.spec import OpSpec, spec_of
from fastq.requests.parameters import Parameters, qparams_for_plan, rules_of
from fastq.requests.quantization import check_approximation, check_comparable, check_input, request_to_decode_by_qparams
from fastq.results import Comparison, QParams, QuantizedArray, without_checks
from fastq.results.measures import Totals, measures_of
from fastq.results.squares import LEAST, is_held, squares_of, squares_of_errors, total_of
from fastq.system.arrays_of_callers import as_array, has_named_dimensions, is_lazy
from fastq.system.dtypes import Array
from fastq.system.labels import check_tables


def compare(x: ArrayLike, q: QuantizedArray | ArrayLike) -> Comparison:
    """Measure the errors of an approximation of an array, in one pass and without temporaries.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype.
    q : QuantizedArray or array_like
        The approximation: codes of x, or an array of floats of x's shape. If both have labels, as DataArrays of
        xarray, these decide which elements belong together: dimensions may be in another order, coordinates must agree.
        So must indexes and columns, if both are of pandas or of polars.

    Returns
    -------
    Comparison
        Errors in float64. Sums are computed in memory order, so that threads do not change a bit.

    Raises
    ------
    TypeError, ValueError
        If shapes or labels differ, x is empty or has NaN, or a dtype is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.array([0.0, 0.5, 1.0], np.float32)
    >>> fastq.compare(x, np.array([0.0, 0.25, 1.0], np.float32)).max_abs_error
    0.25
    """
    if type(x) is not np.ndarray and has_named_dimensions(x):
        x, q = adapters.match_labels(x, q)
    elif type(x) is not np.ndarray:
        check_tables(q, x, "q", "x")
    if not isinstance(q, QuantizedArray):
        result: Comparison = run_operation(COMPARE_VALUES, x, q if is_lazy(x) else as_array(q, "q"), options=())
        return result
    p = q.qparams
    codes = q.codes if is_lazy(x) else as_array(q.codes, "q.codes")
    errors: Comparison = run_operation(
        COMPARE_CODES, x, codes, p.scale, p.zero_point, qparams=p, options=(p.key,), shape=q.shape
    )
    return errors


def totals(x: Array, q: Array | QuantizedArray) -> Totals:
    """Return the sums of the errors of codes, or of values, in a part of an array, for `comparison_of`."""
    if isinstance(q, QuantizedArray):
        p = q.qparams
        codes = as_array(q.codes, "q.codes")
        of_codes: Totals = run_operation(
            TOTALS_OF_CODES, x, codes, p.scale, p.zero_point, qparams=p, options=(p.key,), shape=q.shape
        )
        return of_codes
    of_values: Totals = run_operation(TOTALS_OF_VALUES, x, as_array(q, "q"), options=())
    return of_values


# elements over which errors are added up before sums are added, so that the order does not depend on threads; results
# depend on this number, so it is not a tuning constant
ERRORS_CHUNK = 1 << 16

_VALUES = OpSpec("compare")  # the approximation is an array of values


def plan_errors(spec: OpSpec, view: View, *dtypes: np.dtype[Any]) -> driver.LaunchPlan:
    """Plan sums of the errors of an approximation, in place or in tiles."""
    src, approximation, scale, zero_point, *_ = element_types(spec, *dtypes)
    layout = view.layout
    accumulator = np.dtype(np.float64)
    loop = loop_of(layout, "compare", src, approximation, scale)
    operands = ErrorOperands(src, approximation, scale, zero_point, accumulator)
    kernel = load_or_compile_kernel(loop.function, operands, "compare", spec.arithmetic)
    size = math.prod(view.shape)
    args = kernel_args(layout, spec.code_range, merged=loop.merged, chunk=ERRORS_CHUNK)
    threads = policy.threads_for(size)
    plan = driver.plan_launch(kernel, slots.COMPARE, args, size, threads, chunk=ERRORS_CHUNK, wake_workers=True)
    sum_bytes = TOTALS * SUM_LANES * accumulator.itemsize
    return tile(plan, view, (src, approximation), writes=False, demands=Demands(sum_bytes=sum_bytes))


def _launcher_of_errors(
    spec: OpSpec, granularity: Granularity, x: Array, q: Array, parameters: Parameters
) -> tuple[Launcher, tuple[int, int, int]]:
    """Return the launcher that sums errors, and the shape of the sums: chunks, kinds of sums, and lanes of each.

    Each chunk has sums for itself, and chunks do not depend on threads, so that results do not either.
    """
    dtypes = x.dtype, q.dtype, parameters.scale.dtype, parameters.zero_point.dtype
    order = order_without_gaps(parameters.scale)
    launcher_of_errors = choose_launcher(spec, granularity, x, q, x.shape, dtypes, plan_errors, order)
    (launch,) = launcher_of_errors.plan.launches
    return launcher_of_errors, (int(-(-launch["stop"] // launch["chunk"])), TOTALS, SUM_LANES)


class CompareOptions(NamedTuple):
    """Options of `fastq.compare` with codes; `key` is the part of the QParams on which a plan may depend."""

    key: Any = None


def _resolve_compare_codes(arguments: Call, x: Array, q: Array, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.compare` with codes, or only its totals, to which those of other chunks are added."""
    check_input(x.dtype)
    check_comparable(x.shape, arguments.shape)
    compute = arguments.qparams.compute_dtype
    rules = rules_of(arguments.qparams, compute)
    params = qparams_for_plan(arguments.qparams, arguments.shape, compute, rules)
    check_stored_codes(q, params.dtype, arguments.shape)
    request = request_to_decode_by_qparams(params, x.ndim, compute, rules.convention)
    parameters = numbers_of(params)
    launcher_of_errors, shape = _launcher_of_errors(
        spec_of("compare", request), request.granularity, x, q, in_bits(parameters)
    )

    def ready(scale: Any, zero_point: Any, tensor_scale: Any, sums: Array) -> tuple[Any, ...]:
        return *in_bits(rules.ready(scale, zero_point, tensor_scale)), sums

    launch = launcher_of_errors.bind_to_parameters(rules, x, None, 0, parameters, scale, zero_point)
    settle = BoundLaunch(refuse_nan_in_compare, launcher_of_errors.execute, ready=ready).settle
    finish = _finish_of(arguments)
    shape_of_values = arguments.shape

    def measure(x: Array, q: Array, scale: Any, zero_point: Any, qparams: QParams) -> Any:
        sums = np.zeros(shape)
        status = launch(x, q, scale, zero_point, sums)
        if status:
            settle(status, x, q, scale, zero_point, qparams.tensor_scale, sums)
        return finish(sums, x, q, qparams, shape_of_values)

    return measure


COMPARE_CODES = Operation(
    name="COMPARE_CODES",
    function="compare",
    resolve=_resolve_compare_codes,
    options=CompareOptions,
    operands=("x", "q", "scale", "zero_point"),
)


TOTALS_OF_CODES = dataclasses.replace(COMPARE_CODES, name="TOTALS_OF_CODES")


class NoOptions(NamedTuple):
    """Options of `fastq.compare` with an array."""


def _resolve_compare_values(arguments: Call, x: Array, q: Array, *_: object) -> BoundCall:
    """Resolve `fastq.compare` with an array, or only the totals."""
    compute = check_input(x.dtype)
    check_approximation(q.dtype)
    check_comparable(x.shape, q.shape)
    parameters = Parameters(np.ones((), compute), np.zeros((), np.int8))
    launcher_of_errors, shape = _launcher_of_errors(_VALUES, ARRAY, x, q, parameters)
    launch = launcher_of_errors.bind(driver.Checks((0, 0, 0, 0)))
    finish = _finish_of(arguments)

    def measure(x: Array, q: Array, *_: object) -> Any:
        sums = np.zeros(shape)
        status = launch(x, np.asarray(q), parameters.scale, parameters.zero_point, sums)
        refuse_nan_in_compare(status, x)
        return finish(sums, x, q)

    return measure


COMPARE_VALUES = Operation(
    name="COMPARE_VALUES",
    function="compare",
    resolve=_resolve_compare_values,
    options=NoOptions,
    operands=("x", "q", "scale", "zero_point"),
)


TOTALS_OF_VALUES = dataclasses.replace(COMPARE_VALUES, name="TOTALS_OF_VALUES")


def _finish_of(arguments: Call) -> Callable[..., Any]:
    """Return what makes the result of sums: totals, to be added to those of other parts, or the measures."""
    return _totals if arguments.operation in (TOTALS_OF_CODES, TOTALS_OF_VALUES) else _comparison


@in_ieee_mode
def _comparison(
    sums: Array, x: Array, q: Array, qparams: QParams | None = None, shape: tuple[int, ...] = ()
) -> Comparison:
    """Return the measures of an array, given the sums of its chunks; `qparams` and `shape` are those of codes."""
    return measures_of(_add_up(sums, x, q, qparams, shape))


def _add_up(sums: Array, x: Array, q: Array, qparams: QParams | None = None, shape: tuple[int, ...] = ()) -> Totals:
    """Return the totals of an array, with squares of other magnitudes if float64 does not hold theirs.

    `sums` are those of `_launcher_of_errors`; the order of kinds is that of `TOTALS`, in kernels/sizes.py.
    """
    # a list for each kind, with the sums of all chunks and lanes
    columns = (sums[0] if len(sums) == 1 else sums.transpose(1, 0, 2).reshape(TOTALS, -1)).tolist()
    noise, signal, absolute, relative, zeros, clipped = (total_of(columns[k]) for k in (0, 1, 2, 3, 6, 7))
    largest = _largest(columns[4], absolute)
    largest_relative = _largest(columns[5], relative)
    # by position, as keywords take 0.4 us of a small call
    totals = Totals(
        x.size,
        noise,
        signal,
        absolute,
        relative,
        largest,
        largest_relative,
        int(zeros),
        None if qparams is None else int(clipped),
    )
    if LEAST <= noise < math.inf and LEAST <= signal < math.inf:
        return totals
    return _with_squares(totals, x, q if qparams is None else without_checks(QuantizedArray, q, qparams, shape))


def _with_squares(totals: Totals, x: Array, approximation: Array | QuantizedArray) -> Totals:
    """Return totals with the sums of squares that float64 does not hold, if they are neither 0 nor infinite."""
    if not is_held(totals.signal) and totals.zeros < totals.size:
        signal = squares_of(x)
        totals = totals._replace(signal=signal.number, signal_exponent=signal.exponent)
    if not is_held(totals.noise) and 0 < totals.largest < math.inf:
        values = dequantize(approximation) if isinstance(approximation, QuantizedArray) else approximation
        noise = squares_of_errors(x, values, totals.largest)
        totals = totals._replace(noise=noise.number, noise_exponent=noise.exponent)
    return totals


_totals = in_ieee_mode(_add_up)


def _largest(parts: list[float], total: float) -> float:
    """Return the largest error: NaN if one is, which sums keep in any order, and a maximum of vectors does not."""
    return total if math.isnan(total) else max(parts)
