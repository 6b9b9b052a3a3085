"""Operations that take parameters from ranges: in one pass over the chunks, or in two with a tree between them."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from fastq.adapters.dask import by_parameters, in_task
from fastq.adapters.dask.chunks import PartedChunks, blockwise, codes_of, dtype_in, with_noise
from fastq.adapters.dask.collections import NUMBERS, QParams, QuantizedArray, with_lazy_numbers
from fastq.formats.conventions.table import as_convention
from fastq.formats.granularity import Granularity
from fastq.ops.calibration_methods import CalibrationTarget
from fastq.ops.quantize import FAKE_QUANTIZE_WITH_QPARAMS, QUANTIZE, QUANTIZE_WITH_QPARAMS
from fastq.plan.cache import Call
from fastq.requests.importance import axis_of_weights, check_importance
from fastq.requests.quantization import (
    QuantizeOptions,
    Request,
    dtype_of_fakes,
    granularity_of_minmax,
    request_by_range,
)
from fastq.results import without_checks
from fastq.system.arguments import native
from fastq.system.arrays_of_callers import as_array

_PAIR = -1  # the index of the axis of minima and maxima


def quantize(call: Call, x: da.Array) -> QuantizedArray:
    """Return the graph of `fastq.quantize` without parameters.

    If each scale belongs to one chunk, a task makes the whole call on each, and other tasks take codes and parameters
    out of its result. Else ranges are found first, parameters computed from them, and then codes by these.
    """
    request, parts = _request_and_chunks(call, x)
    parts.check_aligned(request.qtype)
    if parts.within_chunks(request.qtype, request.coding.convention):
        quantized = _in_one_pass(call, x, parts)
        codes = codes_of(parts.chunks, request.qtype, in_task.field, quantized, parts.all_axes, attribute="codes")
        return without_checks(QuantizedArray, codes, _params_in(quantized, parts, request), x.shape)
    # scales belong to several chunks: the first pass finds ranges, the second one quantizes by them
    request_of_codes = _request_of_codes(request)
    params_of_codes = _params_of_ranges(x, parts, request_of_codes)
    q = by_parameters.quantize_with_qparams(_second_pass(call, params_of_codes), x)
    if request_of_codes is request:
        return q
    return without_checks(QuantizedArray, q.codes, _params_of_ranges(x, parts, request), q.shape)


def fake_quantize(call: Call, x: da.Array) -> da.Array:
    """Return the graph of `fastq.fake_quantize` without parameters: in one pass or in two, as `quantize`."""
    request, parts = _request_and_chunks(call, x)
    parts.check_aligned()
    if parts.within_chunks(request.qtype, request.coding.convention):
        return _in_one_pass(call, x, parts, dtype_of_fakes(x.dtype))
    params = _params_of_ranges(x, parts, request)
    request_of_codes = _request_of_codes(request)
    if request_of_codes is request:
        return by_parameters.fake_quantize_with_qparams(_second_pass(call, params), x)
    params_of_codes = _params_of_ranges(x, parts, request_of_codes)
    call_of_codes = _second_pass(call._replace(operation=QUANTIZE), params_of_codes)
    return by_parameters.fake_quantize_by_two(call_of_codes, params, x)


def _request_of_codes(request: Request) -> Request:
    """Return the request for the parameters that codes are computed with: the same one, or with scales not rounded.

    Some systems round scales to store them, and compute codes with those from before.
    """
    convention = as_convention(request.convention)
    return request if convention.codes_by == "stored" else request._replace(convention=convention.before_rounding)


def choose_qparams(call: Call, x: da.Array) -> QParams:
    """Return the graph of `fastq.choose_qparams`: of parts within chunks in one pass, else from ranges."""
    request, parts = _request_and_chunks(call, x)
    parts.check_aligned()
    if parts.within_chunks(request.qtype, request.coding.convention):
        return _params_in(_in_one_pass(call, x, parts), parts, request)
    return _params_of_ranges(x, parts, request)


def minmax(call: Call, x: da.Array) -> tuple[da.Array, da.Array]:
    """Return the graph of `fastq.minmax`: the minima and the maxima of `_ends`, as two arrays."""
    parts = PartedChunks(x.chunks, granularity_of_minmax(dtype_in(x, "x"), (1,) * x.ndim, call.options))
    parts.check_aligned()
    ends = _ends(x, parts, call.options.nan)
    return ends[0], ends[1]


def _request_and_chunks(call: Call, x: da.Array) -> tuple[Request, PartedChunks]:
    """Return the request of a call, checked as far as it does not depend on elements, and the chunks of x."""
    importance = call.operands[2]
    request = request_by_range(dtype_in(x, "x"), x.ndim, call.options, weighed=importance is not None)
    if importance is not None:
        weights = _as_dask(importance)
        check_importance(weights.dtype, weights.shape, x.shape, request)
    return request, PartedChunks(x.chunks, request.granularity)


def _in_one_pass(call: Call, x: da.Array, parts: PartedChunks, dtype: Any = object) -> da.Array:
    """Return an array of a task for each chunk, which makes the whole call on it.

    By default an element is what the call returns, such as a QuantizedArray, of which `in_task.field` takes parts.
    """
    call, places = with_noise(call, x.chunks)
    options_of_tasks = {"arguments": in_task.call_of_task(call), "dtype": dtype, "token": call.operation.function}
    absent = (None, None)
    importance_and_axes = _weights(call, parts) or absent
    # importance; neither the operand b nor a tensor scale; places
    operands = [*importance_and_axes, *absent, *absent, *places]
    return blockwise(in_task.run_call, parts.all_axes, x, parts.all_axes, *operands, **options_of_tasks)


def _weights(call: Call, parts: PartedChunks) -> tuple[Any, ...]:
    """Return the importance of elements in the chunks of x, and its axes; an empty tuple without importance."""
    if call.operands[2] is None:
        return ()
    weights = _as_dask(call.operands[2])
    axes = parts.all_axes
    if weights.shape != parts.shape:
        axes = (axis_of_weights(len(axes), parts.granularity),)
    return weights.rechunk(tuple(parts.chunks[axis] for axis in axes)), axes


def _as_dask(importance: Any) -> da.Array:
    """Return the importance of elements as an array of dask."""
    return importance if isinstance(importance, da.Array) else da.asarray(as_array(importance, "importance"))


def _second_pass(call: Call, params: QParams) -> Call:
    """Return the call that quantizes with parameters from the ranges of the first pass."""
    saturate = call.options.saturate
    options = QuantizeOptions(saturate=saturate, nan=call.options.nan, key=params.key, rounding=call.options.rounding)
    operation = QUANTIZE_WITH_QPARAMS if call.operation is QUANTIZE else FAKE_QUANTIZE_WITH_QPARAMS
    return call._replace(operation=operation, qparams=params, options=options, types=(type(saturate),))


def _params_of_ranges(x: da.Array, parts: PartedChunks, request: Request) -> QParams:
    """Return lazy parameters from the ranges of parts, which lie in several chunks.

    A search needs all elements of a part at once, so it is refused.
    """
    if request.search is not None:
        axes = ", ".join(f"{axis}: -1" for axis in parts.reduced)
        raise ValueError(
            "range must be 'minmax' if a scale belongs to several chunks of x; for a search, each scale needs its "
            f"elements in one: x.rechunk({{{axes}}})"
        )
    # other ways to treat NaN are of codes: for ranges NaN counts as 0
    ends = _ends(x, parts, "raise" if request.nan == "raise" else "zero")
    index = tuple(range(ends.ndim - 1))
    target = CalibrationTarget(
        dtype=request.qtype, axis=request.axis, symmetric=request.symmetric, convention=request.convention
    )
    options_of_tasks = {"dtype": object, "concatenate": True, "token": "qparams", "target": target}
    params = blockwise(in_task.params_of, index, ends, (_PAIR, *index), **options_of_tasks)
    return _params_in(params, PartedChunks(ends.chunks[1:], Granularity(index)), request)


def _ends(x: da.Array, parts: PartedChunks, nan: str) -> da.Array:
    """Return the minima and the maxima of parts along a new first axis.

    Each task finds those of its chunk; where parts lie in several chunks, a tree of tasks joins them.
    """
    dtype = native(x.dtype)
    options_of_tasks: dict[str, Any] = {"granularity": parts.granularity, "nan": nan, "token": "ends"}
    options_of_tasks |= {"dtype": dtype, "new_axes": {_PAIR: 2}, "adjust_chunks": parts.result_chunks}
    ends = blockwise(in_task.ends, (_PAIR, *parts.all_axes), x, parts.all_axes, **options_of_tasks)
    if not parts.reduced:
        return ends
    axis = tuple(axis + 1 for axis in parts.reduced)
    meta = np.zeros((0,) * (1 + len(parts.kept)), dtype)
    steps = {"combine": in_task.widest, "axis": axis, "dtype": dtype, "meta": meta}
    return da.reduction(ends, in_task.widest, in_task.widest_of_all, **steps)


def _params_in(results: da.Array, parts: PartedChunks, request: Request) -> QParams:
    """Return the parameters in the results of tasks, each a QParams or a QuantizedArray, as lazy arrays.

    Each number, such as a scale, is a dask array of its own, with a task for each result that takes the attribute of
    this name.
    """
    chunks = dict(zip(parts.kept, parts.parameter_chunks, strict=True))
    like = request.params_without_numbers
    depends_on_array = request.coding.convention.scales_by_array(request.qtype)
    lazy_numbers = {}
    for name in NUMBERS:
        numbers = getattr(like, name)  # empty, of the right dtype
        if name == "tensor_scale" and not depends_on_array:  # a constant of the convention, or None
            lazy_numbers[name] = None if numbers is None else da.from_array(numbers)
        elif numbers is not None:
            options_of_tasks: dict[str, Any] = {
                "dtype": numbers.dtype,
                "adjust_chunks": chunks,
                "token": name,
                "attribute": name,
            }
            index = parts.kept if name != "tensor_scale" else ()
            lazy_numbers[name] = blockwise(in_task.field, index, results, parts.all_axes, **options_of_tasks)
    return with_lazy_numbers(like, **lazy_numbers)
