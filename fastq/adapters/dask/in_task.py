"""The work of one task: a call on one chunk, in the thread of the task only."""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import numpy as np

from fastq.adapters.dask.chunks import as_array_without_mask
from fastq.formats.granularity import Granularity
from fastq.ops.compare import TOTALS_OF_CODES, TOTALS_OF_VALUES
from fastq.ops.minmax import MINMAX
from fastq.ops.quantize import QUANTIZE_WITH_QPARAMS
from fastq.plan.cache import Call
from fastq.plan.call_modes import in_own_thread, in_standard_mode_when_called
from fastq.plan.nan_and_infinity import count_of
from fastq.requests.quantization import MinMaxOptions, dtype_of_fakes
from fastq.results import Comparison, QParams, QuantizedArray, without_checks
from fastq.results.measures import Totals, comparison_of
from fastq.system.arguments import native
from fastq.system.dtypes import Array

NOTHING = None, None, None, None  # operands of a call that are passed to tasks


def call_of_task(call: Call, **options: Any) -> Call:
    """Return the parts of a call that a task needs: everything except its arrays, perhaps with other options."""
    return call._replace(operands=NOTHING, qparams=None, bias=None, options=call.options._replace(**options))


def run_call(
    x: Array,
    a: Array | None = None,
    b: Array | None = None,
    tensor_scale: Array | None = None,
    *places: Any,
    arguments: Call,
    template: QParams | None = None,
) -> Any:
    """Make a call on a chunk in the thread of the task, with its part of the operands a and b of `run_operation`.

    With a template these are scale and zero point, and parameters like it are made of them. `places` add up to the
    position of the first element of the chunk, which selects its random numbers.
    """
    names_of_operands = arguments.operation.operands
    x = as_array_without_mask(x, names_of_operands[0])
    a = as_array_without_mask(a, names_of_operands[2] if len(names_of_operands) > 2 else "scale")
    b = as_array_without_mask(b, "zero_point")
    if arguments.noise is not None:
        arguments = arguments._replace(noise=arguments.noise.of_part(sum(int(place[0]) for place in places)))
    if template is not None:
        params = with_values(template, a, b, tensor_scale)
        arguments = arguments._replace(qparams=params)
        a = params.scale
        b = params.zero_point
    result = in_own_thread(arguments._replace(operands=(x, None, a, b)).make)
    return result.codes if arguments.operation is QUANTIZE_WITH_QPARAMS else result


def values_of_codes(
    x: Array, *numbers_and_places: Any, arguments: Call, template: QParams, template_of_values: QParams
) -> Array:
    """Return the values of the codes of a chunk: codes by the first numbers, values by the second ones.

    Numbers are a scale, a zero point and a tensor scale; places follow, as in `run_call`.
    """
    numbers_of_codes = numbers_and_places[:3]
    numbers_of_values = numbers_and_places[3:6]
    places = numbers_and_places[6:]
    codes = run_call(x, *numbers_of_codes, *places, arguments=arguments, template=template)
    q = without_checks(QuantizedArray, codes, with_values(template_of_values, *numbers_of_values), x.shape)
    return cast(Array, in_own_thread(functools.partial(q.dequantize, dtype=dtype_of_fakes(native(x.dtype)))))


def dequantize(codes: Array, last: Array | None, *numbers: Array | None, arguments: Call, template: QParams) -> Any:
    """Return the values of codes; for packed codes `last` is their number along the last axis, None for a scalar."""
    shape = _shape_of_packed(codes, last) if template.dtype.packed else codes.shape
    return run_call(codes, *numbers, arguments=arguments._replace(shape=shape), template=template)


def _shape_of_packed(codes: Array, last: Array | None) -> tuple[int, ...]:
    """Return the shape of the values of codes that share bytes; `last` is their number along the last axis."""
    return () if last is None else (*codes.shape[:-1], int(last[0]))


def requantize(acc: Array, multiplier: Array, bias: Array | None, *, zero_point: int, arguments: Call) -> Any:
    """Return the codes of a chunk of accumulators, with its part of multiplier and bias."""
    acc = as_array_without_mask(acc, "acc")
    multiplier = as_array_without_mask(multiplier, "multiplier")
    bias = as_array_without_mask(bias, "bias")
    arguments = arguments._replace(operands=(acc, None, multiplier, zero_point))
    return in_own_thread(arguments.with_bias(bias).make)


def totals(
    x: Array,
    q: Array,
    last: Array | None = None,
    *numbers: Array | None,
    arguments: Call,
    template: QParams | None = None,
) -> Totals:
    """Return the totals of the errors of a chunk, by codes and parameters or by values."""
    has_codes = template is not None
    x = as_array_without_mask(x, "x")
    q = as_array_without_mask(q, "q")
    if not x.size:
        return Totals.of_nothing(has_codes)
    if template is None:
        arguments = arguments._replace(operation=TOTALS_OF_VALUES, operands=(x, q, None, None))
    else:
        p = with_values(template, *numbers)
        operands = (x, q, p.scale, p.zero_point)
        arguments = arguments._replace(operation=TOTALS_OF_CODES, operands=operands, qparams=p, shape=x.shape)
    try:
        return cast(Totals, in_own_thread(arguments.make))
    except ValueError:
        # NaN is refused by `comparison`, which adds up the numbers of all chunks for its message
        if missing := count_of(np.isnan, x):
            return Totals.of_nothing(has_codes, missing)
        raise


@in_standard_mode_when_called
def comparison(of_chunks: list[Totals]) -> Comparison:
    """Return the measures of an array by the totals of its chunks."""
    return comparison_of(of_chunks)


def with_values(template: QParams, scale: Any, zero_point: Any, tensor_scale: Array | None = None) -> QParams:
    """Return a copy of a template with the numbers of a chunk, each as an array without a mask."""
    params = template.with_values(
        as_array_without_mask(scale, "scale"), as_array_without_mask(zero_point, "zero_point")
    )
    vars(params)["tensor_scale"] = as_array_without_mask(tensor_scale, "tensor_scale")
    return params


def field(results: Any, *, attribute: str) -> Array:
    """Return a field of the result of another task, which dask passes in one list for each axis of one chunk."""
    while isinstance(results, list):
        (results,) = results
    return np.asarray(getattr(results, attribute))


# --- ranges -----------------------------------------------------------------------------------------------------------


def ends(x: Array, *, granularity: Granularity, nan: str) -> Array:
    """Return minima and maxima of the parts of a chunk along a new first axis; reduced axes have one element."""
    x = as_array_without_mask(x, "x")
    if x.size:
        lo_and_hi = _minmax(x, granularity, nan)
    else:
        shape = granularity.parameter_shape(x.shape)
        lo_and_hi = np.stack([np.full(shape, end, native(x.dtype)) for end in _ends_of_nothing(native(x.dtype))])
    parameter_axes = granularity.parameter_axes(x.ndim)
    return np.expand_dims(lo_and_hi, tuple(axis + 1 for axis in range(x.ndim) if axis not in parameter_axes))


def _minmax(x: Array, granularity: Granularity, nan: str) -> Array:
    """Return minima and maxima of the parts of a chunk that has elements, along a new first axis."""
    axes = granularity.axes
    block_size = granularity.block_size
    options = MinMaxOptions(axes[0] if axes and block_size else axes, block_size, nan)
    arguments = Call(
        operation=MINMAX,
        operands=NOTHING,
        qparams=None,
        options=options,
        types=(type(options.axis), int),
        shape=None,
    )
    return np.stack(run_call(x, arguments=arguments))


def _ends_of_nothing(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return a minimum and a maximum of no elements, which change no others: the minimum is the larger one."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).max, np.iinfo(dtype).min
    return math.inf, -math.inf


def widest(pairs: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Return the smallest minimum and the largest maximum, of pairs along the first axis: a step of a reduction."""
    lo = pairs[:1].min(axis=axis, keepdims=keepdims)
    hi = pairs[1:].max(axis=axis, keepdims=keepdims)
    return np.concatenate([lo, hi])


def widest_of_all(pairs: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Return the smallest minimum and the largest maximum of all chunks: the last step of a reduction.

    A part without elements has the ends of nothing, whose minimum is above the maximum, and is refused.
    """
    lo_and_hi = widest(pairs, axis, keepdims)
    if not (lo_and_hi[0] <= lo_and_hi[1]).all():
        raise ValueError("x has no elements for a parameter: the range of no elements has no minimum and no maximum")
    return lo_and_hi


def params_of(pairs: Array, *, target: Any) -> QParams:
    """Return the parameters for minima and maxima."""
    params: QParams = in_own_thread(target.of_ranges, pairs[0], pairs[1])
    return params


# --- calibrators ------------------------------------------------------------------------------------------------------


def calibrate(x: Array, *, make: functools.partial[Any]) -> Any:
    """Return a calibrator of a chunk."""
    x = as_array_without_mask(x, "x")
    calibrator = make()
    in_own_thread(calibrator.update, x)
    return calibrator
